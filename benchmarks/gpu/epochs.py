"""A training epoch on real CIFAR-10: banks through Lightning, against loops by hand and against the usual script.

    python -m benchmarks.gpu.epochs --root data [--images 12800] [--nets 1 13 26] [--precision fp32 tf32 bf16] [--out FOLDER]

Epochs have ``--images`` images, a quarter of CIFAR-10, so that all of it fits into minutes; steps are what they are with
50,000, an epoch's start weighs four times as much. "eager" is a loop over resident batches, "usual script" has torchvision's
PIL pipeline in a DataLoader with 4 workers and two ``.item()`` a step, "by hand" our step (data, graph, metrics, penalty,
SGD) without Lightning.

Goals: 13 nets at most one eager net (stretch: half), and at most 6 times one net in a graph; one net in a graph at most 0.2
of an eager one; 26 nets at least 20 times faster than 26 runs of the usual script (stretch: 40); Lightning at most 1.05
of by hand.
"""

import argparse
import itertools
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F

from benchmarks.frame import Findings, Line
from benchmarks.gpu.part import BATCH, DEPTH, Kept, add_variants, autocast, options_of, run, use
from benchmarks.peers import DECAY, usual_script
from benchmarks.seeds import Resident, bank, batches, by_hand, sgd
from benchmarks.timing import Comparison, Ratio, finish, interleave, ticks
from benchmarks.training import through_lightning
from lightning_app.modules.backends import Graph, Loop, Pass
from lightning_app.modules.metrics import RiskAndError
from lightning_app.modules.penalty import Penalty, add_gradients
from lightning_app.networks import SimplifiedNet

__all__ = ["our_step_by_hand"]

EAGER, USUAL = "1 net, eager", "1 net, usual script"
MANY = 26
Epoch = Callable[[], float]


def measure(options: argparse.Namespace) -> Findings:
    kept = Kept.of(options, "epochs")
    findings = Findings(
        f"an epoch of {options.images:,} images, simplified nets of depth {options.depth}, batch {BATCH}"
    )
    for precision, compiled in itertools.product(options.precision, options.compiled):
        name = precision + (", compiled" if compiled else "")
        compare = partial(_compare, options, precision, bool(compiled))
        found = findings.add(name, kept.comparison(name, compare), EAGER)
        findings.lines += lines(name, found, backend_on(options.device))
    return findings


def _compare(options: argparse.Namespace, precision: str, compiled: bool) -> Comparison:
    return interleave(contenders(options, precision, compiled), options.rounds)


def backend_on(device: str) -> str:
    return "graph" if device == "cuda" else "loop"


def contenders(options: argparse.Namespace, precision: str, compiled: bool) -> dict[str, Epoch]:
    use(precision)
    device, depth, backend = options.device, options.depth, backend_on(options.device)
    bf16 = precision == "bf16"
    made: dict[str, Epoch] = {EAGER: by_hand(depth, _data(options), device, bf16)}
    if not compiled:
        made[USUAL] = usual_script(depth, _data(options), device, bf16)
        made[f"1 net, {backend}, by hand"] = our_step_by_hand(depth, _data(options), device, precision)
    for nets in options.nets:
        module = bank(nets, depth, backend, compiled, channels_last=compiled)
        made[f"{nets} net{'s' * (nets > 1)}, {backend}"] = through_lightning(
            module,
            _data(options, channels_last=compiled),
            "bf16-mixed" if bf16 else "32-true",
            "gpu" if device == "cuda" else "cpu",
        )
    return made


def our_step_by_hand(depth: int, data: Resident, device: str, precision: str) -> Epoch:
    """The step of `ImageClassifier` for one net, in a loop of its own."""
    net = SimplifiedNet(depth, residual=True).to(device)
    backend = Graph() if device == "cuda" else Loop(torch.Tensor.backward)
    optimizer, penalty, metric = sgd(net.parameters()), Penalty(net, DECAY), RiskAndError().to(device)
    epochs = batches(data)

    def epoch() -> float:
        started = ticks()
        metric.reset()
        for images, labels in next(epochs):
            optimizer.zero_grad()
            with autocast(device, precision):
                ((risk, logits),) = backend([Pass(net, images, labels, 0, F.cross_entropy)], 1.0)
            metric.update(risk, logits, labels)
            add_gradients([penalty])
            optimizer.step()
        finish()
        return ticks() - started

    return epoch


def lines(name: str, found: Comparison, backend: str) -> list[Line]:
    """Figures of those contenders that there are; their goals are a GPU's."""
    one, thirteen, many = (f"{nets}, {backend}" for nets in ("1 net", "13 nets", f"{MANY} nets"))
    asked = [(one, EAGER, 0.2), (thirteen, EAGER, 1.0), (thirteen, one, 6), (one, f"{one}, by hand", 1.05)]
    made = [
        Line(f"{name}: {what}", against, found.ratio(what, against), goal if backend == "graph" else None)
        for what, against, goal in asked
        if {what, against} <= set(found.values)
    ]
    if {USUAL, many} <= set(found.values):
        ratio = found.ratio(USUAL, many)
        times = Ratio(MANY * ratio.median, MANY * ratio.lowest, MANY * ratio.highest)
        made.append(
            Line(
                f"{name}: {MANY} runs of the usual script",
                many,
                times,
                goal=20 if backend == "graph" else None,
                better="more",
            )
        )
    return made


def _data(options: argparse.Namespace, **more: bool) -> Resident:
    made = Resident(root=options.root, train_limit=options.images, batch_size=BATCH, **more)
    made.device = torch.device(options.device)
    return made


def parser() -> argparse.ArgumentParser:
    made = options_of(__doc__)
    made.add_argument("--images", type=int, default=12_800, help="training images in an epoch")
    made.add_argument("--depth", type=int, default=DEPTH)
    add_variants(made)
    return made


if __name__ == "__main__":
    run(measure, parser())
