"""The exact Hessian of a linear net: closed form against autograd, and what its eigenvalues then cost.

    python -m benchmarks.linear_hessian [--units 16] [--n 2] [--width 10] [--rounds 7]

A Hessian of 2-shortcut linear nets, by default of 3,200 parameters on 200 samples: `theory.hessian` from second moments
(into memory kept for it, and into its own), `torch.func.hessian` of a forward pass over the samples, and `eigvalsh` of the
result. All in float64.
"""

import argparse
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
    closed, autograd = partial(hessian, weights, Moments.of(x, y), shortcut=True), partial(by_autograd, weights, x, y)
    H, truth = closed(), autograd()
    made = {
        CLOSED: closed,
        KEPT: partial(closed, out=torch.empty_like(H)),
        AUTOGRAD: autograd,
        EIGENVALUES: partial(torch.linalg.eigvalsh, H),
    }
    found = Results(f"a linear net of {weights.numel():,} parameters, {options.samples} samples, float64")
    comparison = found.add(CLOSED, interleave(made, options.rounds), CLOSED)
    gap = Ratio.of(float((H - truth).norm() / truth.norm()))
    found.rows = [
        Row("exact Hessian, torch.func.hessian", KEPT, comparison.ratio(AUTOGRAD, KEPT), goal=100, better="more"),
        comparison.row(KEPT, EIGENVALUES, 0.05, f"exact Hessian, {KEPT}", "eigvalsh of it"),
        Row("exact Hessian, closed form: relative difference", AUTOGRAD, gap, goal=1e-12),
    ]
    return found


def by_autograd(weights: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """In the order of Definition 5: every matrix by its columns."""

    def loss(vector: Tensor) -> Tensor:
        out = x
        for unit in vector.view(weights.shape):
            path = out
            for transposed in unit:
                path = path @ transposed
            out = out + path
        return (out - y).square().sum() / (2 * len(x))

    return autograd_hessian(loss)(weights.mT.flatten())


if __name__ == "__main__":
    run(measure, parser())
