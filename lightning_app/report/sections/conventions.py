"""Each quantity under all its conventions, side by side, and whether the choice of one decides the conclusion."""

import math
import textwrap
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from lightning_app.common.numbers import number
from lightning_app.plots.drawing import dots
from lightning_app.plots.style import INK, Style, styles_of
from lightning_app.report import conventions
from lightning_app.report.blocks import Block, Cell, Figure, Panel, Section, Table, cell, csv_text, mean_cell
from lightning_app.report.page_data import PageData
from lightning_app.report.pairs import Pair, pairs
from lightning_app.report.panels import legend, panel
from lightning_app.statistics.paired import ENOUGH

TITLE = "Conventions"
LINES = 8  # of one panel
CONCLUSIONS = (conventions.LARGER, conventions.UNRESOLVED, conventions.SMALLER, conventions.TOO_FEW)
WHAT = (
    "Where a quantity has several defensible conventions (which norm, whose BatchNorm statistics, with or without the "
    "identity, what the penalty counts), all that were logged are shown side by side, each at the last epoch that all "
    "nets of a pair have. Rewritten: what happens to the number if the same function is written as another net. "
    f"“{conventions.INVARIANT}”: it stays. “{conventions.UNDER_T}”: it stays if skips are written as weights, and changes "
    f"if BatchNorm is absorbed. “{conventions.NOTATION}”: it changes, so it also describes how the function is written. "
    "Each entry was measured (finding “notation”) or follows from the definition; else it is empty. Meaning: what the "
    "convention is; of several pairs it stands with the first."
)
REWRITTEN, MEANING = "rewritten", "meaning"
SUMMARY = (
    "For each quantity: how many conventions conclude that residual nets have larger or smaller values than plain ones; "
    "the smallest and the largest ratio residual / plain over conventions, where values are positive; and whether the "
    "conclusion depends on the convention. "
)
SEEDS = (
    "A difference is one whose 95 % bootstrap interval over pairs of seeds (of logarithms, where all values are "
    "positive) excludes zero, with no correction for several conventions. If the interval contains zero, the difference "
    "is unresolved, not absent. "
)
FEW = (
    f"With 2 to {ENOUGH - 1} pairs nothing is concluded: even the whole range of the differences would be wrong too "
    "often. "
)
ONE = (
    f"With one seed, the spread over seeds is unknown, and a difference below {100 * conventions.ALIKE:.0f} % counts as "
    "unresolved. "
)
OVER = "The number of a net is its median over {0}. At {0}: at how many the mean of the residual nets is larger."
OVER_ALONE = "The number of a net is its median over {}."
DECIDED = {
    conventions.REVERSES: "The convention decides whether residual nets have more or less than plain ones: {}.",
    conventions.DECIDES: "The convention decides whether a difference is resolved: {}.",
    conventions.AGREES: "The convention changes no conclusion: {}.",
    conventions.OPEN: "No convention resolves a difference: {}.",
    conventions.TOO_FEW: "Too few seeds for a conclusion under any convention: {}.",
}
NOTHING = "No quantity of these runs was logged under more than one convention."
RATIOS = (
    "Residual / plain (geometric mean over seeds), a dot for each convention: dots on one line differ in the convention "
    "only. At 1, the two kinds of nets are equal."
)


def section(page: PageData) -> Section:
    """Tables and a figure of all pairs; without a pair the conventions side by side."""
    found, notices = pairs(page, least=1)
    entries = [entry for pair in found for entry in conventions.across_conventions(pair, conventions.quantities())]
    entries.sort(key=lambda entry: conventions.quantities().index(entry.quantity))
    compared = [entry.quantity for entry in entries]
    alone = [table for each in conventions.quantities() if each not in compared for table in _side_by_side(page, each)]
    if not entries and not alone:
        return Section("conventions", TITLE, notices=[NOTHING], folded=True)
    blocks: list[Block] = [_summary(entries), *_figure(entries)] if entries else []
    for quantity in dict.fromkeys(compared):
        blocks.append(_detail(quantity, [entry for entry in entries if entry.quantity is quantity]))
    return Section("conventions", TITLE, WHAT, [*blocks, *alone], [*_decided(entries), *notices], folded=True)


def _decided(entries: Sequence[conventions.AcrossConventions]) -> list[str]:
    """Each quantity once, by the most that its conventions do to any pair."""
    most: dict[str, str] = {}
    for entry in sorted(entries, key=lambda entry: conventions.EFFECTS.index(entry.effect)):
        most.setdefault(entry.quantity.title, entry.effect)
    listed = {notice: [title for title, its in most.items() if its == effect] for effect, notice in DECIDED.items()}
    return [notice.format("; ".join(found)) for notice, found in listed.items() if found]


def _summary(entries: Sequence[conventions.AcrossConventions]) -> Table:
    several = len({entry.pair for entry in entries}) > 1
    few = any(entry.count(conventions.TOO_FEW) for entry in entries)
    shown = CONCLUSIONS if few else CONCLUSIONS[:-1]
    head = [
        "quantity",
        *["pair"] * several,
        "conventions",
        *shown,
        "smallest ratio",
        "largest ratio",
        "changes the conclusion?",
    ]
    rows = []
    for entry in entries:
        texts = [entry.quantity.title, *[entry.pair.label] * several, len(entry.conventions)]
        counts = [entry.count(conclusion) for conclusion in shown]
        ends = (cell(end(entry.ratios) if entry.ratios else None) for end in (min, max))
        rows.append([*(Cell(str(text)) for text in (*texts, *counts)), *ends, Cell(entry.effect)])
    seeds = {len(entry.pair.seeds) for entry in entries}
    caption = SUMMARY + SEEDS * bool(seeds - {1}) + FEW * few + ONE * (1 in seeds)
    return Table(caption, head, rows, title="What the choice of convention does")


def _detail(quantity: conventions.Quantity, entries: Sequence[conventions.AcrossConventions]) -> Table:
    several = len(entries) > 1
    at = [f"at {quantity.over}"] if quantity.over else []
    head = ["convention", REWRITTEN, *["pair"] * several, "plain", "residual", "residual / plain", "residual is", *at]
    said: set[conventions.Convention] = set()
    rows = []
    for each in (each for entry in entries for each in entry.conventions):
        rows.append([*_row(each, several), Cell(each.convention.meaning * (each.convention not in said))])
        said.add(each.convention)
    over = OVER.format(quantity.over) if quantity.over else ""
    return Table(over, [*head, MEANING], rows, title=quantity.title, wide=True)


def _row(each: conventions.UnderConvention, several: bool) -> list[Cell]:
    sides = [mean_cell(side.tolist()) for side in (each.plain, each.residual)]
    at = [Cell(f"{each.above} of {each.items}")] if "*" in each.convention.value else []
    named = [Cell(each.convention.label), Cell(each.convention.rewritten), *[Cell(each.pair.label)] * several]
    interval = "" if np.isnan(each.low) else f"[{number(each.low)}, {number(each.high)}]"
    ratio = cell(None if np.isnan(each.ratio) else each.ratio, interval)
    return [*named, *sides, ratio, Cell(each.conclusion), *at]


def _figure(entries: Sequence[conventions.AcrossConventions]) -> list[Figure]:
    """Ratios under all conventions, a line a quantity; none where nothing has a ratio."""
    if not (shown := [entry for entry in entries if len(entry.ratios) > 1]):
        return []
    asked = [*dict.fromkeys(entry.quantity for entry in shown)]
    looks = styles_of(dict.fromkeys(entry.pair for entry in shown))
    parts = np.array_split(np.arange(len(asked)), math.ceil(len(asked) / LINES))  # of about the same length
    panels = [
        _panel(number, [entry for entry in shown if asked.index(entry.quantity) in part], looks)
        for number, part in enumerate(parts)
    ]
    marks = legend((f"{pair.residual[0].group} over {pair.plain[0].group}", look) for pair, look in looks.items())
    return [Figure("conventions-ratios", RATIOS, panels, marks, _csv(entries), columns=2)]


def _panel(part: int, entries: Sequence[conventions.AcrossConventions], looks: dict[Pair, Style]) -> Panel:
    lines = [*dict.fromkeys(entry.quantity.title for entry in entries)]

    def draw(axes: Axes) -> None:
        axes.axvline(1, color=INK, linewidth=0.9)
        for entry in entries:
            place = lines.index(entry.quantity.title) + 0.5 * (list(looks).index(entry.pair) + 0.5) / len(looks) - 0.25
            axes.hlines(place, min(entry.ratios), max(entry.ratios), color=looks[entry.pair].colour, linewidth=0.9)
            dots(axes, entry.ratios, [place] * len(entry.ratios), looks[entry.pair])
        axes.set_yticks(range(len(lines)), [textwrap.fill(line, 24) for line in lines], fontsize=7)
        axes.set_ylim(len(lines) - 0.5, -0.5)

    return panel(f"conventions-{part}", "Ratio by convention", draw, x="residual / plain", y="", log_x=True)


def _csv(entries: Sequence[conventions.AcrossConventions]) -> str:
    columns = ["quantity", "convention", "keys", "pair", "seeds", "plain", "residual", "ratio", "low", "high"]
    rows: list[tuple[object, ...]] = []
    compared = [(entry, each) for entry in entries for each in entry.conventions]
    for entry, each in compared:
        keys = " ".join(each.convention.keys)
        named = (entry.quantity.title, each.convention.label, keys, each.pair.label, len(each.plain))
        numbers = (each.plain.mean(), each.residual.mean(), each.ratio, each.low, each.high)
        rows.append((*named, *numbers, each.conclusion, each.above, each.items, each.convention.rewritten))
    return csv_text((*columns, "conclusion", "residual larger at", "of", REWRITTEN), rows)


def _side_by_side(page: PageData, quantity: conventions.Quantity) -> list[Table]:
    """All conventions for all groups, without a conclusion; nothing where no group has two."""
    columns: dict[str, dict[conventions.Convention, Cell]] = {}
    for group, nets in page.groups.items():
        found = {each: conventions.values_of(nets, each) for each in quantity.conventions}
        cells = {each: mean_cell(conventions.typical(values).tolist()) for each, values in found.items() if values}
        columns |= {group: cells} if len(cells) > 1 else {}
    shown = [each for each in quantity.conventions if any(each in cells for cells in columns.values())]
    rows = [
        [
            *(Cell(each.label), Cell(each.rewritten)),
            *(cells.get(each, Cell("–")) for cells in columns.values()),
            Cell(each.meaning),
        ]
        for each in shown
    ]
    over = OVER_ALONE.format(quantity.over) if quantity.over else ""
    head = ["convention", REWRITTEN, *columns, MEANING]
    return [Table(over, head, rows, title=quantity.title, wide=True)] if shown else []
