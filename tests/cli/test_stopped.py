"""Whatever ends a run, `--ckpt_path last` goes on: signals at any moment, several ranks, no checkpoint yet, two at once."""

import functools
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lightning_app.runs import RunFolder
from lightning_app.runs.lock import take
from tests.cli.test_commands import RUN
from tests.forked import MAIN, WAIT_AT, Popen
from tests.helpers import TINY, assert_same_run, checkpoint, command, identical
from tests.waiting import STEPS_AN_EPOCH, go_on, until_it_waits

pytestmark = pytest.mark.slow
LONG = ("--trainer.max_epochs", "3", "--data.batch_size", "2")
FEW = ("--trainer.callbacks", "TrainingMetrics", "--trainer.callbacks+=LayerCushion")
TWO = ("--trainer.accelerator", "cpu", "--trainer.devices", "2")
NET = '{"class_path": "CifarResNet", "init_args": {"depth": 8, "residual": true, "width": 2}}'
RANKS = {  # of those that share batches each has statistics of its own in BatchNorm
    "seeds": (*LONG, *FEW, *TWO, "--trainer.strategy", "seeds"),
    "ddp": (*LONG, *FEW, *TWO, "--trainer.strategy", "ddp", "--model.arms", f'{{"net": {{"net": {NET}}}}}'),
}
ENDLESS = "{class_path: HessianSpectrum, init_args: {samples: 64, steps: 100000}}"


def started(cwd: Path, *words: str, kind: type[subprocess.Popen] = Popen, **environment: str) -> subprocess.Popen:
    return kind(
        [sys.executable, "-u", MAIN, *TINY, *words],
        cwd=cwd,
        env=os.environ | {"WANDB_MODE": "disabled", "OMP_NUM_THREADS": "1"} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def ended(process: subprocess.Popen, within: float = 240) -> tuple[int, str]:
    """Exit code and what was said; nothing of the run is left running."""
    said, _ = process.communicate(timeout=within)
    deadline = time.monotonic() + 120
    while alive(process.pid):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return process.returncode, said


def alive(group: int) -> list[str]:
    """States of a process group's processes; what nobody has asked about its end (Z) is none."""
    stats = [fields for file in Path("/proc").glob("[0-9]*/stat") if (fields := fields_of(file))]
    return [state for state, _, its in stats if int(its) == group and state != "Z"]


def fields_of(stat: Path) -> list[str]:
    """State, parent, process group."""
    try:
        return stat.read_text().rpartition(")")[2].split()[:3]
    except (FileNotFoundError, ProcessLookupError):  # it has ended in between
        return []


def until(process: subprocess.Popen, seen: Callable[[], bool], within: float = 120) -> None:
    deadline = time.monotonic() + within
    while not seen():
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()[0]
        time.sleep(0.02)


@pytest.fixture(scope="module")
def unstopped(tmp_path_factory) -> Callable[[str], Path]:
    """The run of two ranks that nobody disturbs, by strategy."""

    @functools.cache
    def unstopped(strategy: str) -> Path:
        cwd = tmp_path_factory.mktemp(strategy)
        done = command(*TINY, *RANKS[strategy], cwd=cwd)
        assert done.returncode == 0, done.stderr
        return cwd / RUN

    return unstopped


@pytest.mark.parametrize(("strategy", "everyone"), [("seeds", False), ("ddp", True)])  # else: the first process alone
def test_several_ranks_stop_at_one_batch_and_go_on_there(tmp_path, unstopped, strategy, everyone):
    process = started(tmp_path, *RANKS[strategy], **{WAIT_AT: str(STEPS_AN_EPOCH + 5)})
    until_it_waits(process, tmp_path)
    (os.killpg if everyone else os.kill)(process.pid, signal.SIGTERM)
    go_on(tmp_path)
    code, said = ended(process)
    assert code == 143, said
    assert "stopped by SIGTERM: resume with --ckpt_path last" in said and "Traceback" not in said
    resumed = command(*TINY, *RANKS[strategy], "--ckpt_path", "last", cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    assert_same_run(unstopped(strategy), tmp_path / RUN)


def test_slurms_warning_in_the_middle_of_an_epoch_saves_there_and_requeues(tmp_path):
    (tmp_path / "scontrol").write_text('#!/bin/sh\necho "$@" >> asked\n')
    (tmp_path / "scontrol").chmod(0o755)
    slurm = {"SLURM_JOB_ID": "7", "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", WAIT_AT: "40"}
    process = started(tmp_path, *LONG, *FEW, **slurm)
    until_it_waits(process, tmp_path)
    process.send_signal(signal.SIGUSR1)
    go_on(tmp_path)
    code, said = ended(process)
    assert code == 138, said
    assert (tmp_path / "asked").read_text() == "requeue 7\n"
    step = checkpoint(tmp_path / RUN)["global_step"]
    assert step in (40, 41), "the batch in which it waited, of the second epoch"


def test_a_signal_ends_a_measure_that_has_no_end(tmp_path):
    process = started(tmp_path, *FEW, f"--trainer.callbacks+={ENDLESS}")
    log = tmp_path / RUN / "log.csv"
    until(process, lambda: log.exists() and "cushion/" in log.read_text())  # the endless one comes next
    time.sleep(1)
    process.terminate()
    code, said = ended(process)
    assert code == 143 and "resume with --ckpt_path last" in said


def caught(pid: int) -> int:
    """The signals that a process handles, a bit each."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"^SigCgt:\s*(\w+)", status, re.MULTILINE)[1], 16)


def test_a_signal_before_anything_is_imported_is_answered(tmp_path):
    process = started(tmp_path, kind=subprocess.Popen)
    until(process, lambda: caught(process.pid) >> (signal.SIGUSR1 - 1) & 1)  # then torch is imported, for a second
    process.send_signal(signal.SIGUSR1)
    code, said = ended(process)
    assert code == 138 and "stopped by SIGUSR1" in said


INTERRUPTED = """
import signal, sys
_, module, times, *words = sys.argv

class Interrupting:
    @staticmethod
    def find_spec(name, *_):
        if name == module:
            for _ in range(int(times)):
                signal.raise_signal(signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have had it ignored
sys.meta_path.insert(0, Interrupting)
sys.argv = ["main.py", *words]
from skipscope import main
sys.exit(main())
"""


@pytest.mark.parametrize(
    ("module", "times", "command"), [("lightning_app.cli", 1, "report"), ("torch._utils", 2, "fit")]
)
def test_ctrl_c_while_the_program_is_imported_ends_it_without_a_traceback(module, times, command):
    """The first one during `fit`'s imports waits for their end, the second does not."""
    call = [sys.executable, "-c", INTERRUPTED, module, str(times), command]
    done = subprocess.run(call, cwd=Path(MAIN).parent, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


REPLACED = """
import os, signal, sys
from matplotlib import _path, path
import lightning_app.cli, lightning_app.cli.training

class Matrix:
    def __array__(self, *_, **__):
        if sys.argv[-1] == "signal":
            signal.raise_signal(signal.SIGTERM)
        raise ArithmeticError

def draw(*_):
    if sys.argv[-1] == "pipe":
        try:
            signal.raise_signal(signal.SIGTERM)
        except SystemExit:
            raise BrokenPipeError  # of a logger whose process the signal has ended, too
    codes = [b"M", b"L", b"Q", b"C", b"z"]
    _path.convert_to_string(path.Path([[0, 0], [1, 1]]), Matrix(), None, None, None, 6, codes, False)

lightning_app.cli.training.run_training = draw
os.environ[lightning_app.cli.FOLDER_VARIABLE] = "."  # something was saved
sys.exit(lightning_app.cli.main(["fit"]))
"""


@pytest.mark.parametrize(("what", "code"), [("signal", 143), ("pipe", 143), ("fault", 1)])
def test_a_signal_whose_exception_another_one_has_replaced_still_ends_the_program(what, code):
    """matplotlib says "Invalid affine transformation matrix" of any exception raised while it reads an array."""
    call = [sys.executable, "-c", REPLACED, what]
    process = Popen(call, cwd=Path(MAIN).parent, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    _, said = process.communicate(timeout=240)
    assert process.returncode == code, said
    assert ("stopped by SIGTERM: resume with --ckpt_path last" in said) == (what != "fault")
    assert ("Invalid affine" in said) == (what == "fault")


def test_a_run_killed_before_its_first_checkpoint_begins_again_in_its_folder_and_another_one_does_not(tmp_path):
    process = started(tmp_path, *FEW, **{WAIT_AT: "1"})
    until_it_waits(process, tmp_path)
    process.kill()
    process.communicate()
    assert (tmp_path / RUN / "log.csv").exists() and not (tmp_path / RUN / "checkpoints" / "last.ckpt").exists()
    shutil.copytree(tmp_path / "runs", tmp_path / "copy" / "runs")
    other = ("--model.weight_decay", "0.5")
    for cwd, words, names in ((tmp_path, (), {RUN.name}), (tmp_path / "copy", other, {RUN.name, f"{RUN.name}~2"})):
        again = command(*TINY, *FEW, *words, "--ckpt_path", "last", cwd=cwd)
        assert again.returncode == 0, again.stderr
        assert {folder.name for folder in (cwd / RUN).parent.iterdir()} == names


def test_a_run_from_another_ones_checkpoint_killed_before_its_first_begins_there_again(tmp_path):
    first = str(tmp_path / RUN / "checkpoints" / "last.ckpt")
    begin = (*LONG, *FEW, "--run.name", "second", "--ckpt_path")
    assert command(*TINY, *LONG, *FEW, "--trainer.max_epochs", "1", cwd=tmp_path).returncode == 0
    whole = command(*TINY, *begin, first, "--run.root", "whole", cwd=tmp_path)
    assert whole.returncode == 0, whole.stderr
    killed = (tmp_path / RUN).with_name("second")
    for path in (first, "last"):  # and its resume, as early
        process = started(tmp_path, *begin, path, **{WAIT_AT: str(STEPS_AN_EPOCH + 1)})
        until_it_waits(process, tmp_path)
        process.kill()
        process.communicate()
        assert (killed / "config.yaml").exists() and not (killed / "checkpoints" / "last.ckpt").exists()
        (tmp_path / "here").unlink()
    resumed = command(*TINY, *begin, "last", cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    assert f"no checkpoint yet, starting from {first}." in resumed.stdout
    assert_same_run(tmp_path / "whole" / killed.parent.name / "second", killed)


def test_a_folder_in_use_is_refused_a_restarted_job_goes_on_and_a_finished_run_stays_as_it_is(tmp_path):
    assert command(*TINY, *FEW, "--trainer.max_epochs", "1", cwd=tmp_path).returncode == 0
    with take(tmp_path / RUN):
        refused = command(*TINY, *FEW, "--ckpt_path", "last", cwd=tmp_path)
    assert refused.returncode == 2
    assert (
        f"error: process {os.getpid()} on " in refused.stderr
        and "is writing into" in refused.stderr
        and "Traceback" not in refused.stderr
    )
    slurm = {"SLURM_RESTART_COUNT": "1"}
    restarted = command(*TINY, *FEW, "--ckpt_path", "last", cwd=tmp_path, env=slurm)
    assert restarted.returncode == 0, restarted.stderr
    assert "resuming after epoch 1" in restarted.stdout
    same = command(*TINY, *FEW, cwd=tmp_path, env=slurm)
    assert same.returncode == 0 and "nothing is left to train" in same.stdout, same.stderr
    before = checkpoint(tmp_path / RUN)["state_dict"]
    again = command(*TINY, *FEW, "--ckpt_path", "last", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert identical(before, checkpoint(tmp_path / RUN)["state_dict"])
    assert [folder.name for folder in (tmp_path / RUN).parent.iterdir()] == ["quickstart"]
    trial = {"SLURM_RESTART_COUNT": "1", "WANDB_SWEEP_ID": "abc"}  # `last` would be another trial's
    assert command(*TINY, *FEW, "--trainer.max_epochs", "1", cwd=tmp_path, env=trial).returncode == 0
    assert {folder.name for folder in (tmp_path / RUN).parent.iterdir()} == {"quickstart", "quickstart~2"}
    other = command(
        *TINY, *FEW, "--model.optimizer.lr", "0.5", cwd=tmp_path, env=slurm
    )  # stopped before it had a folder
    assert other.returncode == 0 and "going on after" not in other.stdout, other.stderr
    assert RunFolder(tmp_path / f"{RUN}~3").finished == 2
