"""The loss around the weights: how it rises with the distance, and the plane itself."""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from lightning_app.plots import drawing
from lightning_app.report.blocks import Figure, Panel, Rows, Section, csv_text
from lightning_app.report.figures import curve_panel, group_legend, of_each
from lightning_app.report.page_data import PageData, PageNet, loss_of
from lightning_app.report.panels import panel

TITLE = "Loss surface"
WHAT = (
    "The mean loss on training samples at W + r (cos a D + sin a E): weights W, and two random directions whose filters have "
    "the norms of the net’s own filters (Li, Xu et al. 2018). A skip makes that norm ambiguous. With the identity counted it is "
    "that of the plain net that computes the same, which has this surface around its own weights; as written it is smaller."
)
FAMILY = "surface"
READINGS = {FAMILY: "as written", f"{FAMILY}_transferred": "identity counted"}  # beginning of the keys -> words
RISES = (
    "Rise: the loss at distance r, mean over all angles a, less the loss at W; after the last measured epoch{}. At r = 1 the "
    "directions are as large as the weights."
)
SHARE = 200  # lines are drawn down to such a part of the largest rise
PLANES = (
    "The same plane around one net of each arm. Lines: where the loss has risen by as much as they say, the same lines in all "
    f"panels. The closer they lie, the less flat is the loss; without any it rises by less than 1/{SHARE} of the largest rise."
)
LEVELS = np.outer(10.0 ** np.arange(-9, 9), (1, 2, 5)).ravel()  # of the rise
LEAST = 3  # rays that make a plane


class _Plane(NamedTuple):
    """What one panel shows of a net."""

    net: PageNet
    reading: str  # key of `READINGS`
    radii: np.ndarray  # (R + 1,), from 0 on
    rise: np.ndarray  # (K, R + 1)


def section(page: PageData) -> Section | None:
    """None where no surface was measured. What a net without skips has under both readings is shown once."""
    page = page.having(f"{FAMILY}/centre")
    if not page.nets:
        return None
    rises = {reading: {net: _rise(net, reading) for net in page.nets} for reading in READINGS}
    with_skips = [net for net in page.nets if not rises[FAMILY][net].equals(rises[f"{FAMILY}_transferred"][net])]
    if not with_skips:
        del rises[f"{FAMILY}_transferred"]
    planes = [
        plane
        for net in page.firsts()
        for reading in rises
        if (reading == FAMILY or net in with_skips) and (plane := _plane(net, reading))
    ]
    y = loss_of(page.nets).measured("rise")
    panels = [_panel_of_rises(page, reading, lines, y) for reading, lines in rises.items()]
    rows = [
        (net.label, READINGS[reading], r, value)
        for reading, lines in rises.items()
        for net, line in lines.items()
        for r, value in line.items()
    ]
    data = csv_text(("net", "reading", "r", "value"), rows)
    caption = RISES.format(of_each(epoch for net in page.nets if (epoch := _last(net)) is not None))
    figures = [Figure("surface-rises", caption, panels, group_legend(page), data), *_figure_of_planes(page, planes)]
    return Section("surface", TITLE, WHAT, figures, families=[*READINGS])


def _last(net: PageNet) -> float | None:
    last = net.final(f"{FAMILY}/centre")
    return None if last is None else last.epoch


def _rise(net: PageNet, reading: str) -> pd.Series:
    """By distance, ascending."""
    names = {name: match[1] for name in net.names if (match := re.fullmatch(rf"{reading}/rise_(.+)", name))}
    values = {float(r): net.at(name, _last(net)) for name, r in names.items()}
    there = {r: value for r, value in values.items() if value is not None}  # a resume may have other distances
    return pd.Series(there, dtype=float).sort_index()


def _plane(net: PageNet, reading: str) -> _Plane | None:
    """None where its arrays were not saved, or are a line."""
    epoch = _last(net)
    arrays = net.arrays(FAMILY, epoch)
    radii, risk = (arrays.get(f"{reading}/{name}", np.empty(0)) for name in ("radii", "risk"))
    if len(risk) < LEAST:
        return None
    rise = risk - net.at(f"{reading}/centre", epoch)
    return _Plane(net, reading, np.array([0, *radii]), np.column_stack([np.zeros(len(rise)), rise]))


def _figure_of_planes(page: PageData, planes: Sequence[_Plane]) -> list[Figure]:
    """Nothing without any."""
    found = [plane.rise[np.isfinite(plane.rise)] for plane in planes]
    high = max((rise.max(initial=0) for rise in found), default=0)
    levels = LEVELS[(high / SHARE < LEVELS) & (high > LEVELS)]
    panels = [_panel_of_plane(plane, number, levels) for number, plane in enumerate(planes)]
    data = csv_text(("net", "reading", "angle", "r", "rise"), _points(planes))
    legend = group_legend(page, [plane.net for plane in planes])
    return [Figure("surface-planes", PLANES, panels, legend, data)] if planes else []


def _points(planes: Sequence[_Plane]) -> Iterator[tuple[object, ...]]:
    for net, reading, radii, rise in planes:
        for number, ray in enumerate(rise):
            angle = 2 * np.pi * number / len(rise)
            yield from ((net.label, READINGS[reading], angle, r, value) for r, value in zip(radii, ray, strict=True))


def _panel_of_rises(page: PageData, reading: str, lines: Mapping[PageNet, pd.Series], y: str) -> Panel:
    def after(axes: Axes) -> None:
        drawing.symmetric_log(axes.yaxis, np.concatenate([*lines.values()]), decades=4)

    words = READINGS[reading]
    rows = Rows({"reading": [words]}, x="r")
    title, draw = f"Rise of the loss, {words}", partial(curve_panel, page, f"surface-{words.split()[0]}")
    return draw(title, lines.__getitem__, x="distance r", y=y, after=after, rows=rows, log_x=True, whole_x=False)


def _panel_of_plane(plane: _Plane, number: int, levels: np.ndarray) -> Panel:
    def draw(axes: Axes) -> None:
        drawing.contours(axes, plane.radii, plane.rise, levels, plane.net.style)

    title = f"{plane.net.label}, {READINGS[plane.reading]}"
    return panel(f"surface-plane-{number}", title, draw, x="r cos a", y="r sin a")
