"""The page in a real browser: nothing fails or is missing, it fits a phone, and it prints."""

import re

import pytest

from lightning_app.report import write_report
from tests.report.chromium import needs_chromium, tab
from tests.report.test_page import SECTIONS

pytestmark = [pytest.mark.slow, needs_chromium]


@pytest.fixture(scope="module")
def seen(single):
    with tab(single) as opened:
        return opened.look()


@pytest.mark.parametrize("fault", ["errors", "console", "alerts", "requests", "empty", "dead", "odd"])
def test_nothing_fails_or_is_missing(seen, fault):
    """Figures without a size are "empty", links that lead nowhere "dead", numbers missing without a word "odd"."""
    assert seen[fault] == []


def test_every_figure_is_there(page, seen):
    assert seen["panels"] == len(re.findall('<svg class="panel"', page)) > 10


@pytest.mark.parametrize("width", [390, 768])
def test_it_fits_a_phone(single, width):
    with tab(single, width) as opened:
        found = opened.look()
    assert found["width"] == width
    assert found["wide"] == [] and found["scroll"] <= width
    assert found["empty"] == []


def test_several_runs_fit_a_phone(make, tmp_path):
    runs = [make("a-rather-long-name-of-a-residual-net-of-depth-20", ["net"], 2), make("pln20", ["net"], 2, seed=1)]
    with tab(write_report(runs, tmp_path / "several.html"), 390) as opened:
        found = opened.look()
    assert found["wide"] == [] and found["scroll"] <= 390


def test_it_prints_what_is_folded_and_no_controls(single):
    with tab(single) as opened:
        opened.run("document.querySelectorAll('section > details').forEach(each => { each.open = false; })")
        pdf = opened.printed()
        opened.send("Emulation.setEmulatedMedia", media="print")
        shown = opened.run("['.bar', '.tools'].map(each => getComputedStyle(document.querySelector(each)).display)")
        folds = opened.run(
            "['section', '.table'].map(each => getComputedStyle(document.querySelector(`${each} > details:not([open])`), "
            "'::details-content').contentVisibility)"
        )
    assert folds == ["visible"] * 2
    assert pdf.startswith(b"%PDF")
    assert len(re.findall(rb"/Type\s*/Page\b", pdf)) > 3
    assert shown == ["none", "none"]


@pytest.mark.parametrize("width", [390, 1280])
def test_contents_stay_and_cover_nothing_and_links_open_what_is_folded(single, width):
    """In one line above the page, or beside it."""
    with tab(single, width) as opened:
        links = opened.run("[...document.querySelectorAll('nav a')].map(each => each.hash)")
        assert len(links) == len(SECTIONS)
        for link in links[1:]:
            opened.run(f"document.querySelector('nav a[href=\"{link}\"]').click()")
            opened.until(f"document.querySelector('{link} > details').open")
            place, top, bottom = opened.run(
                f"(nav => [document.querySelector('{link} summary').getBoundingClientRect().top, nav.top, nav.bottom])"
                "(document.querySelector('nav').getBoundingClientRect())"
            )
            assert top == 0 and (place >= bottom if width == 390 else place >= 0)
        opened.run("document.getElementById('costs').firstElementChild.open = false; location.hash = 'costs-figure'")
        opened.until("document.getElementById('costs').firstElementChild.open")


def test_the_watch_sees_what_it_should(tmp_path):
    """The witness itself: a page with every fault there is."""
    file = tmp_path / "faulty.html"
    file.write_text("""<!DOCTYPE html><html><head></head><body><svg class="panel" width="0" height="0"></svg><a href="#no">x</a>
    <p style="width: 2000px">undefined</p><img src="gone.png" onerror="alert(1)"><script>nowhere()</script></body></html>""")
    with tab(file, 390) as opened:
        found = opened.look()
    assert found["alerts"] == ["1"] and found["dead"] == ["#no"] and found["odd"] == ["undefined"]
    assert found["panels"] == 1 and found["empty"] == [""] and found["scroll"] > 390 and found["wide"]
    assert found["handlers"] == ["onerror"] and "IMG failed" in found["errors"]
    assert any("nowhere" in error for error in found["errors"]) and found["console"]


def test_without_script_nothing_is_missing(single, seen):
    """All its lines are those of the page with script, in the same order, and what the script adds is not there."""
    with tab(single, script=False) as opened:
        opened.run("document.querySelectorAll('section > details').forEach(each => { each.open = true; })")
        text, bars = opened.run(
            "[document.body.innerText, document.querySelectorAll('.bar:not([hidden]), .tools').length]"
        )
    lines = iter(seen["text"].splitlines())
    assert bars == 0 and all(line in lines for line in text.splitlines())


def test_the_policy_runs_no_other_script(page, tmp_path):
    file = tmp_path / "more.html"
    file.write_text(page.replace("</main>", '<script>alert(1)</script><img src="data:," onerror="alert(2)"></main>'))
    with tab(file) as opened:
        found = opened.look()
    assert found["alerts"] == [] and sum("script-src" in error for error in found["errors"]) == 2
