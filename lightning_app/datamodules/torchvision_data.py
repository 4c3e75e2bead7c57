"""The sets that torchvision downloads: a class each, which is a `Source` and what is known of its pixels.

Their pixels come from the user's own arrays, else from the files that torchvision downloads. Pictures of any other kind are for
`ImageFolder`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torchvision import datasets
from typing_extensions import override

from lightning_app.common.errors import UserError, first_sentence
from lightning_app.common.safe_io import read_npy
from lightning_app.datamodules.base import ResidentData, Splits
from lightning_app.datamodules.images import ImageData

ARRAYS = ("train_images", "train_labels", "test_images", "test_labels")

Arrays = dict[str, np.ndarray]  # by the names of ARRAYS

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


@dataclass(frozen=True)
class Source:
    """What is known of a data set before it is read, and how torchvision reads it."""

    kind: Callable[..., Any]  # torchvision's class
    title: str  # for messages
    folder: str  # within the folder of all data sets
    image_shape: tuple[int, int, int]  # (H, W, C), H = W
    class_names: Sequence[str]  # by label
    official_files: tuple[str, ...]  # what torchvision needs: files, or folders of them, relative to root


class FromSource(ResidentData):
    """A data set from ``<root>/<folder>/{train,test}_{images,labels}.npy``, else from torchvision's files in ``<root>``.

    A subclass has a ``SOURCE``: classes and shape are known before anything is downloaded, so that a net can be checked first.
    """

    SOURCE: ClassVar[Source]

    @override
    def prepare_data(self) -> None:
        """Download what is missing; for one process on each node.

        Raises:
            UserError: if there is nothing to read and the download fails.
        """
        if not (self._has_arrays() or self._is_downloaded()):
            self._official(download=True)

    @override
    def load(self) -> Splits:
        """The data, from the first of the two that is there.

        Raises:
            UserError: if none is there, or if what is there is not what it should be.
        """
        arrays = _read_arrays(self._folder) if self._has_arrays() else self._official()
        self._check(arrays)
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        return Splits(**tensors, class_names=tuple(self.SOURCE.class_names))

    @cached_property
    def num_classes(self) -> int:
        return len(self.SOURCE.class_names)

    @cached_property
    def sample_shape(self) -> tuple[int, ...]:
        """(C, H, W)."""
        *size, channels = self.SOURCE.image_shape
        return channels, *size

    @property
    def _folder(self) -> Path:
        return Path(self.root) / self.SOURCE.folder

    def _has_arrays(self) -> bool:
        return any((self._folder / f"{name}.npy").exists() for name in ARRAYS)

    def _is_downloaded(self) -> bool:
        files = [Path(self.root) / name for name in self.SOURCE.official_files]
        # Of MNIST's kind the folder is there while its files are on the way, or packed as one downloads them by hand.
        unpacked = [files[0] / Path(name).stem for name, _ in getattr(self.SOURCE.kind, "resources", ())]
        return all(file.exists() for file in (*files, *unpacked))

    def _check(self, arrays: Arrays) -> None:
        source = self.SOURCE
        for split in ("train", "test"):
            images, labels = arrays[f"{split}_images"], arrays[f"{split}_labels"]
            where = f"of {source.title} in {self._folder}"
            _expect_array(images, np.uint8, ("N", *source.image_shape), f"the {split} images {where}")
            _expect_array(labels, np.int64, (len(images),), f"the {split} labels {where}")
            if len(labels) == 0 or labels.min() < 0 or labels.max() >= len(source.class_names):
                got = f"{labels.min()}..{labels.max()}" if len(labels) else "no labels"
                raise UserError(
                    f"the {split} labels {where} must lie in 0..{len(source.class_names) - 1}, got {got}: "
                    "number the classes from 0."
                )

    def _by_torchvision(self, split: str, download: bool) -> tuple[Any, Any]:
        """(N, H, W, C) or (N, H, W) uint8, and N labels."""
        found = self.SOURCE.kind(self.root, train=split == "train", download=download)
        return found.data, found.targets

    def _official(self, download: bool = False) -> Arrays:
        source, arrays = self.SOURCE, {}
        try:
            for split in ("train", "test"):
                images, labels = self._by_torchvision(split, download)
                arrays[f"{split}_images"] = np.ascontiguousarray(images).reshape(-1, *source.image_shape)
                arrays[f"{split}_labels"] = np.asarray(labels, dtype=np.int64)
        except Exception as error:  # torchvision asserts, unpacks and indexes what it finds in a broken file
            why, official, root = first_sentence(error), " and ".join(source.official_files), Path(self.root)
            there = f"and {official} cannot be read ({why})" if self._is_downloaded() else ""
            tried = f"and the download failed ({why})" if download else there or f"and not in {root} either"
            raise UserError(
                f"expected {source.title} in {self._folder}, found none there {tried}: put "
                f"{', '.join(f'{name}.npy' for name in ARRAYS)} into that folder, or the official {official} into {root} "
                "(if damaged, remove it and it is downloaded again), or set data.root to the folder that has them."
            ) from error
        return arrays


def _read_arrays(folder: Path) -> Arrays:
    """The four arrays of a folder, none of them unpickled."""
    missing = [f"{name}.npy" for name in ARRAYS if not (folder / f"{name}.npy").exists()]
    if missing:
        raise UserError(
            f"expected {', '.join(f'{name}.npy' for name in ARRAYS)} in {folder}, found no {' and no '.join(missing)}: "
            "add what is missing, or remove the others to use torchvision's files."
        )
    return {name: read_npy(folder / f"{name}.npy") for name in ARRAYS}


def _expect_array(array: np.ndarray, dtype: type, shape: tuple, what: str) -> None:
    fits = array.ndim == len(shape) and all(want in ("N", have) for want, have in zip(shape, array.shape))
    if array.dtype != dtype or not fits:
        wanted = str(shape).replace("'", "")
        raise UserError(
            f"{what} must be {np.dtype(dtype)} of shape {wanted}, got {array.dtype} of shape {array.shape}: "
            "convert and save them again."
        )


class CIFAR10(FromSource, ImageData):
    """CIFAR-10 (Krizhevsky 2009): 50,000 training and 10,000 test images of 32 x 32 pixels in ten classes.

    Looked for in ``<root>/cifar10`` and, as torchvision left it, in ``<root>/cifar-10-batches-py``. Has the arguments of
    `ImageData`.
    """

    MEAN = (0.4914, 0.4822, 0.4465)
    STD = (0.2470, 0.2435, 0.2616)
    SOURCE = Source(datasets.CIFAR10, "CIFAR-10", "cifar10", (32, 32, 3), CIFAR10_CLASSES, ("cifar-10-batches-py",))


class CIFAR100(FromSource, ImageData):
    """CIFAR-100 with its fine labels (Krizhevsky 2009): 50,000 training and 10,000 test images of 32 x 32 pixels.

    Looked for in ``<root>/cifar100`` and, as torchvision left it, in ``<root>/cifar-100-python``. Has the arguments of
    `ImageData`.
    """

    MEAN = (0.5071, 0.4867, 0.4408)
    STD = (0.2675, 0.2565, 0.2761)
    SOURCE = Source(
        datasets.CIFAR100, "CIFAR-100", "cifar100", (32, 32, 3), CIFAR100_CLASSES.split(), ("cifar-100-python",)
    )


class FashionMNIST(FromSource, ImageData):
    """Fashion-MNIST (Xiao et al. 2017): 60,000 training and 10,000 test images of 28 x 28 grey levels in ten classes.

    Looked for in ``<root>/fashion_mnist`` and, as torchvision left it, in ``<root>/FashionMNIST/raw``. A net for it has
    ``in_channels: 1``. Has the arguments of `ImageData`.
    """

    MEAN = (0.2860,)
    STD = (0.3530,)
    SOURCE = Source(
        datasets.FashionMNIST, "Fashion-MNIST", "fashion_mnist", (28, 28, 1), FASHION_CLASSES, ("FashionMNIST/raw",)
    )


class SVHN(FromSource, ImageData):
    """Street View House Numbers, cropped digits (Netzer et al. 2011): 73,257 training and 26,032 test images of 32 x 32 pixels.

    Looked for in ``<root>/svhn`` and, as torchvision left it, in ``<root>/train_32x32.mat`` and ``<root>/test_32x32.mat``.
    Not mirrored by default: a mirrored 2 is not a digit. Has the arguments of `ImageData`.
    """

    FLIP = False
    MEAN = (0.4377, 0.4438, 0.4728)
    STD = (0.1980, 0.2010, 0.1970)
    SOURCE = Source(datasets.SVHN, "SVHN", "svhn", (32, 32, 3), DIGITS, ("train_32x32.mat", "test_32x32.mat"))

    @override
    def _by_torchvision(self, split: str, download: bool) -> tuple[Any, Any]:
        found = self.SOURCE.kind(self.root, split=split, download=download)
        return np.moveaxis(found.data, 1, -1), found.labels  # torchvision has (N, C, H, W)
