"""Derivatives of any order along a direction, for statements about all derivatives at a point."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import jvp

__all__ = ["directional_derivatives"]

Function = Callable[[Tensor], Tensor]


def directional_derivatives(function: Function, at: Tensor, direction: Tensor, order: int) -> Tensor:
    """``d^k/dt^k f(at + t direction)`` at t = 0 for k = 1, ..., order, (order,), by nested forward differentiation.

    All derivatives of f of order k vanish if and only if these do along every direction (polarisation).

    >>> directional_derivatives(lambda v: (v**3).sum(), torch.ones(1), torch.tensor([2.0]), 4).tolist()
    [6.0, 24.0, 48.0, 0.0]
    """

    def along(t: Tensor) -> Tensor:
        return function(at + t * direction)

    found, start = [], at.new_zeros(())
    derivative: Function = along
    for _ in range(order):
        derivative = _derivative(derivative)
        found.append(derivative(start))
    return torch.stack(found)


def _derivative(function: Function) -> Function:
    return lambda t: jvp(function, (t,), (torch.ones_like(t),))[1]
