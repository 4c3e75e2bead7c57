"""Tables for people and for pipes: one function that every command uses.

On a terminal a table has rules, bold heads and the terminal's width. In a pipe, under NO_COLOR or on a dumb terminal it is
aligned text, a line a row, which grep and diff read. Neither torch nor Lightning is imported here, and rich only by the
first table, so that ``--help`` starts in milliseconds.
"""

import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.table import Table

VALUE = r"(\d[\d,.]*(e[-+]?\d+)?|inf|nan)"
NUMBER = re.compile(rf"[-+±≈<>]?\s?{VALUE}(\s?±\s?{VALUE})?(\s?(%|m?s|min|h))?(\s\(\d+\))?", re.IGNORECASE)
ABSENT = ("", "-", "–")  # what stands where there is no number
LONG = 24  # words up to this length are not broken either
ENDLESS = 1_000_000  # columns of a pipe


def is_terminal(stream: TextIO) -> bool:
    """Can the stream move its cursor? False for pipes, files and TERM=dumb."""
    return stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb", "unknown")


def styled(stream: TextIO) -> bool:
    """Does the stream take colours and rules? As `is_terminal`, and no NO_COLOR (no-color.org: set and not empty)."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR")


def table(
    title: str, head: Sequence[str], rows: Iterable[Sequence[object]], looks: Mapping[str, str] | None = None
) -> None:
    """Print a table to standard output.

    Columns of numbers are aligned right and never cut or wrapped; text is wrapped if the terminal is too narrow.
    Cells are shown literally: markup has no effect, and control characters are spelled out.

    Args:
        title: above the table; "" for none.
        head: one name per column; if empty, only the title is printed.
        rows: each with one cell per column; give floats as text, with the digits to show.
        looks: regular expression -> colour, such as "green", of the text in cells that it matches.

    Raises:
        ValueError: if a row is longer or shorter than the head.
    """
    from rich.console import Console

    print(table_text(title, head, rows, Console().width if styled(sys.stdout) else None, looks))


def table_text(
    title: str,
    head: Sequence[str],
    rows: Iterable[Sequence[object]],
    width: int | None = None,
    looks: Mapping[str, str] | None = None,
) -> str:
    """What `table` prints: with rules, in colour and of this width (characters) if one is given, else plain.

    >>> print(table_text("depth 5", ["net", "risk"], [["plain", "1.25"], ["residual", "0.5"]]))
    depth 5
    net       risk
    plain     1.25
    residual   0.5
    """
    from rich.console import Console
    from rich.text import Text

    from lightning_app.common.text import printable

    cells = [[printable(cell) for cell in row] for row in rows]
    if wrong := [row for row in cells if len(row) != len(head)]:
        raise ValueError(f"expected rows of {len(head)} cells, got {wrong[0]}.")
    made = _table(list(map(printable, head)), cells, width is not None, looks or {})
    console = Console(
        width=ENDLESS if width is None else width, force_terminal=width is not None, highlight=False, _environ={}
    )
    needed = console.measure(made).minimum  # below it rich would cut numbers: let the terminal break the line instead
    with console.capture() as captured:
        if title:
            console.print(Text(printable(title), "bold" if width else ""), soft_wrap=True)
        if head:
            console.print(made, width=max(needed, console.width) if width else None, crop=False)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], ruled: bool, looks: Mapping[str, str]) -> "Table":
    from rich import box
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text

    look = {"box": box.SIMPLE_HEAD, "header_style": "bold"} if ruled else {"box": None, "header_style": ""}
    made = Table(show_edge=False, pad_edge=False, **look)
    for name, column in zip(head, zip(*rows) if rows else [()] * len(head)):
        numbers = _are_numbers(column)
        whole = [*name.split(), *(column if numbers else [word[:LONG] for cell in column for word in cell.split()])]
        widest = max(map(cell_len, whole), default=0)
        made.add_column(Text(name), justify="right" if numbers else "left", min_width=widest, overflow="fold")
    for row in rows:
        texts = [Text(cell) for cell in row]  # words that are no markup
        for pattern, colour in looks.items():
            for text in texts:
                text.highlight_regex(pattern, colour)  # written in colour on terminals only
        made.add_row(*texts)
    return made


def _are_numbers(column: Sequence[str]) -> bool:
    """Is every cell a number, with or without uncertainty, unit and count, and at least one there?

    >>> [_are_numbers(column) for column in (["1.2 ± 0.1 (13)", "-"], ["3 %", "nan"], ["3x3", "1"], ["-", "-"])]
    [True, True, False, False]
    """
    there = [cell for cell in column if cell not in ABSENT]
    return bool(there) and all(NUMBER.fullmatch(cell) for cell in there)
