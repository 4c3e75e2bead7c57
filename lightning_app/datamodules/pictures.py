"""Picture files that stand for a tensor of images: of a million of them, only the rows that are taken are decoded.

Pictures become what torchvision's pretrained weights were evaluated on (``weights.transforms()``), byte for byte: the
shorter side resized with antialiasing, and the central square cut out. Only the orientation in EXIF data is applied here and
not there.
"""

import math
import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import torchvision.transforms.functional as TF
from PIL import Image, ImageOps
from torch import Tensor
from torchvision.datasets.folder import IMG_EXTENSIONS, make_dataset
from tqdm import tqdm

from lightning_app.common.errors import UserError, first_line, nearest

# Pillow goes by the content, whatever the name, and hands PostScript to a program that executes it.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "PPM")
MODES = {1: "L", 3: "RGB"}  # Pillow's, by channels
BITS = 258  # TIFF's tag BitsPerSample


@dataclass(frozen=True)
class Decoding:
    """File -> (image_size, image_size, channels) uint8."""

    image_size: int
    resize: int  # what the shorter side becomes, at least image_size
    interpolation: Literal["bilinear", "bicubic"]
    channels: Literal[1, 3]

    @property
    def shape(self) -> tuple[int, int, int]:
        """(H, W, C) of a decoded picture."""
        return self.image_size, self.image_size, self.channels

    def __call__(self, file: str) -> np.ndarray:
        """Upright, without transparency, resized and cut to the central square.

        Raises:
            UserError: naming the file, if it is no whole picture, has more than 8 bits a channel, or another size.
        """
        try:
            with Image.open(file, formats=FORMATS) as image:
                self._check_size(*image.size)
                return self._square(_upright(image, MODES[self.channels]))
        except Exception as error:  # Pillow's readers raise whatever a broken file leads them to
            why = first_line(error)
            raise UserError(f"{file} cannot be read as a picture ({why}): replace or remove it.") from error

    def _check_size(self, width: int, height: int) -> None:
        """Before anything is unpacked: a small file may hold a huge picture, and 1 x 65,000 pixels would be made 4 GB."""
        pixels = max(width, height) * self.resize**2 / min(width, height)
        if pixels > (Image.MAX_IMAGE_PIXELS or math.inf):
            raise ValueError(f"{width} x {height} pixels are too long to be resized to {self.resize}")

    def _square(self, picture: Image.Image) -> np.ndarray:
        picture = TF.resize(picture, [self.resize], TF.InterpolationMode(self.interpolation))
        return np.array(TF.center_crop(picture, [self.image_size])).reshape(self.shape)


def _upright(image: Image.Image, mode: str) -> Image.Image:
    if image.mode.startswith(("I", "F")) or _is_deep(image):
        raise ValueError(f"it has more than 8 bits per channel (Pillow's mode {image.mode}), which would be cut off")
    picture = ImageOps.exif_transpose(image)
    if picture.mode == "P":
        picture = picture.convert("RGBA")  # without, Pillow warns where a palette has transparent colours
    return picture.convert(mode)


def _is_deep(image: Image.Image) -> bool:
    """Whether it is one of 16 bits a channel that Pillow opens as its mode RGB, cut off. How they are stored tells.

    BGR;16 has 5, 6 and 5 bits. A PPM says its largest value, and a TIFF with a plane for each colour has its tag alone.
    """
    tiles = getattr(image, "tile", [])
    largest = [tile[3][1] for tile in tiles if tile[0].startswith("ppm") and isinstance(tile[3], tuple)]
    bits = getattr(image, "tag_v2", {}).get(BITS, (8,))
    return bool(re.search(r"(?<!BGR);16", str(tiles))) or max(bits) > 8 or max(largest, default=0) > 255


@dataclass(frozen=True)
class Pictures:
    """Stands for a tensor (N, H, W, C) uint8 in `Splits`: ``pictures[rows]`` is that tensor's, decoded in threads."""

    files: Sequence[str]
    decode: Decoding

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(N, H, W, C)."""
        return len(self.files), *self.decode.shape

    def __getitem__(self, rows: Tensor | slice) -> Tensor:
        files = self.files[rows] if isinstance(rows, slice) else [self.files[row] for row in rows.tolist()]
        _check_memory(len(files), self.decode.shape)
        decoded = torch.empty((len(files), *self.decode.shape), dtype=torch.uint8)
        with ThreadPoolExecutor() as threads:
            pictures = threads.map(self.decode, files)
            for row, picture in enumerate(tqdm(pictures, "decoding", len(files), leave=False, disable=None, delay=2)):
                decoded[row] = torch.from_numpy(picture)
        return decoded


def _check_memory(count: int, shape: tuple[int, int, int]) -> None:
    needed, there = count * int(np.prod(shape)), os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > there:
        raise UserError(
            f"{count:,} pictures of {shape[0]} x {shape[1]} pixels need {needed / 1e9:,.0f} GB, and this machine has "
            f"{there / 1e9:,.0f}: set data.train_limit and data.test_limit, which limit what is decoded."
        )


def class_folders(folder: Path) -> tuple[str, ...]:
    """Names of the folders in a folder, sorted, without hidden ones; none if there is no such folder."""
    if not folder.is_dir():
        return ()
    return tuple(sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and entry.name[0] != "."))


def list_pictures(folder: Path, classes: Sequence[str]) -> tuple[list[str], Tensor]:
    """Files in the folders of classes, which may be some of all `classes`, in the folders' order; and their labels (N,) int64.

    Raises:
        UserError: for a folder of no class, or of one without pictures.
    """

    def is_picture(path: str) -> bool:
        """By its ending. Hidden files and folders are the system's own, such as ._* of macOS and .thumbnails."""
        return path.lower().endswith(IMG_EXTENSIONS) and f"{os.sep}." not in path[len(str(folder)) :]

    number = {name: label for label, name in enumerate(classes)}
    there = class_folders(folder)
    if unknown := [name for name in there if name not in number]:
        raise UserError(_unknown(folder / unknown[0], classes))
    try:
        listed = make_dataset(folder, {name: number[name] for name in there}, is_valid_file=is_picture)
    except FileNotFoundError as error:
        empty = str(error).split("classes ", 1)[-1].removesuffix(". ")
        raise UserError(
            f"{folder} has folders of classes without a picture ({empty}): remove them, or put pictures there "
            f"({', '.join(IMG_EXTENSIONS)})."
        ) from error
    return [file for file, _ in listed], torch.tensor([label for _, label in listed])


def _unknown(folder: Path, classes: Sequence[str]) -> str:
    near = nearest(folder.name, classes)
    known = ", ".join(classes[:3]) + (", ..." if len(classes) > 3 else "")
    return f"expected folders of the {len(classes)} classes ({known}), found {folder}: " + (
        f"did you mean {near[0]}?" if near else "rename or remove it, or name all classes in data.class_names."
    )
