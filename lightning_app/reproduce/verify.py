"""The command ``python main.py verify``: judge again from the committed evidence, without data and without training.

For each artefact: is every file of the evidence the one that was packed? Do the claims and tests of this checkout, applied to
that evidence, give the numbers and outcomes of the committed record? Are table.md, table.csv and table.tex those that the
record's rows make? Is there a record wherever there are results, and an artefact for each record? What rendered a record is
not compared, nor are figures: their bytes depend on fonts and on matplotlib. The numbers drawn in them are in the evidence.

With ``--recompute`` closed forms and computations are made again and compared. If an artefact has training runs too, the
claims are judged on the new computations together with the kept runs. Nets are not trained again.
"""

import argparse
import contextlib
import itertools
import json
import math
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from lightning_app.common.answer import HELP, OPTION, answering
from lightning_app.common.arguments import Parser
from lightning_app.common.errors import UserError
from lightning_app.common.numbers import plural
from lightning_app.common.safe_io import read_bytes
from lightning_app.papers import PAPERS, find
from lightning_app.papers.parts import PAPER, REDUCED, SCALES
from lightning_app.papers.records import RECORD, counts_of, read_record, value
from lightning_app.papers.verdicts import in_words
from lightning_app.reproduce import making
from lightning_app.reproduce.evidence import Reproduction
from lightning_app.reproduce.job import JobOptions
from lightning_app.reproduce.packing import MANIFEST, damage, file_digest

SAME = 1e-9  # relative: what other versions of numpy and scipy may change of a number judged again
RECOMPUTED = 1e-4  # relative: what another processor may change of an ill-conditioned number computed again
ROUNDING = 1e-11  # absolute, of what is computed again: identities leave 1e-16 here and 3e-16 there
CANCELLED = (
    1e-3  # times the tolerance and a reading's largest value: what a mean or sd near 0 may change by cancellation
)
NAMES = {"paper": "the paper's number", "values": "seed"}  # how messages call entries whose key alone would mislead
OTHER = "not the evidence of the record: "  # of differences that change what is judged, not only what is said of it
NO_NUMBERS = ("inf", "-inf", "nan")  # that JSON has
# What judging a record may raise that `reproduce` has not written so.
BROKEN = (LookupError, TypeError, AttributeError, ValueError, ArithmeticError, OSError)

EPILOG = f"""\
examples:
  python main.py verify                                  every committed verdict, in a minute
  python main.py verify yu-tomasi/table-3                one artefact
  python main.py verify li-et-al --recompute             computations from nothing; needs their data (--data-root)

It compares the files of the evidence, the rows and counts of {RECORD}, and table.md, .csv and .tex. Figures are not compared.
Exit code 0: everything agrees. 1: a row or a file differs, evidence or tables have no record, a record has no artefact
(looked for where none is named), or something could not be computed again, for example as its data are missing. 2: a mistake
in the command. The last line counts the artefacts without a record: one that was deleted shows there alone if other records
rest on the same evidence.
"""


@dataclass(frozen=True)
class Check:
    """One row, or one file of the evidence."""

    what: str
    difference: str = ""  # "" where it agrees
    note: bool = False  # then nothing was compared: ``what`` says why

    def line(self, artefact: str) -> str:
        """As it is printed.

        >>> Check("mean of p_0", "recorded 1.0, now 2.0").line("a/table-3")
        'differs  a/table-3: mean of p_0: recorded 1.0, now 2.0'
        """
        word = "note" if self.note else "differs" if self.difference else "agrees"
        return f"{word:<7}  {artefact}: {self.what}{self.difference and ': '}{self.difference}"


def main(argv: list[str]) -> int:
    """Run the command; returns the exit code."""
    options = _parser().parse_args(argv)
    with answering(options.json) as answer:
        return _run(options, answer)


def _run(options: argparse.Namespace, answer: dict[str, Any]) -> int:
    named = [pair for name in options.artefacts or PAPERS for pair in find(name)]
    recorded, wrong, lines = [], 0, []
    with tempfile.TemporaryDirectory() as root:  # of what is computed again: once for all artefacts that share it
        for paper, artefact in named:
            for scale in filter(artefact.has, (PAPER, REDUCED)):
                asked = Reproduction(paper, artefact, scale, options.results)
                key = f"{asked.key}{'' if scale is PAPER else f' ({scale.name} scale)'}"
                recorded += [asked.key] * asked.recorded
                anew = options.recompute and asked.recorded
                again = recompute(asked, options.data_root, Path(root)) if anew else ()
                for each in itertools.chain(verify(asked), again):
                    print(each.line(key), flush=True)
                    lines.append({"artefact": asked.key, "scale": scale.name, **asdict(each)})
                    wrong += bool(each.difference)
    for folder in () if options.artefacts else _of_no_artefact(options.results):
        key, stray = folder.as_posix(), Check("record", "there is no such artefact: remove it, as nothing judges it")
        print(stray.line(key), flush=True)
        lines.append({"artefact": key, "scale": "", **asdict(stray)})
        wrong += 1
    if not recorded and not wrong:
        raise UserError(
            f"expected records ({RECORD}) of {', '.join(options.artefacts) or 'artefacts'} in {options.results}, found none."
        )
    without = len({f"{paper.key}/{artefact.key}" for paper, artefact in named} - {*recorded})
    said = plural(wrong, "difference") if wrong else "all agree"
    print(f"{plural(len(recorded), 'record')}: {said}; without a record yet: {plural(without, 'artefact')}.")
    answer |= {"records": len(recorded), "without_record": without, "differences": wrong, "compared": lines}
    return 1 if wrong else 0


def _of_no_artefact(results: Path) -> list[Path]:
    """Folders, below that of the results, of records that no claims are about, as of an artefact that was renamed."""
    asked = itertools.product((pair for key in PAPERS for pair in find(key)), SCALES.values())
    known = {Reproduction(*pair, scale, results).folder for pair, scale in asked if pair[1].has(scale)}
    return [folder.relative_to(results) for folder in sorted({f.parent for f in results.rglob(RECORD)} - known)]


def verify(asked: Reproduction) -> Iterator[Check]:
    """Check the files of the evidence, what the record says of it, and the rows; then counts and tables made from the rows."""
    if not asked.recorded:
        yield from _guarded(_without_record(asked), asked.folder)
        return
    try:
        record = read_record(asked.folder)
    except UserError as error:
        yield Check("record", str(error))
        return
    yield from _guarded(_judged_again(asked, record), asked.folder)
    yield from _guarded(_made_of_rows(asked, record), asked.folder)


def recompute(asked: Reproduction, data: Path, root: Path) -> Iterator[Check]:
    """Compare rows from computations made again, and from the runs that are kept, with those of the record.

    Args:
        asked: the artefact, at a scale.
        data: folder of all data.
        root: folder for the computations. Those that are there already are not made again.
    """
    if not asked.computations:
        yield Check("not computed again: it rests on trained nets alone", note=True)
        return
    if asked.trainings:
        yield Check("its nets are not trained again: their runs are those that are kept", note=True)
    try:
        record = read_record(asked.folder)
        for job in asked.computations:
            job.complete(root, JobOptions(data))
        evidence = asked.evidence(computed=[job.found(root) for job in asked.computations])
    except (ValueError, OSError) as error:  # missing data, damaged evidence, a full disk
        yield Check("computing it again", " ".join(str(error).split()))
        return

    def compared() -> Iterator[Check]:  # claims are asked within the guard
        yield from compare_rows(record, making.rows(evidence), RECOMPUTED, ROUNDING)

    for each in _guarded(compared(), asked.folder):
        yield Check(f"{each.what} (computed again)", each.difference)


def _guarded(lines: Iterable[Check], folder: Path) -> Iterator[Check]:
    """These lines; whatever stops them is one more."""
    try:
        yield from lines
    except UserError as error:
        yield Check("evidence", str(error))
    except BROKEN as error:
        said = f"{type(error).__name__}: {' '.join(str(error).split())}"
        yield Check("record", f"{folder / RECORD} is not as `reproduce` writes it ({said}): restore it")


def _without_record(asked: Reproduction) -> Iterator[Check]:
    """A record that was taken away leaves something behind: its tables, or evidence that no other record rests on."""
    folder, out, again = asked.folder, asked.out, f"`{asked.command} --no-train`"
    left = sorted(path.name for path in folder.glob("[!.]*") if path.is_file())
    if left:
        yield Check("record", f"{folder} has {', '.join(left)} and no {RECORD}: restore it, or make it with {again}")
        return
    states = [job.state(None, out) for job in asked.jobs]
    if states and all(state == "finished" for state in states):
        yield Check("record", f"evidence is complete, and there is no record: make it with {again}")
    elif alone := sorted(_folders(asked.evidence().record()) - _rested_on(asked)):
        yield Check("record", f"no record rests on the evidence in {', '.join(alone)}: make one with {again}")


def _rested_on(asked: Reproduction) -> set[str]:
    """Folders of evidence that some record of the paper names. A record that cannot be read is reported as such."""
    found: set[str] = set()
    for artefact, scale in itertools.product(asked.paper.artefacts, (PAPER, REDUCED)):
        with contextlib.suppress(*BROKEN):  # UserError is one: there is no record
            found |= _folders(read_record(replace(asked, artefact=artefact, scale=scale).folder)["evidence"])
    return found


def _folders(evidence: Iterable[Mapping[str, Any]]) -> set[str]:
    return {part["folder"] for part in evidence}


def _judged_again(asked: Reproduction, record: dict[str, Any]) -> Iterator[Check]:
    """Files, then what the record says of them, then rows: each only where the one before is as it was."""
    other = Check("rows are not judged again, as the evidence is not that of the record", note=True)
    files = [*_files(record, asked.out)]
    yield from files
    if any(each.difference for each in files):
        yield other
        return
    found = asked.evidence()
    said = making.described(found)
    evidence = [*_evidence(record["evidence"], said.pop("evidence"))]
    yield from evidence
    if any(each.difference.startswith(OTHER) for each in evidence):
        yield other
        return
    for key, now in said.items():
        yield Check(key, _first_difference(record.get(key), now))
    if more := record.keys() - said.keys() - {"evidence", "rendered", "counts", "rows"}:
        yield Check(RECORD, f"has {', '.join(sorted(more))}, which `reproduce` does not write")
    yield from compare_rows(record, making.rows(found), SAME)


def _files(record: dict[str, Any], out: Path) -> Iterator[Check]:
    """Is what was packed still there, to the byte?"""
    for part in record["evidence"]:
        folder = out / part["folder"]
        if "run" in part:
            found = damage(folder) or _other_files(folder, {MANIFEST: part["manifest"]})
        else:
            found = _other_files(folder, part["files"])
        yield from (Check(f"files of {part['folder']}", each) for each in found or [""])


def _other_files(folder: Path, files: Mapping[str, str]) -> list[str]:
    """Files that are missing or not those of the record, one message each."""
    paths = {folder / name: digest for name, digest in files.items()}
    other = "is not the file that the record was made of: its SHA-256 differs"
    lost = [f"{path} is missing" for path in paths if not path.is_file()]
    return lost + [f"{path} {other}" for path in paths if path.is_file() and file_digest(path) != paths[path]]


def _evidence(then: list[dict[str, Any]], now: list[dict[str, Any]]) -> Iterator[Check]:
    """What the record says of each run and computation against what is there for this checkout's plans."""
    recorded, found = ({part["folder"]: part for part in parts} for parts in (then, now))
    for folder in {**recorded, **found}:
        if folder not in recorded:
            said = f"{OTHER}the record does not have it"
        elif folder not in found:
            said = f"{OTHER}this checkout asks for another run or computation"
        else:
            one, other = (part.get("digests", {}) for part in (recorded[folder], found[folder]))
            # pieces of a computation that the record has and the claims do not read, or the other way round
            lost = sorted(piece for piece in {**one, **other} if one.get(piece) != other.get(piece))
            said = f"{OTHER}this checkout asks for pieces of other parameters: {', '.join(lost)}"
            said = said if lost else _first_difference(recorded[folder], found[folder])
        yield Check(f"evidence in {folder}", said)
    if [part["folder"] for part in then] != [*recorded]:
        yield Check("evidence", "the record has a part of it twice")


def _first_difference(then: Any, now: Any, place: str = "") -> str:
    """Where in a tree two values part, in words; "" where they are the same."""
    if _equal(then, now):
        return ""
    if isinstance(then, dict) and isinstance(now, dict):
        key = next(key for key in {**now, **then} if not (key in then and key in now and _equal(then[key], now[key])))
        place = f"{place}{NAMES.get(key, key)} "
        if key in then and key in now:
            return _first_difference(then[key], now[key], place)
        recorded, found = (repr(each[key]) if key in each else "nothing" for each in (then, now))
        return f"{place}recorded {recorded}, now {found}"
    if isinstance(then, list) and isinstance(now, list) and len(then) == len(now):
        pairs = enumerate(zip(then, now))
        return next(filter(None, (_first_difference(a, b, f"{place}{i} ") for i, (a, b) in pairs)))
    return f"{place}recorded {then!r}, now {now!r}"


def _equal(one: Any, other: Any) -> bool:
    """As JSON has it: true is not 1.

    >>> _equal({"a": [1]}, {"a": (1,)}), _equal(True, 1)
    (True, False)
    """
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def compare_rows(
    record: dict[str, Any], rows: Sequence[dict[str, Any]], tolerance: float, floor: float = 0.0
) -> Iterator[Check]:
    """Compare the record's rows with rows judged again, by quantity.

    Args:
        record: as it was read.
        rows: judged again.
        tolerance: relative difference allowed between numbers; words and outcomes must be the same.
        floor: absolute difference of numbers that counts as rounding.
    """
    anew = {row["quantity"]: row for row in rows}
    for row in record["rows"]:
        now = anew.pop(row["quantity"], None)
        said = "there is no claim on this any more" if now is None else _difference(row, now, tolerance, floor)
        yield Check(row["quantity"], said)
    for quantity in anew:
        yield Check(quantity, "a claim that the record does not have")


def _difference(row: dict[str, Any], now: dict[str, Any], tolerance: float, floor: float) -> str:
    """The first difference of two rows, in words; "" if there is none."""
    if len(row["readings"]) != len(now["readings"]):
        return f"{len(row['readings'])} readings recorded, now {len(now['readings'])}"
    for then, again in zip(row["readings"], now["readings"]):
        if found := _first_difference(_snapped(then, again, tolerance, floor), again):
            return f"reading '{again['convention']}': {found}" if again["convention"] else f"ours: {found}"
    return _first_difference(_with_reason(row, now, tolerance) | {"readings": now["readings"]}, now)


def _with_reason(then: dict[str, Any], now: dict[str, Any], tolerance: float) -> dict[str, Any]:
    """Reasons have numbers in them, which another processor may change: of what is computed again they count as equal."""
    return then | {"why": now["why"]} if tolerance > SAME else then


def _snapped(then: dict[str, Any], now: dict[str, Any], tolerance: float, floor: float) -> dict[str, Any]:
    """A recorded reading, its numbers that are near enough replaced by those of now."""
    largest = max((abs(value(each)) for each in now["values"] if math.isfinite(value(each))), default=0.0)
    cancelled = max(floor, CANCELLED * tolerance * largest)
    of_values = cancelled if floor else 0.0  # what is judged again has no rounding in its values

    def snapped(one: Any, other: Any, least: float) -> Any:
        return other if _same(one, other, tolerance, least) else one

    near = {key: snapped(then[key], now[key], cancelled) for key in ("mean", "sd")}
    if len(then["values"]) == len(now["values"]):
        near["values"] = [snapped(a, b, of_values) for a, b in zip(then["values"], now["values"])]
    return _with_reason(then, now, tolerance) | near


def _same(one: Any, other: Any, tolerance: float, floor: float = 0.0) -> bool:
    """Numbers within a relative tolerance or an absolute floor; what is no number, to the letter."""
    if not _is_number(one) or not _is_number(other):
        return _equal(one, other)
    a, b = value(one), value(other)
    if not math.isfinite(a) or not math.isfinite(b):
        return str(a) == str(b)
    return abs(a - b) <= max(tolerance * max(abs(a), abs(b)), floor)


def _is_number(encoded: Any) -> bool:
    """As records have them: true is none, and no text but those of infinities and NaN."""
    return encoded in NO_NUMBERS if isinstance(encoded, str) else type(encoded) in (int, float)


def _made_of_rows(asked: Reproduction, record: dict[str, Any]) -> Iterator[Check]:
    """Counts and tables, which say nothing of their own."""
    counted, again = record["counts"], counts_of(record["rows"])
    different = f"recorded {in_words(counted)}; its rows say {in_words(again)}"
    yield Check("counts", "" if _equal(counted, again) else different)
    texts = making.texts(asked, record["rows"], record["standing"])
    wrong = [said for name, text in texts.items() if (said := _other_text(asked.folder / name, text))]
    yield Check("tables", "; ".join(wrong))


def _other_text(file: Path, expected: str) -> str:
    """Where a file's text is not what the rows make, in words."""
    if not file.is_file():
        return f"{file} is missing"
    there = read_bytes(file).decode(errors="replace").replace("\r\n", "\n")
    if there == expected:
        return ""
    one, other = there.split("\n"), expected.split("\n")
    line = next((number for number, (a, b) in enumerate(zip(one, other), 1) if a != b), min(len(one), len(other)) + 1)
    return f"{file} is not what the record's rows make (line {line})"


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python main.py verify",
        description="Judge every committed verdict again, from its evidence: no data, no training.",
        epilog=EPILOG,
    )
    parser.add_argument("artefacts", nargs="*", metavar="PAPER[/ARTEFACT]", help="what to verify (default: all)")
    where, what = Path("results"), "folder of results (results)"
    parser.add_argument("--results", type=Path, default=where, metavar="DIR", help=what)
    again = f"compute closed forms and computations again, to {RECOMPUTED:g}; nets are not trained again"
    parser.add_argument("--recompute", action="store_true", help=again)
    parser.add_argument(OPTION, action="store_true", help=HELP)
    parser.add_argument("--data-root", type=Path, default=Path("data"), metavar="DIR", help="where the data are (data)")
    return parser
