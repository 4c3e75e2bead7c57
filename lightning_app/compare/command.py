"""The command ``python main.py compare``."""

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lightning_app.common.answer import answering, as_json
from lightning_app.common.arguments import Parser
from lightning_app.common.errors import MachineError, UserError
from lightning_app.common.files import with_folder, write_atomically
from lightning_app.common.numbers import brief, epoch_text
from lightning_app.common.text import printable
from lightning_app.compare.findings import Finding, Verdict, compare, latex, level_of, questions, text
from lightning_app.compare.sides import Sides, label_of, sides_of
from lightning_app.runs.reader import held_out
from lightning_app.statistics.paired import differences, spread
from lightning_app.statistics.sequential import PLANNED, pairs_needed

CODES = {  # of the first number's verdict; 2 is a mistake
    Verdict.BETTER: 0,
    Verdict.LARGER: 0,
    Verdict.WORSE: 1,
    Verdict.SMALLER: 1,
    Verdict.EQUIVALENT: 3,
    Verdict.UNRESOLVED: 4,
}
SHOWN = 8  # options that differ, in the text; JSON has all
MEASURES = "trainer.callbacks"  # beginning of options that come last in the text: they train nothing, and may be many
EPILOG = """\
examples:
  python main.py compare runs/digits/quickstart:residual runs/digits/quickstart:plain   two arms of a run
  python main.py compare runs/cifar10/res20 runs/cifar10/pln20 --margin 0.002           equivalent, if within 0.002
  python main.py compare 'runs/a/seed*' runs/b --metric test/error --metric 'cushion/*/median'
  python main.py compare runs/a runs/b --plan 0.005                                     how many seeds, before a run

A side is PATH[,PATH...][:ARM]: runs, folders of runs, or patterns in quotes. Nets with the same seed
and the same batches are compared pair by pair. A verdict is wrong with a chance of at most 5 %, however often you look and add
seeds at the end; several numbers share the 5 %. As a rule one question takes seven pairs whose differences have the same sign,
and two questions take eight. Exit codes, for the first number: 0 A is better (or larger), 1 worse (or smaller), 3 equivalent,
4 unresolved, 2 a mistake.
"""


def main(argv: list[str]) -> int:
    """Run the command; returns the exit code: `CODES`."""
    options = _parser().parse_args(argv)
    if options.latex and options.plan is not None:
        raise UserError("--latex prints rows of findings, and --plan finds none: leave one of them out.")
    _check_out(options.out)
    sides = sides_of(options.a, options.b)
    names = sides.chosen(options.metric or [held_out(sides.names).error])
    if options.plan is not None:
        return _plan(sides, names, options)
    found = compare(sides, names, options.margin)
    data = findings_json(sides, found, (options.a, options.b), options.margin)
    with answering(options.json) as answer:
        answer |= data
        if options.latex:
            print(*map(latex, found), sep="\n")
        else:
            _print(sides, found, options.margin)
        _write(options.out, data)
    return CODES[found[0].verdict]


def _check_out(out: Path | None) -> None:
    """Findings take the place of findings only."""
    if out is None or not out.exists():
        return
    try:
        said = json.loads(out.read_bytes()) if out.is_file() else None
    except (OSError, ValueError):
        said = None
    if not (isinstance(said, dict) and said.keys() & {"findings", "needed"}):
        what = "a file of another kind, which is not overwritten" if out.is_file() else "no file"
        raise UserError(f"--out: expected a new file, or one that compare has written, got {out}: {what}.")


def _write(out: Path | None, data: Mapping[str, Any]) -> None:
    """Exit code 1 would be a verdict: a file that cannot be written is a mistake here."""
    if out is None:
        return
    try:
        write_atomically(with_folder(out), as_json(data).encode())
    except MachineError as error:
        raise UserError(f"--out: {error}") from error


def _print(sides: Sides, found: list[Finding], margin: float | None) -> None:
    _print_pairs(sides)
    for finding in found:
        print(text(finding, margin))
    if (count := questions(dict.fromkeys(finding.name for finding in found))) > 1:
        print(f"{count} questions, answered or not, share the 5 % chance of a wrong verdict (Bonferroni).")
    differing = sorted(sides.differing.items(), key=lambda option: option[0].startswith(MEASURES))
    options = [f"{key}: {a} / {b}" for key, (a, b) in differing]
    if options:
        more = f"; {len(options) - SHOWN} more (--json)" if len(options) > SHOWN else ""
        print(printable(f"options that differ, A / B: {'; '.join(options[:SHOWN])}{more}"))


def _print_pairs(sides: Sides) -> None:
    """Which nets are pairs, and what is to be known of them."""
    if sides.seeds is not None:
        print(f"paired by seed: {', '.join(map(str, sides.seeds))}")
    for note in sides.notes:
        print(printable(note))


def findings_json(
    sides: Sides, found: Sequence[Finding], named: tuple[str, str], margin: float | None
) -> dict[str, Any]:
    """findings.json, by the schema beside this file, of sides as somebody named them."""
    nets = [[label_of(net) for net in side] for side in (sides.a, sides.b)]
    return {
        "schema": 1,
        "sides": {side: {"named": name, "nets": its} for side, name, its in zip("ab", named, nets)},
        "seeds": None if sides.seeds is None else list(sides.seeds),
        "margin": margin,
        "notes": list(sides.notes),
        "findings": [asdict(finding) for finding in found],
        "differing": {key: {"a": a, "b": b} for key, (a, b) in sides.differing.items()},
    }


def _plan(sides: Sides, names: Sequence[str], options: argparse.Namespace) -> int:
    """Say how many seeds a difference of interest in the first number needs, from the spread of the differences that there are.

    Judged with all of the numbers, as without --plan.
    """
    name = names[0]
    epochs, a, b = sides.table(name)
    its = spread(differences(a.iloc[-1].to_numpy(), b.iloc[-1].to_numpy()))
    if its.count < 2:
        raise UserError(
            f"a plan needs at least two pairs with finite numbers in {printable(name)}, got {its.count} of {len(a.columns)}: "
            "train more seeds, or name another --metric."
        )
    needed = pairs_needed(options.plan, its.sd, options.margin, chance=0.8, alpha=level_of(names))
    seeds = f"{needed} seeds of each side" if needed else f"more than {PLANNED} seeds of each side"
    what = f"a difference of {brief(options.plan)} in {printable(name)}"
    with answering(options.json) as answer:
        answer |= {"name": name, "difference": options.plan, "sd": its.sd, "pairs": its.count, "needed": needed}
        _print_pairs(sides)
        print(f"{what} needs {seeds} to be settled with a chance of 80 %")
        at = epoch_text(float(epochs[-1]))
        print(f"from the spread of {its.count} differences at epoch {at}: sd {brief(its.sd, 3)}")
        _write(options.out, answer)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="python main.py compare", description="Is A better than B, or is it noise?", epilog=EPILOG)
    parser.add_argument("a", metavar="A", help="runs, or one arm of them")
    parser.add_argument("b", metavar="B", help="what A is compared with")
    parser.add_argument(
        *("-m", "--metric"),
        action="append",
        metavar="NAME",
        help="a number of the log, or a pattern such as 'cushion/*/median' (test/error, else val/error); repeat for more",
    )
    parser.add_argument("--margin", type=_positive, metavar="X", help="differences below X do not matter")
    parser.add_argument("--plan", type=_positive, metavar="X", help="how many seeds does a difference of X need?")
    parser.add_argument("--json", action="store_true", help="print findings.json instead of text")
    parser.add_argument("--latex", action="store_true", help="print rows of a LaTeX table instead of text")
    parser.add_argument("--out", type=Path, metavar="FILE", help="also write what --json prints there")
    return parser


def _positive(word: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number above 0, got {word}")
    return value
