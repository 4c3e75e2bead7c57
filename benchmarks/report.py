"""Seconds, memory and bytes of the page on many long runs: 13 plain and 13 residual nets of depth 20, 200 epochs each.

    python -m benchmarks.report --run runs/digits/quickstart

Nobody has trained these for a benchmark: ``--run``, a short real run with the callbacks of base.yaml (`make quickstart`
leaves one), gives each net's keys, arrays and configuration. Its last epoch is repeated, every number moved at random by
a few per cent, so that no two are equal and all have their 17 digits. The page is written by the command, in a process
of its own, as often as ``--rounds`` says. Where Chromium is installed, it opens the page, points at a panel, and moves on.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
import yaml

from benchmarks.harness import Comparison, Ratio, Results, Row, options_of, run
from lightning_app.runs import RunFolder
from lightning_app.runs.folder import CONFIG, LOG
from lightning_app.runs.naming import without_seed
from tests.report.chromium import PROGRAM, Tab, tab

ROOT = Path(__file__).resolve().parent.parent
ARMS = ("plain", "residual")
PAGE = "report.html"
WALL, PROCESSOR = "wall", "processor"
MEMBER = "net"  # what the net of a run of one is called
POINT = """
  const svg = document.querySelector("#learning svg.panel"), frame = () => new Promise(requestAnimationFrame);
  const {left, width} = svg.getBoundingClientRect(), start = performance.now();
  const point = share => svg.dispatchEvent(new PointerEvent("pointermove", {bubbles: true, clientX: left + share * width}));
"""
ANSWERED = f"""addEventListener("load", async () => {{
  {POINT}
  svg.scrollIntoView({{block: "center"}});
  for (; !document.querySelector(".readout"); await frame()) point(.5);
  window.answered = performance.now() / 1e3;
}})"""
SLIDE = "slider.value = frames % (Number(slider.max) + 1); slider.dispatchEvent(new Event('input'));"
MOVED = {  # what is moved -> the section on the screen, and a step of it
    "as the cursor moves": ("learning", "point(.2 + .7 * (frames / 97 % 1));"),
    "as the slider moves, over curves": ("learning", SLIDE),
    "as the slider moves, over histograms": ("cushions", SLIDE),
}
FRAMES = f"""(async () => {{
  {POINT}
  const slider = document.querySelector(".bar input");
  let frames = 0;
  for (; performance.now() - start < 2000; frames++) {{ %s await frame(); }}
  return 2000 / frames;
}})()"""


def parser() -> argparse.ArgumentParser:
    parser = options_of(__doc__, rounds=3, seeds=13, epochs=200)
    parser.add_argument("--run", type=Path, required=True, help="a run with plain and residual nets")
    parser.add_argument("--work", type=Path, help="keep runs and page here (default: a temporary folder)")
    return parser


def measure(options: argparse.Namespace) -> Results:
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.work or Path(temporary)
        if not list(folder.rglob(LOG)):
            stretch(RunFolder(options.run), folder, options.seeds, options.epochs)
        runs = size(folder)
        found = Results(f"{runs['runs']} runs of {options.epochs} epochs, {runs['megabytes of logs']} MB of logs")
        comparison, sizes = timed(folder, options.rounds)
        answers = opened(folder / PAGE, options.rounds)
    found.add("page", comparison, WALL)
    found.more |= runs | sizes
    found.rows = [
        Row("the page, wall seconds", "1 s", Ratio.of(*comparison.values[WALL]), goal=10),
        Row("the page, peak memory", "1 GB", Ratio.of(sizes["peak megabytes"] / 1e3)),
    ]
    if answers:
        seconds, used, *frames = zip(*answers)
        found.rows += [
            Row("in Chromium, seconds until the page answers to the pointer", "1 s", Ratio.of(*seconds), goal=1),
            Row("in Chromium, processor seconds of that", "1 s", Ratio.of(*used)),
        ]
        found.rows += [
            Row(f"in Chromium, milliseconds a frame {how}", "1 ms", Ratio.of(*times), goal=1000 / 30)
            for how, times in zip(MOVED, frames)
        ]
    return found


def opened(page: Path, rounds: int) -> list[tuple[float, ...]]:
    """Each round: seconds from the start of loading until a panel shows values, seconds of the processor up to these values, of
    all threads of the page, and milliseconds a frame of each kind of moving."""
    found = []
    for _ in range(rounds if PROGRAM else 0):
        with tab(page) as opened:
            opened.send("Page.addScriptToEvaluateOnNewDocument", source=ANSWERED)
            before = renderer(opened)
            opened.open(page.as_uri())
            seconds = opened.until("window.answered")
            used = renderer(opened) - before
            opened.until("document.querySelector('.bar input').max")
            times = []
            for section, step in MOVED.values():
                opened.run(f"document.getElementById('{section}').scrollIntoView()")
                times.append(opened.run(FRAMES.replace("%s", step)))
            found.append((seconds, used, *times))
    return found


def renderer(opened: Tab) -> float:
    """Seconds of the processor that the busiest page has used."""
    processes = opened.browser.send("SystemInfo.getProcessInfo")["processInfo"]
    return max(each["cpuTime"] for each in processes if each["type"] == "renderer")


def stretch(short: RunFolder, folder: Path, seeds: int, epochs: int) -> None:
    """A run folder for each seed of each arm of a short run, with as many epochs as asked."""
    log, config, newest = short.log(), short.config(), max((short.path / "measurements").iterdir())
    for number, arm in enumerate(ARMS):
        member = next(name for name in log["member"] if without_seed(name) == arm)
        last = log[(log["epoch"] == log["epoch"].max()) & log["member"].isin([member, ""])]
        arrays = {file.stem: of_member(file, member) for file in newest.glob("*.npz")}
        for seed in range(seeds):
            made = RunFolder(folder / f"{arm}-seed{seed:02d}")
            write_log(made, last, epochs, np.random.default_rng([number, seed]))
            link_arrays(made, arrays, epochs)
            (made.path / CONFIG).write_text(yaml.safe_dump(of_one_net(config, arm, seed)), encoding="utf-8")


def of_member(file: Path, name: str) -> dict[str, np.ndarray]:
    with np.load(file) as arrays:
        return {f"{MEMBER}/{key.removeprefix(f'{name}/')}": arrays[key] for key in arrays if key.startswith(f"{name}/")}


def write_log(run: RunFolder, last: pd.DataFrame, epochs: int, rng: np.random.Generator) -> None:
    """Rows of all epochs, each value off by some 3 %, in the order and spelling of a real log."""
    run.path.mkdir(parents=True)
    members = [MEMBER if member else "" for member in last["member"]]
    values = last["value"].to_numpy() * rng.normal(1, 0.03, (epochs + 1, len(last)))
    with (run.path / LOG).open("w", encoding="utf-8") as file:
        file.write("member,epoch,step,name,value\n")
        for epoch, row in enumerate(values):
            step = epoch * 391
            file.writelines(
                f"{member},{epoch},{step},{name},{value!r}\n"
                for member, name, value in zip(members, last["name"], row.tolist())
            )


def link_arrays(run: RunFolder, arrays: dict[str, dict[str, np.ndarray]], epochs: int) -> None:
    """One file a family, at every epoch by a hard link."""
    for family, content in arrays.items():
        first = run.save_arrays(0, family, content)
        for epoch in range(1, epochs + 1):
            other = run.path / "measurements" / f"epoch={epoch:04d}" / first.name
            other.parent.mkdir(exist_ok=True)
            os.link(first, other)


def of_one_net(config: dict, arm: str, seed: int) -> dict:
    model = {key: value for key, value in config["model"].items() if key != "arms"}
    return config | {"model": model | {"net": config["model"]["arms"][arm]["net"], "seeds": str(seed)}}


def size(folder: Path) -> dict[str, float]:
    logs = [*folder.rglob(LOG)]
    return {
        "runs": len(logs),
        "rows": sum(file.read_bytes().count(b"\n") - 1 for file in logs),
        "megabytes of logs": round(sum(file.stat().st_size for file in logs) / 1e6, 1),
    }


def timed(folder: Path, rounds: int) -> tuple[Comparison, dict[str, float]]:
    """Wall and processor seconds of each round, start of Python included; the largest memory of any, and the page's size."""
    values: dict[str, list[float]] = {WALL: [], PROCESSOR: []}
    page = folder / PAGE
    for _ in range(rounds):
        used, start = children(), time.perf_counter()
        subprocess.run([sys.executable, ROOT / "main.py", "report", folder, "--out", page], check=True)
        values[WALL].append(time.perf_counter() - start)
        values[PROCESSOR].append(children() - used)
    import resource

    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e3
    return Comparison(values), {"peak megabytes": round(peak), "megabytes of page": page.stat().st_size / 1e6}


def children() -> float:
    import resource

    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    run(measure, parser())
