"""Verdicts that ``reproduce`` has written before: its records, as they stand in results/<paper>/<artefact>/.

The page judges no claim itself: which nets are a paper's only ``reproduce`` knows, by their whole configuration.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from lightning_app.common.numbers import number, plural, with_sd
from lightning_app.papers.records import RECORD, read_record, reduced_of, value, verdict_of, words_of_test
from lightning_app.papers.verdicts import Verdict
from lightning_app.report.blocks import Cell, Section, Table
from lightning_app.report.page_data import PageData
from lightning_app.runs.folder import searched

TITLE = "What the papers claim"
WHAT = (
    "Verdicts of the command reproduce about its own runs and computations; it recognises its runs by their whole "
    "configuration. They say nothing about other nets on this page. Class: what a claim is about. Reproduced: the test "
    "holds under every defensible reading that could be judged; not reproduced: under none. Artefact of a convention: it "
    "holds only under some ways to measure. Depends on a setting: it holds only with some settings that the paper leaves "
    "open. Holds as rebuilt: the text at hand had lost the formula of this statement. Checked: an identity, or an "
    "addition that no paper states. Described: a number without a test. Not tested: the row says what is missing. With "
    "fewer epochs than the paper, only orderings and ratios are judged: agrees, disagrees, or undecided. An interval "
    "that contains 0 leaves the sign unresolved; it does not mean that there is no difference. Paper: what it prints; beside "
    "it, our test of it, and what the test would let pass where that is much. Ours: mean ± sample standard deviation "
    "over seeds (number of seeds)."
)
HEAD = ["claim", "class", "reading", "paper", "ours", "verdict", "why"]
CAPTION = "Written by the command reproduce from its own runs; the command verify judges the record again."


def section(page: PageData) -> Section | None:
    """None of a page that was given no verdicts."""
    found = tables(page.verdicts)
    return Section("claims", TITLE, WHAT, found, short="Claims") if found else None


def artefacts(paths: Iterable[Path]) -> list[Path]:
    """The folders at or below the given paths that hold a record, sorted by path."""
    return sorted({folder for path in paths for folder, names in searched(path) if RECORD in names})


def tables(folders: Iterable[Path]) -> list[Table]:
    """The table of each artefact, and one folded away of what is not tested yet. UserError: a record that is not one of ours."""
    found = []
    for record in map(read_record, folders):
        at = "" if record["scale"] == "paper" else f" at {record['scale']} scale"
        title = f"{record['artefact']}, made by reproduce{at}"
        others = [row for row in record["rows"] if row["verdict"] == Verdict.NOT_TESTED and "reduced" not in row]
        judged = [row for row in record["rows"] if row not in others]
        found += [Table(CAPTION, HEAD, _cells(judged), title=title, wide=True)] * bool(judged)
        folded = f"{title}: {plural(len(others), 'claim')} not tested yet."
        found += [Table(CAPTION, HEAD, _cells(others), wide=True, folded=folded)] * bool(others)
    return found


def _cells(rows: Iterable[dict[str, Any]]) -> list[list[Cell]]:
    return [cells for row in rows for cells in _rows(row)]


def _rows(row: dict[str, Any]) -> Iterator[list[Cell]]:
    """One for each reading; what is said of the claim stands with the first."""
    printed = row["paper"] if isinstance(row["paper"], str) else number(float(row["paper"]))
    reduced = f"; at reduced scale: {found}" if (found := reduced_of(row)) else ""
    of_claim = (row["quantity"], row["class"], verdict_of(row) + reduced, row["why"])
    for place, reading in enumerate(row["readings"]):
        claim, about, verdict, why = map(
            Cell, ("″", "", "", reading["missing"] or reading["why"]) if place else of_claim
        )
        paper = Cell(printed, note="" if place else words_of_test(row))
        count, mean, sd = reading["n"], value(reading["mean"]), value(reading["sd"])
        ours = Cell(with_sd(mean, sd) if count > 1 else number(mean), repr(mean), f"({count})") if count else Cell("–")
        yield [claim, about, Cell(reading["convention"]), paper, ours, verdict, why]
