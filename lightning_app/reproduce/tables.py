"""The table of an artefact -- paper, ours, ratio, verdict -- as Markdown, CSV and LaTeX."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from lightning_app.reproduce.plan import PAPER, Scale
from lightning_app.runs.folder import write_atomically
from lightning_app.verdicts import Claim, Reading, Verdict, judge

__all__ = ["counts", "frame", "shown", "write_tables"]

COLUMNS = ["quantity", "convention", "paper", "ours", "sd", "n", "ratio", "verdict", "why", "test"]


def frame(claims: Sequence[Claim], scale: Scale) -> pd.DataFrame:
    """One row for each reading of each claim; the verdict stands with the first. Numbers in full."""
    rows = [_row(claim, reading, scale, first=not i) for claim in claims for i, reading in enumerate(claim.readings)]
    return pd.DataFrame(rows, columns=COLUMNS)


def _row(claim: Claim, reading: Reading, scale: Scale, first: bool) -> dict[str, object]:
    verdict, why = _verdict(claim, scale) if first else ("", reading.outcome.why)
    ours = reading.ours
    ratio = ours.mean / claim.paper if isinstance(claim.paper, float) and claim.paper and ours.count else None
    numbers = {"ours": ours.mean if ours.count else None, "sd": ours.sd if ours.count > 1 else None, "n": ours.count}
    words = {"quantity": claim.quantity, "convention": reading.convention, "paper": claim.paper, "test": claim.test}
    return words | numbers | {"ratio": ratio, "verdict": str(verdict), "why": why}


def _verdict(claim: Claim, scale: Scale) -> tuple[Verdict, str]:
    return judge(claim) if scale is PAPER else (Verdict.NOT_TESTED, f"{scale.name} scale")


def counts(table: pd.DataFrame) -> str:
    """ "3 reproduced, 1 not tested", in the order of `Verdict`."""
    found = Counter(verdict for verdict in table["verdict"] if verdict)
    return ", ".join(f"{found[verdict]} {verdict}" for verdict in Verdict if found[verdict])


def write_tables(table: pd.DataFrame, folder: Path, head: str) -> list[Path]:
    """table.md, table.csv (all digits), table.tex, verdict.json.

    Args:
        head: Markdown above the table: what it is, its convention, and what made it.
    """
    read = shown(table)
    texts = {
        "table.md": f"{head}\n\n{_markdown(read)}\n",
        "table.csv": table.to_csv(index=False, lineterminator="\n"),
        "table.tex": _latex(read.drop(columns=["why", "test"])),
        "verdict.json": json.dumps({"counts": counts(table), "verdicts": _verdicts(table)}, indent=1) + "\n",
    }
    for name, text in texts.items():
        write_atomically(folder / name, text.encode())
    return [folder / name for name in texts]


def _verdicts(table: pd.DataFrame) -> dict[str, str]:
    return {row.quantity: row.verdict for row in table.itertuples() if row.verdict}


def shown(table: pd.DataFrame) -> pd.DataFrame:
    """As people read it: four digits, mean ± sd (n) in one column."""
    ours = [_ours(row.ours, row.sd, row.n) for row in table.itertuples()]
    return pd.DataFrame(
        {
            "quantity": table["quantity"].where(table["verdict"] != "", "″"),
            "convention": table["convention"],
            "paper": [_number(value) for value in table["paper"]],
            "ours: mean ± sd (n)": ours,
            "ratio": [_number(value, 3) for value in table["ratio"]],
            "verdict": table["verdict"],
            "why": table["why"],
            "test": table["test"].where(table["verdict"] != "", ""),
        }
    )


def _ours(mean: float, sd: float, count: int) -> str:
    if pd.isna(mean):
        return "–"
    spread = "" if pd.isna(sd) else f" ± {sd:.2g}"
    return f"{_number(mean)}{spread} ({count})"


def _number(value: object, digits: int = 4) -> str:
    """
    >>> _number(0.07227), _number("76 %"), _number(None), _number(25033.2), _number(2.7e-7), _number(4.25e12)
    ('0.07227', '76 %', '–', '25033', '2.7e-07', '4.25e+12')
    """
    if isinstance(value, str):
        return value
    if value is None or pd.isna(value):
        return "–"
    return f"{value:.0f}" if 10**digits <= abs(value) < 1e7 else f"{value:.{digits}g}"


def _markdown(table: pd.DataFrame) -> str:
    def line(cells: Sequence[object]) -> str:
        return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"

    rule = "|" + "---|" * len(table.columns)
    return "\n".join([line(table.columns), rule, *(line(row) for row in table.itertuples(index=False))])


def _latex(table: pd.DataFrame) -> str:
    return table.to_latex(index=False, escape=True)
