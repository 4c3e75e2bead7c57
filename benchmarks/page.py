"""docs/speed.md, the one page of measured speeds, from the files of results.

    python -m benchmarks.page

Made from docs/results/speed/*.json, which `python -m benchmarks --out docs/results/speed` writes: no number is typed.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.harness import ROOT, Row, rows_of

RESULTS = ROOT / "docs" / "results" / "speed"
PAGE = ROOT / "docs" / "speed.md"
HEAD = "| what | against | ratio (range over rounds) | goal | |\n|---|---|---|---|---|"
INTRODUCTION = """# Speed

Every number is a ratio: contenders take turns, in an order that is reversed every other round, and are compared round by
round; the table has the median and the range. The loops of `training`, `seeds` and `peers` run in a process each, the rest
share one. `python -m benchmarks --root data --out FOLDER --run runs/digits/quickstart` measures all of it again, `python -m
benchmarks.NAME --help` one of them. Other load on a shared machine widens the range. Below each heading: what was measured,
on which machine, by which code. This page is written by `python -m benchmarks.page` from docs/results/speed/*.json.
"""


def main() -> None:
    PAGE.write_text(page(read(RESULTS)), encoding="utf-8")


def read(folder: Path) -> dict[str, dict[str, Any]]:
    """Benchmark -> content of its file, by name; of gpu.json, each case by its own."""
    found = {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.json"))}
    return found | {f"gpu: {case}": content for case, content in found.pop("gpu", {}).items()}


def page(results: Mapping[str, Mapping[str, Any]]) -> str:
    # Of a GPU, cases have the same rows.
    named = {name: f", {name}" if name.startswith("gpu: ") else "" for name in results}
    rows = [
        replace(row, what=row.what + named[name])
        for name, content in results.items()
        for row in rows_of(content)
        if row.goal is not None
    ]
    missed = [row for row in rows if not row.met]
    summary = f"{len(rows) - len(missed)} of {len(rows)} goals are met. Missed:\n\n{table(missed)}\n"
    return "\n".join([INTRODUCTION, summary, *(section(name, content) for name, content in results.items())])


def section(name: str, content: Mapping[str, Any]) -> str:
    machine = content["machine"]
    made = f"{machine['processor']}, GPU {machine['gpu']}, {machine['torch threads']} thread, load {machine['load']} at the start"
    by = f"{made}; {content['versions']}; {content['rounds']} rounds; commit {content['commit']}"
    lines = (f"## {name}", f"{content['setting']}. {by}.", f"    {content['command']}", table(rows_of(content)))
    return "\n\n".join(lines) + "\n"


def table(rows: Iterable[Row]) -> str:
    return "\n".join([HEAD, *map(str, rows)])


if __name__ == "__main__":
    main()
