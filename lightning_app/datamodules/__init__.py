"""Image, vector and token sets on the compute device, and batches of them that depend on nothing but (seed, epoch, step).

A data set is one class: `ImageData` with ``load()`` for images, `torchvision_data` for what torchvision downloads (a `Source`,
its mean and its standard deviation), `VectorData` for vectors, `TokenData` for tokens.
"""

from typing import TYPE_CHECKING

from lightning_app.common.lazy import lazy

if TYPE_CHECKING:
    from lightning_app.datamodules.base import ResidentData, Splits
    from lightning_app.datamodules.digits import Digits
    from lightning_app.datamodules.image_folder import ImageFolder
    from lightning_app.datamodules.images import ImageData
    from lightning_app.datamodules.loaders import EpochLoader
    from lightning_app.datamodules.mixture import GaussianMixture
    from lightning_app.datamodules.tokens import KHop, ModularAddition, TokenData, Tokens
    from lightning_app.datamodules.torchvision_data import CIFAR10, CIFAR100, SVHN, FashionMNIST
    from lightning_app.datamodules.vectors import VectorData
    from lightning_app.datamodules.whitened import WhitenedDigits, WhitenedMNIST, Whitening

__getattr__ = lazy(__name__)
