"""One artefact, from its runs and computations to its evidence, its record, and the files made of these."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from lightning_app.common.errors import UserError
from lightning_app.common.files import write_atomically
from lightning_app.common.provenance import made_with
from lightning_app.common.signals import stopping
from lightning_app.papers.parts import PAPER, REDUCED, SMOKE
from lightning_app.papers.records import RECORD, SCHEMA_VERSION, counts_of, read_record, rows_of
from lightning_app.papers.results import ArraysRead
from lightning_app.papers.verdicts import in_words
from lightning_app.plots import figures
from lightning_app.reproduce import tables
from lightning_app.reproduce.evidence import Evidence, Reproduction
from lightning_app.reproduce.job import JobOptions
from lightning_app.reproduce.packing import damage
from lightning_app.runs.lock import claimed


@dataclass(frozen=True)
class Made:
    """What a reproduction wrote."""

    folder: Path
    counts: str  # "formula: 3 reproduced; trained: 1 not tested"
    table: pd.DataFrame  # as table.md shows it
    standing: str  # "paper scale: depth20 200 of 200 epochs, 2 of 2 seeds"


def make(asked: Reproduction, runs: Path, options: JobOptions | None = None) -> Made:
    """Train and compute what is missing, keep the evidence, judge it, and write record, tables and figure.

    Args:
        asked: the artefact, at a scale.
        runs: folder of all runs.
        options: which missing runs and computations to make, and how; None: none, only judge what is there.

    Raises:
        RunFailed: if a training process fails. The evidence made by then is kept all the same.
        UserError: if evidence of a run is not as it was packed (the message names the file), or cannot be written.
    """
    stopped: BaseException | None = None
    paper, scale, out = asked.paper, asked.scale, asked.out
    with claimed(out / paper.key, "results", f"results of {paper.key}"):  # what cannot be written is found at once
        kept = [run.folder.path for job in asked.trainings for run in job.found(None, out)]
        if lost := [message for folder in kept for message in damage(folder)]:
            raise UserError(f"evidence of {asked.key} is damaged, and would be judged wrongly: {lost[0]}. Restore it.")
    if options is not None:
        try:
            for job in asked.jobs:
                if options.only is None or job.name in options.only:
                    job.complete(runs, options, out)
        except BaseException as error:  # whatever stops it: what there is by then is kept first
            stopped = error
    # A second signal does not cut what is kept in two, and one process at a time keeps it.
    with stopping.deferred(), claimed(out / paper.key, "results", f"results of {paper.key}"):
        changed = scale is not SMOKE and keep_evidence(asked, runs)
        if stopped is not None and not changed:
            raise stopped  # a mistake, or a stop before there was anything new: no record of nothing
        # Records of other artefacts that rest on the same runs and computations are written anew.
        for artefact in paper.artefacts if changed else ():
            shared = artefact is not asked.artefact and {*artefact.parts} & {*asked.artefact.parts}
            if shared and (other := replace(asked, artefact=artefact)).recorded:
                judged(other, runs)
        made = judged(asked, runs)
        if scale is REDUCED and (in_full := replace(asked, scale=PAPER)).recorded:
            judged(in_full, runs)  # which shows reduced scale beside it
    if stopped is not None:
        raise stopped
    return made


def judged(asked: Reproduction, runs: Path) -> Made:
    """Judge the evidence that is there, and write record, tables and figure."""
    evidence, folder = asked.evidence(runs if asked.scale is SMOKE else None), asked.folder
    judged_rows, standing = rows(evidence), evidence.standing
    folder.mkdir(parents=True, exist_ok=True)
    if asked.artefact.draw is not None:
        with figures.styled():
            figure = asked.artefact.draw(evidence.results)
            figures.mark_empty(figure)
            figures.note(figure, f"{asked.key}, {standing}")
            figures.save(figure, folder, "figure")
    for name, text in texts(asked, judged_rows, standing).items():
        write_atomically(folder / name, text.encode())
    counts = counts_of(judged_rows)
    record = described(evidence) | {"rendered": made_with(), "counts": counts, "rows": judged_rows}
    write_atomically(folder / RECORD, (json.dumps(record, indent=1, ensure_ascii=False) + "\n").encode())
    return Made(folder, in_words(counts), tables.shown(tables.frame(judged_rows)), standing)


def rows(evidence: Evidence) -> list[dict[str, Any]]:
    """An artefact's rows as its record has them: judged, at paper scale with the verdicts of reduced scale beside them."""
    asked = evidence.of
    own = rows_of(asked.artefact.claims(evidence.results), asked.artefact.about, asked.scale.name, evidence.extent)
    reduced = replace(asked, scale=REDUCED)
    if asked.scale is not PAPER or not reduced.recorded:
        return own
    there = read_record(reduced.folder)["rows"]  # which are counted apart
    found = {row["quantity"]: {"verdict": row["verdict"], "extent": row.get("extent", "")} for row in there}
    return [row | ({"reduced": found[row["quantity"]]} if row["quantity"] in found else {}) for row in own]


def described(evidence: Evidence) -> dict[str, Any]:
    """What a record says of itself and of its evidence."""
    return {
        "schema": SCHEMA_VERSION,
        "artefact": evidence.of.key,
        "scale": evidence.of.scale.name,
        "standing": evidence.standing,
        "extent": evidence.extent,
        "command": evidence.of.command,
        "evidence": evidence.record(),
    }


def keep_evidence(asked: Reproduction, runs: Path) -> bool:
    """Pack the artefact's runs and pieces among the results, with the arrays that any artefact of the paper reads.

    Returns:
        Whether anything is kept that was not kept before.
    """
    found = {job.name: job.found(runs, asked.out) for job in asked.trainings}
    alive = {name for name, each in found.items() if any(run.lies_in(runs) for run in each)}
    read: ArraysRead = {}
    for other in asked.paper.artefacts:
        if other.has(asked.scale) and alive & {*other.parts}:
            results = replace(asked, artefact=other).evidence(runs).results
            other.claims(results)
            if other.draw is not None:
                with figures.styled():
                    other.draw(results)
            for name, arrays in results.arrays_read.items():  # by claims and figure
                read.setdefault(name, set()).update(arrays)
    return any([job.keep(runs, asked.out, read.get(job.name, set())) for job in asked.jobs])


def texts(asked: Reproduction, judged_rows: list[dict[str, Any]], standing: str) -> dict[str, str]:
    """An artefact's tables as files, by name."""
    title, evidence = f"{asked.key}: {asked.artefact.title}", f"Evidence, {standing}."
    head = [
        f"# {title}",
        asked.paper.title,
        evidence,
        f"Conventions. {asked.artefact.convention}",
        f"`{asked.command}`. Numbers of each seed, and which commit trained or computed them on what "
        f"machine: {RECORD}. `python main.py verify {asked.key}` judges again.",
    ]
    label = asked.key.replace("/", "-")
    return tables.texts(tables.frame(judged_rows), "\n\n".join(head), f"{title}. {evidence}", label)
