"""Tables for a paper in LaTeX: any text escaped, also for pdflatex, and a layout that fits the page."""

import math
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence

from lightning_app.common.text import visible

PACKAGES = r"% \usepackage{adjustbox,array,booktabs}"
LINES = 60  # of one table environment; more go into further ones
LINE = 24  # letters of a line of text in a cell
HEAD_LINE = 12  # the same in the head of a column of numbers
EM = 0.5  # width of a letter, about
BREAK = "\0"  # between hyphens, of which LaTeX would make a dash

LETTERS = {
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "`": r"\textasciigrave{}"},
    **{"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", '"': "''"},
    **{"–": "--", "’": "'", "“": "``", "”": "''", "…": r"\dots{}", "\n": " "},
}
SYMBOLS = "αβγδεζηθκλμνξπρστφχψωΓΔΘΛΞΠΣΦΨΩ∂∇≥≤≠≈±×·√∞∈→‖⟨⟩⌊⌋"
NAMES = """
alpha beta gamma delta varepsilon zeta eta theta kappa lambda mu nu xi pi rho sigma tau varphi chi psi omega
Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega partial nabla geq leq neq approx pm times cdot surd infty in to
| langle rangle lfloor rfloor
"""
RAISED = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻", "0123456789+-"))
LOWERED = dict(zip("₀₁₂₃₄₅₆₇₈₉", "0123456789"))
ESCAPED = str.maketrans(
    LETTERS
    | {symbol: f"$\\{name}$" for symbol, name in zip(SYMBOLS, NAMES.split(), strict=True)}
    | {letter: f"$^{{{raised}}}$" for letter, raised in RAISED.items()}
    | {letter: f"$_{{{lowered}}}$" for letter, lowered in LOWERED.items()}
    | {BREAK: "{}", "−": "$-$", "½": r"$\frac12$", "′": r"$'$", "″": "$''$"}
)


def escaped(text: str) -> str:
    """The text as LaTeX sets it, also with pdflatex as far as our own symbols go.

    >>> print(escaped("50%_$x$, |λ₁| ≥ 1, --export"))
    50\\%\\_\\$x\\$, \\textbar{}$\\lambda$$_{1}$\\textbar{} $\\geq$ 1, -{}-export
    """
    return re.sub("-(?=-)", f"-{BREAK}", visible(text)).translate(ESCAPED)


def table(head: Sequence[str], rows: Sequence[Sequence[str]], numeric: Sequence[bool], caption: str, label: str) -> str:
    """``table`` environments with booktabs' rules: long texts are wrapped, and what is still too large for a page is shrunk.

    Args:
        head: of the columns.
        rows: as long as the head.
        numeric: which columns are numbers; they stand on the right.
        caption: of the table; further environments, if there are more than 60 lines, repeat its number.
        label: behind ``tab:``.
    """
    columns = list(zip(head, *rows))
    widths = [math.inf if number else _width(column) for number, column in zip(numeric, columns)]
    kinds = "".join(map(_kind, columns, widths))
    titles = [_stacked(*column) if number else escaped(column[0]) for number, column in zip(numeric, columns)]
    lines = [PACKAGES]
    for number, page in enumerate(_pages(rows, widths)):
        named = [rf"\caption{{{escaped(caption)}}}", rf"\label{{tab:{label}}}"]
        if number:
            named = [r"\addtocounter{table}{-1}", r"\caption{Continued.}"]
        lines += [
            r"\begin{table}",
            r"\centering",
            r"\begin{adjustbox}{max width=\linewidth, max totalheight=0.7\textheight}",
            r"\footnotesize",
            rf"\begin{{tabular}}{{{kinds}}}",
            r"\toprule",
            _row(titles),
            r"\midrule",
            *(_row(map(escaped, cells)) for cells in page),
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{adjustbox}",
            *named,
            r"\end{table}",
        ]
    return "\n".join([*lines, ""])


def _width(texts: Sequence[str]) -> int:
    """The letters of a line of a column of texts, in which no word is broken."""
    return max([LINE, *(len(word) for text in texts for word in re.split("[ \t\n]", text))])


def _kind(texts: Sequence[str], width: float) -> str:
    """A column of numbers, one that is as wide as its texts, or one of several lines."""
    if width == math.inf:
        return "r"
    return "l" if max(map(len, texts)) <= width else rf">{{\raggedright\arraybackslash}}p{{{EM * width:g}em}}"


def _pages(rows: Sequence[Sequence[str]], widths: Sequence[float]) -> Iterator[list[Sequence[str]]]:
    """The rows of each environment."""
    page: list[Sequence[str]] = []
    lines = 0
    for row in rows:
        height = max([1, *(math.ceil(len(text) / width) for text, width in zip(row, widths))])
        if page and lines + height > LINES:
            yield page
            page, lines = [], 0
        page.append(row)
        lines += height
    yield page


def _stacked(title: str, *numbers: str) -> str:
    """The head of a column of numbers, in lines that are hardly wider than they are."""
    lines = textwrap.wrap(title, max([HEAD_LINE, *map(len, numbers)]), break_long_words=False, break_on_hyphens=False)
    stacked = r"\\{}".join(map(escaped, lines))
    return stacked if len(lines) < 2 else rf"\shortstack[r]{{{stacked}}}"


def _row(cells: Iterable[str]) -> str:
    r"""Escaped cells between &; braces around the first if LaTeX would take it for an option of the \\ or rule before it."""
    first, *others = cells
    return " & ".join([f"{{{first}}}" if first.lstrip()[:1] in ("[", "*") else first, *others]) + r" \\"
