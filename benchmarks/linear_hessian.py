"""The exact Hessian of a linear net: closed form against autograd, and what its eigenvalues then cost.

    python -m benchmarks.linear_hessian [--units 16] [--n 2] [--width 10] [--rounds 7]

A Hessian of 2-shortcut linear nets, by default of 3,200 parameters on 200 samples: `theory.hessian` from second moments
(into memory kept for it, and into its own), `torch.func.hessian` of a forward pass over the samples, and `eigvalsh` of the
result. All in float64.
"""

import argparse
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.func import hessian as autograd_hessian

from benchmarks.harness import Ratio, Results, Row, interleave, options_of, run
from lightning_app.networks import draw
from lightning_app.theory.li_et_al.linear import Moments, hessian

CLOSED, KEPT, AUTOGRAD, EIGENVALUES = "closed form", "closed form, memory kept", "torch.func.hessian", "eigvalsh"


parser = partial(options_of, __doc__, rounds=7, units=16, n=2, width=10, samples=200)


def measure(options: argparse.Namespace) -> Results:
    generator, d = torch.Generator().manual_seed(0), options.width
    weights = draw((options.units, options.n, d, d), "xavier", generator=generator)
    x, y = torch.randn(2, options.samples, d, generator=generator, dtype=torch.float64)
    found = Results(f"a linear net of {weights.numel():,} parameters, {options.samples} samples, float64")
    comparison = found.add(CLOSED, interleave(contenders(weights, x, y), options.rounds), CLOSED)
    cheaper, share = comparison.ratio(AUTOGRAD, KEPT), comparison.ratio(KEPT, EIGENVALUES)
    gap = difference(weights, x, y)
    found.rows = [
        Row("exact Hessian, torch.func.hessian", KEPT, cheaper, goal=100, better="more"),
        Row(f"exact Hessian, {KEPT}", "eigvalsh of it", share, goal=0.05),
        Row("exact Hessian, closed form: relative difference", AUTOGRAD, Ratio.of(gap), goal=1e-12),
    ]
    return found


def contenders(weights: Tensor, x: Tensor, y: Tensor) -> dict[str, Callable[[], None]]:
    moments, vector = Moments.of(x, y), weights.mT.flatten()
    H = hessian(weights, moments, shortcut=True)
    out = torch.empty_like(H)
    return {
        CLOSED: lambda: _done(hessian(weights, moments, shortcut=True)),
        KEPT: lambda: _done(hessian(weights, moments, shortcut=True, out=out)),
        AUTOGRAD: lambda: _done(by_autograd(vector, weights.shape, x, y)),
        EIGENVALUES: lambda: _done(torch.linalg.eigvalsh(H)),
    }


def _done(_: Tensor) -> None:
    """The wall time counts, not the value."""


def by_autograd(vector: Tensor, shape: tuple[int, ...], x: Tensor, y: Tensor) -> Tensor:
    """``vector`` is in the order of Definition 5: every matrix by its columns."""

    def loss(vector: Tensor) -> Tensor:
        out = x
        for unit in vector.view(shape):
            path = out
            for transposed in unit:
                path = path @ transposed
            out = out + path
        return (out - y).square().sum() / (2 * len(x))

    return autograd_hessian(loss)(vector)


def difference(weights: Tensor, x: Tensor, y: Tensor) -> float:
    """||H - H'||_F / ||H'||_F of the closed form and autograd's H'."""
    autograd = by_autograd(weights.mT.flatten(), weights.shape, x, y)
    return float((hessian(weights, Moments.of(x, y), shortcut=True) - autograd).norm() / autograd.norm())


if __name__ == "__main__":
    run(measure, parser())
