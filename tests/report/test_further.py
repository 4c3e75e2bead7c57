"""Measures that no section knows are on the page without an edit: curves of whole nets, profiles of layers."""

import csv
import re

from lightning_app.report import write_report
from lightning_app.report.exports import write_exports
from lightning_app.report.page_data import gather
from lightning_app.report.sections import further
from lightning_app.runs import Row, RunFolder
from tests.report.test_page import Page, section


def test_a_new_measure_has_a_curve_and_its_layers_a_profile(run):
    numbers = {"grad_norm": 2.5, "own/mean": 0.25, "own/layer01/mean": 0.1, "own/layer02/mean": 0.2}
    run.append(Row("plain", epoch, epoch, name, value + epoch) for epoch in (0, 1) for name, value in numbers.items())
    text = section(write_report([run]).read_text(), "own-measures")
    assert [f'<figure id="own-{key}">' in text for key in ("grad_norm", "own", "own-layers")] == [True] * 3
    ids = re.findall(r'\bid="([^"]*)"', text)
    assert len(ids) == len({*ids}) and "own-own-mean" in ids
    rows = [row for pre in Page(text).pre for row in csv.reader(pre.splitlines()) if row[0] == "plain"]
    assert sorted(rows) == [["plain", name, str(e), str(x + e)] for name, x in sorted(numbers.items()) for e in (0, 1)]


def test_names_that_a_key_cannot_tell_apart_have_panels_and_files_of_their_own(tmp_path):
    """Two panels had one id; the file of one took the place of the other's."""
    names = ["own/a/b", "own/a-b", f"own/{'é' * 120}1", f"own/{'é' * 120}2"]
    run = RunFolder(tmp_path)
    run.append(Row("net", epoch, epoch, name, 1.0 + epoch) for epoch in (0, 1) for name in names)
    found = further.section(gather([run]), ())
    write_exports([found], tmp_path / "files", ["svg"])
    keys = [panel.key for figure in found.blocks for panel in figure.panels]
    assert keys[:2] == ["own-own-a-b", "own-own-a-b-2"] and len({*keys}) == 4
    assert len([*(tmp_path / "files").iterdir()]) == 4


def test_a_number_of_ones_own_may_be_named_as_those_of_training(run):
    """`Scalar("test/top5", ...)` was on no figure of the page, nor were averages on training and validation data."""
    names = ("test/top5", "train/error_ema", "val/risk_ema")
    run.append(Row("plain", epoch, epoch, name, 0.5) for epoch in (0, 1) for name in names)
    text = write_report([run]).read_text()
    assert 'id="own-test-top5"' in section(text, "own-measures")
    assert all(f'id="learning-{name.replace("/", "-")}"' in section(text, "learning") for name in names[1:])


def test_what_other_sections_show_is_not_shown_again(page):
    assert 'id="own-measures"' not in page


def test_what_is_expected_of_a_layer_without_a_number_is_left_out(tmp_path):
    """As at the end of a log whose process was killed."""
    run = RunFolder(tmp_path)
    numbers = ("own/layer01/a", "own/layer01/a_expected", "own/layer02/a_expected")
    run.append(Row("net", epoch, epoch, name, 1.0) for epoch in (0, 1) for name in numbers)
    assert "own-own-layers-0" in section(write_report([run]).read_text(), "own-measures")
