"""The golden net in evaluation mode written down once more, from He et al. (2016), on a dict of tensors: the witnesses' net.

Nothing here comes from the app. A convolution, a normalisation, a ReLU and the pool are a method each, so that a witness is
a net in which one of them is something else: a recorder, a frozen gate, a path's bookkeeping.
"""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["BLOCKS", "EPS", "AloneResnet10", "FrozenResnet10", "Gates", "Resnet10", "lengths", "loss"]

BLOCKS = tuple(f"layer{stage}.0" for stage in (1, 2, 3, 4))
EPS = 1e-5  # of BatchNorm


class Resnet10:
    """Images (B, 3, H, W) -> logits (B, classes)."""

    def __init__(self, state: Mapping[str, Tensor]) -> None:
        self.w = dict(state)

    def conv(self, x: Tensor, name: str, stride: int = 1) -> Tensor:
        weight = self.w[f"{name}.weight"]
        return F.conv2d(x, weight, stride=stride, padding=weight.shape[-1] // 2)

    def affine(self, name: str) -> tuple[Tensor, Tensor]:
        """s and t of x -> s x + t, each (C, 1, 1)."""
        weight, bias, mean, variance = (
            self.w[f"{name}.{part}"] for part in ("weight", "bias", "running_mean", "running_var")
        )
        scale = weight / (variance + EPS).sqrt()
        return scale[:, None, None], (bias - mean * scale)[:, None, None]

    def norm(self, x: Tensor, name: str) -> Tensor:
        scale, shift = self.affine(name)
        return scale * x + shift

    def relu(self, x: Tensor) -> Tensor:
        return x * (x > 0)

    def pool(self, x: Tensor) -> Tensor:
        return F.max_pool2d(x, 3, stride=2, padding=1)

    def stem(self, x: Tensor) -> Tensor:
        return self.pool(self.relu(self.norm(self.conv(x, "conv1", 2), "bn1")))

    def branch(self, x: Tensor, block: str) -> Tensor:
        x = self.norm(self.conv(x, f"{block}.conv1", _stride(block)), f"{block}.bn1")
        return self.norm(self.conv(self.relu(x), f"{block}.conv2"), f"{block}.bn2")

    def shortcut(self, x: Tensor, block: str) -> Tensor:
        if f"{block}.downsample.0.weight" not in self.w:
            return x
        return self.norm(self.conv(x, f"{block}.downsample.0", _stride(block)), f"{block}.downsample.1")

    def before_relu(self, x: Tensor, block: str) -> Tensor:
        return self.branch(x, block) + self.shortcut(x, block)

    def readout(self, x: Tensor) -> Tensor:
        return x.mean((2, 3)) @ self.w["fc.weight"].T + self.w["fc.bias"]

    def cuts(self, start: int, x: Tensor) -> list[Tensor]:
        """All signals behind the one at cut ``start``: cut 0 is the pooled stem, cut k > 0 what the ReLU at the end of the k-th
        block gets, and the last one the logits."""
        found = []
        for place, block in enumerate(BLOCKS[start:], start):
            x = self.before_relu(self.relu(x) if place else x, block)
            found.append(x)
        return [*found, self.readout(self.relu(x))]

    def __call__(self, images: Tensor) -> Tensor:
        return self.cuts(0, self.stem(images))[-1]


def _stride(block: str) -> int:
    return 1 if block == BLOCKS[0] else 2


class AloneResnet10(Resnet10):
    """Every sample normalised with its own mean and variance."""

    def norm(self, x: Tensor, name: str) -> Tensor:
        mean = x.mean((2, 3), keepdim=True)
        variance = (x - mean).square().mean((2, 3), keepdim=True)
        gamma, beta = (self.w[f"{name}.{part}"][:, None, None] for part in ("weight", "bias"))
        return gamma * (x - mean) / (variance + EPS).sqrt() + beta


class Gates(Resnet10):
    """Keeps what ReLUs and pool decide, in the order of their calls."""

    def __init__(self, state: Mapping[str, Tensor]) -> None:
        super().__init__(state)
        self.kept: list[Tensor] = []

    def relu(self, x: Tensor) -> Tensor:
        self.kept.append(x > 0)
        return super().relu(x)

    def pool(self, x: Tensor) -> Tensor:
        out, places = F.max_pool2d(x, 3, stride=2, padding=1, return_indices=True)
        self.kept.append(places)
        return out


class FrozenResnet10(Resnet10):
    """An affine map of its input: ReLUs and pool decide as another pass did. For one pass only."""

    def __init__(self, state: Mapping[str, Tensor], kept: list[Tensor]) -> None:
        super().__init__(state)
        self._kept = iter(kept)

    def relu(self, x: Tensor) -> Tensor:
        return x * next(self._kept)

    def pool(self, x: Tensor) -> Tensor:
        places = next(self._kept)
        return x.flatten(2).gather(2, places.flatten(2)).view(places.shape)


def loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean over samples of -log p of the label."""
    chosen = logits[torch.arange(len(labels)), labels]
    return (logits.exp().sum(1).log() - chosen).mean()


def lengths(x: Tensor) -> Tensor:
    """2-norm of each sample, (B,)."""
    return x.flatten(1).square().sum(1).sqrt()
