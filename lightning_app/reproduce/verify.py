"""The command ``python main.py verify``: judge again from the committed evidence, without data and without training.

For each artefact: is every file of the evidence the one that was packed? Do claims and tests of this checkout, on that
evidence, give the numbers and outcomes of the committed record? With ``--recompute`` closed forms and computations are
made anew and compared; nets are not trained again.
"""

import argparse
import math
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_app.arguments import Parser
from lightning_app.errors import UserError
from lightning_app.records import RECORD, counts_of, read_record, rows_of, value
from lightning_app.reproduce.artefact import Artefact, Paper
from lightning_app.reproduce.plan import PAPER, REDUCED, Scale
from lightning_app.verdicts import in_words

if TYPE_CHECKING:
    from lightning_app.reproduce.results import Results

__all__ = ["Compared", "compare", "main", "verify"]

SAME = 1e-9  # relative: what other versions of numpy and scipy may change of a number judged again
RECOMPUTED = 1e-4  # relative: what another processor may change of an ill-conditioned number computed again
ROUNDING = 1e-11  # absolute, of what is computed again: identities leave 1e-16 here and 3e-16 there
WORDS = ("class", "basis", "test", "power", "readings_differ_in", "verdict")  # of a row, compared to the letter
NUMBERS = ("mean", "sd")

EPILOG = """\
examples:
  python main.py verify                                  every committed verdict, in a minute
  python main.py verify yu-tomasi/table-3                one artefact
  python main.py verify li-et-al --recompute             computations from nothing; needs their data (--data-root)

Exit code 0 if all rows agree, 1 if a row or a file differs, 2 for a mistake in the command.
"""


@dataclass(frozen=True)
class Compared:
    """One row, or one file of the evidence."""

    what: str
    difference: str  # "" where it agrees


def main(argv: list[str]) -> int:
    """Run the command; returns the exit code."""
    try:
        options = _parser().parse_args(argv)
        return _run(options)
    except (ValueError, OSError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except SystemExit as done:  # argparse has shown its help
        return int(done.code or 0)


def _run(options: argparse.Namespace) -> int:
    from lightning_app.reproduce.papers import PAPERS, find

    named = [pair for name in options.artefacts or PAPERS for pair in find(name)]
    chosen = [
        (paper, artefact, scale) for paper, artefact in named for scale in (PAPER, REDUCED) if artefact.has(scale)
    ]
    recorded = [each for each in chosen if _folder(options.results, *each).joinpath(RECORD).exists()]
    if not recorded:
        raise UserError(
            f"expected records ({RECORD}) of {', '.join(options.artefacts) or 'artefacts'} in {options.results}, found none."
        )
    wrong = 0
    for paper, artefact, scale in recorded:
        key = f"{paper.key}/{artefact.key}{'' if scale is PAPER else f' ({scale.name} scale)'}"
        compared = [*verify(paper, artefact, scale, options.results)]
        if options.recompute:
            compared += recompute(paper, artefact, scale, options.results, options.data_root)
        for each in compared:
            print(
                f"{'differs' if each.difference else 'agrees '}  {key}: {each.what}{each.difference and ': '}{each.difference}"
            )
        wrong += sum(bool(each.difference) for each in compared)
    without = len({(p.key, a.key) for p, a in named}) - len({(p.key, a.key) for p, a, _ in recorded})
    print(
        f"{len(recorded)} records: {f'{wrong} differences' if wrong else 'all agree'}; {without} artefacts have no record yet."
    )
    return 1 if wrong else 0


def verify(paper: Paper, artefact: Artefact, scale: Scale, out: Path) -> Iterator[Compared]:
    """Files of the evidence, then rows."""
    from lightning_app.reproduce.making import results_of

    folder = _folder(out, paper, artefact, scale)
    try:
        record = read_record(folder)
        yield from _files(record, out)
        results = results_of(paper, artefact, scale, None, out)
        yield from _evidence(record, results)
        yield from _standing(paper, artefact, scale, record, results, out)
        rows = rows_of(artefact.claims(results), artefact.about, scale.name)
        yield from compare(record, rows, SAME)
    except UserError as error:
        yield Compared("evidence", str(error))
    except (
        LookupError,
        TypeError,
        AttributeError,
        ValueError,
    ) as error:  # whatever a record leads to that is not as ours
        said = " ".join(str(error).split())
        yield Compared(
            "record", f"{folder / RECORD} is not as `reproduce` writes it ({type(error).__name__}: {said}): restore it"
        )


def recompute(paper: Paper, artefact: Artefact, scale: Scale, out: Path, data: Path) -> Iterator[Compared]:
    """Rows from computations made anew; nothing where an artefact trains nets."""
    from lightning_app.reproduce import computation
    from lightning_app.reproduce.results import Results

    if artefact.runs or not artefact.computations:
        return
    with tempfile.TemporaryDirectory() as root:
        tasks = artefact.tasks(paper.key, scale)
        for task in tasks.values():
            computation.complete(task, Path(root), data)
        computed = {name: computation.found(task, Path(root)) for name, task in tasks.items()}
        rows = rows_of(artefact.claims(Results({}, {}, scale, computed)), artefact.about, scale.name)
    for each in compare(read_record(_folder(out, paper, artefact, scale)), rows, RECOMPUTED, ROUNDING):
        yield Compared(f"{each.what} (computed again)", each.difference)


def _folder(out: Path, paper: Paper, artefact: Artefact, scale: Scale) -> Path:
    from lightning_app.reproduce.making import folder_of

    return folder_of(out, paper, artefact, scale)


def _files(record: dict[str, Any], out: Path) -> Iterator[Compared]:
    """Is what was packed still there, to the byte?"""
    from lightning_app.reproduce.packing import MANIFEST, damage

    for part in record.get("evidence", ()):
        folder = out / part["folder"]
        if "run" in part:
            found = damage(folder) or _other_files(folder, {MANIFEST: part["manifest"]})
        else:
            found = _other_files(folder, part["files"])
        for each in found or [""]:
            yield Compared(f"files of {part['folder']}", each)


def _other_files(folder: Path, files: Mapping[str, str]) -> list[str]:
    """Files that are missing or not those of the record, one sentence each."""
    from lightning_app.reproduce.packing import file_digest

    lost = [f"{folder / name} is missing" for name in files if not (folder / name).is_file()]
    there = [name for name in files if (folder / name).is_file()]
    changed = [name for name in there if file_digest(folder / name) != files[name]]
    return lost + [
        f"{folder / name} is not the file that the record was made of: its SHA-256 differs" for name in changed
    ]


def _evidence(record: dict[str, Any], results) -> Iterator[Compared]:
    """Are the runs and pieces that the record rests on the ones that are there?"""
    computed = {part["computation"]: part["digests"] for part in record.get("evidence", ()) if "computation" in part}
    for name, digests in computed.items():
        found = results.computations.get(name)
        there = {piece: found.task.digest(piece) for piece in found.pieces} if found else {}
        lost = sorted(piece for piece, digest in digests.items() if there.get(piece) != digest)
        yield Compared(
            f"pieces of {name}", f"missing, damaged or of other parameters: {', '.join(lost)}" if lost else ""
        )
    for part in record.get("evidence", ()):
        if "run" in part:
            found = results.found.get(part["run"], ())
            there = any(set(run.seeds) == set(part["seeds"]) and run.epoch == part["epochs"] for run in found)
            said = (
                "" if there else f"expected seeds {part['seeds']} after epoch {part['epochs']}, and they are not there"
            )
            yield Compared(f"run {part['run']}", said)


def _standing(
    paper: Paper, artefact: Artefact, scale: Scale, record: dict[str, Any], results: "Results", out: Path
) -> Iterator[Compared]:
    """What the record says of itself and of its evidence, but for who rendered it."""
    from lightning_app.reproduce.making import described

    for key, now in described(paper, artefact, scale, results, out).items():
        then = record.get(key)
        yield Compared(key, "" if then == now else _first_difference(then, now))


def _first_difference(then: Any, now: Any, place: str = "") -> str:
    """Where in a tree two values part, in words."""
    if isinstance(then, dict) and isinstance(now, dict):
        key = next(key for key in {**now, **then} if (key in then, then.get(key)) != (key in now, now.get(key)))
        return _first_difference(then.get(key), now.get(key), f"{place}{key} ")
    if isinstance(then, list) and isinstance(now, list) and len(then) == len(now):
        return next(_first_difference(a, b, place) for a, b in zip(then, now) if a != b)
    return f"{place}recorded {then!r}, now {now!r}"


def compare(
    record: dict[str, Any], rows: Sequence[dict[str, Any]], tolerance: float, floor: float = 0.0
) -> Iterator[Compared]:
    """The record's rows against rows judged anew, by quantity.

    Args:
        tolerance: relative, of numbers; words and outcomes have to be the same.
        floor: absolute, below which numbers are rounding.
    """
    anew = {row["quantity"]: row for row in rows}
    for row in record["rows"]:
        now = anew.pop(row["quantity"], None)
        yield Compared(
            row["quantity"],
            "no claim is about this any more" if now is None else _difference(row, now, tolerance, floor),
        )
    for quantity in anew:
        yield Compared(quantity, "a claim that the record does not have")
    counted = record.get("counts", {})
    again = counts_of(record["rows"])
    yield Compared(
        "counts", "" if counted == again else f"recorded {in_words(counted)}; its rows say {in_words(again)}"
    )


def _difference(row: dict[str, Any], now: dict[str, Any], tolerance: float, floor: float) -> str:
    """The first difference of two rows, in words; "" if there is none."""
    for key in WORDS:
        if row.get(key) != now[key]:
            return f"{key} recorded {row.get(key)!r}, now {now[key]!r}"
    if not _same(row["paper"], now["paper"], 0.0):
        return f"the paper's number recorded {row['paper']!r}, now {now['paper']!r}"
    if len(row["readings"]) != len(now["readings"]):
        return f"{len(row['readings'])} readings recorded, now {len(now['readings'])}"
    pairs = zip(row["readings"], now["readings"])
    found = next(filter(None, (_of_reading(then, again, tolerance, floor) for then, again in pairs)), "")
    return found or _of_reason(row, now, tolerance)


def _of_reason(then: dict[str, Any], now: dict[str, Any], tolerance: float) -> str:
    """Reasons have numbers in them, which another processor may change: compared where nothing is computed again."""
    if tolerance > SAME or then.get("why") == now["why"]:
        return ""
    return f"why recorded {then.get('why')!r}, now {now['why']!r}"


def _of_reading(then: dict[str, Any], now: dict[str, Any], tolerance: float, floor: float) -> str:
    name = f"reading '{then.get('convention')}'" if then.get("convention") else "ours"
    for key in ("convention", "held", "judged", "missing", "n"):
        if then.get(key) != now[key]:
            return f"{name}: {key} recorded {then.get(key)!r}, now {now[key]!r}"
    if len(then["values"]) != len(now["values"]):
        return f"{name}: {len(then['values'])} values recorded, now {len(now['values'])}"
    pairs = [(f"seed {i}", a, b) for i, (a, b) in enumerate(zip(then["values"], now["values"]))]
    pairs += [(key, then.get(key), now[key]) for key in NUMBERS]
    scale = max((abs(value(b)) for _, _, b in pairs if math.isfinite(value(b))), default=0.0)
    for what, recorded, found in pairs:
        if not _same(recorded, found, tolerance, max(floor, 1e-3 * tolerance * scale)):
            return f"{name}: {what} recorded {recorded!r}, now {found!r}"
    reason = _of_reason(then, now, tolerance)
    return reason and f"{name}: {reason}"


def _same(one: Any, other: Any, tolerance: float, floor: float = 0.0) -> bool:
    """Equal words, or numbers within a relative tolerance or an absolute floor."""
    try:
        a, b = value(one), value(other)
    except (TypeError, ValueError):
        return one == other
    if math.isnan(a) or math.isnan(b):
        return math.isnan(a) and math.isnan(b) and (one is None) == (other is None)
    return a == b or abs(a - b) <= max(tolerance * max(abs(a), abs(b)), floor)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python main.py verify",
        description="Judge again from the committed evidence: no data, no training.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("artefacts", nargs="*", metavar="PAPER[/ARTEFACT]", help="what to verify; nothing is all")
    parser.add_argument(
        "--results", type=Path, default=Path("results"), metavar="DIR", help="folder of results (results)"
    )
    parser.add_argument(
        "--recompute", action="store_true", help=f"compute closed forms and computations again, to {RECOMPUTED:g}"
    )
    parser.add_argument("--data-root", type=Path, default=Path("data"), metavar="DIR", help="where the data are (data)")
    return parser
