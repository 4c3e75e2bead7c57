"""What tests of measures are made of: images of noise, and nets whose every weight and bias was drawn."""

import torch
from torch import Tensor, nn

from lightning_app.networks import SimplifiedNet


def noise(count: int, size: int = 8, seed: int = 1, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def labelled(count: int, size: int = 8, dtype: torch.dtype = torch.float64) -> list[tuple[Tensor, Tensor]]:
    """One batch of noise; labels count through ten classes."""
    return [(noise(count, size, dtype=dtype), torch.arange(count) % 10)]


def drawn(kind=SimplifiedNet, depth: int = 8, residual: bool = True, width: int = 4, std: float = 0.3) -> nn.Module:
    """In float64 and evaluation mode."""
    torch.manual_seed(0)
    net = kind(depth, residual=residual, width=width).double().eval()
    for weights in net.parameters():
        nn.init.normal_(weights, std=std)
    return net
