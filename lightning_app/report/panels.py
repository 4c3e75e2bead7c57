"""Axes to SVG: small panels that a phone can show whole, in colours the page decides, the same bytes for the same input."""

import io
import re
import textwrap
import warnings
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import lru_cache, partial
from html import escape
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D
from matplotlib.markers import MarkerStyle
from matplotlib.transforms import Affine2D

from lightning_app.common.text import visible
from lightning_app.plots.drawing import SEEDS_FOR_A_BAND, TICKS, line_style, rescale, symmetric_log
from lightning_app.plots.style import AXES, COLOURS, INK, UNDATED, Style
from lightning_app.report.blocks import Entry, Panel, Rows
from lightning_app.report.interactive import axes_attribute, rows_attribute

RC: Any = AXES | {
    "text.parse_math": False,  # a net may be called "$x$"
    "font.size": 9.5,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titley": 1.0,
    "axes.linewidth": 0.8,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.2,
}
SIZE = (4.3, 3.0)  # inches, 72 SVG units each: near 1:1 on a phone, so that 9.5 units stay readable
MARGINS = (0.14, 0.15, 0.84, 0.77)  # left, bottom, width, height in shares of it
LETTERS = 56  # that fit along a panel
LEGEND_WIDTH = 56  # letters of a line below an exported panel
SEEDS_SWATCH = (
    '<svg class="swatch" aria-hidden="true" viewBox="0 0 43 14" style="color: var(--ink)"><path class="band" d="M1 2V12H42V2"/>'
    '<path class="thin" d="M1 2H42M1 12H42"/><path class="bold" d="M1 7H42"/></svg>'
)

_CSS = {light: f"var(--{name},{light})" for name, (light, _) in COLOURS.items()}


def panel(
    key: str,
    title: str,
    draw: Callable[[Axes], None],
    *,
    x: str,
    y: str,
    rows: Rows | None = None,
    log_x: bool = False,
    log_y: bool = False,
    whole_x: bool = False,
) -> Panel:
    """Draw into one pair of axes: inline SVG for the page, and files on demand.

    Args:
        key: unique on the page.
        draw: puts the data there.
        x, y: axis labels, with units.
        rows: of the figure's data, those that are drawn; None: the page's script cannot read this panel.
        log_x, log_y: logarithmic, unless nothing drawn is positive; values <= 0 are then left out.
        whole_x: ticks at whole numbers only (epochs, layers). Where most of what is drawn lies in the first tenth, as when
            the first steps were measured one by one, x is logarithmic instead, with 0 at its start.
    """

    def paint(axes: Axes) -> None:
        draw(axes)
        axes.set(title=_fitted(title, LETTERS), xlabel=_fitted(x, LETTERS), ylabel=_fitted(y, LETTERS))
        _fit_names(axes)
        rescale(axes.xaxis, log_x)
        rescale(axes.yaxis, log_y)
        if whole_x and not _early(axes):
            axes.xaxis.set_major_locator(ticker.MaxNLocator(TICKS, integer=True, min_n_ticks=1))

    with mpl.rc_context(RC | {"svg.hashsalt": key}):
        canvas = Canvas(figsize=SIZE)
        axes = canvas.add_axes(MARGINS)
        paint(axes)
        _make_room(axes)
        found = axes_attribute(axes, x, SIZE) + rows_attribute(rows) if rows else ""
        name = f'class="panel" id="{escape(visible(key))}-svg"'  # by its id a small copy is shown elsewhere
        svg = _svg(canvas, f'{name} role="img" aria-label="{escape(visible(title))}"{found}')
    return Panel(key, title, svg, partial(_alone, key, paint))


def _early(axes: Axes) -> bool:
    """Whether ticks at whole numbers would not show what lies between them: then x may have become logarithmic."""
    drawn = [np.asarray(line.get_xdata(), dtype=float) for line in axes.lines]
    places = np.unique(np.concatenate(drawn)) if drawn else np.empty(0)
    places = places[np.isfinite(places)]
    if not len(places) or (places % 1 == 0).all():
        return False
    early = bool(np.median(places) < places[-1] / 10)
    if early:
        symmetric_log(axes.xaxis, places)
    return early or bool(places[-1] < TICKS)


def _alone(key: str, paint: Callable[[Axes], None], form: str, entries: Sequence[Entry]) -> bytes:
    """As a file with its legend below, vectors with their fonts; without a date, so that it is the same twice."""
    rc = {"svg.hashsalt": key, "pdf.fonttype": 42, "font.size": 8}  # 42: TrueType, which publishers ask for
    with mpl.rc_context(RC | rc):
        labels = ["\n".join(textwrap.wrap(visible(entry.label), LEGEND_WIDTH)) for entry in entries]
        looks = [line_style(entry.style) | {"marker": entry.style.marker} for entry in entries]
        handles = [Line2D([], [], **look, label=label) for look, label in zip(looks, labels)]
        below = 0.17 * sum(label.count("\n") + 1 for label in labels)  # inches
        canvas = Canvas(figsize=(SIZE[0], SIZE[1] + below))
        left, bottom, width, height = MARGINS
        share = SIZE[1] / (SIZE[1] + below)
        axes = canvas.add_axes((left, 1 - share * (1 - bottom), width, share * height))
        paint(axes)
        for artist in axes.findobj():
            artist.set_gid(None)  # the page's; in a file of its own an id is there once
        _make_room(axes)
        if handles:
            canvas.legend(handles=handles, loc="lower left", frameon=False, handlelength=3, borderpad=0.2)
        buffer = io.BytesIO()
        canvas.savefig(buffer, format=form, metadata=UNDATED[form])
        return buffer.getvalue()


def _fit_names(axes: Axes) -> None:
    """Names along the y axis, not numbers: so short that half of the panel is left for what is drawn."""
    if isinstance(axes.yaxis.get_major_locator(), ticker.FixedLocator):
        names = [label.get_text() for label in axes.get_yticklabels()]
        fitted = [_fitted(name, LETTERS // 2) for name in names]
        if fitted != names:
            axes.set_yticks(axes.get_yticks(), fitted)


def _fitted(text: str, letters: int) -> str:
    """Each line cut to so many letters, hidden ones written out.

    >>> _fitted("abcdef", 4), _fitted("ab", 4)
    ('abc…', 'ab')
    """
    lines = visible(text).split("\n")
    return "\n".join(line if len(line) <= letters else f"{line[: letters - 1]}…" for line in lines)


def _make_room(axes: Axes) -> None:
    """As much of the width at the left as the labels of the y axis need, estimated from their letters.

    matplotlib's own layouts, and its places for the labels, measure all text several times over, in a font that the page
    then replaces: that was two thirds of the time of a page.
    """
    em, axis = mpl.rcParams["font.size"], axes.yaxis
    names = axis.get_major_formatter().format_ticks([*axis.get_majorticklocs()])
    letters = max((len(line) for name in names for line in name.split("\n")), default=0)
    ticks = 0.62 * letters * float(axis.get_major_ticks(1)[0].label1.get_fontsize()) + 0.7 * em  # points
    left = (ticks + em * (2.2 if axes.get_ylabel() else 0.4)) / 72 / SIZE[0]
    place = axes.get_position()
    axes.set_position((left, place.y0, place.x1 - left, place.height))
    width, height = ((place.x1 - left) * SIZE[0] * 72, MARGINS[3] * SIZE[1] * 72)
    axis.set_label_coords(-(ticks + 0.5 * em) / width, 0.5)
    axes.xaxis.set_label_coords(0.5, -1.9 * em / height)


@lru_cache(maxsize=256)
def swatch(style: Style) -> str:
    """A legend's piece of line, as drawn in the panels; written by hand, because matplotlib takes as long as for a panel."""
    marker = MarkerStyle(style.marker)
    shape = marker.get_path().transformed(
        marker.get_transform() + Affine2D().scale(RC["lines.markersize"], -RC["lines.markersize"])
    )
    outline = "".join(
        f"{'MLQC'[code - 1] if code <= 4 else 'Z'}{' '.join(f'{x:.2f}' for x in points) if code <= 4 else ''}"
        for points, code in shape.iter_segments(simplify=False)
    )
    colour, alpha = _css(style.colour), 1 if style.alpha is None else style.alpha
    dash = f' stroke-dasharray="{style.dashes}"' if style.dashes else ""
    return (
        f'<svg class="swatch" aria-hidden="true" viewBox="0 0 43 14" style="opacity: {alpha}">'
        f'<path d="M1 7H42" style="fill: none; stroke: {colour}; stroke-width: 1.6"{dash}/>'
        f'<path d="{outline}" transform="translate(21.5 7)" style="fill: {colour}; stroke: {colour}"/></svg>'
    )


def legend(looks: Iterable[tuple[str, Style]]) -> list[Entry]:
    """Swatch and label of each curve."""
    return [Entry(swatch(style), label, style) for label, style in looks]


def how_seeds_are_drawn(counts: Collection[int]) -> list[Entry]:
    """A legend's last line where arms have these numbers of seeds; nothing where none has several."""
    several = [count for count in counts if count > 1]
    least = f" (from {SEEDS_FOR_A_BAND} seeds on)" * (min(several, default=0) < SEEDS_FOR_A_BAND)
    band = f", band{least}: ± sd" * (max(several, default=0) >= SEEDS_FOR_A_BAND)
    label = f"bold: mean of the seeds{band}, thin: minimum and maximum"
    return [Entry(SEEDS_SWATCH, label, Style(INK, "None", "None"))] * bool(several)


def _css(text: str) -> str:
    """Colours as the variables that the page sets."""
    return re.sub("|".join(_CSS), lambda colour: _CSS[colour[0]], text)


def _svg(canvas: Canvas, attributes: str) -> str:
    """The figure as an inline <svg> element without size, ids of its own, date or address of any schema."""
    buffer = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with warnings.catch_warnings():  # a letter that matplotlib's font lacks is the browser's to draw
        warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)
        canvas.savefig(buffer, format="svg", transparent=True, metadata=nothing)
    text = buffer.getvalue()
    head = re.search(r'<svg [^>]*?(viewBox="[^"]*")[^>]*>', text)
    assert head is not None, "matplotlib wrote no svg element"
    body = re.sub(r"<metadata>.*?</metadata>", "", text[head.end() :], flags=re.DOTALL)
    body = re.sub(r"<!--.*?-->", "", body, flags=re.DOTALL)  # every text a second time
    body = re.sub(r'<g id="arm-(\d+)"', r'<g data-arm="\1"', body)
    body = re.sub(r'<g id="[^"]*"', "<g", body)  # "axes_1" and the like: they would repeat in every panel
    return f"<svg {attributes} {head[1]}>{_css(body)}".strip()
