"""The registration: every claim with its test, when it was first committed, and each change since.

registration.yaml beside this file is the record; docs/registration.md is made from it. A test of the project compares it
with the claims in the code: who changes a claim's words, number, test, tolerance, readings or reduced schedule has to say
so here, with a date, a reason, and whether results had been seen before. Words come from the tests themselves; so that a
test cannot change behind the same words, the code that judges is registered too, file by file, without its docstrings,
comments and drawings. So are the configurations that nets are trained by, which could be tuned before the first record.

    python -m lightning_app.reproduce.registration                    what differs; exit code 1 if anything does
    python -m lightning_app.reproduce.registration --say "why" [--after-a-look]     write it down, with today's date
"""

import argparse
import ast
import dataclasses
import datetime
import hashlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from lightning_app.common.files import write_atomically
from lightning_app.common.numbers import plural
from lightning_app.common.text import markdown_row
from lightning_app.papers import PAPERS, paper
from lightning_app.papers.parts import PAPER, REDUCED, Artefact, Paper
from lightning_app.papers.recipes import CONFIGS, recipe
from lightning_app.papers.records import rows_of
from lightning_app.reproduce.evidence import Reproduction
from lightning_app.reproduce.job import digest_of
from lightning_app.reproduce.training import OBSERVING
from lightning_app.runs.configuration import compared

FILE = Path(__file__).with_name("registration.yaml")
PACKAGE = Path(__file__).resolve().parents[1]
NOWHERE = Path("/nonexistent")  # results from which claims are built: nothing has been measured there
JUDGING = ("papers/*.py", "papers/*/*.py", "statistics/paired.py", "statistics/fitting.py")
# Of a claim, besides its readings.
REGISTERED = ("quantity", "class", "basis", "paper", "test", "power", "readings_differ_in")
CODE, RECIPES = BESIDE_CLAIMS = ("code that judges", "recipes")  # registered, and no claims
Entries = dict[str, dict[str, dict[str, Any]]]  # artefact -> quantity -> entry


def of_code() -> Entries:
    """Every claim as the code states it: its test, and a hash of all that is fixed before a run; then the code itself."""
    papers = [(paper(key), artefact) for key in PAPERS for artefact in paper(key).artefacts]
    claims = {f"{its.key}/{artefact.key}": dict(_claims(its, artefact)) for its, artefact in papers}
    files = sorted(file for pattern in JUDGING for file in PACKAGE.glob(pattern))
    hashes = {file: hashlib.sha256(_skeleton(file).encode()).hexdigest()[:12] for file in files}
    code = {
        file.relative_to(PACKAGE.parent).as_posix(): {"test": "code", "class": "", "hash": digest}
        for file, digest in hashes.items()
    }
    return claims | {CODE: code, RECIPES: dict(_recipes())}


def _recipes() -> Iterator[tuple[str, dict[str, Any]]]:
    """Of each run that trains a paper's nets, what base.yaml and its own YAML say, but for seeds, machine and measures."""
    for file in sorted(CONFIGS.glob("papers/*/*.yaml")):
        options = compared(recipe(file.parent.name, file.stem))
        fixed = {key: value for key, value in options.items() if not key.startswith(OBSERVING)}
        entry = {"test": "code", "class": "", "hash": digest_of(fixed)[:12]}
        yield f"configs/{file.relative_to(CONFIGS).as_posix()}", entry


def _skeleton(file: Path) -> str:
    """The lines of a file that decide something: without docstrings, comments, empty lines, imports and what draws."""
    text = file.read_text(encoding="utf-8")
    silent = {
        number
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.stmt) and _is_silent(node)
        for number in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    lines = [line.rstrip() for number, line in enumerate(text.splitlines(), 1) if number not in silent]
    return "\n".join(line for line in lines if line and not line.lstrip().startswith("#"))


def _is_silent(node: ast.stmt) -> bool:
    text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    imports = isinstance(node, ast.Import | ast.ImportFrom)
    return text or imports or (isinstance(node, ast.FunctionDef) and node.name.lstrip("_").startswith("draw"))


def _claims(its_paper: Paper, artefact: Artefact) -> Iterator[tuple[str, dict[str, Any]]]:
    for scale in (PAPER, REDUCED):
        if artefact.has(scale):
            results = Reproduction(its_paper, artefact, scale, NOWHERE).evidence().results
            for row in rows_of(artefact.claims(results), artefact.about, scale.name):
                quantity = row["quantity"] if scale is PAPER else f"{row['quantity']} ({scale.name} scale)"
                about = {"test": row["test"], "class": row["class"]}
                # Words, the paper's number, the test with its tolerance, readings; epochs, drops of the learning rate, seeds.
                fixed = [row[key] for key in REGISTERED]
                fixed += [(reading["convention"], reading["judged"]) for reading in row["readings"]]
                reduced = artefact.runs if scale is REDUCED else ()
                fixed += [(run.name, *dataclasses.astuple(run.reduced)) for run in reduced if run.reduced]
                yield quantity, about | {"hash": hashlib.sha256(json.dumps(fixed).encode()).hexdigest()[:12]}


def registered() -> Entries:
    return yaml.safe_load(FILE.read_text(encoding="utf-8")) or {} if FILE.exists() else {}


def differences(code: Entries, record: Entries) -> list[str]:
    """What the registration does not say, one message each.

    >>> claim = {"test": "above 1", "class": "trained", "hash": "a"}
    >>> differences({"p/t": {"L": claim}}, {"p/t": {"L": claim | {"since": "2026-11-21"}, "M": claim}})
    ["p/t: 'M' is registered but no longer a claim: record with --say that it was withdrawn, and why."]
    """
    said = []
    for key in sorted(code.keys() | record.keys()):
        claims, entries = code.get(key, {}), record.get(key, {})
        said += [f"{key}: '{quantity}' is not registered." for quantity in claims if quantity not in entries]
        said += [
            f"{key}: '{quantity}' {_how_changed(entries[quantity], claim)}."
            for quantity, claim in claims.items()
            if quantity in entries and (entries[quantity]["hash"] != claim["hash"] or "withdrawn" in entries[quantity])
        ]
        said += [
            f"{key}: '{quantity}' is registered but no longer a claim: record with --say that it was withdrawn, and why."
            for quantity, entry in entries.items()
            if quantity not in claims and "withdrawn" not in entry
        ]
    return said


def _how_changed(entry: Mapping[str, Any], claim: Mapping[str, Any]) -> str:
    if claim["test"] == "code":  # of a file (`of_code`)
        return "was changed since it was registered"
    if "withdrawn" in entry:
        return "was withdrawn and is a claim again"
    if claim["test"] != entry["test"]:
        return f"was registered with another test ({entry['test']!r}, now {claim['test']!r})"
    return f"was registered with other words, readings or schedule, and the same test ({claim['test']!r})"


def updated(code: Entries, record: Entries, why: str, after_a_look: bool, today: str) -> Entries:
    """The registration with all differences written down."""
    change = {"on": today, "why": why, "after_a_look": after_a_look}
    new: Entries = {}
    for key in [*record, *(key for key in code if key not in record)]:
        claims, entries = code.get(key, {}), record.get(key, {})
        new[key] = {quantity: _updated(claims.get(quantity), entry, change) for quantity, entry in entries.items()}
        added = {quantity: claim for quantity, claim in claims.items() if quantity not in entries}
        new[key] |= {quantity: claim | {"since": today, "added": change} for quantity, claim in added.items()}
    return new


def _updated(claim: dict[str, Any] | None, entry: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    if claim is None:
        return entry if "withdrawn" in entry else entry | {"withdrawn": change}
    kept = dict(entry)
    withdrawn = kept.pop("withdrawn", None)
    if claim["hash"] == entry["hash"] and not withdrawn:
        return entry
    earlier = [*entry.get("changed", ()), *([withdrawn] if withdrawn else [])]
    return {**kept, **claim, "changed": [*earlier, change | {"test_before": entry["test"]}]}


def page(record: Entries) -> str:
    """The page of the documentation: a table for each artefact, changes after a look first."""
    looked = [
        (key, quantity, change)
        for key, entries in record.items()
        for quantity, entry in entries.items()
        for _, change in _history(entry)
        if change["after_a_look"]
    ]
    lines = [
        "# Registered claims",
        "Each claim with its test, when it was first committed, and each change since. A change *after a look* was made "
        "when results of ours had been seen. A test of the project fails when a claim changes and this page does not. "
        "(On 2026-11-23 the words of all tests came to be made by the tests themselves, many were reworded with the same "
        "tolerance, and each claim got its class: that is not listed.)",
        f"{sum(len(entries) for key, entries in record.items() if key not in BESIDE_CLAIMS)} claims; "
        f"{len({(key, quantity) for key, quantity, _ in looked if key not in BESIDE_CLAIMS})} of them were changed or withdrawn "
        "after a look. Files of code that judges, and recipes that nets are trained by, are listed at the end.",
    ]
    for key, entries in record.items():
        rows = []
        for quantity, entry in entries.items():
            changes = "; ".join(_change(what, change) for what, change in _history(entry))
            rows.append(markdown_row((quantity, entry["class"], entry["test"], entry["since"], changes)))
        head = ["| claim | class | test | since | changed |", "|---|---|---|---|---|"]
        lines += [f"## {key}", "\n".join([*head, *rows])]
    return "\n\n".join(lines) + "\n"


def _history(entry: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """What happened to a claim since the first commit of its artefact, in its order."""
    added, withdrawn = ([(what, entry[what])] if what in entry else [] for what in ("added", "withdrawn"))
    return [*added, *(("changed", change) for change in entry.get("changed", ())), *withdrawn]


def _change(what: str, change: Mapping[str, Any]) -> str:
    before = f" (before: {change['test_before']})" if change.get("test_before") else ""
    return f"{what} {change['on']}{', after a look' if change['after_a_look'] else ''}: {change['why']}{before}"


def main(argv: Sequence[str]) -> int:
    said = __doc__.split("\n")[0]
    parser = argparse.ArgumentParser("python -m lightning_app.reproduce.registration", description=said)
    parser.add_argument("--say", metavar="WHY", help="record all differences, with this reason and today's date")
    parser.add_argument("--after-a-look", action="store_true", help="our results had been seen before the change")
    options = parser.parse_args(argv)
    code, record = of_code(), registered()
    found = differences(code, record)
    if options.say is None:
        print("\n".join(found) or "every claim is registered as it is")
        return 1 if found else 0
    new = updated(code, record, options.say, options.after_a_look, datetime.date.today().isoformat())
    write_atomically(FILE, yaml.safe_dump(new, sort_keys=False, allow_unicode=True, width=120).encode())
    print("\n".join([*found, f"{plural(len(found), 'difference')} written into {FILE.name}"]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
