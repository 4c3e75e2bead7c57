"""What all-layer cushions cost on top of an evaluation: the same images, the same run, interleaved rounds.

    python -m benchmarks.measures --root data --rounds 9 --images 2000

"evaluation" is loss and accuracy alone. Ratios are taken round by round, so that a slow spell of a shared
machine hits both sides; the compiled evaluation is the unit.
"""

import argparse
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.harness import DEVICE, Batches, Results, Row, interleave, load_cifar10, options_of, run
from lightning_app.measures import cushions, probe_forward
from lightning_app.networks import SimplifiedNet

REFERENCE = "evaluation, compiled"
CUSHIONS = "cushions too, compiled"


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


def evaluation(step: Callable[..., tuple[Tensor, Tensor]], net: nn.Module, batches: Batches) -> None:
    losses, wrong = zip(*(step(net, images, labels) for images, labels in batches))
    float(torch.stack(losses).sum()), float(torch.stack(wrong).sum())


def evaluate(net: nn.Module, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    logits = net(images)
    return F.cross_entropy(logits, labels, reduction="sum"), (logits.argmax(1) != labels).sum()


if __name__ == "__main__":
    run(measure, parser())
