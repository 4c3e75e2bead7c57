"""Interlayer cushions: how well a block transmits its input, compared with noise, sample by sample.

Defined by Arora et al. (2018), measured for whole blocks by Yu & Tomasi (2019, section 5):
``mu(x) = sqrt(n) ||J x|| / (||J||_F ||x||)`` with J the Jacobian of the block, or of several in a row, at its input x.
A block that transmits its input no better than noise has ``mu = sqrt(n / numel)``; so does the identity.

The paper leaves two things open; all readings are measured, none is silently chosen. n, "the size of the input", is C H
W, so that the identity has mu = 1, or H W, as in Arora et al. for convolutions; T d or T of T tokens, d or 1 of a
vector. BatchNorm has running statistics (``eval``), or those of the one sample at hand (``batch1``), in the block and
on the way to it. The paper's numbers, 0.20 residual against 2.7e-7 plain, are those of ``batch1`` with n = H W, and the
second says nothing about sensitivity to noise: BatchNorm of one sample is invariant to the scale of its input, so without
BatchNorm's eps J x would be zero, and mu of a plain block is proportional to eps. With running statistics a plain block is
*not* less stable than a residual one.
"""

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lightning_app.common.errors import UserError
from lightning_app.common.isolation import unwrapped
from lightning_app.measures.core.histogram import Histogram, histogram
from lightning_app.measures.core.hooks import check_evaluating, sample_norms
from lightning_app.measures.noise_stability.batch_of_one import BnMode, batch_norms
from lightning_app.measures.noise_stability.jacobian import DifferentiatedJacobian, frobenius_by_probes
from lightning_app.measures.noise_stability.spans import (
    ChainJacobian,
    calls_of,
    check_description,
    check_rows,
    span_jacobian,
)
from lightning_app.networks.blocks import Span

# From plain blocks in batch-of-one mode, 1e-6, to anything else, near 1: 100 bins a decade.
INTERLAYER_EDGES = torch.logspace(-8, 2, 1001, dtype=torch.float64, device="cpu")


@dataclass(frozen=True, eq=False)
class InterlayerStatistics:
    """Per-sample interlayer cushions of one span and their statistics. Dimensionless, 0..sqrt(n).

    Unnamed statistics are those with n = C H W, ``_hw`` those with n = H W, smaller by sqrt(C). NaN if no sample
    is left; std also for a single sample. With probes, std includes the scatter of the estimate, ``relative_error`` times mu.
    """

    median: float  # over samples, n = C H W
    mean: float  # over samples, n = C H W
    std: float  # over samples, unbiased, n = C H W
    minimum: float  # over samples, n = C H W: the interlayer cushion proper
    median_hw: float  # over samples, n = H W
    mean_hw: float  # over samples, n = H W
    std_hw: float  # over samples, unbiased, n = H W
    minimum_hw: float  # over samples, n = H W
    frobenius: float  # mean ||J||_F of all samples, dead and flat ones too
    gain: float  # mean ||J x|| / ||x||
    relative_error: float  # standard error of ||J||_F relative to it, rms over samples; 0: exact, NaN: one probe
    probes: int  # random vectors per sample; 0: ||J||_F is exact
    dead: int  # samples with x = 0; they are in no other statistic
    flat: int  # samples with x != 0 and J = 0; they are in no other statistic
    histogram: Histogram  # of samples
    samples: Tensor  # (n,) float32, mu with n = C H W, NaN where dead or flat, in the order of the data
    norms: Tensor  # (n,) float32, ||J||_F


@torch.no_grad()
def interlayer_cushions(
    net: nn.Module,
    spans: Sequence[Span],
    batches: Iterable[Tensor],
    bn_mode: BnMode = "eval",
    probes: int | None = None,
    before_relu: bool = False,
    half: bool = False,
    seed: int = 0,
) -> dict[str, InterlayerStatistics]:
    """Interlayer cushions by span, in one pass over the data.

    Args:
        net: any net on images, in evaluation mode; it is not changed.
        spans: spans of this net (see `blocks_of`, `span_of`), each called once in a forward pass.
        batches: images on the net's device.
        bn_mode: statistics of BatchNorm, in the spans and before them: "eval", the running ones; "batch1", those of each single
            sample.
        probes: None for the exact ||J||_F; k >= 1 random sign vectors per sample for an estimate. Blocks of a single
            convolution are always exact, in closed form. The vectors depend only on seed, place in the data and name of the span.
        before_relu: leave out the ReLU at the end of a span.
        half: multiply the probes in bfloat16, if the Jacobian is hand-made and bn_mode is "eval". The error is far below that of
            4 probes. It is twice as fast on processors with instructions for it, slower on others.

    Invariances: mu does not change when the span's output is scaled, or turned by an orthogonal map. The identity has
    mu = sqrt(n / numel); a block of convolutions without biases and ReLUs has J x = f(x).

    Cost: blocks that describe themselves (`BlockParts`) have hand-made Jacobians, k + 1 times the block's convolutions: 1,000
    images and 4 probes in all blocks of the full depth-20 net take a few percent of a training epoch (docs/speed.md,
    "interlayer"). An exact norm costs, per block and sample of that net, as much as training on 3 samples (eval) or 10 (batch1).
    Other spans are differentiated, which takes k + 4 forward passes through them; for exact norms as many as the span has
    inputs or outputs, whichever is fewer.

    Precision: the net's own; GPUs may convolve in TF32. Where J x is a small difference of large numbers, in batch1, it
    comes from Euler's identity or from differentiation in float64.

    Raises:
        UserError: for a net in training mode; a span that a forward pass does not call exactly once, or that mixes samples;
            "eval" with a BatchNorm without running statistics; "batch1" with a span without BatchNorm; a block whose
            `block_parts` do not describe it.
    """
    net = unwrapped(net)
    check_interlayer(net, spans, bn_mode, probes)
    check_evaluating(net, "an interlayer cushion")
    if any(module.training for module in net.modules()):  # which may also draw by functions
        raise UserError(
            "an interlayer cushion needs the net in evaluation mode, but a part of it is in training mode: call net.eval()."
        )
    found: dict[str, list[Tensor]] = {span.name: [] for span in spans}
    taken: dict[str, int] = {}  # span -> its probes, 0 where exact
    shares: dict[str, float] = {}  # positions among the entries of a sample: 1 / C, of any size of maps
    # Few where all should lie in the cache, or in memory; many where matrices are prepared for all of them.
    size = 64 if probes else 4 if bn_mode == "batch1" else 100
    for number, images in enumerate(few for batch in batches for few in batch.split(size)):
        calls = calls_of(net, spans, images, bn_mode)
        if not number:
            check_rows(net, images, bn_mode, spans, calls)
        for span in spans:
            own = [calls[module] for module in span.modules]
            if not number:
                check_description(span, own, bn_mode)
            shares[span.name] = own[0].positions / own[0].x[0].numel()
            jacobian = span_jacobian(span, own, bn_mode, before_relu)
            digest = hashlib.blake2b(repr((seed, number, span.name)).encode(), digest_size=7).digest()
            generator = torch.Generator(images.device).manual_seed(int.from_bytes(digest, "little"))
            taken[span.name] = 0 if probes is None or jacobian.has_closed_form else probes
            found[span.name].append(_measure(jacobian, own[0].x, taken[span.name], half, generator))
    if not shares and spans:
        raise ValueError("interlayer cushions need at least one batch of images, got none.")
    return {name: _statistics(torch.cat(parts, 1), shares[name], taken[name]) for name, parts in found.items()}


def _measure(
    jacobian: ChainJacobian | DifferentiatedJacobian, x: Tensor, probes: int, half: bool, generator: torch.Generator
) -> Tensor:
    """||x||, entries of x, ||J x||, ||J||_F and its standard error. (5, B) float64 on the CPU"""
    pushing = jacobian.half() if half and isinstance(jacobian, ChainJacobian) else jacobian
    frobenius = frobenius_by_probes(pushing.push, pushing.x, probes, generator) if probes else jacobian.frobenius()
    size = sample_norms(x)
    entries = torch.full_like(size, x[0].numel())
    return torch.stack([size, entries, sample_norms(jacobian.image), frobenius.norm, frobenius.error]).cpu()


def _statistics(measured: Tensor, share: float, probes: int) -> InterlayerStatistics:
    x, entries, image, norm, error = measured  # each (n,)
    dead, flat = x == 0, (x != 0) & (norm == 0)  # a NaN is neither: it must show
    kept = ~(dead | flat)
    mu = torch.where(kept, entries.sqrt() * image / (norm * x), math.nan)
    to_hw = math.sqrt(share)
    summary = _summary(mu[kept])
    return InterlayerStatistics(
        **summary,
        **{f"{name}_hw": value * to_hw for name, value in summary.items()},
        frobenius=float(norm.mean()),
        gain=float((image / x)[kept].mean()),
        relative_error=float((error / norm)[kept].square().mean().sqrt()),
        probes=probes,
        dead=int(dead.sum()),
        flat=int(flat.sum()),
        histogram=histogram(mu, INTERLAYER_EDGES),
        samples=mu.float(),
        norms=norm.float(),
    )


def _summary(values: Tensor) -> dict[str, float]:
    """NaN for what so few values do not have.

    >>> _summary(torch.tensor([1.0]))
    {'median': 1.0, 'mean': 1.0, 'std': nan, 'minimum': 1.0}
    """
    return {
        "median": float(values.quantile(0.5)) if len(values) else math.nan,
        "mean": float(values.mean()),
        "std": float(values.std()) if len(values) > 1 else math.nan,
        "minimum": float(values.min()) if len(values) else math.nan,
    }


def check_interlayer(net: nn.Module, spans: Sequence[Span], bn_mode: BnMode, probes: int | None) -> None:
    """Raise the errors of `interlayer_cushions` that can be found without data."""
    if bn_mode not in ("eval", "batch1"):
        raise UserError(f"a mode of BatchNorm (bn_modes) must be 'eval' or 'batch1', got {bn_mode!r}.")
    if probes is not None and probes < 1:
        raise UserError(f"probes must be at least 1, or None for exact norms, got {probes}.")
    if bn_mode == "eval" and any(norm.running_mean is None for norm in batch_norms(net)):
        raise UserError(
            "BatchNorm's mode 'eval' (bn_modes) needs running statistics: without them a sample's output depends on the "
            "others in its batch, and the sample has no Jacobian of its own. Use 'batch1', or track_running_stats=True."
        )
    for span in spans:
        if bn_mode == "batch1" and not batch_norms(*span.modules):
            raise UserError(
                f"bn_mode 'batch1' needs a block with BatchNorm, and {span.name} has none: use 'eval', or name the blocks that "
                "have one."
            )
