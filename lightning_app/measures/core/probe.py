"""One forward pass over probe data that yields loss, error and, for every layer, the norms that cushions are made of.

The norms are reductions of tensors that the forward pass holds anyway. Taken inside it, in one compiled graph, they
cost a few per cent of an evaluation; activations are never kept. Squares are accumulated in float64: a float32 sum
over a 16x32x32 map is guaranteed to three digits only, and in the compiled graph float64 costs the same.
"""

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightning_app.common.errors import UserError
from lightning_app.common.isolation import unwrapped
from lightning_app.identity import shortcut
from lightning_app.measures.core.hooks import sample_norms, shared_copy
from lightning_app.networks.layers import Layer

__all__ = ["LayerNorms", "ProbeResult", "probe_forward"]

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

    loss: float  # mean over samples, of the cross-entropy in nats
    error: float  # fraction misclassified, 0..1; NaN where the labels are no classes
    count: int  # samples
    layers: dict[str, LayerNorms]  # by layer name


@torch.no_grad()
def probe_forward(
    net: nn.Module,
    layers: Sequence[Layer],
    batches: Iterable[tuple[Tensor, Tensor]],
    compile: bool = False,
    loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy,
) -> ProbeResult:
    """Loss, error and the norms at all layers, in one pass over the data.

    Args:
        net: images -> logits (B, classes). Used as it is: mode, random state and devices are the caller's. The measuring
            happens on a copy of its structure that shares its parameters and buffers, so neither hooks nor tensors
            stay behind, and it does not matter whether the net itself was compiled.
        layers: layers of this net. One that its forward pass never calls is absent from the result; one that it calls
            twice has no cushion and is refused. Half-precision activations are upcast.
        batches: (images, labels) on the net's device, in any memory format, shuffled or not.
        compile: measure in one compiled graph. Compiled once for each architecture and batch size, then shared by all
            epochs and nets of that architecture; a shorter last batch is measured without compiling.
        loss: (outputs, labels) -> the mean over a batch.

    Cost: one forward pass plus two reductions a layer, three with a skip. Compiled about a tenth more than an evaluation
    of the same images (docs/speed.md, "measures"); uncompiled about twice one.
    """
    net, taps = _instrument(net, layers)
    results, size, count = [], None, 0
    for images, labels in batches:
        size, count = size or len(images), count + len(images)
        step = _compiled_step() if compile and len(images) == size else _step
        risk, errors, norms = step(net, taps, images, labels, loss)
        results.append((risk, errors, _stack(norms) if norms else None))
    if not results:
        raise ValueError("a probe needs at least one batch of (images, labels), got none.")
    losses, wrong, of_batches = zip(*results)
    stacked = [batch for batch in of_batches if batch is not None]
    by_layer = torch.cat(stacked, -1).cpu() if stacked else ()  # (called layers, 3, n): one transfer
    called = [(layer.name, tap.probe_map) for layer, tap in zip(layers, taps) if tap.probe_norms is not None]
    return ProbeResult(
        loss=float(torch.stack(losses).sum()) / count,
        error=float(torch.stack(wrong).sum()) / count,
        count=count,
        layers={
            name: LayerNorms(of_layer[0], of_layer[1], of_layer[2], map_size)
            for (name, map_size), of_layer in zip(called, by_layer)
        },
    )


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
    if tap.probe_skip:
        whole = sample_norms(linear + _skip(tap, x))
    tap.probe_norms = (sample_norms(x), branch, whole)
    tap.probe_map = tuple(x.shape[2:] if conv else x.shape[1:-1])


def _stack(norms: list[Norms]) -> Tensor:
    """(layers, 3, B). Outside the compiled graph: inside, stacking spoils the fusion and costs a third of an evaluation.

    One tensor a batch and not three a layer: what is kept lies where maps were freed, and leaves too little room there for
    the next one. By 2,000 images the heap had grown by gigabytes.
    """
    return torch.stack([torch.stack(of_layer) for of_layer in norms])


def _skip(tap: Any, x: Tensor) -> Tensor:
    """S x of a convolution, or of a linear map on vectors (B, C)."""
    if isinstance(tap, nn.Conv2d):
        return shortcut(x, tap.out_channels, tap.stride[0])
    return shortcut(x[:, :, None, None], tap.out_features)[:, :, 0, 0]


def _wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _step(
    net: nn.Module, taps: list[Any], images: Tensor, labels: Tensor, loss: Callable[[Tensor, Tensor], Tensor]
) -> tuple[Tensor, Tensor, list[Norms]]:
    """Sum of losses, number of errors, norms of every called layer, for one batch."""
    for tap in taps:
        tap.probe_norms = None
    logits = _wide(net(images))
    risk = loss(logits, labels).double() * len(labels)
    return risk, _wrong(logits, labels), [tap.probe_norms for tap in taps if tap.probe_norms is not None]


def _wrong(logits: Tensor, labels: Tensor) -> Tensor:
    if logits.ndim != 2 or labels.ndim != 1 or labels.is_floating_point():
        return torch.full((), math.nan, device=logits.device)
    return (logits.argmax(1) != labels).sum()


@functools.cache
def _compiled_step() -> Callable[..., tuple[Tensor, Tensor, list[Norms]]]:
    """Made at the first use: importing the compiler takes seconds."""
    return torch.compile(_step, dynamic=False)
