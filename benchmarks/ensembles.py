"""What the measures of Littwin & Wolf cost, in gradients of the same images, interleaved: processor time, on a GPU wall time.

    python -m benchmarks.ensembles --root data --rounds 5 --images 32

"outputs by length" is how `path_outputs` resolves outputs, "at the roots of unity" the witness; "gradients at the roots" is
how `path_gradients` does it, and "through the lengths" the straightforward way, one backward pass for each length through the
resolved forward pass.
"""

import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.cifar10 import begin, load, options_of
from benchmarks.timing import interleave, save
from lightning_app.measures import driving_force, normalisations_of, path_gradients, path_outputs
from lightning_app.measures.paths import outputs_at_roots
from lightning_app.measures.unravel import ByLength, unravel
from lightning_app.networks import CifarResNet, SimplifiedNet, layers_of

REFERENCE = "gradient"
NETS = {
    "simplified-20": lambda: SimplifiedNet(20),
    "simplified-44": lambda: SimplifiedNet(44),
    "full-20": lambda: CifarResNet(20),
}


def main() -> None:
    parser = options_of(__doc__, rounds=5, images=32)
    parser.add_argument("--nets", nargs="+", choices=NETS, default=list(NETS))
    options, device = begin(parser)
    ((images, labels),) = load(options.root, options.images, options.images, device)
    for name in options.nets:
        net = NETS[name]().to(device).eval()
        timed = {what: processor(run) for what, run in contenders(net, images.contiguous(), labels).items()}
        comparison = interleave(timed, options.rounds)
        print(f"\n{name}, {options.images} images\n{comparison.table(REFERENCE)}")
        if options.json:
            save(options.json / f"ensembles-{name}.json", comparison, REFERENCE, images=options.images)


def contenders(net: nn.Module, images: Tensor, labels: Tensor) -> dict[str, Callable[[], object]]:
    weights, longest = list(net.parameters()), len(net.layers()) - 1
    norms = normalisations_of(net, images[:1])
    return {
        REFERENCE: lambda: torch.autograd.grad(F.cross_entropy(net(images), labels), weights),
        "outputs by length": lambda: [path_outputs(net, few) for few in images.split(8)],
        "outputs at the roots of unity": lambda: outputs_at_roots(net, images, longest),
        "gradients at the roots of unity": lambda: path_gradients(net, images, labels),
        "gradients through the lengths": lambda: through_lengths(net, images, labels),
        "driving force": lambda: driving_force(net, [(images, labels)], layers_of(net), norms),
        "lambda: the layers before": lambda: normalisations_of(net, images[:1]),
    }


def processor(run: Callable[[], object]) -> Callable[[], float | None]:
    """The processor time of a call, which others on the machine hardly touch; None on a GPU, for its wall time."""

    def timed() -> float | None:
        start = time.process_time()
        run()
        return None if torch.cuda.is_available() else time.process_time() - start

    return timed


def through_lengths(net: nn.Module, images: Tensor, labels: Tensor) -> list[Tensor]:
    """|g_r|^2 by a backward pass for each part of the output."""
    out = unravel(net, images, ByLength(images.unsqueeze(0)))
    delta = torch.softmax(out.parts.stack.detach().sum(0), 1) - F.one_hot(labels, out.shape[1])
    carried = (out.parts.stack * delta).flatten(1).sum(1)
    gradients = [
        torch.autograd.grad(one, list(net.parameters()), retain_graph=True) for one in carried if one.requires_grad
    ]
    return [sum(g.square().sum() for g in gradient) for gradient in gradients]


if __name__ == "__main__":
    main()
