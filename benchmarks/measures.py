"""What all-layer cushions cost on top of an evaluation: the same images, the same run, interleaved rounds.

    python -m benchmarks.measures --root data --rounds 9 --images 2000

"evaluation" is loss and accuracy alone. Ratios are taken round by round, so that a slow spell of a shared
machine hits both sides; the compiled evaluation is the unit. Goal: compiled cushions at most 1.1.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.timing import interleave, machine, save
from lightning_app.measures import cushions, probe_forward
from lightning_app.networks import SimplifiedNet

REFERENCE = "evaluation, compiled"

Batches = list[tuple[Tensor, Tensor]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path("data"), help="folder with cifar10/train_images.npy")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=250)
    parser.add_argument("--depth", type=int, default=20)
    parser.add_argument("--json", type=Path, help="folder for the values, one file a net")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    print(machine())
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


def load(root: Path, count: int, batch: int, device: str) -> Batches:
    images = torch.from_numpy(np.load(root / "cifar10" / "train_images.npy", mmap_mode="r")[:count].copy())
    images = (images.permute(0, 3, 1, 2) if images.shape[-1] == 3 else images).to(device).float() / 255
    images = ((images - images.mean((0, 2, 3), keepdim=True)) / images.std((0, 2, 3), keepdim=True)).contiguous(
        memory_format=torch.channels_last
    )
    labels = torch.from_numpy(np.load(root / "cifar10" / "train_labels.npy")[:count]).long().to(device)
    return list(zip(images.split(batch), labels.split(batch)))


if __name__ == "__main__":
    main()
