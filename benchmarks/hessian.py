"""What a product with the Hessian costs in gradients of the same images, and how many products a spectrum needs.

    python -m benchmarks.hessian --root data --rounds 7 --images 128 [--checkpoint runs/.../last.ckpt]

Contenders, interleaved: one gradient, and H v by this project (kept graphs), by curvlinops' operator, and by
`torch.func.linearize` of the gradient; processor time. Then the five largest eigenvalues and the density from 40 products
against a run of 100. Nets are as initialised, or a bank's arms `plain` and `residual` from a checkpoint: only trained nets
have spectra that matter.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, linearize

from benchmarks.cifar10 import DEVICE, Batches, load
from benchmarks.frame import Findings, Line, options_of, run
from benchmarks.timing import Comparison, Ratio, interleave, processor
from lightning_app.measures import Hessian, spectrum
from lightning_app.networks import SimplifiedNet

REFERENCE, OURS, THEIRS = "gradient", "H v", "H v, curvlinops"
LIGHT_IMAGES = 128  # as base.yaml has it after every second epoch
LIGHT = f"light spectrum of {LIGHT_IMAGES} images"
EPOCH = 50_000  # images
TRUTH = 100  # products
ERRORS, TWICE = "error of top 5", "twice"
ASKED = {"40": {"steps": 40}, "24 + 2 x 8": {"steps": 24, "probes": 2, "probe_steps": 8}, "30": {"steps": 30}}


def parser() -> argparse.ArgumentParser:
    parser = options_of(__doc__, rounds=7, images=128)
    parser.add_argument("--depth", type=int, default=20)
    parser.add_argument("--checkpoint", type=Path, help="of a bank with the arms plain and residual")
    return parser


def measure(options: argparse.Namespace) -> Findings:
    batches = load(options.root, options.images, 64)
    state = "trained" if options.checkpoint else "as initialised"
    found = Findings(f"simplified nets of depth {options.depth}, {state}; {options.images:,} images; processor time")
    for arm in ("plain", "residual"):
        net = trained(SimplifiedNet(options.depth, arm == "residual"), arm, options.checkpoint).eval()
        net.to(DEVICE, memory_format=torch.channels_last)
        comparison = found.add(
            arm, interleave(contenders(net, batches, load(options.root, LIGHT_IMAGES, 64)), options.rounds), REFERENCE
        )
        found.more[f"spectra, {arm}"] = spectra = accuracy(net, batches)
        found.lines += lines_of(f"{arm}-{options.depth}", comparison, options.images, spectra)
    return found


def lines_of(name: str, comparison: Comparison, images: int, spectra: dict[str, dict]) -> list[Line]:
    light = comparison.ratio(LIGHT, REFERENCE)
    share = (value * images / EPOCH for value in (light.median, light.lowest, light.highest))
    found = spectra["40"]
    return [
        Line(f"{name}: H v", "a gradient of the same images", comparison.ratio(OURS, REFERENCE), goal=2.2),
        Line(f"{name}: H v", "curvlinops' product", comparison.ratio(OURS, THEIRS), goal=0.7),
        Line(f"{name}: {LIGHT}", f"the gradients of {EPOCH:,} images", Ratio(*share), goal=0.1),
        Line(
            f"{name}: error of the top 5 from 40 products", f"{TRUTH} products", Ratio.of(max(found[ERRORS])), goal=1e-3
        ),
        Line(f"{name}: eigenvalues that come out twice", "none", Ratio.of(found[TWICE]), goal=0),
    ]


def trained(net: nn.Module, arm: str, checkpoint: Path | None) -> nn.Module:
    torch.manual_seed(0)
    if checkpoint:
        state = torch.load(checkpoint, map_location="cpu", weights_only=True)["state_dict"]
        prefix = f"nets.{arm}."
        net.load_state_dict({k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)})
    return net


def contenders(net: nn.Module, batches: Batches, light: Batches) -> dict[str, Callable[[], float | None]]:
    import curvlinops  # here: a machine that has none can import the rest

    weights = dict(net.named_parameters())
    ours = Hessian(net, batches)
    theirs = curvlinops.HessianLinearOperator(
        net, nn.CrossEntropyLoss(), list(weights.values()), batches, check_deterministic=False
    )
    vector = torch.randn(ours.size, generator=torch.Generator().manual_seed(1)).to(ours.like)
    parts = {n: p.view_as(w) for (n, w), p in zip(weights.items(), vector.split([w.numel() for w in weights.values()]))}
    products = [_linearised(net, *batch) for batch in batches]
    return {
        REFERENCE: processor(lambda: _gradient(net, batches)),
        OURS: processor(lambda: ours @ vector),
        THEIRS: processor(lambda: theirs @ vector),
        "H v, linearize": processor(lambda: [product(parts) for product in products]),
        LIGHT: processor(lambda: spectrum(Hessian(net, light), k=2, steps=12)),
    }


def _gradient(net: nn.Module, batches: Batches) -> None:
    for images, labels in batches:
        torch.autograd.grad(F.cross_entropy(net(images), labels), list(net.parameters()))


def _linearised(net: nn.Module, images: Tensor, labels: Tensor) -> Callable[[dict[str, Tensor]], object]:
    weights = {name: weight.detach() for name, weight in net.named_parameters()}
    return linearize(grad(lambda w: F.cross_entropy(functional_call(net, w, (images,)), labels)), weights)[1]


def accuracy(net: nn.Module, batches: Batches) -> dict[str, dict[str, object]]:
    """Largest relative error of the five largest eigenvalues, how many come out twice, and the errors of two moments."""
    hessian = Hessian(net, batches)
    truth = spectrum(hessian, k=5, steps=TRUTH)[0]
    return {name: _against(truth.top, spectrum(hessian, k=5, seed=1, **asked)[0]) for name, asked in ASKED.items()}


def _against(truth: Tensor, found) -> dict[str, object]:
    errors = ((found.top - truth) / truth).abs().numpy()
    return {
        ERRORS: [float(f"{error:.1e}") for error in errors],
        TWICE: int((np.abs(np.diff(found.top.numpy())) < 1e-3 * found.top.numpy()[:-1]).sum()),
        "unconverged of 10": found.unconverged,
        "trace": f"{found.trace:.4g} +- {found.trace_error:.2g}",
        "frobenius": f"{found.frobenius:.4g} +- {found.frobenius_error:.2g}",
        "index": f"{found.index_low:.3f} - {found.index_high:.3f}",
    }


if __name__ == "__main__":
    run(measure, parser())
