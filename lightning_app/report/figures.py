"""Figures that many sections have: curves over epochs, and histograms of the first net of each group."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from lightning_app.plots.drawing import SEEDS_FOR_A_BAND, histogram, over_seeds
from lightning_app.report.blocks import Entry, Figure, csv_text, seeds_csv
from lightning_app.report.page_data import Net, PageData
from lightning_app.report.panels import legend, panel

__all__ = [
    "FIRST",
    "FIRST_SEED",
    "LAST",
    "Curve",
    "Histogram",
    "View",
    "curves",
    "figure_of_curves",
    "figure_of_histograms",
    "group_legend",
    "joined",
    "saved_histograms",
]

FIRST, LAST = 0, -1  # of the epochs that have arrays
FIRST_SEED = "Of several seeds the first is shown."


def joined(values: Iterable[int] | Iterable[str]) -> str:
    """Each value once, in order: "0 and 8"."""
    return " and ".join(map(str, sorted({*values})))


def group_legend(page: PageData, first: bool = False) -> list[Entry]:
    """Swatch and label of each group; one of several seeds says how they are drawn, or which seed is ``first``."""
    return legend((_group_label(label, nets, first), nets[0].style) for label, nets in page.groups.items())


def _group_label(label: str, nets: Sequence[Net], first: bool) -> str:
    if len(nets) == 1 or first:
        return label if len(nets) == 1 else nets[0].label
    band = ", band: ± sd" if len(nets) >= SEEDS_FOR_A_BAND else ""
    return f"{label} (bold: mean of {len(nets)} seeds{band}, thin: minimum and maximum)"


# -- curves ---------------------------------------------------------------------------------------------------------------


def curves(
    axes: Axes, groups: Iterable[Sequence[Net]], series: Callable[[Net], pd.Series], every: bool = False
) -> None:
    """The curve of each group of nets, over its seeds. ``every``: a marker at every point."""
    for nets in groups:
        over_seeds(axes, [series(net) for net in nets], nets[0].style, every)


class Curve(NamedTuple):
    """One panel of a figure of curves: a number of each net by epoch."""

    key: str  # of the panel
    name: str  # in the log
    title: str
    y: str  # label of the axis, with the unit
    log_y: bool = False
    adjust: Callable[[Axes], None] | None = None  # what else is drawn, and where the axis ends


def figure_of_curves(
    page: PageData, key: str, caption: str, shown: Sequence[Curve], columns: int = 3, spreads: bool = True
) -> Figure:
    """A panel for each curve, and the data behind them: of every net, with ``spreads`` also over seeds."""

    def draw(axes: Axes, curve: Curve) -> None:
        curves(axes, page.groups.values(), lambda net: net.series(curve.name))
        if curve.adjust:
            curve.adjust(axes)

    panels = [
        panel(each.key, each.title, partial(draw, curve=each), x="epoch", y=each.y, log_y=each.log_y, whole_x=True)
        for each in shown
    ]
    names = [each.name for each in shown]
    data = csv_text(("net", "name", "epoch", "value"), page.rows(names))
    more = seeds_csv(page.spreads(names)) if spreads else {}
    return Figure(key, caption, panels, group_legend(page), data, columns=columns, more=more)


# -- histograms -----------------------------------------------------------------------------------------------------------


class Histogram(NamedTuple):
    """Of one net at one epoch."""

    counts: np.ndarray  # (n,)
    edges: np.ndarray  # (n + 1,)
    epoch: int


class View(NamedTuple):
    """One panel of histograms."""

    key: str
    title: str
    facts: tuple[str, ...]  # what its data say of it, beside net and epoch
    of: dict[Net, Histogram]


Read = Callable[
    [Mapping[str, np.ndarray]], tuple[np.ndarray, np.ndarray] | None
]  # arrays -> counts and edges, if there


def saved_histograms(page: PageData, family: str, when: int, read: Read) -> dict[Net, Histogram]:
    """Of the first net of each group at the ``FIRST`` or ``LAST`` epoch with arrays; not the same epoch as both."""
    found = {}
    for net in page.firsts():
        epochs = net.run.array_epochs(family)
        if len(epochs) > (when == LAST) and (bins := read(net.arrays(family, epochs[when]))):
            found[net] = Histogram(*bins, epochs[when])
    return found


def figure_of_histograms(
    page: PageData,
    key: str,
    caption: str,
    views: Sequence[View],
    columns: Sequence[str],
    *,
    x: str,
    y: str,
    adjust: Callable[[Axes, View], None],
    floor: Callable[[View], float] = lambda view: 0.0,
    log_x: Callable[[View], bool] = lambda view: False,
    log_y: bool = False,
    wide: int = 3,
) -> Figure:
    """A panel for each view: outlines of all its nets.

    Args:
        caption: it also says that the first of several seeds is shown, where that is so.
        columns: heads of the views' facts in the data, and of the counts.
        x, y: axis labels.
        adjust: what else is drawn into the axes of a view, and where they end.
        floor: where the outlines start, above 0 for a logarithmic axis.
        wide: panels side by side, at most.
    """

    def draw(axes: Axes, view: View) -> None:
        for net, each in view.of.items():
            histogram(axes, each.counts, each.edges, net.style, floor(view))
        adjust(axes, view)

    panels = [
        panel(view.key, view.title, partial(draw, view=view), x=x, y=y, log_x=log_x(view), log_y=log_y)
        for view in views
    ]
    rows = [
        (net.label, *view.facts, epoch, left, right, count)
        for view in views
        for net, (counts, edges, epoch) in view.of.items()
        for left, right, count in zip(edges[:-1], edges[1:], counts, strict=True)
        if count
    ]
    *facts, count = columns
    data = csv_text(("net", *facts, "epoch", "bin_from", "bin_to", count), rows)
    caption += f" {FIRST_SEED}" * (len(page.firsts()) < len(page.nets))
    return Figure(key, caption, panels, group_legend(page, first=True), data, columns=wide)
