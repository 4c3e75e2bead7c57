"""Verdicts that ``reproduce`` has written before: its records, as they stand in results/<paper>/<artefact>/."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from lightning_app.common.numbers import number, with_sd
from lightning_app.papers.records import RECORD, read_record, reduced_of, value, verdict_of, words_of_test
from lightning_app.report.blocks import Cell, Table

__all__ = ["artefacts", "tables"]

HEAD = ["claim", "class", "reading", "paper", "ours", "verdict", "why"]
CAPTION = "Made by `reproduce` from runs of its own, and read from its record; `verify` judges it again."


def artefacts(paths: Iterable[Path]) -> list[Path]:
    """The folders at or below the given paths that hold a record, sorted by path."""
    return sorted({file.parent for path in paths for file in Path(path).rglob(RECORD)})


def tables(folders: Iterable[Path]) -> list[Table]:
    """The table of each artefact.

    Raises:
        UserError: a record that is not one of ours.
    """
    return [_table(read_record(folder)) for folder in folders]


def _table(record: dict[str, Any]) -> Table:
    rows = [cells for row in record["rows"] for cells in _rows(row)]
    at = "" if record["scale"] == "paper" else f" at {record['scale']} scale"
    return Table(CAPTION, HEAD, rows, title=f"{record['artefact']}, made by reproduce{at}", wide=True)


def _rows(row: dict[str, Any]) -> Iterator[list[Cell]]:
    """One for each reading; what is said of the claim stands with the first."""
    for place, reading in enumerate(row["readings"]):
        test, words = ("", ("″", "", "", reading["why"])) if place else (words_of_test(row), _of_claim(row))
        claim, about, verdict, why = map(Cell, words)
        paper = Cell(_rounded(row["paper"]), note=test)
        yield [claim, about, Cell(reading["convention"]), paper, _ours(reading), verdict, why]


def _of_claim(row: dict[str, Any]) -> tuple[str, str, str, str]:
    reduced = f"; at reduced scale: {found}" if (found := reduced_of(row)) else ""
    return row["quantity"], row["class"], verdict_of(row) + reduced, row["why"]


def _ours(reading: dict[str, Any]) -> Cell:
    if not reading["n"]:
        return Cell("–")
    mean, sd = value(reading["mean"]), value(reading["sd"])
    return Cell(with_sd(mean, sd) if reading["n"] > 1 else number(mean), repr(mean), f"({reading['n']})")


def _rounded(printed: float | str) -> str:
    """A number with four digits; words as they are."""
    return printed if isinstance(printed, str) else number(float(printed))
