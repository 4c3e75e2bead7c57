"""Where the pixels of a known dataset come from: the user's own arrays, else the files that torchvision downloads.

The arrays are ``<root>/<name>/{train,test}_{images,labels}.npy``. Another data set is one more `Source`; pictures of any other
kind are for `ImageFolder`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lightning_app.common.errors import UserError
from lightning_app.common.safe_io import read_npy
from lightning_app.datamodules.base import Splits

ARRAYS = ("train_images", "train_labels", "test_images", "test_labels")

Arrays = dict[str, np.ndarray]  # by the names of ARRAYS


@dataclass(frozen=True)
class Source:
    """Where one data set may lie. `torchvision_data` has examples."""

    title: str  # for messages
    folder: Path  # <root>/<name>; in a datamodule's class still <name>
    image_shape: tuple[int, int, int]  # (H, W, C), H = W
    class_names: tuple[str, ...]  # by label
    official: Callable[[str, str, bool], tuple[Any, Any]]
    """By torchvision: root, "train" or "test", whether to download -> (N, H, W, C) or (N, H, W) uint8, and N labels."""
    official_files: tuple[str, ...]  # what that needs: files, or folders of them, relative to root

    def below(self, root: Path) -> "Source":
        """The same in a folder of data sets."""
        return replace(self, folder=root / self.folder)

    @property
    def root(self) -> Path:
        """The folder of all data sets."""
        return self.folder.parent

    def prepare(self) -> None:
        """Download what is missing; for one process on each node.

        Raises:
            ValueError: if there is nothing to read and the download fails.
        """
        if not (self._has_arrays() or self._is_downloaded()):
            self._official(download=True)

    def read(self) -> Splits:
        """The data, from the first of the two that is there.

        Raises:
            ValueError: if none is there, or if what is there is not what it should be.
        """
        arrays = _read_arrays(self.folder) if self._has_arrays() else self._official(download=False)
        self._check(arrays)
        return Splits(**{name: torch.from_numpy(array) for name, array in arrays.items()}, class_names=self.class_names)

    def _has_arrays(self) -> bool:
        return any((self.folder / f"{name}.npy").exists() for name in ARRAYS)

    def _is_downloaded(self) -> bool:
        return all((self.root / name).exists() for name in self.official_files)

    def _check(self, arrays: Arrays) -> None:
        for split in ("train", "test"):
            images, labels = arrays[f"{split}_images"], arrays[f"{split}_labels"]
            where = f"{split} of {self.title} in {self.folder}"
            _expect_array(images, np.uint8, ("N", *self.image_shape), f"the images of {where}")
            _expect_array(labels, np.int64, (len(images),), f"the labels of {where}")
            if len(labels) == 0 or labels.min() < 0 or labels.max() >= len(self.class_names):
                got = f"{labels.min()}..{labels.max()}" if len(labels) else "no labels"
                raise UserError(
                    f"the labels of {where} must lie in 0..{len(self.class_names) - 1}, got {got}: "
                    "number the classes from 0."
                )

    def _official(self, download: bool) -> Arrays:
        arrays = {}
        try:
            for split in ("train", "test"):
                images, labels = self.official(str(self.root), split, download)
                arrays[f"{split}_images"] = np.ascontiguousarray(images).reshape(-1, *self.image_shape)
                arrays[f"{split}_labels"] = np.asarray(labels, dtype=np.int64)
        except Exception as error:  # torchvision asserts, unpacks and indexes what it finds in a broken file
            reason = " ".join(str(error).split()).split(". ")[0][:300] or type(error).__name__
            official = " and ".join(self.official_files)
            there = f"and {official} cannot be read ({reason})" if self._is_downloaded() else ""
            tried = f"and the download failed ({reason})" if download else there or f"and not in {self.root} either"
            raise UserError(
                f"expected {self.title} in {self.folder}, found none there {tried}: put "
                f"{', '.join(f'{name}.npy' for name in ARRAYS)} into that folder, or the official {official} into {self.root} "
                "(removed when damaged, it is downloaded again), or set data.root to the folder that has them."
            ) from error
        return arrays


def _read_arrays(folder: Path) -> Arrays:
    """The four arrays of a folder, none of them unpickled."""
    missing = [f"{name}.npy" for name in ARRAYS if not (folder / f"{name}.npy").exists()]
    if missing:
        raise UserError(
            f"expected {', '.join(f'{name}.npy' for name in ARRAYS)} in {folder}, {' and '.join(missing)} not there: "
            "add what is missing, or remove the others to use another source."
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
