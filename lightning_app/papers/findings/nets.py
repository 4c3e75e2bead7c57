"""Small nets and data for them, for findings that need a trained net and not a good one."""

from functools import partial
from typing import TYPE_CHECKING

from lightning_app.papers.parts import Source

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["digits", "train", "vectors"]


def digits(count: int | None, size: int = 32) -> "tuple[Tensor, Tensor]":
    """So many of the embedded training images (all for None), (count, 3, size, size), normalised, with their labels."""
    import torch.nn.functional as F

    from lightning_app.datamodules import Digits

    splits = Digits().load()
    images = splits.train_images[:count].permute(0, 3, 1, 2).float() / 255
    images = F.adaptive_avg_pool2d((images - images.mean()) / images.std(), size)
    return images, splits.train_labels[:count]


def vectors(source: Source, data: str, limit: int | None) -> "tuple[str, Tensor, Tensor]":
    """Name, training samples of one scale, (count, features) float32, and labels: digits, CIFAR-10 (8 x 8) or Gaussians.

    Raises:
        UserError: if there is no CIFAR-10 below the source's root; where a stand-in is good enough the digits stand in.
    """
    import torch.nn.functional as F

    from lightning_app.common.errors import UserError
    from lightning_app.datamodules import CIFAR10, Digits, GaussianMixture
    from lightning_app.datamodules.trained_on import digest

    if data == "Gaussians":
        of_mixture = GaussianMixture().load()
        x, labels = of_mixture.train_images[:limit].float(), of_mixture.train_labels[:limit]
        return f"{data} ({len(x):,} samples, sha256 {digest(x, labels)})", (x - x.mean()) / x.std(), labels
    try:
        splits = Digits(image_size=8).load() if data == "digits" else CIFAR10(root=str(source.root)).load()
    except UserError:
        if not source.stand_in:
            raise
        data, splits = "digits, which stand in", Digits(image_size=8).load()
    images, labels = splits.train_images[:limit], splits.train_labels[:limit]
    pooled = F.adaptive_avg_pool2d(images.permute(0, 3, 1, 2).float(), 8)
    x = (pooled if data == "CIFAR-10" else pooled[:, :1]).flatten(1)  # the digits' channels are equal
    return f"{data} ({len(x):,} images, sha256 {digest(images, labels)})", (x - x.mean()) / x.std(), labels


def train(
    net: "nn.Module", inputs: "Tensor", labels: "Tensor", epochs: int, rate: float, batch: int = 64, adam: bool = False
) -> None:
    """SGD with momentum 0.9, or Adam, in an order drawn from the present random state. The net is left in evaluation mode."""
    import torch
    import torch.nn.functional as F

    sgd = partial(torch.optim.SGD, momentum=0.9)
    optimizer = (torch.optim.Adam if adam else sgd)(net.parameters(), lr=rate)
    net.train()
    for _ in range(epochs):
        for rows in torch.randperm(len(inputs)).split(batch):
            optimizer.zero_grad()
            F.cross_entropy(net(inputs[rows]), labels[rows]).backward()
            optimizer.step()
    net.eval()
