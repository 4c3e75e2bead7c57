"""Small nets and data for them, for findings that need a trained net and not a good one."""

from collections.abc import Iterable
from functools import partial
from typing import Any

from lightning_app.common.late import F, Tensor, nn, torch
from lightning_app.papers.parts import Source

SIZES = {"MNIST": 14}  # pixels a side


def digits(count: int | None, size: int = 32) -> tuple[Tensor, Tensor]:
    """So many of the embedded training images (all for None), (count, 3, size, size), normalised, with their labels."""
    from lightning_app.datamodules import Digits

    splits = Digits().load()
    images = splits.train_images[:count].permute(0, 3, 1, 2).float() / 255
    images = F.adaptive_avg_pool2d((images - images.mean()) / images.std(), size)
    return images, splits.train_labels[:count]


def vectors(source: Source, data: str, limit: int | None) -> tuple[str, Tensor, Tensor]:
    """The training samples of `splits`."""
    name, (x, labels), _ = splits(source, data, limit)
    return name, x, labels


def splits(source: Source, data: str, limit: int | None) -> tuple[str, tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Name; training samples (count, features) float32 and labels; all test samples and labels. One scale: the training ones'.

    Of digits (8 x 8), CIFAR-10 (averaged to 8 x 8), MNIST (to 14 x 14) or Gaussians.

    Raises:
        UserError: if there is no such data set below the source's root; where a stand-in is good enough the digits stand in.
    """
    from lightning_app.common.errors import UserError
    from lightning_app.datamodules import CIFAR10, Digits, GaussianMixture, WhitenedMNIST
    from lightning_app.datamodules.trained_on import digest

    root = str(source.root)
    made: dict[str, Any] = {"digits": partial(Digits, image_size=8), "Gaussians": GaussianMixture}
    made |= {"CIFAR-10": partial(CIFAR10, root=root), "MNIST": partial(WhitenedMNIST, root=root)}
    try:
        found = made[data]().load()
    except UserError:
        if not source.stand_in:
            raise
        data, found = "digits, which stand in", made["digits"]().load()
    images, labels = found.train_images[:limit], found.train_labels[:limit]
    x, others = (_features(each, data) for each in (images, found.test_images))
    words = "samples" if data == "Gaussians" else "images"
    name = f"{data} ({len(x):,} {words}, sha256 {digest(x if data == 'Gaussians' else images, labels)})"
    mean, size = x.mean(), x.std()
    return name, ((x - mean) / size, labels), ((others - mean) / size, found.test_labels)


def _features(samples: Tensor, data: str) -> Tensor:
    if data == "Gaussians":
        return samples.float()
    pooled = F.adaptive_avg_pool2d(samples.permute(0, 3, 1, 2).float(), SIZES.get(data, 8))
    return (pooled if data == "CIFAR-10" else pooled[:, :1]).flatten(1)  # the digits' channels are equal


def clip_each(weights: Iterable[Tensor]) -> None:
    """Scale the gradient of every net to norm 1 at most; weights (nets, ...)."""
    gradients = [weight.grad for weight in weights if weight.grad is not None]
    norms = torch.stack([gradient.flatten(1).square().sum(1) for gradient in gradients]).sum(0).sqrt()
    for gradient in gradients:
        gradient.div_(norms.clamp(min=1).view(-1, *[1] * (gradient.ndim - 1)))


def train(
    net: "nn.Module", inputs: Tensor, labels: Tensor, epochs: int, rate: float, batch: int = 64, adam: bool = False
) -> None:
    """SGD with momentum 0.9, or Adam, in an order drawn from the present random state. The net is left in evaluation mode."""
    sgd = partial(torch.optim.SGD, momentum=0.9)
    optimizer = (torch.optim.Adam if adam else sgd)(net.parameters(), lr=rate)
    net.train()
    for _ in range(epochs):
        for rows in torch.randperm(len(inputs)).split(batch):
            optimizer.zero_grad()
            F.cross_entropy(net(inputs[rows]), labels[rows]).backward()
            optimizer.step()
    net.eval()
