"""What every part shares: its options, a memory of what it has finished that survives its being killed, and what fails."""

import argparse
import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks import frame
from benchmarks.frame import Findings
from benchmarks.timing import Comparison, machine
from lightning_app.common.errors import UserError
from lightning_app.common.provenance import commit

__all__ = [
    "BATCH",
    "DEPTH",
    "TF32",
    "Kept",
    "add_variants",
    "autocast",
    "finished_file",
    "is_finished",
    "leaving_out",
    "options_of",
    "present",
    "run",
    "unfinished_file",
    "use",
]

DEPTH, BATCH = 20, 128
TF32 = {"fp32": False, "tf32": True, "bf16": True}  # precision -> may convolutions and products round to tf32?


class Kept:
    """Results of a part under way, by name, in a file next to its findings.

    Args:
        file: where they are; None keeps nothing.
        command: with which they are measured; what another one kept is none of ours.
    """

    @classmethod
    def of(cls, options: argparse.Namespace, part: str) -> "Kept":
        return cls(options.out and unfinished_file(options.out, part), options.command)

    def __init__(self, file: Path | None, command: str) -> None:
        self._file = file
        self._made_by = _made_by(command, commit(), machine())
        self._results: dict[str, Any] = self._read()

    def once(self, name: str, measure: Callable[[], Any]) -> Any:
        """The result of that name, measured now unless it was before; must go into JSON."""
        if name not in self._results:
            self.keep(name, measure())
        return self._results[name]

    def comparison(self, name: str, measure: Callable[[], Comparison]) -> Comparison:
        """`once` for a comparison."""
        return Comparison(**self.once(name, lambda: asdict(measure())))

    def keep(self, name: str, result: Any) -> None:
        """Keep a result, also in the place of an earlier one."""
        self._results[name] = result
        if self._file:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            beside = self._file.with_suffix(".new")
            beside.write_text(json.dumps({**self._made_by, "results": self._results}, indent=1) + "\n")
            beside.replace(self._file)

    def _read(self) -> dict[str, Any]:
        """Nothing of another command, commit or machine: one file of findings is of one."""
        content = json.loads(self._file.read_text()) if self._file and self._file.exists() else {}
        results = content.pop("results", {})
        if content == self._made_by:
            return results
        if results:
            print(f"{self._file} is of {content}: measured again", flush=True)
        return {}


def is_finished(out: Path, part: str, command: str) -> bool:
    """Are its findings there, of this command, commit, GPU and torch? Says so where they are of others."""
    file = finished_file(out, part)
    if not file.exists():
        return False
    try:
        content = json.loads(file.read_text())
    except ValueError:  # cut off while it was written
        return False
    found = _made_by(content["command"], content["commit"], content["machine"])
    here = _made_by(command, commit(), machine())
    if found != here:
        print(f"{file} is of {found}, here is {here}: measured again", flush=True)
    return found == here


def _made_by(command: str, commit: str, machine: dict[str, Any]) -> dict[str, Any]:
    return {"command": command, "commit": commit, "gpu": machine["gpu"], "torch": machine["torch"]}


def finished_file(out: Path, part: str) -> Path:
    return out / f"gpu.{part}.json"


def unfinished_file(out: Path, part: str) -> Path:
    return out / f"gpu.{part}.unfinished.json"


def options_of(what: str | None, rounds: int = 5) -> argparse.ArgumentParser:
    """The frame's options, --device and --quick.

    Args:
        what: is timed, for --help.
        rounds: by default.
    """
    parser = frame.options_of(what, rounds)
    parser.add_argument("--device", type=present, default="cuda", help="cuda; cpu tries the scripts")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: to see that it runs")
    return parser


def add_variants(parser: argparse.ArgumentParser) -> None:
    """--nets, --precision and --compiled, which steps and epochs go through alike."""
    parser.add_argument("--nets", type=int, nargs="+", default=[1, 13, 26])
    parser.add_argument("--precision", nargs="+", choices=TF32, default=["tf32", "bf16", "fp32"])
    parser.add_argument(
        "--compiled", type=int, nargs="+", choices=(0, 1), default=[0, 1], help="0: as they are, 1: compiled"
    )


def present(device: str) -> str:
    """The device's name, if there is one: an argument's type."""
    if device not in ("cuda", "cpu"):
        raise argparse.ArgumentTypeError(f"cuda or cpu, got {device}")
    if device == "cuda" and not torch.cuda.is_available():
        raise argparse.ArgumentTypeError(
            "there is no GPU here that PyTorch sees; --device cpu --quick tries the scripts"
        )
    return device


def run(
    measure: Callable[[argparse.Namespace], Findings], parser: argparse.ArgumentParser, argv: list[str] | None = None
) -> None:
    """`frame.run`; what was kept meanwhile is forgotten once the findings are written."""
    frame.run(measure, parser, argv)
    if out := parser.parse_args(argv).out:
        unfinished_file(out, measure.__globals__["__spec__"].name.rpartition(".")[2]).unlink(missing_ok=True)


@contextlib.contextmanager
def leaving_out(name: str, left_out: dict[str, str]) -> Iterator[None]:
    """What fails in here is left out with its reason: no memory, no kernel or no capture is an answer too.

    Up to torch 2.11 a capture that breaks off leaves its stream the current one: here it is the one before again.
    """
    here = torch.cuda.current_stream() if torch.cuda.is_available() else None
    try:
        with torch.cuda.stream(here):
            yield
    except (RuntimeError, UserError) as error:
        left_out[name] = _reason(error)
        print(f"left out: {name}: {left_out[name]}", flush=True)


def _reason(error: BaseException | None) -> str:
    """First lines of the error and of those that it came after: a broken capture's own one does not say what broke it."""
    lines: list[str] = []
    while error is not None:
        lines.append((str(error).splitlines() or [""])[0] or type(error).__name__)
        error = error.__cause__ or error.__context__
    return ", after: ".join(dict.fromkeys(lines))


def use(precision: str) -> None:
    """Let float32 convolutions and products round as `precision` says, from now on."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = TF32[precision]


def autocast(device: str, precision: str) -> torch.autocast:
    """Without its cache: what a graph captures must cast the weights in every replay."""
    return torch.autocast(device, torch.bfloat16, enabled=precision == "bf16", cache_enabled=False)
