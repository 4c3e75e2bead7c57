"""The record of an artefact, verdict.json: each judged row with the numbers of each seed, and what they rest on.

Tables, the report's page and ``verify`` are made from these rows, so that they cannot say different things. The schema is
results/verdict.schema.json. JSON has no infinity and no NaN: they are the texts "inf", "-inf" and "nan".
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning_app.errors import UserError
from lightning_app.reproduce.artefact import Artefact
from lightning_app.reproduce.plan import PAPER, REDUCED, Scale
from lightning_app.untrusted import read_json
from lightning_app.verdicts import Claim, Class, Reading, Verdict, judge, judge_reduced

__all__ = ["RECORD", "SCHEMA_VERSION", "counted", "in_words", "number", "read_record", "rows_of", "value"]

RECORD = "verdict.json"
SCHEMA_VERSION = 1
Row = dict[str, Any]


def rows_of(artefact: Artefact, claims: Sequence[Claim], scale: Scale) -> list[Row]:
    """One row a claim, as JSON has it."""
    return [_row(claim, claim.about or artefact.about, scale) for claim in claims]


def _row(claim: Claim, about: Class, scale: Scale) -> Row:
    verdict, why = _judged(claim, scale)
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


def _judged(claim: Claim, scale: Scale) -> tuple[Verdict, str]:
    if scale is PAPER:
        return judge(claim)
    return judge_reduced(claim) if scale is REDUCED else (Verdict.NOT_TESTED, f"{scale.name} scale")


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


def counted(rows: Iterable[Row]) -> dict[str, dict[str, int]]:
    """How many rows of each class have each verdict; never one sum over classes.

    >>> counted([{"class": "trained", "verdict": "reproduced"}, {"class": "formula", "verdict": "checked"}])
    {'formula': {'checked': 1}, 'trained': {'reproduced': 1}}
    """
    found = Counter((row["class"], row["verdict"]) for row in rows)
    by_class = {about.value: {v.value: found[about.value, v.value] for v in Verdict} for about in Class}
    sorted_out = {about: {v: n for v, n in verdicts.items() if n} for about, verdicts in by_class.items()}
    return {about: verdicts for about, verdicts in sorted_out.items() if verdicts}


def in_words(counts: Mapping[str, Mapping[str, int]]) -> str:
    """ "formula: 3 reproduced, 1 checked; trained: 2 not tested".

    >>> in_words({"formula": {"reproduced": 3, "checked": 1}, "trained": {"not tested": 2}})
    'formula: 3 reproduced, 1 checked; trained: 2 not tested'
    """
    parts = (f"{about}: {', '.join(f'{n} {v}' for v, n in found.items())}" for about, found in counts.items())
    return "; ".join(parts) or "no rows"


def read_record(folder: Path) -> dict[str, Any]:
    """The record in an artefact's folder.

    Raises:
        UserError: if there is none, or it is not one of ours.
    """
    content = read_json(folder / RECORD)
    rows = content.get("rows") if isinstance(content, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) and KEYS <= row.keys() for row in rows):
        raise UserError(
            f"{folder / RECORD} is no record of ours: expected rows with {', '.join(sorted(KEYS))}. Restore it, or make it "
            "again with `python main.py reproduce`."
        )
    return content


KEYS = {"quantity", "class", "paper", "test", "verdict", "why", "readings"}
