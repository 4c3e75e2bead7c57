"""What is measured after an epoch, in units of a training epoch of the same net in our CUDA graph.

    python -m benchmarks.gpu.measuring --root data [--images 50000] [--out FOLDER]

"every epoch" is loss, error and all layer cushions of 60,000 images, and interlayer cushions of all blocks for 1,000 images
with 4 probes; "Hessian" the five largest eigenvalues from 20 products with 1,000 images. Goals: every epoch at most 0.25
of an epoch; the Hessian at most 1.05, which is 5 % at one in 20 epochs. Nets and images have the memory format that `fit`
has on the device.
"""

import argparse
import itertools
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from benchmarks.cifar10 import load
from benchmarks.frame import Findings, Line
from benchmarks.gpu.epochs import backend_on
from benchmarks.gpu.part import BATCH, DEPTH, Kept, options_of, run, use
from benchmarks.seeds import Resident, sgd
from benchmarks.timing import interleave
from benchmarks.training import through_lightning
from lightning_app.measures import Hessian, cushions, interlayer_cushions, probe_forward, spectrum
from lightning_app.modules import ImageClassifier, Member
from lightning_app.modules.dry_run import choose_memory_format
from lightning_app.networks import CifarResNet, SimplifiedNet
from lightning_app.networks.blocks import blocks_of

KINDS = {"simplified": SimplifiedNet, "full": CifarResNet}
EPOCH, OFTEN, SELDOM = "epoch", "every epoch", "Hessian"
IMAGE = (3, 32, 32)
EVALUATED = 1000  # images in a batch that is evaluated
GOALS = {OFTEN: 0.25, SELDOM: 1.05}
Batches = list[tuple[Tensor, Tensor]]


def measure(options: argparse.Namespace) -> Findings:
    use("tf32")
    kept = Kept.of(options, "measuring")
    sizes = f"{options.images:,} images trained, {options.measured:,} and {options.probed:,} measured"
    findings = Findings(f"residual nets of depth {options.depth}, batch {BATCH}, {sizes}, tf32")
    for kind in KINDS:
        found = kept.comparison(kind, lambda kind=kind: interleave(contenders(options, kind), options.rounds))
        findings.add(kind, found, EPOCH)
        for name, goal in GOALS.items():
            ratio = found.ratio(name, EPOCH)
            findings.lines.append(Line(f"{kind}: {name}", EPOCH, ratio, goal if options.device == "cuda" else None))
    return findings


def contenders(options: argparse.Namespace, kind: str) -> dict[str, Callable[[], float | None]]:
    data = Resident(root=options.root, train_limit=options.images, batch_size=BATCH)
    data.device = torch.device(options.device)
    net, evaluated, probed = measured(options, kind)
    return {
        EPOCH: _epoch(options, kind, data),
        OFTEN: lambda: _often(net, evaluated, probed),
        SELDOM: lambda: _seldom(net, probed),
    }


def measured(options: argparse.Namespace, kind: str) -> tuple[nn.Module, Batches, Batches]:
    """A net, images with loss, error and cushions, and images of interlayer cushions and the Hessian."""
    net = KINDS[kind](options.depth, residual=True)
    channels_last = choose_memory_format([Member(kind, kind, 0, net)], IMAGE, None, torch.device(options.device))
    memory = torch.channels_last if channels_last else torch.contiguous_format

    def loaded(count: int, batch: int) -> Batches:
        found = load(options.root, count, batch, options.device)
        return [(images.contiguous(memory_format=memory), labels) for images, labels in found]

    images = loaded(min(options.measured, options.images), EVALUATED)
    evaluated = list(itertools.islice(itertools.cycle(images), math.ceil(options.measured / EVALUATED)))
    return net.to(options.device).eval(), evaluated, loaded(options.probed, min(250, options.probed))


def _epoch(options: argparse.Namespace, kind: str, data: Resident) -> Callable[[], float]:
    module = ImageClassifier(
        sgd, net=lambda: KINDS[kind](options.depth, residual=True), backend=backend_on(options.device)
    )
    return through_lightning(module, data, "32-true", "gpu" if options.device == "cuda" else "cpu")


def _often(net: nn.Module, evaluated: Batches, probed: Batches) -> None:
    with torch.no_grad():
        layers = net.layers()
        cushions(layers, probe_forward(net, layers, evaluated).layers)
        interlayer_cushions(net, blocks_of(net), [images for images, _ in probed], probes=4)


def _seldom(net: nn.Module, probed: Batches) -> None:
    spectrum(Hessian(net, probed), k=5, steps=20)


def parser() -> argparse.ArgumentParser:
    made = options_of(__doc__)
    made.add_argument("--images", type=int, default=50_000, help="training images in an epoch")
    made.add_argument("--measured", type=int, default=60_000, help="images with loss, error and cushions")
    made.add_argument("--probed", type=int, default=1000, help="images of interlayer cushions and the Hessian")
    made.add_argument("--depth", type=int, default=DEPTH)
    return made


if __name__ == "__main__":
    run(measure, parser())
