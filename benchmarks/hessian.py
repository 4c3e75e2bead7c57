"""What a product with the Hessian costs in gradients of the same images, and how many products a spectrum needs.

    python -m benchmarks.hessian --root data --rounds 7 --images 128 [--only tokens]

Contenders, in turns: one gradient, and H v by this project (kept graphs) and by curvlinops' operator; processor time. Then the
five largest eigenvalues from 40 products against a run of 100. On sequences of tokens, with a GPT-2 of transformers, the same
products, and one with the Gauss-Newton matrix, which is curvlinops' with our cuts. Nets are as initialised.
"""

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from benchmarks import harness
from benchmarks.harness import Ratio, Results, Row, interleave, run
from lightning_app.measures import Hessian, spectrum
from lightning_app.measures.curvature.gauss_newton import GaussNewton
from lightning_app.networks import SimplifiedNet

REFERENCE, OURS, THEIRS, GAUSS_NEWTON = "gradient", "H v", "H v, curvlinops", "Gauss-Newton v"
ARMS, TOKENS = ("plain", "residual"), "tokens"
LIGHT_IMAGES = 128  # as base.yaml has it after every second epoch
LIGHT = f"light spectrum of {LIGHT_IMAGES} images"
EPOCH = 50_000  # images
TRUTH = 100  # products
ERRORS, TWICE = "error of top 5", "twice"
STEPS = 40
LAYERS, SEQUENCES, LENGTH, VOCABULARY = 4, 16, 128, 256  # of a GPT-2 of 0.86 million parameters


def parser() -> argparse.ArgumentParser:
    parser = harness.options_of(__doc__, rounds=7, images=128, depth=20)
    parser.add_argument("--only", nargs="+", choices=[*ARMS, TOKENS], default=[*ARMS, TOKENS])
    return parser


def measure(options: argparse.Namespace) -> Results:
    found = Results(
        f"simplified nets of depth {options.depth}, as initialised; {options.images:,} images; processor time"
    )
    for arm in (arm for arm in ARMS if arm in options.only):
        batches = harness.load_cifar10(options.root, options.images, 64)
        net = SimplifiedNet(options.depth, arm == "residual").eval()
        net.to(harness.DEVICE, memory_format=torch.channels_last)
        timed = contenders(net, batches, harness.load_cifar10(options.root, LIGHT_IMAGES, 64))
        comparison = found.add(arm, interleave(timed, options.rounds), REFERENCE)
        found.more[f"spectra, {arm}"] = errors = accuracy(net, batches)
        found.rows += rows_of(f"{arm}-{options.depth}", comparison, options.images, errors)
    if TOKENS in options.only:
        net, batches = tokens()
        what = f"GPT-2 of {LAYERS} layers, {SEQUENCES} sequences of {LENGTH} tokens"
        timed = of_vector(net, batches) | of_gauss_newton(net, batches)
        comparison = found.add(what, interleave(timed, options.rounds), REFERENCE)
        share = comparison.ratio(GAUSS_NEWTON, REFERENCE)
        found.rows += [
            *rows_of_vector(TOKENS, comparison),
            Row(f"{TOKENS}: {GAUSS_NEWTON}", "a gradient of the same samples", share),
        ]
    return found


class OfTokens(nn.Module):
    """A GPT-2 with its outputs as torch's cross-entropy takes them: (B, classes, T)."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import GPT2Config, GPT2LMHeadModel  # a test dependency

        torch.manual_seed(0)
        sizes = {"vocab_size": VOCABULARY, "n_positions": LENGTH, "n_embd": 128, "n_layer": LAYERS, "n_head": 4}
        ends = {"bos_token_id": 0, "eos_token_id": 0}
        self.net = GPT2LMHeadModel(GPT2Config(**sizes, **ends, use_cache=False, attn_implementation="eager"))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x).logits.transpose(1, 2)


def tokens() -> tuple[nn.Module, harness.Batches]:
    """A net and random sequences, each with the next token as its label."""
    drawn = torch.randint(VOCABULARY, (SEQUENCES, LENGTH + 1), generator=torch.Generator().manual_seed(0))
    x, y = (part.to(harness.DEVICE) for part in (drawn[:, :-1].contiguous(), drawn[:, 1:].contiguous()))
    return OfTokens().eval().to(harness.DEVICE), [(x, y)]


def rows_of(name: str, comparison: harness.Comparison, images: int, spectrum_errors: dict[str, Any]) -> list[Row]:
    wrong = Ratio.of(max(spectrum_errors[ERRORS]))
    share = comparison.ratio(LIGHT, REFERENCE) * (images / EPOCH)
    return [
        *rows_of_vector(name, comparison),
        Row(f"{name}: {LIGHT}", f"the gradients of {EPOCH:,} images", share, goal=0.1),
        Row(f"{name}: error of the top 5 from 40 products", f"{TRUTH} products", wrong, goal=1e-3),
        Row(f"{name}: eigenvalues that come out twice", "none", Ratio.of(spectrum_errors[TWICE]), goal=0),
    ]


def rows_of_vector(name: str, comparison: harness.Comparison) -> list[Row]:
    return [
        Row(f"{name}: H v", "a gradient of the same images", comparison.ratio(OURS, REFERENCE), goal=2.2),
        Row(f"{name}: H v", "curvlinops' product", comparison.ratio(OURS, THEIRS), goal=0.7),
    ]


def contenders(
    net: nn.Module, batches: harness.Batches, light: harness.Batches
) -> dict[str, Callable[[], float | None]]:
    more = {LIGHT: harness.processor_time(lambda: spectrum(Hessian(net, light), k=2, steps=12))}
    return of_vector(net, batches) | more


def of_vector(net: nn.Module, batches: harness.Batches) -> dict[str, Callable[[], float | None]]:
    """One gradient and one product, ours and theirs."""
    import curvlinops  # here: a machine that has none can import the rest

    weights = dict(net.named_parameters())
    ours = Hessian(net, batches)
    theirs = curvlinops.HessianLinearOperator(
        net, nn.CrossEntropyLoss(), list(weights.values()), batches, check_deterministic=False
    )
    vector = torch.randn(ours.size, generator=torch.Generator().manual_seed(1)).to(ours.like)
    return {
        REFERENCE: harness.processor_time(lambda: _gradient(net, batches)),
        OURS: harness.processor_time(lambda: ours @ vector),
        THEIRS: harness.processor_time(lambda: theirs @ vector),
    }


def of_gauss_newton(net: nn.Module, batches: harness.Batches) -> dict[str, Callable[[], float | None]]:
    matrix = GaussNewton(net, batches)
    vector = torch.randn(matrix.size, generator=torch.Generator().manual_seed(1)).to(matrix.like)
    return {GAUSS_NEWTON: harness.processor_time(lambda: matrix @ vector)}


def _gradient(net: nn.Module, batches: harness.Batches) -> None:
    for images, labels in batches:
        torch.autograd.grad(F.cross_entropy(net(images), labels), list(net.parameters()))


def accuracy(net: nn.Module, batches: harness.Batches) -> dict[str, Any]:
    """Of the spectrum from `STEPS` products: relative errors against `TRUTH`, repeated values, what it states of itself."""
    hessian = Hessian(net, batches)
    truth, found = spectrum(hessian, k=5, steps=TRUTH)[0].top, spectrum(hessian, k=5, steps=STEPS, seed=1)[0]
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
