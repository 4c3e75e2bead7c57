"""Which entries hold a net's weight mass, and how far training moves it: Table 3 and Fig. 7 of Yu & Tomasi (2019), SM C.

Plain and residual nets start far apart in parameter space, and mostly at the ID entries: T puts a 1 there. How much of
the weight mass sits at these few entries, before and after training, shows whether training ever leaves either region.

Conventions, settled by comparing Table 3 at epoch 0 with expectations over seeds: weights of convolutions only, the
first one included; no biases, no linear layer. Mass is the L1 norm. If fewer than half of a net's layers are convolutions, as in
a ViT, all layers count. A weight that several layers share counts once.

The paper says that plain nets and the plain equivalents of residual nets "evolve in relatively small neighborhoods of their
starting points" (section 4.2), and that these are far apart. Both are distances in the space of the plain net's weights:
``||w_e - w_0||``, the same for r and t = T(r), and ``||t_0 - p_0||``.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lightning_app.measures.core.histogram import Histogram, histogram
from lightning_app.networks.layers import Layer, each_once

LARGE = 0.25  # Table 3, "|Weights| >= 0.25"
SUMS = ("count", "id_count", "all", "large", "id_entries", "above_07", "above_07_signed")  # over parts of a set
HIGH = 0.7  # SM C: "1 entry bigger than 0.7" in p_0, 26 in p_200

# Fig. 7 spans about -1 to 2. The paper's bins are not stated; a width of 2^-7 makes every edge, 0.25 too, exact.
EDGES = torch.linspace(-2, 2, 513, dtype=torch.float64, device="cpu")


@dataclass(frozen=True, eq=False)
class WeightStatistics:
    """Statistics of one set of weights; masses are L1 norms. For an empty set sums are zero, and
    the rest is NaN.

    If a weight is NaN, so is everything except counts, histograms, and the mass of ID entries if these are finite.
    """

    count: int  # number of weights
    id_count: int  # ID entries among them
    mean: float  # of the weights, with their signs
    std: float  # population: divided by count
    all: float  # mass of all weights
    large: float  # mass of those with |w| >= 0.25
    id_entries: float  # mass of the ID entries, whatever their size
    id_over_large: float  # id_entries / large: the paper's 76 % (t_200) and 10.29 % (p_200); may exceed 1
    above_07: float  # how many |w| > 0.7
    above_07_signed: float  # how many w > 0.7: the paper's text leaves open which of the two it counts
    norm: float  # 2-norm; std^2 + mean^2 = norm^2 / count
    histogram: Histogram  # all weights
    histogram_id: Histogram  # ID entries only


def weight_mass(layers: Sequence[Layer], transferred: bool = False) -> dict[str, WeightStatistics]:
    """Weight statistics of a net, in total and layer by layer (Table 3).

    The key "" is the total over the `counted_layers`. Each layer has its own key, also if it is not in the total.
    ``transferred``: use t = T(w) instead of w, in float64, so that nothing is lost to rounding. For a net without skips t is w.

    Invariances: permuting the weights of a layer leaves everything but the ID fields unchanged; w -> -w changes only
    mean, ``above_07_signed`` and the histograms. ``mean`` of T(w) exceeds that of w by exactly ``id_count / count`` in
    nets with twins. Other layers with a skip around them also get ones in T(w), but have no ID entries.
    Cost: one copy of the weights to the CPU and a few passes; no forward pass.
    """
    each = {}
    for layer in layers:
        weight, mask = layer.transferred() if transferred else layer.weight64(), layer.id_mask()
        no_ids = torch.zeros_like(weight, dtype=torch.bool)
        each[layer.name] = _statistics(weight, no_ids if mask is None else mask.cpu())
    return {"": _pool([each[layer.name] for layer in counted_layers(layers)]), **each}


def counted_layers(layers: Sequence[Layer]) -> list[Layer]:
    """The layers that count in totals: convolutions if at least half of all layers are, else all. A shared weight counts once."""
    once = each_once(layers)
    convs = [layer for layer in once if layer.is_conv]
    return convs if 2 * len(convs) >= len(once) else once


def _statistics(weight: Tensor, mask: Tensor) -> WeightStatistics:
    """Statistics of float64 weights on the CPU.

    >>> kernel = torch.tensor([[3.0, 0.0], [-0.25, -0.75]], dtype=torch.float64)
    >>> s = _statistics(kernel, torch.eye(2, dtype=torch.bool))
    >>> s.mean, s.all, s.large, s.id_entries, s.id_over_large, s.above_07, s.above_07_signed
    (0.5, 4.0, 4.0, 3.75, 0.9375, 2, 1)
    """
    size = weight.abs()
    known = not weight.isnan().any()  # else how many are large is not
    large, id_entries = float(size[size >= LARGE].sum()) if known else math.nan, float(size[mask].sum())
    return WeightStatistics(
        count=weight.numel(),
        id_count=int(mask.sum()),
        mean=float(weight.mean()),
        std=float(weight.std(correction=0)),
        all=float(size.sum()),
        large=large,
        id_entries=id_entries,
        id_over_large=_ratio(id_entries, large),
        above_07=int((size > HIGH).sum()) if known else math.nan,
        above_07_signed=int((weight > HIGH).sum()) if known else math.nan,
        norm=float(weight.norm()),
        histogram=histogram(weight, EDGES),
        histogram_id=histogram(weight[mask], EDGES),
    )


def _pool(parts: Sequence[WeightStatistics]) -> WeightStatistics:
    """Statistics of a union from those of its parts (std by the parallel formula, so as stable as two passes)."""
    parts = [part for part in parts if part.count]  # of none at all the mean is NaN
    sums: dict[str, Any] = {name: sum(getattr(part, name) for part in parts) for name in SUMS}
    mean = _ratio(sum(part.count * part.mean for part in parts), sums["count"])
    spread = sum(part.count * (part.std**2 + (part.mean - mean) ** 2) for part in parts)
    return WeightStatistics(
        **sums,
        mean=mean,
        std=math.sqrt(_ratio(spread, sums["count"])),
        id_over_large=_ratio(sums["id_entries"], sums["large"]),
        norm=math.hypot(*(part.norm for part in parts)),
        histogram=Histogram.total([part.histogram for part in parts], EDGES),
        histogram_id=Histogram.total([part.histogram_id for part in parts], EDGES),
    )


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else math.nan


def conv_weights(layers: Sequence[Layer]) -> Tensor:
    """All weights of the `counted_layers`, of t = T(w), as one vector (n,) in float64 on the CPU; no biases."""
    return torch.cat([layer.transferred().flatten() for layer in counted_layers(layers)])


def distance(one: Tensor, other: Tensor) -> float:
    """2-norm of the difference, in float64.

    >>> distance(torch.tensor([3.0, 0.0]), torch.tensor([0.0, 4.0]))
    5.0
    """
    return float((one.double() - other.double()).norm())
