"""Minimal interlayer cushions: how much better than noise a signal is transmitted from one cut to all later ones.

Arora et al. (2018), section 4, and section 5 for convolutions. All maps from one cut are computed together: one forward-mode
pass per tangent gives J v at every later cut, so that d cuts cost d / 2 passes, not d^2 / 2.
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
    convolutional nets. If J is the identity, ``mu_{i,i} = sqrt(n_i / dim x^i)``, which is 1 / sqrt(channels), or
    1 / sqrt(h_i) in a fully connected net. No mu_{i->} is larger than this.

    Args:
        net: in evaluation mode; `cuts` defines x^i. For a net without blocks only its output is a signal.
        batches: (images, labels); the labels are ignored.
        tangents: number k >= 2 of Rademacher vectors per sample for ||J||_F. ``||J v||^2`` is an unbiased estimate of its square;
            the relative standard error of the norm is at most 1 / sqrt(2 k), for a J of rank one. It biases a minimum over
            samples downwards.
        seed: seed of these vectors.

    Invariance: scaling all signals after a cut changes nothing. If x^i or J is 0, the inequality that defines mu holds for any
    mu: then mu is infinite, and does not count in the minimum.

    Cost: about (k + 1) d forward passes, since on average half of the net lies behind a cut.
    """
    generator = torch.Generator().manual_seed(seed)
    found = []
    for images, _ in batches:
        cuts = CutNet(net, images)
        found.append([_from_cut(cuts, i, tangents, generator) for i in range(len(cuts.signals))])
    by_cut = [torch.cat(parts, -1) for parts in zip(*found, strict=True)]  # d of (2, d - i, n)
    pairs = by_cut[0].new_full((len(by_cut), len(by_cut)), math.nan)
    for i, (cushion, _) in enumerate(by_cut):
        pairs[i, i:] = cushion.amin(-1)
    errors = torch.cat([error[1:].flatten() for _, error in by_cut])
    minimal = torch.stack([row[i:].min() for i, row in enumerate(pairs)])
    return MinimalCushions(minimal, pairs, float(errors.median()) if len(errors) else 0.0, cuts.cut_after)


def _from_cut(cuts: CutNet, i: int, tangents: int, generator: torch.Generator) -> Tensor:
    """Cushions from cut i to itself and all later ones, and the relative errors of ||J||_F: (2, d - i, B) float64."""
    x = cuts.signals[i]
    positions = cuts.positions[i]
    size = math.sqrt(positions * len(x) / x.numel())
    itself = torch.full((1, len(x)), size, dtype=torch.float64, device="cpu")
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
