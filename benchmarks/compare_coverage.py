"""How often `compare` is wrong where it must not be, and how good its plans are: by simulation, looked at after every pair.

    python -m benchmarks.compare_coverage --out docs/results/2026-11-29-compare-coverage.csv

A and B have errors of one distribution, each pair a seed's part in common. Without a difference, any "better" or "worse" among 2
to 26 pairs is wrong; with a difference of exactly the margin, any "equivalent" is. The last rows are outside of what is assumed:
errors of one mean and unlike shapes.
"""

import argparse
import csv
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from benchmarks.harness import made_by
from lightning_app.statistics.sequential import Order, orders, pairs_needed

DRAWS, PAIRS, LONG = 10_000, 26, 400
Errors = Callable[[np.random.Generator, tuple[int, int]], np.ndarray]
DISTRIBUTIONS: dict[str, Errors] = {  # of variance about 1, but for a discrete grid
    "normal": lambda rng, size: rng.normal(size=size),
    "skewed (exponential)": lambda rng, size: rng.exponential(size=size),
    "heavy-tailed (t, 3 degrees)": lambda rng, size: rng.standard_t(3, size=size) / np.sqrt(3),
    "discrete (4 wrong of 360)": lambda rng, size: rng.binomial(360, 4 / 360, size=size) / 2.0,
    "one in ten fails": lambda rng, size: rng.normal(0, 0.1, size) + 3 * (rng.random(size) < 0.1),
}
UNLIKE: dict[str, Errors] = {  # of mean 1 and other shapes than the exponential one that they meet
    "exponential against normal": lambda rng, size: rng.normal(1, 0.1, size),
    "exponential against constant": lambda rng, size: np.ones(size),
}
HEAD = (
    *("errors", "margin in sd", "share of wrong verdicts, 2 to 26 pairs"),
    *("planned pairs", "pairs needed", "of a difference"),
)


def _ever(d: np.ndarray, wrong: set[str], margin: float | None) -> float:
    return float(np.isin(orders(d, margin, 0.05)[:, 1:].astype(str), [*wrong]).any(axis=1).mean())


def _needed(d: np.ndarray) -> int:
    settled = np.maximum.accumulate(orders(d, None, 0.05) != Order.UNRESOLVED.value, axis=1).mean(axis=0)
    return int(np.argmax(settled >= 0.8)) + 1


def rows(draws: int = DRAWS) -> Iterator[tuple[object, ...]]:
    """The table, row by row: as `HEAD`."""
    rng = np.random.default_rng(0)
    sides = {Order.ABOVE.value, Order.BELOW.value}
    for name, errors in DISTRIBUTIONS.items():
        d = errors(rng, (draws, PAIRS)) - errors(rng, (draws, PAIRS))
        yield name, "", _ever(d, sides, None), "", "", ""
        sd = float(d.std())
        for margin in (0.5, 2.0):
            yield name, margin, _ever(d + margin * sd, {Order.EQUIVALENT.value}, margin * sd), "", "", ""
        for effect in (0.5, 1.0, 2.0):
            seen = errors(rng, (draws // 5, LONG)) - errors(rng, (draws // 5, LONG)) + effect * sd
            yield name, "", "", pairs_needed(effect * sd, sd, chance=0.8), _needed(seen), effect
    for name, errors in UNLIKE.items():
        d = rng.exponential(size=(draws, PAIRS)) - errors(rng, (draws, PAIRS))
        yield name, "", _ever(d, sides, None), "", "", ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="the CSV to write")
    out = parser.parse_args().out
    made = made_by(f"python -m benchmarks.compare_coverage --out {out.name}")
    with out.open("w", newline="", encoding="utf-8") as file:
        file.writelines(f"# {key}: {value}\n" for key, value in made.items())
        csv.writer(file).writerows([HEAD, *rows()])


if __name__ == "__main__":
    main()
