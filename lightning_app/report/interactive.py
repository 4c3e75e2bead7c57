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

The state of a page is its address: ``#anchor&at=epoch:3&off=residual&seeds=0,2&a=plain&b=residual``.

**For what is built on it.** The script is one closure with these parts:

* ``panels``: a list of ``{key, svg, box, figure, axis, rows, x, y}``. ``x(number)`` and ``y(number)`` are in units of the SVG;
  ``axis`` is "epoch", "layer", "step", ...
* ``read(figure)``: promise of ``{columns, rows}``, a figure's CSV as texts, read once. ``curves(panel)``: promise of
  ``[{who, line, arm, seed, points: Map(x -> {value, text, low, high})}]``; ``text`` has the digits of the CSV.
* ``state``: ``{at: [axis, x] or null, off: Set of arms, seeds: Set of hidden seeds, a, b}``. ``change(part, push)`` merges into
  it, writes the address (as a new entry of the history with ``push``) and calls each function in ``hooks``. A further part
  of the state is one more entry of ``parts``: name -> ``[to text, from text]``.
* ``node(name, attributes, ...children)`` makes an element of HTML, ``draw(name, attributes, ...children)`` one of SVG; strings
  become text nodes. ``find(selector, within)`` is a list of elements. ``bar`` is the toolbar at the foot of the window,
  ``say(text)`` speaks in the live region.
"""

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.scale import SymmetricalLogTransform

from lightning_app.plots.style import COLOURS, Style
from lightning_app.report.blocks import Rows, csv_name
from lightning_app.report.page_data import Net

__all__ = ["arms_attribute", "axes_attribute", "legend_attribute", "policy", "rows_attribute", "script"]

INCH = 72  # units of the SVG
# What stays as it is in a script (texts, templates with templates one deep, regular expressions: no space after their first
# slash), comments, signs with the spaces around them, other spaces. Around + and - these stay: "a - -b" is no "a--b".
TEMPLATE = r"`(?:\\.|\$\{(?:[^{}`]|`[^`]*`|\{[^{}]*\})*\}|[^`\\$]|\$(?!\{))*`"
LITERAL = rf"""\"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|{TEMPLATE}|/(?![ /*])(?:\\.|\[(?:\\.|[^]\n])*\]|[^/\n[])+/"""
TOKEN = re.compile(rf"({LITERAL})|//[^\n]*|\s*([=<>?:,;{{}}()[\]&|!*])\s*|(\s)\s*")
NAMES = {light: name for name, (light, _) in COLOURS.items()}


@lru_cache(maxsize=1)
def script() -> str:
    """The one script of the page, without the comments and the spaces that its file has for readers."""
    text = (Path(__file__).parent / "page.js").read_text(encoding="utf-8")
    return squeezed(text)


def squeezed(text: str) -> str:
    """A script without what only its readers need; every statement in it ends with a semicolon or a brace."""
    return TOKEN.sub(lambda found: next(filter(None, found.groups()), ""), text).strip()


def policy(text: str) -> str:
    """What the page may load and run: its own styles, pictures that it makes of its panels, and this script."""
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    allowed = ("style-src 'unsafe-inline'", "img-src data:", f"script-src 'sha256-{digest}'")
    return "; ".join(["default-src 'none'", *allowed, "base-uri 'none'", "form-action 'none'"])


def axes_attribute(axes: Axes, x: str, size: tuple[float, float]) -> str:
    """Scale, limits and pixels of both axes, when all is drawn, in a canvas of ``size`` inches."""
    (width, height), place = (INCH * each for each in size), axes.get_position()
    across = [place.x0 * width, place.x1 * width]
    up = [(1 - place.y0) * height, (1 - place.y1) * height]
    return _attribute("axes", {"x": x, "of": [_axis(axes.xaxis, across), _axis(axes.yaxis, up)]})


def _axis(axis: Axis, pixels: Sequence[float]) -> list[str | float]:
    """Seven digits: a ten-thousandth of a pixel."""
    transform = axis.get_transform()
    more: list[float] = []
    if isinstance(transform, SymmetricalLogTransform):
        more = [transform.linthresh, transform.linscale / (1 - 1 / transform.base)]
    return [axis.get_scale(), *(float(f"{value:.7g}") for value in (*axis.get_view_interval(), *pixels, *more))]


def rows_attribute(rows: Rows) -> str:
    """Names as the CSV has them."""
    found = {key: value for key, value in asdict(rows).items() if value}
    if rows.where:
        found["where"] = {column: [*map(csv_name, values)] for column, values in rows.where.items()}
    if rows.places:
        found["places"] = {csv_name(name): place for name, place in rows.places.items()}
    if rows.measures:
        found["measures"] = [*map(csv_name, rows.measures)]
    return _attribute("rows", found)


def legend_attribute(style: Style) -> Markup:
    """Which arm a line of a legend is about; nothing if none."""
    return Markup(_attribute("arm", int(style.arm.removeprefix("arm-")))) if style.arm else Markup("")


def arms_attribute(arms: Mapping[str, Sequence[Net]]) -> Markup:
    """The arms of the page, each with its nets."""
    return Markup(_attribute("arms", [_arm(group, nets) for group, nets in arms.items()])) if arms else Markup("")


def _arm(group: str, nets: Sequence[Net]) -> dict[str, object]:
    style = nets[0].style
    dash = "" if isinstance(style.dash, str) else " ".join(f"{1.6 * length:g}" for length in style.dash[1])
    names = [(csv_name(net.label), net.seed) for net in nets]
    return {"arm": csv_name(group), "colour": f"var(--{NAMES[style.colour]})", "dash": dash, "nets": names}


def _attribute(name: str, value: object) -> str:
    """An attribute data-<name> in single quotes, because JSON is full of double ones."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return f" data-{name}='{text.replace('&', '&amp;').replace('<', '&lt;').replace(chr(39), '&#39;')}'"
