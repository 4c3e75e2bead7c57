"""The generalization bound of Arora et al. (2018), Theorem 4.1, with every factor shown.

    error <= L_gamma + O~( sqrt( c^2 d^2 max_x ||f(x)||^2 sum_i 1 / (mu_i^2 mu_{i->}^2) / (gamma^2 m) ) )

It is vacuous for these nets in absolute terms, by many orders of magnitude: compare nets and epochs, not with 1. What
is left out is hidden in O~ anyway: logarithms, and what the theorem for convolutions adds (the windows' overlap, kernel
over stride, squared in each term, and the spread of the Jacobian over positions).

Conventions. S is the probe, so that all maxima and minima are over its m samples. mu_i is the smallest layer cushion in
S, with the kernel's norm; in a residual layer all three readings of `cushions` are followed to the end. mu_{i->} is
that of the cut behind layer i (`cuts`): exact in simplified nets; the inner convolution of a block of two takes that of
its block's end, as if its noise came in there. The theorem also assumes that rho >= 3 d (`smoothness`).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_app.measures.core.hooks import sample_norms
from lightning_app.measures.noise_stability.cushions import CushionStatistics
from lightning_app.measures.noise_stability.minimal_cushions import MinimalCushions

__all__ = ["NoiseBound", "margins", "noise_bound"]


@dataclass(frozen=True, eq=False)
class NoiseBound:
    """The factors of the bound and log10 of what stands under its root; all dimensionless but output and margin.

    Unnamed sums and logarithms follow the paper's reading of mu_i in residual layers (Yu & Tomasi: identity in the
    numerator, not in the norm), the others transferred and branch; without skips the three agree. NaN: a factor is
    missing, e.g. there is no margin while no sample is classified right.
    """

    log10: float  # of c^2 d^2 max ||f||^2 sum / (gamma^2 m)
    log10_transferred: float  # with mu_i of T(W)
    log10_branch: float  # with mu_i of the branch alone
    contraction: float  # c
    depth: int  # d, layers
    output: float  # max ||f(x)||, logits
    sum: float  # over layers of 1 / (mu_i^2 mu_{i->}^2)
    sum_transferred: float  # with mu_i of T(W)
    sum_branch: float  # with mu_i of the branch alone
    margin: float  # gamma, logits
    count: int  # m
    margin_loss: float  # L_gamma, share of samples with a margin of gamma or less
    cushions: Tensor  # (d,) float64, mu_i
    cushions_transferred: Tensor  # (d,)
    cushions_branch: Tensor  # (d,)
    interlayer: Tensor  # (d,) float64, mu_{i->}


def noise_bound(
    cushions: Mapping[str, CushionStatistics],
    interlayer: MinimalCushions,
    contraction: float,
    logits: Tensor,
    labels: Tensor,
    quantile: float = 0.1,
) -> NoiseBound:
    """Put the factors together.

    Args:
        cushions: by layer, over S.
        interlayer: of the same net; being dear, it may be the minimum over some of the samples only.
        contraction: c.
        logits: f(x) over S, (m, classes).
        labels: (m,).
        quantile: gamma is this quantile of the margins of the samples that are classified right. So it is positive
            from the start, and for a net without errors the usual quantile of all margins.

    Invariance: scaling the logits scales output and margin alike and leaves the logarithms as they are.
    """
    over_samples = margins(logits, labels)
    gamma = _quantile(over_samples[over_samples > 0], quantile)
    by_layer = [found for name, found in cushions.items() if name in interlayer.cut_after]
    behind = interlayer.minimal[[interlayer.cut_after[name] for name in cushions if name in interlayer.cut_after]]
    readings = [
        torch.tensor([_minimum(getattr(found, samples), found.dead) for found in by_layer], dtype=torch.float64)
        for samples in ("samples", "samples_transferred", "samples_branch")
    ]
    sums = [float((mu * behind).pow(-2).sum()) for mu in readings]
    output = float(sample_norms(logits).max())
    common = contraction**2 * len(by_layer) ** 2 * output**2 / (gamma**2 * len(labels))
    logs = [math.log10(common * total) if common * total > 0 else math.nan for total in sums]
    return NoiseBound(
        log10=logs[0],
        log10_transferred=logs[1],
        log10_branch=logs[2],
        contraction=contraction,
        depth=len(by_layer),
        output=output,
        margin=gamma,
        count=len(labels),
        margin_loss=float((over_samples <= gamma).double().mean()) if gamma > 0 else math.nan,
        sum=sums[0],
        sum_transferred=sums[1],
        sum_branch=sums[2],
        cushions=readings[0],
        cushions_transferred=readings[1],
        cushions_branch=readings[2],
        interlayer=behind,
    )


def margins(logits: Tensor, labels: Tensor) -> Tensor:
    """f(x)_y - max over k != y of f(x)_k, (n,) float64: positive where the sample is classified right.

    >>> margins(torch.tensor([[3.0, 1.0, 0.0], [3.0, 1.0, 0.0]]), torch.tensor([0, 1])).tolist()
    [2.0, -2.0]
    """
    logits, place = logits.double(), labels[:, None]
    return (logits.gather(1, place) - logits.scatter(1, place, -math.inf).amax(1, keepdim=True))[:, 0]


def _quantile(values: Tensor, quantile: float) -> float:
    return float(values.quantile(quantile)) if len(values) else math.nan


def _minimum(samples: Tensor, dead: int) -> float:
    """Over the samples that are not dead; NaN if others are NaN too."""
    there = samples[~samples.isnan()].double()
    return float(there.min()) if len(there) and len(there) + dead == len(samples) else math.nan
