"""The sets that torchvision downloads: a class each, which is a `Source` and what is known of its pixels."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from torchvision import datasets
from typing_extensions import override

from lightning_app.datamodules.base import ResidentData, Splits
from lightning_app.datamodules.images import ImageData
from lightning_app.datamodules.sources import Source

DIGITS = tuple("0123456789")
CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CIFAR100_CLASSES = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle caterpillar
cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant flatfish forest fox girl
hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom
oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray road
rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank
telephone television tiger tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""
FASHION_CLASSES = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot")


class FromSource(ResidentData):
    """A known set from .npy arrays or torchvision (see `sources`), downloaded when there is none.

    A subclass has a ``SOURCE``; classes and shape are known before anything is downloaded, so that a net can be checked first.
    """

    SOURCE: ClassVar[Source]

    @override
    def prepare_data(self) -> None:
        """Download what is missing."""
        self.SOURCE.below(Path(self.root)).prepare()

    @override
    def load(self) -> Splits:
        return self.SOURCE.below(Path(self.root)).read()

    @property
    @override
    def num_classes(self) -> int:
        return len(self.SOURCE.class_names)

    @property
    @override
    def sample_shape(self) -> tuple[int, ...]:
        """(C, H, W)."""
        height, width, channels = self.SOURCE.image_shape
        return channels, height, width


def by_train_flag(
    kind: Callable[..., Any], title: str, folder: str, shape: tuple[int, int, int], classes: Sequence[str], *files: str
) -> Source:
    """The `Source` of a class of torchvision's with ``train=``, ``.data`` and ``.targets``, as most have."""

    def read(root: str, split: str, download: bool) -> tuple[Any, Any]:
        found = kind(root, train=split == "train", download=download)
        return found.data, found.targets

    return Source(title, Path(folder), shape, tuple(classes), read, files)


class CIFAR10(FromSource, ImageData):
    """CIFAR-10 (Krizhevsky 2009): 50,000 training and 10,000 test images of 32 x 32 pixels in ten classes.

    Looked for in ``<root>/cifar10`` and, as torchvision left it, in ``<root>/cifar-10-batches-py``. Takes the arguments of
    `ImageData`.
    """

    MEAN = (0.4914, 0.4822, 0.4465)
    STD = (0.2470, 0.2435, 0.2616)
    SOURCE = by_train_flag(datasets.CIFAR10, "CIFAR-10", "cifar10", (32, 32, 3), CIFAR10_CLASSES, "cifar-10-batches-py")


class CIFAR100(FromSource, ImageData):
    """CIFAR-100 with its fine labels (Krizhevsky 2009): 50,000 training and 10,000 test images of 32 x 32 pixels.

    Looked for in ``<root>/cifar100`` and, as torchvision left it, in ``<root>/cifar-100-python``. Takes the arguments of
    `ImageData`.
    """

    MEAN = (0.5071, 0.4867, 0.4408)
    STD = (0.2675, 0.2565, 0.2761)
    SOURCE = by_train_flag(
        datasets.CIFAR100, "CIFAR-100", "cifar100", (32, 32, 3), CIFAR100_CLASSES.split(), "cifar-100-python"
    )


class FashionMNIST(FromSource, ImageData):
    """Fashion-MNIST (Xiao et al. 2017): 60,000 training and 10,000 test images of 28 x 28 grey levels in ten classes.

    Looked for in ``<root>/fashion_mnist`` and, as torchvision left it, in ``<root>/FashionMNIST/raw``. A net for it has
    ``in_channels: 1``. Takes the arguments of `ImageData`.
    """

    MEAN = (0.2860,)
    STD = (0.3530,)
    SOURCE = by_train_flag(
        datasets.FashionMNIST, "Fashion-MNIST", "fashion_mnist", (28, 28, 1), FASHION_CLASSES, "FashionMNIST/raw"
    )


def _svhn(root: str, split: str, download: bool) -> tuple[Any, Any]:
    found = datasets.SVHN(root, split=split, download=download)
    return np.moveaxis(found.data, 1, -1), found.labels  # torchvision has (N, C, H, W)


class SVHN(FromSource, ImageData):
    """Street View House Numbers, cropped digits (Netzer et al. 2011): 73,257 training and 26,032 test images of 32 x 32 pixels.

    Looked for in ``<root>/svhn`` and, as torchvision left it, in ``<root>/train_32x32.mat`` and ``<root>/test_32x32.mat``.
    Never mirrored by default: a mirrored 2 is no digit. Takes the arguments of `ImageData`.
    """

    FLIP = False
    MEAN = (0.4377, 0.4438, 0.4728)
    STD = (0.1980, 0.2010, 0.1970)
    SOURCE = Source("SVHN", Path("svhn"), (32, 32, 3), DIGITS, _svhn, ("train_32x32.mat", "test_32x32.mat"))
