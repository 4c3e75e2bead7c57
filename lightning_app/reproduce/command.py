"""The command ``python main.py reproduce``."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from lightning_app.arguments import Parser
from lightning_app.cli.console import table
from lightning_app.errors import UserError
from lightning_app.reproduce.plan import SCALES, Scale
from lightning_app.runs.places import PLACE_OPTIONS
from lightning_app.seeds import parse_seeds, spell_seeds
from lightning_app.untrusted import read_json

if TYPE_CHECKING:
    from lightning_app.reproduce.artefact import Artefact, Paper
    from lightning_app.reproduce.making import Made

__all__ = ["main"]

DATA = Path("data")  # where `fit` looks too

EPILOG = """\
examples:
  python main.py reproduce --list                                     every artefact and its state
  python main.py reproduce yu-tomasi/table-1                          at smoke scale: minutes, tests nothing
  python main.py reproduce yu-tomasi/table-1 --scale paper            the real thing
  python main.py reproduce yu-tomasi --scale paper --no-train         what the runs that are there show
  python main.py reproduce yu-tomasi/fig-2 --scale paper --seeds 0-6  half of the seeds; another machine takes 7-12
  python main.py reproduce li-et-al/fig-4 --scale paper               computed, not trained: minutes
  python main.py reproduce yu-tomasi/fig-3 --scale paper --data-root ~/data -- --trainer.accelerator gpu

Runs and computations that have finished are reused, interrupted ones go on where they stopped. Options behind -- go to
`fit`; they may say where and how fast to train, not what. Results lie in results/<paper>/<artefact>/.
"""


def main(argv: list[str]) -> int:
    """Run the command; returns the exit code: 0 whatever the verdicts, 2 for a user's mistake, a run's own if it fails."""
    try:
        return _run(_parse(argv))
    except (ValueError, OSError, yaml.YAMLError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except SystemExit as done:  # argparse has shown its help
        return int(done.code or 0)


def _run(options: argparse.Namespace) -> int:
    from lightning_app.reproduce.making import Work, make
    from lightning_app.reproduce.papers import find
    from lightning_app.reproduce.runner import RunFailed

    if options.list:
        _list(options)
        return 0
    chosen = [pair for name in options.artefacts for pair in find(name)]
    _check_names(options.only, [part.name for _, artefact in chosen for part in artefact.runs + artefact.computations])
    _check_against_plans(options, chosen)
    if options.no_train and not options.runs.is_dir():
        raise UserError(f"--no-train: expected a folder of runs at {options.runs}, found none.")
    work = None if options.no_train else Work(options.data_root or DATA, options.fit, options.only, options.seeds)
    for paper, artefact in chosen:
        try:
            made = make(paper, artefact, options.scale, options.runs, options.out, work)
        except RunFailed as failure:
            print(f"error: {failure}", file=sys.stderr)
            return failure.code if failure.code > 0 else 128 - failure.code
        _say(f"{paper.key}/{artefact.key}", artefact.title, made)
    return 0


def _say(key: str, title: str, made: "Made") -> None:
    """Paper against ours; ratios, tests and the convention in full are in the files."""
    columns = [column for column in made.table if column not in ("ratio", "test")]
    print()
    table(f"{key}: {title}", columns, made.table[columns].itertuples(index=False))
    print(f"{key}: {made.counts}. Runs, {made.standing}. Files: {made.folder}\n", flush=True)


def _check_names(only: Sequence[str] | None, known: Sequence[str]) -> None:
    if wrong := [name for name in only or () if name not in known]:
        raise UserError(
            f"--only names runs of what is reproduced: {', '.join(dict.fromkeys(known))}; got '{wrong[0]}'."
        )


def _check_against_plans(options: argparse.Namespace, chosen: "Sequence[tuple[Paper, Artefact]]") -> None:
    """Seeds that nothing plans, and options of place that a plan has decided."""
    plans = [plan for paper, artefact in chosen for plan in artefact.plans(paper.key, options.scale).values()]
    if options.seeds and not set(options.seeds) & {seed for plan in plans for seed in plan.seeds}:
        planned = "; ".join(dict.fromkeys(f"{plan.name} {spell_seeds(plan.seeds)}" for plan in plans)) or "no runs"
        raise UserError(
            f"none of the seeds is one of what is reproduced ({planned}), got {spell_seeds(options.seeds)}."
        )
    for word in options.fit:
        for plan in plans:
            if word.startswith("--") and plan.decides(word.removeprefix("--").split("=")[0]):
                raise UserError(f"{word}: {plan.name} decides this itself, see {plan.config}. Leave it out.")


def _list(options: argparse.Namespace) -> None:
    """One line an artefact: how far its runs and computations are at each scale, and the verdicts there are."""
    from lightning_app.reproduce.papers import PAPERS, find

    rows = [
        [f"{paper.key}/{artefact.key}", *(_state(paper, artefact, scale, options) for scale in SCALES.values())]
        + [artefact.title]
        for name in options.artefacts or PAPERS
        for paper, artefact in find(name)
    ]
    table("", ["artefact", *SCALES, "what"], rows)


def _state(paper, artefact, scale: Scale, options: argparse.Namespace) -> str:
    from lightning_app.reproduce import computation, runner
    from lightning_app.reproduce.making import folder_of

    states = {name: runner.state(plan, options.runs) for name, plan in artefact.plans(paper.key, scale).items()}
    states |= {name: computation.state(task, options.runs) for name, task in artefact.tasks(paper.key, scale).items()}
    if set(states.values()) == {"not run"}:
        return "not run"
    if open_parts := [f"{name}: {how}" for name, how in states.items() if how != "finished"]:
        return "; ".join(open_parts)
    file = folder_of(options.out, paper, artefact, scale) / "verdict.json"
    if not file.exists():
        return "runs finished"
    verdict = read_json(file)
    if not isinstance(verdict, dict) or not isinstance(verdict.get("counts"), str):
        raise UserError(f"{file} is no verdict of ours: it has no counts. Remove it, and reproduce it again.")
    return verdict["counts"]


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    own, fit = _split(argv)
    parser = Parser(
        prog="python main.py reproduce",
        description="Reproduce tables, figures and statements of the papers: runs, figure, paper against ours, verdict.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("artefacts", nargs="*", metavar="PAPER/ARTEFACT", help="what to reproduce; PAPER alone is all")
    parser.add_argument("--list", action="store_true", help="every artefact with its state")
    parser.add_argument("--scale", choices=SCALES, default="smoke", help="smoke (default): minutes; paper: in full")
    parser.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR", help="folder of all runs (runs)")
    parser.add_argument("--out", type=Path, default=Path("results"), metavar="DIR", help="folder of results (results)")
    parser.add_argument("--data-root", type=Path, metavar="DIR", help="where the data are, as for fit (data)")
    parser.add_argument("--no-train", action="store_true", help="make nothing: say what the runs that are there show")
    parser.add_argument(
        "--only", type=lambda text: text.split(","), metavar="RUN,...", help="make only these runs or computations now"
    )
    parser.add_argument("--seeds", metavar="SEEDS", help="train only these seeds now: 0-6, or 7-7 for one")
    options = parser.parse_args(own)
    if not options.artefacts and not options.list:
        raise UserError("name an artefact, like yu-tomasi/table-1, or ask for --list.")
    options.scale = SCALES[options.scale]
    options.seeds = None if options.seeds is None else parse_seeds(options.seeds)  # argparse would swallow its sentence
    root = ["--data.init_args.root", str(options.data_root)] if options.data_root else []
    options.fit = [*root, *_checked(fit)]
    return options


def _split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Our words, and those behind --."""
    words = list(argv)
    where = words.index("--") if "--" in words else len(words)
    return words[:where], words[where + 1 :]


def _checked(fit: Sequence[str]) -> list[str]:
    """Options that change what is measured are refused: the verdict would be about another experiment."""
    for word in fit:
        if word.startswith("-") and word.removeprefix("--").split("=")[0] not in PLACE_OPTIONS:
            raise UserError(
                f"behind -- stand options of place and speed only, got {word}: the artefact decides the rest. "
                f"Allowed: {', '.join(PLACE_OPTIONS)}. For other settings use `fit` with the YAML in configs/papers."
            )
    return list(fit)
