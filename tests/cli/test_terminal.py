"""What the real command line shows on a terminal, and that a pipe gets none of it."""

import os
import re
import signal
import subprocess
import sys

import pytest

from lightning_app.papers import PAPERS, paper
from lightning_app.runs import RunFolder
from tests.forked import MAIN, NO_PAGE, Popen
from tests.helpers import LEARNING, OFFLINE, ROOT, TINY, command, on_terminal

pytestmark = pytest.mark.slow
ESCAPE = re.compile(r"\x1b\[[?\d;]*[A-Za-z]")
LIMITS = "Limits on the data: data.init_args.train_limit 64; data.init_args.test_limit {}"


@pytest.fixture(scope="module")
def shown(tmp_path_factory) -> tuple[str, RunFolder]:
    """What a fit says on a terminal, and its run."""
    cwd = tmp_path_factory.mktemp("terminal")
    slowly = ("--data.eval_batch_size", "1", "--data.test_limit", "300")  # a bar is drawn by time
    words = [sys.executable, ROOT / "main.py", *TINY, *LEARNING, *slowly]
    code, said = on_terminal(*words, cwd=cwd, columns=110)
    assert code == 0, said
    return said, RunFolder(cwd / "runs" / "digits" / "quickstart")


def test_a_terminal_sees_bars_with_a_line_an_epoch_above_them(shown):
    lines = ESCAPE.sub("", shown[0]).splitlines()
    assert any("epoch 0 " in line and "━" in line for line in lines)
    assert any("epoch 2/2" in line and "━" in line for line in lines)
    said = [line for line in lines if re.match(r"epoch \d/2  plain risk", line)]
    assert len(said) == 2
    assert shown[0].rindex("\x1b[?25h") > shown[0].rindex("\x1b[?25l")  # the cursor is back


def test_its_last_words_are_a_ruled_table(shown):
    said, run = shown
    last = ESCAPE.sub("", said[said.rindex("\x1b[?25h") :]).splitlines()
    assert last[0] == f"quickstart after epoch 2. {LIMITS.format(300)}"
    assert set(last[2]) == {"─"}
    row = next(line for line in last if line.startswith("residual"))
    error = run.log().query("member == 'residual' and epoch == 2").set_index("name")["value"]["test/error"]
    assert f"{error:.4f}" in row


def test_a_pipe_sees_lines_only(tmp_path):
    done = command(*TINY, *LEARNING, cwd=tmp_path, env=OFFLINE)
    assert done.returncode == 0, done.stderr
    assert not re.search(r"[\x1b\r━─]", done.stdout + done.stderr)
    assert [line[:9] for line in done.stdout.splitlines() if line.startswith("epoch ")] == ["epoch 1/2", "epoch 2/2"]
    assert f"\nquickstart after epoch 2. {LIMITS.format(60)}\nnet " in done.stdout
    first, second, third, *_ = done.stdout.splitlines()
    assert first == "training: plain, residual (seed 0) on Digits, 2 epochs, cpu, precision 32-true"
    assert second == "run folder: runs/digits/quickstart"
    assert third.startswith("W&B is offline")
    forecasts = [line for line in done.stdout.splitlines() if line.startswith("an epoch takes about ")]
    assert len(forecasts) == 1 and re.search(r"; 1 to go: about [\d.]+ \w+$", forecasts[0])


def test_a_dumb_terminal_sees_what_a_pipe_sees(tmp_path):
    words = [sys.executable, ROOT / "main.py", *TINY, *LEARNING, "--trainer.max_epochs", "1"]
    code, said = on_terminal(*words, cwd=tmp_path, TERM="dumb")
    assert code == 0, said
    assert not re.search(r"[\x1b━─]", said)
    assert "\nepoch 1/1  plain risk" in said


def test_a_table_of_all_artefacts(tmp_path):
    code, said = on_terminal(sys.executable, ROOT / "main.py", "reproduce", "--list", cwd=tmp_path, columns=90)
    assert code == 0, said
    lines = ESCAPE.sub("", said).splitlines()
    assert max(map(len, lines)) <= 90
    assert "\x1b[2mnot run" in said and "\x1b[32m" not in said  # nothing is there
    titles = [line for line in lines if line in {paper(key).title for key in PAPERS}]
    assert len(titles) == len(PAPERS)
    assert any(line.startswith("yu-tomasi/table-1 ") for line in lines)


@pytest.mark.parametrize("words", [["reproduce", "--list"], ["--help"], ["fit", "-h"]])
def test_nobody_who_reads_is_no_error(words):
    reader, writer = os.pipe()
    os.close(reader)  # as `head` does when it has enough
    call = [sys.executable, str(ROOT / "main.py"), *words]
    done = subprocess.run(call, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


@pytest.mark.parametrize("words", [["--json"], []])
def test_training_says_that_nobody_reads(tmp_path, words):
    reader, writer = os.pipe()
    os.close(reader)
    call = [sys.executable, MAIN, *TINY, *LEARNING, "--trainer.max_epochs", "1", *words]
    process = Popen(
        call, stdout=writer, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=os.environ | {NO_PAGE: "1"}
    )
    os.close(writer)
    _, said = process.communicate(timeout=240)
    assert process.returncode == 128 + signal.SIGPIPE
    assert "error: [Errno 32] Broken pipe: the program that read the output of fit has ended" in said
    assert "Traceback" not in said
