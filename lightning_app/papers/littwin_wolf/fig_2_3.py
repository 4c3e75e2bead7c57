"""Figures 2 and 3: the scales of a ResNet of depth 32 while it trains on CIFAR-10 and CIFAR-100 with fb.resnet.torch's recipe."""

from collections.abc import Callable

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from lightning_app.papers.artefact import Artefact
from lightning_app.papers.littwin_wolf.fig_1d import draw_layers
from lightning_app.papers.littwin_wolf.training import layer
from lightning_app.papers.parts import Run
from lightning_app.papers.predicates import above, below, tested
from lightning_app.papers.results import Results
from lightning_app.papers.verdicts import Claim, Class, Sample
from lightning_app.plots import figures

__all__ = ["FIG_2", "FIG_3", "slope"]

RUNS = {title: Run(name, seeds=3) for title, name in (("CIFAR-10", "cifar10"), ("CIFAR-100", "cifar100"))}
ARM = "net"
CONVOLUTIONS = range(1, 32)
DROP = 80  # completed epochs at the first drop of the learning rate
WINDOW = 20  # epochs on either side of it
ABSORBED, LAMBDA = "weight_norm/absorbed", "bn_lambda/l2"


# -- slopes ---------------------------------------------------------------------------------------------------------------


def slope(curve: pd.Series, first: int, last: int) -> float:
    """Of the least-squares line through a curve between two epochs, both included; nan for fewer than two points,
    and if one is nan: what diverged in between has no slope.

    >>> round(slope(pd.Series([0.0, 1.0, 3.0, 5.0]), 1, 3), 12)
    2.0
    """
    part = curve.loc[first:last]
    return float(np.polyfit(part.index, part, 1)[0]) if len(part) > 1 and part.notna().all() else float("nan")


def _before(curve: pd.Series) -> float:
    return slope(curve, DROP - WINDOW, DROP)


def _after(curve: pd.Series) -> float:
    return slope(curve, DROP, DROP + WINDOW)


def _of_curves(results: Results, run: Run, name: str, value: Callable[[pd.Series], float]) -> Sample:
    curves = results.curves(run.name, ARM, name)
    return Sample(tuple(value(curves[seed]) for seed in curves), results.incomplete(run.name))


ABOVE, BELOW = above(0, each=True), below(0, each=True)


# -- Fig. 2: absorbed norms -----------------------------------------------------------------------------------------------


def fig_2_claims(results: Results) -> list[Claim]:
    """ "The dominance of paths with fewer skip connections increases over time. Moreover, once the learning rate is reduced in
    epoch 81 the phenomenon we describe speeds up." """
    return [claim for title, run in RUNS.items() for claim in _absorbed(results, title, run)]


def _absorbed(results: Results, title: str, run: Run) -> list[Claim]:
    """ "The dominance of paths with fewer skip connections increases over time. Moreover, once the learning rate is reduced in
    epoch 81 the phenomenon we describe speeds up." """
    norm = f"mean norm of the absorbed convolutions, {title}"
    before, after = (_of_curves(results, run, ABSORBED, value) for value in (_before, _after))
    grown = results.final(run.name, ARM, ABSORBED).map(
        lambda end, start: end - start, results.initial(run.name, ARM, ABSORBED)
    )
    faster = after.map(lambda late, early: late - early, before)
    return [
        tested(f"{norm}: end minus start", "increases over time", ABOVE, grown),
        tested(f"{norm}: slope before the rate drops", "increases over time", ABOVE, before),
        tested(f"{norm}: slope after minus before the drop", "speeds up", ABOVE, faster),
    ]


# -- Fig. 3: norms of lambda ----------------------------------------------------------------------------------------------


def fig_3_claims(results: Results) -> list[Claim]:
    """ "Until the learning rate is reduced, the dynamic behavior is manifested in the Batch Normalization multiplicative
    coefficients"; then they "start to decrease"."""
    return [claim for title, run in RUNS.items() for claim in _lambdas(results, title, run)]


def _lambdas(results: Results, title: str, run: Run) -> list[Claim]:
    """ "We would like to better understand why these coefficients start to decrease once the learning rate is reduced." """
    before, after = (_of_curves(results, run, LAMBDA, value) for value in (_before, _after))
    return [
        tested(f"mean ‖λ‖, {title}: slope before the rate drops", "the dynamic behaviour is in λ", ABOVE, before),
        tested(f"mean ‖λ‖, {title}: slope after the drop", "start to decrease", BELOW, after),
    ]


# -- both -----------------------------------------------------------------------------------------------------------------


def _drawn(by_layer: str, mean: str, words: str) -> Callable[[Results], Figure]:
    def draw(results: Results) -> Figure:
        """Left by layer, one line an epoch, darker the later; right the mean over layers by epoch. Rows: the two data sets."""
        figure, grid = figures.canvas(2, 2)
        for (left, right), (title, run) in zip(grid, RUNS.items()):
            curves = [results.curves(run.name, ARM, by_layer.format(layer(number))) for number in CONVOLUTIONS]
            draw_layers(left, curves, CONVOLUTIONS)
            left.set(title=f"{words}, {title}", xlabel="convolution")
            over_epochs = results.curves(run.name, ARM, mean)
            if not over_epochs.empty:
                figures.band(right, over_epochs, "residual", "mean over seeds, ± sd, extremes")
                right.axvline(DROP, color=figures.INK, linewidth=0.8, linestyle=":")
            right.set(title=f"mean over layers, {title}", xlabel="epoch")
        figures.legend(grid[0][0])
        figures.legend(grid[0][1])
        return figure

    return draw


RECIPE = (
    "CifarResNet of depth 32: 31 convolutions, each followed by a BatchNorm. fb.resnet.torch's recipe: 164 epochs, rate 0.1, a "
    "tenth of it from epoch 81 and from epoch 122, counted from 1; Nesterov 0.9, weight decay 1e-4 on everything, batches of "
    f"128. Three seeds. Slopes are fitted to the {WINDOW} epochs before and after the first drop. "
)

FIG_2 = Artefact(
    "fig-2",
    "with BatchNorm absorbed the norms of the convolutions increase, and faster once the learning rate is reduced",
    tuple(RUNS.values()),
    fig_2_claims,
    RECIPE
    + "Norms are Frobenius norms of γ w / sqrt(var + eps), with running statistics; the paper does not say which norm.",
    _drawn("weight_norm/{}/absorbed", ABSORBED, "absorbed norm"),
    about=Class.TRAINED,
)
FIG_3 = Artefact(
    "fig-3",
    "the norms of BatchNorm's factors increase until the learning rate is reduced, then decrease",
    tuple(RUNS.values()),
    fig_3_claims,
    RECIPE + "λ is BatchNorm's γ, one for each channel, with weight decay like everything else.",
    _drawn("bn_lambda/{}/l2", LAMBDA, "‖λ‖"),
    about=Class.TRAINED,
)
