"""Figure 9: pre-activation nets on CIFAR-10 with shortcuts of different depths, at a fixed number of parameters."""

import math

from lightning_app.papers.li_et_al.nets import SHORTCUT_1, SHORTCUT_2, SHORTCUT_3, XAVIER, style
from lightning_app.papers.parts import Artefact, Run
from lightning_app.papers.predicates import above, below, tested
from lightning_app.papers.results import Results
from lightning_app.papers.verdicts import Claim
from lightning_app.plots import figures

DEPTHS = (20, 38, 56, 110)
RUNS = {depth: Run(f"fig9_{depth}", seeds=3) for depth in DEPTHS}
TWO, *OTHERS = ARMS = {  # arm -> the net whose colour it has in the other figures
    "shortcut2": SHORTCUT_2.name,
    "shortcut1": SHORTCUT_1.name,
    "shortcut3": SHORTCUT_3.name,
    "plain": XAVIER.name,
}
DEEP, DEEPEST = DEPTHS[-2:]


def fig_9_claims(results: Results) -> list[Claim]:
    """ "Only ResNets with shortcut [depth 2] gain advantages from the growth of depth, where other networks suffer from
    degradation as the network becomes deeper." """
    deep, deepest = ({arm: results.final(RUNS[L].name, arm, "test/error") for arm in ARMS} for L in (DEEP, DEEPEST))
    gains, suffers, worse = below(0, note="mean over seeds"), above(0, note="mean over seeds"), above(0, each=True)
    growth, apart = f"test error at depth {DEEPEST} minus depth {DEEP}", f"test error at depth {DEEPEST}"
    rows = [(f"{growth}, {TWO}", "gains from depth", gains, deepest[TWO] - deep[TWO])]
    rows += [(f"{growth}, {arm}", "suffers from degradation", suffers, deepest[arm] - deep[arm]) for arm in OTHERS]
    rows += [(f"{apart}, {a} minus {TWO}", f"only {TWO} gains", worse, deepest[a] - deepest[TWO]) for a in OTHERS]
    return [tested(*row, ratio=True) for row in rows]


def draw_fig_9(results: Results) -> figures.Figure:
    """Final test error, and training risk, by depth: means over seeds with standard deviations."""
    figure, (grid,) = figures.canvas(1, 2)
    for axes, (name, title) in zip(grid, (("test/error", "test error"), ("train/risk", "training risk (nats)"))):
        for arm, net in ARMS.items():
            found = {depth: results.final(RUNS[depth].name, arm, name) for depth in DEPTHS}
            there = {depth: sample for depth, sample in found.items() if sample.count}
            sds = [0 if math.isnan(sample.sd) else sample.sd for sample in there.values()]
            look, points = style(net), ([*there], [sample.mean for sample in there.values()], sds)
            axes.errorbar(*points, color=look.colour, linestyle=look.dash, marker=look.marker, ms=4, label=arm)
        axes.set(title=title, xlabel="depth", xticks=DEPTHS)
    figures.legend(grid[0])
    return figure


FIG_9 = Artefact(
    "fig-9",
    "very deep on CIFAR-10 only shortcuts of depth 2 gain from depth",
    fig_9_claims,
    "Pre-activation nets of fb.resnet.torch with a shortcut around every 1, 2 or 3 convolutions, or none, of equally many "
    "parameters; its recipe, 164 epochs, final epoch. Depths are those at which 1, 2 and 3 divide the convolutions of a group: "
    "the paper's own are lost. Three seeds.",
    draw_fig_9,
    runs=tuple(RUNS.values()),
)
