"""The page's figures and tables as files for a paper: ``--export pdf,svg,csv,latex``.

Names are the page's anchors: ``learning-train-risk.pdf`` is the panel of that id, ``learning-curves.csv`` the data behind
its figure, ``headline-table-1.tex`` the first table of the section *headline*. A panel is drawn anew with its legend below
it: vectors, with fonts embedded. Numbers in CSV have all their digits; in LaTeX those of the page.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path

from lightning_app.common.errors import UserError
from lightning_app.common.files import with_folder, write_atomically
from lightning_app.common.latex import table as in_latex
from lightning_app.common.text import file_name, unlike
from lightning_app.report.blocks import Cell, Figure, Section, Table, csv_text

FORMATS = ("pdf", "svg", "csv", "latex")


def formats(option: str) -> tuple[str, ...]:
    """The formats that an option names.

    Raises:
        UserError: for an unknown one.

    >>> formats("svg, pdf")
    ('svg', 'pdf')
    """
    found = tuple(dict.fromkeys(word.strip().lower() for word in option.split(",") if word.strip()))
    if not found or (unknown := [word for word in found if word not in FORMATS]):
        raise UserError(
            f"export takes some of {', '.join(FORMATS)}, with commas between on the command line, got {option!r}"
            + (f": {', '.join(unknown)} is not among them." if found else ".")
        )
    return found


def write_exports(sections: Iterable[Section], folder: Path, wanted: Sequence[str]) -> None:
    """Write every panel, every figure's data and every table, in the formats wanted, over those of an earlier export."""
    written: dict[str, set[str]] = {}  # by what their names end on
    for name, content in _files(sections, wanted):
        stem, _, ending = name.rpartition(".")
        taken = written.setdefault(ending, set())
        taken.add(stem := unlike(stem, taken))  # names that are long, or differ in a space, may become one
        write_atomically(with_folder(folder / f"{stem}.{ending}"), content)


def _files(sections: Iterable[Section], wanted: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    blocks = [(section, block) for section in sections for block in section.blocks]
    for section, block in blocks:
        if isinstance(block, Figure):
            for form in (form for form in ("pdf", "svg") if form in wanted):
                yield from ((f"{file_name(each.key)}.{form}", each.save(form, block.legend)) for each in block.panels)
            if "csv" in wanted:
                yield from ((f"{file_name(data.name)}.csv", data.csv.encode()) for data in block.data)
        elif isinstance(block, Table) and block.rows:
            name = section.name_of(block)
            if "csv" in wanted:
                yield f"{name}.csv", _exact(block).encode()
            if "latex" in wanted:
                captioned = replace(block, caption=block.caption or section.lead)  # the lead explains all its tables
                yield f"{name}.tex", latex(captioned, name).encode()


def _exact(table: Table) -> str:
    """As CSV: a number with all its digits, whatever was noted beside it."""
    rows = [[cell.exact or " ".join(filter(None, (cell.text, cell.note))) for cell in row] for row in _padded(table)]
    return csv_text(table.head, rows)


def _padded(table: Table) -> list[list[Cell]]:
    """Rows as long as the head: a row may end early."""
    return [[cell or Cell("") for _, cell in zip_longest(table.head, row)] for row in table.rows]


def latex(table: Table, label: str) -> str:
    """The table in LaTeX; columns of numbers to the right."""
    rows = _padded(table)
    numeric = [all(row[i].exact or row[i].text in ("–", "") for row in rows) for i in range(len(table.head))]
    title = table.title + "." if table.title and table.title[-1] not in ".?!" else table.title
    caption = " ".join(filter(None, (title, table.caption)))
    return in_latex(table.head, [[_with_note(cell) for cell in row] for row in rows], numeric, caption, label)


def _with_note(cell: Cell) -> str:
    note = cell.note if not cell.note or cell.note.startswith(("(", "[")) else f"({cell.note})"
    return " ".join(filter(None, (cell.text, note)))
