"""The board beside a run: seconds until a page and new numbers are seen in Chromium, and what a training step takes meanwhile.

    python -m benchmarks.board --run runs/digits/quickstart

Every round starts the command, opens the address that it prints and logs numbers, each with the section that shows it on the
screen. Then a step of a SimplifiedNet takes turns beside a board that is stopped and one that draws a whole epoch, just logged.
"""

import argparse
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from urllib.request import urlopen

import torch

from benchmarks.harness import MAIN, Comparison, Ratio, Results, Row, interleave, options_of, run, seconds
from benchmarks.loops import sgd, training_step
from lightning_app.board.server import WAIT
from lightning_app.common.errors import UserError
from lightning_app.networks import SimplifiedNet
from lightning_app.runs import Row as Logged
from lightning_app.runs import RunFolder
from tests.report.chromium import PROGRAM, tab

PAINT, FIGURE = "first paint", "first figure"
NUMBERS = {  # what is logged, and the section that shows it
    "new number in a table": ("test/error", "headline"),
    "new number in a figure": ("weight_mass/mean", "weights"),
}
GOALS = {PAINT: 1.0} | dict.fromkeys(NUMBERS, 2.0)
ALONE, BESIDE = "beside a stopped board", "beside a board that draws"
PAINTED = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
STEPS = 5  # a turn
parser = partial(options_of, __doc__, rounds=5, batch=128, depth=20, run=Path)


def measure(options: argparse.Namespace) -> Results:
    if not PROGRAM:
        raise UserError("expected Chromium, which looks at the board; found none on the PATH: install it.")
    with tempfile.TemporaryDirectory() as temporary:
        folder = RunFolder(Path(temporary) / "run")
        shutil.copytree(options.run, folder.path)
        seen = [watched(folder) for _ in range(options.rounds)]
        steps = interleave_steps(folder, options)
    page = Comparison({name: [times[name] for times in seen] for name in seen[0]})
    found = Results(f"pages of {options.run}; steps of SimplifiedNet-{options.depth}, batch {options.batch}")
    found.add("seconds", page, PAINT)
    found.add("step", steps, ALONE)
    found.rows = [Row(name, "1 s", Ratio.of(*values), GOALS.get(name)) for name, values in page.values.items()]
    found.rows.append(steps.row(BESIDE, ALONE, 1.01, f"training step {BESIDE}"))
    return found


@contextmanager
def board(runs: Path) -> Iterator[tuple[subprocess.Popen, str]]:
    """The command, and the address that it has printed."""
    words = [sys.executable, MAIN, "board", str(runs), "--port", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().split()[1]
        finally:
            process.terminate()


def watched(folder: RunFolder) -> dict[str, float]:
    """Seconds until each is seen, of a board that has just started, and one new number after the other."""
    blank = folder.path.parent / "blank.html"
    blank.touch()
    with tab(blank) as browser, board(folder.path) as (_, url):
        figure, _ = seconds(lambda: browser.open(url) or browser.until("document.querySelector('svg.panel')"))
        times = {PAINT: browser.until(PAINTED) / 1e3, FIGURE: figure}
        net = next(filter(None, folder.log()["member"]))
        for name, (key, section) in NUMBERS.items():
            wait_for(url)
            browser.until(f"document.getElementById('{section}')")
            browser.run(f"document.getElementById('{section}').scrollIntoView()")
            time.sleep(WAIT)  # until the board knows what is on the screen
            epoch, value = (folder.last_epoch or 0) + 1, time.time() / 1e12  # unlike any before it
            folder.append([Logged(net, epoch, 10**6, key, value)])
            shown = f"document.getElementById('{section}').innerHTML.includes('{value!r}')"
            times[name] = seconds(partial(browser.until, shown))[0]
    return times


def interleave_steps(folder: RunFolder, options: argparse.Namespace) -> Comparison:
    net = SimplifiedNet(options.depth, residual=True)
    images, labels = torch.randn(options.batch, 3, 32, 32), torch.randint(10, (options.batch,))
    step = partial(training_step, net, sgd(net.parameters()), images, labels)

    def steps() -> float:
        return seconds(lambda: [step() for _ in range(STEPS)])[0] / STEPS

    with board(folder.path) as (process, url):

        def alone() -> float:
            wait_for(url)
            process.send_signal(signal.SIGSTOP)
            try:
                return steps()
            finally:
                process.send_signal(signal.SIGCONT)

        def beside() -> float:
            log_an_epoch(folder)
            read(url)
            return steps()

        steps()  # warm: a warm-up of the contenders would draw an epoch more
        return interleave({ALONE: alone, BESIDE: beside}, options.rounds, warm_up=0)


def wait_for(url: str) -> None:
    """Until the board has nothing to draw."""
    while "to be drawn" in read(url):
        time.sleep(0.5)


def read(url: str) -> str:
    with urlopen(url) as answer:
        return answer.read().decode()


def log_an_epoch(folder: RunFolder) -> None:
    """The numbers of the last whole epoch as those of a new one: every section is drawn again."""
    log = folder.log()
    last = log[log["epoch"] == log["epoch"][log["name"] == "train/risk"].max()]
    rows = zip(last["member"], last["name"], last["value"] * (1 + 1e-9), strict=True)
    folder.append([Logged(member, (folder.last_epoch or 0) + 1, 10**6, name, value) for member, name, value in rows])


if __name__ == "__main__":
    run(measure, parser())
