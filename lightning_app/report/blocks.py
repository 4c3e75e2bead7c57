"""What a section is made of: figures, tables, texts, sentences. The template knows these and nothing of runs."""

import base64
import csv
import gzip
import io
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import ClassVar, NamedTuple
from urllib.parse import quote

import numpy as np

from lightning_app.common.numbers import number, with_sd
from lightning_app.common.text import neutral, visible
from lightning_app.plots.style import Style

SHOWN = 1000  # lines of a table of data on the page itself
LONG = 200_000  # characters from which data is compressed: seventeen random digits a number fill pages


@dataclass(frozen=True)
class Cell:
    """What a table shows, and the exact number behind it."""

    text: str
    exact: str = ""
    note: str = ""  # small, beside the number
    link: str = ""  # key of what on the page it leads to


def cell(value: float | None, note: str = "") -> Cell:
    """A number as a cell; a dash for None: not measured."""
    return Cell("–") if value is None else Cell(number(value), repr(float(value)), note)


def mean_cell(values: Sequence[float | None], note: str = "") -> Cell:
    """Mean and sample standard deviation; a single value as it is; a dash if any was not measured.

    >>> mean_cell([1.0, 3.0]).text, mean_cell([0.8] * 3).text, mean_cell([0.5]).text, mean_cell([1.0, None]).text
    ('2 ± 1.4', '0.8000 ± 0.0', '0.5000', '–')
    >>> mean_cell([1.0, math.inf]).text, mean_cell([1.0, math.nan]).text
    ('inf', 'nan')
    """
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return cell(None)
    if len(known) == 1:
        return cell(known[0], note)
    mean, sd = float(np.mean(known)), math.nan
    if np.isfinite(known).all():  # of equal values exactly 0: rounding of their mean would leave 1e-16 of them
        sd = float(np.std(known, ddof=1)) if len(set(known)) > 1 else 0.0
    return Cell(with_sd(mean, sd), repr(mean) + f" ± {sd!r}" * math.isfinite(sd), note)


def csv_text(columns: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    """Rows as CSV with every digit; NaN and infinity by name, so that "not measured" and "diverged" stay two things.

    Texts that a spreadsheet would run as a formula have an apostrophe before them; hidden characters are written out.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(csv_name, columns))
    writer.writerows([csv_name(value) if isinstance(value, str) else value for value in row] for row in rows)
    return text.getvalue()


@lru_cache(maxsize=4096)
def csv_name(text: str) -> str:
    """A text as a cell has it; kept, because a column repeats a few names thousands of times."""
    return neutral(visible(text))


def seeds_csv(spreads: Sequence[Iterable[object]]) -> dict[str, str]:
    """`PageData.spreads` as a figure's further data; nothing where no group has several seeds."""
    columns = ("epoch", "group", "name", "mean", "sd", "min", "max", "count")
    return {"seeds": csv_text(columns, spreads)} if spreads else {}


@dataclass(frozen=True)
class Rows:
    """Which rows of its figure's data a panel draws, and how."""

    where: Mapping[str, Sequence[str]] = field(default_factory=dict)  # column -> what its rows have there
    x: str = "epoch"  # column
    y: str = "value"  # column
    who: str = "net"  # column: whose row it is
    line: str = ""  # column that tells several curves of one net apart
    low: str = ""  # columns of the ends of a band
    high: str = ""
    # Names in column x -> places on the axis; others are not drawn.
    places: Mapping[str, float] = field(default_factory=dict)
    measures: Sequence[str] = ()  # of the maps, "<prefix>/*/<field>": what is drawn while epochs pass


@dataclass(frozen=True)
class Panel:
    """One pair of axes."""

    key: str  # unique on the page: its anchor and the salt of its SVG ids
    title: str
    svg: str  # with what `interactive` says of its axes and rows
    save: Callable[[str, Sequence["Entry"]], bytes]  # "pdf" or "svg", legend -> a file that stands alone


class Entry(NamedTuple):
    """One line of a legend."""

    swatch: str  # SVG
    label: str
    style: Style


@dataclass(frozen=True)
class Data:
    """Numbers behind a figure, as a file within the page."""

    name: str  # of the file, less .csv
    csv: str
    packed: bool = False  # is it for the page's script, compressed whatever its length and not shown?

    @property
    def file(self) -> str:
        """Name of the file to download."""
        return f"{self.name}.csv.gz" if self._long else f"{self.name}.csv"

    @property
    def uri(self) -> str:
        """The file itself, as a data: address; compressed where it is long."""
        if not self._long:
            return "data:text/csv;charset=utf-8," + quote(self.csv, safe=",/:=+()")
        # Random digits shrink no further at higher levels. No date: the same bytes for the same numbers.
        packed = gzip.compress(self.csv.encode(), compresslevel=3, mtime=0)
        return "data:application/gzip;base64," + base64.b64encode(packed).decode()

    @property
    def _long(self) -> bool:
        return self.packed or len(self.csv) > LONG

    @property
    def shown(self) -> str:
        """As much as one reads on a page: of a long table its beginning."""
        if self.packed:
            return ""
        lines = self.csv.splitlines(keepends=True)
        rest = len(lines) - SHOWN
        return self.csv if rest <= 0 else "".join(lines[:SHOWN]) + f"... and {rest} more lines in the file\n"


@dataclass(frozen=True)
class Figure:
    """Panels side by side with one legend, one caption and the numbers behind them."""

    kind: ClassVar[str] = "figure"
    key: str
    caption: str  # quantity, unit, convention
    panels: list[Panel]
    legend: list[Entry]
    csv: str
    columns: int = 3  # at most, on a wide page
    more: dict[str, str] = field(default_factory=dict)  # further CSV by what its file's name ends on
    frames: str = ""  # CSV: what its panels show at every epoch (`frames_csv`)
    packed: bool = False  # is its CSV too wide to be read on the page?

    @property
    def data(self) -> list[Data]:
        """All files behind the figure."""
        found = [Data(self.key, self.csv, self.packed)]
        found += [Data(f"{self.key}-{name}", csv) for name, csv in self.more.items()]
        return found + [Data(f"{self.key}-epochs", self.frames, packed=True)] * bool(self.frames)


@dataclass(frozen=True)
class Table:
    """Head, rows and what the numbers mean; the first cell of a row is its head."""

    kind: ClassVar[str] = "table"
    caption: str
    head: list[str]
    rows: list[list[Cell]]
    title: str = ""
    wide: bool = False  # of the whole width, also beside other tables
    folded: str = ""  # the line under which the rows are folded away; empty: they are shown


@dataclass(frozen=True)
class Text:
    """A text as it is, folded away: a configuration, a log."""

    kind: ClassVar[str] = "text"
    title: str
    text: str


@dataclass(frozen=True)
class Sentences:
    """A list of sentences, each with what it leads to, and what is to be known of them all."""

    kind: ClassVar[str] = "sentences"
    sentences: list[Cell]
    caption: str = ""


Block = Figure | Table | Text | Sentences


@dataclass(frozen=True)
class Section:
    """One question the page answers; without blocks its notices say why."""

    key: str
    title: str
    lead: str = ""
    blocks: Sequence[Block] = ()
    notices: Sequence[str] = ()  # what these runs do not hold, what went wrong
    # Keys that it shows, or their beginnings up to a slash: no other section has to show these.
    families: Sequence[str] = ()
    short: str = ""  # its title in the contents; empty: the title
    folded: bool = False  # is it closed at first?
    thumbnail: str = ""  # key of a panel to show small beside it

    @property
    def anchors(self) -> list[str]:
        """Keys of its figures and of their panels: what a link on the page can lead to."""
        figures = [block for block in self.blocks if isinstance(block, Figure)]
        return [key for figure in figures for key in (figure.key, *(panel.key for panel in figure.panels))]

    def name_of(self, table: Table) -> str:
        """Of its tables none has a key of its own: "weights-table-2"."""
        tables = (block for block in self.blocks if block.kind == "table")
        return f"{self.key}-table-{next(number for number, block in enumerate(tables, 1) if block is table)}"

    def by_kind(self) -> list[tuple[str, list[Block]]]:
        """Blocks in order, neighbours of one kind together."""
        return [(kind, list(blocks)) for kind, blocks in itertools.groupby(self.blocks, lambda block: block.kind)]
