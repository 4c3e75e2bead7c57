"""What `page.js` finds on the page: the axes of each panel, the rows of its curves, and whose curves there are.

The page is complete without the script. With it, the numbers that are there for download become curves that answer. All
that it needs beside them are attributes, JSON each:

* ``main[data-arms]``: a list of arms; their places in it are their numbers, from 0. Each is
  ``{"arm", "colour", "dash", "nets": [[name, seed], ...]}``, with names as the CSV has them (`blocks.csv_name`) and null for
  an unknown seed.
* ``[data-arm]``: number of the arm that drew this part of an SVG, or that this line of a legend is about.
* ``svg.panel[data-axes]``: ``{"x": "epoch", "of": [[scale, low, high, from, to, ...], [...]]}``: what runs along x, and of x
  and y the scale ("linear", "log", "symlog"), the limits in numbers, and where these are in units of the SVG. "symlog" goes
  on with its threshold t and stretch s: v becomes s v where |v| <= t, else sign(v) t (s + log10(|v| / t)), drawn linearly.
* ``svg.panel[data-rows]``: `blocks.Rows` without what is empty: the rows that the panel draws, of the CSV of its figure (the
  first ``a[download]`` of the ``figure``; gzip in base64 where it is long).

* ``figure a[download$="-epochs.csv.gz"]``: what the panels of a figure show at every epoch, as `figures.frames_csv` has it.
* ``#maps-figure``: every number of single layers, as `sections.maps` has it. A panel whose rows have ``measures`` takes from
  there what it shows at every epoch.

The state of a page is its address: ``#anchor&at=epoch:3&off=residual&seeds=0&seeds=2&a=plain&b=residual``.

The template has the toolbar, hidden; of its buttons and lists the name is a part of the state, and the value what it is about.

**For what is built on it.** The script is one closure with these parts:

* ``panels``: Map of a panel's ``div`` to ``{svg, box, title}``; when it first comes near the window also ``{key, figure, axis,
  rows, x, y}``. ``x(number)`` and ``y(number)`` are in units of the SVG; ``axis`` is "epoch", "layer", "step", ...
* ``read(figure)``: promise of a figure's CSV as rows of texts, the names of its columns first, read once. ``curves(panel)``:
  promise, after which there are ``panel.curves``, ``[{who, line, arm, seed, values: Map(x -> number), cells: Map(x -> [text,
  low, high])}]``, and ``panel.all``, those of all nets; a text has the digits of the CSV.
* ``state``: ``{at: [axis, x] or null, off: arms, seeds: hidden seeds, a, b, map}``. ``change(part, push)`` merges into it, writes
  the address (as a new entry of the history with ``push``) and calls each function in ``hooks``.
* ``node(name, attributes, ...children)`` makes an element of HTML, ``draw(name, attributes, ...children)`` one of SVG; strings
  become text nodes, functions listen. ``find(selector, within)`` is a list of elements, ``say(text)`` speaks in the live region.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.scale import SymmetricalLogTransform

from lightning_app.common.scripts import squeezed
from lightning_app.plots.style import COLOURS, Style
from lightning_app.report.blocks import Rows, csv_name
from lightning_app.report.page_data import PageNet

INCH = 72  # units of the SVG
NAMES = {light: name for name, (light, _) in COLOURS.items()}


class ArmLine(NamedTuple):
    """Nets that differ in their seed."""

    arm: str
    colour: str  # of CSS
    dash: str
    nets: list[tuple[str, int | None]]  # name and seed


@lru_cache(maxsize=1)
def script() -> str:
    """The one script of the page, without the comments and the spaces that its file has for readers."""
    return squeezed((Path(__file__).parent / "page.js").read_text(encoding="utf-8"))


def axes_attribute(axes: Axes, x: str, size: tuple[float, float]) -> str:
    """Scale, limits and pixels of both axes, when all is drawn, in a canvas of ``size`` inches."""
    (width, height), place = (INCH * each for each in size), axes.get_position()
    across = [place.x0 * width, place.x1 * width]
    up = [(1 - place.y0) * height, (1 - place.y1) * height]
    return _attribute("axes", {"x": x, "of": [_axis(axes.xaxis, across), _axis(axes.yaxis, up)]})


def _axis(axis: Axis, pixels: Sequence[float]) -> list[str | float]:
    """Scale, limits and pixels of one axis, with seven digits: a ten-thousandth of a pixel."""
    transform = axis.get_transform()
    more: list[float] = []
    if isinstance(transform, SymmetricalLogTransform):
        more = [transform.linthresh, transform.linscale / (1 - 1 / transform.base)]
    return [axis.get_scale(), *(float(f"{value:.7g}") for value in (*axis.get_view_interval(), *pixels, *more))]


def rows_attribute(rows: Rows) -> str:
    """Which rows of its figure's data a panel draws; names as the CSV has them."""
    where = {column: [*map(csv_name, values)] for column, values in rows.where.items()}
    places = {csv_name(name): place for name, place in rows.places.items()}
    named = asdict(rows) | {"where": where, "places": places, "measures": [*map(csv_name, rows.measures)]}
    return _attribute("rows", {key: value for key, value in named.items() if value})


def legend_attribute(style: Style) -> Markup:
    """Which arm a line of a legend is about; nothing if none."""
    return Markup(_attribute("arm", int(style.arm.removeprefix("arm-")))) if style.arm else Markup("")


def arms(groups: Mapping[str, Sequence[PageNet]]) -> list[ArmLine]:
    """The arms of the page, each with its nets; names as the CSV has them."""
    found = []
    for group, nets in groups.items():
        look, named = nets[0].style, [(csv_name(net.label), net.seed) for net in nets]
        found.append(ArmLine(csv_name(group), f"var(--{NAMES[look.colour]})", look.dashes, named))
    return found


def arms_attribute(arms: Sequence[ArmLine]) -> Markup:
    """The arms, for the page's main part; nothing where there are none."""
    return Markup(_attribute("arms", [arm._asdict() for arm in arms]) if arms else "")


def _attribute(name: str, value: object) -> str:
    """An attribute data-<name> in single quotes, because JSON is full of double ones."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return f" data-{name}='{text.replace('&', '&amp;').replace('<', '&lt;').replace(chr(39), '&#39;')}'"
