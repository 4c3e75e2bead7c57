"""W&B online, against a server that is there, is never there, or goes away: a run loses nothing and never waits for long.

Real command lines against the stub of `wandb_stub`; what it received is compared with the run folder.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from lightning_app.runs import RunFolder
from lightning_app.runs.folder import find_runs
from tests.forked import MAIN, WAIT_AT, Popen
from tests.helpers import ROOT, TIMING, TINY, assert_same_run
from tests.runs.wandb_stub import Recorded, WandbStub
from tests.waiting import go_on, until_it_waits

pytestmark = pytest.mark.slow

EPOCHS = 3
FINISH = 1  # seconds that a lost server is waited for
LOGIN = 60  # seconds: less than the 90 that wandb takes to log in unless it is told otherwise, also on a busy machine
SLACK = 240  # for a machine that is busy with other things; without a limit, wandb was seen to wait for more than 400
OPTIONS = ("--trainer.callbacks", "[TrainingMetrics, WeightMass]", "--trainer.max_epochs", f"{EPOCHS}")
OPTIONS += ("--data.test_limit", "40")
IN_THE_THIRD = {WAIT_AT: "5"}  # steps, of two an epoch
LOGGER = "[{{class_path: AutoWandbLogger, init_args: {{mode: auto, timeout: {timeout}, finish_timeout: {finish}}}}}]"


def environment(more: dict[str, str]) -> dict[str, str]:
    """Nobody's W&B account but the one in `more`; wandb's reports on itself, of which a lost server costs 10 s, are off."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WANDB")}
    return kept | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "WANDB_ERROR_REPORTING": "false"} | more


class Fit:
    """A command line under way, in a folder of its own."""

    def __init__(self, folder: Path, more: dict[str, str], *words: str, timeout: int = 10, finish: int = 120) -> None:
        logger = LOGGER.format(timeout=timeout, finish=finish)
        call = [sys.executable, MAIN, *TINY, *OPTIONS, "--trainer.logger", logger, *words]
        self.folder, self.errors = folder, folder / "stderr.txt"
        folder.mkdir(exist_ok=True)
        with self.errors.open("w") as errors:
            pipes = {"stdout": subprocess.PIPE, "stderr": errors, "text": True}
            self.process = Popen(call, cwd=folder, env=environment(more), **pipes)

    def lines(self) -> Iterator[str]:
        return iter(self.process.stdout)

    def killed(self) -> "Fit":
        """In its third epoch, where it waits, once W&B's own file has what came last."""
        until_it_waits(self.process, self.folder)
        (file,) = self.run.path.glob("wandb/*run-*/*.wandb")
        here = self.folder / "here"
        while (
            time.time() - max(file.stat().st_mtime, here.stat().st_mtime) < 3
        ):  # it is written once a second, if at all
            time.sleep(0.1)
        self.process.kill()
        assert self.process.wait() == -9
        return self

    def ended(self) -> tuple[list[str], str]:
        """What it said from here on, on both streams, once it ended well."""
        said = [*self.lines()]
        assert self.process.wait(SLACK) == 0, self.errors.read_text()
        return said, self.errors.read_text()

    @property
    def run(self) -> RunFolder:
        (found,) = find_runs([self.folder])
        return found


def numbers(rows: Iterable[dict]) -> dict[tuple[int, str], float]:
    """Of a history, by epoch and key, without what may differ between two equal runs."""
    return {
        (row["epoch"], key): value
        for row in rows
        for key, value in row.items()
        if "epoch" in row
        and "/" in key
        and not key.startswith((*TIMING, "trainer/"))
        and isinstance(value, (int, float))
    }


def logged(run: RunFolder) -> dict[tuple[int, str], float]:
    """log.csv, each epoch once, as W&B should have it: a member's name ends its keys."""
    rows = [row for row in run.log().itertuples(index=False) if not row.name.startswith(TIMING)]
    return {(row.epoch, f"{row.name}/{row.member}" if row.member else row.name): row.value for row in rows}


def assert_all_arrived(recorded: Recorded, run: RunFolder) -> None:
    expected = {key: value for key, value in logged(run).items() if "/" in key[1]}
    assert len(expected) > 20 * EPOCHS
    found = numbers(recorded.history)
    assert found.keys() == expected.keys()
    assert {key: repr(float(value)) for key, value in found.items()} == {
        key: repr(value) for key, value in expected.items()
    }


def segments(run: RunFolder) -> list[Path]:
    """W&B's folders of a run that was resumed, oldest first."""
    return sorted(run.path.glob("wandb/*run-*"), key=lambda folder: folder.name.partition("run-")[2])


def upload(segment: Path, server: WandbStub) -> None:
    """One at a time: given several, ``wandb sync`` stops after the first that a kill has cut off."""
    call = [str(Path(sys.executable).with_name("wandb")), "sync", "--include-online", str(segment)]
    done = subprocess.run(call, env=environment(server.environment), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def uploaded(run: RunFolder) -> Recorded:
    """What a new server has after the upload of all segments: one run."""
    with WandbStub() as server:
        for segment in segments(run):
            upload(segment, server)
    (recorded,) = server.runs.values()
    return recorded


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> tuple[WandbStub, Fit, str]:
    """A run with a server from beginning to end, that server, and what was said."""
    with WandbStub() as server:
        fit = Fit(tmp_path_factory.mktemp("whole"), server.environment)
        said, errors = fit.ended()
    return server, fit, "".join(said) + errors


def test_online_from_beginning_to_end(whole):
    server, fit, said = whole
    (recorded,) = server.runs.values()
    assert recorded.exitcode == 0
    assert not server.unknown
    assert_all_arrived(recorded, fit.run)
    assert f"/runs/{recorded.id}" in said and "lost" not in said


def test_killed_and_resumed_it_is_one_wandb_run(whole, tmp_path):
    with WandbStub() as server:
        first = Fit(tmp_path, server.environment | IN_THE_THIRD).killed()
        Fit(tmp_path, server.environment, "--ckpt_path", "last").ended()
        asked = [variables["name"] for operation, variables in server.asked if operation == "RunResumeStatus"]
        killed, _ = segments(first.run)
        upload(killed, server)  # what wandb had not sent yet, which it does every 15 s
    (recorded,) = server.runs.values()
    assert asked == [recorded.id] * 2
    assert_same_run(first.run.path, whole[1].run.path)
    assert_all_arrived(recorded, first.run)


@pytest.mark.parametrize("how", ["closed", "silent"])
def test_a_server_lost_in_the_middle(whole, tmp_path, how):
    with WandbStub() as server:
        fit = Fit(tmp_path, server.environment | IN_THE_THIRD, finish=FINISH)
        until_it_waits(fit.process, tmp_path)
        server.lose(how)
        go_on(tmp_path)
        next(line for line in fit.lines() if line.startswith(f"epoch {EPOCHS}/"))
        began = time.monotonic()
        _, errors = fit.ended()
        assert time.monotonic() - began < FINISH + SLACK
    assert errors.count("W&B was lost: it did not receive all of this run") == 1
    assert f"wandb sync --include-online {next(fit.run.path.glob('wandb/run-*')).relative_to(tmp_path)}" in errors
    assert_same_run(fit.run.path, whole[1].run.path)
    assert_all_arrived(uploaded(fit.run), fit.run)


def test_offline_segments_are_one_run(whole, tmp_path):
    """Both carry the id; ours read each epoch once, and sync makes one run of them."""
    offline = {"WANDB_MODE": "offline"}
    first = Fit(tmp_path, offline | IN_THE_THIRD).killed()
    Fit(tmp_path, offline, "--ckpt_path", "last").ended()
    names = [folder.name for folder in segments(first.run)]
    assert len(names) == 2
    assert_same_run(first.run.path, whole[1].run.path)
    recorded = uploaded(first.run)
    assert all(name.startswith("offline-run-") and name.endswith(f"-{recorded.id}") for name in names)
    assert_all_arrived(recorded, first.run)


@pytest.mark.parametrize("how", ["closed", "silent"])
def test_a_server_that_is_never_there(whole, tmp_path, how):
    """With a key: offline within the connection's timeout, one line, and everything recorded."""
    with WandbStub() as server:
        server.lose(how)
        fit = Fit(tmp_path, server.environment, timeout=1)  # all of it is waited for
        timed = [(line, time.monotonic()) for line in fit.lines()]
        _, errors = fit.ended()
    (offline,) = [when for line, when in timed if "W&B is offline; upload this run later with: wandb sync" in line]
    assert offline - next(when for line, when in timed if line.startswith("run folder")) < LOGIN
    assert "Traceback" not in errors
    assert_same_run(fit.run.path, whole[1].run.path)
