"""Figure 9: pre-activation nets on CIFAR-10 with shortcuts of different depths, at a fixed number of parameters."""

import math

import numpy as np
from matplotlib.figure import Figure

from lightning_app.papers.artefact import Artefact
from lightning_app.papers.li_et_al.nets import SHORTCUT_1, SHORTCUT_2, SHORTCUT_3, XAVIER, style
from lightning_app.papers.parts import Run
from lightning_app.papers.predicates import above, below, tested
from lightning_app.papers.results import Results
from lightning_app.papers.verdicts import Claim, Class, Sample
from lightning_app.plots import figures

__all__ = ["FIG_9"]

DEPTHS = (20, 38, 56, 110)
RUNS = {depth: Run(f"fig9_{depth}", seeds=3) for depth in DEPTHS}
ARMS = {  # arm -> the net whose colour it has in the other figures
    "shortcut2": SHORTCUT_2.name,
    "shortcut1": SHORTCUT_1.name,
    "shortcut3": SHORTCUT_3.name,
    "plain": XAVIER.name,
}
DEEP, DEEPEST = DEPTHS[-2:]
MEAN = "mean over seeds"


def fig_9_claims(results: Results) -> list[Claim]:
    """ "Only ResNets with shortcut [depth 2] gain advantages from the growth of depth, where other networks suffer from
    degradation as the network becomes deeper." """
    others = [arm for arm in ARMS if arm != "shortcut2"]
    return [
        _gains(results, "shortcut2"),
        *(_degrades(results, arm) for arm in others),
        *(_worse(results, arm) for arm in others),
    ]


def _error(results: Results, arm: str, depth: int) -> Sample:
    return results.final(RUNS[depth].name, arm, "test/error")


def _growth(results: Results, arm: str) -> Sample:
    return _error(results, arm, DEEPEST).map(lambda deepest, deep: deepest - deep, _error(results, arm, DEEP))


def _quantity(arm: str) -> str:
    return f"test error at depth {DEEPEST} minus depth {DEEP}, {arm}"


def _gains(results: Results, arm: str) -> Claim:
    return tested(_quantity(arm), "gains from depth", below(0, note=MEAN), _growth(results, arm), ratio=True)


def _degrades(results: Results, arm: str) -> Claim:
    return tested(_quantity(arm), "suffers from degradation", above(0, note=MEAN), _growth(results, arm), ratio=True)


def _worse(results: Results, arm: str) -> Claim:
    best = _error(results, "shortcut2", DEEPEST)
    ours = _error(results, arm, DEEPEST).map(lambda other, two: other - two, best)
    quantity = f"test error at depth {DEEPEST}, {arm} minus shortcut2"
    return tested(quantity, "only shortcut2 gains", above(0, each=True), ours, ratio=True)


def draw_fig_9(results: Results) -> Figure:
    """Final test error, and training risk, by depth: means over seeds with standard deviations."""
    figure, (grid,) = figures.canvas(1, 2)
    for axes, (name, title) in zip(grid, (("test/error", "test error"), ("train/risk", "training risk (nats)"))):
        for arm, net in ARMS.items():
            found = {depth: results.final(RUNS[depth].name, arm, name) for depth in DEPTHS}
            shown = {depth: sample for depth, sample in found.items() if sample.count}
            sds = [0 if math.isnan(sample.sd) else sample.sd for sample in shown.values()]
            look, means = style(net), np.array([sample.mean for sample in shown.values()])
            axes.errorbar(
                *(list(shown), means, sds), color=look.colour, linestyle=look.dash, marker=look.marker, ms=4, label=arm
            )
        axes.set(title=title, xlabel="depth", xticks=DEPTHS)
    figures.legend(grid[0])
    return figure


FIG_9 = Artefact(
    "fig-9",
    "very deep on CIFAR-10 only shortcuts of depth 2 gain from depth",
    tuple(RUNS.values()),
    fig_9_claims,
    "Pre-activation nets of fb.resnet.torch with a shortcut around every 1, 2 or 3 convolutions, or none, of equally many "
    "parameters; its recipe, 164 epochs, final epoch. Depths are those at which 1, 2 and 3 divide the convolutions of a group: "
    "the paper's own are lost. Three seeds.",
    draw_fig_9,
    about=Class.TRAINED,
)
