"""Jacobians of parts of a net, sample by sample, without building them.

In evaluation mode a net treats each sample by itself, so one forward-mode pass over a batch yields J(x) v(x) for every
sample of it at once, and one reverse-mode pass J(x)^T v(x). Their Frobenius norm is exact from as many passes as the
Jacobian has columns (or rows), or estimated from a few random ones (Hutchinson).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from torch import Tensor
from torch.func import jvp, vjp, vmap

Function = Callable[[Tensor], Tensor]  # maps a batch to a batch, each sample by itself
PASSES = 512  # tangents times samples that go through a function together


def push(function: Function, x: Tensor, tangents: Tensor) -> tuple[Tensor, Tensor]:
    """f(x) and J v for several tangents v of each sample: (B, ...) and (k, B, ...) -> (B, ...) and (k, B, ...).

    Cost: about k + 1 forward passes over the batch.
    """
    found = vmap(lambda tangent: jvp(function, (x,), (tangent,)), out_dims=cast(Any, (None, 0)))(tangents)
    return found[0], found[1]


def pull(function: Function, x: Tensor, cotangents: Tensor) -> tuple[Tensor, Tensor]:
    """f(x) and J^T v for several cotangents v, (k, B, ...) like f(x), at the cost of `push`."""
    value, back, *_ = vjp(function, x)
    return value, vmap(back)(cotangents)[0]


@dataclass(frozen=True, eq=False)
class FrobeniusNorm:
    """||J||_F of every sample."""

    norm: Tensor  # (B,) float64
    error: Tensor  # (B,) float64, its standard error: 0 where it is exact, NaN from a single probe


@dataclass(frozen=True, eq=False)
class DifferentiatedJacobian:
    """J of any function by automatic differentiation."""

    has_closed_form: ClassVar[bool] = False  # is the exact ||J||_F next to free?

    function: Function
    x: Tensor  # (B, ...)
    image: Tensor  # (B, ...), J x

    def push(self, tangents: Tensor) -> Tensor:
        """J v, (k, B, ...), for tangents v, (k, B, ...)."""
        return push(self.function, self.x, tangents)[1]

    def frobenius(self) -> FrobeniusNorm:
        """Exact ||J||_F: one pass for each basis vector of the input or the output, whichever has fewer.

        Cost: min(inputs, outputs) forward passes over the batch. A block of a CIFAR net has 8,192 of them.
        """
        if self.x[0].numel() <= self.image[0].numel():
            return frobenius_by_columns(self.push, self.x)
        return frobenius_by_columns(lambda cotangents: pull(self.function, self.x, cotangents)[1], self.image)


def frobenius_by_columns(times: Function, like: Tensor) -> FrobeniusNorm:
    """Exact ||J||_F from the products of J (or J^T) with all basis vectors, (k, B, ...) -> (k, B, ...), of the shape of
    ``like``, (B, ...).

    >>> norm = frobenius_by_columns(lambda v: v * torch.tensor([3.0, 4.0]), torch.zeros(1, 2)).norm
    >>> norm.tolist()
    [5.0]
    """
    total = torch.zeros(len(like), dtype=torch.float64, device=like.device)
    size = like[0].numel()
    for places in torch.arange(size, device=like.device).split(max(1, PASSES // len(like))):
        basis = torch.zeros(len(places), size, dtype=like.dtype, device=like.device)
        basis[torch.arange(len(places), device=like.device), places] = 1
        vectors = basis.view(-1, 1, *like.shape[1:]).expand(-1, *like.shape)  # the same ones for every sample
        total += _square_norms(times(vectors)).sum(0)
    return FrobeniusNorm(total.sqrt(), torch.zeros_like(total))


def frobenius_by_probes(times: Function, like: Tensor, probes: int, generator: torch.Generator) -> FrobeniusNorm:
    """Estimate of ||J||_F from products of J with k >= 1 random sign vectors (Hutchinson 1989).

    ``times`` and ``like`` are as in `frobenius_by_columns`.

    ``||J v||^2`` is an unbiased estimate of ||J||_F^2 with variance ``2 (||J^T J||_F^2 - sum_i (J^T J)_ii^2)``. The
    standard error of the mean q of k of them comes from their spread; that of the norm sqrt(q) is ``SE(q) / (2 sqrt(q))``.
    Every sample has its own signs, so the errors within a batch are independent.
    """
    squares = _square_norms(times(signs(probes, like, generator)))
    mean = squares.mean(0)
    error = squares.std(0) / math.sqrt(probes) if probes > 1 else torch.full_like(mean, math.nan)
    norm = mean.sqrt()
    return FrobeniusNorm(norm, torch.where(norm == 0, 0, error / (2 * norm)))


def signs(count: int, like: Tensor, generator: torch.Generator) -> Tensor:
    """Independent entries +1 or -1 with equal probability. (count, *like.shape); images lie channels last.

    Eight from each draw of 63 bits, the lowest of every byte: a third of the cost of drawing them one by one.
    """
    size = count * like.numel()
    words = torch.empty(-(-size // 8), dtype=torch.int64, device=like.device).random_(generator=generator)
    flat = words.view(torch.uint8)[:size].bitwise_and_(1).to(like.dtype).mul_(2).sub_(1)
    if like.ndim != 4:
        return flat.view(count, *like.shape)
    batch, channels, height, width = like.shape
    return flat.view(count, batch, height, width, channels).movedim(-1, 2)


def _square_norms(vectors: Tensor) -> Tensor:
    """(k, B, ...) -> (k, B) float64. Float32 sums are exact enough for terms that are summed in float64 after."""
    wide = torch.promote_types(vectors.dtype, torch.float32)
    return torch.linalg.vector_norm(vectors, dim=tuple(range(2, vectors.ndim)), dtype=wide).double().square()
