"""Is a member the same net as if trained alone? A bank on real CIFAR-10 by every back end, against each seed by itself.

    python -m benchmarks.solo --root data [--seeds 13] [--steps 20] [--device cuda] [--out FOLDER]

Each seed alone is trained by the loop, uncompiled. For each back end, after one step (on a GPU three, the last of which is the
first that a graph does) and after all: how many members have every bit of the net trained alone, and median and largest
||u_bank - u_alone|| / ||u_alone|| of the updates u = w - w_0. Goals: all bits for the uncompiled loop on a CPU, 1e-4 after the
first of these for any other way, and after all where uncompiled. A back end that adds in another order flips the sign of a ReLU
here and there, which is no rounding of the update: with ``--precision 64-true`` it has none to flip.
"""

import argparse
import itertools
import statistics
from functools import partial

import torch
from torch import Tensor

from benchmarks.harness import Ratio, Results, Row, options_of, run
from benchmarks.loops import BATCH, KINDS, bank, trainer
from lightning_app.common.numbers import plural
from lightning_app.datamodules import CIFAR10

FEW = {"cpu": 1, "cuda": 3}  # steps: in the first two the loop does a graph's work
CHOICES = {"device": tuple(FEW), "net": tuple(KINDS), "precision": ("32-true", "64-true")}
parser = partial(options_of, __doc__, rounds=1, depth=20, seeds=13, steps=20, skip_compiled=False, **CHOICES)


def trained(
    options: argparse.Namespace, seeds: list[int], steps: int, backend: str = "loop", compile: bool = False
) -> dict[str, Tensor]:
    """The weights of each member after so many steps, flattened, by its name."""
    module = bank(seeds, options.depth, options.net, arms=True, backend=backend, compile=compile, float32="fp32")
    if steps:
        limits = {"max_epochs": 1, "limit_train_batches": steps, "limit_val_batches": 0}
        data = CIFAR10(root=options.root, batch_size=BATCH)
        trainer(options.device, precision=options.precision, **limits).fit(module, datamodule=data)
    elif options.precision == "64-true":
        module.double()
    return {
        f"{m.arm} {m.seed}": torch.cat([w.detach().cpu().flatten() for w in m.net.parameters()]) for m in module.members
    }


def compare(bank: dict[str, Tensor], alone: dict[str, Tensor], start: dict[str, Tensor]) -> dict[str, float]:
    gaps = [float((bank[name] - alone[name]).norm() / (alone[name] - start[name]).norm()) for name in alone]
    return {
        "members": len(gaps),
        "bit-identical": sum(torch.equal(bank[name], alone[name]) for name in alone),
        "within 1e-4": sum(gap <= 1e-4 for gap in gaps),
        "median": statistics.median(gaps),
        "largest": max(gaps),
    }


def measure(options: argparse.Namespace) -> Results:
    found = Results(f"{options.net} nets of depth {options.depth}, plain and residual, {options.precision}")
    backends = ("loop", "graph") if options.device == "cuda" else ("loop",)
    ways = list(itertools.product(backends, (False,) if options.skip_compiled else (False, True)))
    few = FEW[options.device]
    for steps in sorted({few, max(few, options.steps)}):
        for (backend, compile), gaps in differences(options, steps, ways).items():
            name = f"{backend}{', compiled' if compile else ''}, {plural(steps, 'step')}"
            found.more[name] = gaps
            print(f"{name}: {gaps}", flush=True)
            what = f"update of a member, {name}: largest relative difference"
            exact = (backend, compile, options.device) == ("loop", False, "cpu")
            goal = 0.0 if exact else None if compile and steps > few else 1e-4  # None: there ReLUs will have switched
            found.rows.append(Row(what, "trained alone", Ratio.of(gaps["largest"]), goal))
    return found


def differences(
    options: argparse.Namespace, steps: int, ways: list[tuple[str, bool]]
) -> dict[tuple[str, bool], dict[str, float]]:
    """By back end and whether compiled: updates of the members of a bank against those of the nets trained alone."""
    seeds = list(range(options.seeds))
    start = trained(options, seeds, 0)
    alone = {name: weights for seed in seeds for name, weights in trained(options, [seed], steps).items()}
    return {way: compare(trained(options, seeds, steps, *way), alone, start) for way in ways}


if __name__ == "__main__":
    run(measure, parser())
