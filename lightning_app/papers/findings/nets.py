"""Small nets trained on the embedded digits, for findings that need a trained net and not a good one."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["digits", "train"]


def digits(count: int | None, size: int = 32) -> "tuple[Tensor, Tensor]":
    """So many of the embedded training images (all for None), (count, 3, size, size), normalised, with their labels."""
    import torch.nn.functional as F

    from lightning_app.datamodules import Digits

    splits = Digits().load()
    images = splits.train_images[:count].permute(0, 3, 1, 2).float() / 255
    images = F.adaptive_avg_pool2d((images - images.mean()) / images.std(), size)
    return images, splits.train_labels[:count]


def train(net: "nn.Module", images: "Tensor", labels: "Tensor", epochs: int, rate: float, batch: int = 64) -> None:
    """SGD with momentum 0.9 in an order drawn from the present random state. The net is left in evaluation mode."""
    import torch
    import torch.nn.functional as F

    optimizer = torch.optim.SGD(net.parameters(), lr=rate, momentum=0.9)
    net.train()
    for _ in range(epochs):
        for rows in torch.randperm(len(images)).split(batch):
            optimizer.zero_grad()
            F.cross_entropy(net(images[rows]), labels[rows]).backward()
            optimizer.step()
    net.eval()
