"""Seconds and bytes of the page on many long runs: 13 plain and 13 residual nets of depth 20, 200 epochs each.

    python -m benchmarks.report --run runs/digits/quickstart

Nobody has trained these for a benchmark: ``--run``, a short real run with the callbacks of base.yaml (`make quickstart`
leaves one), gives each net's keys, arrays and configuration. Its last epoch is repeated, every number moved at random by
a few per cent, so that no two are equal and all have their 17 digits. The page is written by the command, in a process
of its own, as often as ``--rounds`` says.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import yaml

from benchmarks.harness import MAIN, Comparison, Ratio, Results, Row, options_of, run
from benchmarks.loops import ARMS
from lightning_app.runs import RunFolder
from lightning_app.runs.folder import ARRAYS, COLUMNS, CONFIG, LOG, epoch_folder
from lightning_app.runs.naming import without_seed

WALL, PROCESSOR = "wall", "processor"
MEMBER = "net"  # what the net of a run of one is called
parser = partial(options_of, __doc__, rounds=3, seeds=13, epochs=200, run=Path)


def measure(options: argparse.Namespace) -> Results:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        stretch(RunFolder(options.run), folder, options.seeds, options.epochs)
        logs = [*folder.rglob(LOG)]
        megabytes = round(sum(file.stat().st_size for file in logs) / 1e6, 1)
        found = Results(f"{len(logs)} runs of {options.epochs} epochs, {megabytes} MB of logs")
        rows = sum(file.read_bytes().count(b"\n") - 1 for file in logs)
        comparison, sizes = timed(folder, options.rounds)
    found.add("page", comparison, WALL)
    found.more |= {"runs": len(logs), "rows": rows, "megabytes of logs": megabytes, **sizes}
    found.rows = [Row("the page, wall seconds", "1 s", Ratio.of(*comparison.values[WALL]), goal=10)]
    return found


def stretch(short: RunFolder, folder: Path, seeds: int, epochs: int) -> None:
    """A run folder for each seed of each arm of a short run, with as many epochs as asked."""
    log, config, newest = short.log(), short.config(), max((short.path / ARRAYS).iterdir())
    for number, arm in enumerate(ARMS):
        member = next(name for name in log["member"] if without_seed(name) == arm)
        last = log[(log["epoch"] == log["epoch"].max()) & log["member"].isin([member, ""])]
        arrays = {file.stem: of_member(file, member) for file in newest.glob("*.npz")}
        model = {key: value for key, value in config["model"].items() if key != "arms"}
        model["net"] = config["model"]["arms"][arm]["net"]
        for seed in range(seeds):
            made = RunFolder(folder / f"{arm}-seed{seed:02d}")
            write_log(made, last, epochs, np.random.default_rng([number, seed]))
            link_arrays(made, arrays, epochs)
            own = config | {"model": model | {"seeds": str(seed)}}
            (made.path / CONFIG).write_text(yaml.safe_dump(own), encoding="utf-8")


def of_member(file: Path, name: str) -> dict[str, np.ndarray]:
    with np.load(file) as arrays:
        return {f"{MEMBER}/{key.removeprefix(f'{name}/')}": arrays[key] for key in arrays if key.startswith(f"{name}/")}


def write_log(run: RunFolder, last: pd.DataFrame, epochs: int, rng: np.random.Generator) -> None:
    """Rows of all epochs, each value off by some 3 %, in the order and spelling of a real log."""
    run.path.mkdir(parents=True)
    members = [MEMBER if member else "" for member in last["member"]]
    values = last["value"].to_numpy() * rng.normal(1, 0.03, (epochs + 1, len(last)))
    with (run.path / LOG).open("w", encoding="utf-8") as file:
        file.write(",".join(COLUMNS) + "\n")
        for epoch, row in enumerate(values):
            named = zip(members, last["name"], row.tolist())
            file.writelines(f"{member},{epoch},{epoch * 391},{name},{value!r}\n" for member, name, value in named)


def link_arrays(run: RunFolder, arrays: dict[str, dict[str, np.ndarray]], epochs: int) -> None:
    """One file a family, at every epoch by a hard link."""
    for family, content in arrays.items():
        first = run.save_arrays(0, family, content)
        for epoch in range(1, epochs + 1):
            other = run.path / ARRAYS / epoch_folder(epoch) / first.name
            other.parent.mkdir(exist_ok=True)
            os.link(first, other)


def timed(folder: Path, rounds: int) -> tuple[Comparison, dict[str, float]]:
    """Wall and processor seconds of each round, start of Python included; and the page's size."""
    import resource

    def processor() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    values: dict[str, list[float]] = {WALL: [], PROCESSOR: []}
    page = folder / "report.html"
    for _ in range(rounds):
        used, start = processor(), time.perf_counter()
        subprocess.run([sys.executable, MAIN, "report", folder, "--out", page], check=True)
        values[WALL].append(time.perf_counter() - start)
        values[PROCESSOR].append(processor() - used)
    return Comparison(values), {"megabytes of page": page.stat().st_size / 1e6}


if __name__ == "__main__":
    run(measure, parser())
