"""Is a member of a bank the net trained alone, on a GPU too? Updates after 1 and 5 steps, by back end.

    python -m benchmarks.gpu.alone --root data [--seeds 13] [--out FOLDER]

Figures are of `benchmarks.solo`: the largest ||u_bank - u_alone|| / ||u_alone|| over all members, in float32 without tf32.
Goal: 1e-4 after one step and after five. Where float64 is much closer, it is the signs of ReLUs that differ and not the nets.
"""

import argparse
import itertools
from functools import partial

from benchmarks.frame import Findings, Line
from benchmarks.gpu.part import DEPTH, Kept, options_of, run, use
from benchmarks.solo import compare, trained
from benchmarks.timing import Ratio


def measure(options: argparse.Namespace) -> Findings:
    use("fp32")
    kept = Kept.of(options, "alone")
    backends = ("loop", "graph") if options.device == "cuda" else ("loop",)
    setting = f"simplified nets of depth {options.depth}, plain and residual, {options.seeds} seeds of each, batch 128"
    findings = Findings(setting, more={"updates": {}})
    for precision, steps in itertools.product(options.precision, options.steps):
        name = f"{precision}, {steps} step{'s' * (steps > 1)}"
        found = kept.once(name, partial(gaps, options, precision, steps, backends))
        findings.more["updates"][name] = found
        for way, gap in found.items():
            exactly = Ratio.of(gap["largest"])
            findings.lines.append(Line(f"{name}: largest gap in a bank, {way}", "the update alone", exactly, goal=1e-4))
    return findings


def gaps(options: argparse.Namespace, precision: str, steps: int, backends: tuple[str, ...]) -> dict[str, dict]:
    """By back end, compiled and not: the members' updates against those of nets trained alone."""
    asked = argparse.Namespace(**vars(options) | {"precision": precision, "net": "simplified"})
    seeds = list(range(options.seeds))
    start = trained(asked, seeds, 0, "loop", False)
    alone = {k: w for seed in seeds for k, w in trained(asked, [seed], steps, "loop", False).items()}
    return {
        backend + (", compiled" if compiled else ""): compare(
            trained(asked, seeds, steps, backend, compiled), alone, start
        )
        for backend, compiled in itertools.product(backends, map(bool, options.compiled))
    }


def parser() -> argparse.ArgumentParser:
    made = options_of(__doc__, rounds=1)
    made.add_argument("--depth", type=int, default=DEPTH)
    made.add_argument("--seeds", type=int, default=13)
    made.add_argument("--steps", type=int, nargs="+", default=[1, 5])
    made.add_argument("--precision", nargs="+", default=["32-true", "64-true"], help="Lightning's words")
    made.add_argument(
        "--compiled", type=int, nargs="+", choices=(0, 1), default=[0, 1], help="0: as they are, 1: compiled"
    )
    return made


if __name__ == "__main__":
    run(measure, parser())
