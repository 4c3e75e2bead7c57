"""The exact ||J||_F of a block that describes its parts, without computing J.

``J = D2 (N2 C2 D1 N1 C1 + S)`` as in `block_jacobian`. ||J||_F^2 is a sum over the rows of J, those of the outputs (d, p)
that the last mask D2 lets through. Row (d, p) of the branch is ``sum_{m,t} a[m,t] c(m,t)`` with ``a[m,t] = w2[d,m,t]
D1[m,p+t]`` and c(m, t) the row of C1 at hidden channel m, t taps away from p. So its square is ``a^T G a``, G the Gram
matrix of the c, which is the same for all p that lie equally far from the borders (25 classes of p for 3x3 kernels).
Matrix products do the rest. Of a single convolution it is a convolution with the squared kernel.

With BatchNorm on a batch of one, N is a factor for each channel times I - P, and P has rank two in a channel. The
projections change J by a matrix of low rank: ``J = J0 - U V^T`` and ``||J||^2 = ||J0||^2 - 2 <J0 V, U> + <U^T U, V^T V>``.
"""

import itertools
from collections.abc import Iterator
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from lightning_app.measures.noise_stability.block_jacobian import BlockJacobian, Convolution, Stage
from lightning_app.measures.noise_stability.jacobian import FrobeniusNorm, frobenius_by_columns

PANELS = 4  # G is symmetric: of 4 x 4 panels 10 are multiplied
ROWS = 4096  # rows of J worked on together: their coefficients a stay in the cache


def block_norm(block: BlockJacobian) -> FrobeniusNorm:
    """Exact ||J||_F of every sample.

    Cost: of a block of two stages of the full depth-20 CIFAR net about three training steps of that net; three times as
    many with BatchNorm on a batch of one. Next to nothing for one stage. Three or more are multiplied with every basis
    vector.
    """
    if len(block.stages) > 2:
        return frobenius_by_columns(block.push, block.x)
    squares = _unprojected_squares(block)
    if any(stage.norm for stage in block.stages):
        left, right = (torch.cat(columns) for columns in zip(*_low_rank(block)))  # (r, B, D, H', W'), (r, B, C, H, W)
        cross = _sum((block.add_up(Stage.push_unprojected, right) * left).sum(0))
        squares = squares + ((_gram(left) * _gram(right)).sum((1, 2)) - 2 * cross)
    return FrobeniusNorm(squares.clamp(min=0).sqrt(), torch.zeros_like(squares))


def _unprojected_squares(block: BlockJacobian) -> Tensor:
    """||J0||_F^2 of one or two stages: sum of ||scale row + row of S||^2 over the outputs that are open. (B,) float64"""
    gate = torch.ones_like(block.image) if block.gate is None else block.gate
    scale, (first, *others) = block.stages[-1].scale, block.stages
    if others:
        total = _two_stage_squares(block, gate * scale**2)
    else:  # taps that read no padding
        squared = replace(first.conv, weight=first.conv.weight.square())
        total = _sum(gate * scale**2 * squared(torch.ones_like(block.x[:1])))
    if block.skip:
        channels = min(block.x.shape[1], block.image.shape[1])  # that S connects
        total = total + _sum(2 * scale * gate * _overlap(block)) + _sum(gate[:, :channels])
    return total


def _two_stage_squares(block: BlockJacobian, weights: Tensor) -> Tensor:
    """Sum of ``weights`` (B, D, H', W') times ||row||^2 of the branch, by the quadratic forms a^T G a. (B,)"""
    first, second = block.stages
    windows = F.unfold(first.open_scale, second.conv.weight.shape[2:], 1, second.conv.padding, second.conv.stride)
    outputs = windows.shape[2]
    windows = windows.transpose(1, 2).flatten(0, 1)  # (B P, K): what of the hidden map an output sees, K = (m, t)
    w2 = second.conv.weight.flatten(1)  # (D, K)
    rows = _hidden_rows(first.conv, second.conv)  # (K, C, R, Q)
    weights = weights.flatten(2)  # (B, D, P)
    total = torch.zeros(len(weights), dtype=torch.float64, device=weights.device)
    for places, inside in _border_classes(block):
        seen = (rows * inside).flatten(1)
        gram = seen @ seen.T
        for panel in _panels(len(gram)):  # an upper triangle of panels with the same quadratic form
            gram[panel, panel.stop :] *= 2
        here = weights[:, :, places]
        for sample, channel, place in (part.unbind(1) for part in here.nonzero().split(ROWS)):
            a = windows.index_select(0, sample * outputs + places[place]) * w2.index_select(0, channel)
            total.index_add_(0, sample, (here[sample, channel, place] * _form(a, gram)).double())
    return total


def _hidden_rows(first: Convolution, second: Convolution) -> Tensor:
    """c(m, t): the inputs that hidden channel m sees at tap t of an output, in the window of all that output sees.

    (K, C, R, Q): K hidden channels times taps, C input channels, R rows and Q columns of the window.
    """
    (hidden, channels, *taps), stride = first.weight.shape, first.stride[0]
    reach = [(window - 1) * stride + tap for window, tap in zip(second.weight.shape[2:], taps)]
    rows = first.weight.new_zeros(hidden, *second.weight.shape[2:], channels, *reach)
    for i, j in itertools.product(*map(range, second.weight.shape[2:])):
        rows[:, i, j, :, i * stride : i * stride + taps[0], j * stride : j * stride + taps[1]] = first.weight
    return rows.flatten(0, 2)


def _border_classes(block: BlockJacobian) -> Iterator[tuple[Tensor, Tensor]]:
    """Outputs by how their windows are cut off at the borders: (flat positions, mask of the window (R, Q))."""
    first, second = (stage.conv for stage in block.stages)
    height, width = block.image.shape[2:]
    axes = [_cuts(first, second, axis, block.x.shape[2 + axis], block.image.shape[2 + axis]) for axis in (0, 1)]
    (row_cuts, row_class), (column_cuts, column_class) = axes
    position = torch.arange(height * width, device="cpu").view(height, width)
    for i, j in itertools.product(range(len(row_cuts)), range(len(column_cuts))):
        places = position[row_class == i][:, column_class == j].flatten()
        inside = row_cuts[i][:, None] & column_cuts[j]
        yield places.to(block.x.device), inside.to(block.x)


def _cuts(first: Convolution, second: Convolution, axis: int, inputs: int, outputs: int) -> tuple[Tensor, Tensor]:
    """The different masks (classes, R) of a window on one axis: which of its places are inputs; class of each output."""
    stride, padding = first.stride[axis], first.padding[axis]
    reach = (second.weight.shape[2 + axis] - 1) * stride + first.weight.shape[2 + axis]
    start = (torch.arange(outputs, device="cpu") * second.stride[axis] - second.padding[axis]) * stride - padding
    place = start[:, None] + torch.arange(reach, device="cpu")
    return torch.unique((place >= 0) & (place < inputs), dim=0, return_inverse=True)


def _panels(size: int) -> Iterator[slice]:
    width = -(-size // PANELS)
    return (slice(start, min(start + width, size)) for start in range(0, size, width))


def _form(a: Tensor, gram: Tensor) -> Tensor:
    """a^T G a of every row a, G an upper triangle of panels. (N, K) -> (N,)"""
    total = a.new_zeros(len(a))
    for panel in _panels(len(gram)):
        total += ((a[:, : panel.stop] @ gram[: panel.stop, panel]) * a[:, panel]).sum(1)
    return total


def _overlap(block: BlockJacobian) -> Tensor:
    """<row of the branch without its last scale, row of S> for every output. Broadcasts to (B, D, H', W').

    S reads x[d, s p], which one convolution reads with its tap at ``padding``. Of two convolutions it is one place in
    the window of an output, and what they read there is a convolution of the hidden gates.
    """
    channels = min(block.x.shape[1], block.image.shape[1])
    first, last = block.stages[0].conv, block.stages[-1].conv
    if len(block.stages) == 1:
        taps = first.weight[:, :, *first.padding].diagonal()  # (channels,)
        return F.pad(taps, (0, len(last.weight) - channels))[:, None, None]
    row, column = (second * stride + own for second, stride, own in zip(last.padding, first.stride, first.padding))
    taps = _hidden_rows(first, last)[:, :channels, row, column].T  # (channels, K)
    kernel = torch.zeros_like(last.weight)
    kernel[:channels] = last.weight[:channels] * taps.unflatten(1, last.weight.shape[1:])
    return replace(last, weight=kernel)(block.stages[0].open_scale)


def _sum(maps: Tensor) -> Tensor:
    """(B, D, H, W) -> (B,) float64"""
    return maps.sum((1, 2, 3), dtype=torch.float64)


def _low_rank(block: BlockJacobian) -> Iterator[tuple[Tensor, Tensor]]:
    """Columns of U and of V of batch-of-one BatchNorm, stage by stage: behind it without projections, before it with them."""
    for place, stage in enumerate(block.stages):
        if stage.norm is None:
            continue
        axes = stage.norm.axes()
        left = stage.gated(stage.scale * axes)
        for later in block.stages[place + 1 :]:
            left = later.push_unprojected(left)
        right = stage.conv.transposed(axes, stage.size)
        for earlier in reversed(block.stages[:place]):
            right = earlier.pull(right)
        yield left if block.gate is None else block.gate * left, right


def _gram(vectors: Tensor) -> Tensor:
    """Inner products of vectors (r, B, ...), sample by sample. (B, r, r) float64"""
    rows = vectors.flatten(2).transpose(0, 1)
    return (rows @ rows.mT).double()
