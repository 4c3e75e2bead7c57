"""Interlayer smoothness: how linear the rest of a net is around its signals (Arora et al. 2018, section 4).

The theory propagates noise through the net by the Jacobian at the clean signal. This is exact as long as the noise switches no
ReLU; rho measures how far it holds.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lightning_app.measures.core.cuts import CutNet
from lightning_app.measures.core.hooks import sample_norms

QUANTILE = 0.05  # delta


@dataclass(frozen=True, eq=False)
class Smoothness:
    """rho over samples and pairs of cuts i < j. Dimensionless, >= 0; larger is smoother, infinity is linear.

    Unnamed statistics follow the definition, ``M(x + eta) - J (x + eta)``, which counts biases as errors: in a
    net with biases or BatchNorm ``M(x) != J x``, so rho goes to 0 with the noise. The others use the error of linearisation
    alone, ``M(x + eta) - M(x) - J eta``; without biases the two agree. NaN: a net without cuts.
    """

    rho: float  # at `quantile` of the samples, each with its least smooth pair of cuts
    minimum: float  # over everything
    median: float  # of the same distribution as rho
    rho_linearisation: float  # rho of the error of linearisation alone
    minimum_linearisation: float  # over everything, of the error of linearisation alone
    median_linearisation: float  # of the same distribution as rho_linearisation
    strength: float  # ||eta|| / ||x^i||
    quantile: float  # delta, at which rho is taken
    pairs: Tensor  # (d, d) float64, median over samples by pair of cuts; NaN for j <= i
    pairs_linearisation: Tensor  # (d, d) float64


@torch.no_grad()
def smoothness(
    net: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    strength: float = 0.1,
    seed: int = 0,
) -> Smoothness:
    """``rho = ||eta|| ||x^j|| / (||x^i|| ||M^{i,j}(x^i + eta) - J^{i,j} (x^i + eta)||)``, J at the clean x^i.

    In the theory rho is the minimum over all samples, with probability 1 - delta over the noise. Here each sample has one draw,
    rho is the delta quantile over samples, and the minimum is returned too. The bound assumes rho >= 3 d.

    Args:
        net: in evaluation mode; `cuts` defines x^i.
        batches: (images, labels); the labels are ignored.
        strength: ||eta|| / ||x^i||, exactly, for every sample. eta is Gaussian; it stands for the noise caused by changed weights
            of earlier layers.
        seed: seed of eta.

    Special values: infinity if the error is 0, such as that of linearisation if a later signal is constant. For linear maps, and
    noise that switches no ReLU, rho is infinite up to rounding: 1e6 times the strength in float32.

    Cost: about 2.5 d forward passes.
    """
    generator = torch.Generator().manual_seed(seed)
    rho = torch.cat(
        [_rho(CutNet(net, images), strength, generator) for images, _ in batches], -1
    )  # (2, d, d, n), infinite for j <= i
    worst = rho.flatten(1, 2).amin(1)  # (2, n)
    pairs = rho.median(-1).values
    later = rho.new_ones(rho.shape[1:3], dtype=torch.bool).triu(1)  # j > i
    pairs[:, ~later] = math.nan
    if rho.shape[1] == 1:  # the output alone is no pair
        worst = torch.full_like(worst, math.nan)
    statistics: dict[str, Any] = {}
    for suffix, values, of_pairs in zip(("", "_linearisation"), worst, pairs):
        # Order statistics, as infinities have no mean; `torch.quantile` makes NaN of them.
        minimum, low, median = np.quantile(values, (0, QUANTILE, 0.5), method="lower").tolist()
        statistics |= {f"rho{suffix}": low, f"minimum{suffix}": minimum}
        statistics |= {f"median{suffix}": median, f"pairs{suffix}": of_pairs}
    return Smoothness(strength=strength, quantile=QUANTILE, **statistics)


def _rho(cuts: CutNet, strength: float, generator: torch.Generator) -> Tensor:
    """(2, d, d, B) float64: by definition and by linearisation, from cut i to cut j."""
    count, samples = len(cuts.signals), len(cuts.signals[-1])
    rho = torch.full((2, count, count, samples), math.inf, dtype=torch.float64, device="cpu")
    for i, x in enumerate(cuts.signals[:-1]):
        # Gaussian, strength ||x|| long for every sample; drawn on the CPU in float32, so that it is the same everywhere.
        eta = torch.randn(x.shape, generator=generator, dtype=torch.float32, device="cpu").to(x)
        length = strength * sample_norms(x) / sample_norms(eta)
        eta = eta * length.to(x.dtype).view(-1, *[1] * (x.ndim - 1))
        moved, whole, part = cuts.after(i, x + eta), cuts.push(i, x + eta), cuts.push(i, eta)
        for j, clean in enumerate(cuts.signals[i + 1 :]):
            scale = strength * sample_norms(clean)
            for kind, difference in enumerate((moved[j] - whole[j], moved[j] - clean - part[j])):
                error = sample_norms(difference)
                rho[kind, i, i + 1 + j] = torch.where(error == 0, math.inf, scale / error).cpu()
    return rho
