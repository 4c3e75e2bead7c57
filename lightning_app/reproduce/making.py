"""One artefact, from its runs and computations to its evidence, its record, and the files made of these."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from lightning_app.common.files import write_atomically
from lightning_app.common.provenance import made_with
from lightning_app.common.signals import stopping
from lightning_app.papers.parts import PAPER, REDUCED, SMOKE, Artefact, Paper, Scale
from lightning_app.papers.records import RECORD, SCHEMA_VERSION, counts_of, read_record, rows_of
from lightning_app.papers.results import ArraysRead
from lightning_app.papers.verdicts import in_words
from lightning_app.plots import figures
from lightning_app.reproduce import tables
from lightning_app.reproduce.evidence import Evidence, evidence_of, jobs_of, trainings_of
from lightning_app.reproduce.job import Work
from lightning_app.runs.lock import claimed


@dataclass(frozen=True)
class Made:
    """What a reproduction wrote."""

    folder: Path
    counts: str  # "formula: 3 reproduced; trained: 1 not tested"
    table: pd.DataFrame  # as table.md shows it
    standing: str  # "paper scale: depth20 200 of 200 epochs, 2 of 2 seeds"


def make(paper: Paper, artefact: Artefact, scale: Scale, runs: Path, out: Path, work: Work | None = None) -> Made:
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
            for job in jobs_of(paper, artefact, scale):
                if work.includes(job.name):
                    job.complete(runs, work, out)
        except BaseException as error:  # whatever stops it: what there is by then is kept first
            stopped = error
    # A second signal does not cut what is kept in two, and one process at a time keeps it.
    with stopping.deferred(), claimed(out / paper.key, "results", f"results of {paper.key}"):
        changed = scale is not SMOKE and keep_evidence(paper, artefact, scale, runs, out)
        if stopped is not None and not changed:
            raise stopped  # a mistake, or a stop before there was anything new: no record of nothing
        # Records of other artefacts that rest on the same runs and computations are written anew.
        for other in paper.artefacts if changed else ():
            shared = other is not artefact and {*artefact.parts} & {*other.parts}
            if shared and (folder_of(out, paper, other, scale) / RECORD).exists():
                judged(paper, other, scale, runs, out)
        made = judged(paper, artefact, scale, runs, out)
        if scale is REDUCED and (folder_of(out, paper, artefact, PAPER) / RECORD).exists():
            judged(paper, artefact, PAPER, runs, out)  # which shows reduced scale beside it
    if stopped is not None:
        raise stopped
    return made


def judged(paper: Paper, artefact: Artefact, scale: Scale, runs: Path, out: Path) -> Made:
    """Judge by what there is, and write record, tables and figure."""
    evidence = evidence_of(paper, artefact, scale, runs if scale is SMOKE else None, out)
    judged_rows = rows(paper, artefact, evidence, out)
    standing = evidence.standing
    folder = folder_of(out, paper, artefact, scale)
    folder.mkdir(parents=True, exist_ok=True)
    if artefact.draw is not None:
        with figures.styled():
            figure = artefact.draw(evidence.results)
            figures.note(figure, f"{paper.key}/{artefact.key}, {standing}")
            figures.save(figure, folder, "figure")
    table = tables.frame(judged_rows)
    tables.write_tables(table, folder, head(paper, artefact, scale, standing))
    counts = counts_of(judged_rows)
    record = described(paper, artefact, evidence, out)
    record |= {"rendered": made_with(), "counts": counts, "rows": judged_rows}
    write_atomically(folder / RECORD, (json.dumps(record, indent=1, ensure_ascii=False) + "\n").encode())
    return Made(folder, in_words(counts), tables.shown(table), standing)


def rows(paper: Paper, artefact: Artefact, evidence: Evidence, out: Path) -> list[dict[str, Any]]:
    """An artefact's rows as its record has them: judged, at paper scale with the verdicts of reduced scale beside them."""
    claims = artefact.claims(evidence.results)
    found = rows_of(claims, artefact.about, evidence.scale.name, evidence.extent)
    return _beside_reduced(found, folder_of(out, paper, artefact, REDUCED)) if evidence.scale is PAPER else found


def described(paper: Paper, artefact: Artefact, evidence: Evidence, out: Path) -> dict[str, Any]:
    """What a record says of itself and of its evidence."""
    return {
        "schema": SCHEMA_VERSION,
        "artefact": f"{paper.key}/{artefact.key}",
        "scale": evidence.scale.name,
        "standing": evidence.standing,
        "extent": evidence.extent,
        "command": _command(paper, artefact, evidence.scale),
        "evidence": evidence.record(out),
    }


def keep_evidence(paper: Paper, artefact: Artefact, scale: Scale, runs: Path, out: Path) -> bool:
    """Pack the artefact's runs and pieces among the results, with the arrays that any artefact of the paper reads.

    Returns:
        Whether anything is kept that was not kept before.
    """
    trainings = trainings_of(paper, artefact, scale)
    alive = {job.name for job in trainings if any(run.lies_in(runs) for run in job.found(runs, out))}
    read: ArraysRead = {}
    for other in paper.artefacts:
        if other.has(scale) and alive & {*other.parts}:
            for name, arrays in _arrays_read(paper, other, scale, runs, out).items():
                read.setdefault(name, set()).update(arrays)
    return any([job.keep(runs, out, read.get(job.name, set())) for job in jobs_of(paper, artefact, scale)])


def _arrays_read(paper: Paper, artefact: Artefact, scale: Scale, runs: Path, out: Path) -> ArraysRead:
    """By run, the (family, epoch) of arrays that an artefact's claims and figure read."""
    results = evidence_of(paper, artefact, scale, runs, out).results
    artefact.claims(results)
    if artefact.draw is not None:
        with figures.styled():
            artefact.draw(results)
    return results.arrays_read


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
