"""What all-layer cushions cost on top of an evaluation: the same images, the same run, interleaved rounds.

    python -m benchmarks.measures --root data --rounds 9 --images 2000

"evaluation" is loss and accuracy alone. Ratios are taken round by round, so that a slow spell of a shared
machine hits both sides; the compiled evaluation is the unit. Goal: compiled cushions at most 1.1.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.cifar10 import Batches, begin, load, options_of
from benchmarks.timing import interleave, save
from lightning_app.measures import cushions, probe_forward
from lightning_app.networks import SimplifiedNet

REFERENCE = "evaluation, compiled"


def main() -> None:
    parser = options_of(__doc__, rounds=9, images=2000)
    parser.add_argument("--batch", type=int, default=250)
    parser.add_argument("--depth", type=int, default=20)
    options, device = begin(parser)
    batches = load(options.root, options.images, options.batch, device)
    for residual in (False, True):
        net = SimplifiedNet(options.depth, residual).to(device, memory_format=torch.channels_last)
        with torch.no_grad():
            comparison = interleave(contenders(net, batches), options.rounds, warm_up=2)
        name = f"{'residual' if residual else 'plain'}-{options.depth}"
        print(f"\n{name}, {options.images} images\n{comparison.table(REFERENCE)}")
        if options.json:
            save(options.json / f"measures-{name}.json", comparison, REFERENCE, images=options.images)


def contenders(net: nn.Module, batches: Batches) -> dict[str, Callable[[], None]]:
    layers = net.layers()

    def measure(compile: bool) -> None:
        cushions(layers, probe_forward(net, layers, batches, compile=compile).layers)

    compiled = torch.compile(evaluate, dynamic=False)
    return {
        REFERENCE: lambda: evaluation(compiled, net, batches),
        "cushions too, compiled": lambda: measure(True),
        "evaluation, eager": lambda: evaluation(evaluate, net, batches),
        "cushions too, eager": lambda: measure(False),
    }


def evaluation(step: Callable[..., tuple[Tensor, Tensor]], net: nn.Module, batches: Batches) -> None:
    losses, wrong = zip(*(step(net, images, labels) for images, labels in batches))
    float(torch.stack(losses).sum()), float(torch.stack(wrong).sum())


def evaluate(net: nn.Module, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    logits = net(images)
    return F.cross_entropy(logits, labels, reduction="sum"), (logits.argmax(1) != labels).sum()


if __name__ == "__main__":
    main()
