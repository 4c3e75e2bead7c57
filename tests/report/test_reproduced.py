"""Verdicts that `reproduce` has written are on the page: its records, as they stand, and no others."""

import json

import pytest

from lightning_app.cli import main
from lightning_app.papers.records import RECORD, rows_of
from lightning_app.papers.verdicts import Claim, Class, Reading, Sample, Verdict, holds
from lightning_app.report.sections.reproduced import tables
from tests.report.test_page import Page, section


@pytest.fixture
def results(tmp_path):
    """results/yu-tomasi/table-9/ of one claim with two readings."""
    ours = Sample((0.07, 0.08, 0.09))
    readings = Reading("kernel", ours, holds(True)), Reading("operator", Sample((2.0,)), holds(False, "2 > 1"))
    folder = tmp_path / "results" / "yu-tomasi" / "table-9"
    folder.mkdir(parents=True)
    rows = rows_of([Claim("L of <net>", 0.07227, "within 3 sd", readings)], Class.TRAINED, "paper")
    (folder / RECORD).write_text(json.dumps({"artefact": "yu-tomasi/table-9", "scale": "paper", "rows": rows}))
    return folder


def test_its_rows_are_on_the_page(run, results, capsys):
    assert main(["report", str(run.path), str(results.parent.parent)]) == 0
    text = section((run.path / "report.html").read_text(), "claims")
    assert "yu-tomasi/table-9, made by reproduce" in text
    first = Page(text).row("L of <net>")
    assert [cell for cell, _ in first][1:] == [
        "trained",
        "kernel",
        "0.07227 within 3 sd",
        "0.08000 ± 0.010 (3)",
        "artefact of a convention",
        "true only under: kernel",
    ]
    assert float(first[4][1]) == 0.08
    assert [cell for cell, _ in Page(text).row("″")][1:] == ["", "operator", "0.07227", "2 (1)", "", "2 > 1"]


def test_the_words_are_explained_where_there_are_verdicts(run, results):
    assert main(["report", str(run.path), str(results)]) == 0
    lead = section((run.path / "report.html").read_text(), "claims").partition("<table")[0].lower()
    assert [word for word in Verdict if word not in lead] == []


def test_a_page_without_results_judges_no_claim(run):
    assert main(["report", str(run.path)]) == 0
    assert 'id="claims"' not in (run.path / "report.html").read_text()


def test_what_is_not_tested_yet_is_one_line(results):
    record = json.loads((results / RECORD).read_text())
    record["rows"] += [record["rows"][0] | {"quantity": "E", "verdict": "not tested"}]
    (results / RECORD).write_text(json.dumps(record))
    full, line = tables([results])
    assert (
        full.title == "yu-tomasi/table-9, made by reproduce" and line.folded == f"{full.title}: 1 claim not tested yet."
    )
    assert [row[0].text for table in (full, line) for row in table.rows] == ["L of <net>", "″", "E", "″"]


def test_every_reading_of_a_row_says_what_it_lacks(results):
    record = json.loads((results / RECORD).read_text())
    for reading in record["rows"][0]["readings"]:
        reading["missing"] = "1 of 3 seeds"
    (results / RECORD).write_text(json.dumps(record))
    assert tables([results])[0].rows[1][-1].text == "1 of 3 seeds"


def test_what_is_no_record_is_an_error_that_says_what_was_expected(run, results, capsys):
    (results / RECORD).write_text('{"rows": [{"quantity": "L"}]}')
    assert main(["report", str(run.path), str(results)]) == 2
    error = capsys.readouterr().err
    assert RECORD in error and "quantity" in error and error.count("\n") == 1


def test_results_alone_are_no_runs(results, capsys):
    assert main(["report", str(results)]) == 2
    said = f"expected at least one run to report on, got verdicts of `reproduce` only ({results}): name a run"
    assert said in capsys.readouterr().err
