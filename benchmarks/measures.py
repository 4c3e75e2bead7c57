"""What all-layer cushions cost on top of an evaluation: the same images, the same run, interleaved rounds.

    python benchmarks/measures.py --root data --rounds 9 --images 2000

"evaluation" is loss and accuracy alone. Ratios are medians over rounds of ratios within a round, so that a slow spell
of a shared machine hits both sides; the compiled evaluation is the unit. Goal: compiled cushions <= 1.1.
"""

import argparse
import copy
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightning_app.measures import cushions, probe_forward
from lightning_app.networks import SimplifiedNet

Batches = list[tuple[Tensor, Tensor]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path("data"), help="folder with cifar10/train_images.npy")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=250)
    parser.add_argument("--depth", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    batches = load(options.root, options.images, options.batch, device)
    for residual in (False, True):
        net = SimplifiedNet(options.depth, residual).to(device, memory_format=torch.channels_last)
        with torch.no_grad():
            seconds = interleave(contestants(net, batches), options.rounds)
        unit = seconds["evaluation, compiled"]
        print(f"{'residual' if residual else 'plain'}-{options.depth}, {options.images} images, {device}")
        for name, times in seconds.items():
            ratio = statistics.median(a / b for a, b in zip(times, unit))
            print(f"  {name:28s} {statistics.median(times):7.3f} s  {ratio:5.2f} x compiled evaluation")


def contestants(net: nn.Module, batches: Batches) -> dict[str, Callable[[], object]]:
    layers = net.layers()
    compiled = copy.deepcopy(net)
    compiled.compile(dynamic=False)

    def measure(compile: bool) -> object:
        return cushions(layers, probe_forward(net, layers, batches, compile=compile).layers)

    return {
        "evaluation, compiled": lambda: evaluate(compiled, batches),
        "cushions too, compiled": lambda: measure(True),
        "evaluation, eager": lambda: evaluate(net, batches),
        "cushions too, eager": lambda: measure(False),
    }


def evaluate(net: nn.Module, batches: Batches) -> tuple[float, float]:
    loss, wrong, count = 0.0, 0.0, 0
    for images, labels in batches:
        logits = net(images)
        loss = loss + F.cross_entropy(logits, labels, reduction="sum")
        wrong = wrong + (logits.argmax(1) != labels).sum()
        count += len(labels)
    return float(loss) / count, float(wrong) / count


def load(root: Path, count: int, batch: int, device: str) -> Batches:
    images = torch.from_numpy(np.load(root / "cifar10" / "train_images.npy", mmap_mode="r")[:count].copy())
    images = (images.permute(0, 3, 1, 2) if images.shape[-1] == 3 else images).to(device).float() / 255
    images = ((images - images.mean((0, 2, 3), keepdim=True)) / images.std((0, 2, 3), keepdim=True)).contiguous(
        memory_format=torch.channels_last
    )
    labels = torch.from_numpy(np.load(root / "cifar10" / "train_labels.npy")[:count]).long().to(device)
    return list(zip(images.split(batch), labels.split(batch)))


def interleave(contestants: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of every contestant in every round, after one round to warm up and compile."""
    seconds = {name: [] for name in contestants}
    for turn in range(rounds + 1):
        for name, run in contestants.items():
            start = time.perf_counter()
            run()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            if turn:
                seconds[name].append(time.perf_counter() - start)
    return seconds


if __name__ == "__main__":
    main()
