"""One artefact, from its runs to the files of its result."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from lightning_app.reproduce import figures, tables
from lightning_app.reproduce.artefact import Artefact, Paper
from lightning_app.reproduce.plan import PAPER, Plan, Scale
from lightning_app.reproduce.results import Results
from lightning_app.reproduce.runner import complete, found_runs
from lightning_app.runs.provenance import commit, versions

__all__ = ["Made", "Training", "folder_of", "make"]

NOTED = ("torch", "pytorch-lightning", "numpy")  # versions kept with a result


@dataclass(frozen=True)
class Training:
    """What to train now, and how."""

    options: Sequence[str] = ()  # of ``fit``
    only: Collection[str] | None = None  # runs; None: all that the artefact needs
    seeds: Collection[int] | None = None  # None: all


@dataclass(frozen=True)
class Made:
    """What a reproduction wrote."""

    folder: Path
    counts: str  # "3 reproduced, 1 not tested"
    table: str  # table.md


def make(
    paper: Paper,
    artefact: Artefact,
    scale: Scale,
    runs: Path,
    out: Path,
    training: Training | None = None,
) -> Made:
    """Train what is missing, then write figure, tables and verdict.

    Args:
        runs: folder of all runs.
        out: folder of all results; this one goes to ``out/<paper>/<artefact>``, at smoke scale to its ``smoke`` below.
        training: what to train of what is missing; None: nothing, say what the runs that are there show.

    Raises:
        RunFailed: if a training process does not end well.
    """
    plans = artefact.plans(paper.key, scale)
    for plan in plans.values():
        if training is not None and (training.only is None or plan.name in training.only):
            complete(plan, runs, training.options, training.seeds)
    found = {name: found_runs(plan, runs) for name, plan in plans.items()}
    results = Results(plans, found, scale)
    folder = folder_of(out, paper, artefact, scale)
    folder.mkdir(parents=True, exist_ok=True)
    table = tables.frame(artefact.claims(results), scale)
    if artefact.draw is not None:
        with figures.styled():
            figure = artefact.draw(results)
            figures.note(figure, f"{paper.key}/{artefact.key}, {_standing(results, plans)}")
            figures.save(figure, folder, "figure")
    tables.write_tables(table, folder, _head(paper, artefact, results, plans))
    return Made(folder, tables.counts(table), (folder / "table.md").read_text())


def folder_of(out: Path, paper: Paper, artefact: Artefact, scale: Scale) -> Path:
    """Where a result lies: smoke results apart, in a folder that git ignores."""
    return out / paper.key / artefact.key / ("" if scale is PAPER else scale.name)


def _standing(results: Results, plans: dict[str, Plan]) -> str:
    """Scale, and how far each run is: "smoke scale (not a test): depth20 2 of 2 epochs, seeds 0-1"."""
    scale = "paper scale" if results.scale is PAPER else f"{results.scale.name} scale (not a test)"
    parts = [f"{name} {_progress(results, plan)}" for name, plan in plans.items()]
    return f"{scale}: {'; '.join(parts)}" if parts else "no training needed"


def _progress(results: Results, plan: Plan) -> str:
    last = results.last_epoch(plan.name)
    if last is None:
        return "not run"
    seeds = len({seed for arm in plan.arms for seed in results.seeds(plan.name, arm)})
    return f"{last} of {plan.epochs} epochs, {seeds} of {len(plan.seeds)} seeds"


def _head(paper: Paper, artefact: Artefact, results: Results, plans: dict[str, Plan]) -> str:
    lines = [
        f"# {paper.key}/{artefact.key}: {artefact.title}",
        paper.title,
        f"Runs, {_standing(results, plans)}.",
        f"Conventions. {artefact.convention}",
        f"`python main.py reproduce {paper.key}/{artefact.key} --scale {results.scale.name}`, "
        f"commit {commit()}, {versions(NOTED)}.",
    ]
    return "\n\n".join(lines)
