"""Is anything ever lost? A short run, killed and resumed again and again, against one that nobody disturbs.

    python -m benchmarks.soak [--kills 100] [--ranks 2 --strategy seeds] [--seed 0] [--json FILE]

The run (soak.yaml) trains six small nets for five epochs of sixteen steps, measures them after each, and saves every five
steps. Each life of it is a process of its own, started with ``--ckpt_path last`` and ended after a random time by SIGKILL
(of all its processes), SIGTERM or SIGUSR1; a run that comes to its end before its time is compared, and the next one begins.
Compared is everything but times: every tensor and counter of the last checkpoint (weights, optimizer, schedules, what
callbacks keep), every number of the log, every array, bit for bit. Exit code 1 if anything differs.
"""

import argparse
import csv
import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness import MAIN, ROOT, machine
from lightning_app.common.provenance import commit
from lightning_app.runs import RunFolder

SIGNALS = {"SIGKILL": 6, "SIGTERM": 2, "SIGUSR1": 2}  # how often, of ten
TIMES = ("time/", "cost/")  # numbers that no two runs share
GRACE = 60  # seconds in which a run has to answer a signal


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--strategy", default="seeds", choices=("seeds", "ddp"), help="of several ranks")
    parser.add_argument("--seed", type=int, default=0, help="of the moments and signals")
    parser.add_argument("--json", type=Path, help="write the findings here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = soak(Path(folder), options)
    at = ", ".join(f"{number} {what}" for what, number in found["at"].most_common())
    differ = found["different"]
    same = f"{len(differ)} differ: {differ[:5]}" if differ else "all equal, bit for bit"
    kills = f"{found['kills']} kills ({at}) of {found['runs']} runs"
    print(f"{kills}; {found['compared']} things compared in each with the undisturbed run: {same}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    sys.exit(bool(found["different"]))


def soak(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Kill until all kills are spent; the last run then comes to its end undisturbed."""
    asked = [f"--{name} {value}" for name, value in vars(options).items() if name != "json"]
    draw = random.Random(options.seed)
    several = ("--trainer.devices", str(options.ranks), "--trainer.strategy", options.strategy)
    ranks = several if options.ranks > 1 else ()
    started = time.monotonic()
    finish(folder, "undisturbed", ranks)
    whole = time.monotonic() - started
    expected = contents(folder / "runs" / "soak" / "undisturbed")
    killed: list[tuple[str, str]] = []  # by which signal, and what it was at
    different: list[str] = []
    runs = 0
    while len(killed) < options.kills:
        runs += 1
        name = f"killed{runs}"
        while len(killed) < options.kills:
            seconds, which = draw.uniform(0, whole), signal.Signals[draw.choices([*SIGNALS], SIGNALS.values())[0]]
            at = live(folder, name, ranks, seconds, which)
            if at is None:
                break
            killed.append((which.name, at))
            print(f"kill {len(killed)}: {which.name} after {seconds:.1f} s, {at}", flush=True)
        else:
            finish(folder, name, ranks)
        found = apart(expected, contents(folder / "runs" / "soak" / name))
        print(f"run {runs}: {len(found)} of {len(expected)} things differ", flush=True)
        different += [f"{name}: {key}" for key in found]
        shutil.rmtree(folder / "runs" / "soak" / name)
    return {
        "command": " ".join(["python -m benchmarks.soak", *asked]),
        "commit": commit(),
        "machine": machine(),
        "kills": len(killed),
        "runs": runs,
        "by signal": Counter(name for name, _ in killed),
        "at": Counter(at for _, at in killed),
        "compared": len(expected),
        "different": different,
        "seconds of an undisturbed run": round(whole, 1),
    }


def start(folder: Path, name: str, ranks: tuple[str, ...]) -> subprocess.Popen:
    words = [sys.executable, "-u", MAIN, "fit", "--config", str(ROOT / "benchmarks" / "soak.yaml")]
    words += ["--run.root", "runs", "--run.name", name, "--ckpt_path", "last", *ranks]
    outside = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}  # no job to requeue
    environment = outside | {"OMP_NUM_THREADS": "1"}
    with (folder / f"{name}.out").open("w", encoding="utf-8") as out:
        return subprocess.Popen(words, cwd=folder, env=environment, stdout=out, stderr=out, start_new_session=True)


def finish(folder: Path, name: str, ranks: tuple[str, ...]) -> None:
    if code := start(folder, name, ranks).wait():
        raise SystemExit(f"the run {name} ended with exit code {code}:\n{text(folder / f'{name}.out')}")


def text(file: Path) -> str:
    return file.read_text(encoding="utf-8") if file.exists() else ""


def live(folder: Path, name: str, ranks: tuple[str, ...], seconds: float, which: signal.Signals) -> str | None:
    """One life of a run: what it was at when it ended, or None if it came to its end before its time."""
    run, out = folder / "runs" / "soak" / name, folder / f"{name}.out"
    logged = len(text(run / "log.csv"))
    process = start(folder, name, ranks)
    try:
        if process.wait(seconds):
            raise SystemExit(f"the run {name} ended by itself:\n{text(out)}")
        return None
    except subprocess.TimeoutExpired:
        at = doing(text(out), text(run / "log.csv")[logged:])
    if which is signal.SIGKILL:
        os.killpg(process.pid, which)
    else:
        process.send_signal(which)
    code = process.wait(GRACE)
    if code == 0:
        return None  # it was about to end
    if code not in (-which, 128 + which):  # the first, too, of a Python that has not come to our handlers yet
        raise SystemExit(f"{which.name} ended {name} with {code}:\n{text(out)}")
    return "saving" if any((run / "checkpoints").glob(".*.tmp")) else at


def doing(said: str, logged: str) -> str:
    """What a run is at, from what it has said and logged in this life: an epoch's line comes when its measures are done.

    >>> doing("resuming after epoch 1, step 20", "net,2,32,lr,0.1")
    'measuring'
    """
    numbers = [int(word) for word in re.findall(r"^(?:resuming after )?epoch (\d+)", said, re.MULTILINE)]
    rows = [row for row in csv.reader(logged.splitlines()) if len(row) == 5 and row[1].isdigit()]
    if not numbers and not rows:
        return "starting"
    return "measuring" if rows and int(rows[-1][1]) > max(numbers, default=0) else "training"


def contents(run: Path) -> dict[str, str]:
    """Everything a run has left behind but times: what it is -> its value, or the hash of its bytes."""
    checkpoint = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)
    found = {f"checkpoint {key}": value for key, value in leaves(checkpoint)}
    table = RunFolder(run).log()
    kept = table[~table["name"].str.startswith(TIMES)]
    found |= {f"log {row.member} {row.epoch} {row.name}": f"{row.step} {row.value!r}" for row in kept.itertuples(False)}
    for file in sorted((run / "measurements").rglob("*.npz")):
        found[str(file.relative_to(run))] = hashlib.sha256(file.read_bytes()).hexdigest()
    return found


def apart(expected: dict[str, str], left: dict[str, str]) -> list[str]:
    """What differs, or is there only once."""
    return [key for key in {**expected, **left} if expected.get(key) != left.get(key)]


def leaves(node: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Tensors as hashes, everything else as text."""
    if isinstance(node, dict | list | tuple):
        for key, child in node.items() if isinstance(node, dict) else enumerate(node):
            yield from leaves(child, f"{path}/{key}")
    elif isinstance(node, torch.Tensor):
        bits = node.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        yield path, f"{tuple(node.shape)} {hashlib.sha256(bits).hexdigest()}"
    else:
        yield path, repr(node)


if __name__ == "__main__":
    main()
