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
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from lightning_app.common.calls import form_of
from lightning_app.common.errors import UserError
from lightning_app.common.isolation import is_of_device, unwrapped
from lightning_app.identity import shortcut
from lightning_app.measures.core.hooks import HALF, check_evaluating, sample_norms, shared_copy
from lightning_app.measures.core.losses import (
    Loss,
    ReturnedLoss,
    counted,
    counts_of,
    cross_entropy,
    no_mean,
    outside_classes,
    wrong,
)
from lightning_app.networks.layers import ROLES, Layer, layers_of

Norms = tuple[Tensor, Tensor, Tensor]  # of input, branch and output at one layer, each (B,) float64


@dataclass(frozen=True, eq=False)
class LayerNorms:
    """2-norms per sample at one layer, over all its channels and positions, on the CPU. The bias is excluded.

    NaN in batches in which the rows of the layer's input are not samples.
    """

    input: Tensor  # (n,) float64, ||x||
    branch: Tensor  # (n,) float64, ||W x||
    output: Tensor  # (n,) float64, ||W x + S x||; the branch where the layer has no skip
    # Of each sample: (H, W) of a convolution's input, of a transposed one's input, then its output; of a linear map what lies
    # between batch and features; of an embedding the tokens.
    map_sizes: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, eq=False)
class ProbeResult:
    """Results of one forward pass over the probe data."""

    loss: float  # mean over samples (or tokens that count), of the cross-entropy in nats; NaN if the loss is not such a mean
    error: float  # fraction of these misclassified, 0..1; NaN if the labels are not classes
    layers: dict[str, LayerNorms]  # by layer name


@torch.no_grad()
def probe_forward(
    net: nn.Module,
    layers: Sequence[Layer],
    batches: Iterable[tuple[Tensor, Tensor]],
    compile: bool = False,
    loss: Loss = cross_entropy,
) -> ProbeResult:
    """Loss, error rate and the norms at all layers, in one pass over the data.

    Args:
        net: images -> logits (B, classes), in evaluation mode. A copy that shares its tensors is measured, so no hook stays
            behind and it does not matter whether the net was compiled.
        layers: layers of this net, each at one of its calls (`Layer.at_call`). Calls that the forward pass does not make are
            absent from the result. Half-precision activations are converted to float32.
        batches: (images, labels) on the net's device, in any memory format and order.
        compile: measure in one graph, which is compiled once for each architecture and batch size and used for all epochs and
            nets of that architecture. A shorter last batch is measured uncompiled.
        loss: (outputs, labels) -> the mean over a batch.

    Cost: one forward pass plus two reductions a layer, three with a skip. Compiled it takes about a tenth longer than an
    evaluation of the same images (docs/speed.md, "measures"), uncompiled about twice as long.

    Raises:
        UserError: for a net in training mode, no batches, samples without any label that counts, and a skip that cannot be
            written into the layer's kernel (`Layer.identity`).
    """
    check_evaluating(net, "a probe")
    net, taps = _instrument(net, layers)
    places = [_place(layer) for layer in layers]
    means = _Means(net, loss)
    size = terms = 0  # samples of the first batch; labels that count
    losses: list[Tensor] = []  # of each batch, summed over its terms
    wrongs: list[Tensor] = []
    by_batch: list[Tensor] = []  # norms, (called layers, 3, B) each
    sizes: list[list[tuple[int, ...]]] = []  # of each sample, the maps of the called layers
    for images, labels in batches:
        means.look_at(images, labels)
        size, few = size or len(images), counted(labels, loss)
        step = _compiled_step() if compile and len(images) == size else _step
        risk, errors, norms = step(net, taps, places, images, labels, loss)
        terms += few
        losses.append(risk * few if few else torch.zeros_like(risk))
        wrongs.append(errors)
        # One tensor a batch: many small ones that are kept would lie where maps were freed, and by 2,000 images the heap had
        # grown by gigabytes. Stacked out here: in the compiled graph it costs a third of an evaluation.
        if norms:
            by_batch.append(torch.stack([_of_all(three, len(labels)) for three in norms]))
        sizes += [[maps for _, maps in _recorded(taps, places)]] * len(labels)
    if not losses:
        raise UserError("a probe needs at least one batch of (images, labels), got none: check the probe's loader.")
    if not terms:
        raise UserError(
            "a risk needs a label that counts, but all labels of the probe are ignored: choose other probe samples."
        )
    by_layer = torch.cat(by_batch, -1).cpu() if by_batch else ()  # (called layers, 3, n): one transfer
    called = [layer.name for layer, tap, at in zip(layers, taps, places) if at < len(tap.probe_found)]
    found = {
        name: LayerNorms(x, branch, out, maps) for name, (x, branch, out), maps in zip(called, by_layer, zip(*sizes))
    }
    risk_sum, wrong_sum = float(torch.stack(losses).sum()), float(torch.stack(wrongs).sum())
    mean = math.nan if means.contradicted else risk_sum / terms
    return ProbeResult(loss=mean, error=wrong_sum / terms, layers=found)


def _instrument(net: nn.Module, layers: Sequence[Layer]) -> tuple[nn.Module, list[Any]]:
    """A net that computes the same, on the same parameters, and the modules in it that record norms."""
    net, copied = unwrapped(net), shared_copy(net)
    copies = dict(zip(net.modules(), copied.modules()))
    taps: list[Any] = []
    for layer in layers:
        tap: Any = copies.get(layer.module)
        if layer.skip:
            layer.identity()  # raises where S x cannot be written
        if tap is None:
            raise ValueError(f"{layer.name} is not a layer of this {type(net).__name__}: use layers_of(net).")
        if not hasattr(tap, "probe_skip"):
            tap.register_forward_hook(_record, with_kwargs=True)
        tap.probe_skip, tap.probe_found = layer.skip, ()  # what `_record` found at each call
        taps.append(tap)
    return copied, taps


def _of_all(norms: Norms, samples: int) -> Tensor:
    """(3, B); one row stands for all samples where a layer's input does not depend on them, as positions do not.

    NaN where its rows are others, as those of an expert to which a gate sends some of the samples.
    """
    none = norms[0].new_full((samples,), math.nan)
    return torch.stack([norm.expand(samples) if len(norm) in (1, samples) else none for norm in norms])


def _place(layer: Layer) -> int:
    """Of a layer at one call among what its module recorded."""
    return (layer.call - 1) * len(ROLES) + ROLES.index(layer.role) if layer.role else layer.call - 1


def _recorded(taps: list[Any], places: list[int]) -> list[tuple[Norms, tuple[int, ...]]]:
    """Norms and size of maps of every called layer in the last pass."""
    return [tap.probe_found[at] for tap, at in zip(taps, places) if at < len(tap.probe_found)]


def _record(tap: Any, inputs: tuple[Tensor, ...], named: dict[str, Any], out: Any) -> None:
    """Forward hook. It closes over nothing, so that dynamo shares one graph among all copies of an architecture."""
    if isinstance(tap, nn.MultiheadAttention):
        found = _of_attention(tap, inputs, named, out[0])
    else:
        found = [_of_layer(tap, _wide(inputs[0] if inputs else named["input"]), _wide(out))]
    tap.probe_found = (*tap.probe_found, *found)


def _of_layer(tap: Any, x: Tensor, linear: Tensor) -> tuple[Norms, tuple[int, ...]]:
    if isinstance(tap, nn.Embedding):  # x has a 1 for each token
        branch = sample_norms(linear)
        return (torch.full_like(branch, math.sqrt(x[0].numel())), branch, branch), tuple(x.shape[1:])
    conv = isinstance(tap, _ConvNd)
    if tap.bias is not None:
        linear = linear - (tap.bias.view(-1, *(1,) * (x.ndim - 2)) if conv else tap.bias)
    branch = whole = sample_norms(linear)
    if tap.probe_skip:  # S x of a convolution, or of a linear map, at each place: features are cut off, or zeros added
        features = linear.shape[-1] - x.shape[-1]
        whole = sample_norms(linear + (shortcut(x, len(linear[0]), tap.stride[0]) if conv else F.pad(x, (0, features))))
    size = x.shape[2:] if conv else x.shape[1:-1]
    return (sample_norms(x), branch, whole), (*size, *(linear.shape[2:] if isinstance(tap, _ConvTransposeNd) else ()))


def _of_attention(tap: Any, inputs: tuple, named: dict[str, Any], out: Tensor) -> list[tuple[Norms, tuple[int, ...]]]:
    """Of the maps of query, key, value and output. What goes into the last is the output of the same attention without it."""
    given = dict(zip(("query", "key", "value"), inputs)) | named
    weights = [layer.weight for layer in layers_of(tap)]
    pairs = [(given[role], F.linear(given[role], weight)) for role, weight in zip(ROLES[:-1], weights)]
    plain = {"module.out_proj.weight": torch.ones_like(weights[-1][0]).diag()}
    if (bias := tap.out_proj.bias) is not None:
        plain["module.out_proj.bias"], out = torch.zeros_like(bias), out - bias
    pairs.append((functional_call(_WithoutHooks(tap), plain, inputs, named)[0], out))
    if not tap.batch_first and out.ndim == 3:
        pairs = [(x.transpose(0, 1), y.transpose(0, 1)) for x, y in pairs]
    branches = [(sample_norms(_wide(x)), sample_norms(_wide(y)), tuple(x.shape[1:-1])) for x, y in pairs]
    return [((x, y, y), size) for x, y, size in branches]


class _WithoutHooks(nn.Module):
    """A module's own forward pass."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: Any, **named: Any) -> Any:
        return self.module.forward(*inputs, **named)


def _wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype in HALF else x


def _step(
    net: nn.Module, taps: list[Any], places: list[int], images: Tensor, labels: Tensor, loss: Loss
) -> tuple[Tensor, Tensor, list[Norms]]:
    """Mean loss, number of errors, norms of every called layer, for one batch."""
    for tap in taps:
        tap.probe_found = ()
    out = net(images)
    logits = _wide(out)
    # A net's own loss is found by what it returned.
    risk = loss(out if isinstance(loss, ReturnedLoss) else logits, labels)
    errors = wrong(logits, labels, loss)
    failed = risk.isnan() & (counts_of(labels, loss) > 0)  # the mean over none is NaN too
    if errors is None:
        errors = torch.full((), math.nan, device=logits.device)
    else:
        errors = torch.where(outside_classes(logits, labels, loss).any() | failed, math.nan, errors)
    return risk.double(), errors, [norms for norms, _ in _recorded(taps, places)]


class _Means:
    """Whether a loss is a mean over samples, as the first batches tell: else the risk of all would depend on their batches."""

    def __init__(self, net: nn.Module, loss: Loss) -> None:
        self._net, self._loss = net, loss
        self.contradicted = False
        self._asked = False
        self._alike: tuple[Any, Tensor] | None = None  # two of the first batch, where that is of one class

    def look_at(self, images: Any, labels: Tensor) -> None:
        """Ask of the first batch, and where that is of one class, with the first batch of another class once more."""
        if not self._asked and len(labels) > 1:  # one sample says nothing
            self._asked, self.contradicted = True, not self._is_mean([(images, labels)])
            if not self.contradicted and bool((labels == labels[0]).all()):  # which may hide the weights of classes
                self._alike = images[[0, 1]], labels[[0, 1]]
        elif (
            self._alike is not None
            and form_of((images, labels)) == form_of(self._alike)  # else they cannot be joined
            and bool((labels != self._alike[1][0]).any())
        ):
            self.contradicted = not self._is_mean([self._alike, (images[:2], labels[:2])])
            self._alike = None

    def _is_mean(self, samples: Sequence[tuple[Any, Tensor]]) -> bool:
        if self._loss is cross_entropy or isinstance(self._loss, ReturnedLoss):
            return True
        try:
            return no_mean(lambda x: _wide(self._net(x)), samples, self._loss) is None
        except (IndexError, RuntimeError, ValueError) as error:  # a loss of pairs, for example, takes no single sample
            if is_of_device(error) or isinstance(error, UserError):
                raise
            return True


@functools.cache
def _compiled_step() -> Callable[..., tuple[Tensor, Tensor, list[Norms]]]:
    """Made at the first use: importing the compiler takes seconds."""
    return torch.compile(_step, dynamic=False)
