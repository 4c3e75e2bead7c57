"""Minimal interlayer cushions: how far a signal is above noise on its way from one cut to all later ones.

Arora et al. (2018), section 4, and section 5 for convolutions. All maps from one cut are pushed through together: one
forward-mode pass per tangent yields J v at every later cut, so that d cuts cost d / 2 passes, not d^2 / 2.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lightning_app.measures.core.cuts import CutNet
from lightning_app.measures.core.hooks import sample_norms
from lightning_app.measures.noise_stability.jacobian import signs


@dataclass(frozen=True, eq=False)
class MinimalCushions:
    """mu_{i,j} and mu_{i->} of a net with d cuts, minima over samples. Dimensionless, >= 0."""

    minimal: Tensor  # (d,) float64, mu_{i->} = min over j >= i of mu_{i,j}
    pairs: Tensor  # (d, d) float64, mu_{i,j}; NaN for j < i
    error: float  # median relative standard error of one ||J||_F, from its tangents
    cut_after: Mapping[str, int]  # layer name -> index of the first signal that it changes


@torch.no_grad()
def minimal_cushions(
    net: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], tangents: int = 4, seed: int = 0
) -> MinimalCushions:
    """``mu_{i,j} = min over samples of sqrt(n_i) ||J x^i|| / (||J||_F ||x^i||)``, J the Jacobian of M^{i,j} at x^i.

    n_i is the number of positions of x^i, H W of a map, T of tokens and 1 of a vector: the factor of the definition for
    convolutional nets. With J the identity, ``mu_{i,i} = sqrt(n_i / dim x^i)``, which is 1 / sqrt(channels), or
    1 / sqrt(h_i) in a fully connected net: no mu_{i->} is larger than this.

    Args:
        net: in evaluation mode; what x^i is, `cuts` says. A net without blocks has only its output.
        batches: (images, labels); the labels are ignored.
        tangents: k >= 2 Rademacher vectors a sample for ||J||_F, drawn by the seed. ``||J v||^2`` is unbiased for its
            square; a relative standard error of 1 / sqrt(2 k) of the norm is the worst case, a J of rank one. A minimum
            over samples inherits it as a bias downwards.

    Invariance: scaling all signals after a cut changes nothing. Where x^i or J is 0, the inequality that defines mu
    holds for any mu: infinity, which is no minimum.

    Cost: about (k + 1) d forward passes, since behind a cut lies half a net on average.
    """
    generator = torch.Generator().manual_seed(seed)
    found = []
    for images, _ in batches:
        cuts = CutNet(net, images)
        found.append([_from_cut(cuts, i, tangents, generator) for i in range(len(cuts.signals))])
    by_cut = [torch.cat(parts, -1) for parts in zip(*found, strict=True)]  # d of (2, d - i, n)
    pairs = torch.full((len(by_cut), len(by_cut)), math.nan, dtype=torch.float64)
    for i, (cushion, _) in enumerate(by_cut):
        pairs[i, i:] = cushion.amin(-1)
    errors = torch.cat([error[1:].flatten() for _, error in by_cut])
    minimal = torch.stack([row[i:].min() for i, row in enumerate(pairs)])
    return MinimalCushions(minimal, pairs, float(errors.median()) if len(errors) else 0.0, cuts.cut_after)


def _from_cut(cuts: CutNet, i: int, tangents: int, generator: torch.Generator) -> Tensor:
    """Cushions from cut i to itself and all later ones, and the relative errors of ||J||_F: (2, d - i, B) float64."""
    x = cuts.signals[i]
    positions = cuts.positions[i]
    itself = torch.full((1, len(x)), math.sqrt(positions * len(x) / x.numel()), dtype=torch.float64)
    if i == len(cuts.signals) - 1:
        return torch.stack([itself, torch.zeros_like(itself)])
    signal = _norms(cuts.push(i, x))  # (J, B)
    drawn = (signs(1, x.cpu(), generator)[0].to(x) for _ in range(tangents))  # on the CPU: all devices have the same
    squares = torch.stack([_norms(cuts.push(i, v)) for v in drawn]).square()
    mean = squares.mean(0)  # of ||J||_F^2, (J, B)
    noise = mean.sqrt() * sample_norms(x).cpu()
    cushion = torch.where(noise == 0, math.inf, math.sqrt(positions) * signal / noise)
    error = torch.where(mean == 0, 0.0, squares.std(0) / math.sqrt(tangents) / (2 * mean))
    return torch.stack([torch.cat([itself, cushion]), torch.cat([torch.zeros_like(itself), error])])


def _norms(signals: list[Tensor]) -> Tensor:
    return torch.stack([sample_norms(signal) for signal in signals]).cpu()
