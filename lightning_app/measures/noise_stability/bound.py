"""The generalization bound of Arora et al. (2018), Theorem 4.1, with every factor shown.

    error <= L_gamma + O~( sqrt( c^2 d^2 max_x ||f(x)||^2 sum_i 1 / (mu_i^2 mu_{i->}^2) / (gamma^2 m) ) )

It is vacuous for these nets in absolute terms, by many orders of magnitude: compare nets and epochs, not with 1. What
is left out is part of O~ anyway: logarithms, and what the theorem for convolutions adds (the overlap of windows, kernel over
stride, squared in each term, and the spread of the Jacobian over positions).

Conventions. S is the probe: all maxima and minima are over its m samples. mu_i is the smallest layer cushion in
S, with the kernel's norm; for a residual layer the bound is computed with each of the three readings of `cushions`. mu_{i->}
belongs to the cut behind layer i (`cuts`), which is exact in simplified nets. For the inner convolution of a block of two the
cut at the end of the block is used, as if its noise entered there. The theorem also assumes that rho >= 3 d (`smoothness`).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lightning_app.measures.core.hooks import sample_norms
from lightning_app.measures.noise_stability.cushions import CushionStatistics
from lightning_app.measures.noise_stability.minimal_cushions import MinimalCushions

QUANTILE = 0.1  # of the margins: gamma


@dataclass(frozen=True, eq=False)
class NoiseBound:
    """The factors of the bound, and log10 of the expression under its root. All are dimensionless except output and margin
    (logits).

    Unnamed sums and logarithms follow the paper's reading of mu_i in residual layers (Yu & Tomasi: identity in the
    numerator, not in the norm), the others transferred and branch; without skips the three agree. NaN means that a factor is
    missing: no sample is classified correctly, so there is no margin; or the net has no ReLUs, so there is no contraction; or a
    layer that the net calls has no cushion.
    """

    log10: float  # of c^2 d^2 max ||f||^2 sum / (gamma^2 m)
    log10_transferred: float  # with mu_i of T(W)
    log10_branch: float  # with mu_i of the branch alone
    contraction: float  # c of the activations, at least 1, without ratios that are infinite (`Contraction.dead`)
    depth: int  # d, number of layers
    output: float  # max ||f(x)||, logits
    sum: float  # over layers of 1 / (mu_i^2 mu_{i->}^2)
    sum_transferred: float  # with mu_i of T(W)
    sum_branch: float  # with mu_i of the branch alone
    margin: float  # gamma, logits
    count: int  # m, number of samples
    margin_loss: float  # L_gamma, share of samples with a margin of gamma or less
    cushions: Tensor  # (d,) float64, mu_i
    cushions_transferred: Tensor  # (d,)
    cushions_branch: Tensor  # (d,)
    interlayer: Tensor  # (d,) float64, mu_{i->}


def noise_bound(
    cushions: Mapping[str, CushionStatistics | None],
    interlayer: MinimalCushions,
    contraction: float,
    logits: Tensor,
    labels: Tensor,
) -> NoiseBound:
    """The bound, from cushions by layer over S, c, and the logits f(x), (m, classes), and labels, (m,), of S.

    If a layer has no cushion (None), the bound is NaN. mu_{i->}, which is expensive, may be the minimum over some of the samples
    only. gamma is the `QUANTILE` of the margins of the samples that are classified correctly: so it is always positive, and for a
    net without errors it is the usual quantile of all margins. Scaling the logits scales output and margin alike, and does not
    change the logarithms.
    """
    over_samples = margins(logits, labels)
    right = over_samples[over_samples > 0]
    gamma = float(right.quantile(QUANTILE)) if len(right) else math.nan
    by_layer = {name: found for name, found in cushions.items() if name in interlayer.cut_after}
    behind = interlayer.minimal[[interlayer.cut_after[name] for name in by_layer]]
    output = float(sample_norms(logits).max())
    common = contraction**2 * len(by_layer) ** 2 * output**2 / (gamma**2 * len(labels))
    found: dict[str, Any] = {}
    for reading in ("", "_transferred", "_branch"):
        least = [_minimum(each, reading) for each in by_layer.values()]
        mu = torch.tensor(least, dtype=behind.dtype, device=behind.device)
        total = float((mu * behind).pow(-2).sum())
        log10 = math.log10(common * total) if common * total > 0 else math.nan
        found |= {f"cushions{reading}": mu, f"sum{reading}": total, f"log10{reading}": log10}
    return NoiseBound(
        contraction=contraction,
        depth=len(by_layer),
        output=output,
        margin=gamma,
        count=len(labels),
        margin_loss=float((over_samples <= gamma).double().mean()) if gamma > 0 else math.nan,
        interlayer=behind,
        **found,
    )


def margins(logits: Tensor, labels: Tensor) -> Tensor:
    """f(x)_y - max over k != y of f(x)_k, (n,) float64: positive if the sample is classified correctly.

    >>> margins(torch.tensor([[3.0, 1.0, 0.0], [3.0, 1.0, 0.0]]), torch.tensor([0, 1])).tolist()
    [2.0, -2.0]
    """
    logits, place = logits.double(), labels[:, None]
    return (logits.gather(1, place) - logits.scatter(1, place, -math.inf).amax(1, keepdim=True))[:, 0]


def _minimum(found: CushionStatistics | None, reading: str) -> float:
    """Over the samples that are not dead; NaN if others are NaN too, or there are none."""
    if found is None:
        return math.nan
    samples = getattr(found, f"samples{reading}")
    there = samples[~samples.isnan()].double()
    return float(there.min()) if len(there) and len(there) + found.dead == len(samples) else math.nan
