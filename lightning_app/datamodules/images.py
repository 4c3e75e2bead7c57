"""The datamodule under all image sets: augmentation, normalisation and memory format; a subclass gives the pixels.

Images stay on the compute device as bytes and leave it as normalised, augmented float batches.

Decoding, cropping and flipping one PIL image at a time costs more than a training step of a small net on a GPU. Here
the whole split lies on the device once, zero-padded and beside its mirror image, so that flip and crop together are
*where to start reading*: every crop of every image is one row of an overlapping view of the same bytes. A batch is one
`index_select` of such rows and one multiply-add, and `torch.compile` makes one kernel of both.

Order of operations: flip, then crop (as fb.resnet.torch), on bytes, so that the padding is black *before* normalising
(as torchvision's `RandomCrop(32, padding=4)` on an image; fb.resnet.torch pads with the mean colour instead).
"""

from collections.abc import Callable, Sequence
from functools import cache, cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from lightning_app.common.errors import UserError, at_least
from lightning_app.datamodules.base import ResidentData
from lightning_app.datamodules.loaders import Draws, Resident


class ImageData(ResidentData):
    """Batches ``(images, labels)``: float32 (B, C, H, W), normalised as ``(x / 255 - mean) / std``, and int64 (B,).

    A subclass implements `load`. Has the arguments of `ResidentData` too.

    Args:
        root: folder of all datasets.
        eval_batch_size: images in a batch, over all ranks, for evaluation and for the probe. None: per rank 50 on a CPU,
            which fit its cache (1.5 times as fast per image as 125, measured on two shared cores), 1000 on a GPU (for images
            larger than CIFAR's fewer, but at least 125), and 125 elsewhere.
        augment: flip and crop training images at random.
        padding: zero pixels on each side before a random crop back to the image size.
        flip: mirror with probability 1/2 when augmenting. None: as suits the data set.
        drop_last: leave out the last, smaller training batch of an epoch.
        mean: of each channel (or one for all), in units of [0, 1]. None: the class's MEAN, which is that of the training images
            for the data sets here, ImageNet's for `ImageFolder`, and 0 for a class that sets none.
        std: of each channel over all pixels, likewise. None: the class's STD, which is 1 for a class that sets none.
        channels_last: make batches in this memory format. None: as the model does.
        compile: gather and normalise in one kernel of torch.compile: the same numbers, and faster after some seconds.
    """

    # Facts of a dataset are attributes of its class: as defaults of arguments, a configuration that names one dataset on
    # top of another would carry the first one's over.
    FLIP: ClassVar[bool] = True  # does a mirror image still show the same class?
    MEAN: ClassVar[tuple[float, ...]] = (0.0,)  # of each channel, or one for all, over the training images in [0, 1]
    STD: ClassVar[tuple[float, ...]] = (1.0,)

    def __init__(
        self,
        root: str = "data",
        eval_batch_size: int | None = None,
        augment: bool = True,
        padding: int = 4,
        flip: bool | None = None,
        drop_last: bool = False,
        mean: tuple[float, ...] | None = None,
        std: tuple[float, ...] | None = None,
        channels_last: bool | None = None,
        compile: bool = False,
        **of_data: Any,
    ) -> None:
        super().__init__(root=root, **of_data)
        who = type(self).__name__
        self.eval_batch_size = None if eval_batch_size is None else at_least(1, who, eval_batch_size=eval_batch_size)
        self.augment = augment
        self.padding = at_least(0, who, padding=padding)
        self.flip = self.FLIP if flip is None else flip
        self.drop_last = drop_last
        self.mean, self.std = tuple(mean or self.MEAN), tuple(std or self.STD)
        self.channels_last = channels_last
        self.compile = compile

    @cached_property
    def sample_shape(self) -> tuple[int, ...]:
        """(C, H, W)."""
        *size, channels = self.splits.train_images.shape[1:]
        return channels, *size

    @property
    @override
    def _normalisation(self) -> dict[str, tuple[float, ...]]:
        return {"mean": self.mean, "std": self.std}

    @property
    @override
    def _channels_last(self) -> bool:
        return self.channels_last if self.channels_last is not None else super()._channels_last

    @override
    def to_device(self, samples: Tensor, labels: Tensor, training: bool) -> Resident:
        """Bytes, and for training, where configured, their mirror images and the black around them."""
        if samples.dtype != torch.uint8 or samples.ndim != 4:
            raise UserError(
                f"images of {type(self).__name__} must be uint8, 0 to 255, in the order (N, H, W, C), got {samples.dtype} of "
                f"shape {tuple(samples.shape)}: multiply values in [0, 1] by 255 and round them; for grey levels C is 1."
            )
        augment = self.augment and training
        return ResidentImages(
            samples,
            labels,
            _per_channel(self.sample_shape[0], mean=self.mean),
            _per_channel(self.sample_shape[0], std=self.std),
            padding=self.padding if augment else 0,
            flip=self.flip and augment,
            channels_last=self._channels_last,
            compile=self.compile,
            device=self._device,
        )


def _per_channel(channels: int, **named: tuple[float, ...]) -> tuple[float, ...]:
    ((name, values),) = named.items()
    if len(values) not in (1, channels):
        raise UserError(
            f"{name} must have one value, or one for each of the {channels} channels of the images, got {len(values)}."
        )
    if name == "std" and min(values) <= 0:
        raise UserError(f"std must be positive, got {values}.")
    return values


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
