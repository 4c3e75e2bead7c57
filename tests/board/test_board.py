"""The command beside a run that goes on, in a real browser."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lightning_app.runs import Row
from tests.forked import MAIN, Popen
from tests.helpers import ROOT
from tests.report.chromium import needs_chromium
from tests.report.chromium import tab as opened
from tests.report.conftest import bare_run

TOP = "document.querySelector('#learning').getBoundingClientRect().top"
TEXTS = "[...document.querySelectorAll('h2, td, figcaption, pre')].map(each => each.textContent)"
ALL = "!document.querySelector('#about').innerText.includes('to be drawn')"
DRAWN = f"document.querySelector('#weights svg.panel') && {ALL}"


def started(*words, cwd: Path) -> tuple[subprocess.Popen, str]:
    """The command, and the address that it prints."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = Popen(
        [sys.executable, MAIN, "board", *words],
        cwd=cwd,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    line = process.stdout.readline()
    assert re.fullmatch(r"board: http://127\.0\.0\.1:\d+/[\w-]{43}/\n", line), line
    return process, line.split()[1]


def ended(process: subprocess.Popen, by: signal.Signals) -> int:
    process.send_signal(by)
    try:
        return process.wait(120)
    finally:
        process.kill()
        process.stdout.close()


def state(folder: Path) -> dict[str, tuple[int, int]]:
    """Every file and folder below it, with size and time."""
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in [folder, *folder.rglob("*")]}


pytestmark = [pytest.mark.slow, needs_chromium]


@pytest.fixture
def tab(tmp_path):
    """With nothing in it yet."""
    blank = tmp_path / "blank.html"
    blank.touch()
    with opened(blank) as made:
        yield made


def test_a_run_that_begins_after_the_board_and_a_board_that_is_killed(tmp_path, tab):
    """New numbers appear with their digits where the page is looked at, and a new board shows the same."""
    runs = tmp_path / "runs"
    board, url = started("runs", "--port", "0", cwd=tmp_path)
    try:
        tab.open(url)
        tab.until("document.body?.innerText.includes('There are no runs in')")
        run = bare_run(runs / "group" / "quick", ["plain"], epochs=1)  # tests/report has pages with everything
        run.append(Row("plain", epoch, 391 * epoch, "weight_mass/mean", 0.1 + epoch) for epoch in (0, 1))
        tab.until(DRAWN)
        before = state(runs)
        tab.run("document.querySelector('#configs details').open = true; window.same = true;")
        tab.run("document.querySelector('#headline .scroll').focus()")
        place = tab.run(f"scrollBy(0, {TOP} + 50), {TOP}")
        assert abs(place + 50) < 1
        value = 0.12345678901234567
        run.append([Row("plain", 2, 782, "test/error", value)])
        tab.until(f"document.querySelector('#headline td[title=\"{value!r}\"]')?.innerText == '0.1235'")
        tab.until(f"{TEXTS}.join().includes('plain,test/error,2,{value!r}')")
        assert tab.run("window.same && document.querySelector('#configs details').open")
        assert abs(tab.run(TOP) - place) < 1
        assert tab.run("document.activeElement === document.querySelector('#headline .scroll')")
        tab.until(DRAWN)
        changed = {path for path, found in state(runs).items() if before.get(path) != found}
        assert changed == {str(run.path / "log.csv")}
        shown = tab.run(TEXTS)
        board.kill()
        tab.until("document.querySelector('#live').innerText.includes('No answer')")
        assert tab.run(TEXTS) == shown  # what was there can be read on
        ended(board, signal.SIGKILL)
        board, url = started("runs", "--port", "0", cwd=tmp_path)
        tab.open(url)
        tab.until(DRAWN)
        assert tab.run(TEXTS) == shown
        assert changed == {path for path, found in state(runs).items() if before.get(path) != found}
        run.append([Row("plain", 3, 1173, "test/error", newer := 0.2345678901234567)])
        # The headline is the first of the sections to be drawn again, so that the signal comes while others are drawn.
        tab.until(f"document.querySelector('#headline td[title=\"{newer!r}\"]')")
        assert ended(board, signal.SIGTERM) == 0 and board.stderr.read() == ""
    finally:
        board.kill()
        board.wait()


def test_a_page_opened_before_it_is_drawn_and_runs_that_change_places(tmp_path, tab):
    """It comes to have its style and script; boxes stay with their runs, and what played has ended."""
    runs = tmp_path / "runs"
    for number, name in enumerate(("newer", "older")):
        run = bare_run(runs / name, ["plain"], epochs=1)
        run.append(Row("plain", epoch, 391 * epoch, "signal/layer1/update", 0.1 + epoch) for epoch in (0, 1))
        os.utime(run.path / "log.csv", (1e9 - number, 1e9 - number))
    board, url = started("runs", "--port", "0", cwd=tmp_path)
    boxes = "[...document.querySelectorAll('#about input')].map(each => [each.value, each.checked])"
    button = "document.querySelector('.bar input')?.previousElementSibling"
    try:
        tab.open(f"{url}?run=older")
        assert tab.run("document.querySelector('#learning')") is None
        tab.until(
            f"document.querySelector('.bar')?.hidden === false && {button}.parentElement.hidden === false && {ALL}"
        )
        assert tab.run("getComputedStyle(document.querySelector('.bar')).position") == "sticky"
        assert tab.run(boxes) == [["newer", False], ["older", True]]
        tab.run(f"window.moves = 0, window.old = {button}, old.click()")
        tab.run("new MutationObserver(() => moves++).observe(document.querySelector('.bar output'), {childList: true})")
        tab.until("moves > 1")
        run.append([Row("plain", 2, 782, "test/error", value := 0.12345678901234567)])
        tab.until(f"document.querySelector('#headline td[title=\"{value!r}\"]')")
        assert tab.run(boxes) == [["older", True], ["newer", False]]
        tab.run("moves = 0")
        time.sleep(0.6)  # not by a timer of the page: the next news would end it too
        assert tab.run("old.isConnected || moves") == 0
    finally:
        board.kill()
        board.wait()
        board.stdout.close()
        board.stderr.close()
