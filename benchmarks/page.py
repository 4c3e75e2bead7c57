"""The page of all figures, docs/speed.md, and the table of those with a goal in the README, from the files of results.

    python -m benchmarks.page

Made from docs/results/speed/*.json, which `python -m benchmarks --out docs/results/speed` writes: no figure is typed.
"""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.frame import Line, lines_of

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results" / "speed"
README, PAGE = ROOT / "README.md", ROOT / "docs" / "speed.md"
BEGIN, END = "<!-- speed: made by python -m benchmarks.page -->", "<!-- /speed -->"
HEAD = "| what | against | ratio (range over rounds) | goal | |\n|---|---|---|---|---|"
INTRODUCTION = """# Speed

Every figure is a ratio: contenders take turns, in an order that is reversed every other round, and are compared round by
round; the table has the median and the range. Training loops live in a process each, the rest share one. `python -m benchmarks
--root data --out FOLDER` measures all of it again, `python -m benchmarks.NAME --help` one of them. Other load on a shared
machine widens the range. A goal that is missed says so. Below each heading: what was measured, on which machine, by which
code.
"""


def main() -> None:
    results = read(RESULTS)
    PAGE.write_text(page(results))
    README.write_text(with_table(README.read_text(), results))


def read(folder: Path) -> dict[str, dict[str, Any]]:
    """Benchmark -> what its file says, by name."""
    return {file.stem: json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))}


def page(results: Mapping[str, Mapping[str, Any]]) -> str:
    return "\n".join([INTRODUCTION, *(section(name, content) for name, content in results.items())])


def section(name: str, content: Mapping[str, Any]) -> str:
    machine = content["machine"]
    made = f"{machine['processor']}, GPU {machine['gpu']}, {machine['torch threads']} thread, load {machine['load']} at the start"
    return "\n".join(
        [
            f"## {name}\n",
            f"{content['setting']}. {made}; {content['versions']}; {content['rounds']} rounds; commit {content['commit']}.\n",
            f"    {content['command']}\n",
            table(lines_of(content)),
            "",
        ]
    )


def with_table(text: str, results: Mapping[str, Mapping[str, Any]]) -> str:
    """The README with its table of figures that have a goal made anew.

    Raises:
        ValueError: if it has no place for it.
    """
    lines = [line for content in results.values() for line in lines_of(content) if line.goal is not None]
    found = re.subn(
        f"({re.escape(BEGIN)}).*?({re.escape(END)})", lambda m: f"{m[1]}\n{table(lines)}\n{m[2]}", text, flags=re.S
    )
    if found[1] != 1:
        raise ValueError(f"expected one place between {BEGIN} and {END} in the README, found {found[1]}.")
    return found[0]


def table(lines: Iterable[Line]) -> str:
    return "\n".join([HEAD, *map(row, lines)])


def row(line: Line) -> str:
    """A figure as Markdown has it.

    >>> from benchmarks.timing import Ratio
    >>> row(Line("compiled", "eager", Ratio(0.6, 0.55, 0.7), goal=0.625))
    '| compiled | eager | 0.6 (0.55 - 0.7) | ≤ 0.625 | met |'
    >>> print(row(Line("||J||", "exact", Ratio.of(0.1))))  # a bar would be the end of a cell
    | \\|\\|J\\|\\| | exact | 0.1 |  |  |
    """
    ratio = line.ratio
    what, against = (text.replace("|", r"\|") for text in (line.what, line.against))
    spread = "" if ratio.lowest == ratio.highest else f" ({ratio.lowest:.3g} - {ratio.highest:.3g})"
    goal = "" if line.goal is None else f"{'≤' if line.better == 'less' else '≥'} {line.goal:.3g}"
    met = {None: "", True: "met", False: "**missed**"}[line.met]
    return f"| {what} | {against} | {ratio.median:.3g}{spread} | {goal} | {met} |"


if __name__ == "__main__":
    main()
