"""What every benchmark shares: options, timing in turns, processes of their own, and the file of results.

A benchmark is a module with `parser()` and `measure(options) -> Results`; `run` makes a command of it. Contenders take turns, in
an order that is reversed every other round, and are compared round by round: whatever else the machine does meets all of
them alike. A `Row` is one ratio of that kind, with the goal that was set for it; docs/speed.md is made from the files of rows.
"""

import argparse
import json
import logging
import multiprocessing
import os
import platform
import shlex
import statistics
import time
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from lightning_app.common.errors import UserError
from lightning_app.common.processes import keep_freed_memory
from lightning_app.common.provenance import commit, processor, versions
from lightning_app.common.text import markdown_row

ROOT = Path(__file__).resolve().parents[1]
MAIN = str(ROOT / "main.py")
LIBRARIES = ("torch", "pytorch-lightning", "torchvision", "numpy")
NOT_IN_COMMAND = ("root", "out", "command")  # what a file of results does not depend on
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

Run = Callable[[], object]
Batches = list[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Ratio:
    """One contender against the reference, in units of the reference."""

    median: float
    lowest: float
    highest: float

    @classmethod
    def of(cls, *values: float) -> "Ratio":
        """Of one value a round, or of a number that needs no rounds."""
        return cls(statistics.median(values), min(values), max(values))

    def __mul__(self, factor: float) -> "Ratio":
        return Ratio(self.median * factor, self.lowest * factor, self.highest * factor)


@dataclass(frozen=True)
class Comparison:
    """What `interleave` measured: contender -> one value a round, in ``unit``."""

    values: dict[str, list[float]]
    unit: str = "s"

    def median(self, name: str) -> float:
        return statistics.median(self.values[name])

    def ratio(self, name: str, reference: str) -> Ratio:
        """`name` / `reference`, taken round by round."""
        return Ratio.of(*(one / other for one, other in zip(self.values[name], self.values[reference])))

    def row(self, name: str, reference: str, goal: float | None = None, what: str = "", against: str = "") -> "Row":
        """`name` in units of `reference`, called otherwise where a row needs more words."""
        return Row(what or name, against or reference, self.ratio(name, reference), goal)

    def table(self, reference: str) -> str:
        """A line for each contender: median, and its ratio to `reference` with the range over the rounds."""
        width, rounds = max(map(len, self.values)), len(self.values[reference])
        lines = [f"{'':{width}}  {self.unit:>12}  {'ratio':>8}  (min - max of {rounds} rounds)"]
        for name in self.values:
            ratio = self.ratio(name, reference)
            span = "reference" if name == reference else f"({ratio.lowest:.3g} - {ratio.highest:.3g})"
            lines.append(f"{name:{width}}  {self.median(name):12.4g}  {ratio.median:8.3g}  {span}")
        return "\n".join(lines)


def interleave(contenders: Mapping[str, Run], rounds: int, unit: str = "s", warm_up: int = 1) -> Comparison:
    """Let contenders take turns.

    Args:
        contenders: name -> what to time. It may return its own value as a float (samples per second, say); else its wall
            time in seconds is taken, after the GPU has finished.
        rounds: measured rounds; the order is reversed in every other one.
        unit: of the values.
        warm_up: turns of each contender before the first round that are not counted.
    """
    for _ in range(warm_up):
        for contender in contenders.values():
            contender()
    values: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds):
        for name in list(contenders)[:: 1 if number % 2 == 0 else -1]:
            values[name].append(value_of(contenders[name]))
    return Comparison(values, unit)


def value_of(call: Run) -> float:
    """What a call returns, if that is a float, else its wall time."""
    wall, value = seconds(call)
    return value if isinstance(value, float) else wall


def seconds(call: Run) -> tuple[float, object]:
    """Wall time of one call, the GPU's work included, and what it returned."""
    synchronize()
    start = time.perf_counter()
    value = call()
    synchronize()
    return time.perf_counter() - start, value


# What `ticks` are seconds of: others on the machine hardly touch processor time, but a GPU's work is none.
CLOCK = "processor time" if DEVICE == "cpu" else "wall time"


def ticks() -> float:
    """Seconds of `CLOCK`."""
    return time.process_time() if DEVICE == "cpu" else time.perf_counter()


def processor_time(call: Run) -> Callable[[], float]:
    """For `interleave`: seconds of a call by `ticks`."""

    def timed() -> float:
        start = ticks()
        call()
        synchronize()
        return ticks() - start

    return timed


def synchronize() -> None:
    """Wait for the GPU, where there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def in_process(make: Callable[..., Run], *args: object) -> Callable[[], float]:
    """What ``make(*args)`` makes, in a new process; for `interleave`.

    What a step takes depends on the memory that its process has already: an eager PyTorch loop that starts alone spends a
    tenth of its time on page faults, the same loop after another contender none, or a fifth. So whole training loops are
    timed each in a process of its own, as their users run them, and still take turns. The process begins with the first turn:
    where another contender's fails, none is started for nothing. It ends when nobody can call it any more.

    Args:
        make: a function of a module, called once there; what it returns is called at every turn.
        args: whatever can be pickled.

    Raises:
        UserError: at a turn, if making or running it raised one there.
        RuntimeError: at a turn, if the process has ended. Its traceback is on standard error.
    """
    process = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))  # no daemon: a DataLoader has workers
    return lambda: process.submit(_turn, torch.get_num_threads(), make, args).result()


_made: list[Run] = []  # the contender of this process


def _turn(threads: int, make: Callable[..., Run], args: tuple[object, ...]) -> float:
    if not _made:
        _begin(threads)
        _made.append(make(*args))
    return value_of(_made[0])


def _begin(threads: int) -> None:
    quiet()
    torch.set_num_threads(threads)
    torch.manual_seed(0)


@dataclass(frozen=True)
class Row:
    """One ratio of the table.

    >>> Row("compiled", "eager", Ratio(0.6, 0.55, 0.7), goal=0.625).met
    True
    """

    what: str
    against: str
    ratio: Ratio  # what / against
    goal: float | None = None
    better: Literal["less", "more"] = "less"  # the goal is an upper or a lower bound

    @property
    def met(self) -> bool | None:
        """Is the median within the goal? None without one."""
        return self.within(1)

    def within(self, margin: float) -> bool | None:
        """Is the median at most that factor off the goal? None without one.

        >>> [Row("a", "b", Ratio.of(1.7), goal=0.6).within(margin) for margin in (2, 3)]
        [False, True]
        """
        if self.goal is None:
            return None
        median = self.ratio.median
        return median <= self.goal * margin if self.better == "less" else median >= self.goal / margin

    def __str__(self) -> str:
        """As Markdown has it.

        >>> print(Row("||J||", "exact", Ratio.of(0.1)))  # a bar would be the end of a cell
        | \\|\\|J\\|\\| | exact | 0.1 |  |  |
        """
        ratio = self.ratio
        span = "" if ratio.lowest == ratio.highest else f" ({ratio.lowest:.3g} - {ratio.highest:.3g})"
        goal = "" if self.goal is None else f"{'≤' if self.better == 'less' else '≥'} {self.goal:.3g}"
        met = {None: "", True: "met", False: "**missed**"}[self.met]
        return markdown_row((self.what, self.against, f"{ratio.median:.3g}{span}", goal, met))


@dataclass
class Results:
    """What a benchmark measured.

    Args:
        setting: what all of it was measured on, in words: net, images, batch, threads.
        rows: of the table.
        values: by comparison, contender -> one value a round, in the comparison's unit.
        more: whatever else is worth keeping; must go into JSON.
    """

    setting: str
    rows: list[Row] = field(default_factory=list)
    values: dict[str, Comparison] = field(default_factory=dict)
    more: dict[str, Any] = field(default_factory=dict)

    def add(self, name: str, comparison: Comparison, reference: str) -> Comparison:
        """Keep a comparison, and print its table."""
        self.values[name] = comparison
        print(f"\n{name}\n{comparison.table(reference)}", flush=True)
        return comparison

    def content(self, made: dict[str, Any], rounds: int) -> dict[str, Any]:
        """What goes into a file: how it was made, and all of this."""
        return {
            **made,
            "setting": self.setting,
            "rounds": rounds,
            "lines": [asdict(row) for row in self.rows],
            "values": {key: {"unit": of.unit, **of.values} for key, of in self.values.items()},
            **self.more,
        }


def rows_of(content: Mapping[str, Any]) -> list[Row]:
    """The rows of a file of results."""
    return [Row(**row | {"ratio": Ratio(**row["ratio"])}) for row in content["lines"]]


def options_of(what: str | None, rounds: int = 7, **more: Any) -> argparse.ArgumentParser:
    """--root, --rounds, --out, and an option for each further name, of the type of its default.

    Args:
        what: is timed, for --help.
        rounds: by default.
        more: ``images=1000``; a bool is a switch, a list takes any number of values (of words: of these), a tuple one of its
            values, by default the first; `Path` must be given.
    """
    parser = argparse.ArgumentParser(description=what, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path("data"), help="folder with cifar10/train_images.npy")
    parser.add_argument("--out", type=Path, help="folder for the file of results, named as the benchmark")
    for name, default in {"rounds": rounds, **more}.items():
        how: dict[str, Any] = {"default": default, "type": int}
        if isinstance(default, bool):
            how = {"default": default, "action": argparse.BooleanOptionalAction}
        elif isinstance(default, list):
            how = {
                "default": default,
                "nargs": "*",
                **({"type": int} if isinstance(default[0], int) else {"choices": default}),
            }
        elif isinstance(default, tuple):
            how = {"default": default[0], "choices": default}
        elif default is Path:
            how = {"type": Path, "required": True}
        parser.add_argument("--" + name.replace("_", "-"), **how)
    return parser


def run(
    measure: Callable[[argparse.Namespace], Results], parser: argparse.ArgumentParser, argv: list[str] | None = None
) -> Results:
    """Measure with one thread, as the command line says; print the rows, and write them where it says.

    Raises:
        SystemExit: 2, with an error message, for a user's mistake, such as a folder without data.
    """
    options = parser.parse_args(argv)
    name = measure.__globals__["__spec__"].name.removeprefix("benchmarks.")
    options.command = command_of(name, parser, options)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    quiet()
    keep_freed_memory()  # as `fit` does; see `in_process` for who has a process without that
    made = made_by(options.command)  # before: the code can change and the load rises while it measures
    print(" | ".join(f"{key}: {value}" for key, value in made["machine"].items()), flush=True)
    try:
        found = measure(options)
    except UserError as error:
        parser.exit(2, f"error: {error}\n")
    print("", *found.rows, sep="\n", flush=True)
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        content = json.dumps(found.content(made, options.rounds), indent=1)
        (options.out / f"{name}.json").write_text(content + "\n", encoding="utf-8")
    return found


def made_by(command: str) -> dict[str, Any]:
    """Command, commit, machine and versions: what a file of results says of how it was made."""
    return {"command": command, "commit": commit(), "machine": machine(), "versions": versions(LIBRARIES)}


def command_of(name: str, parser: argparse.ArgumentParser, options: argparse.Namespace) -> str:
    """What is typed for a benchmark with these options, those by default spelled out, folders and unmoved switches left out."""
    words = ["python", "-m", f"benchmarks.{name}"]
    for key, value in vars(options).items():
        option, switch = key.replace("_", "-"), isinstance(value, bool)
        if key in NOT_IN_COMMAND or value is None or (switch and value == parser.get_default(key)):
            continue
        words.append(f"--{option}" if value or not switch else f"--no-{option}")
        words += [] if switch else map(str, value if isinstance(value, list) else [value])
    return shlex.join(words)


def quiet() -> None:
    """No line of Lightning's between the rows."""
    warnings.simplefilter("ignore")
    for name in ("pytorch_lightning", "lightning.pytorch"):
        logging.getLogger(name).setLevel(logging.ERROR)


def machine() -> dict[str, str | int | float | None]:
    """What a time depends on besides the code."""
    return {
        "processor": processor(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "cores": os.cpu_count() or 1,
        "torch threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
