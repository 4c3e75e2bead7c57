"""What the measures of Littwin & Wolf cost, in gradients of the same images, interleaved: processor time, on a GPU wall time.

    python -m benchmarks.ensembles --root data --rounds 5 --images 32

"outputs by length" is how `path_outputs` resolves outputs, "at the roots of unity" the witness; "gradients at the roots" is
how `path_gradients` does it, and "through the lengths" the straightforward way, one backward pass for each length through the
resolved forward pass.
"""

import argparse
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.cifar10 import DEVICE, load
from benchmarks.frame import Findings, Line, options_of, run
from benchmarks.timing import interleave, processor
from lightning_app.measures import driving_force, normalisations_of, path_gradients, path_outputs
from lightning_app.measures.paths.lengths import outputs_at_roots
from lightning_app.measures.paths.unravel import ByLength, unravel
from lightning_app.networks import CifarResNet, SimplifiedNet, layers_of

REFERENCE = "gradient"
OUTPUTS, GRADIENTS, ONE_BY_ONE = "outputs by length", "gradients at the roots of unity", "gradients through the lengths"
FORCE = "driving force"
NETS = {
    "simplified-20": lambda: SimplifiedNet(20),
    "simplified-44": lambda: SimplifiedNet(44),
    "full-20": lambda: CifarResNet(20),
}


def parser() -> argparse.ArgumentParser:
    parser = options_of(__doc__, rounds=5, images=32)
    parser.add_argument("--nets", nargs="+", choices=NETS, default=list(NETS))
    return parser


def measure(options: argparse.Namespace) -> Findings:
    ((images, labels),) = load(options.root, options.images, options.images)
    found = Findings(f"{options.images} images in one batch, eager; processor time")
    for name in options.nets:
        net = NETS[name]().to(DEVICE).eval()
        timed = {what: processor(run) for what, run in contenders(net, images.contiguous(), labels).items()}
        comparison = found.add(name, interleave(timed, options.rounds), REFERENCE)
        cheaper = comparison.ratio(ONE_BY_ONE, GRADIENTS)
        found.lines.append(Line(f"{name}: a backward pass for each path length", GRADIENTS, cheaper, better="more"))
        for what in (OUTPUTS, GRADIENTS, FORCE):
            ratio = comparison.ratio(what, REFERENCE)
            found.lines.append(Line(f"{name}: {what}", "a gradient of the same images", ratio))
    return found


def contenders(net: nn.Module, images: Tensor, labels: Tensor) -> dict[str, Callable[[], object]]:
    weights, longest = list(net.parameters()), len(net.layers()) - 1
    norms = normalisations_of(net, images[:1])
    return {
        REFERENCE: lambda: torch.autograd.grad(F.cross_entropy(net(images), labels), weights),
        OUTPUTS: lambda: [path_outputs(net, few) for few in images.split(8)],
        "outputs at the roots of unity": lambda: outputs_at_roots(net, images, longest),
        GRADIENTS: lambda: path_gradients(net, images, labels),
        ONE_BY_ONE: lambda: through_lengths(net, images, labels),
        FORCE: lambda: driving_force(net, [(images, labels)], layers_of(net), norms),
        "lambda: the layers before": lambda: normalisations_of(net, images[:1]),
    }


def through_lengths(net: nn.Module, images: Tensor, labels: Tensor) -> list[Tensor]:
    """|g_r|^2 for ascending lengths r, by a backward pass for each."""
    out = unravel(net, images, ByLength(images.unsqueeze(0)))
    delta = torch.softmax(out.parts.stack.detach().sum(0), 1) - F.one_hot(labels, out.shape[1])
    parts = out.parts.shallower() if out.from_layer else out.parts
    carried: dict[int, Tensor] = {}
    for (start, length), part in zip(parts.kinds, (parts.stack * delta).sum(-1).mean(1)):
        if (start, length) != ("constant", 0):  # the readout's bias is on no path
            carried[length] = carried.get(length, 0) + part
    gradients = [
        torch.autograd.grad(carried[length], list(net.parameters()), retain_graph=True, allow_unused=True)
        for length in sorted(carried)
    ]
    return [sum(g.square().sum() for g in gradient if g is not None) for gradient in gradients]


if __name__ == "__main__":
    run(measure, parser())
