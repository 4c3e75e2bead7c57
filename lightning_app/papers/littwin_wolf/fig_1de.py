"""Figures 1d and 1e, during training: the factors lambda of normalisation by layer, and the weights' norm without it."""

import math
from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
import pandas as pd

from lightning_app.papers.littwin_wolf import training
from lightning_app.papers.littwin_wolf.training import (
    DURATION,
    EARLY,
    LATER,
    NORMALISED,
    UNNORMALISED,
    above_least,
    claim,
    grown,
    rising,
    seen,
)
from lightning_app.papers.parts import Artefact
from lightning_app.papers.predicates import IntervalAbove, IntervalExcludes, at_least
from lightning_app.papers.results import Results
from lightning_app.papers.verdicts import Claim, Sample
from lightning_app.plots import figures

STEADY = at_least(0.9, note="mean over seeds")  # of the epochs
FALLS = "falls count and not their size: what ends lower than it started can pass, and the number of epochs is ours"
BOUND = "it cannot be negative: noise alone makes it positive"


def mean_lambda(number: int) -> str:
    """Mean |lambda| of a layer; of Eq. 22's one lambda, |lambda|."""
    return f"bn_lambda/{training.layer(number)}/mean_abs"


WITH_SKIP = tuple(map(mean_lambda, training.SKIPPED))
FIRST = mean_lambda(1)


def fig_1d_claims(results: Results) -> list[Claim]:
    """ "This steady increase of |λ_l| ... Note that the first layer, which cannot be skipped, behaves differently than the other
    layers." """
    growth = training.by_setting(NORMALISED, lambda setting: grown(results, setting, *WITH_SKIP))
    later = training.by_setting(NORMALISED, lambda setting: grown(results, setting, *WITH_SKIP, since=EARLY))
    lowest = training.by_setting(NORMALISED, lambda setting: above_least(results, setting, *WITH_SKIP))
    rises = training.by_setting(NORMALISED, lambda setting: rising(results, setting, *WITH_SKIP))
    first = training.by_setting(NORMALISED, lambda setting: grown(results, setting, FIRST))
    apart = {words: first[words] - growth[words] for words in first}
    layers = training.by_setting(NORMALISED, lambda setting: _share_grown(results, setting))
    more = "growth of mean |λ| of the first layer minus that of the layers with a skip"
    without, end = "will increase for layers that do not have skip-connections", "end minus start"
    return [
        claim(f"mean |λ| of the layers with a skip, {end}", "increase", IntervalAbove(), growth),
        claim(f"the same, {LATER}", "increase", IntervalAbove(), later),
        seen("the same, end minus least", BOUND, lowest),
        claim("share of epochs in which it rises", "steady increase", STEADY, rises, power=FALLS),
        seen(
            "share of the layers with a skip whose mean |λ| ends higher", "beside their mean, which is judged", layers
        ),
        claim(more, "behaves differently", IntervalExcludes(), apart),
        claim(f"mean |λ| of the first layer, {end}", without, IntervalAbove(), first),
    ]


def _share_grown(results: Results, setting: training.Setting) -> Sample:
    first, *others = (grown(results, setting, name) for name in WITH_SKIP)
    return first.map(
        lambda *each: float(np.mean(np.greater(each, 0))) if np.isfinite(each).all() else math.nan, *others
    )


def draw_fig_1d(results: Results) -> figures.Figure:
    """Mean |lambda| by layer, one line an epoch, darker the later, as in the paper; medians over seeds."""
    runs = training.runs_of(NORMALISED)
    figure, grid = figures.canvas(len(runs), max(sum(setting.run == run for setting in NORMALISED) for run in runs))
    for axes in grid.flat:
        axes.set_visible(False)
    for row, run in zip(grid, runs):
        for axes, setting in zip(row, (setting for setting in NORMALISED if setting.run == run)):
            axes.set_visible(True)
            layers = range(1, training.BLOCKS + 1)
            draw_layers(axes, [results.curves(run.name, setting.arm, mean_lambda(at)) for at in layers], layers)
            axes.set(title=setting.words.replace(", separation", "\nseparation"), xlabel="layer")
        row[0].set_ylabel("mean |λ|")
    figures.legend(grid[0][-1], beside=True)
    return figure


LINES = 6


def draw_layers(axes: figures.Axes, curves: Sequence[pd.DataFrame], layers: Sequence[int]) -> None:
    """A number by layer at `LINES` epochs from the first to the last, the later the darker. Medians over seeds: one may explode.

    Args:
        curves: of each layer, by epoch (rows) and seed.
    """
    middle = pd.concat([curve.median(axis=1) for curve in curves], axis=1).dropna()
    if middle.empty:
        return
    rows = np.unique(np.linspace(0, len(middle) - 1, LINES).round().astype(int))
    for row, shade in zip(rows, mpl.colormaps["viridis_r"](np.linspace(0.1, 1, len(rows)))):
        axes.plot(list(layers), middle.iloc[row], color=shade, label=f"epoch {middle.index[row]}")


FIG_1D = Artefact(
    "fig-1d",
    "|λ| of BatchNorm grows steadily during training, but for the first layer, which differs",
    fig_1d_claims,
    "Ten blocks of 20 units, 10 Gaussians in 50 dimensions (the caption of the paper's figure has 50 Gaussians), 10,000 "
    "samples, SGD with batches of 50, no momentum and no weight decay; λ starts at 1 and weights at N(0, 1/n), of which the "
    "paper speaks, or both as Torch7 draws them: U(0, 1) and U(-1/√n, 1/√n). Six seeds of weights and batches on one mixture. "
    "Where BatchNorm stands, the Gaussians' separation and the learning rate are not in the paper: each setting is a reading, "
    "and so is Torch7's start. " + DURATION + "The figure shows medians over seeds. "
    "BatchNorm has a λ for each unit, Eq. 22 one for each layer.",
    draw_fig_1d,
    runs=training.runs_of(NORMALISED),
)

NORM = "weight_norm/total"


def fig_1e_claims(results: Results) -> list[Claim]:
    """ "... a steady increase in the L2 norm of the weights, as shown in Fig. 1(e)." """
    growth = training.by_setting(UNNORMALISED, lambda setting: grown(results, setting, NORM))
    later = training.by_setting(UNNORMALISED, lambda setting: grown(results, setting, NORM, since=EARLY))
    rises = training.by_setting(UNNORMALISED, lambda setting: rising(results, setting, NORM))
    return [
        claim("‖w‖, end minus start", "increase", IntervalAbove(), growth),
        claim(f"‖w‖, {LATER}", "increase", IntervalAbove(), later),
        claim("share of epochs in which it rises", "steady increase", STEADY, rises, power=FALLS),
    ]


def draw_fig_1e(results: Results) -> figures.Figure:
    """||w|| by epoch, one panel a setting: mean over seeds, one standard deviation, extremes."""
    figure, grid = figures.canvas(2, len(UNNORMALISED) // 2, sharex=True)
    for axes, setting in zip(grid.flat, UNNORMALISED):
        curves = results.curves(setting.run.name, setting.arm, NORM)
        if not curves.empty:
            figures.band(axes, curves, "residual", "mean over seeds, ± sd, extremes")
        axes.set(title=setting.words, xlabel="epoch", ylabel="‖w‖")
    figures.legend(grid[0][0])
    return figure


FIG_1E = Artefact(
    "fig-1e",
    "without BatchNorm the norm of the weights grows steadily",
    fig_1e_claims,
    "The nets of Fig. 1d without normalisation (Eq. 8): no biases but the readout's, SGD at rate 0.01, no momentum and no weight "
    "decay. ‖w‖ is the 2-norm of all matrices, the readout's too. Initial sizes: N(0, 1/n), the scheme that the paper names, "
    "half of it, and √2 of it, as Kaiming's scheme has it. " + DURATION,
    draw_fig_1e,
    runs=training.runs_of(UNNORMALISED),
)
