"""Image sets that live on the compute device, and batches of them that depend on nothing but (seed, epoch, step)."""

from lightning_app.datamodules.cifar10 import CIFAR10
from lightning_app.datamodules.digits import Digits
from lightning_app.datamodules.images import ImageData
from lightning_app.datamodules.loaders import EpochLoader

__all__ = ["CIFAR10", "Digits", "EpochLoader", "ImageData"]
