"""One artefact, from its runs and computations to its evidence, its record, and the files made of these."""

import json
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from lightning_app.common.files import write_atomically
from lightning_app.common.provenance import made_with
from lightning_app.common.signals import stopping
from lightning_app.plots import figures
from lightning_app.records import RECORD, SCHEMA_VERSION, counts_of, read_record, rows_of
from lightning_app.reproduce import computation, tables
from lightning_app.reproduce.artefact import Artefact, Paper
from lightning_app.reproduce.computation import Computed, Task
from lightning_app.reproduce.packing import MANIFEST, file_digest, home_of_pieces, home_of_runs, pack, packed_name
from lightning_app.reproduce.plan import PAPER, REDUCED, SMOKE, Plan, Scale
from lightning_app.reproduce.results import Results
from lightning_app.reproduce.runner import Found, complete, found_runs
from lightning_app.runs.lock import claimed
from lightning_app.verdicts import in_words

__all__ = ["Made", "Work", "described", "folder_of", "head", "make", "results_of", "rows"]


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
    counts: str  # "formula: 3 reproduced; trained: 1 not tested"
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
    """Train and compute what is missing, keep the evidence, judge by it, and write record, tables and figure.

    Args:
        runs: folder of all runs.
        out: folder of all results; this one goes to ``out/<paper>/<artefact>``, at other scales than the paper's to a
            folder of that name below.
        work: what to make of what is missing; None: nothing, say what is there shows.

    Raises:
        RunFailed: if a training process does not end well. What there is by then is kept all the same.
    """
    stopped: BaseException | None = None
    if work is not None:
        try:
            _complete(
                artefact.plans(paper.key, scale).values(), artefact.tasks(paper.key, scale).values(), runs, out, work
            )
        except BaseException as error:  # whatever stops it: what there is by then is kept first
            stopped = error
    # A second signal does not cut what is kept in two, and one process at a time keeps it.
    with stopping.held(), claimed(out / paper.key, "results", f"results of {paper.key}"):
        changed = scale is not SMOKE and keep_evidence(paper, artefact, scale, runs, out)
        if stopped is not None and not changed:
            raise stopped  # a mistake, or a stop before there was anything new: no record of nothing
        if changed:
            _judge_others(paper, artefact, scale, runs, out)
        made = judged(paper, artefact, scale, runs, out)
        if scale is REDUCED and (folder_of(out, paper, artefact, PAPER) / RECORD).exists():
            judged(paper, artefact, PAPER, runs, out)  # which shows reduced scale beside it
    if stopped is not None:
        raise stopped
    return made


def _judge_others(paper: Paper, artefact: Artefact, scale: Scale, runs: Path, out: Path) -> None:
    """Records of other artefacts that rest on the same runs and computations, written anew."""
    own = {part.name for part in artefact.runs + artefact.computations}
    for other in paper.artefacts:
        shared = own & {part.name for part in other.runs + other.computations}
        if other is not artefact and shared and (folder_of(out, paper, other, scale) / RECORD).exists():
            judged(paper, other, scale, runs, out)


def judged(paper: Paper, artefact: Artefact, scale: Scale, runs: Path, out: Path) -> Made:
    """Judge by what there is, and write record, tables and figure."""
    results = results_of(paper, artefact, scale, runs if scale is SMOKE else None, out)
    judged_rows = rows(paper, artefact, scale, results, out)
    standing = _standing(results)
    folder = folder_of(out, paper, artefact, scale)
    folder.mkdir(parents=True, exist_ok=True)
    if artefact.draw is not None:
        with figures.styled():
            figure = artefact.draw(results)
            figures.note(figure, f"{paper.key}/{artefact.key}, {standing}")
            figures.save(figure, folder, "figure")
    table = tables.frame(judged_rows)
    tables.write_tables(table, folder, head(paper, artefact, scale, standing))
    record = {
        **described(paper, artefact, scale, results, out),
        "rendered": made_with(),
        "counts": counts_of(judged_rows),
        "rows": judged_rows,
    }
    write_atomically(folder / RECORD, (json.dumps(record, indent=1, ensure_ascii=False) + "\n").encode())
    return Made(folder, in_words(counts_of(judged_rows)), tables.shown(table), standing)


def rows(paper: Paper, artefact: Artefact, scale: Scale, results: Results, out: Path) -> list[dict[str, Any]]:
    """An artefact's rows as its record has them: judged, at paper scale with the verdicts of reduced scale beside them."""
    found = rows_of(artefact.claims(results), artefact.about, scale.name, _of_the_paper(results))
    return _beside_reduced(found, folder_of(out, paper, artefact, REDUCED)) if scale is PAPER else found


def described(paper: Paper, artefact: Artefact, scale: Scale, results: Results, out: Path) -> dict[str, Any]:
    """What a record says of itself and of its evidence."""
    return {
        "schema": SCHEMA_VERSION,
        "artefact": f"{paper.key}/{artefact.key}",
        "scale": scale.name,
        "standing": _standing(results),
        "extent": _of_the_paper(results),
        "command": _command(paper, artefact, scale),
        "evidence": _evidence(results, out),
    }


def results_of(paper: Paper, artefact: Artefact, scale: Scale, runs: Path | None, out: Path) -> Results:
    """What an artefact's claims read: the evidence among the results and, if a folder of runs is given, what is there."""
    plans, tasks = artefact.plans(paper.key, scale), artefact.tasks(paper.key, scale)
    nowhere = out / paper.key / ".none"  # no run is ever there
    found = {name: found_runs(plan, runs or nowhere, out) for name, plan in plans.items()}
    computed = {name: computation.found(task, runs or nowhere, out) for name, task in tasks.items()}
    return Results(plans, found, scale, computed)


def keep_evidence(paper: Paper, artefact: Artefact, scale: Scale, runs: Path, out: Path) -> bool:
    """Pack the artefact's runs and pieces among the results, with the arrays that any artefact of the paper reads.

    Returns:
        Whether anything is kept that was not kept before.
    """
    changed = any([computation.keep(task, runs, out) for task in artefact.tasks(paper.key, scale).values()])
    own = artefact.plans(paper.key, scale)
    alive = {name: [run for run in found_runs(plan, runs, out) if _is_below(run, runs)] for name, plan in own.items()}
    if not any(alive.values()):
        return changed
    read: dict[str, set[tuple[str, int]]] = {}
    for other in paper.artefacts:
        if other.has(scale) and any(alive.get(run.name) for run in other.runs):
            for name, arrays in _arrays_read(paper, other, scale, runs, out).items():
                read.setdefault(name, set()).update(arrays)
    for name, plan in own.items():
        furthest: dict[str, Found] = {}  # of runs with the same seeds, kept or not, one is kept
        for run in sorted(found_runs(plan, runs, out), key=lambda run: run.worth):
            furthest[packed_name(plan, run.seeds)] = run
        for packed, run in furthest.items():
            if not _is_below(run, runs):
                continue
            target = home_of_runs(out, paper.key, scale) / packed
            changed |= pack(run.folder, target, run.state == "finished", read.get(name, set()))
        changed |= _drop_superseded(plan, out)
    return changed


def _drop_superseded(plan: Plan, out: Path) -> bool:
    """Remove kept runs that did not finish and whose seeds another kept run has taken further."""
    kept = found_runs(plan, out / ".none", out)
    further = {run.folder.path: {s for r in kept if r.worth > run.worth for s in r.seeds} for run in kept}
    old = [run for run in kept if run.state != "finished" and set(run.seeds) <= further[run.folder.path]]
    for run in old:
        shutil.rmtree(run.folder.path)
    return bool(old)


def _is_below(run: Found, runs: Path) -> bool:
    return run.folder.path.resolve().is_relative_to(runs.resolve())


def _arrays_read(
    paper: Paper, artefact: Artefact, scale: Scale, runs: Path, out: Path
) -> Mapping[str, set[tuple[str, int]]]:
    """By run, the (family, epoch) of arrays that an artefact's claims and figure read."""
    results = results_of(paper, artefact, scale, runs, out)
    artefact.claims(results)
    if artefact.draw is not None:
        with figures.styled():
            artefact.draw(results)
    return results.arrays_read


def _complete(plans: Iterable[Plan], tasks: Iterable[Task], runs: Path, out: Path, work: Work) -> None:
    for task in tasks:
        if work.includes(task.name):
            computation.complete(task, runs, work.data, out)
    for plan in plans:
        if work.includes(plan.name):
            complete(plan, runs, work.options, work.seeds, out)


def folder_of(out: Path, paper: Paper, artefact: Artefact, scale: Scale) -> Path:
    """Where a result lies: smoke results apart, in a folder that git ignores."""
    return out / paper.key / artefact.key / ("" if scale is PAPER else scale.name)


def _beside_reduced(own: list[dict[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """The verdicts of reduced scale beside those of the paper's, where there are some; they are counted apart."""
    if not (folder / RECORD).exists():
        return own
    record = read_record(folder)
    found = {row["quantity"]: {"verdict": row["verdict"], "extent": row.get("extent", "")} for row in record["rows"]}
    return [row | ({"reduced": found[row["quantity"]]} if row["quantity"] in found else {}) for row in own]


def _evidence(results: Results, out: Path) -> list[dict[str, Any]]:
    """What the rows rest on: each run and computation, with what made it."""
    runs = [_run_evidence(name, run, results, out) for name, found in results.found.items() for run in found]
    return runs + [_pieces_evidence(found, out) for found in results.computations.values() if found.pieces]


def _run_evidence(name: str, run: Found, results: Results, out: Path) -> dict[str, Any]:
    plan = results.plans[name]
    inside = run.folder.path.resolve().is_relative_to(out.resolve())
    return {
        "run": name,
        "folder": run.folder.path.resolve().relative_to(out.resolve()).as_posix() if inside else None,
        "manifest": file_digest(run.folder.path / MANIFEST) if inside else None,
        "digest": run.folder.config()["run"]["plan"],  # under which it was trained
        "state": run.state,
        "epochs": run.epoch,
        "of_epochs": plan.epochs,
        "seeds": [*run.seeds],
        "seconds": _seconds(run),
        "made": run.folder.made(),
    }


def _seconds(run: Found) -> float | None:
    """Wall time of training and measuring, from the log; None where it does not say."""
    log = run.folder.log()
    times = log[(log["member"] == "") & (log["name"].str.startswith("cost/") | (log["name"] == "time/epoch"))]
    return round(float(times["value"].sum()), 1) if len(times) else None


def _pieces_evidence(found: Computed, out: Path) -> dict[str, Any]:
    home = home_of_pieces(out, found.task.paper, found.task.scale) / found.task.name
    files = {piece: home / f"{piece}.npz" for piece in found.pieces}
    made = [*found.made.values()]
    kinds = dict.fromkeys(json.dumps({key: value for key, value in each.items() if key != "seconds"}) for each in made)
    return {
        "computation": found.task.name,
        "folder": home.relative_to(out).as_posix(),
        "files": {file.name: file_digest(file) for file in files.values() if file.exists()},
        "digests": {piece: found.task.digest(piece) for piece in found.pieces},
        "of_pieces": len(found.task.computation.pieces),
        "precision": found.task.computation.precision,
        "data": found.data or None,
        "seconds": round(sum(each["seconds"] for each in made), 1),
        "made": [json.loads(kind) for kind in kinds],
    }


def _standing(results: Results) -> str:
    """Scale, and how far each run and computation is: "smoke scale (not a test): depth20 2 of 2 epochs, seeds 0-1"."""
    scale = f"{results.scale.name} scale{' (not a test)' if results.scale is SMOKE else ''}"
    parts = [f"{name} {_progress(results, plan)}" for name, plan in results.plans.items()]
    parts += [f"{name} {_extent(found)}" for name, found in results.computations.items()]
    return f"{scale}: {'; '.join(parts)}"


def _of_the_paper(results: Results) -> str:
    """ "30 of 200 epochs, 3 seeds"; "" where nothing is trained."""
    asked = {
        f"{plan.epochs} of {plan.epochs_of_the_paper} epochs, {len(plan.seeds)} seeds"
        for plan in results.plans.values()
    }
    return "; ".join(sorted(asked))


def _progress(results: Results, plan: Plan) -> str:
    last = results.last_epoch(plan.name)
    if last is None:
        return "not run"
    seeds = len({seed for arm in plan.arms for seed in results.seeds(plan.name, arm)})
    return f"{last} of {plan.epochs} epochs{plan.out_of}, {seeds} of {len(plan.seeds)} seeds"


def _extent(found: Computed) -> str:
    """ "computed on MNIST", "3 of 12 pieces on MNIST"."""
    return f"{found.missing or 'computed'}{f' on {found.data}' if found.data else ''}"


def _command(paper: Paper, artefact: Artefact, scale: Scale) -> str:
    return f"python main.py reproduce {paper.key}/{artefact.key} --scale {scale.name}"


def head(paper: Paper, artefact: Artefact, scale: Scale, standing: str) -> str:
    lines = [
        f"# {paper.key}/{artefact.key}: {artefact.title}",
        paper.title,
        f"Evidence, {standing}.",
        f"Conventions. {artefact.convention}",
        f"`{_command(paper, artefact, scale)}`. Numbers of each seed, and which commit trained or computed them on what "
        f"machine: {RECORD}. `python main.py verify {paper.key}/{artefact.key}` judges again.",
    ]
    return "\n\n".join(lines)
