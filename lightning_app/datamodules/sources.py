"""Where the pixels of a dataset come from, tried in this order:

1. ``<root>/<name>/{train,test}_{images,labels}.npy``: the user's own arrays.
2. ``<root>/<name>/{train,test}/<class>/*.png|jpg|jpeg``: a tree of image files (torchvision's ImageFolder layout).
3. The files torchvision downloads to ``<root>``.

The last two are decoded once, into ``<root>/<name>/cache/``, and again only when the names, sizes or modification
times of the files have changed. Another data set is one more `Source`.
"""

import contextlib
import hashlib
import io
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lightning_app.common.errors import UserError
from lightning_app.common.files import write_atomically
from lightning_app.common.safe_io import read_npy, read_text
from lightning_app.datamodules.base import Splits

ARRAYS = ("train_images", "train_labels", "test_images", "test_labels")
CACHE = "cache"
STAMP = "stamp.txt"  # fingerprint of the files that the cache was made of

Arrays = dict[str, np.ndarray]  # by the names of ARRAYS
File = tuple[str, int, int]  # path relative to the listed folder, bytes, modification time in ns


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
        """Download and decode what is still missing; for one process on each node.

        Raises:
            ValueError: as `read`, and if there is nothing to read and the download fails.
        """
        if not (self._has_arrays() or self._is_cached(files := self._files())):
            self._decode(files, download=True)

    def read(self) -> Splits:
        """The data, from the first of the three that is there.

        Raises:
            ValueError: if none is there, or if what is there is not what it should be.
        """
        arrays = _read_arrays(self.folder) if self._has_arrays() else self._decoded()
        self._check(arrays)
        return Splits(**{name: torch.from_numpy(array) for name, array in arrays.items()}, class_names=self._names())

    def _has_arrays(self) -> bool:
        return any((self.folder / f"{name}.npy").exists() for name in ARRAYS)

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

    @property
    def _has_tree(self) -> bool:
        return any((self.folder / split).is_dir() for split in ("train", "test"))

    def _names(self) -> tuple[str, ...]:
        if self._has_arrays() or not self._has_tree:
            return self.class_names
        from lightning_app.datamodules.pictures import class_folders

        return class_folders(self.folder / "train")

    def _decoded(self) -> Arrays:
        """The decoded arrays, from the cache when it is up to date and undamaged."""
        if self._is_cached(files := self._files()):
            with contextlib.suppress(OSError, ValueError):
                return _read_arrays(self.folder / CACHE)
        return self._decode(files, download=False)

    def _is_cached(self, files: list[File]) -> bool:
        """Was the cache made of these files?"""
        try:
            return (
                bool(files)
                and read_text(self.folder / CACHE / STAMP) == hashlib.sha256(repr(files).encode()).hexdigest()
            )
        except (OSError, ValueError):
            return False

    def _decode(self, files: list[File], download: bool) -> Arrays:
        arrays = self._decode_tree() if self._has_tree else self._decode_official(download)
        # As they were before decoding, so that a file that changed meanwhile is decoded again the next time.
        stamp = hashlib.sha256(repr(files or self._files()).encode()).hexdigest()
        _write_cache(self.folder / CACHE, stamp, arrays)
        return arrays

    def _files(self) -> list[File]:
        """The files to decode, as they are now, sorted by path."""
        if not self._has_tree:
            return sorted(file for name in self.official_files for file in _walk(self.root / name))
        return sorted(file for split in ("train", "test") for file in _walk(self.folder / split, f"{split}/"))

    def _decode_tree(self) -> Arrays:
        from lightning_app.datamodules.pictures import Decoding, Pictures, class_folders, list_pictures

        found = {split: class_folders(self.folder / split) for split in ("train", "test")}
        if found["train"] != found["test"] or len(found["train"]) != len(self.class_names):
            raise UserError(
                f"{self.title} needs the same {len(self.class_names)} class folders in {self.folder / 'train'} and "
                f"in {self.folder / 'test'}, got {len(found['train'])} and {len(found['test'])}: one folder for each "
                f"class, for example train/{self.class_names[0]}."
            )
        size, _, channels = self.image_shape
        decoding, arrays = Decoding(size, None, "bilinear", 3 if channels == 3 else 1), {}
        for split in ("train", "test"):
            listed, labels = list_pictures(self.folder / split, found["train"])
            arrays[f"{split}_images"] = Pictures(listed, decoding)[:].numpy()
            arrays[f"{split}_labels"] = labels.numpy()
        return arrays

    def _decode_official(self, download: bool) -> Arrays:
        arrays = {}
        try:
            for split in ("train", "test"):
                images, labels = self.official(str(self.root), split, download)
                arrays[f"{split}_images"] = np.ascontiguousarray(images).reshape(-1, *self.image_shape)
                arrays[f"{split}_labels"] = np.asarray(labels, dtype=np.int64)
        except Exception as error:  # torchvision asserts, unpacks and indexes what it finds in a broken file
            reason = " ".join(str(error).split())[:300] or type(error).__name__
            official = " and ".join(self.official_files)
            there = f"and {official} cannot be read ({reason})" if self._files() else ""
            tried = f"and the download failed ({reason})" if download else there or f"and not in {self.root} either"
            raise UserError(
                f"expected {self.title} in {self.folder}, found none there {tried}: put "
                f"{', '.join(f'{name}.npy' for name in ARRAYS)} or a tree train/<class>/*.png, test/<class>/*.png "
                f"into that folder, or the official {official} into {self.root}, or set data.root to the "
                "folder that has them."
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


def _walk(folder: Path, prefix: str = "") -> Iterator[File]:
    """All files below a folder, or the one file of that name; none if neither is there."""
    if folder.is_dir():
        for entry in folder.iterdir():
            yield from _walk(entry, f"{prefix}{entry.name}/" if entry.is_dir() else prefix)
    elif folder.exists():
        status = folder.stat()
        yield f"{prefix}{folder.name}", status.st_size, status.st_mtime_ns


def _write_cache(cache: Path, stamp: str, arrays: Arrays) -> None:
    """Keep the arrays; the stamp goes first and comes back last, so that it never vouches for a part of them."""
    try:
        cache.mkdir(parents=True, exist_ok=True)
        (cache / STAMP).unlink(missing_ok=True)
        for name, array in arrays.items():
            buffer = io.BytesIO()
            np.save(buffer, array)
            write_atomically(cache / f"{name}.npy", buffer.getvalue())
        write_atomically(cache / STAMP, stamp.encode())
    except OSError as error:
        message = f"the decoded images cannot be kept in {cache} ({error}): they are decoded again each time."
        warnings.warn(message, stacklevel=2)
