"""Does a run's memory stay flat? Resident memory of a training process after each epoch, all measures on.

    python -m benchmarks.memory [--epochs 50] [--json FILE]

A plain and a residual net of depth 20 on the embedded digits (configs/quickstart.yaml), every measure of base.yaml after every
epoch. Reported: resident memory after each epoch, and its growth per epoch over the second half, a least-squares slope: what
the first epochs allocate once is not counted.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.timing import machine
from lightning_app.common.provenance import made_with
from lightning_app.runs import RunFolder

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--json", type=Path, help="write the findings here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        resident = epochs(Path(root), options.epochs)
    late = resident[len(resident) // 2 :]
    slope = float(np.polyfit(np.arange(len(late)), late, 1)[0])
    print(f"{resident[0]:.0f} MB after epoch 1, {resident[-1]:.0f} MB after epoch {options.epochs}; ", end="")
    print(f"over the second half {slope:+.2f} MB an epoch")
    if options.json:
        found = {"resident_mb": resident, "slope_mb_per_epoch": slope, "machine": machine(), "made": made_with()}
        found["command"] = f"python -m benchmarks.memory --epochs {options.epochs}"
        options.json.write_text(json.dumps(found, indent=1) + "\n")


def epochs(root: Path, count: int) -> list[float]:
    """Resident memory in MB of a training process as each epoch ends."""
    words = ["fit", "--config", "configs/quickstart.yaml", "--run.root", str(root), "--trainer.max_epochs", str(count)]
    process = subprocess.Popen(
        [sys.executable, "main.py", *words, "--trainer.logger", "false"],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    run, found = RunFolder(root / "digits" / "quickstart"), []
    while process.poll() is None:
        if (run.last_epoch or 0) > len(found):
            found.append(_resident(process.pid))
        time.sleep(0.05)
    if process.returncode or len(found) < count:
        sys.exit(f"the run ended with {process.returncode} after {len(found)} epochs, expected 0 after {count}")
    return found


def _resident(process: int) -> float:
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


if __name__ == "__main__":
    main()
