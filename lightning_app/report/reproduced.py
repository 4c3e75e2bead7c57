"""Verdicts that ``reproduce`` has written before: its tables, as they stand in results/<paper>/<artefact>/."""

import io
from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from lightning_app.errors import UserError
from lightning_app.report.blocks import Cell, Table, deviation, number
from lightning_app.untrusted import read_text

__all__ = ["artefacts", "tables"]

VERDICT, TABLE = "verdict.json", "table.csv"
COLUMNS = ["quantity", "convention", "paper", "ours", "sd", "n", "verdict", "why", "test"]
HEAD = ["claim", "reading", "paper", "ours", "verdict", "why"]
CAPTION = "Made by `reproduce` from runs of its own, and read from its table."


def artefacts(paths: Iterable[Path]) -> list[Path]:
    """The folders at or below the given paths that hold a verdict, sorted by path."""
    return sorted({file.parent for path in paths for file in Path(path).rglob(VERDICT)})


def tables(folders: Iterable[Path]) -> list[Table]:
    """The table of each artefact.

    Raises:
        UserError: a verdict without a table of ours beside it.
    """
    return [_table(folder) for folder in folders]


def _table(folder: Path) -> Table:
    try:
        table = io.StringIO(read_text(folder / TABLE))
        rows = [_row(row) for row in pd.read_csv(table, keep_default_na=False, dtype=str)[COLUMNS].itertuples()]
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"expected {folder / TABLE}, with the columns {', '.join(COLUMNS)}, beside {VERDICT}; got: {error}. "
            "`reproduce` writes both."
        ) from error
    title = "/".join(folder.parts[-3:] if folder.name == "smoke" else folder.parts[-2:])
    return Table(CAPTION, HEAD, rows, title=f"{title}, made by reproduce", wide=True)


def _row(row) -> list[Cell]:
    quantity, test = (row.quantity, row.test) if row.verdict else ("″", "")
    paper = Cell(_rounded(row.paper), note=test)
    return [Cell(quantity), Cell(row.convention), paper, _ours(row), Cell(row.verdict), Cell(row.why)]


def _ours(row) -> Cell:
    if not row.ours:
        return Cell("–")
    spread = f" ± {deviation(float(row.sd))}" if row.sd else ""
    return Cell(_rounded(row.ours) + spread, row.ours, f"({row.n})")


def _rounded(text: str) -> str:
    """A number with four digits; words as they are."""
    try:
        return number(float(text))
    except ValueError:
        return text
