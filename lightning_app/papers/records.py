"""The record of an artefact, verdict.json: each judged row with the numbers of each seed, and what they rest on.

Tables, the report's page and ``verify`` are made from these rows, so that they cannot say different things. The schema is
results/verdict.schema.json. JSON has no infinity and no NaN: they are the texts "inf", "-inf" and "nan".
"""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from lightning_app.common.errors import UserError
from lightning_app.common.safe_io import read_json
from lightning_app.papers.verdicts import Claim, Class, Reading, Verdict, counted, judge, judge_reduced, with_power

RECORD = "verdict.json"
SCHEMA_VERSION = 1
Row = dict[str, Any]
REDUCED = {Verdict.AGREES, Verdict.DISAGREES, Verdict.UNDECIDED}  # words of reduced scale, which say how far it went


def rows_of(claims: Sequence[Claim], about: Class, scale: str, extent: str = "") -> list[Row]:
    """One row a claim, as JSON has it.

    Args:
        about: the class of claims that do not say their own.
        scale: "paper" and "reduced" are judged, each in its words; no other is.
        extent: of reduced scale, "30 of 200 epochs, 3 seeds".
    """
    rows = [_row(claim, claim.about or about, scale) for claim in claims]
    return [row | ({"extent": extent} if row["verdict"] in REDUCED else {}) for row in rows]


def _row(claim: Claim, about: Class, scale: str) -> Row:
    judges = {"paper": judge, "reduced": judge_reduced}
    verdict, why = judges[scale](claim) if scale in judges else (Verdict.NOT_TESTED, f"{scale} scale")
    return {
        "quantity": claim.quantity,
        "class": about.value,
        "basis": claim.basis.value,
        "paper": claim.paper if isinstance(claim.paper, str) else _encoded(claim.paper),
        "test": claim.test,
        "power": claim.power,
        "readings_differ_in": claim.varies.value,
        "verdict": verdict.value,
        "why": why,
        "readings": [_reading(reading) for reading in claim.readings],
    }


def _reading(reading: Reading) -> Row:
    ours, outcome = reading.ours, reading.outcome
    return {
        "convention": reading.convention,
        "values": [_encoded(each) for each in ours.values],
        "mean": _encoded(ours.mean) if ours.count else None,
        "sd": _encoded(ours.sd) if ours.count > 1 else None,
        "n": ours.count,
        "missing": ours.missing,
        "held": outcome.held,
        "judged": outcome.judged,
        "why": outcome.why,
    }


def _encoded(value: float) -> float | str:
    return float(value) if math.isfinite(value) else str(float(value))


def value(encoded: float | str | None) -> float:
    """A number of a record; NaN for none.

    >>> value("inf"), value(0.5), value(None)
    (inf, 0.5, nan)
    """
    return math.nan if encoded is None else float(encoded)


def number(printed: float | str) -> float | None:
    """The paper's number; None where it prints words.

    >>> number(0.07), number("> 80"), number("")
    (0.07, None, None)
    """
    return float(printed) if isinstance(printed, float | int) else None


def words_of_test(row: Row) -> str:
    """What is asked, and what that would let pass."""
    return with_power(row["test"], row["power"])


def verdict_of(row: Row) -> str:
    """The verdict in full: "reproduced", "agrees at 30 of 200 epochs, 3 seeds"."""
    return f"{row['verdict']} at {row['extent']}" if row.get("extent") else row["verdict"]


def reduced_of(row: Row) -> str:
    """What reduced scale says of the same claim; "" where it was not run."""
    return verdict_of(row["reduced"]) if "reduced" in row else ""


def counts_of(rows: Iterable[Row]) -> dict[str, dict[str, int]]:
    """How many rows of each class have each verdict."""
    return counted((Class(row["class"]), Verdict(row["verdict"])) for row in rows)


def read_record(folder: Path) -> dict[str, Any]:
    """The record in an artefact's folder.

    Raises:
        UserError: if there is none, or it is not one of ours.
    """
    content = read_json(folder / RECORD)
    rows = content.get("rows") if isinstance(content, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) and row.keys() >= KEYS for row in rows):
        raise UserError(
            f"{folder / RECORD} is no record of ours: expected rows with {', '.join(sorted(KEYS))}. Restore it, or make it "
            "again with `python main.py reproduce`."
        )
    return content


KEYS = {"quantity", "class", "paper", "test", "verdict", "why", "readings"}
