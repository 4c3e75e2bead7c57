"""One forward pass over probe data that yields loss, error and, for every layer, the norms that cushions are made of.

The norms are reductions of tensors that the forward pass holds anyway: taken inside it, in one compiled graph, they cost
a few per cent of an evaluation, and activations are never kept. Squares are accumulated in float64, which costs the same
there: a float32 sum over a 16x32x32 map is guaranteed to three digits only.
"""

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lightning_app.common.errors import UserError
from lightning_app.common.isolation import unwrapped
from lightning_app.identity import shortcut
from lightning_app.measures.core.hooks import sample_norms, shared_copy
from lightning_app.measures.core.losses import Loss, counted, cross_entropy, wrong
from lightning_app.networks.layers import Layer

Norms = tuple[Tensor, Tensor, Tensor]  # of input, branch and output at one layer, each (B,) float64


@dataclass(frozen=True, eq=False)
class LayerNorms:
    """2-norms per sample at one layer, over all its channels and positions, on the CPU. The bias is excluded."""

    input: Tensor  # (n,) float64, ||x||
    branch: Tensor  # (n,) float64, ||W x||
    output: Tensor  # (n,) float64, ||W x + S x||; the branch where the layer has no skip
    map_size: tuple[int, ...]  # (H, W) of a convolution's input, what lies between batch and features of a linear map's


@dataclass(frozen=True, eq=False)
class ProbeResult:
    """What one forward pass over the probe data tells."""

    loss: float  # mean over samples (or tokens that count), of the cross-entropy in nats
    error: float  # fraction of them misclassified, 0..1; NaN where the labels are no classes
    count: int  # samples
    layers: dict[str, LayerNorms]  # by layer name


@torch.no_grad()
def probe_forward(
    net: nn.Module,
    layers: Sequence[Layer],
    batches: Iterable[tuple[Tensor, Tensor]],
    compile: bool = False,
    loss: Loss = cross_entropy,
) -> ProbeResult:
    """Loss, error and the norms at all layers, in one pass over the data.

    Args:
        net: images -> logits (B, classes), in the caller's mode. Measured on a copy of its structure that shares its
            tensors, so that nothing stays behind and it does not matter whether it was compiled.
        layers: of this net. One that its forward pass never calls is absent from the result; one that it calls twice
            has no cushion and is refused. Half-precision activations are upcast.
        batches: (images, labels) on the net's device, in any memory format, shuffled or not.
        compile: measure in one graph, compiled once for each architecture and batch size and shared by all epochs and
            nets of that architecture; a shorter last batch is measured without.
        loss: (outputs, labels) -> the mean over a batch.

    Cost: one forward pass plus two reductions a layer, three with a skip. Compiled about a tenth more than an evaluation
    of the same images (docs/speed.md, "measures"); uncompiled about twice one.
    """
    net, taps = _instrument(net, layers)
    results, size, count, terms = [], None, 0, 0
    for images, labels in batches:
        size, count, terms = size or len(images), count + len(images), terms + counted(labels, loss)
        step = _compiled_step() if compile and len(images) == size else _step
        risk, errors, norms = step(net, taps, images, labels, loss)
        # One tensor a batch (layers, 3, B): many small ones that are kept would lie where maps were freed, and by 2,000 images
        # the heap had grown by gigabytes. Stacked out here: in the compiled graph it costs a third of an evaluation.
        results.append((risk, errors, torch.stack([torch.stack(three) for three in norms]) if norms else None))
    if not results:
        raise ValueError("a probe needs at least one batch of (images, labels), got none.")
    losses, wrongs, of_batches = zip(*results)
    stacked = [of_batch for of_batch in of_batches if of_batch is not None]
    by_layer = torch.cat(stacked, -1).cpu() if stacked else ()  # (called layers, 3, n): one transfer
    called = [(layer.name, tap.probe_map) for layer, tap in zip(layers, taps) if tap.probe_norms is not None]
    found = {name: LayerNorms(x, branch, out, size) for (name, size), (x, branch, out) in zip(called, by_layer)}
    risk_sum, wrong_sum = float(torch.stack(losses).sum()), float(torch.stack(wrongs).sum())
    return ProbeResult(loss=risk_sum / terms, error=wrong_sum / terms, count=count, layers=found)


def _instrument(net: nn.Module, layers: Sequence[Layer]) -> tuple[nn.Module, list[Any]]:
    """A net that computes the same, on the same parameters, and the modules in it that record norms."""
    net, copied = unwrapped(net), shared_copy(net)
    copies = dict(zip(net.modules(), copied.modules()))
    taps: list[Any] = []
    for layer in layers:
        tap: Any = copies.get(layer.module)
        if tap is None:
            raise ValueError(f"{layer.name} is not a layer of this {type(net).__name__}: use layers_of(net).")
        tap.probe_name, tap.probe_skip = layer.name, layer.skip
        tap.register_forward_hook(_record)
        taps.append(tap)
    return copied, taps


def _record(tap: Any, inputs: tuple[Tensor, ...], out: Tensor) -> None:
    """Forward hook. It closes over nothing, so that dynamo shares one graph among all copies of an architecture."""
    if tap.probe_norms is not None:
        raise UserError(
            f"a cushion needs a layer that the net calls once, {tap.probe_name} is called twice: leave it out."
        )
    x, conv = _wide(inputs[0]), isinstance(tap, nn.Conv2d)
    linear = _wide(out)
    if tap.bias is not None:
        linear = linear - (tap.bias[:, None, None] if conv else tap.bias)
    branch = whole = sample_norms(linear)
    if tap.probe_skip:  # S x of a convolution, or of a linear map on vectors (B, C)
        skipped = shortcut(x, len(out[0]), tap.stride[0]) if conv else shortcut(x[..., None, None], out.shape[-1])
        whole = sample_norms(linear + skipped.view_as(linear))
    tap.probe_norms = (sample_norms(x), branch, whole)
    tap.probe_map = tuple(x.shape[2:] if conv else x.shape[1:-1])


def _wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _step(
    net: nn.Module, taps: list[Any], images: Tensor, labels: Tensor, loss: Loss
) -> tuple[Tensor, Tensor, list[Norms]]:
    """Sum of losses, number of errors, norms of every called layer, for one batch."""
    for tap in taps:
        tap.probe_norms = None
    logits = _wide(net(images))
    risk = loss(logits, labels).double() * counted(labels, loss)
    errors = wrong(logits, labels, loss)
    errors = torch.full((), math.nan, device=logits.device) if errors is None else errors
    return risk, errors, [tap.probe_norms for tap in taps if tap.probe_norms is not None]


@functools.cache
def _compiled_step() -> Callable[..., tuple[Tensor, Tensor, list[Norms]]]:
    """Made at the first use: importing the compiler takes seconds."""
    return torch.compile(_step, dynamic=False)
