"""Interlayer cushions: how much of its input a block passes on, compared with noise, sample by sample.

Of Arora et al. (2018), measured for whole blocks by Yu & Tomasi (2019, section 5):
``mu(x) = sqrt(n) ||J x|| / (||J||_F ||x||)`` with J the Jacobian of the block, or of several in a row, at its input x.
A block that hands on its input no better than noise has ``mu = sqrt(n / numel)``; so has the identity.

The paper leaves two things open; all readings are measured, none is silently chosen.

* n, "the size of the input": C H W, so that the identity has mu = 1, or H W, as in Arora et al. for convolutions, so
  that it has 1 / sqrt(C). Both are reported.
* BatchNorm: with running statistics (``eval``), or with those of the one sample at hand (``batch1``), in the block and on
  the way to it. The paper's numbers, 0.20 residual against 2.7e-7 plain, are those of ``batch1`` with n = H W, and the
  second is no sensitivity to noise: BatchNorm of one sample does not see the scale of its input, so J x is zero but
  for BatchNorm's eps, and mu of a plain block is proportional to eps. With running statistics a plain block is *not*
  less stable than a residual one.
"""

import copy
import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor, nn

from lightning_app.errors import UserError
from lightning_app.measures.batch_of_one import BnMode, batch_norms, normalising
from lightning_app.measures.block_jacobian import BlockJacobian, block_jacobian, is_ordinary
from lightning_app.measures.block_norm import block_norm
from lightning_app.measures.histogram import Histogram, histogram
from lightning_app.measures.jacobian import (
    DifferentiatedJacobian,
    FrobeniusNorm,
    Jacobian,
    frobenius_by_columns,
    frobenius_by_probes,
    push,
)
from lightning_app.measures.watch import sample_norms
from lightning_app.networks.blocks import Span

__all__ = ["INTERLAYER_EDGES", "InterlayerStatistics", "check_interlayer", "interlayer_cushions"]

# From plain blocks in batch-of-one mode, 1e-6, to anything else, near 1: 100 bins a decade.
INTERLAYER_EDGES = torch.logspace(-8, 2, 1001, dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class InterlayerStatistics:
    """Per-sample interlayer cushions of one span and their statistics. Dimensionless, 0..sqrt(n).

    Unnamed statistics are those with n = C H W, ``_hw`` those with n = H W, smaller by sqrt(C). NaN where no sample is
    left, std also for one. With probes std contains the scatter of the estimate, which is ``relative_error`` times mu.
    """

    median: float
    mean: float
    std: float  # over samples, n - 1
    minimum: float  # over samples: the interlayer cushion proper
    median_hw: float
    mean_hw: float
    std_hw: float
    minimum_hw: float
    frobenius: float  # mean ||J||_F
    gain: float  # mean ||J x|| / ||x||
    relative_error: float  # standard error of ||J||_F relative to it, rms over samples; 0: exact, NaN: one probe
    probes: int  # a sample; 0: ||J||_F is exact
    dead: int  # samples with x = 0; they are in no statistic
    flat: int  # other samples with J = 0; nor are they
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
        net: images -> anything, in evaluation mode. It is run to see what goes into the spans, and left as it was.
        spans: of this net (see `blocks_of`, `span_of`), each called once in a forward pass.
        batches: images on the net's device.
        bn_mode: "eval", running statistics; "batch1", those of each sample alone, in the spans and before them.
        probes: None for the exact ||J||_F; k >= 1 random sign vectors a sample for an estimate.
        before_relu: leave out the ReLU at the end of a span.
        half: multiply the probes in bfloat16, if the Jacobian is hand-made and in "eval". Error far below that of 4 probes;
            twice as fast where the processor has instructions for it, slower where not.
        seed: of the probes, which are a function of it, the batch's number and the span's name.

    Invariances: mu does not change when the span's output is scaled, or turned by an orthogonal map. The identity has
    mu = sqrt(n / numel); a block of convolutions without biases and ReLUs has J x = f(x).

    Cost: blocks that describe themselves (`BlockParts`) have hand-made Jacobians. Beside the forward pass they cost
    k + 1.5 times the block's convolutions; exact ones about 3 training steps of the whole depth-20 net (eval), or
    10 (batch1). Other spans are differentiated: k + 4 forward passes through them, exact ones as many as they have
    inputs or outputs.

    Precision: the net's own. Where J x is a small difference of large numbers, in batch1, it comes from Euler's identity
    or from differentiation in float64.

    Raises:
        UserError: for a net in training mode; a span that a forward pass does not call once; "eval" and BatchNorm without
            running statistics; "batch1" and a span without BatchNorm; a block that is not what it says it is made of.
    """
    net = getattr(net, "_orig_mod", net)  # torch.compile(net) is a wrapper; its graph may pass by hooks
    check_interlayer(net, spans, bn_mode, probes)
    if any(module.training for module in net.modules()):
        raise UserError("interlayer cushions need a net in evaluation mode, got one in training mode: call net.eval().")
    found: dict[str, list[Tensor]] = {span.name: [] for span in spans}
    inputs: dict[str, torch.Size] = {}
    for number, images in enumerate(batches):
        visits = _visits(net, spans, images, bn_mode)
        for span in spans:
            own = [visits[module] for module in span.modules]
            if not number:
                _check_description(span, own, bn_mode)
            inputs[span.name] = own[0].x.shape[1:]
            generator = _generator(images.device, seed, number, span.name)
            for few in _chunks(len(images), bn_mode, probes):
                jacobian = _jacobian(span, [visit.of(few) for visit in own], bn_mode, before_relu)
                found[span.name].append(_measure(jacobian, own[0].x[few], probes, half, generator))
    if not inputs and spans:
        raise ValueError("interlayer cushions need at least one batch of images, got none.")
    return {name: _statistics(torch.cat(parts, 1), inputs[name], probes or 0) for name, parts in found.items()}


def _measure(jacobian: Jacobian, x: Tensor, probes: int | None, half: bool, generator: torch.Generator) -> Tensor:
    """||x||, ||J x||, ||J||_F and its standard error. (4, B) float64 on the CPU"""
    if probes is None:
        frobenius = jacobian.frobenius()
    else:
        pushing = jacobian.half() if half and isinstance(jacobian, _Chain) else jacobian
        frobenius = frobenius_by_probes(pushing.push, pushing.x, probes, generator)
    return torch.stack([sample_norms(x), sample_norms(jacobian.image), frobenius.norm, frobenius.error]).cpu()


def _statistics(measured: Tensor, size: torch.Size, probes: int) -> InterlayerStatistics:
    x, image, norm, error = measured  # each (n,)
    dead, flat = x == 0, (x != 0) & (norm == 0)  # a NaN is neither: it must show
    kept = ~(dead | flat)
    mu = torch.where(kept, math.sqrt(size.numel()) * image / (norm * x), math.nan)
    to_hw = math.sqrt(math.prod(size[1:]) / size.numel())
    median, mean, std, minimum = _summary(mu[kept])
    return InterlayerStatistics(
        median=median,
        mean=mean,
        std=std,
        minimum=minimum,
        median_hw=median * to_hw,
        mean_hw=mean * to_hw,
        std_hw=std * to_hw,
        minimum_hw=minimum * to_hw,
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


def _summary(values: Tensor) -> tuple[float, float, float, float]:
    """Median, mean, standard deviation, minimum.

    >>> _summary(torch.tensor([3.0, 1.0, 2.0, 10.0]))[:2], _summary(torch.tensor([1.0]))
    ((2.5, 4.0), (1.0, 1.0, nan, 1.0))
    """
    if not len(values):
        return (math.nan,) * 4
    std = float(values.std()) if len(values) > 1 else math.nan
    return float(values.quantile(0.5)), float(values.mean()), std, float(values.min())


# What the spans see


@dataclass(frozen=True, eq=False)
class _Visit:
    """What went into a module, and of what came out as much as is needed."""

    x: Tensor  # (B, ...)
    gate: Tensor  # (B, ...), 1 where the output is positive: where its last ReLU lets through
    first: Tensor  # (1, ...), the first sample's output

    def of(self, samples: slice) -> "_Visit":
        return replace(self, x=self.x[samples], gate=self.gate[samples])


def _visits(net: nn.Module, spans: Sequence[Span], images: Tensor, bn_mode: BnMode) -> dict[nn.Module, _Visit]:
    """One forward pass, watched at every module of the spans."""
    came: dict[nn.Module, Tensor] = {}
    visits: dict[nn.Module, _Visit] = {}
    names = {module: span.name for span in spans for module in span.modules}

    def enter(module: nn.Module, args: tuple) -> None:
        if module in came or len(args) != 1:
            raise UserError(
                f"an interlayer cushion needs a block that the net calls once, with one tensor; {names[module]} is called "
                f"{'twice' if module in came else f'with {len(args)}'}: leave it out."
            )
        came[module] = args[0].clone()  # what follows may work in place

    def leave(module: nn.Module, _: tuple, y: Tensor) -> None:
        if not isinstance(y, Tensor):
            raise UserError(f"{names[module]} returns a {type(y).__name__}, a Jacobian needs one tensor: leave it out.")
        visits[module] = _Visit(came[module], (y > 0).to(y.dtype), y[:1].clone())

    if images.ndim == 4:
        images = images.contiguous(memory_format=torch.channels_last)  # convolutions of few channels: 3 times faster
    with normalising(bn_mode, net), _hooks(names, enter, leave):
        net(images)
    for module, name in names.items():
        if module not in visits:
            raise UserError(f"the net's forward pass never calls {name}: leave it out.")
    return visits


@contextmanager
def _hooks(modules: Iterable[nn.Module], enter: Callable, leave: Callable) -> Iterator[None]:
    handles = [module.register_forward_pre_hook(enter) for module in modules]
    handles += [module.register_forward_hook(leave) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def check_interlayer(net: nn.Module, spans: Sequence[Span], bn_mode: BnMode, probes: int | None) -> None:
    """Raise what `interlayer_cushions` would, as far as it can be said without data."""
    if bn_mode not in ("eval", "batch1"):
        raise UserError(f"bn_mode is 'eval' or 'batch1', got {bn_mode!r}.")
    if probes is not None and probes < 1:
        raise UserError(f"probes must be at least 1, or None for exact norms, got {probes}.")
    if bn_mode == "eval" and any(norm.running_mean is None for norm in batch_norms(net)):
        raise UserError(
            "a BatchNorm without running statistics makes a sample's output depend on the others in its batch, so it has "
            "no Jacobian of its own: use bn_mode 'batch1', or track_running_stats=True."
        )
    for span in spans:
        if bn_mode == "batch1" and not batch_norms(*span.modules):
            raise UserError(
                f"bn_mode 'batch1' is about BatchNorm on single samples, and {span.name} has no BatchNorm: use 'eval', or "
                "name the blocks that have one."
            )


# Jacobians


def _jacobian(span: Span, visits: Sequence[_Visit], bn_mode: BnMode, before_relu: bool) -> Jacobian:
    """By hand where the blocks say what they are made of, else by differentiation."""
    if not _is_described(span):
        return _differentiated(span, visits[0].x, bn_mode, before_relu)
    blocks = []
    for place, (parts, visit) in enumerate(zip(span.parts, visits), start=1):
        gate = None if before_relu and place == len(visits) else visit.gate
        x = visit.x.contiguous(memory_format=torch.channels_last)  # a third faster on CPUs
        blocks.append(block_jacobian(parts.stages, parts.skip, x, gate, alone=bn_mode == "batch1"))
    return _Chain(tuple(blocks))


@dataclass(frozen=True, eq=False)
class _Chain:
    """J of blocks in a row."""

    blocks: tuple[BlockJacobian, ...]

    @property
    def x(self) -> Tensor:
        return self.blocks[0].x

    @property
    def image(self) -> Tensor:
        first, *others = self.blocks
        return _push(others, first.image)

    def half(self) -> "_Chain":
        """The same for pushing random signs, in bfloat16 where that is harmless."""
        blocks = tuple(block.half() for block in self.blocks)
        return self if any(block.x.dtype != blocks[0].x.dtype for block in blocks) else _Chain(blocks)

    def push(self, tangents: Tensor) -> Tensor:
        return _push(self.blocks, tangents)

    def frobenius(self) -> FrobeniusNorm:
        """Of several blocks from as many products as x has entries."""
        first, *others = self.blocks
        return frobenius_by_columns(self.push, self.x) if others else block_norm(first)


def _push(blocks: Iterable[BlockJacobian], t: Tensor) -> Tensor:
    for block in blocks:
        t = block.push(t)
    return t


def _is_described(span: Span) -> bool:
    return span.parts is not None and all(is_ordinary(conv) for parts in span.parts for conv, _ in parts.stages)


def _differentiated(span: Span, x: Tensor, bn_mode: BnMode, before_relu: bool) -> DifferentiatedJacobian:
    precise = _double(span) if bn_mode == "batch1" else span

    def through(blocks: Span, t: Tensor) -> Tensor:
        with normalising(bn_mode, *blocks.modules):
            return blocks(t, before_relu)

    like = next((parameter for module in precise.modules for parameter in module.parameters()), x)
    wide = x.to(like.dtype)
    image = push(lambda t: through(precise, t), wide, wide[None])[1][0]
    return DifferentiatedJacobian(lambda t: through(span, t), x, image)


def _double(span: Span) -> Span:
    return Span(span.name, tuple(copy.deepcopy(module).double() for module in span.modules))


def _check_description(span: Span, visits: Sequence[_Visit], bn_mode: BnMode) -> None:
    """On one sample: blocks of a span follow one another, and compute what their parts do."""
    for one, other in pairwise(visits):
        if not _same(one.first, other.x[:1]):
            raise UserError(
                f"something lies between the blocks of {span.name}, so that it is no span: measure them singly."
            )
    if not _is_described(span):
        return
    for parts, visit in zip(span.parts, visits):
        with normalising(bn_mode, *span.modules):
            y = parts(visit.x[:1])
        if not _same(y, visit.first):
            raise UserError(
                f"a block of {span.name} is not what its block_parts() says: from these its output would differ. Correct "
                "that method, or remove it: the block is then differentiated."
            )


def _same(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape:
        return False
    return torch.allclose(one, other, rtol=0, atol=1e-3 * float(other.abs().max()), equal_nan=True)


def _chunks(count: int, bn_mode: BnMode, probes: int | None) -> Iterator[slice]:
    """Samples worked on together: few for what lies in the cache, many where matrices are prepared for all of them."""
    size = 32 if probes else 4 if bn_mode == "batch1" else 100
    return (slice(start, start + size) for start in range(0, count, size))


def _generator(device: torch.device, *key: object) -> torch.Generator:
    """Its stream is a function of the key."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=7).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(digest, "little"))
