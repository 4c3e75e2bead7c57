"""Figure 1d: the factors lambda of normalisation during training, layer by layer."""

from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lightning_app.papers.artefact import Artefact
from lightning_app.papers.littwin_wolf.training import (
    BLOCKS,
    DURATION,
    EPOCHS,
    NORMALISED,
    SKIPPED,
    Setting,
    claim,
    grown,
    layer,
    rising,
    runs_of,
)
from lightning_app.papers.predicates import IntervalAbove, IntervalExcludes, at_least
from lightning_app.papers.results import Results
from lightning_app.papers.verdicts import Claim, Class, Sample
from lightning_app.plots import figures

__all__ = ["FIG_1D"]

STEADY = at_least(0.9, note="mean over seeds")  # of the epochs
ONE_FALL = (
    f"of {EPOCHS} epochs one fall a seed passes and two do not, however large: what ends lower than it started can pass, and "
    "the number of epochs, which is ours, decides"
)
SETTINGS = tuple(
    setting for setting in NORMALISED if setting.run.name != "overlapping"
)  # ten minutes for Figs. 1a to 1f


def mean_lambda(number: int) -> str:
    """Mean |lambda| of a layer; of Eq. 22's one lambda, |lambda|."""
    return f"bn_lambda/{layer(number)}/mean_abs"


WITH_SKIP = tuple(map(mean_lambda, SKIPPED))
FIRST = mean_lambda(1)


def fig_1d_claims(results: Results) -> list[Claim]:
    """ "This steady increase of |λ_l| ... Note that the first layer, which cannot be skipped, behaves differently than the other
    layers." """

    def apart(setting: Setting) -> Sample:
        others = grown(results, setting, *WITH_SKIP)
        return grown(results, setting, FIRST).map(lambda first, other: first - other, others)

    return [
        claim(
            "mean |λ| of the layers with a skip, end minus start",
            "increase",
            IntervalAbove(),
            SETTINGS,
            lambda setting: grown(results, setting, *WITH_SKIP),
        ),
        claim(
            "share of epochs in which it rises",
            "steady increase",
            STEADY,
            SETTINGS,
            lambda setting: rising(results, setting, *WITH_SKIP),
            power=ONE_FALL,
        ),
        claim(
            "growth of mean |λ| of the first layer minus that of the layers with a skip",
            "behaves differently",
            IntervalExcludes(),
            SETTINGS,
            apart,
        ),
        claim(
            "mean |λ| of the first layer, end minus start",
            "will increase for layers that do not have skip-connections",
            IntervalAbove(),
            SETTINGS,
            lambda setting: grown(results, setting, FIRST),
        ),
    ]


def draw_fig_1d(results: Results) -> Figure:
    """Mean |lambda| by layer, one line an epoch, darker the later, as in the paper; medians over seeds."""
    columns = max(sum(setting.run == run for setting in SETTINGS) for run in runs_of(SETTINGS))
    figure, grid = figures.canvas(len(runs_of(SETTINGS)), columns)
    for axes in grid.flat:
        axes.set_visible(False)
    for row, run in zip(grid, runs_of(SETTINGS)):
        for axes, setting in zip(row, (setting for setting in SETTINGS if setting.run == run)):
            axes.set_visible(True)
            lambdas = [results.curves(run.name, setting.arm, mean_lambda(number)) for number in range(1, BLOCKS + 1)]
            draw_layers(axes, lambdas, range(1, BLOCKS + 1))
            axes.set(title=setting.words, xlabel="layer")
        row[0].set_ylabel("mean |λ|")
    figures.legend(grid[0][-1], beside=True)
    return figure


LINES = 6


def draw_layers(axes: Axes, curves: Sequence[pd.DataFrame], layers: Sequence[int]) -> None:
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
    runs_of(SETTINGS),
    fig_1d_claims,
    "Ten blocks of 20 units, 10 Gaussians in 50 dimensions (the caption of the paper's figure has 50 Gaussians), 10,000 "
    "samples, SGD with batches of 50, no momentum and no weight decay; weights start N(0, 1/n), λ at 1. Six seeds of weights "
    "and batches on one mixture. Where BatchNorm stands, the Gaussians' separation and the learning rate are not in the paper: "
    "each setting is a reading, but for separation 0.5 at rate 0.1, which the ensemble has and this figure left out to be made "
    "in time. A start of λ at U(0, 1), as Torch7 has it, was not tried. "
    + DURATION
    + "The figure shows medians over seeds. "
    "BatchNorm has a λ for each unit, Eq. 22 one for each layer.",
    draw_fig_1d,
    about=Class.TRAINED,
)
