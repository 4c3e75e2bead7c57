"""What all-layer cushions cost on top of an evaluation: the same images, the same run, interleaved rounds.

    python -m benchmarks.measures --root data --rounds 9 --images 2000

"evaluation" is loss and accuracy alone. Signals are of a training step on one batch: watched, it may take two steps
more, which is 2 % where every hundredth is. A step within `skipscope.watch` that nothing is due after has its clocks to look
at, of all measures that are shipped. Ratios are taken round by round, so that a slow spell of a shared machine
hits both sides; the compiled evaluation is the unit.
"""

import argparse
import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import skipscope
from benchmarks.harness import DEVICE, Batches, Results, Row, interleave, load_cifar10, options_of, run
from callbacks.notebook import shipped
from callbacks.signal import Signal
from lightning_app.measures import cushions, probe_forward
from lightning_app.measures.signal import SignalWatch
from lightning_app.networks import SimplifiedNet

REFERENCE = "evaluation, compiled"
CUSHIONS = "cushions too, compiled"
STEP, WATCHED, IDLE = "a training step", "a step with signals", "a step within watch, nothing due"


parser = partial(options_of, __doc__, rounds=9, images=2000, batch=250, depth=20)


def measure(options: argparse.Namespace) -> Results:
    batches = load_cifar10(options.root, options.images, options.batch)
    found = Results(f"simplified nets of depth {options.depth}, {options.images:,} images, batch {options.batch}")
    for residual in (False, True):
        net = SimplifiedNet(options.depth, residual).to(DEVICE, memory_format=torch.channels_last)
        name = f"{'residual' if residual else 'plain'}-{options.depth}"
        with torch.no_grad():
            comparison = found.add(name, interleave(contenders(net, batches), options.rounds, warm_up=2), REFERENCE)
        ratio = comparison.ratio(CUSHIONS, REFERENCE)
        found.rows.append(Row(f"{name}: risk, error and all cushions, compiled", REFERENCE, ratio, goal=1.1))
        with TemporaryDirectory() as folder:
            contending = of_steps(net, *batches[0], Path(folder))
            steps = found.add(f"{name}, a step", interleave(contending, options.rounds, warm_up=2), STEP)
        found.rows.append(Row(f"{name}: a step that Signal logs", STEP, steps.ratio(WATCHED, STEP), goal=3.0))
        found.rows.append(Row(f"{name}: a step within watch, nothing due", STEP, steps.ratio(IDLE, STEP), goal=1.02))
    return found


def contenders(net: nn.Module, batches: Batches) -> dict[str, Callable[[], None]]:
    layers = net.layers()

    def with_cushions() -> None:
        cushions(layers, probe_forward(net, layers, batches, compile=True).layers)

    compiled = torch.compile(evaluate, dynamic=False)
    return {
        REFERENCE: lambda: evaluation(compiled, net, batches),
        CUSHIONS: with_cushions,
    }


def of_steps(net: nn.Module, images: Tensor, labels: Tensor, folder: Path) -> dict[str, Callable[[], None]]:
    idle = copy.deepcopy(net)  # whose optimizer has hooks
    optimizers = {each: torch.optim.SGD(each.parameters(), lr=0.01, momentum=0.9) for each in (net, idle)}
    measures = [*shipped(), Signal()]
    for one in measures:
        one.at_start = False
    skipscope.watch(
        idle, [(images, labels)], optimizers[idle], every=10**9, folder=folder, measures=measures
    ).__enter__()

    def step(trained: nn.Module, watched: bool = False) -> None:
        watch = SignalWatch(trained) if watched else None
        optimizers[trained].zero_grad()
        F.cross_entropy(trained(images), labels).backward()
        optimizers[trained].step()
        if watch:
            watch.stop()

    return {STEP: partial(step, net), WATCHED: partial(step, net, True), IDLE: partial(step, idle)}


def evaluation(step: Callable[..., tuple[Tensor, Tensor]], net: nn.Module, batches: Batches) -> None:
    losses, wrong = zip(*(step(net, images, labels) for images, labels in batches))
    float(torch.stack(losses).sum()), float(torch.stack(wrong).sum())


def evaluate(net: nn.Module, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    logits = net(images)
    return F.cross_entropy(logits, labels, reduction="sum"), (logits.argmax(1) != labels).sum()


if __name__ == "__main__":
    run(measure, parser())
