"""All parts in a process each, by importance, as far as the time goes. See the package."""

import argparse
import contextlib
import importlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import benchmarks.gpu
from benchmarks.frame import command_of
from benchmarks.gpu.part import finished_file, is_finished, present, unfinished_file
from benchmarks.gpu.runs import AGAIN, lacking

__all__ = ["PARTS", "Part", "main"]

GRACE = 10.0  # seconds between asking a part to end and ending it
LITTLE = ("--rounds", "1", "--precision", "fp32", "--nets", "1", "2")


@dataclass(frozen=True)
class Part:
    """One module of the package.

    Args:
        minutes: that its start and its longest comparison take, estimated for an H100: with less it would finish nothing.
        little: options that make it quick, beside --quick.
        sliced: wants to know its time and leave something for the next call; the others are cut off.
        lacking: which packages it wants and does not find.
    """

    name: str
    minutes: float
    little: tuple[str, ...] = ("--rounds", "1")
    sliced: bool = False
    lacking: Callable[[], list[str]] = list


PARTS = (
    Part("roofline", 0.7),
    Part("steps", 1.5, (*LITTLE, "--compiled", "0")),
    Part("epochs", 2.5, (*LITTLE, "--compiled", "0", "--images", "256", "--depth", "5")),
    Part("kernels", 0.7, LITTLE),
    Part("alone", 2.0, ("--compiled", "0", "--seeds", "1", "--depth", "5", "--steps", "1", "--precision", "32-true")),
    Part("measuring", 2.0, ("--rounds", "1", "--images", "256", "--measured", "256", "--probed", "16", "--depth", "8")),
    Part("runs", 3.5, sliced=True, lacking=lacking),
)
NAMES = [part.name for part in PARTS]
NEEDS = "left (needs "  # how the state begins of a part that the same command would leave again


def main(argv: list[str] | None = None) -> int:
    """0: all is done that can be here; 75: the same command goes on; 1: a part failed; 2: a mistake in the command.

    A part that wants packages which are not here is left, and counts for none of these: it says which to bring.
    """
    options = _parse(argv)
    until = time.monotonic() + 60 * options.minutes - GRACE
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    options.out.mkdir(parents=True, exist_ok=True)
    states = {}
    for part in (part for part in PARTS if part.name in options.only):
        states[part.name] = _state_after(part, options, until)
        (options.out / "summary.json").write_text(json.dumps(states, indent=1) + "\n")
    print("\n" + "; ".join(f"{name}: {state}" for name, state in states.items()), flush=True)
    if any(state.startswith("failed") for state in states.values()):
        return 1
    return 0 if all(state == "done" or state.startswith(NEEDS) for state in states.values()) else AGAIN


def _state_after(part: Part, options: argparse.Namespace, until: float) -> str:
    """Run it, if there is something to do and time for it: "done", "left (...)" or "failed (...)"."""
    if options.again:
        for file in (finished_file(options.out, part.name), unfinished_file(options.out, part.name)):
            file.unlink(missing_ok=True)
    if is_finished(options.out, part.name, _command(part, options)):
        return "done"
    if names := ", ".join(part.lacking()):
        print(
            f"\n{part.name} needs {names}: install these, or carry them along, with all that they require.", flush=True
        )
        return f"{NEEDS}{names})"
    left = until - time.monotonic()
    if left < 60 * part.minutes:
        return f"left (wants {part.minutes:g} minutes, there were {max(left, 0) / 60:.1f})"
    words = _words(part, options, left)
    print(f"\n== {shlex.join(words[1:])}", flush=True)
    code = _ended(words, left)
    if code == 0:
        return "done"
    return "left (under way)" if code in (None, AGAIN) else f"failed (exit code {code})"


def _command(part: Part, options: argparse.Namespace) -> str:
    """As its file of findings has it."""
    parser = importlib.import_module(f"benchmarks.gpu.{part.name}").parser()
    return command_of(f"gpu.{part.name}", parser, parser.parse_args(_words(part, options, 0)[3:]))


def _words(part: Part, options: argparse.Namespace, left: float) -> list[str]:
    words = [
        sys.executable,
        "-m",
        f"benchmarks.gpu.{part.name}",
        "--root",
        str(options.root),
        "--out",
        str(options.out),
    ]
    words += ["--device", options.device, *(("--quick", *part.little) if options.quick else ())]
    return words + (["--work", str(options.work), "--minutes", f"{left / 60:.2f}"] if part.sliced else [])


def _ended(words: list[str], seconds: float) -> int | None:
    """Exit code; None if it was cut off, with all the processes that it had started."""
    process = subprocess.Popen(words, start_new_session=True)
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        _end(process)


def _end(process: subprocess.Popen) -> None:
    """Ask its group first, for a run saves itself; who of it is left when the first has ended is not asked."""
    if process.poll() is not None:
        return
    for which, patience in ((signal.SIGTERM, GRACE / 2), (signal.SIGKILL, None)):
        with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(process.pid, which)
            process.wait(patience)


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu",
        description=benchmarks.gpu.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--root", type=Path, default=Path("data"), help="folder with cifar10/train_images.npy")
    parser.add_argument("--out", type=Path, required=True, help="folder of the findings")
    parser.add_argument("--work", type=Path, default=Path("build/gpu"), help="folder of runs")
    parser.add_argument("--minutes", type=float, default=9.5, help="that all of it takes at most")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES, metavar="PART", help=", ".join(NAMES))
    parser.add_argument("--again", action="store_true", help="also what is done: forget its findings")
    parser.add_argument("--device", type=present, default="cuda", help="cuda; cpu tries the scripts")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: to see that it runs")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
