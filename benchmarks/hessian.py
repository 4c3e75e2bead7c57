"""What a product with the Hessian costs in gradients of the same images, and how many products a spectrum needs.

    python -m benchmarks.hessian --root data --rounds 7 --images 128 [--only tokens]

Contenders, in turns: one gradient, and H v by this project (kept graphs) and by curvlinops' operator; processor time. Then the
five largest eigenvalues from 40 products against a run of 100. On sequences of tokens, with a GPT-2 of transformers, the same
products, and one with the Gauss-Newton matrix, which is curvlinops' with our cuts. Nets are as initialised.
"""

import argparse
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from benchmarks import harness
from benchmarks.harness import CLOCK, DEVICE, Batches, Comparison, Ratio, Results, Row, interleave, processor_time
from benchmarks.loops import ARMS, EPOCH, curvlinops_of, load_cifar10
from lightning_app.measures import Hessian, spectrum
from lightning_app.measures.curvature.gauss_newton import GaussNewton
from lightning_app.networks import SimplifiedNet

REFERENCE, OURS, THEIRS, GAUSS_NEWTON = "gradient", "H v", "H v, curvlinops", "Gauss-Newton v"
TOKENS, SAME = "tokens", "a gradient of the same {}"
LIGHT_IMAGES = 128  # as base.yaml has it after every second epoch
LIGHT = f"light spectrum of {LIGHT_IMAGES} images"
TRUTH, STEPS = 100, 40  # products
LAYERS, SEQUENCES, LENGTH, VOCABULARY = 4, 16, 128, 256  # of a GPT-2 of 0.86 million parameters
parser = partial(harness.options_of, __doc__, rounds=7, images=128, depth=20, only=[*ARMS, TOKENS])


def measure(options: argparse.Namespace) -> Results:
    nets = f"simplified nets of depth {options.depth}, as initialised"
    found = Results(f"{nets}; {options.images:,} images; {CLOCK}")
    for arm in (arm for arm in ARMS if arm in options.only):
        batches, light = (load_cifar10(options.root, images, 64) for images in (options.images, LIGHT_IMAGES))
        net = SimplifiedNet(options.depth, ARMS[arm]).eval().to(DEVICE, memory_format=torch.channels_last)
        timed = of_vector(net, batches)
        timed[LIGHT] = processor_time(partial(light_spectrum, net, light))
        comparison = found.add(arm, interleave(timed, options.rounds), REFERENCE)
        found.more[f"spectra, {arm}"] = errors = accuracy(net, batches)
        name, share = f"{arm}-{options.depth}", comparison.ratio(LIGHT, REFERENCE) * (options.images / EPOCH)
        wrong, twice = Ratio.of(max(errors["error of top 5"])), Ratio.of(errors["twice"])
        found.rows += [
            *rows_of_vector(name, comparison),
            Row(f"{name}: {LIGHT}", f"the gradients of {EPOCH:,} images", share, goal=0.1),
            Row(f"{name}: error of the top 5 from 40 products", f"{TRUTH} products", wrong, goal=1e-3),
            Row(f"{name}: eigenvalues that come out twice", "none", twice, goal=0),
        ]
    if TOKENS in options.only:
        net, batches = tokens()
        what = f"GPT-2 of {LAYERS} layers, {SEQUENCES} sequences of {LENGTH} tokens"
        timed = of_vector(net, batches, GaussNewton)
        comparison = found.add(what, interleave(timed, options.rounds), REFERENCE)
        of_tokens = (f"{TOKENS}: {GAUSS_NEWTON}", SAME.format("samples"))
        found.rows += [*rows_of_vector(TOKENS, comparison), comparison.row(GAUSS_NEWTON, REFERENCE, None, *of_tokens)]
    return found


def rows_of_vector(name: str, comparison: Comparison) -> list[Row]:
    return [
        comparison.row(OURS, REFERENCE, 2.2, f"{name}: H v", SAME.format("images")),
        comparison.row(OURS, THEIRS, 0.7, f"{name}: H v", "curvlinops' product"),
    ]


class TokenNet(nn.Module):
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


def tokens() -> tuple[nn.Module, Batches]:
    """A net and random sequences, each with the next token as its label."""
    drawn = torch.randint(VOCABULARY, (SEQUENCES, LENGTH + 1), generator=torch.Generator().manual_seed(0))
    x, y = (part.to(DEVICE) for part in (drawn[:, :-1].contiguous(), drawn[:, 1:].contiguous()))
    return TokenNet().eval().to(DEVICE), [(x, y)]


def of_vector(net: nn.Module, batches: Batches, gauss_newton: type[GaussNewton] | None = None) -> dict[str, Any]:
    """One gradient, and one product of each kind."""
    made = {OURS: Hessian(net, batches), THEIRS: curvlinops_of(net, batches)}
    made |= {GAUSS_NEWTON: gauss_newton(net, batches)} if gauss_newton else {}
    vector = torch.randn(made[OURS].size, generator=torch.Generator().manual_seed(1)).to(made[OURS].like)
    products = {name: partial(matrix.__matmul__, vector) for name, matrix in made.items()}
    return {
        name: processor_time(work) for name, work in ({REFERENCE: partial(gradient, net, batches)} | products).items()
    }


def gradient(net: nn.Module, batches: Batches) -> None:
    for images, labels in batches:
        torch.autograd.grad(F.cross_entropy(net(images), labels), list(net.parameters()))


def light_spectrum(net: nn.Module, batches: Batches) -> None:
    spectrum(Hessian(net, batches), k=2, steps=12)


def accuracy(net: nn.Module, batches: Batches) -> dict[str, Any]:
    """Of the spectrum from `STEPS` products: relative errors against `TRUTH`, repeated values, what it states of itself."""
    hessian = Hessian(net, batches)
    truth, found = spectrum(hessian, k=5, steps=TRUTH)[0].top, spectrum(hessian, k=5, steps=STEPS, seed=1)[0]
    errors = ((found.top - truth) / truth).abs().numpy()
    return {
        "error of top 5": [float(f"{error:.1e}") for error in errors],
        "twice": int((np.abs(np.diff(found.top.numpy())) < 1e-3 * found.top.numpy()[:-1]).sum()),
        "unconverged of 10": found.unconverged,
        "trace": f"{found.trace:.4g} +- {found.trace_error:.2g}",
        "frobenius": f"{found.frobenius:.4g} +- {found.frobenius_error:.2g}",
        "index": f"{found.index_low:.3f} - {found.index_high:.3f}",
    }


if __name__ == "__main__":
    harness.run(measure, parser())
