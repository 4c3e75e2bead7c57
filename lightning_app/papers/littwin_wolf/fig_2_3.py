"""Figures 2 and 3: the scales of a ResNet of depth 32 while it trains on CIFAR-10 and CIFAR-100 with fb.resnet.torch's recipe."""

from functools import partial

import numpy as np
import pandas as pd

from lightning_app.papers.littwin_wolf.fig_1de import draw_layers
from lightning_app.papers.littwin_wolf.training import layer
from lightning_app.papers.parts import Artefact, Run
from lightning_app.papers.predicates import above, below, tested
from lightning_app.papers.results import Results
from lightning_app.papers.verdicts import Claim, Sample
from lightning_app.plots import figures

RUNS = {title: Run(name, seeds=3) for title, name in (("CIFAR-10", "cifar10"), ("CIFAR-100", "cifar100"))}
ARM = "net"
CONVOLUTIONS = range(1, 32)
DROP = 80  # completed epochs at the first drop of the learning rate
WINDOW = 20  # epochs on either side of it
ABSORBED, LAMBDA = "weight_norm/absorbed", "bn_lambda/l2"


def slope(curve: pd.Series, first: int, last: int) -> float:
    """Of the least-squares line through a curve between two epochs, both included; nan for fewer than two points,
    and if one is nan: what diverged in between has no slope.

    >>> round(slope(pd.Series([0.0, 1.0, 3.0, 5.0]), 1, 3), 12)
    2.0
    """
    part = curve.loc[first:last]
    return float(np.polyfit(part.index, part, 1)[0]) if len(part) > 1 and part.notna().all() else float("nan")


def _slopes(results: Results, run: Run, name: str) -> tuple[Sample, Sample]:
    """Before and after the rate drops."""
    before = results.of_curves(run.name, ARM, lambda curve: slope(curve, DROP - WINDOW, DROP), name)
    return before, results.of_curves(run.name, ARM, lambda curve: slope(curve, DROP, DROP + WINDOW), name)


ABOVE, BELOW = above(0, each=True), below(0, each=True)


def fig_2_claims(results: Results) -> list[Claim]:
    """ "The dominance of paths with fewer skip connections increases over time. Moreover, once the learning rate is reduced in
    epoch 81 the phenomenon we describe speeds up." """
    claims = []
    for title, run in RUNS.items():
        norm, increases = f"mean norm of the absorbed convolutions, {title}", "increases over time"
        before, after = _slopes(results, run, ABSORBED)
        grown = results.final(run.name, ARM, ABSORBED) - results.initial(run.name, ARM, ABSORBED)
        claims += [
            tested(f"{norm}: end minus start", increases, ABOVE, grown),
            tested(f"{norm}: slope before the rate drops", increases, ABOVE, before),
            tested(f"{norm}: slope after minus before the drop", "speeds up", ABOVE, after - before),
        ]
    return claims


def fig_3_claims(results: Results) -> list[Claim]:
    """ "Until the learning rate is reduced, the dynamic behavior is manifested in the Batch Normalization multiplicative
    coefficients"; then they "start to decrease"."""
    claims = []
    for title, run in RUNS.items():
        before, after = _slopes(results, run, LAMBDA)
        dynamic = "the dynamic behaviour is in λ"
        claims.append(tested(f"mean ‖λ‖, {title}: slope before the rate drops", dynamic, ABOVE, before))
        claims.append(tested(f"mean ‖λ‖, {title}: slope after the drop", "start to decrease", BELOW, after))
    return claims


def _draw(results: Results, by_layer: str, mean: str, words: str) -> figures.Figure:
    """Left by layer, one line an epoch, darker the later; right the mean over layers by epoch. Rows: the two data sets."""
    figure, grid = figures.canvas(2, 2)
    for (left, right), (title, run) in zip(grid, RUNS.items()):
        curves = [results.curves(run.name, ARM, by_layer.format(layer(number))) for number in CONVOLUTIONS]
        draw_layers(left, curves, CONVOLUTIONS)
        left.set(title=f"{words}, {title}", xlabel="convolution")
        over_epochs = results.curves(run.name, ARM, mean)
        if not over_epochs.empty:
            figures.band(right, over_epochs, "residual", "mean over seeds, ± sd, extremes")
            right.axvline(DROP, color=figures.INK, linewidth=0.8, linestyle=":", label="drop of the rate")
        right.set(title=f"mean over layers, {title}", xlabel="epoch")
    figures.legend(*grid[0])
    return figure


RECIPE = (
    "CifarResNet of depth 32: 31 convolutions, each followed by a BatchNorm. fb.resnet.torch's recipe: 164 epochs, rate 0.1, a "
    "tenth of it from epoch 81 and from epoch 122, counted from 1; Nesterov 0.9, weight decay 1e-4 on everything, batches of "
    f"128. Three seeds. Slopes are fitted to the {WINDOW} epochs before and after the first drop. "
)

FIG_2 = Artefact(
    "fig-2",
    "with BatchNorm absorbed the norms of the convolutions increase, and faster once the learning rate is reduced",
    fig_2_claims,
    RECIPE
    + "Norms are Frobenius norms of γ w / sqrt(var + eps), with running statistics; the paper does not say which norm.",
    partial(_draw, by_layer="weight_norm/{}/absorbed", mean=ABSORBED, words="absorbed norm"),
    runs=tuple(RUNS.values()),
)
FIG_3 = Artefact(
    "fig-3",
    "the norms of BatchNorm's factors increase until the learning rate is reduced, then decrease",
    fig_3_claims,
    RECIPE + "λ is BatchNorm's γ, one for each channel, with weight decay like everything else.",
    partial(_draw, by_layer="bn_lambda/{}/l2", mean=LAMBDA, words="‖λ‖"),
    runs=tuple(RUNS.values()),
)
