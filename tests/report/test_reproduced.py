"""Verdicts that `reproduce` has written are shown with the claims: its tables, as they stand."""

import pandas as pd
import pytest

from lightning_app.report import main
from lightning_app.reproduce.plan import PAPER
from lightning_app.reproduce.tables import frame, write_tables
from lightning_app.verdicts import Claim, Reading, Sample, holds
from tests.report.test_page import Page, section


@pytest.fixture
def results(tmp_path):
    """results/yu-tomasi/table-9/ of one claim with two readings."""
    ours = Sample((0.07, 0.08, 0.09))
    readings = Reading("kernel", ours, holds(True)), Reading("operator", Sample((2.0,)), holds(False, "2 > 1"))
    folder = tmp_path / "results" / "yu-tomasi" / "table-9"
    folder.mkdir(parents=True)
    write_tables(frame([Claim("L of <net>", 0.07227, "within 3 sd", readings)], PAPER), folder, "head")
    return folder


def test_its_rows_are_on_the_page(run, results, capsys):
    assert main([str(run.path), str(results.parent.parent)]) == 0
    text = section((run.path / "report.html").read_text(), "claims")
    assert "yu-tomasi/table-9, made by reproduce" in text
    first = Page(text).row("L of <net>")
    table = pd.read_csv(results / "table.csv")
    assert [cell for cell, _ in first][1:] == [
        "kernel",
        "0.07227 within 3 sd",
        "0.08000 ± 0.010 (3)",
        "artefact of a convention",
        "true only under: kernel",
    ]
    assert float(first[3][1]) == table["ours"][0]
    assert [cell for cell, _ in Page(text).row("″")][1:] == ["operator", "0.07227", "2 (1)", "", "2 > 1"]


def test_a_verdict_without_its_table_is_a_sentence(run, results, capsys):
    (results / "table.csv").write_text("something,else\n1,2\n")
    assert main([str(run.path), str(results)]) == 2
    error = capsys.readouterr().err
    assert "table.csv" in error and "quantity" in error and error.count("\n") == 1


def test_results_alone_are_no_runs(results, capsys):
    assert main([str(results)]) == 2
    assert "at least one run" in capsys.readouterr().err
