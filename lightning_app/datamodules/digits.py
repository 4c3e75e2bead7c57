"""Scikit-learn's handwritten digits (Alpaydin & Kaynak 1998): real data that needs no file and no network."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from typing_extensions import override

from lightning_app.common.errors import UserError
from lightning_app.datamodules.base import Splits, stratified_mask
from lightning_app.datamodules.images import ImageData

TEST_SIZE = 360  # of 1,797
ORIGINAL = 8  # pixels of a side
STD = {8: (0.3757,), 16: (0.3184,), 32: (0.3234,)}  # by size: between two pixels no grey level is extreme


class Digits(ImageData):
    """1,437 training and 360 test digits in three equal channels, so that CIFAR nets take them as is.

    The 8 x 8 originals have 17 grey levels and are enlarged bilinearly to 32 x 32: repeating each pixel 4 x 4 would make
    block edges, which are not part of the handwriting, the strongest thing a 3 x 3 kernel sees. The split is fixed and
    stratified. By default digits are not mirrored: a mirrored 2 is not a digit.

    Has the arguments of `ImageData` too; there is no file, and `root` is not used.

    Args:
        image_size: height and width; 8 leaves the originals as they are, at a sixteenth of the cost of 32.
        std: standard deviation of a channel, in units of [0, 1]. None: that of the training images.

    Raises:
        UserError: for another image_size.
    """

    FLIP = False
    MEAN = (0.3051,)

    def __init__(
        self,
        image_size: Literal[8, 16, 32] = 32,
        std: tuple[float, ...] | None = None,
        **of_images: Any,
    ) -> None:
        if image_size not in STD:
            raise UserError(f"image_size of Digits must be one of {', '.join(map(str, STD))}, got {image_size}.")
        super().__init__(std=std or STD[image_size], **of_images)
        self.image_size = image_size

    @override
    def load(self) -> Splits:
        return split_digits(partial(_enlarged, factor=self.image_size // ORIGINAL))


def split_digits(images_of: Callable[[np.ndarray], Tensor]) -> Splits:
    """Scikit-learn's digits in the fixed split, with images (N, H, W, C) uint8 made of grey levels 0..16, (N, 8, 8)."""
    from sklearn.datasets import load_digits  # slow to import, and only the digits need it

    digits = load_digits()
    images, labels = images_of(digits.images), torch.from_numpy(digits.target.astype(np.int64))
    test = stratified_mask(labels, TEST_SIZE, seed=0)
    return Splits(images[~test], labels[~test], images[test], labels[test], tuple("0123456789"))


def _enlarged(digits: np.ndarray, factor: int) -> Tensor:
    """(N, 8, 8) grey levels 0..16 as (N, 8 factor, 8 factor, 3) uint8 0..255."""
    grey = torch.from_numpy(digits).unsqueeze(1) * (255 / 16)
    large = F.interpolate(grey, scale_factor=factor, mode="bilinear", align_corners=False)
    return large.round().to(torch.uint8).permute(0, 2, 3, 1).expand(-1, -1, -1, 3).contiguous()
