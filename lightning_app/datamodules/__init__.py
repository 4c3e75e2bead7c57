"""Image and vector sets that live on the compute device, and batches of them that depend on nothing but (seed, epoch, step)."""

from lightning_app.datamodules.cifar10 import CIFAR10
from lightning_app.datamodules.cifar100 import CIFAR100
from lightning_app.datamodules.digits import Digits
from lightning_app.datamodules.image_folder import ImageFolder
from lightning_app.datamodules.images import ImageData
from lightning_app.datamodules.loaders import EpochLoader
from lightning_app.datamodules.mixture import GaussianMixture
from lightning_app.datamodules.whitened import WhitenedDigits, WhitenedMNIST, Whitening, whitened

__all__ = [
    # images
    "CIFAR10",
    "CIFAR100",
    "Digits",
    "EpochLoader",
    "ImageData",
    "ImageFolder",
    # vectors
    "GaussianMixture",
    "WhitenedDigits",
    "WhitenedMNIST",
    "Whitening",
    "whitened",
]
