"""Picture files in the place of a tensor of images: of a million of them, only the rows that are asked for are decoded.

Pictures become what torchvision's pretrained weights were evaluated on (``weights.transforms()``), byte for byte: the
shorter side resized with antialiasing, and the central square cut out. Only what EXIF data say about which side is up is
heeded here and not there.
"""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torchvision.transforms.functional as TF
from PIL import Image, ImageOps
from torch import Tensor
from tqdm import tqdm

from lightning_app.common.errors import UserError

__all__ = ["Decoding", "Pictures"]

# Pillow goes by the content, whatever the name, and hands PostScript to a program that executes it.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "PPM")
MODES = {1: "L", 3: "RGB"}  # Pillow's, by channels


@dataclass(frozen=True)
class Decoding:
    """File -> (image_size, image_size, channels) uint8."""

    image_size: int
    resize: int  # what the shorter side becomes, at least image_size
    interpolation: Literal["bilinear", "bicubic"]
    channels: Literal[1, 3]

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.image_size, self.image_size, self.channels

    def __call__(self, file: str) -> np.ndarray:
        """Upright, without transparency, resized and cut to the central square.

        Raises:
            UserError: naming the file, if it is no whole picture or has more than 8 bits a channel.
        """
        try:
            with Image.open(file, formats=FORMATS) as image:
                self._check_length(*image.size)
                return self._square(_upright(image, MODES[self.channels]))
        except Exception as error:  # Pillow's readers raise whatever a broken file leads them to
            reason = str(error).split("\n")[0] or type(error).__name__
            raise UserError(f"{file} cannot be read as a picture ({reason}): replace or remove it.") from error

    def _check_length(self, width: int, height: int) -> None:
        """Before anything is unpacked. A line of 1 x 65,000 pixels would be made 4 GB."""
        if max(width, height) * self.resize**2 / min(width, height) > Image.MAX_IMAGE_PIXELS:
            raise ValueError(f"{width} x {height} pixels, too long to be resized to {self.resize}")

    def _square(self, picture: Image.Image) -> np.ndarray:
        resized = TF.resize(picture, [self.resize], TF.InterpolationMode(self.interpolation))
        return np.array(TF.center_crop(resized, [self.image_size])).reshape(self.shape)


def _upright(image: Image.Image, mode: str) -> Image.Image:
    if image.mode.startswith(("I", "F")):
        raise ValueError(f"more than 8 bits a channel, Pillow's mode {image.mode}, would be cut off")
    picture = ImageOps.exif_transpose(image)
    if picture.mode == "P":
        picture = picture.convert("RGBA")  # without, Pillow warns where a palette has transparent colours
    return picture.convert(mode)


@dataclass(frozen=True)
class Pictures:
    """Stands for a tensor (N, H, W, C) uint8 in `Splits`: ``pictures[rows]`` is that tensor's, decoded in threads."""

    files: Sequence[str]
    decode: Decoding

    @property
    def shape(self) -> tuple[int, int, int, int]:
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
            f"{count:,} pictures of {shape[0]} x {shape[1]} pixels need {needed / 1e9:,.0f} GB and this machine has "
            f"{there / 1e9:,.0f}: set data.train_limit and data.test_limit, which are drawn before anything is decoded."
        )
