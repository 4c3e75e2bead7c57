"""How a net looks in every figure: colour tells plain from residual, dash and marker do so without colour.

Figures are drawn once and shown on light and on dark pages: matplotlib gets the light colour, and ``report.panels`` replaces it
by a CSS variable that the page sets for either. So each colour has one name, and its two values live here only.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

INK, GRID = "#20252b", "#d5d9de"

# name -> (on light, on dark). Blue and red as in Yu & Tomasi; both pairs differ in lightness too, which is what remains
# for colour-blind readers and grey printers. At least 3:1 against the page on either ground.
COLOURS = {
    "ink": (INK, "#e3e7ec"),
    "grid": (GRID, "#3a4149"),
    "plain-0": ("#0b4f9e", "#6fb1ff"),
    "plain-1": ("#2f8fc4", "#9ad4f5"),
    "plain-2": ("#5b6fd6", "#a9b4ff"),
    "residual-0": ("#d1362f", "#ff7d6e"),
    "residual-1": ("#a8326e", "#f08fc0"),
    "residual-2": ("#b8660a", "#ffb45e"),
    "other-0": ("#3d7a3a", "#83c97c"),
    "other-1": ("#6b4fa0", "#bda2f0"),
    "other-2": ("#7a6a2a", "#d6c26a"),
}

AXES = {  # of every figure, on a page and on paper
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.unicode_minus": False,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "svg.fonttype": "none",  # text stays text: it can be searched, read aloud, and takes the page's font
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
}

# Metadata of files, by format: without a date, so that the same figure is the same bytes.
UNDATED: dict[str, dict[str, None]] = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}
SHADES = 3  # a kind
MARKERS = "os^DvPX*"
# Eight markers and five dashes have no common divisor: 40 nets before a pair comes again.
DASHES = ("-", (0, (5, 2)), (0, (1, 1.4)), (0, (7, 2, 1.5, 2)), (0, (10, 3)))


@dataclass(frozen=True)
class Style:
    """Colour, dash, marker and opacity of one curve."""

    colour: str  # the light value: a matplotlib colour
    dash: str | tuple[float, tuple[float, ...]]  # "-", or matplotlib's offset and lengths
    marker: str
    alpha: float | None = None
    arm: str = ""  # whose it is: the id of what is drawn in it, by which the page's script finds it

    @property
    def dashes(self) -> str:
        """Lengths as SVG has them; "" for a solid line."""
        return "" if isinstance(self.dash, str) else " ".join(f"{1.6 * length:g}" for length in self.dash[1])


def styles(kinds: Iterable[str]) -> list[Style]:
    """One style for each curve of these kinds (plain, residual, other): the first plain is solid blue, the first residual red."""
    seen: Counter[str] = Counter()
    found = []
    for i, this in enumerate(kinds):
        colour, _ = COLOURS[f"{this}-{seen[this] % SHADES}"]
        found.append(Style(colour, DASHES[i % len(DASHES)], MARKERS[i % len(MARKERS)]))
        seen[this] += 1
    return found


def styles_of(things: Collection[Any]) -> dict[Any, Style]:
    """One style for each of what is neither plain nor residual, such as a run or a pair of arms."""
    return dict(zip(things, styles(["other"] * len(things)), strict=True))
