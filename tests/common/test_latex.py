"""Tables in LaTeX: nothing that pdflatex cannot set, nothing lost, and no line wider than the page's layout allows."""

import re
from pathlib import Path

from lightning_app.common.latex import LINES, escaped, table

ROOT = Path(__file__).parents[2]


def rows_of(text: str) -> list[str]:
    return [
        line for part in re.findall(r"\\midrule\n(.*?)\n\\bottomrule", text, re.DOTALL) for line in part.split("\n")
    ]


def test_pdflatex_knows_every_symbol_of_pages_and_records():
    sources = [*ROOT.glob("lightning_app/report/**/*.py"), *ROOT.glob("lightning_app/papers/**/*.py")]
    sources += [*ROOT.glob("lightning_app/report/*.yaml"), *ROOT.glob("results/**/table.md")]
    symbols = {symbol for file in sources for symbol in file.read_text(encoding="utf-8")}
    assert {"λ", "″", "∂", "²"} < symbols
    assert not [symbol for symbol in symbols if not escaped(symbol).isascii()]
    assert escaped("--a---b") == "-{}-a-{}-{}-b"


def test_long_texts_are_wrapped_and_heads_of_numbers_stacked():
    words = "the same in a text of more than twenty-four letters"
    text = table(["a", "b", "mean over all seeds, in nats"], [["x", words, "0.5"]], [False, False, True], "C", "c")
    assert r"\begin{tabular}{l>{\raggedright\arraybackslash}p{12em}r}" in text
    assert r"a & b & \shortstack[r]{mean over\\{}all seeds,\\{}in nats} \\" in text
    path = "runs/digits/quickstart/residual-seed00/and-more"  # no word is broken
    assert r"\begin{tabular}{l}" in table(["a"], [[path]], [False], "C", "c")
    assert f"p{{{len(path) / 2:g}em}}" in table(["a"], [[f"{path} {path}"]], [False], "C", "c")


def test_a_long_table_goes_on_in_further_ones_and_loses_no_row():
    rows = [
        [f"net {i}", "three lines of words in which every word is whole and no line is too long"] for i in range(50)
    ]
    text = table(["net", "why"], rows, [False, False], "Caption.", "nets")
    pages = text.split(r"\begin{table}")[1:]
    assert [line.split(" & ")[0] for line in rows_of(text)] == [f"net {i}" for i in range(50)]
    assert all(4 * len(rows_of(page)) <= LINES for page in pages) and len(pages) == 4
    assert text.count(r"\caption{Caption.}") == text.count(r"\label{tab:nets}") == 1
    assert text.count(r"\addtocounter{table}{-1}") == text.count(r"\caption{Continued.}") == len(pages) - 1
    assert all(page.count(r"\toprule") == page.count(r"\end{table}") == 1 for page in pages)


def test_no_text_is_an_option_of_the_end_of_a_line():
    text = table(["[a]", "plain net [wide] one"], [[" [b]", "1"], ["*", "2"]], [False, True], "C", "c")
    assert r"{[a]} & \shortstack[r]{plain net\\{}[wide] one}" in text
    assert r"{ [b]} & 1" in text and r"{*} & 2" in text


def test_a_table_without_rows_is_one():
    text = table(["a"], [], [False], "None.", "none")
    assert text.count(r"\begin{table}") == 1 and r"\midrule" + "\n" + r"\bottomrule" in text
