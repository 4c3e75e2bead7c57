"""Figures and tables as files: complete, valid, the page's own numbers, and safe to open."""

import csv
import io
import re
from xml.etree import ElementTree

import pytest

from lightning_app.cli import main
from lightning_app.common.errors import UserError
from lightning_app.report.blocks import Cell, Table, csv_text
from lightning_app.report.command import report
from lightning_app.report.exports import FORMATS, formats, latex
from lightning_app.report.page import export_folder
from lightning_app.report.page_data import gather
from lightning_app.report.sections import learning
from lightning_app.runs import Row, RunFolder
from tests.report.conftest import make_run

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """The page of a run and its files, in all formats."""
    run = make_run(tmp_path_factory.mktemp("exported") / "quick", epochs=1)
    assert main(["report", str(run.path), "--export", ",".join(FORMATS)]) == 0
    return (run.path / "report.html").read_text(), run.path / "report-export"


@pytest.mark.slow
def test_every_panel_figure_and_table_of_the_page_is_there(exported):
    page, folder = exported
    panels = re.findall(r'<div id="([^"]+)">\s*<svg', page)
    figures = re.findall(r'<figure id="([^"]+)">', page)
    tables = re.findall(r'<div class="table[^"]*" id="([^"]+)">\s*(?:<h3>.*?</h3>)?\s*<div class="scroll"', page)
    assert len(panels) > 10 and len(figures) > 3 and len(tables) > 4
    expected = {f"{key}.{ending}" for key in panels for ending in ("pdf", "svg")}
    expected |= {f"{key}.csv" for key in [*figures, *tables]} | {f"{key}.tex" for key in tables}
    assert expected <= {file.name for file in folder.iterdir()}


@pytest.mark.slow
def test_svg_is_xml_with_axes_and_legend(exported):
    _, folder = exported
    for file in folder.glob("*.svg"):
        texts = ["".join(text.itertext()) for text in ElementTree.parse(file).iter(f"{SVG}text")]
        assert texts, file
        assert "var(" not in file.read_text()  # colours of its own: there is no page around it
    texts = [text.text for text in ElementTree.parse(folder / "learning-train-risk.svg").iter(f"{SVG}text")]
    assert {"Training risk L", "epoch", "plain", "residual"} <= set(texts)


@pytest.mark.slow
def test_pdf_is_vectors_with_embedded_truetype(exported):
    _, folder = exported
    for file in folder.glob("*.pdf"):
        content = file.read_bytes()
        assert content.startswith(b"%PDF")
        assert b"/FontFile2" in content and b"/Type3" not in content
        assert b"/Subtype /Image" not in content


def test_the_same_twice(finished):
    figure = learning.section(gather([finished])).blocks[0]
    for form in ("pdf", "svg"):
        assert figure.panels[0].save(form, figure.legend) == figure.panels[0].save(form, figure.legend)


def test_only_what_was_asked_for_and_beside_the_page(run, tmp_path, capsys):
    page = tmp_path / "new" / "all.html"
    assert main(["report", str(run.path), "--out", str(page), "--export", "latex"]) == 0
    assert {file.suffix for file in export_folder(page).iterdir()} == {".tex"}
    assert str(tmp_path / "new" / "all-export") in capsys.readouterr().out


def test_formats_may_be_a_text(tmp_path):
    """It was taken apart letter by letter."""
    RunFolder(tmp_path).append([Row("net", 0, 0, "own/a", 1.0)])
    report(tmp_path, export="csv")
    assert (tmp_path / "report-export" / "own-own.csv").is_file()


@pytest.mark.parametrize("asked", ["png", "pdf,,doc", ","])
def test_unknown_formats_are_refused_in_a_message(run, capsys, asked):
    assert main(["report", str(run.path), "--export", asked]) == 2
    error = capsys.readouterr().err
    assert "pdf, svg, csv, latex" in error and error.count("\n") == 1
    assert not (run.path / "report.html").exists()
    with pytest.raises(UserError):
        formats(asked)


def test_tables_in_latex():
    rows = [[Cell("50%_$x$\\evil{&#}"), Cell("0.5", "0.5")], [Cell("[a]"), Cell("–")], [Cell("*")]]
    text = latex(Table("|λ| ~ 1", ["", "λ ≥ 1"], rows, title="T"), "weights-table-1")
    assert r"\begin{tabular}{lr}" in text and r"\toprule" in text and r"\bottomrule" in text
    assert r"50\%\_\$x\$\textbackslash{}evil\{\&\#\} & 0.5 \\" in text
    assert r"{[a]} & --" in text and r"{*} & " in text
    assert r"\label{tab:weights-table-1}" in text
    assert r"\caption{T. \textbar{}" in text
    assert r"\caption{Why? A}" in latex(Table("A", ["a"], [], title="Why?"), "weights-table-2")
    noted = [[Cell("1", "1.0", note="3 units"), Cell("2", "2.0", note="[1, 3]")]]
    assert r"1 (3 units) & 2 [1, 3] \\" in latex(Table("A", ["a", "b"], noted), "weights-table-3")
    body = text.split("\\midrule")[1].split("\\bottomrule")[0]
    assert all(line.count("&") - line.count(r"\&") == 1 for line in body.strip().splitlines())


@pytest.mark.parametrize(
    ("cells", "read"),
    [
        *[((name, -0.5), (f"'{name}", "-0.5")) for name in ("=cmd|' /C calc'!A0", "+1+1", "-x", "@SUM(A1)", "\t=1")],
        *[(("net", float("nan")), ("net", "nan")), (("-0.5", -1e-300), ("-0.5", "-1e-300"))],  # numbers stay numbers
        *[(("-0.5 ± 0.1", float("-inf")), ("-0.5 ± 0.1", "-inf")), (("−1", 3), ("−1", "3"))],
        *[(("a\r=1", 1.0), ("a⟨U+000D⟩=1", "1.0")), (("b\u202ec", 2.0), ("b⟨U+202E⟩c", "2.0"))],  # no rows of their own
    ],
)
def test_no_cell_of_a_csv_is_a_formula_and_numbers_stay_numbers(cells, read):
    text = csv_text(("net", "value"), [cells, cells])
    assert list(csv.reader(io.StringIO(text, newline="")))[1:] == [[*read]] * 2
