"""The table of an artefact -- paper, ours, ratio, verdict -- as Markdown, CSV and LaTeX, made from its record's rows."""

import json
from collections.abc import Sequence
from typing import Any

import pandas as pd

from lightning_app.common import latex
from lightning_app.common.numbers import brief
from lightning_app.common.text import markdown_row
from lightning_app.papers.records import number, reduced_of, value, verdict_of, words_of_test

COLUMNS = ["quantity", "class", "convention", "paper", "ours", "sd", "n", "ratio"]
COLUMNS += ["verdict", "why", "test", "reduced", "seeds"]
NUMBERS = ("ours: mean ± sd (n)", "ratio")  # the columns of numbers, as people read them


def frame(rows: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """One row for each reading of each claim; what is said of the claim stands with the first. Numbers in full."""
    lines = [_line(row, reading, first=not i) for row in rows for i, reading in enumerate(row["readings"])]
    return pd.DataFrame(lines, columns=COLUMNS)


def _line(row: dict[str, Any], reading: dict[str, Any], first: bool) -> dict[str, object]:
    paper, mean = number(row["paper"]), value(reading["mean"])
    ratio = mean / paper if paper and reading["n"] else None
    said = {"class": row["class"], "test": words_of_test(row), "verdict": verdict_of(row) if first else ""}
    return said | {
        "quantity": row["quantity"],
        "convention": reading["convention"],
        "paper": row["paper"],
        "ours": mean if reading["n"] else None,
        "sd": value(reading["sd"]) if reading["n"] > 1 else None,
        "n": reading["n"],
        "ratio": ratio,
        "why": row["why"] if first else reading["missing"] or reading["why"],
        "reduced": reduced_of(row) if first else "",
        "seeds": json.dumps(reading["values"]),
    }


def texts(table: pd.DataFrame, head: str, caption: str, label: str) -> dict[str, str]:
    """table.md, table.csv (all digits, and each seed's) and table.tex, by name.

    Args:
        head: Markdown above the table: what it is, its convention, and what made it.
        caption: of the table in LaTeX.
        label: of the same table, behind ``tab:``.
    """
    read = shown(table)
    rule = "|" + "---|" * len(read.columns)
    markdown = "\n".join([markdown_row(read.columns), rule, *map(markdown_row, read.itertuples(index=False))])
    own = read.drop(columns=["why", "test"])
    numeric = [name in NUMBERS for name in own.columns]
    return {
        "table.md": f"{head}\n\n{markdown}\n",
        "table.csv": table.to_csv(index=False, lineterminator="\n"),
        "table.tex": latex.table([*own.columns], own.to_numpy().tolist(), numeric, caption, label),
    }


def shown(table: pd.DataFrame) -> pd.DataFrame:
    """As people read it: four digits, mean ± sd (n) in one column; reduced scale where it was run."""
    rows = table.itertuples()
    ours = [brief(row.ours) if pd.isna(row.ours) else f"{brief(row.ours, sd=row.sd)} ({row.n})" for row in rows]
    first = table["verdict"] != ""
    read = pd.DataFrame(
        {
            "quantity": table["quantity"].where(first, "″"),
            "class": table["class"].where(first, ""),
            "convention": table["convention"],
            "paper": [brief(value) for value in table["paper"]],
            NUMBERS[0]: ours,
            NUMBERS[1]: [brief(value, 3) for value in table["ratio"]],
            "verdict": table["verdict"],
            "reduced scale": table["reduced"],
            "why": table["why"],
            "test": table["test"].where(first, ""),
        }
    )
    return read if table["reduced"].any() else read.drop(columns="reduced scale")
