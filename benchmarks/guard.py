"""The few ratios that every change must keep, with a wide margin, for continuous integration on any machine.

    python -m benchmarks.guard [--margin 3]

Benchmarks at a small size on made images: a row fails where its median misses its goal by more than the margin's factor, so
that only what is broken fails and not what is noisy. Goals that are missed by about as much anyway say nothing about a
change, and are left out. Exit code 1, and the rows that failed.
"""

import argparse
import importlib
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.harness import run

# Benchmark -> its options at a size of seconds.
GUARDED = {
    "data": "--images 640 --rounds 3 --no-compile",
    "training": "--images 256 --rounds 3 --depth 8 --skip-switches",
    "seeds": "--images 256 --rounds 3 --depth 8 --nets 6 --stacked",
    "solo": "--seeds 2 --steps 2 --depth 5 --skip-compiled",
    "hessian": "--images 32 --rounds 3 --depth 8",
    "linear_hessian": "--rounds 3",
}
IMAGES = 2000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--margin", type=float, default=3, help="factor by which a goal may be missed")
    margin = parser.parse_args().margin
    failed = []
    with tempfile.TemporaryDirectory() as root:
        make_images(Path(root) / "cifar10", IMAGES, IMAGES)
        for name, options in GUARDED.items():
            print(f"\n== {name}", flush=True)
            benchmark = importlib.import_module(f"benchmarks.{name}")
            found = run(benchmark.measure, benchmark.parser(), ["--root", root, *options.split()])
            failed += [row for row in found.rows if row.within(margin) is False]
    print("", *(f"beyond {margin:g} times its goal: {row}" for row in failed), sep="\n")
    sys.exit(1 if failed else 0)


def make_images(folder: Path, train: int, test: int) -> None:
    """CIFAR-10's four arrays, of noise."""
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True)
    for split, count in (("train", train), ("test", test)):
        np.save(folder / f"{split}_images.npy", rng.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8))
        np.save(folder / f"{split}_labels.npy", np.arange(count) % 10)


if __name__ == "__main__":
    main()
