"""The pixels: torchvision, one image at a time, is the witness."""

import pytest
import torch
import torchvision.transforms.functional as TF
from torch import Tensor

from lightning_app.datamodules.images import ResidentImages
from lightning_app.datamodules.loaders import Draws

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
TOLERANCE = 5e-7


def images(count: int = 40, height: int = 32, width: int = 32, channels: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(256, (count, height, width, channels), dtype=torch.uint8, generator=generator)


def resident(pixels: Tensor, **options) -> ResidentImages:
    channels = pixels.shape[-1]
    return ResidentImages(pixels, torch.arange(len(pixels)), MEAN[:channels], STD[:channels], **options)


def by_torchvision(image: Tensor, padding: int, flip: int, top: int, left: int) -> Tensor:
    """One (H, W, C) uint8 image through torchvision's own functions."""
    height, width, channels = image.shape
    picture = TF.to_pil_image(image.permute(2, 0, 1))
    picture = TF.hflip(picture) if flip else picture
    picture = TF.crop(TF.pad(picture, padding), top, left, height, width)
    return TF.normalize(TF.to_tensor(picture), MEAN[:channels], STD[:channels])


def witness(pixels: Tensor, rows: Tensor, draws: Draws, padding: int) -> Tensor:
    each = zip(rows, draws.flip.tolist(), draws.top.tolist(), draws.left.tolist())
    return torch.stack([by_torchvision(pixels[row], padding, *draw) for row, *draw in each])


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(("shape", "padding"), [((32, 32, 3), 4), ((6, 10, 3), 3), ((28, 28, 1), 2)])
def test_same_pixels_as_torchvision(channels_last, shape, padding):
    pixels = images(40, *shape)
    source = resident(pixels, padding=padding, flip=True, channels_last=channels_last)
    rows = torch.randperm(40, generator=torch.Generator().manual_seed(1))
    draws = source.draw(40, torch.Generator().manual_seed(2))
    batch = source.batch(source.starts(rows, draws))
    assert batch.dtype == torch.float32
    torch.testing.assert_close(batch, witness(pixels, rows, draws, padding), atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("options", [{}, {"padding": 4}, {"padding": 4, "flip": True, "channels_last": True}])
def test_without_draws_images_come_as_they_are(options):
    pixels = images()
    source = resident(pixels, **options)
    none = torch.zeros(40, dtype=torch.int64)
    expected = witness(pixels, torch.arange(40), Draws(none, none, none), padding=0)
    torch.testing.assert_close(source.batch(source.starts(torch.arange(40))), expected, atol=TOLERANCE, rtol=0)


def test_every_byte_is_normalised_as_torchvision_does():
    every = torch.arange(256, dtype=torch.uint8).view(256, 1, 1, 1).expand(-1, 1, 1, 3).contiguous()
    source = resident(every)
    expected = TF.normalize(every.permute(0, 3, 1, 2).float() / 255, MEAN, STD)
    assert (source.batch(source.starts(torch.arange(256))) - expected).abs().max() <= TOLERANCE


@pytest.mark.parametrize("channels_last", [False, True])
def test_memory_format(channels_last):
    batch = (source := resident(images(), channels_last=channels_last)).batch(source.starts(torch.arange(5)))
    assert batch.shape == (5, 3, 32, 32)
    assert batch.is_contiguous(memory_format=torch.channels_last if channels_last else torch.contiguous_format)


def test_draws_reach_every_crop_equally_often():
    draws = resident(images(2), padding=4, flip=True).draw(9000, torch.Generator().manual_seed(0))
    for values, choices in ((draws.flip, 2), (draws.top, 9), (draws.left, 9)):
        counts = values.bincount()
        expected = 9000 / choices
        assert len(counts) == choices
        assert ((counts - expected) ** 2 / expected).sum() < 30  # chi-squared, 8 degrees of freedom: p < 0.001


def test_rows_columns_and_mirrors_are_drawn_apart():
    """Every one of the 3 x 3 crops of an image and of its mirror image, equally often."""
    draws = resident(images(2), padding=1, flip=True).draw(9000, torch.Generator().manual_seed(0))
    counts = (9 * draws.flip + 3 * draws.top + draws.left).bincount(minlength=18)
    assert ((counts - 500) ** 2 / 500).sum() < 41  # chi-squared, 17 degrees of freedom: p < 0.001


@pytest.mark.slow
@pytest.mark.parametrize("channels_last", [False, True])
def test_compiled_is_eager(channels_last):
    options = {"padding": 4, "flip": True, "channels_last": channels_last}
    pixels = images()
    eager, compiled = (resident(pixels, compile=compile, **options) for compile in (False, True))
    starts = eager.starts(torch.arange(40), eager.draw(40, torch.Generator().manual_seed(0)))
    for part in (starts, starts[::2], starts[:7], starts[:1], starts[:0]):
        torch.testing.assert_close(compiled.batch(part), eager.batch(part), atol=TOLERANCE, rtol=0)
        assert compiled.batch(part).stride() == eager.batch(part).stride() or len(part) < 2
