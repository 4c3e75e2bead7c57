"""Making names safe: a page, a terminal, a spreadsheet, LaTeX or a file system would take some for something else.

A run may be called ``=cmd()``, ``<script>``, ``50%_$x$`` or hold a character that turns the text after it around. Escaping of
HTML is jinja's; here is what it leaves alone.
"""

import itertools
import re
from collections.abc import Collection, Iterable

# Control characters but tab, line feed; line and paragraph separators, and what sets the direction of the text after it.
HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff\ufffe\uffff]"
)
BAR = r"\|"  # in Markdown
LONGEST = 120  # bytes of a file's name without its ending; file systems take 255
FORMULA = ("=", "+", "-", "@", "\t", "\r")


def visible(text: str) -> str:
    """The text with what cannot be seen written out: control characters, and those that reorder the text around them.

    >>> visible("a\\u202eb\\x00")
    'a⟨U+202E⟩b⟨U+0000⟩'
    """
    return HIDDEN.sub(lambda found: f"⟨U+{ord(found[0]):04X}⟩", text)


def printable(text: object) -> str:
    """For a terminal, on one line, with control characters spelled out: a run's name must not move the cursor.

    >>> printable("a\\x1b[31mb\\n")
    'a\\\\x1b[31mb\\\\n'
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))


def neutral(text: str) -> str:
    """A text for a cell of a CSV file: with an apostrophe before it where a spreadsheet would run it as a formula.

    >>> [neutral(text) for text in ("=1+1", "@x", "-0.5", "-0.5 ± 0.1", "-x", "net")]
    ["'=1+1", "'@x", '-0.5', '-0.5 ± 0.1', "'-x", 'net']
    """
    return f"'{text}" if text.startswith(FORMULA) and not all(map(_is_number, text.split(" ± "))) else text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def markdown_row(cells: Iterable[object]) -> str:
    """A row of a Markdown table; bars within a cell do not end it.

    >>> print(markdown_row(["||J||", 1]))
    | \\|\\|J\\|\\| | 1 |
    """
    return f"| {' | '.join(str(cell).replace('|', BAR) for cell in cells)} |"


def file_name(key: str) -> str:
    """A key of the page as the name of a file: letters, digits, dots and hyphens, no hidden file, not too long.

    >>> file_name("curvature-../x y"), file_name("learning-train-risk")
    ('curvature-..-x-y', 'learning-train-risk')
    """
    return re.sub(r"[^\w.-]+", "-", key).lstrip(".").encode()[:LONGEST].decode(errors="ignore")


def unlike(name: str, taken: Collection[str]) -> str:
    """The name, with a number behind it if it is taken.

    >>> unlike("a-b", {"a-b", "a-b-2"}), unlike("c", {"a-b"})
    ('a-b-3', 'c')
    """
    numbered = (f"{name}-{number}" for number in itertools.count(2))
    return next(each for each in itertools.chain([name], numbered) if each not in taken)
