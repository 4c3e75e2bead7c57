"""``fit --until``: seeds are trained until the question which of two arms is better is settled."""

import math
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from lightning_app.common.answer import OPTION as JSON
from lightning_app.common.answer import answering
from lightning_app.common.errors import UserError
from lightning_app.common.files import with_home
from lightning_app.common.processes import MAIN, to_its_end
from lightning_app.common.seeds import parse_seeds, spell_seeds
from lightning_app.common.text import printable
from lightning_app.compare.command import findings_json
from lightning_app.compare.findings import Finding, Verdict, compare, text
from lightning_app.compare.sides import Sides, sides_of
from lightning_app.runs import RunFolder
from lightning_app.runs.configuration import compared, differing

__all__ = ["OPTION", "fit_until", "options_of"]

OPTION, MOST = "--until", "--max-seeds"
FIRST = 7  # seeds: with fewer hardly anything is settled
UNSETTLED, OTHERWISE = 4, 5  # exit codes; 4 as of `compare`, and 1 to 3 are others': of a machine's fault, a mistake
QUESTION = re.compile(
    r"(?P<name>[^:\s]+)\s*(:\s*(?P<verdicts>[a-z]+(\|[a-z]+)*)?\s*(within\s+(?P<margin>[\d.eE+-]+))?)?"
)
SHOWN = 4  # options that differ
EXAMPLE = '--until "test/error: better|equivalent within 0.002"'


class Runs(NamedTuple):
    """Which runs one question is asked of."""

    folder: Path
    name: str  # before "-seed0-6"
    first: str  # arm
    last: str  # arm, which is compared with the first
    start: int  # seed, from which on they are trained


@dataclass(frozen=True)
class Question:
    """Which verdicts on a number are hoped for; any verdict but "unresolved" settles it."""

    name: str
    hoped: frozenset[Verdict]
    margin: float | None

    @classmethod
    def parse(cls, words: str) -> "Question":
        """
        >>> Question.parse("test/error: better|equivalent within 0.002").margin
        0.002
        >>> sorted(verdict.value for verdict in Question.parse("test/error").hoped)
        ['better', 'equivalent', 'larger', 'smaller', 'worse']

        Raises:
            UserError: for what is no question, with an example.
        """
        found = QUESTION.fullmatch(words.strip())
        settled = {verdict.value: verdict for verdict in Verdict if verdict is not Verdict.UNRESOLVED}
        chosen = found["verdicts"].split("|") if found and found["verdicts"] else [*settled]
        try:
            margin = float(found["margin"]) if found and found["margin"] else None
        except ValueError:
            margin = -1.0
        if not found or not settled.keys() >= {*chosen} or (margin is not None and not 0 < margin < math.inf):
            raise UserError(f"{OPTION} expects a number, verdicts and a margin, as in {EXAMPLE}; got '{words}'.")
        if found["verdicts"] and "equivalent" in chosen and margin is None:
            raise UserError(f"{OPTION}: 'equivalent' needs a margin, got none: write it as in {EXAMPLE}.")
        return cls(found["name"], frozenset(settled[one] for one in chosen), margin)


def fit_until(argv: Sequence[str]) -> int:
    """Train batches of seeds, each a run of its own, until the last arm's verdict against the first is settled.

    Called again, it continues: finished runs are kept, and an interrupted one is resumed.

    Returns:
        0: one of the named verdicts; 5: another verdict; 4: unresolved after --max-seeds seeds; else the exit code of `fit`.

    Raises:
        UserError: for a wrong question, a configuration without exactly two arms, or runs started with another configuration.
    """
    words, question, most = options_of([word for word in argv if word != JSON])
    config = _config(words)
    asked = _asked(config)
    _check_same(_begun(asked), config)
    with answering(JSON in argv) as answer:
        return _until_settled(words, question, most, asked, answer)


def _until_settled(words: Sequence[str], question: Question, most: int, asked: Runs, answer: dict[str, Any]) -> int:
    told: set[str] = set()
    while True:
        runs = _begun(asked)
        for run, seeds in runs.items():
            open_ = run.finished is None and run.divergence() is None  # a net that has diverged is compared as it is
            if open_ and (code := _fit(words, run.path.name, seeds, resume=True)) and run.divergence() is None:
                return code
            if open_ and run.finished is None and run.divergence() is None:
                raise UserError(
                    f"{OPTION}: {run.path} is not finished, and `fit` could not continue it: it has no checkpoint, or not the "
                    "same options. Restore its checkpoints, or remove it, and its seeds are trained again."
                )
        done = sorted(seed for seeds in runs.values() for seed in seeds)
        if done:
            if silent := [run.path for run in runs if not run.has_log]:
                raise UserError(
                    f"{OPTION}: {silent[0]} has no logged numbers: remove it, and let trainer.callbacks log some."
                )
            paths = ",".join(str(run.path) for run in runs)
            named = f"{paths}:{asked.last}", f"{paths}:{asked.first}"
            sides = _sides(named, question.name)
            (found,) = compare(sides, [question.name], question.margin, at_equal_risk=False)
            for note in sides.notes:
                if note not in told:
                    print(printable(note))
            told |= {*sides.notes}
            print(f"{asked.last} (A) against {asked.first} (B): {text(found, question.margin)}", flush=True)
            settled = found.verdict is not Verdict.UNRESOLVED
            if settled or len(done) >= most:
                answer |= findings_json(sides, [found], named, question.margin)
                return UNSETTLED if not settled else 0 if found.verdict in question.hoped else OTHERWISE
        start = max([asked.start, *(seed + 1 for seed in done)])
        new = range(start, start + min(_more(found) if done else FIRST, most - len(done)))
        folder = asked.folder / f"{asked.name}-seed{spell_seeds(new)}"
        if (code := _fit(words, folder.name, new)) and RunFolder(folder).divergence() is None:
            return code
        if not folder.is_dir():
            raise UserError(
                f"{OPTION}: expected a run in {folder}, found none after `fit`: its output above says why. Had the checkpoint "
                "already reached trainer.max_epochs?"
            )


def _sides(named: tuple[str, str], name: str) -> Sides:
    """The runs so far, in all of which the number was measured."""
    sides = sides_of(*named)
    try:
        sides.chosen([name])
    except UserError as error:
        what = "Name a number that trainer.callbacks log; the finished runs are kept and not trained again."
        raise UserError(f"{OPTION}: {error} {what}") from error
    return sides


def _more(found: Finding) -> int:
    """How many seeds to add before looking again: half of what is foreseen, since looking costs nothing."""
    return 3 if found.pairs_needed is None else max(1, min((found.pairs_needed - found.pairs + 1) // 2, FIRST))


def options_of(argv: Sequence[str]) -> tuple[list[str], Question, int]:
    """The words of an ordinary ``fit``, and what is ours."""
    words: list[str] = []
    own: dict[str, str] = {}
    rest = iter(argv)
    for word in rest:
        name, equals, value = word.partition("=")
        if name == "--print_config" or (name.startswith("--") and name.endswith(("-help", ".help"))):
            raise UserError(f"{OPTION} trains and {name} does not: leave one of them out.")
        if name not in (OPTION, MOST):
            words.append(word)
        elif name in own:
            raise UserError(f"{name} is given twice: give it once.")
        elif (own_value := value if equals else next(rest, None)) is None:
            raise UserError(f"{name} expects a value, as in {EXAMPLE} {MOST} 26.")
        else:
            own[name] = own_value
    most = own.get(MOST, "26")
    if not most.isdecimal() or int(most) < FIRST:
        raise UserError(f"{MOST} expects a number of seeds, at least {FIRST}, got '{most}'.")
    return words, Question.parse(own.get(OPTION, "")), int(most)


def _config(words: Sequence[str]) -> Mapping[str, Any]:
    """The configuration that ``fit`` would use."""
    call = [sys.executable, str(MAIN), *words, "--print_config"]
    done = subprocess.run(call, capture_output=True, text=True, encoding="utf-8")
    if done.returncode:
        raise UserError(done.stderr.strip().removeprefix("error: "))
    return yaml.safe_load(done.stdout)


def _asked(config: Mapping[str, Any]) -> Runs:
    run, arms = config["run"], [*(config["model"].get("arms") or {})]
    if config["trainer"].get("fast_dev_run"):
        raise UserError(
            f"{OPTION} compares what runs log, and with trainer.fast_dev_run they log nothing: leave one out."
        )
    if len(arms) != 2:
        raise UserError(
            f"{OPTION} compares two arms, and model.arms has {len(arms)}: configure two, as in configs/pair20.yaml."
        )
    start = min(parse_seeds(config["model"]["seeds"]))
    first, last = arms
    folder = with_home(run["root"]) / run["group"]
    if "," in str(folder / run["name"]):
        raise UserError(
            f"{OPTION} writes the folders of its runs with commas between them, and {folder / run['name']} has a comma in it: "
            "choose another --run.root, --run.group or --run.name."
        )
    return Runs(folder, run["name"], first, last, start)


def _check_same(runs: Iterable[RunFolder], config: Mapping[str, Any]) -> None:
    """Raises UserError for runs of other options: their seeds would be mixed with those to come."""
    asked = compared(config)
    for run in runs:
        stored = compared(run.config())
        other = [f"{key}: {there} there, {now} now" for key, (there, now) in differing(stored, asked).items()]
        if stored and other:
            values = "; ".join(other[:SHOWN])
            raise UserError(
                f"{run.path} was trained with other options ({values}{'; ...' * (len(other) > SHOWN)}): give the same ones, or "
                "another --run.name."
            )


def _begun(asked: Runs) -> dict[RunFolder, tuple[int, ...]]:
    """The runs that were begun, and their seeds, by the names that they were given."""
    found = {}
    for path in asked.folder.glob("*"):  # the name may hold what a pattern means otherwise, or be refused by `fit`
        if seeds := re.fullmatch(rf"{re.escape(asked.name)}-seed(\d[\d,-]*)", path.name):
            found[RunFolder(path)] = parse_seeds(seeds[1])
    return dict(sorted(found.items(), key=lambda each: each[1]))


def _fit(words: Sequence[str], name: str, seeds: Sequence[int], resume: bool = False) -> int:
    more = ["--run.name", name, "--model.seeds", spell_seeds(seeds)]
    code = to_its_end([*words, *more, *(["--ckpt_path", "last"] if resume else [])])
    if code > 128:  # of a signal, as in a shell
        print(f"{OPTION}: fit has ended with exit code {code}; the same command resumes it.", file=sys.stderr)
    return code
