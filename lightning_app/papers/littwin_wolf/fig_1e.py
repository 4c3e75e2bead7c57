"""Figure 1e: the norm of the weights of residual nets without normalisation during training."""

from matplotlib.figure import Figure

from lightning_app.papers.artefact import Artefact
from lightning_app.papers.littwin_wolf.fig_1d import ONE_FALL, STEADY
from lightning_app.papers.littwin_wolf.training import DURATION, UNNORMALISED, claim, grown, rising, runs_of
from lightning_app.papers.predicates import IntervalAbove
from lightning_app.papers.results import Results
from lightning_app.papers.verdicts import Claim, Class
from lightning_app.plots import figures

__all__ = ["FIG_1E"]

NORM = "weight_norm/total"


def fig_1e_claims(results: Results) -> list[Claim]:
    """ "... a steady increase in the L2 norm of the weights, as shown in Fig. 1(e)." """
    return [
        claim(
            "‖w‖, end minus start",
            "increase",
            IntervalAbove(),
            UNNORMALISED,
            lambda setting: grown(results, setting, NORM),
        ),
        claim(
            "share of epochs in which it rises",
            "steady increase",
            STEADY,
            UNNORMALISED,
            lambda setting: rising(results, setting, NORM),
            power=ONE_FALL,
        ),
    ]


def draw_fig_1e(results: Results) -> Figure:
    """||w|| by epoch, one panel a setting: mean over seeds, one standard deviation, extremes."""
    figure, grid = figures.canvas(2, 2, sharex=True)
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
    runs_of(UNNORMALISED),
    fig_1e_claims,
    "The nets of Fig. 1d without normalisation (Eq. 8): no biases but the readout's, SGD at rate 0.01, no momentum and no weight "
    "decay. ‖w‖ is the 2-norm of all matrices, the readout's too. Initial sizes: N(0, 1/n), the scheme that the paper names, "
    "and half of it. " + DURATION,
    draw_fig_1e,
    about=Class.TRAINED,
)
