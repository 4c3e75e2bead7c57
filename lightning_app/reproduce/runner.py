"""Finds the runs a plan needs, resumes the interrupted ones and trains what is missing, each as a process of its own."""

import contextlib
import itertools
import shlex
import signal
import subprocess
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, Literal

from lightning_app.common.seeds import parse_seeds, spell_seeds
from lightning_app.common.signals import SIGNALS, Stopped
from lightning_app.reproduce.packing import MANIFEST, home_of_runs, unpack
from lightning_app.reproduce.plan import Plan
from lightning_app.runs import RunFolder, find_runs
from lightning_app.runs.folder import ID, LAST, WEIGHTS
from lightning_app.runs.lock import claimed

__all__ = ["Found", "RunFailed", "complete", "found_runs", "state"]

MAIN = Path(__file__).resolve().parents[2] / "skipscope.py"


class RunFailed(Exception):
    """A training process ended with something else than 0; what it said is on the terminal."""

    def __init__(self, plan: Plan, code: int) -> None:
        super().__init__(f"the run {plan.name} stopped (exit code {code}). The same command goes on where it stopped.")
        self.code = code


@dataclass(frozen=True)
class Found:
    """A run on disk that does what a plan asks, with some of the seeds."""

    folder: RunFolder
    seeds: tuple[int, ...]
    epoch: int  # completed
    state: Literal["finished", "interrupted", "lost"]  # lost: without a checkpoint to go on from

    @property
    def worth(self) -> tuple[int, bool, bool]:
        """Of two copies of a run, or two runs of the same seeds, the one with more of this counts."""
        weights = any((self.folder.checkpoints / name).exists() for name in (LAST, WEIGHTS))
        return self.epoch, self.state == "finished", weights


def found_runs(plan: Plan, root: Path, kept: Path | None = None) -> list[Found]:
    """The plan's runs, those kept as evidence first, each of them oldest first.

    Args:
        root: folder of all runs.
        kept: folder of all results; None: only the runs below the root count.
    """
    homes = [] if kept is None else [home_of_runs(kept, plan.paper, plan.scale)]
    found = [run for home in [*homes, root / plan.group] for run in _in(home, plan)]
    furthest: dict[str, Found] = {}  # a run that went on after it was packed is one run: of its copies one counts
    for run in found:
        one = _identity(run.folder)
        if one not in furthest or run.worth >= furthest[one].worth:
            furthest[one] = run
    return [run for run in found if furthest[_identity(run.folder)] is run]


def _identity(run: RunFolder) -> str:
    return run.identifier() if (run.path / ID).exists() else str(run.path)


def _in(home: Path, plan: Plan) -> list[Found]:
    folders = sorted(path for path in home.glob(f"{plan.name}*") if path.name.split("~")[0] == plan.name)
    runs = [run for path in folders if RunFolder(path).has_log for run in find_runs([path])]
    return [_found(plan, run) for run in runs if plan.matches(run.config())]


def _found(plan: Plan, run: RunFolder) -> Found:
    seeds = parse_seeds(run.config()["model"]["seeds"])
    if (run.finished or 0) >= plan.epochs:
        return Found(run, seeds, plan.epochs, "finished")
    resumable = (run.checkpoints / LAST).exists()
    return Found(run, seeds, run.last_epoch or 0, "interrupted" if resumable else "lost")


def state(plan: Plan, root: Path, kept: Path | None = None) -> str:
    """How far a plan is, in words.

    "finished", "not run", "epoch 12 of 200", "3 of 13 seeds".
    """
    runs = [run for run in found_runs(plan, root, kept) if run.state != "lost"]
    done = {seed for run in runs if run.state == "finished" for seed in run.seeds}
    if done >= set(plan.seeds):
        return "finished"
    if open_runs := [run for run in runs if run.state == "interrupted"]:
        return f"epoch {min(run.epoch for run in open_runs)} of {plan.epochs}"
    return f"{len(done)} of {len(plan.seeds)} seeds" if done else "not run"


def complete(
    plan: Plan,
    root: Path,
    options: Sequence[str] = (),
    seeds: Collection[int] | None = None,
    kept: Path | None = None,
) -> None:
    """Train whatever the plan still lacks; nothing if all its seeds have finished.

    Args:
        plan: the run, its scale and seeds.
        root: folder of all runs.
        options: more options of ``fit``, of place and speed (``--data.root``, ``--trainer.accelerator``).
        seeds: leave the plan's other seeds to other machines; None for all.
        kept: folder of all results: what finished is not trained again, what was interrupted goes on from its evidence.

    Raises:
        RunFailed: if a training process does not end with 0, or before its last epoch.
    """
    wanted = set(plan.seeds) & set(plan.seeds if seeds is None else seeds)
    with claimed(root / plan.group, f"{plan.name}.{spell_seeds(wanted)}", f"run {plan.name}") as lock:
        lacking = wanted - _covered(plan, root, kept)
        for run in found_runs(plan, root, kept):
            if run.state == "interrupted" and lacking & set(run.seeds):
                checkpoint = _workable(run.folder, plan, root).checkpoints / LAST
                _fit(plan, root, run.seeds, [*options, "--ckpt_path", str(checkpoint)], lock)
                lacking -= set(run.seeds)
        if lacking:
            _fit(plan, root, sorted(lacking), options, lock)


def _workable(run: RunFolder, plan: Plan, root: Path) -> RunFolder:
    """The run where it can be written to: one kept as evidence is unpacked first."""
    if not (run.path / MANIFEST).exists():
        return run
    home = root / plan.group
    names = itertools.chain((plan.name,), (f"{plan.name}~{number}" for number in itertools.count(2)))
    target = next(home / name for name in names if not (home / name).exists())
    print(f"run {plan.name}: goes on from the evidence in {run.path}, in {target}", flush=True)
    return unpack(run.path, target)


def _covered(plan: Plan, root: Path, kept: Path | None = None) -> set[int]:
    """Seeds with a finished run."""
    return {seed for run in found_runs(plan, root, kept) if run.state == "finished" for seed in run.seeds}


def _fit(plan: Plan, root: Path, seeds: Sequence[int], options: Sequence[str], lock: IO) -> None:
    words = [sys.executable, str(MAIN), "fit", "--config", _from_here(plan.config), "--run.root", str(root)]
    words += ["--run.group", plan.group, "--run.name", plan.name, "--run.plan", plan.digest]
    words += ["--model.seeds", spell_seeds(seeds)]
    words += [word for key, value in plan.options.items() for word in (f"--{key}", value)]
    words += options
    print(f"run {plan.name}: python main.py {shlex.join(words[2:])}", flush=True)
    if code := _to_its_end(words, lock):
        raise RunFailed(plan, code)
    if not set(seeds) <= _covered(plan, root):
        raise RunFailed(plan, 1)


def _from_here(path: Path) -> str:
    """Relative to the working folder where it lies below: a run's own record should name no folder of one machine."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def _to_its_end(words: Sequence[str], lock: IO) -> int:
    """Exit code of a training process, which gets the signals that end us: it saves, then so do we.

    Raises:
        Stopped: if a signal came when the process had nothing left to do: what would follow is not begun.
    """
    asked: list[int] = []
    process: subprocess.Popen | None = None

    def forward(number: int, _: FrameType | None) -> None:
        asked.append(number)
        if process is not None:
            process.send_signal(number)

    earlier = {which: signal.signal(which, forward) for which in SIGNALS}
    try:
        # The lock goes along: should we be killed, the process that trains still holds it.
        process = subprocess.Popen(words, pass_fds=(lock.fileno(),))
        for number in asked:  # before the process was known
            process.send_signal(number)
        code = _wait(process)
    finally:
        for which, handler in earlier.items():
            signal.signal(which, handler)
    if asked and code == 0:
        raise Stopped(signal.Signals(asked[0]))
    return code


def _wait(process: subprocess.Popen) -> int:
    while True:
        with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C has reached the process too
            return process.wait()
