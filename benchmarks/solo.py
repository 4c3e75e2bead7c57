"""Is a member the same net as if trained alone? A bank on real CIFAR-10 by every back end, against each seed by itself.

    python -m benchmarks.solo --root data [--seeds 13] [--steps 20] [--device cuda] [--out FOLDER]

Each seed alone is trained by the loop, uncompiled. For each back end, after one step and after all: how many members have
every bit of the net trained alone, and median and largest ||u_bank - u_alone|| / ||u_alone|| of the updates u = w - w_0.
Goals: all bits for the uncompiled loop on a CPU, 1e-4 after one step for any other way, and after all where uncompiled. A
back end that adds in another order flips the sign of a ReLU here and there, which is no rounding of the update: with
``--precision 64-true`` it has none to flip.
"""

import argparse
import itertools
import statistics

import pytorch_lightning as pl
import torch
from torch import Tensor

from benchmarks.frame import Findings, Line, options_of, run
from benchmarks.seeds import DECAY, sgd
from benchmarks.timing import Ratio
from benchmarks.training import KINDS
from lightning_app.datamodules import CIFAR10
from lightning_app.modules import Arm, ImageClassifier


def trained(
    options: argparse.Namespace, seeds: list[int], steps: int, backend: str, compile: bool
) -> dict[str, Tensor]:
    """The weights of each member after so many steps, flattened, by its name."""
    kinds = {"plain": False, "residual": True}
    arms = {
        name: Arm(net=lambda kind=kind: KINDS[options.net](options.depth, residual=kind))
        for name, kind in kinds.items()
    }
    module = ImageClassifier(sgd, arms=arms, seeds=seeds, weight_decay=DECAY, backend=backend, compile=compile)
    if steps:
        fit(module, options, steps)
    elif options.precision == "64-true":
        module.double()
    return {
        f"{m.arm} {m.seed}": torch.cat([w.detach().cpu().flatten() for w in m.net.parameters()]) for m in module.members
    }


def fit(module: ImageClassifier, options: argparse.Namespace, steps: int) -> None:
    trainer = pl.Trainer(
        max_epochs=1,
        limit_train_batches=steps,
        limit_val_batches=0,
        accelerator="gpu" if options.device == "cuda" else "cpu",
        devices=1,
        precision=options.precision,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, datamodule=CIFAR10(root=options.root, batch_size=128))


def compare(bank: dict[str, Tensor], alone: dict[str, Tensor], start: dict[str, Tensor]) -> dict[str, float]:
    gaps = [float((bank[name] - alone[name]).norm() / (alone[name] - start[name]).norm()) for name in alone]
    return {
        "members": len(gaps),
        "bit-identical": sum(torch.equal(bank[name], alone[name]) for name in alone),
        "within 1e-4": sum(gap <= 1e-4 for gap in gaps),
        "median": statistics.median(gaps),
        "largest": max(gaps),
    }


def parser() -> argparse.ArgumentParser:
    parser = options_of(__doc__, rounds=1)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--net", default="simplified", choices=KINDS)
    parser.add_argument("--depth", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=13)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--skip-compiled", action="store_true")
    parser.add_argument("--precision", default="32-true", help="Lightning's word")
    return parser


def measure(options: argparse.Namespace) -> Findings:
    seeds = list(range(options.seeds))
    start = trained(options, seeds, 0, "loop", False)
    found = Findings(f"{options.net} nets of depth {options.depth}, plain and residual, {options.precision}")
    backends = ("loop", "graph") if options.device == "cuda" else ("loop",)
    for steps in (1, options.steps):
        alone = {k: w for seed in seeds for k, w in trained(options, [seed], steps, "loop", False).items()}
        for backend, compile in itertools.product(backends, (False,) if options.skip_compiled else (False, True)):
            name = f"{backend}{', compiled' if compile else ''}, {steps} step{'s' * (steps > 1)}"
            found.more[name] = apart = compare(trained(options, seeds, steps, backend, compile), alone, start)
            print(f"{name}: {apart}", flush=True)
            what = f"update of a member, {name}: largest relative difference"
            goal = goal_of(backend, compile, steps, options.device)
            found.lines.append(Line(what, "trained alone", Ratio.of(apart["largest"]), goal))
    return found


def goal_of(backend: str, compile: bool, steps: int, device: str) -> float | None:
    """Of the relative difference: 0 is every bit. None where ReLUs will have switched, whatever the rounding."""
    if (backend, compile, device) == ("loop", False, "cpu"):
        return 0.0
    return None if compile and steps > 1 else 1e-4


if __name__ == "__main__":
    run(measure, parser())
