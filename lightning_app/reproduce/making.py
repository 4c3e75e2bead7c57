"""One artefact, from its runs and computations to the files of its result."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from lightning_app.reproduce import computation, figures, tables
from lightning_app.reproduce.artefact import Artefact, Paper
from lightning_app.reproduce.computation import Computed, Task
from lightning_app.reproduce.plan import PAPER, Plan, Scale
from lightning_app.reproduce.results import Results
from lightning_app.reproduce.runner import complete, found_runs
from lightning_app.runs.provenance import commit, versions

__all__ = ["Made", "Work", "folder_of", "make"]

NOTED = ("torch", "pytorch-lightning", "numpy")  # versions kept with a result


@dataclass(frozen=True)
class Work:
    """What to train and compute now, and how."""

    data: Path  # folder of all data, for computations; ``options`` say it to runs
    options: Sequence[str] = ()  # of ``fit``
    only: Collection[str] | None = None  # runs and computations; None: all that the artefact needs
    seeds: Collection[int] | None = None  # of the runs; None: all

    def includes(self, name: str) -> bool:
        return self.only is None or name in self.only


@dataclass(frozen=True)
class Made:
    """What a reproduction wrote."""

    folder: Path
    counts: str  # "3 reproduced, 1 not tested"
    table: pd.DataFrame  # as table.md shows it
    standing: str  # "paper scale: depth20 200 of 200 epochs, 2 of 2 seeds"


def make(
    paper: Paper,
    artefact: Artefact,
    scale: Scale,
    runs: Path,
    out: Path,
    work: Work | None = None,
) -> Made:
    """Train and compute what is missing, then write figure, tables and verdict.

    Args:
        runs: folder of all runs.
        out: folder of all results; this one goes to ``out/<paper>/<artefact>``, at smoke scale to its ``smoke`` below.
        work: what to make of what is missing; None: nothing, say what is there shows.

    Raises:
        RunFailed: if a training process does not end well.
    """
    plans, tasks = artefact.plans(paper.key, scale), artefact.tasks(paper.key, scale)
    if work is not None:
        _complete(plans.values(), tasks.values(), runs, work)
    found = {name: found_runs(plan, runs) for name, plan in plans.items()}
    computed = {name: computation.found(task, runs) for name, task in tasks.items()}
    results = Results(plans, found, scale, computed)
    standing = _standing(results, plans, computed)
    folder = folder_of(out, paper, artefact, scale)
    folder.mkdir(parents=True, exist_ok=True)
    table = tables.frame(artefact.claims(results), scale)
    if artefact.draw is not None:
        with figures.styled():
            figure = artefact.draw(results)
            figures.note(figure, f"{paper.key}/{artefact.key}, {standing}")
            figures.save(figure, folder, "figure")
    tables.write_tables(table, folder, _head(paper, artefact, scale, standing))
    return Made(folder, tables.counts(table), tables.shown(table), standing)


def _complete(plans: Iterable[Plan], tasks: Iterable[Task], runs: Path, work: Work) -> None:
    for task in tasks:
        if work.includes(task.name):
            computation.complete(task, runs, work.data)
    for plan in plans:
        if work.includes(plan.name):
            complete(plan, runs, work.options, work.seeds)


def folder_of(out: Path, paper: Paper, artefact: Artefact, scale: Scale) -> Path:
    """Where a result lies: smoke results apart, in a folder that git ignores."""
    return out / paper.key / artefact.key / ("" if scale is PAPER else scale.name)


def _standing(results: Results, plans: dict[str, Plan], computed: dict[str, Computed]) -> str:
    """Scale, and how far each run and computation is: "smoke scale (not a test): depth20 2 of 2 epochs, seeds 0-1"."""
    scale = "paper scale" if results.scale is PAPER else f"{results.scale.name} scale (not a test)"
    parts = [f"{name} {_progress(results, plan)}" for name, plan in plans.items()]
    parts += [f"{name} {_extent(found)}" for name, found in computed.items()]
    return f"{scale}: {'; '.join(parts)}"


def _progress(results: Results, plan: Plan) -> str:
    last = results.last_epoch(plan.name)
    if last is None:
        return "not run"
    seeds = len({seed for arm in plan.arms for seed in results.seeds(plan.name, arm)})
    return f"{last} of {plan.epochs} epochs, {seeds} of {len(plan.seeds)} seeds"


def _extent(found: Computed) -> str:
    """ "computed on MNIST", "3 of 12 pieces on MNIST"."""
    return f"{found.missing or 'computed'}{f' on {found.data}' if found.data else ''}"


def _head(paper: Paper, artefact: Artefact, scale: Scale, standing: str) -> str:
    lines = [
        f"# {paper.key}/{artefact.key}: {artefact.title}",
        paper.title,
        f"Runs, {standing}.",
        f"Conventions. {artefact.convention}",
        f"`python main.py reproduce {paper.key}/{artefact.key} --scale {scale.name}`, "
        f"commit {commit()}, {versions(NOTED)}.",
    ]
    return "\n\n".join(lines)
