"""Activation contraction: how much a ReLU may shrink a signal (Arora et al. 2018, section 4)."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lightning_app.measures.core.histogram import Histogram, histogram
from lightning_app.measures.core.hooks import WatchRelus, check_evaluating, sample_norms, shared_copy

# 1 to 10, 100 bins a decade; sqrt 2 lies in the 16th.
EDGES = torch.logspace(0, 1, 101, dtype=torch.float64, device="cpu")


@dataclass(frozen=True, eq=False)
class Contraction:
    """``||x|| / ||relu(x)||`` over samples and ReLUs. Dimensionless, >= 1; sqrt 2 where x is symmetric about 0.

    ReLUs are numbered in the order of the forward pass: in a net with one after every layer but the last, ReLU i is
    that of layer i. NaN for a ReLU whose outputs are 0 for all samples, and for a net without ReLUs. Skipped ReLUs are not
    numbered.
    """

    maximum: float  # c of the bound
    median: float  # over samples and ReLUs
    mean: float  # over samples and ReLUs
    skipped: int  # ReLUs whose input has not one row per sample (windows, a table of positions); in no statistic
    dead: int  # pairs of sample and ReLU with relu(x) = 0: the ratio is infinite, and they are in no statistic
    maxima: Tensor  # (R,) float64, over samples, by ReLU
    medians: Tensor  # (R,) float64
    histogram: Histogram  # of all samples and ReLUs


@torch.no_grad()
def contraction(net: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> Contraction:
    """c = max over samples x and layers i of ``||x^i|| / ||relu(x^i)||``, x^i the pre-activation of layer i.

    The net must be in evaluation mode. ReLUs are those that `hooks.WatchRelus` sees; labels are ignored. Scaling the input of a
    ReLU by a > 0 changes nothing. Cost: one forward pass and two norms per ReLU.

    Raises:
        UserError: for a net in training mode.
    """
    check_evaluating(net, "contraction")
    net = shared_copy(net)
    of_relus = [*zip(*(_ratios(net, images) for images, _ in batches), strict=True)]
    of_samples = [torch.cat(parts) for parts in of_relus if all(part is not None for part in parts)]
    ratios = torch.stack(of_samples) if of_samples else torch.empty(0, 0, dtype=torch.float64, device="cpu")  # (R, n)
    alive = ratios != math.inf
    of_alive = [values[keep] for values, keep in zip(ratios, alive)]
    every = ratios[alive]
    return Contraction(
        maximum=_quantile(every, 1),
        median=_quantile(every, 0.5),
        mean=float(every.mean()),
        skipped=len(of_relus) - len(of_samples),
        dead=int((~alive).sum()),
        maxima=ratios.new_tensor([_quantile(values, 1) for values in of_alive]),
        medians=ratios.new_tensor([_quantile(values, 0.5) for values in of_alive]),
        histogram=histogram(every, EDGES),
    )


def _ratios(net: nn.Module, images: Tensor) -> list[Tensor | None]:
    """Of each ReLU (B,) float64 on the CPU, infinite where dead, as for 0; None where rows are no samples."""
    found: list[Tensor | None] = []

    def seen(x: Tensor, out: Tensor) -> None:
        if not out.ndim or len(out) != len(images):
            found.append(None)
            return
        after = sample_norms(out)
        found.append(torch.where(after == 0, math.inf, sample_norms(x) / after).cpu())

    with WatchRelus(seen):
        net(images)
    return found


def _quantile(values: Tensor, share: float) -> float:
    return float(values.quantile(share)) if len(values) else math.nan
