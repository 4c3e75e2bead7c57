"""The page in a real browser: nothing fails or is missing, it fits a phone, and it prints."""

import re

import pytest

from lightning_app.report import write_report
from tests.report.chromium import look, needs_chromium, printed

pytestmark = [pytest.mark.slow, needs_chromium]


@pytest.fixture(scope="module")
def seen(page, tmp_path_factory):
    return look(page, tmp_path_factory.mktemp("wide"))


@pytest.mark.parametrize("fault", ["errors", "console", "alerts", "requests", "empty", "dead", "odd"])
def test_nothing_fails_or_is_missing(seen, fault):
    """Figures without a size are "empty", links that lead nowhere "dead", numbers missing without a word "odd"."""
    assert seen[fault] == []


def test_every_figure_is_there(page, seen):
    assert seen["panels"] == len(re.findall('<svg class="panel"', page)) > 10


@pytest.mark.parametrize("width", [390, 768])
def test_it_fits_a_phone(page, width, tmp_path):
    found = look(page, tmp_path / "narrow", width)
    assert found["width"] == width
    assert found["wide"] == [] and found["scroll"] <= width
    assert found["empty"] == []


def test_several_runs_fit_a_phone(make, tmp_path):
    runs = [make("a-rather-long-name-of-a-residual-net-of-depth-20", ["net"], 2), make("pln20", ["net"], 2, seed=1)]
    found = look(write_report(runs).read_text(), tmp_path / "narrow", 390)
    assert found["wide"] == [] and found["scroll"] <= 390


def test_it_prints(page, tmp_path):
    pdf = printed(page, tmp_path / "print")
    assert pdf.startswith(b"%PDF")
    assert len(re.findall(rb"/Type\s*/Page\b", pdf)) > 3


def test_the_watch_sees_what_it_should(tmp_path):
    """The witness itself: a page with every fault there is."""
    faulty = """<!DOCTYPE html><html><head></head><body><svg class="panel" width="0" height="0"></svg><a href="#no">x</a>
    <p style="width: 2000px">undefined</p><img src="gone.png" onerror="alert(1)"><script>nowhere()</script></body></html>"""
    found = look(faulty, tmp_path / "faulty", 390)
    assert found["alerts"] == ["1"] and found["dead"] == ["#no"] and found["odd"] == ["undefined"]
    assert found["panels"] == 1 and found["empty"] == [""] and found["scroll"] > 390 and found["wide"]
    assert found["handlers"] == ["onerror"] and "IMG failed" in found["errors"]
    assert any("nowhere" in error for error in found["errors"]) and found["console"]
