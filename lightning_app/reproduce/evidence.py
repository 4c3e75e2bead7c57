"""A reproduction of an artefact, what there is of its runs and computations, and reading access to it for claims and figures."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from lightning_app.papers.parts import PAPER, SMOKE, Artefact, Paper, Scale
from lightning_app.papers.records import RECORD
from lightning_app.papers.results import Results
from lightning_app.reproduce.computing import ComputationJob, Computed
from lightning_app.reproduce.job import Job
from lightning_app.reproduce.training import FoundRun, TrainingJob
from lightning_app.runs.reader import Net


@dataclass(frozen=True)
class Reproduction:
    """An artefact at a scale, and the folder of all results."""

    paper: Paper
    artefact: Artefact
    scale: Scale
    out: Path

    @property
    def key(self) -> str:
        return f"{self.paper.key}/{self.artefact.key}"

    @property
    def command(self) -> str:
        return f"python main.py reproduce {self.key} --scale {self.scale.name}"

    @property
    def folder(self) -> Path:
        """Where its results lie: those of smoke scale apart, in a folder that git ignores."""
        return self.out / self.key / ("" if self.scale is PAPER else self.scale.name)

    @property
    def recorded(self) -> bool:
        return (self.folder / RECORD).exists()

    @cached_property
    def trainings(self) -> list[TrainingJob]:
        return [TrainingJob(self.paper.key, run, self.scale) for run in self.artefact.runs]

    @cached_property
    def computations(self) -> list[ComputationJob]:
        return [ComputationJob(self.paper.key, each, self.scale) for each in self.artefact.computations]

    @property
    def jobs(self) -> list[Job]:
        """Everything that it rests on; computations first, as they take minutes."""
        return [*self.computations, *self.trainings]

    def evidence(self, root: Path | None = None, computed: Sequence[Computed] | None = None) -> "Evidence":
        """What its claims read.

        Args:
            root: folder of all runs; None: only what is kept among the results.
            computed: instead of the computations that there are.
        """
        runs = {job.name: job.found(root, self.out) for job in self.trainings}
        if computed is None:
            computed = [job.found(root, self.out) for job in self.computations]
        trained = {job.name: _read(job, runs[job.name]) for job in self.trainings}
        pieces = {found.job.name: found.pieces for found in computed}
        results = Results({job.name: job for job in self.trainings}, trained, self.scale, pieces)
        return Evidence(self, [run for found in runs.values() for run in found], computed, results)


@dataclass(frozen=True)
class Evidence:
    """What there is of a reproduction's jobs."""

    of: Reproduction
    runs: Sequence[FoundRun]
    computed: Sequence[Computed]
    results: Results

    @property
    def standing(self) -> str:
        """Scale, and how far each job is: "smoke scale (not a test): depth20 2 of 2 epochs, 2 of 2 seeds"."""
        scale = f"{self.of.scale.name} scale{' (not a test)' if self.of.scale is SMOKE else ''}"
        parts = [f"{job.name} {self._progress(job)}" for job in self.of.trainings]
        parts += [f"{found.job.name} {found.standing}" for found in self.computed]
        return f"{scale}: {'; '.join(parts)}"

    def _progress(self, job: TrainingJob) -> str:
        """How far a run's seeds are: "30 of 30 epochs (the paper: 200), 2 of 3 seeds, 1 more at epoch 8"."""
        by_epoch = sorted(Counter(self.results.epochs_of_seeds(job.name).values()).items(), reverse=True)
        if not by_epoch:
            return "not run"
        (most, seeds), *behind = by_epoch
        full = f" (the paper: {job.epochs_of_the_paper})" if job.reduced else ""
        more = "".join(f", {count} more at epoch {epoch}" for epoch, count in behind)
        return f"{most} of {job.epochs} epochs{full}, {seeds} of {len(job.seeds)} seeds{more}"

    @property
    def extent(self) -> str:
        """ "30 of 200 epochs, 3 seeds"; "" where nothing is trained."""
        asked = {f"{j.epochs} of {j.epochs_of_the_paper} epochs, {len(j.seeds)} seeds" for j in self.of.trainings}
        return "; ".join(sorted(asked))

    def record(self) -> list[dict[str, Any]]:
        """What the rows rest on: each run and computation, with what made it."""
        kept: list[FoundRun | Computed] = [*self.runs, *(found for found in self.computed if found.pieces)]
        return [each.record(self.of.out) for each in kept]


def _read(job: TrainingJob, runs: Sequence[FoundRun]) -> list[Net]:
    """Every (arm, seed) of the job that a run has trained, in the job's order.

    UserError: if a run's record of its nets cannot be read, as no verdict may rest on guesses from names.
    """
    found: dict[tuple[str, int | None], Net] = {}
    for each in sorted(runs, key=lambda run: run.epoch):  # a more complete run overwrites
        found |= {(net.arm, net.seed): net for net in each.read.nets}
        each.read.check()
    return [found[arm, seed] for arm in job.arms for seed in job.seeds if (arm, seed) in found]
