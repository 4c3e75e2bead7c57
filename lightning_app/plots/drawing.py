"""What figures of the page and of the papers draw into axes: curves with bands over seeds, histograms, logarithmic axes."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.axis import Axis, XAxis
from matplotlib.patches import StepPatch
from numpy.typing import ArrayLike

from lightning_app.plots.style import Style

SEEDS_FOR_A_BAND = 3
TICKS = 6  # intervals between them, at most: panels are small
MARKS = 8  # markers along a curve: enough to tell curves apart, few enough to see them


def over_seeds(
    axes: Axes, lines: Sequence[pd.Series], style: Style, every: bool = False, label: str | None = None
) -> None:
    """Draw values by epoch: one seed as a curve, several as their bold mean on top of `spread_of`; nothing without seeds."""
    lines = [finite(line) for line in lines if len(line)]
    if len(lines) > 1:
        spread_of(axes, lines, style)
    if lines:
        curve(axes, group_mean(lines), style, every, label)


def spread_of(axes: Axes, lines: Sequence[pd.Series], style: Style) -> None:
    """Draw the seeds as a band of one standard deviation between thin lines of minimum and maximum.

    The band never leaves the range of the seeds, so it is not below zero for what cannot be negative. From the last epoch on
    that all seeds have (one diverged, or is not that far), each seed is a thin line.
    """
    seeds = pd.concat(lines, axis=1, join="inner")
    values = np.where(seeds.notna().all(axis=1).to_numpy()[:, None], seeds.to_numpy(), np.nan)  # (epochs, seeds)
    low, high = (pd.Series(end, seeds.index) for end in (values.min(axis=1), values.max(axis=1)))
    if len(lines) >= SEEDS_FOR_A_BAND:
        mean, sd = (pd.Series(each, seeds.index) for each in (values.mean(axis=1), values.std(axis=1, ddof=1)))
        filled(axes, (mean - sd).clip(lower=low), (mean + sd).clip(upper=high), style)
    last = low.last_valid_index()
    alone = [line[line.index >= (-np.inf if last is None else last)] for line in lines]
    for line in (low, high, *(alone if any(len(line) > 1 for line in alone) else ())):
        axes.plot(line.index, line, color=style.colour, linewidth=0.7, alpha=0.6, gid=style.arm)


def filled(axes: Axes, low: pd.Series, high: pd.Series, style: Style) -> None:
    """The area between two lines where both are there, so pale that two of them can overlap."""
    low, high = low.align(high, join="inner")
    axes.fill_between(low.index, low, high, color=style.colour, alpha=0.18, linewidth=0, gid=style.arm)


def group_mean(lines: Sequence[pd.Series]) -> pd.Series:
    """Mean over seeds at epochs that all have. It is NaN once a seed has diverged: a mean of the survivors would flatter."""
    return pd.concat(lines, axis=1, join="inner").mean(axis=1, skipna=False) if len(lines) > 1 else lines[0]


def finite(line: pd.Series) -> pd.Series:
    """Infinity as NaN: both then leave a gap, and no axis is extended to them."""
    return line.where(np.isfinite(line))


def curve(axes: Axes, line: pd.Series, style: Style, every: bool = False, label: str | None = None) -> None:
    """One line with a few markers, among them the last point; with ``every`` one at each point."""
    gap = 1 if every else max(1, -(-len(line) // MARKS))
    marks = list(range((len(line) - 1) % gap, len(line), gap))
    axes.plot(line.index, line, **line_style(style), marker=style.marker, markevery=marks, label=label)


def histogram(
    axes: Axes, counts: np.ndarray, edges: np.ndarray, style: Style, floor: float = 0, label: str | None = None
) -> None:
    """Counts (n,) between edges (n + 1,) as an outline, lightly filled; from ``floor`` on: above 0 for a logarithmic axis."""
    counts = np.maximum(counts, floor)
    outline = partial(StepPatch, counts, edges, baseline=floor, gid=style.arm)
    area = outline(facecolor=style.colour, alpha=0.15, linewidth=0)
    line = outline(edgecolor=style.colour, fill=False, linestyle=style.dash, linewidth=1.4, label=label)
    for each in (area, line):
        each.sticky_edges.y.append(floor)
        axes.add_artist(each)
    # `Axes.stairs` looks for the extremes of every step as if it were a Bezier curve: a third of the time of such panels.
    axes.update_datalim([(edges[0], floor), (edges[-1], counts.max(initial=floor))])
    axes.autoscale(None)  # type: ignore[arg-type]  # None is documented: as it was, when all is drawn


def contours(axes: Axes, radii: np.ndarray, values: np.ndarray, levels: ArrayLike, style: Style) -> None:
    """Lines of equal value in a plane, each with its level.

    Args:
        radii: (R,), ascending.
        values: (K, R), on K rays at evenly spaced angles; what is not finite is left out.
    """
    angles = np.linspace(0, 2 * np.pi, len(values) + 1)[:, None]  # the first ray again: the circle is closed
    closed = np.ma.masked_invalid(np.vstack([values, values[:1]]))
    reached = [level for level in np.ravel(levels) if closed.min() < level < closed.max()]
    if reached:  # matplotlib warns of lines that do not exist
        x, y = radii * np.cos(angles), radii * np.sin(angles)
        lines = axes.contour(x, y, closed, reached, colors=style.colour, linewidths=0.9)
        lines.set_gid(style.arm)
        axes.clabel(lines, fmt="%g", fontsize=7)
    end = 1.02 * radii[-1]
    axes.set(xlim=(-end, end), ylim=(-end, end), aspect="equal")


def median_mark(axes: Axes, x: float, style: Style) -> None:
    """The net's marker on the x axis."""
    axes.plot([x], [0], color=style.colour, marker=style.marker, markersize=7, clip_on=False, zorder=4, gid=style.arm)


def from_zero(axes: Axes) -> None:
    """Start the y axis at zero and leave room above the highest marker."""
    top = axes.dataLim.y1
    axes.set_ylim(0, 1.06 * top if np.isfinite(top) and top > 0 else 1)


def dots(axes: Axes, x: ArrayLike, y: ArrayLike, style: Style) -> None:
    """Markers without a line."""
    axes.plot(x, y, color=style.colour, marker=style.marker, markersize=6, linestyle="none")


def line_style(style: Style) -> dict[str, Any]:
    """Arguments of matplotlib's lines."""
    return {"color": style.colour, "linestyle": style.dash, "alpha": style.alpha, "gid": style.arm}


def rescale(axis: Axis, log: bool) -> None:
    """Make the axis logarithmic with readable ticks (0.5, 1, 2), or linear; also linear if nothing positive is shown.

    Ticks have their own powers of ten: one for the axis would lie on the title.
    """
    low, high = axis.get_data_interval()
    if not (log and np.isfinite(high) and high > 0):
        _set_linear_ticks(axis, low, high)
        return
    _set_scale(axis, "log", nonpositive="mask")
    low, high = axis.get_view_interval()
    low = max(low, np.nextafter(0, 1))
    decades = np.log10(high / low)
    powers = ticker.LogLocator(subs=(1, 2, 5) if decades < 2 else (1,))
    _set_ticks(axis, ticker.MaxNLocator(5, steps=[1, 2, 5, 10]) if decades < 0.5 else powers, _digits(low, high, 6))


def _set_linear_ticks(axis: Axis, low: float, high: float) -> None:
    """Few of them, without an offset; names that were put there stay."""
    if isinstance(locator := axis.get_major_locator(), ticker.AutoLocator):
        locator.set_params(nbins=TICKS)
    if isinstance(formatter := axis.get_major_formatter(), ticker.ScalarFormatter):
        formatter.set_useOffset(False)
        formatter.set_scientific(False)
        largest = max(abs(low), abs(high))
        if 0 < largest < np.inf and not 1e-3 <= largest < 1e6:
            axis.set_major_formatter(_digits(low, high, 4))


def _set_scale(axis: Axis, name: str, **options: Any) -> None:
    set_scale = axis.axes.set_xscale if isinstance(axis, XAxis) else axis.axes.set_yscale
    set_scale(name, **options)


def _digits(low: float, high: float, least: int) -> ticker.Formatter:
    """Ticks with so many digits, and as many more as it takes to tell them apart."""
    largest = max(abs(low), abs(high))
    digits = 6 if low == high else min(15, 2 + int(np.ceil(np.log10(largest / (high - low)))))
    return ticker.StrMethodFormatter(f"{{x:.{max(least, digits)}g}}")


def _set_ticks(axis: Axis, locator: ticker.Locator, formatter: ticker.Formatter | None = None) -> None:
    axis.set_major_locator(locator)
    axis.set_major_formatter(formatter or ticker.StrMethodFormatter("{x:g}"))
    axis.set_minor_locator(ticker.NullLocator())


def reach(axes: Axes, values: ArrayLike) -> None:
    """Make the y axis reach these values (not NaN or infinity), which the page's script may draw there later."""
    y = np.ravel(np.asarray(values, dtype=float))
    y = y[np.isfinite(y)]
    axes.update_datalim(np.column_stack([np.zeros_like(y), y]), updatex=False)


def with_zero(axes: Axes) -> None:
    """Make the y axis reach zero (a line drawn there with axhline could be put at 1e-18, by rounding)."""
    left, _ = axes.xaxis.get_data_interval()
    axes.update_datalim([(left, 0)], updatex=False)


def symmetric_log(axis: Axis, values: Iterable[float], decades: int = 6) -> None:
    """Make the axis logarithmic on both sides of zero and linear below the smallest magnitude; call it when all is drawn.

    It is linear throughout if all magnitudes lie within a decade, and logarithmic if all that is drawn is positive. The linear
    part begins at most ``decades`` below the largest magnitude.
    """
    sizes = np.abs(np.asarray([*values], dtype=float))
    sizes = sizes[np.isfinite(sizes) & (sizes > 0)]
    if not sizes.size or sizes.max() < 10 * sizes.min():
        return
    if axis.get_data_interval()[0] > 0:
        rescale(axis, log=True)
        return
    last = round(float(np.log10(sizes.max())))
    first = max(int(np.floor(np.log10(sizes.min()))), last - decades)
    _set_scale(axis, "symlog", linthresh=10.0**first, linscale=0.5)
    axis.axes.autoscale_view()
    gap = max(1, -(-(last - first) // 3))  # decades between ticks
    low, high = axis.get_view_interval()
    near_zero = 0.75 * gap if low <= 0 <= high else 0  # no tick that close to the one at 0
    powers = 10.0 ** np.arange(last, first - 0.5 + near_zero, -gap)
    _set_ticks(axis, ticker.FixedLocator([*-powers, 0, *powers[::-1]]))
