"""Jacobians of parts of a net, sample by sample, without building them: J v by forward mode.

In evaluation mode a net treats each sample by itself, so one forward-mode pass over a batch yields J(x) v(x) for every
sample of it at once.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import jvp

__all__ = ["push"]


def push(function: Callable[[Tensor], Tensor], x: Tensor, tangents: Tensor) -> tuple[Tensor, Tensor]:
    """f(x) and J v for several tangents v.

    Args:
        function: maps a batch to a batch, each sample by itself.
        x: (B, ...).
        tangents: (k, B, ...), k tangents for each sample.

    Returns:
        f(x), (B, ...), and J v, (k, B, ...).

    Cost: about 2 k forward passes over the batch.
    """
    count = len(tangents)
    many = x.expand(count, *x.shape).flatten(0, 1)
    value, pushed = jvp(function, (many,), (tangents.flatten(0, 1),))
    return value[: len(x)], torch.unflatten(pushed, 0, (count, len(x)))
