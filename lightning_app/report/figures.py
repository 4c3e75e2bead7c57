"""Figures that many sections have: curves over epochs, and histograms of the first net of each group."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from lightning_app.common.numbers import epoch_text, whole
from lightning_app.plots.drawing import histogram, over_seeds
from lightning_app.report.blocks import Entry, Figure, Panel, Rows, csv_text, seeds_csv
from lightning_app.report.page_data import PageData, PageNet
from lightning_app.report.panels import how_seeds_are_drawn, legend, panel

FIRST_SEED = (
    "Of several seeds the first that has arrays is shown. With the page’s script it is the seed whose button you point "
    "at, or else the first that is switched on; if there are more than six nets, the other seeds have only the first and "
    "the last epoch."
)
NO_CURVES = Rows({"epoch": []}, who="")  # a histogram: the page's script needs its axes alone
Draw = Callable[[Axes], None]


def joined(values: Iterable[float] | Iterable[str]) -> str:
    """Each value once, in order, as `epoch_text`.

    >>> joined([8, 0, 8]), joined([0.123456, 2.0]), joined([44, 20, 32])
    ('0 and 8', '0.1235 and 2', '20, 32 and 44')
    """
    texts = [epoch_text(each) if isinstance(each, float) else str(each) for each in sorted({*values})]
    return " and ".join(filter(None, (", ".join(texts[:-1]), *texts[-1:])))


def of_each(epochs: Iterable[float]) -> str:
    """After which epochs the nets of a caption were measured last, where these are several.

    >>> of_each([8, 8]), of_each([12, 2, 12])
    ('', ' of each net (2 and 12)')
    """
    several = {*epochs}
    return f" of each net ({joined(several)})" * (len(several) > 1)


def group_legend(page: PageData, shown: Collection[PageNet] = ()) -> list[Entry]:
    """Swatch and label of each group; of several seeds their number and, last, how they are drawn, or which one is ``shown``."""

    def label(group: str, nets: Sequence[PageNet]) -> str:
        one = next((net.label for net in nets if net in shown), f"{group} ({len(nets)} seeds)")
        return group if len(nets) == 1 else one

    looks = legend((label(group, nets), nets[0].style) for group, nets in page.groups.items())
    return looks if shown else looks + how_seeds_are_drawn([*map(len, page.groups.values())])


def over_groups(axes: Axes, page: PageData, line: Callable[[PageNet], pd.Series], every: bool = False) -> None:
    """`over_seeds` of each group of nets."""
    for nets in page.groups.values():
        over_seeds(axes, [line(net) for net in nets], nets[0].style, every)


def curve_panel(
    page: PageData,
    key: str,
    title: str,
    line: Callable[[PageNet], pd.Series],
    *,
    y: str,
    x: str = "epoch",
    before: Draw | None = None,
    after: Draw | None = None,
    every: bool = False,
    rows: Rows | None = None,
    **scales: bool,
) -> Panel:
    """The curve of each group of nets, over its seeds.

    Args:
        before, after: what else is drawn, and where the axes end.
        every: a marker at every point.
        rows: of the figure's data, what is drawn.
        scales: arguments of `panel`; steps of x are whole unless these say otherwise.
    """

    def draw(axes: Axes) -> None:
        if before:
            before(axes)
        over_groups(axes, page, line, every)
        if after:
            after(axes)

    return panel(key, title, draw, x=x, y=y, rows=rows, **{"whole_x": True, **scales})


class Curve(NamedTuple):
    """One panel of a figure of curves: a number of each net by epoch."""

    key: str  # of the panel
    name: str  # in the log
    title: str
    y: str  # label of the axis, with the unit
    log_y: bool = False
    adjust: Draw | None = None  # what else is drawn, and where the axis ends


def figure_of_curves(
    page: PageData, key: str, caption: str, curves: Iterable[Curve], columns: int = 3, spreads: bool = True
) -> list[Figure]:
    """A panel for each curve that was measured, and the data behind them: of every net, with ``spreads`` also over seeds."""
    measured = [each for each in curves if page.having(each.name).nets]
    panels = [panel_of(page, curve) for curve in measured]
    names = [each.name for each in measured]
    data = csv_text(("net", "name", "epoch", "value"), page.rows(names))
    more = seeds_csv(page.spreads(names)) if spreads else {}
    return [Figure(key, caption, panels, group_legend(page), data, columns=columns, more=more)] if panels else []


def panel_of(page: PageData, curve: Curve) -> Panel:
    """One panel of a figure whose data have a column of names."""
    key, name, title, y, log_y, adjust = curve
    line, rows = partial(PageNet.series, name=name), Rows({"name": [name]})
    return curve_panel(page, key, title, line, y=y, after=adjust, rows=rows, log_y=log_y)


class Frame(NamedTuple):
    """What a panel shows of one net at one epoch: a curve, or a histogram."""

    net: PageNet
    epoch: float
    x: np.ndarray  # (n,), or the edges (n + 1,) of a histogram
    y: np.ndarray  # (n,), of a histogram the counts


class View(NamedTuple):
    """One panel of histograms."""

    key: str
    title: str
    facts: tuple[str, ...]  # what its data say of it, beside net and epoch
    of: Sequence[Frame]
    frames: Sequence[Frame] = ()  # at every epoch, where it shows others, too

    @property
    def all(self) -> list[Frame]:
        """What it may come to show: its axes reach to their ends."""
        return [*self.of, *self.frames]


def frames_csv(panels: Mapping[str, Iterable[Frame]]) -> str:
    """Frames of panels by their keys: a row a net and epoch, numbers with spaces between, and no x where it is the one above.

    Numbers that are not whole have six digits: the arrays in the run folder have all of them.
    """
    rows = []
    for key, frames in panels.items():
        before = ""
        for net, epoch, x, y in frames:
            places = _spaced(x)
            rows.append((key, net.label, whole(epoch), "" if places == before else places, _spaced(y)))
            before = places
    return csv_text(("panel", "net", "epoch", "x", "y"), rows) if rows else ""


def _spaced(numbers: np.ndarray) -> str:
    """With a space first, too: a spreadsheet would run what begins with a minus sign as a formula."""
    return "".join(f" {number:.6g}" for number in numbers.tolist())


# arrays -> edges and counts, if there
Read = Callable[[Mapping[str, np.ndarray]], tuple[np.ndarray, np.ndarray] | None]


def first_and_last(
    page: PageData, family: str, arrays: Collection[str], key: str, title: str, facts: tuple[str, ...], read: Read
) -> list[View]:
    """Of each group the first net that has arrays, at their first epoch, and at the last if that is another; those there are.

    Args:
        arrays: keys of what ``read`` makes edges and counts of.
    """
    frames: dict[PageNet, list[Frame]] = {}
    for net, saved in page.saved(family, arrays).items():
        found = {epoch: read(each) for epoch, each in saved.items()}
        frames[net] = [Frame(net, epoch, *bins) for epoch, bins in found.items() if bins]
    views: list[View] = []
    for when, place in (("first", 0), ("last", -1)):
        there: dict[PageNet, Frame] = {}
        for net, own in frames.items():
            epochs = net.run.array_epochs(family)
            at = epochs[place] if len(epochs) > -place else None
            there.update((net, each) for each in own if each.epoch == at)
        if shown := [there[net] for net in page.firsts(frames.get) if net in there]:
            epoch = joined(each.epoch for each in shown)
            others = [*there.values()] if len(there) > len(shown) else []
            views.append(View(f"{key}-{when}", f"{title}, epoch {epoch}", facts, shown, others))
    every = [*chain.from_iterable(frames.values())]
    return [*views[:-1], views[-1]._replace(frames=every)] if views else []


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
) -> list[Figure]:
    """A panel for each view: outlines of all its nets; nothing without views.

    Args:
        caption: it also says that the first of several seeds is shown, where that is so.
        columns: heads of the views' facts in the data, and of the counts.
        x, y: axis labels.
        adjust: what else is drawn into the axes of a view, and where they end.
        floor: where the outlines start, above 0 for a logarithmic axis.
        wide: panels side by side, at most.
    """

    def draw(axes: Axes, view: View) -> None:
        for each in view.of:
            histogram(axes, each.y, each.x, each.net.style, floor(view))
        adjust(axes, view)

    panels = [
        panel(view.key, view.title, partial(draw, view=view), x=x, y=y, log_x=log_x(view), log_y=log_y, rows=NO_CURVES)
        for view in views
    ]
    rows = [
        (net.label, *view.facts, epoch, left, right, count)
        for view in views
        for net, epoch, edges, counts in view.of
        for left, right, count in zip(edges[:-1], edges[1:], counts, strict=True)
        if count
    ]
    *facts, count = columns
    data = csv_text(("net", *facts, "epoch", "bin_from", "bin_to", count), rows)
    caption += f" {FIRST_SEED}" * (len(page.firsts()) < len(page.nets))
    frames = frames_csv({view.key: view.frames for view in views if view.frames})
    legend_ = group_legend(page, {each.net for view in views for each in view.of})
    return [Figure(key, caption, panels, legend_, data, columns=wide, frames=frames)] if panels else []
