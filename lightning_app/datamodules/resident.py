"""Images that stay on the compute device as bytes and leave it as normalised, augmented float batches.

Decoding, cropping and flipping one PIL image at a time costs more than a training step of a small net on a GPU. Here
the whole split lies on the device once, zero-padded and beside its mirror image, so that flip and crop together are
*where to start reading*: every crop of every image is one row of an overlapping view of the same bytes. A batch is one
`index_select` of such rows and one multiply-add, and `torch.compile` makes one kernel of both.

Order of operations: flip, then crop (as fb.resnet.torch), on bytes, so that the padding is black *before* normalising
(as torchvision's `RandomCrop(32, padding=4)` on an image; fb.resnet.torch pads with the mean colour instead).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

__all__ = ["Draws", "Resident", "ResidentImages"]


@dataclass(frozen=True)
class Draws:
    """What chance decided for each of N images."""

    flip: Tensor  # (N,) int64: 1 mirrors left and right
    top: Tensor  # (N,) int64 in [0, 2 padding]: first row of the crop of the padded, already flipped image
    left: Tensor  # (N,) int64 in [0, 2 padding]: its first column


class Resident(ABC):
    """One split on one device, as the loaders read it: a batch is what lies at some of its starts."""

    labels: Tensor  # (N,) int64
    channels_last: bool = False

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def device(self) -> torch.device:
        """Where samples and labels are."""
        return self.labels.device

    @abstractmethod
    def draw(self, count: int, generator: torch.Generator) -> Draws | None:
        """Random choices for `count` samples; None where nothing is augmented."""

    @abstractmethod
    def starts(self, rows: Tensor, draws: Draws | None = None) -> Tensor:
        """Where to read samples `rows`, (B,) int64, augmented by `draws` or, by default, as they are."""

    @abstractmethod
    def batch(self, starts: Tensor) -> Tensor:
        """The samples (B, ...) at `starts`, (B,) int64 on the device."""


class ResidentImages(Resident):
    """One split of images on one device.

    Args:
        images: (N, H, W, C) uint8.
        labels: (N,) int64.
        mean: of each channel (or one for all), in units of [0, 1].
        std: likewise.
        padding: zero pixels on each side that crops may reach into.
        flip: keep mirror images too, which doubles the memory: N (H + 2 padding) (W + 2 padding) C (1 + flip) bytes.
        channels_last: batches in that memory format; the bytes are stored in the same order, which is what makes both
            formats equally fast.
        compile: gather and normalise in one kernel.
        device: where the images stay.
    """

    def __init__(
        self,
        images: Tensor,
        labels: Tensor,
        mean: Sequence[float],
        std: Sequence[float],
        *,
        padding: int = 0,
        flip: bool = False,
        channels_last: bool = False,
        compile: bool = False,
        device: torch.device | str = "cpu",
    ) -> None:
        self.labels = labels.to(device)
        self.padding = padding
        self.flip = flip
        self.channels_last = channels_last
        height, width, channels = images.shape[1:]
        self._size = height, width, channels
        canvas = _canvas(images.to(device), padding, 1 + flip, channels_last)
        self._strides = canvas.stride()
        self._windows = _windows(canvas, self._size, channels_last)
        # (x / 255 - mean) / std = scale x + shift, rounded once from float64, in the shape that broadcasts over `_windows`.
        minus, over = (torch.tensor(values, dtype=torch.float64).expand(channels) for values in (mean, std))
        self._scale, self._shift = (
            (values.repeat(width) if channels_last else values.view(channels, 1, 1)).to(device)
            for values in ((1 / (255 * over)).float(), (-minus / over).float())
        )
        self._compile = compile
        if compile:
            torch._dynamo.mark_dynamic(self._windows, 0)  # one kernel for splits of any length

    @override
    def draw(self, count: int, generator: torch.Generator) -> Draws:
        """Flips (probability 1/2) and crops (uniform) of `count` images; no draw where there is nothing to choose."""

        def uniform(values: int) -> Tensor:
            return torch.randint(values, (count,), generator=generator)

        return Draws(uniform(1 + self.flip), uniform(2 * self.padding + 1), uniform(2 * self.padding + 1))

    @override
    def starts(self, rows: Tensor, draws: Draws | None = None) -> Tensor:
        """Byte at which each image begins, or the crop of it or of its mirror image."""
        copy, image, _, row, column = self._strides
        if draws is None:
            return rows * image + self.padding * (row + column)
        return draws.flip * copy + rows * image + draws.top * row + draws.left * column

    @override
    def batch(self, starts: Tensor) -> Tensor:
        """The float32 images (B, C, H, W) that begin at `starts`, (B,) int64 on the device."""
        # The compiler specialises on sizes 0 and 1; a new kernel for a last batch of one is not worth it.
        if self._compile and len(starts) > 1:
            starts = starts.contiguous()
            torch._dynamo.mark_dynamic(starts, 0)
            images = _compiled()(self._windows, starts, self._scale, self._shift)
        else:
            images = _normalised(self._windows, starts, self._scale, self._shift)
        return images.view(-1, *self._size).permute(0, 3, 1, 2) if self.channels_last else images


def _canvas(images: Tensor, padding: int, copies: int, channels_last: bool) -> Tensor:
    """(copies, N, C, H + 2 padding, W + 2 padding) uint8: the padded images and, with two copies, their mirrors."""
    n, h, w, c = images.shape
    h, w = h + 2 * padding, w + 2 * padding
    shape = (copies, n, h, w, c) if channels_last else (copies, n, c, h, w)
    # On a CPU by way of numpy, which asks for huge pages: batches read all over the canvas, and are 1.1 times as fast.
    on_cpu = images.device.type == "cpu"
    zeros = torch.from_numpy(np.zeros(shape, np.uint8)) if on_cpu else images.new_zeros(shape, dtype=torch.uint8)
    canvas = zeros.permute(0, 1, 4, 2, 3) if channels_last else zeros
    inner = canvas[..., padding : h - padding, padding : w - padding]
    inner[0] = images.permute(0, 3, 1, 2)
    if copies == 2:
        inner[1] = inner[0].flip(-1)
    return canvas


def _windows(canvas: Tensor, size: tuple[int, int, int], channels_last: bool) -> Tensor:
    """Row s is the image that starts at byte s: (S, C, H, W), or (S, H, W C) for channels_last."""
    h, w, c = size
    *_, channel, row, column = canvas.stride()
    # W and C together, because the compiler vectorises a run of 96 bytes and not one of 3.
    shape: tuple[int, ...] = (h, w * c) if channels_last else (c, h, w)
    strides = (row, 1) if channels_last else (channel, row, column)
    reach = sum((extent - 1) * stride for extent, stride in zip(shape, strides))
    return canvas.as_strided((canvas.numel() - reach, *shape), (1, *strides))


def _normalised(windows: Tensor, starts: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    # index_select copies runs of bytes and is twice as fast on a CPU as windows[starts], which copies byte by byte.
    return windows.index_select(0, starts).to(torch.float32).mul_(scale).add_(shift)


@cache
def _compiled() -> Callable[..., Tensor]:
    # Not at import: the compiler takes a second to load. One for all splits and seeds, so that they share a kernel.
    return torch.compile(_normalised)
