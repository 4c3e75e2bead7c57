"""What there is of an artefact's runs and computations, and reading access to it for claims and figures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_app.papers.parts import SMOKE, Artefact, Paper, Scale
from lightning_app.papers.results import Results
from lightning_app.reproduce.computing import ComputationJob, Computed
from lightning_app.reproduce.job import Job
from lightning_app.reproduce.training import Found, TrainingJob
from lightning_app.runs.reader import Net, Run


def trainings_of(paper: Paper, artefact: Artefact, scale: Scale) -> list[TrainingJob]:
    return [TrainingJob(paper.key, run, scale) for run in artefact.runs]


def jobs_of(paper: Paper, artefact: Artefact, scale: Scale) -> list[Job]:
    """Everything that an artefact rests on; computations first, as they take minutes."""
    computations = [ComputationJob(paper.key, computation, scale) for computation in artefact.computations]
    return [*computations, *trainings_of(paper, artefact, scale)]


@dataclass(frozen=True)
class Evidence:
    """What there is of an artefact's jobs."""

    scale: Scale
    trainings: Sequence[TrainingJob]
    runs: Mapping[str, Sequence[Found]]  # by job
    computed: Sequence[Computed]
    results: Results

    @property
    def standing(self) -> str:
        """Scale, and how far each job is: "smoke scale (not a test): depth20 2 of 2 epochs, 2 of 2 seeds"."""
        scale, parts = f"{self.scale.name} scale{' (not a test)' if self.scale is SMOKE else ''}", []
        for job in self.trainings:
            last = self.results.last_epoch(job.name)
            seeds = len({seed for arm in job.arms for seed in self.results.seeds(job.name, arm)})
            progress = f"{last} of {job.epochs} epochs{job.out_of}, {seeds} of {len(job.seeds)} seeds"
            parts.append(f"{job.name} {'not run' if last is None else progress}")
        parts += [f"{found.job.name} {found.standing}" for found in self.computed]
        return f"{scale}: {'; '.join(parts)}"

    @property
    def extent(self) -> str:
        """ "30 of 200 epochs, 3 seeds"; "" where nothing is trained."""
        asked = {f"{j.epochs} of {j.epochs_of_the_paper} epochs, {len(j.seeds)} seeds" for j in self.trainings}
        return "; ".join(sorted(asked))

    def record(self, out: Path) -> list[dict[str, Any]]:
        """What the rows rest on: each run and computation, with what made it."""
        runs = [run.record(out) for found in self.runs.values() for run in found]
        return runs + [found.record(out) for found in self.computed if found.pieces]

    def folders(self, out: Path) -> set[str]:
        """Folders of what is kept, below the results."""
        runs = [run.folder.path for found in self.runs.values() for run in found]
        pieces = [found.job.home(out) for found in self.computed if found.pieces]
        return {folder.relative_to(out).as_posix() for folder in [*runs, *pieces]}


def evidence_of(
    paper: Paper,
    artefact: Artefact,
    scale: Scale,
    root: Path | None,
    out: Path,
    computed: Sequence[Computed] | None = None,
) -> Evidence:
    """What an artefact's claims read.

    Args:
        root: folder of all runs; None: only what is kept among the results.
        out: folder of all results.
        computed: instead of the computations that there are.
    """
    root = root or out / paper.key / ".none"  # no run is ever there
    trainings = trainings_of(paper, artefact, scale)
    runs = {job.name: job.found(root, out) for job in trainings}
    if computed is None:
        jobs = [ComputationJob(paper.key, computation, scale) for computation in artefact.computations]
        computed = [job.found(root, out) for job in jobs]
    trained = {job.name: _read(job, runs[job.name]) for job in trainings}
    pieces = {found.job.name: found.pieces for found in computed}
    results = Results({job.name: job for job in trainings}, trained, scale, pieces)
    return Evidence(scale, trainings, runs, computed, results)


def _read(job: TrainingJob, runs: Sequence[Found]) -> list[Net]:
    """Every (arm, seed) of the job that a run has trained, in the job's order.

    UserError: if what a run recorded of its nets cannot be read: no verdict rests on guesses from names.
    """
    found: dict[tuple[str, int | None], Net] = {}
    for each in sorted(runs, key=lambda run: run.epoch):  # a more complete run overwrites
        run = Run(each.folder)
        found |= {(net.arm, net.seed): net for net in run.nets}
        run.check()
    return [found[arm, seed] for arm in job.arms for seed in job.seeds if (arm, seed) in found]
