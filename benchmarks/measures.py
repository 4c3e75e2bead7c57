"""What all-layer cushions cost on top of an evaluation: the same images, the same run, interleaved rounds.

    python -m benchmarks.measures --root data --rounds 9 --images 2000

"evaluation" is loss and accuracy alone. Signals are of a training step on one batch: watched, it may take two steps
more, which is 2 % where every hundredth is. A step within `skipscope.watch` that nothing is due after has its clocks to look
at, of all measures that are shipped. Ratios are taken round by round, so that a slow spell of a shared machine
hits both sides; the compiled evaluation is the unit.
"""

import argparse
import copy
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import skipscope
from benchmarks.harness import DEVICE, Batches, Results, Run, interleave, options_of, run
from benchmarks.loops import ARMS, load_cifar10, sgd, training_step
from callbacks.notebook import shipped
from lightning_app.measures import cushions, probe_forward
from lightning_app.measures.signal import SignalWatch
from lightning_app.networks import SimplifiedNet

REFERENCE, CUSHIONS = "evaluation, compiled", "cushions too, compiled"
STEP, WATCHED, IDLE = "a training step", "a step with signals", "a step within watch, nothing due"
parser = partial(options_of, __doc__, rounds=9, images=2000, batch=250, depth=20)


def measure(options: argparse.Namespace) -> Results:
    batches = load_cifar10(options.root, options.images, options.batch)
    found = Results(f"simplified nets of depth {options.depth}, {options.images:,} images, batch {options.batch}")
    for arm, residual in ARMS.items():
        net = SimplifiedNet(options.depth, residual).to(DEVICE, memory_format=torch.channels_last)
        name = f"{arm}-{options.depth}"
        with torch.no_grad():
            whole = found.add(name, interleave(contenders(net, batches), options.rounds, warm_up=2), REFERENCE)
        with TemporaryDirectory() as folder, ExitStack() as watches:
            contending = of_steps(net, *batches[0], Path(folder), watches)
            steps = found.add(f"{name}, a step", interleave(contending, options.rounds, warm_up=2), STEP)
        found.rows += [
            whole.row(CUSHIONS, REFERENCE, 1.1, f"{name}: risk, error and all cushions, compiled"),
            steps.row(WATCHED, STEP, 3.0, f"{name}: a step that Signal logs"),
            steps.row(IDLE, STEP, 1.02, f"{name}: {IDLE}"),
        ]
    return found


def contenders(net: nn.Module, batches: Batches) -> dict[str, Run]:
    layers, compiled = net.layers(), torch.compile(evaluate, dynamic=False)

    def evaluation() -> None:
        losses, wrong = zip(*(compiled(net, images, labels) for images, labels in batches))
        float(torch.stack(losses).sum()), float(torch.stack(wrong).sum())

    return {
        REFERENCE: evaluation,
        CUSHIONS: lambda: cushions(layers, probe_forward(net, layers, batches, compile=True).layers),
    }


def evaluate(net: nn.Module, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    logits = net(images)
    return F.cross_entropy(logits, labels, reduction="sum"), (logits.argmax(1) != labels).sum()


def of_steps(net: nn.Module, images: Tensor, labels: Tensor, folder: Path, watches: ExitStack) -> dict[str, Run]:
    idle = copy.deepcopy(net)  # whose optimizer has hooks
    optimizers = {each: sgd(each.parameters()) for each in (net, idle)}
    measures = shipped()
    for one in measures:
        one.at_start = False
    watching = {"every": 10**9, "folder": folder, "measures": measures}
    watch = skipscope.watch(idle, [(images, labels)], optimizers[idle], **watching)
    watch.__enter__()
    watches.callback(watch.__exit__, KeyboardInterrupt, KeyboardInterrupt(), None)  # which does not measure at the end

    def step(trained: nn.Module, watched: bool = False) -> None:
        signals = SignalWatch(trained) if watched else None
        training_step(trained, optimizers[trained], images, labels)
        if signals:
            signals.stop()

    return {STEP: partial(step, net), WATCHED: partial(step, net, True), IDLE: partial(step, idle)}


if __name__ == "__main__":
    run(measure, parser())
