"""The exact Hessian of a linear net: closed form against autograd, and what its eigenvalues then cost.

    python -m benchmarks.linear_hessian [--units 16] [--n 2] [--width 10] [--rounds 7]

A Hessian of 2-shortcut linear nets, by default of 3,200 parameters on 200 samples: `theory.hessian` from second moments
(into memory kept for it, and into its own), `torch.func.hessian` of a forward pass over the samples, and `eigvalsh` of the
result. All in float64. Goals: at least 100 times cheaper than torch.func.hessian, at most 5 % of eigvalsh.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.func import hessian as autograd_hessian

from benchmarks.timing import interleave, machine, save
from lightning_app.networks import draw
from lightning_app.theory import Moments, hessian

CLOSED = "closed form"


def contenders(weights: Tensor, x: Tensor, y: Tensor) -> dict[str, Callable[[], None]]:
    moments, vector = Moments.of(x, y), weights.mT.flatten()
    H = hessian(weights, moments, shortcut=True)
    out = torch.empty_like(H)
    return {
        CLOSED: lambda: _done(hessian(weights, moments, shortcut=True)),
        f"{CLOSED}, memory kept": lambda: _done(hessian(weights, moments, shortcut=True, out=out)),
        "torch.func.hessian": lambda: _done(by_autograd(vector, weights.shape, x, y)),
        "eigvalsh": lambda: _done(torch.linalg.eigvalsh(H)),
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--units", type=int, default=16)
    parser.add_argument("--n", type=int, default=2, help="matrices a unit")
    parser.add_argument("--width", type=int, default=10)
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path, help="write the values here")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(machine())
    generator, d = torch.Generator().manual_seed(0), options.width
    weights = draw((options.units, options.n, d, d), "xavier", generator=generator)
    x, y = torch.randn(2, options.samples, d, generator=generator, dtype=torch.float64)
    autograd = by_autograd(weights.mT.flatten(), weights.shape, x, y)
    difference = float((hessian(weights, Moments.of(x, y), shortcut=True) - autograd).norm() / autograd.norm())
    found = interleave(contenders(weights, x, y), options.rounds)
    print(f"{weights.numel()} parameters, {options.samples} samples\n{found.table(CLOSED)}")
    print(f"relative difference to torch.func.hessian: {difference:.1e}")
    if options.json:
        save(options.json, found, CLOSED, parameters=weights.numel(), samples=options.samples, difference=difference)


if __name__ == "__main__":
    main()
