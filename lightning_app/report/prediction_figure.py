"""The strongest measures with their intervals, and the strongest of each way against the gap."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from lightning_app.plots.drawing import dots
from lightning_app.plots.style import INK, Style
from lightning_app.report.blocks import Figure, Panel, csv_text
from lightning_app.report.final_measures import FinalMeasures
from lightning_app.report.panels import legend, panel
from lightning_app.report.prediction_taus import WAYS, Prediction

__all__ = ["figure"]

SHOWN = 8  # measures in one panel of intervals
LOOKS = {"all": Style(INK, "-", "o"), "within": Style(INK, "-", "X"), "across": Style(INK, "-", "^")}
GAP = "gap: test − train error"
DIGITS = 6  # of what is counted in pairs
CAPTION = (
    "Left: τ and its 95 % interval of the strongest measures over all nets; without an interval where there are too few "
    "pairs. The others: the strongest measure over all nets and the strongest within architectures against the gap, one "
    "point a net. The data hold every measure, single layers too, with both gaps."
)


def figure(prediction: Prediction) -> Figure:
    measures = prediction.measures
    ways = {way: LOOKS[way] for way in prediction.ways}
    architectures = {net.group: net.style for net in measures.nets}
    shown = dict.fromkeys(prediction.strongest(way)[0] for way in ("all", "within") if way in ways)
    panels = [_intervals(prediction, ways), *(_scatter(i, measures, name) for i, name in enumerate(shown))]
    marks = legend((f"τ, {WAYS[way]}", look) for way, look in ways.items())
    return Figure(
        "prediction",
        CAPTION,
        panels,
        marks + legend(architectures.items()),
        _all_rows(prediction),
        more={"nets": _nets(measures, [*shown])},
    )


def _intervals(prediction: Prediction, ways: dict[str, Style]) -> Panel:
    names = prediction.strongest()[:SHOWN]
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

    return panel(f"prediction-scatter-{number}", name, draw, x=name, y=GAP)


# -- data -----------------------------------------------------------------------------------------------------------------


def _all_rows(prediction: Prediction) -> str:
    """A row a measure; tau, low, high, p, q, nets and pairs of every gap and way."""
    columns = {
        f"{kind} gap {way} {field}": table[field].round(DIGITS)
        for (kind, way), table in prediction.taus.items()
        for field in table
    }
    return csv_text(("measure", *columns), zip(prediction.measures.values.index, *columns.values(), strict=True))


def _nets(measures: FinalMeasures, shown: Sequence[str]) -> str:
    columns = [*measures.gaps.values(), *measures.values.loc[[*shown]].to_numpy()]
    rows = [(net.label, net.group, *numbers) for net, *numbers in zip(measures.nets, *columns, strict=True)]
    return csv_text(("net", "architecture", *(f"{kind} gap" for kind in measures.gaps), *shown), rows)
