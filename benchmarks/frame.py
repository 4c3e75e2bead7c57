"""What every benchmark shares: its options, what it finds, and the file that it leaves.

A benchmark is a module with a function `measure(options) -> Findings`; `run` makes a command of it. What it finds are
`Line`s, one a figure: something against something else, as a ratio of the same run, with the goal that was set for it. The
page of all figures (`benchmarks.page`) is made from the files.
"""

import argparse
import json
import logging
import shlex
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from benchmarks.timing import Comparison, Ratio, machine
from lightning_app.common.errors import UserError
from lightning_app.common.memory import keep_freed_memory
from lightning_app.common.provenance import commit, versions

__all__ = ["Findings", "Line", "command_of", "lines_of", "options_of", "quiet", "run"]

LIBRARIES = ("torch", "pytorch-lightning", "torchvision", "numpy")
APART = ("root", "out", "work", "minutes", "command")  # what a file of results does not depend on


@dataclass(frozen=True)
class Line:
    """One figure.

    >>> Line("compiled", "eager", Ratio(0.6, 0.55, 0.7), goal=0.625).met
    True
    """

    what: str
    against: str
    ratio: Ratio  # what / against
    goal: float | None = None
    better: Literal["less", "more"] = "less"  # the goal is a most or a least

    @property
    def met(self) -> bool | None:
        """Is the median within the goal? None without one."""
        if self.goal is None:
            return None
        return self.ratio.median <= self.goal if self.better == "less" else self.ratio.median >= self.goal

    def __str__(self) -> str:
        ratio = self.ratio
        goal = {None: "", True: ": met", False: ": MISSED"}[self.met]
        bound = "" if self.goal is None else f", goal {'<=' if self.better == 'less' else '>='} {self.goal:g}{goal}"
        return f"{self.what} / {self.against}: {ratio.median:.3g} ({ratio.lowest:.3g} - {ratio.highest:.3g}){bound}"


@dataclass
class Findings:
    """What a benchmark found.

    Args:
        setting: what all of it was measured on, in words: net, images, batch, threads.
        lines: the figures.
        values: by comparison, contender -> one value a round, in the comparison's unit.
        more: whatever else is worth keeping; must go into JSON.
    """

    setting: str
    lines: list[Line] = field(default_factory=list)
    values: dict[str, Comparison] = field(default_factory=dict)
    more: dict[str, Any] = field(default_factory=dict)

    def add(self, name: str, comparison: Comparison, reference: str) -> Comparison:
        """Keep a comparison, and print its table."""
        self.values[name] = comparison
        print(f"\n{name}\n{comparison.table(reference)}", flush=True)
        return comparison


def options_of(what: str | None, rounds: int = 7, **images: int) -> argparse.ArgumentParser:
    """--root, --rounds, --out, and --images where a default number of them is given.

    Args:
        what: is timed, for --help.
        rounds: by default.
        images: ``images=1000``, or nothing.
    """
    parser = argparse.ArgumentParser(description=what, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path("data"), help="folder with cifar10/train_images.npy")
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--out", type=Path, help="folder for the file of results, named as the benchmark")
    for name, default in images.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    return parser


def run(
    measure: Callable[[argparse.Namespace], Findings], parser: argparse.ArgumentParser, argv: list[str] | None = None
) -> Findings:
    """Measure with one thread, as the command line says; print the figures, and write them where it says.

    Raises:
        SystemExit: 2, with a sentence, for a user's mistake, such as a folder without data.
    """
    options = parser.parse_args(argv)
    name = measure.__globals__["__spec__"].name.removeprefix("benchmarks.")
    options.command = command_of(name, parser, options)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    quiet()
    keep_freed_memory()  # as `fit` does; see `apart` for who has a process without that
    here, code = machine(), commit()  # before: the code can change and the load rises while it measures
    print(" | ".join(f"{key}: {value}" for key, value in here.items()), flush=True)
    try:
        found = measure(options)
    except UserError as error:
        parser.exit(2, f"error: {error}\n")
    print("", *found.lines, sep="\n", flush=True)
    if options.out:
        content = {
            "command": options.command,
            "commit": code,
            "machine": here,
            "versions": versions(LIBRARIES),
            "setting": found.setting,
            "rounds": options.rounds,
            "lines": [asdict(line) for line in found.lines],
            "values": {key: {"unit": of.unit, **of.values} for key, of in found.values.items()},
            **found.more,
        }
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")
    return found


def command_of(name: str, parser: argparse.ArgumentParser, options: argparse.Namespace) -> str:
    """What is typed for a benchmark with these options, those by default spelled out, places and times left out."""
    chosen = {key: value for key, value in vars(options).items() if key not in APART}
    words = [word for key, value in chosen.items() for word in _spelled(key, value, parser.get_default(key))]
    return shlex.join(["python", "-m", f"benchmarks.{name}", *words])


def lines_of(content: Mapping[str, Any]) -> list[Line]:
    """The figures of a file of results."""
    return [Line(**line | {"ratio": Ratio(**line["ratio"])}) for line in content["lines"]]


def quiet() -> None:
    """No line of Lightning's between the figures."""
    warnings.simplefilter("ignore")
    for name in ("pytorch_lightning", "lightning.pytorch"):
        logging.getLogger(name).setLevel(logging.ERROR)


def _spelled(key: str, value: object, default: object) -> list[str]:
    """An option as it is typed; switches that are as they are by default are not."""
    option = "--" + key.replace("_", "-")
    if isinstance(value, bool):
        return [] if value == default else [option if value else option.replace("--", "--no-", 1)]
    if value is None:
        return []
    return [option, *map(str, value if isinstance(value, list) else [value])]
