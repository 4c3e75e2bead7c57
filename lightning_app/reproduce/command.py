"""The command ``python main.py reproduce``."""

import argparse
import contextlib
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_app.cli.console import table
from lightning_app.common.answer import HELP, OPTION, answering
from lightning_app.common.arguments import Parser
from lightning_app.common.errors import UserError
from lightning_app.common.seeds import parse_seeds, spell_seeds
from lightning_app.common.signals import SIGNALS, Stopped, stopping
from lightning_app.papers.parts import PAPER, REDUCED, SCALES
from lightning_app.papers.records import counts_of, read_record
from lightning_app.papers.verdicts import Verdict, in_words
from lightning_app.runs.configuration import MACHINE_OPTIONS

if TYPE_CHECKING:
    from lightning_app.reproduce.evidence import Reproduction
    from lightning_app.reproduce.making import Made

DATA = Path("data")  # where `fit` looks too
LOOKS = {  # colours of outcomes on a terminal
    rf"\b(?<!not )({Verdict.REPRODUCED}|{Verdict.REBUILT}|{Verdict.CHECKED}|{Verdict.AGREES})\b": "green",
    rf"\b({Verdict.NOT_REPRODUCED}|{Verdict.DISAGREES})\b": "red",
    rf"\b({Verdict.ARTEFACT}|{Verdict.DEPENDS}|{Verdict.UNDECIDED})\b": "yellow",
    rf"\b(not run|{Verdict.NOT_TESTED})\b": "dim",
}
RESERVE = 120.0  # seconds that saving and packing may take, of the time of --for

EPILOG = """\
examples:
  python main.py reproduce --list                                     every artefact and its state
  python main.py reproduce yu-tomasi/table-1                          at smoke scale: minutes, tests nothing
  python main.py reproduce yu-tomasi/table-1 --scale paper            in full: hours for each seed and depth
  python main.py reproduce yu-tomasi --scale paper --no-train         judge the runs that exist
  python main.py reproduce yu-tomasi/fig-2 --scale paper --seeds 0-6  half of the seeds; another machine takes 7-12
  python main.py reproduce yu-tomasi/table-1 --scale paper --for 165m  stop in time, saved; again to resume
  python main.py reproduce li-et-al/fig-4 --scale paper               computed, not trained: minutes
  python main.py reproduce yu-tomasi/fig-3 --scale paper --data-root ~/data -- --trainer.accelerator gpu

Finished runs and computations are reused. Interrupted ones are resumed, if necessary from what is kept in results/. Options
after -- are passed to `fit`; they may set where and how fast to train, not what. Results are written to
results/<paper>/<artefact>/, and their evidence to results/<paper>/runs/ and pieces/, which `verify` checks.
"""
OF_ALL = {"list": "--list shows all runs at every scale", "no_train": "--no-train judges all runs that exist"}


def main(argv: list[str]) -> int:
    """Run the command. Returns 0 whatever the verdicts; if a run fails, the run's exit code."""
    options = _parse(argv)
    with _listening(), _ending_after(options.limit) as time_is_up, answering(options.json) as answer:
        found: list[dict[str, Any]] = []
        try:
            code = _run(options, found)
        except Stopped as stop:
            code = stop.code if isinstance(stop.code, int) else 1
        if time_is_up.is_set() and code == 128 + signal.SIGTERM:
            code = 0
        if code == 0:
            answer["artefacts"] = found
    return code


@contextlib.contextmanager
def _listening() -> Iterator[None]:
    """A signal ends computations and training; what is kept with the results is written first."""
    which = (*SIGNALS, signal.SIGINT)
    earlier = [signal.getsignal(one) for one in which]
    stopping.listen()
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for one, handler in zip(which, earlier):
                signal.signal(one, handler)


@contextlib.contextmanager
def _ending_after(seconds: float | None) -> Iterator[threading.Event]:
    """After so many seconds, less what saving and packing take, what a scheduler does: SIGTERM to this process."""
    time_is_up = threading.Event()

    def end() -> None:
        time_is_up.set()
        print("time limit reached: saving and packing. Run the same command again to continue.", flush=True)
        os.kill(os.getpid(), signal.SIGTERM)

    if seconds is None:
        yield time_is_up
        return
    timer = threading.Timer(max(0.0, seconds - min(RESERVE, seconds / 8)), end)
    timer.daemon = True
    timer.start()
    try:
        yield time_is_up
    finally:
        timer.cancel()
        timer.join()  # a signal that is under way arrives while it is listened to


def _seconds(text: str) -> float:
    """
    >>> _seconds("165m"), _seconds("2h30m"), _seconds("90")
    (9900.0, 9000.0, 90.0)
    """
    found = re.fullmatch(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?", f"{text}s" if text.isdecimal() else text)
    if not text or not found or not any(int(part or 0) for part in found.groups()):
        raise UserError(f"--for: expected a time like 165m, 2h30m or 90s, got '{text}'.")
    hours, minutes, seconds = (int(part or 0) for part in found.groups())
    total = 3600.0 * hours + 60.0 * minutes + seconds
    if total > threading.TIMEOUT_MAX:
        raise UserError(f"--for: expected at most {threading.TIMEOUT_MAX / 3600:.0f}h, got '{text}': leave it out.")
    return total


def _run(options: argparse.Namespace, found: list[dict[str, Any]]) -> int:
    from lightning_app.papers import find
    from lightning_app.reproduce.evidence import Reproduction
    from lightning_app.reproduce.job import JobOptions
    from lightning_app.reproduce.making import make
    from lightning_app.reproduce.training import RunFailed

    if options.list:
        found += _list(options)
        return 0
    named = [pair for name in options.artefacts for pair in find(name)]
    chosen = [Reproduction(*pair, options.scale, options.out) for pair in named if pair[1].has(options.scale)]
    if not chosen:
        said = f"cannot be made at {options.scale.name} scale: use smoke or paper."
        raise UserError(f"{', '.join(options.artefacts)} {said}")
    _check_against_plans(options, chosen)
    if options.no_train and not options.runs.is_dir() and not options.out.is_dir():
        said = f"expected a folder of runs at {options.runs} or of results at {options.out}, found neither."
        raise UserError(f"--no-train: {said}")
    missing = (
        None if options.no_train else JobOptions(options.data_root or DATA, options.fit, options.only, options.seeds)
    )
    for asked in chosen:
        try:
            made = make(asked, options.runs, missing)
        except RunFailed as failure:
            stopped = failure.code in [128 + one for one in SIGNALS]
            print(f"{'stopped' if stopped else 'error'}: {failure}", file=sys.stderr)
            return failure.code
        _say(asked.key, asked.artefact.title, made)
        of = {"artefact": asked.key, "title": asked.artefact.title, "scale": asked.scale.name}
        rows = read_record(made.folder)["rows"]
        found.append(of | {"folder": made.folder, "standing": made.standing, "rows": rows})
    return 0


def _say(key: str, title: str, made: "Made") -> None:
    """Paper against ours; ratios, tests and the convention in full are in the files."""
    columns = [column for column in made.table if column not in ("ratio", "test")]
    print()
    table(f"{key}: {title}", columns, made.table[columns].itertuples(index=False))
    print(f"{key}: {made.counts}. Evidence, {made.standing}. Files: {made.folder}\n", flush=True)


def _check_against_plans(options: argparse.Namespace, chosen: "Sequence[Reproduction]") -> None:
    """Names and seeds that nothing plans, and options of where to train that a plan has decided."""
    known = [name for asked in chosen for name in asked.artefact.parts]
    if wrong := [name for name in options.only or () if name not in known]:
        names = ", ".join(dict.fromkeys(known))
        raise UserError(f"--only: expected runs or computations of what is reproduced ({names}), got '{wrong[0]}'.")
    plans = [job for asked in chosen for job in asked.trainings]
    if options.seeds and not set(options.seeds) & {seed for plan in plans for seed in plan.seeds}:
        planned = "; ".join(dict.fromkeys(f"{plan.name} {spell_seeds(plan.seeds)}" for plan in plans)) or "no runs"
        seeds = spell_seeds(options.seeds) if len(options.seeds) > 1 else options.seeds[0]
        raise UserError(f"--seeds: expected seeds of what is reproduced ({planned}), got {seeds}.")
    for word in options.fit:
        for plan in plans:
            if word.startswith("--") and plan.decides(word.removeprefix("--").split("=")[0]):
                raise UserError(f"{word}: leave it out, as {plan.name} sets it itself (see {plan.config}).")


def _list(options: argparse.Namespace) -> list[dict[str, Any]]:
    """A table a paper, a line an artefact: the verdicts at each scale, by class, and how far what is open is."""
    from lightning_app.papers import PAPERS, find
    from lightning_app.reproduce.evidence import Reproduction

    by_paper: dict[str, list[list[str]]] = {}
    found = []
    for name in options.artefacts or PAPERS:
        for paper, artefact in find(name):
            asked = [Reproduction(paper, artefact, scale, options.out) for scale in (PAPER, REDUCED)]
            states = {each.scale.name: _state(each, options.runs) for each in asked}
            rows, key = by_paper.setdefault(paper.title, []), asked[0].key
            rows.append([key, *map(_in_words, states.values()), artefact.title])
            found.append({"artefact": key, "title": artefact.title, "states": states})
    if not options.out.is_dir():
        print(f"note: there is no folder of results at {options.out}; name it with --out.", file=sys.stderr)
    for number, (title, rows) in enumerate(by_paper.items()):
        print(end="\n" if number else "")
        table(title, ["artefact", "paper scale", "reduced scale", "what"], rows, LOOKS)
    return found


def _state(asked: "Reproduction", runs: Path) -> dict[str, Any] | None:
    """Of each run or computation how far it is, and the verdicts as recorded; None where there is no such scale."""
    if not asked.artefact.has(asked.scale):
        return None
    jobs = {job.name: job.state(runs, asked.out) for job in asked.jobs}
    state: dict[str, Any] = {"jobs": jobs, "verdicts": None, "problem": ""}
    if asked.recorded:
        try:
            state["verdicts"] = counts_of(read_record(asked.folder)["rows"])
        except ValueError as error:  # of one artefact: the list goes on
            state["problem"] = str(error)
    return state


def _in_words(state: dict[str, Any] | None) -> str:
    if state is None:
        return "–"
    if state["problem"]:
        return str(state["problem"])
    jobs = state["jobs"]
    open_parts = "; ".join(f"{name}: {how}" for name, how in jobs.items() if how != "finished")
    if state["verdicts"] is None:
        return open_parts if {*jobs.values()} != {"not run"} else "not run"
    verdicts = in_words(state["verdicts"])
    return f"{verdicts} ({open_parts})" if open_parts else verdicts


def _parse(argv: list[str]) -> argparse.Namespace:
    where = argv.index("--") if "--" in argv else len(argv)
    own, fit = argv[:where], argv[where + 1 :]
    options = _parser().parse_args(own)
    if not options.artefacts and not options.list:
        raise UserError("expected an artefact, such as yu-tomasi/table-1, or --list, got neither.")
    given = {"--scale": options.scale, "--only": options.only, "--seeds": options.seeds, "what follows --": fit}
    for asked, unused in (("list", [*given]), ("no_train", [*given][1:])):
        if getattr(options, asked) and (wrong := next((name for name in unused if given[name]), None)):
            raise UserError(f"{OF_ALL[asked]}, so {wrong} has no effect: leave it out.")
    options.scale = SCALES[options.scale or "smoke"]
    options.seeds = None if options.seeds is None else parse_seeds(options.seeds)  # argparse would swallow its message
    options.limit = None if options.limit is None else _seconds(options.limit)
    _check_passed_on(fit)
    options.fit = [*(["--data.init_args.root", str(options.data_root)] if options.data_root else []), *fit]
    return options


def _check_passed_on(fit: Sequence[str]) -> None:
    """What changes what is measured is refused: the verdict would be about another experiment."""
    for word in fit:
        if word.startswith("-") and word.removeprefix("--").split("=")[0] not in MACHINE_OPTIONS:
            raise UserError(
                f"after --: expected options that set where and how fast to train, got {word}; the artefact fixes all others. "
                f"Allowed: {', '.join(MACHINE_OPTIONS)}. To change other settings use `fit` with the YAML file in configs/papers."
            )
    sharing = Parser(add_help=False)
    for name, usual in (("strategy", "auto"), ("devices", "1"), ("num_nodes", "1")):
        sharing.add_argument(f"--trainer.{name}", dest=name, default=usual)
    asked, _ = sharing.parse_known_args(fit)
    alone = asked.strategy == "auto" and re.fullmatch(r"1|\[\d+\]|\d+,", asked.devices) and asked.num_nodes == "1"
    if asked.strategy != "seeds" and not alone:
        raise UserError(
            "after --, several processes need --trainer.strategy seeds, which shares out nets: others share out batches, and "
            "BatchNorm would see a part of each."
        )


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python main.py reproduce",
        description="Reproduce tables, figures and statements of the papers: runs, figure, paper against ours, verdict.",
        epilog=EPILOG,
    )
    parser.add_argument(
        "artefacts", nargs="*", metavar="PAPER/ARTEFACT", help="what to reproduce; PAPER alone means all of it"
    )
    parser.add_argument(OPTION, action="store_true", help=HELP)
    parser.add_argument("--list", action="store_true", help="every artefact with its state")
    scales = "smoke (default): minutes, tests nothing; reduced: fewer epochs, orderings only; paper: in full"
    parser.add_argument("--scale", choices=SCALES, help=scales)
    parser.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR", help="folder of all runs (runs)")
    parser.add_argument("--out", type=Path, default=Path("results"), metavar="DIR", help="folder of results (results)")
    parser.add_argument("--data-root", type=Path, metavar="DIR", help="where the data are, as for fit (data)")
    parser.add_argument("--no-train", action="store_true", help="train nothing, judge the runs that exist")
    names, only = "RUN,...", "make only these runs or computations now"
    parser.add_argument("--only", type=lambda text: text.split(","), metavar=names, help=only)
    parser.add_argument(
        "--for", dest="limit", metavar="TIME", help="stop by itself before this time is over: 165m, 2h, or 90 (seconds)"
    )
    parser.add_argument("--seeds", metavar="SEEDS", help="train only these seeds now: 0-6, or 7 for seed 7")
    return parser
