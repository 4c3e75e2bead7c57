"""A tiny image set and what several tests do with loaders."""

import torch
from torch import Tensor

from lightning_app.datamodules import ImageData, Splits

CLASSES = ("cross", "naught", "blank")


class Synthetic(ImageData):
    """Random 8 x 8 images; the first two bytes of each tell its row, so that a batch can be traced back."""

    def __init__(self, train: int = 60, test: int = 23, **kwargs) -> None:
        super().__init__(**{"batch_size": 16, "eval_batch_size": 10, "padding": 2, **kwargs})
        self.sizes = train, test
        self.loads = 0

    def load(self) -> Splits:
        self.loads += 1
        train, test = (_images(size, seed) for seed, size in enumerate(self.sizes))
        return Splits(train, _labels(self.sizes[0]), test, _labels(self.sizes[1]), CLASSES)


def rows(images: Tensor) -> list[int]:
    """Rows of un-augmented, un-normalised images of `Synthetic`."""
    marks = (images[:, 0, 0, :2] * 255).round().long()
    return (marks[:, 0] + 256 * marks[:, 1]).tolist()


def _images(count: int, seed: int) -> Tensor:
    images = torch.randint(256, (count, 8, 8, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    images[:, 0, 0, 0] = torch.arange(count) % 256
    images[:, 0, 1, 0] = torch.arange(count) // 256
    return images


def _labels(count: int) -> Tensor:
    return torch.arange(count) % len(CLASSES)
