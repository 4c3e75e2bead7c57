"""Effective depth: how much the paths of each length contribute to a net's outputs and to its gradient.

A residual net is the sum over its paths (see `unravel`). Its paths of length r contribute f_r to the outputs, where
sum_r f_r + b = f with the readout's bias b, and g_r to the gradient of the loss. Littwin & Wolf (2016) model f_r by weights eps_r
of a spin glass; here it is measured, gate by gate.

The parts g_r and the part of b add up to the gradient with gates held fixed. In nets of ReLUs, leaky ReLUs, BatchNorms and max
pools this is the gradient. Gates of other functions change continuously, and the rest of the gradient goes through them:
g = sum_r g_r + g_b + g_gates. d_grad does not include g_gates.

Conventions. Expectations are over samples; for tokens, over those whose label counts. The length of a path is the number of
weight layers that it passes, without the readout, a layer whose output is the net's output. So a net of p layers before its
readout has lengths 1 to p, and a skipped layer is one that a path may avoid. Gates, statistics of normalisation and attention
patterns are those of the sample. Constants start paths of their own, with length 1 where they enter; the paths from the inputs
are also reported alone. Outputs are centred over the classes, since the softmax ignores a common shift. A net in half precision
is resolved in float32.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, cast

import torch
from torch import Tensor, nn

from lightning_app.common.calls import Inputs, adapt, behind_loss, sample_tensors
from lightning_app.common.errors import UserError
from lightning_app.common.isolation import trained_weights, unwrapped
from lightning_app.common.numbers import plural
from lightning_app.measures.core.histogram import Histogram
from lightning_app.measures.core.hooks import (
    check_evaluating,
    check_not_merged,
    in_float32,
    nearly_same,
    shared_copy,
)
from lightning_app.measures.core.losses import Batch, Batches, Loss, counted, cross_entropy, rows_of, scalar_loss
from lightning_app.measures.curvature.hessian import MEMORY
from lightning_app.measures.paths import rules  # noqa: F401, which `unravel` finds by torch function
from lightning_app.measures.paths.unravel import AtRootOfUnity, ByLength, Kind, NoPaths, unravel

CHUNK = 8  # samples whose parts are in memory at a time: more is slower, up to twice
GRADIENT_CHUNK = 32  # the same at a root of unity, where there are only two parts
COUNTS = 1_000_000  # of a histogram of shares
BY_LENGTH = ByLength(torch.zeros(1, device="cpu"))  # the kind of parts
TOLERANCE = 1e-3  # of the largest output, in any precision: what was left out shows by far


class NoBranches(UserError):
    """All paths have the same length, as in a net without skip connections."""


@dataclass(frozen=True, eq=False)
class PathOutputs:
    """``outputs.sum(0) + constant`` are the net's outputs."""

    lengths: Tensor  # (R,) int64, ascending
    outputs: Tensor  # (R, B, C), (R, B, T, C) of T tokens: f_r, of all paths of a length
    from_input: Tensor  # the same of those that start at the input; the others start at a constant
    constant: Tensor  # (B, C) or (B, T, C): the readout's bias
    input_lengths: tuple[int, ...]  # lengths of the paths from the input
    gated: bool  # whether a gate changes continuously, so that a part of the gradient belongs to no path


@dataclass(frozen=True, eq=False)
class PathGradients:
    """Gradients with respect to all trainable parameters, flattened in their order.

    ``gradients.sum(0) + constant`` is the gradient of the loss with gates held fixed; plus ``through_gates``, it is the gradient.
    """

    lengths: Tensor  # (R,) int64
    gradients: Tensor  # (R, N): g_r
    constant: Tensor  # (N,): of the readout's bias
    through_gates: Tensor  # (N,): exactly 0 if no gate changes continuously


@torch.no_grad()
def path_outputs(net: nn.Module, inputs: Tensor | Inputs) -> PathOutputs:
    """The outputs (B, C) for inputs (B, ...), or (B, T, C) for tokens (B, T), resolved by path length.

    Cost: K (p + 1) / 2 forward passes, where K is 2 because constants start paths too.

    Raises:
        NoPaths: as `unravel`, and for a net whose output has another shape or is not the sum of its paths.

    >>> net = nn.Linear(1, 1, bias=False)  # a readout alone: its inputs are paths of length 0
    >>> _ = nn.init.constant_(net.weight, 3.0)
    >>> found = path_outputs(net, torch.tensor([[2.0]]))
    >>> found.lengths.tolist(), found.outputs.tolist()
    ([0], [[[6.0]]])
    """
    net, inputs = _in_full(net, inputs)
    out = unravel(net, inputs, BY_LENGTH)
    first = sample_tensors(inputs)[0]
    of_tokens = not first.is_floating_point() and out.ndim == 3 and out.shape[:2] == first.shape
    if out.ndim != 2 and not of_tokens:
        raise NoPaths(
            "path lengths need outputs of shape (samples, classes), or for inputs of tokens (samples, tokens, classes), but "
            f"this net makes {tuple(out.shape)} of {tuple(first.shape)} {'numbers' if first.is_floating_point() else 'tokens'}."
        )
    parts = cast(ByLength, out.output_parts)
    found, nothing = dict(zip(parts.kinds, parts.stack)), torch.zeros_like(parts.stack[0])
    # The readout's bias would otherwise be called a path of length 0.
    constant = found.pop(Kind("constant", 0), nothing) if out.from_layer else nothing
    lengths = sorted({kind.length for kind in found})
    from_input = torch.stack([found.get(Kind("input", length), nothing) for length in lengths])
    from_constant = torch.stack([found.get(Kind("constant", length), nothing) for length in lengths])
    of_input = tuple(length for start, length in parts.kinds if start == "input")
    resolved = PathOutputs(
        torch.tensor(lengths, device="cpu"), from_input + from_constant, from_input, constant, of_input, parts.gated
    )
    expected = net(inputs)
    if expected.isfinite().all() and not nearly_same(resolved.outputs.sum(0) + constant, expected, TOLERANCE):
        raise NoPaths(
            "this net cannot be resolved by path length, because its paths do not add up to its outputs: it changes a "
            "tensor through a view of it, or depends on something other than its inputs."
        )
    return resolved


def _in_full(net: nn.Module, inputs: Any) -> tuple[nn.Module, Any]:
    """A copy with the same parameters; for a net in half precision, a copy in float32, where parts add up."""
    check_evaluating(net, "a resolution by path length")
    net, (inputs,) = in_float32(net, [inputs])
    copied = shared_copy(net)
    adapt(copied)
    return copied, inputs


def path_gradients(
    net: nn.Module,
    inputs: Tensor | Inputs,
    labels: Tensor,
    loss: Loss = cross_entropy,
    names: Collection[str] | None = None,
) -> PathGradients:
    """The gradient of a batch's loss, resolved by path length: g_r = grad <delta, f_r>, delta = dL/df and gates held fixed.

    It is taken with respect to the parameters ``names``; None for all trainable ones. The g_r are the Fourier transform of
    gradients at roots of unity. So if two parts cancel, or one is much smaller than the largest, its relative error exceeds the
    rounding of the precision by that factor.

    Cost: 2 (p + 1) gradients of the batch, and memory for as many; one more if gates change continuously.

    Raises:
        UserError: as `path_outputs`; for a loss that is not one number for a batch; and if ``names`` include no trained
            parameter, or a name that is not one.
    """
    net, inputs = _in_full(net, inputs)
    check_not_merged(net, inputs[:1])
    weights = _asked(net, names)
    few = path_outputs(net, inputs[:1])
    longest = int(few.lengths[-1])
    delta = _delta(net, inputs, labels, loss)
    half = (longest + 1) // 2 + 1  # of the roots of unity: the others are their conjugates
    spectrum = torch.stack([_root_gradient(net, inputs, delta, weights, k, longest) for k in range(half)])
    by_length = torch.fft.irfft(spectrum.conj(), longest + 1, dim=0)
    constant = _constant_gradient(net, inputs[:1], delta, weights)
    by_length[0] -= constant  # a readout's bias has length 0 too
    gradients = by_length[few.lengths.to(by_length.device)]
    through_gates = torch.zeros_like(constant)
    if few.gated:
        with torch.enable_grad():
            whole = _flat_gradient((net(inputs) * delta).sum(), weights)
        through_gates = whole - gradients.sum(0) - constant
    return PathGradients(few.lengths, gradients, constant, through_gates)


def _asked(net: nn.Module, names: Collection[str] | None) -> list[nn.Parameter]:
    """In the net's order."""
    trained = trained_weights(net)
    if wrong := [name for name in names or () if name not in trained]:
        raise UserError(
            f"path gradients need names of trained parameters, but '{wrong[0]}' is not a trained parameter of this "
            f"{type(net).__name__}."
        )
    weights = [weight for name, weight in trained.items() if names is None or name in names]
    if not weights:
        raise UserError(
            f"path gradients need a trained parameter, but this {type(net).__name__} is frozen, has no parameters, or names "
            "is empty: use path_outputs."
        )
    return weights


@torch.enable_grad()
def _root_gradient(
    net: nn.Module, inputs: Tensor | Inputs, delta: Tensor, weights: Sequence[Tensor], k: int, longest: int
) -> Tensor:
    """(N,) complex: the gradient of <delta, sum_r t^r f_r> at the k-th root of unity."""
    out = unravel(net, inputs, AtRootOfUnity(delta.new_zeros(2), 2 * torch.pi * k / (longest + 1)))
    stack = out.output_parts.stack  # real and imaginary part, (2, B, C)
    real, imaginary = (stack * delta).flatten(1).sum(1)
    of_real = _flat_gradient(real, weights, retain_graph=True)
    is_real = 2 * k % (longest + 1) == 0  # at t = 1 and -1 all is
    return torch.complex(of_real, torch.zeros_like(of_real) if is_real else _flat_gradient(imaginary, weights))


@torch.enable_grad()
def _constant_gradient(net: nn.Module, sample: Tensor | Inputs, delta: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """(N,): of the readout's bias, which is the same for all samples."""
    out = unravel(net, sample, BY_LENGTH)
    parts = cast(ByLength, out.parts)
    bias = dict(zip(parts.kinds, parts.stack)).get(Kind("constant", 1)) if out.from_layer else None
    if bias is None or not bias.requires_grad:
        return torch.zeros_like(torch.cat([weight.detach().flatten() for weight in weights]))
    return _flat_gradient((bias * delta.sum(0)).sum(), weights)


def _flat_gradient(of: Tensor, weights: Sequence[Tensor], retain_graph: bool = False) -> Tensor:
    found = torch.autograd.grad(of, weights, retain_graph=retain_graph, allow_unused=True, materialize_grads=True)
    return torch.cat([gradient.flatten() for gradient in found])


@torch.enable_grad()
def _delta(net: nn.Module, inputs: Tensor | Inputs, labels: Tensor, loss: Loss) -> Tensor:
    """dL/df, (B, C)."""
    outputs = net(inputs)
    if (of := behind_loss(outputs)) is outputs:
        of = outputs = outputs.detach().requires_grad_()
    return torch.autograd.grad(scalar_loss(loss(outputs, labels)), of)[0]


@dataclass(frozen=True, eq=False)
class EffectiveDepth:
    """Mean path lengths, in weight layers. They are weighted differently, so their values differ."""

    effective: float  # d_eff = sum_r r E|f_r|^2 / sum_r E|f_r|^2: in [shortest, longest]
    coherent: float  # d_coh = sum_r r E<f_r, f> / E|f|^2, f = sum f_r: any number, as cancelling parts count negatively
    gradient: float  # d_grad = sum_r r |g_r|^2 / sum_r |g_r|^2: in [shortest, longest]; NaN if nothing is trained
    gate_share: float  # |g_gates|^2 / (|g_gates|^2 + |g - g_gates|^2): in [0, 1]; exactly 0 with ReLUs and BatchNorms
    longest: int  # p
    relative: float  # d_eff / p
    effective_input: float  # d_eff of the paths that start at the input
    bias_share: float  # 1 - E|f of paths from the input|^2 / E|f|^2, summed by length; negative where they cancel
    distribution: Histogram  # of sum_r E|f_r|^2 over r, in millionths
    lengths: Tensor  # (R,) int64
    outputs: Tensor  # (R,) float64: E|f_r|^2
    gradients: Tensor  # (R,) float64: |g_r|^2


def effective_depth(
    net: nn.Module,
    batches: Batches,
    loss: Loss = cross_entropy,
    gradient_samples: int | None = None,
    at_once: int | None = None,
) -> EffectiveDepth:
    """Effective depth of a residual net in evaluation mode, from its outputs and gradients on samples.

    Args:
        batches: (inputs, labels), of any batch size and, for tokens, of any lengths. Expectations and gradients are over all of
            them together.
        loss: (outputs, labels) -> mean over a batch.
        gradient_samples: number of samples for d_grad, the first ones; None for all.
        at_once: number of samples whose parts may be in memory together; None for the fastest choice.

    Raises:
        NoBranches: if all paths from the input have the same length.
        UserError: as `path_outputs`, and for no samples.
    """
    pairs = [(inputs, labels) for inputs, labels in batches if len(inputs)]
    if not pairs:
        raise UserError("an effective depth needs at least one sample, got none.")
    net = unwrapped(net)
    lengths = _lengths(net, pairs)
    found = [_squares(net, *few, loss) for few in _pieces(pairs, min(CHUNK, at_once or CHUNK))]
    sums, terms = zip(*found)
    by_output, by_input, coherence = torch.stack(sums).sum(0) / sum(terms)
    longest = int(lengths[-1])
    some = [*_first(pairs, gradient_samples)]
    by_gradient, gate_share = _gradient_squares(net, some, loss, lengths, at_once or GRADIENT_CHUNK)
    effective = _mean_length(lengths, by_output)
    return EffectiveDepth(
        effective=effective,
        coherent=_mean_length(lengths, coherence),
        gradient=_mean_length(lengths, by_gradient),
        gate_share=gate_share,
        longest=longest,
        relative=effective / longest,
        effective_input=_mean_length(lengths, by_input),
        bias_share=float(1 - by_input.sum() / by_output.sum()),
        distribution=_distribution(lengths, by_output),
        lengths=lengths,
        outputs=by_output,
        gradients=by_gradient,
    )


def _lengths(net: nn.Module, pairs: Sequence[Batch]) -> Tensor:
    """Of all paths, (R,): the same for all batches, of which one sample is looked at."""
    first, *others = (path_outputs(net, inputs[:1]) for inputs, _ in pairs)
    if len(first.input_lengths) < 2:
        raise NoBranches(
            "effective depth needs a net with skip connections, but in this one every path from the input passes "
            f"{plural(first.input_lengths[0], 'weight layer')}: measure a residual net."
        )
    if any(other.lengths.tolist() != first.lengths.tolist() for other in others):
        raise NoPaths(
            "this net cannot be resolved by path length, because its lengths depend on that of the sequence: measure "
            "sequences of one length."
        )
    return first.lengths


def _pieces(pairs: Iterable[Batch], size: int) -> Iterator[Batch]:
    for inputs, labels in pairs:
        yield from zip(inputs.split(size), labels.split(size), strict=True)


def _first(pairs: Iterable[Batch], count: int | None) -> Iterator[Batch]:
    for inputs, labels in pairs:
        if count is None or count > 0:
            yield inputs[:count], labels[:count]
            count = None if count is None else count - len(labels)


def _squares(net: nn.Module, inputs: Any, labels: Tensor, loss: Loss) -> tuple[Tensor, int]:
    """Sums over n terms of |f_r|^2, of the same of the paths from the input, and of <f_r, f>, (3, R); and n."""
    found = path_outputs(net, inputs)
    f, from_input = (_centred(_rows(parts, labels, loss)) for parts in (found.outputs, found.from_input))  # (R, n, C)
    products = (f * f, from_input * from_input, f * f.sum(0))
    return torch.stack([each.sum((1, 2)) for each in products]).cpu(), f.shape[1]


def _rows(parts: Tensor, labels: Tensor, loss: Loss) -> Tensor:
    """(R, n, C): a row for each term of the loss, or for each token where labels are no classes of tokens."""
    if parts.ndim == labels.ndim + 2:
        parts = torch.stack([rows_of(part, labels, loss)[0] for part in parts])
    return parts.flatten(1, -2)


def _gradient_squares(
    net: nn.Module, pairs: Sequence[Batch], loss: Loss, lengths: Tensor, at_once: int
) -> tuple[Tensor, float]:
    """|g_r|^2, (R,), of the mean over all samples, 0 where nothing is trained; and the share of g_gates."""
    chunk = min(GRADIENT_CHUNK, at_once)
    if not (of_all := sum(counted(labels, loss) for _, labels in pairs)):
        raise UserError(
            "path gradients need a label that counts, but all labels are ignored: choose other probe samples."
        )
    squares, through, frozen = torch.zeros_like(lengths, dtype=torch.float64), 0.0, 0.0
    for names in _groups(net, int(lengths[-1]), MEMORY * chunk // GRADIENT_CHUNK):
        parts = (
            _times(path_gradients(net, few, of_few, loss, names), terms / of_all)
            for few, of_few in _pieces(pairs, chunk)
            if (terms := counted(of_few, loss))
        )
        gradients, constant, through_gates = reduce(lambda some, more: [*map(torch.add, some, more)], parts)
        squares = squares + gradients.double().square().sum(1).cpu()
        through += float(through_gates.double().square().sum())
        frozen += float((gradients.sum(0) + constant).double().square().sum())
    return squares, through / (through + frozen) if through + frozen else math.nan


def _times(found: PathGradients, share: float) -> list[Tensor]:
    return [share * each for each in (found.gradients, found.constant, found.through_gates)]


def _groups(net: nn.Module, longest: int, memory: int) -> list[list[str]]:
    """Names of the trainable parameters, in groups whose path gradients fit into memory: a pass over the net for each."""
    groups: list[list[str]] = []
    room = 0
    for name, weight in trained_weights(net).items():
        needed = 4 * (longest + 1) * weight.numel() * weight.element_size()  # spectrum and transform
        if not groups or needed > room:
            groups.append([])
            room = memory
        groups[-1].append(name)
        room -= needed
    return groups


def _centred(outputs: Tensor) -> Tensor:
    """float64, less the mean over classes where there are several."""
    outputs = outputs.double()
    return outputs - outputs.mean(-1, keepdim=True) if outputs.shape[-1] > 1 else outputs


def _mean_length(lengths: Tensor, weights: Tensor) -> float:
    return float((lengths * weights).sum() / weights.sum())


def _distribution(lengths: Tensor, weights: Tensor) -> Histogram:
    """One bin for each length from the shortest to the longest; all of them empty where the outputs are 0 or not finite."""
    first, last = int(lengths[0]), int(lengths[-1])
    counts = lengths.new_zeros(last - first + 1)
    counts[lengths - first] = (COUNTS * weights / weights.sum()).nan_to_num(nan=0.0).round().long()
    edges = torch.arange(first, last + 2, dtype=torch.float64, device="cpu") - 0.5
    return Histogram(counts, edges, below=0, above=0)
