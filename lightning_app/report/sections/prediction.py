"""Which measure predicts generalisation? Rank correlation of every final measure with the gap between test and training.

The question behind all three papers: cushions, norms, curvature and path lengths are offered as reasons why one net
generalises better than another. Over all nets, a measure that merely tells architectures apart looks as good as one that
predicts; so pairs within architectures, and means of architectures, are counted apart.
"""

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from lightning_app.plots.drawing import dots
from lightning_app.plots.style import INK, Style
from lightning_app.report.blocks import Cell, Figure, Panel, Section, Table, csv_text
from lightning_app.report.figures import joined
from lightning_app.report.gap_correlation import LEVEL, WAYS, FinalMeasures, Prediction, final_measures, predict
from lightning_app.report.page_data import PageData
from lightning_app.report.panels import legend, panel
from lightning_app.report.sections.headline import GAP
from lightning_app.statistics.rank_correlation import ENOUGH_PAIRS

DRAWN = 8  # measures in the panel of intervals
LOOKS = {"all": Style(INK, "-", "o"), "within": Style(INK, "-", "X"), "across": Style(INK, "-", "^")}
DIGITS = 6  # of what is counted in pairs
LEAST = 5  # nets, or architectures: of fewer, no tau has an interval
SHOWN, SHOWN_LAYERS = 20, 10  # rows of the tables
TITLE, SHORT = "Which measure predicts generalisation?", "Prediction"
WHAT = (
    "Kendall’s τ says how far a measure after each net’s last epoch orders the nets as their generalisation gap does. The gap "
    "is the error on test data (on validation data where no net has a test error) minus the training error of the same "
    "epoch. τ is 1 if of any two nets the one with the larger measure has the larger gap, −1 if it always has the "
    "smaller gap, and near 0 if the measure tells nothing about the gap. An architecture is a group of nets on this page "
    "that differ only in the seed. τ is given over all nets; within architectures, where only seeds of one architecture "
    "are compared, so that effects of the architecture itself do not count; and across architectures, with one point for "
    "each: its means over seeds."
)
CAPTION = (
    "Sorted by |τ| over all nets. Beside τ: 95 % score interval, which assumes independent nets and roughly normal "
    f"values; there is none with fewer than {ENOUGH_PAIRS} pairs. q: expected share of false findings if this measure and "
    f"all with a smaller q are called findings (Benjamini and Hochberg, over all {{count}} measures, including those of "
    "single layers). n: nets that have the measure. τ, risk gap: over all nets, with the gap in risk instead of error. "
    "layer*, block*: median over layers or blocks."
)
LAYERS = "For each measure of single layers, the layer with the strongest τ over all nets. q is over all measures and layers."
FIGURE = (
    "Left: τ and its 95 % interval, for the strongest measures over all nets; no interval where pairs are too few. Other "
    "panels: the strongest measure over all nets, and the strongest within architectures, against the gap; each point is "
    "a net. The data have every measure, including those of single layers, with both gaps."
)
FINDINGS = f"Measures that go with the gap at q ≤ {LEVEL}, of {{}} (single layers included): {{}}."
CHANCE = (
    f"By chance alone, with the gap shuffled among the nets, the strongest measure exceeds |τ| = {{}} in "
    f"{100 * LEVEL:.0f} % of the shuffles."
)
FEW = (
    f"Expected at least {LEAST} nets with test (or validation) and training error of their last epoch, got {{}}: too few to "
    "say which measure goes with the gap. Report on several runs, or train more seeds (model.seeds)."
)
NO_MEASURE = (
    "No measure other than risks and errors differs between nets and was taken of at least half of them at their last "
    "epoch: there is nothing to compare the gap with."
)
ONE_GAP = "All nets have the same gap, so no measure can go with it."
NO_SEEDS = "No architecture has two nets, so there is no τ within architectures."
CLUSTERS = (
    "Over all nets, q and intervals count the seeds of an architecture as independent nets. They are not where "
    "architectures differ: {} nets of {} architectures tell little more than {} numbers. A finding over all nets that is "
    "none within or across architectures may only tell architectures apart."
)
NOT_EQUALLY_FAR = (
    "The nets are not equally far: their gaps are of epoch {}. Gap and measures change as a net trains, so what goes with the "
    "gap here may only tell how long nets were trained."
)
NO_ARCHITECTURES = "With nets of {} there is no τ across architectures."
FEW_ARCHITECTURES = "With {} architectures τ across them has no interval."


def section(page: PageData) -> Section:
    """The strongest measures, with their intervals; a notice where nets or measures are too few."""
    measures = final_measures(page)
    if missing := _missing(measures):
        return Section("prediction", TITLE, notices=[missing, *measures.left_out], short=SHORT, folded=True)
    prediction = predict(measures)
    notices = [*_findings(prediction), *_limits(measures), *measures.left_out]
    return Section("prediction", TITLE, WHAT, _blocks(prediction), notices, short=SHORT)


def _missing(measures: FinalMeasures) -> str:
    if len(measures.nets) < LEAST:
        return FEW.format(len(measures.nets))
    if not len(measures.values):
        return NO_MEASURE
    return ONE_GAP if len(set(measures.gaps["error"])) == 1 else ""


def _findings(prediction: Prediction) -> list[str]:
    over = {"all": "over all nets", "within": WAYS["within"], "across": WAYS["across"]}
    counted = [f"{prediction.findings(way) or 'none'} {over[way]}" for way in prediction.ways]
    limits = [f"{prediction.limit(way):.2f} ({WAYS[way]})" for way in prediction.ways if way != "across"]
    count = len(prediction.measures.values)
    return [FINDINGS.format(count, ", ".join(counted)), CHANCE.format(" and ".join(limits))]


def _limits(measures: FinalMeasures) -> list[str]:
    """What these nets cannot tell."""
    sizes = Counter(measures.groups)
    notices = [NO_SEEDS] if max(sizes.values()) < 2 else []
    if 1 < len(sizes) < sum(sizes.values()):
        notices.append(CLUSTERS.format(sum(sizes.values()), len(sizes), len(sizes)))
    if len({*measures.epochs}) > 1:
        notices.append(NOT_EQUALLY_FAR.format(joined(measures.epochs)))
    if len(sizes) < 3:
        notices.append(NO_ARCHITECTURES.format("one architecture" if len(sizes) == 1 else "two architectures"))
    return [*notices, FEW_ARCHITECTURES.format(len(sizes))] if 3 <= len(sizes) < LEAST else notices


def _blocks(prediction: Prediction) -> list[Figure | Table]:
    """The figure between the tables, which are too wide to stand side by side."""
    caption = CAPTION.format(count=len(prediction.measures.values))
    layers = prediction.strongest_layers()[:SHOWN_LAYERS]
    whole = _table(prediction, prediction.strongest()[:SHOWN], caption, "Measures of whole nets")
    of_layers = [_table(prediction, layers, LAYERS, "Measures of single layers")] if layers else []
    return [whole, _figure(prediction), *of_layers]


def _table(prediction: Prediction, names: Sequence[str], caption: str, title: str) -> Table:
    ways = [text for way in prediction.ways for text in (f"τ, {WAYS[way]}", f"q, {way}")]
    rows = []
    for name in names:
        known = int(prediction.taus["error", "all"].loc[name, "nets"])
        cells = [cell for way in prediction.ways for cell in _cells(prediction, "error", way, name)]
        rows.append([Cell(name), Cell(str(known)), *cells, _cells(prediction, "risk", "all", name)[0]])
    return Table(caption, ["measure", "n", *ways, "τ, risk gap"], rows, title)


def _cells(prediction: Prediction, kind: str, way: str, name: str) -> list[Cell]:
    """τ with its interval, and q; dashes where there are none."""
    if (kind, way) not in prediction.taus:
        return [Cell("–")] * 2
    tau, low, high, q = (float(prediction.taus[kind, way].loc[name, field]) for field in ("tau", "low", "high", "q"))
    interval = "" if math.isnan(low) else f"[{low:.2f}, {high:.2f}]"
    return [
        Cell("–") if math.isnan(tau) else Cell(f"{tau:.2f}", repr(tau), interval),
        Cell("–") if math.isnan(q) else Cell(f"{q:.2g}" if q < 0.1 else f"{q:.2f}", repr(q)),
    ]


def _figure(prediction: Prediction) -> Figure:
    measures = prediction.measures
    ways = {way: LOOKS[way] for way in prediction.ways}
    shown = dict.fromkeys(name for way in ("all", "within") if way in ways for name in prediction.strongest(way)[:1])
    drawn = np.isfinite(measures.values.loc[[*shown]]).any(axis=0)
    architectures = {net.group: net for net, has in zip(measures.nets, drawn, strict=True) if has}
    panels = [_intervals(prediction, ways), *(_scatter(i, measures, name) for i, name in enumerate(shown))]
    marks = legend((f"τ, {WAYS[way]}", look) for way, look in ways.items())
    marks += legend((group, net.style) for group, net in architectures.items())
    # A row a measure; tau, low, high, p, q, nets and pairs of every gap and way.
    columns = {
        f"{kind} gap {way} {field}": _rounded(table[field])
        for (kind, way), table in prediction.taus.items()
        for field in table
    }
    data = csv_text(("measure", *columns), zip(measures.values.index, *columns.values(), strict=True))
    numbers = zip(*measures.gaps.values(), *measures.values.loc[[*shown]].to_numpy(), strict=True)
    rows = [(net.label, net.group, *of_net) for net, of_net in zip(measures.nets, numbers, strict=True)]
    nets = csv_text(("net", "architecture", *(f"{kind} gap" for kind in measures.gaps), *shown), rows)
    return Figure("prediction-figure", FIGURE, panels, marks, data, more={"nets": nets})


def _rounded(column: pd.Series) -> pd.Series:
    """To so many digits behind the point; chances, which may be tiny and are never 0, to so many significant ones."""
    if column.name in ("p", "q"):
        return column.map(lambda chance: float(f"{chance:.{DIGITS}g}"))
    return column.round(DIGITS)


def _intervals(prediction: Prediction, ways: dict[str, Style]) -> Panel:
    names = prediction.strongest()[:DRAWN]
    shift = 0.5 / len(ways)  # ways one below the other

    def draw(axes: Axes) -> None:
        axes.axvline(0, color=INK, linewidth=0.9)
        for number, (way, look) in enumerate(ways.items()):
            rows = prediction.taus["error", way].loc[names]
            places = np.arange(len(names)) + shift * (number - (len(ways) - 1) / 2)
            axes.hlines(places, rows["low"], rows["high"], color=look.colour, linewidth=1.1)
            dots(axes, rows["tau"].to_numpy(), places, look)
        axes.set_yticks(range(len(names)), names, fontsize=7)
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.set_xlim(-1.05, 1.05)

    return panel("prediction-intervals", "The strongest measures", draw, x="Kendall’s τ with the gap", y="")


def _scatter(number: int, measures: FinalMeasures, name: str) -> Panel:
    values, groups = measures.values.loc[name].to_numpy(), np.array(measures.groups)

    def draw(axes: Axes) -> None:
        for net in {net.group: net for net in measures.nets}.values():
            own = (groups == net.group) & np.isfinite(values)
            dots(axes, values[own], measures.gaps["error"][own], net.style)

    return panel(f"prediction-scatter-{number}", name, draw, x=name, y=GAP.format(unseen=measures.unseen))
