"""Two reproductions at paper scale, as far as time allows: Table 1 at depth 20 (6 nets, 200 epochs), then Fig. 2 (26, 1,200).

    python -m benchmarks.gpu.runs --root data [--work build/gpu] [--minutes 9] [--out FOLDER]

Each is ``python main.py reproduce``, stopped by SIGTERM when the time is up: it saves itself and goes on with the next
batch when the command is given again, as long as ``--work`` is there. Until both have finished, exit code 75 says that there
is more to do. The findings have the seconds spent on each, and its table of paper against ours.
"""

import argparse
import importlib
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.frame import Findings
from benchmarks.gpu.part import Kept, options_of, run

__all__ = ["AGAIN", "Reproduction", "lacking", "slice_of"]

MAIN = Path(__file__).resolve().parents[2] / "main.py"
AGAIN = 75  # exit code: there is more to do
SAVING, SHOWING = 40.0, 60.0  # seconds that a stopped run may take to save itself, and a table to be written
NEEDED = {  # module -> the distribution that has it: what training imports beyond what the other parts do
    "jsonargparse": "jsonargparse",
    "docstring_parser": "docstring-parser",
    "typeshed_client": "typeshed-client",
    "wandb": "wandb",
    "scipy": "scipy",
    "pandas": "pandas",
    "matplotlib": "matplotlib",
    "jinja2": "jinja2",
    "yaml": "pyyaml",
    "PIL": "pillow",
    "tqdm": "tqdm",
    "rich": "rich",
    "safetensors": "safetensors",
}
STOPPED = (143, -15)  # exit codes: by our SIGTERM, and by one before it was listened to


@dataclass(frozen=True)
class Reproduction:
    artefact: str
    run: str  # of those that the artefact needs

    def words(self, options: argparse.Namespace, *more: str) -> list[str]:
        """The command, but for what it hands on to ``fit``."""
        scale = "smoke" if options.quick else "paper"
        words = [sys.executable, str(MAIN), "reproduce", self.artefact, "--scale", scale, "--only", self.run]
        words += ["--runs", str(options.work / "runs"), "--out", str(options.work / "results")]
        return [*words, "--data-root", str(options.root), *more]


WANTED = (Reproduction("yu-tomasi/table-1", "depth20"), Reproduction("yu-tomasi/fig-2", "fig2"))


def measure(options: argparse.Namespace) -> Findings:
    until = time.monotonic() + 60 * options.minutes
    kept = Kept.of(options, "runs")
    states = {each.artefact: _go_on(each, options, kept, until) for each in WANTED}
    print(*(f"{name}: {state}" for name, state in states.items()), sep="\n", flush=True)
    if not all(state["finished"] for state in states.values()):
        raise SystemExit(AGAIN)
    return Findings("reproductions, one after the other, in slices", more={"reproductions": states})


def lacking() -> list[str]:
    """Distributions without which nothing can be trained here; of what these require, what their import asks for."""
    missing = []
    for module in NEEDED:
        try:
            importlib.import_module(module)
        except ImportError as error:
            name = error.name or module
            missing.append(NEEDED.get(name, name))
    return list(dict.fromkeys(missing))


def slice_of(words: Sequence[str], seconds: float) -> int:
    """Exit code of a command that is asked to end after so long."""
    process = subprocess.Popen(words, env={**os.environ, "WANDB_MODE": "offline"})
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.terminate()
        return process.wait(SAVING)
    finally:
        process.kill()


def _go_on(each: Reproduction, options: argparse.Namespace, kept: Kept, until: float) -> dict[str, Any]:
    """Its state after a slice of the time that is left, if there is any."""
    state = kept.once(each.artefact, lambda: {"finished": False, "seconds": 0.0, "table": ""})
    seconds = until - SAVING - SHOWING - (started := time.monotonic())
    if state["finished"] or seconds <= 0:
        return state
    accelerator = "gpu" if options.device == "cuda" else "cpu"
    code = slice_of(each.words(options, "--", "--trainer.accelerator", accelerator), seconds)
    if code not in (0, *STOPPED):
        raise RuntimeError(f"{each.artefact} failed with exit code {code}; what it said is above.")
    spent = state["seconds"] + time.monotonic() - started
    kept.keep(each.artefact, {"finished": code == 0, "seconds": spent, "table": _table(each, options)})
    return kept.once(each.artefact, dict)


def _table(each: Reproduction, options: argparse.Namespace) -> str:
    """Paper against ours as Markdown, of what there is."""
    subprocess.run(each.words(options, "--no-train"), stdout=subprocess.DEVNULL, check=True)
    folder = options.work / "results" / each.artefact / ("smoke" if options.quick else "")
    return (folder / "table.md").read_text()


def parser() -> argparse.ArgumentParser:
    made = options_of(__doc__)
    made.add_argument("--work", type=Path, default=Path("build/gpu"), help="folder of the runs and their results")
    made.add_argument("--minutes", type=float, default=9.0, help="for both, saving included")
    return made


if __name__ == "__main__":
    run(measure, parser())
