"""Layer cushions: how much of its input a layer passes on, sample by sample (Yu & Tomasi 2019, section 5, Fig. 3).

The cushion of Arora et al. (2018) measures noise stability: a layer A with a large ``mu(x) = ||A x|| / (||A||_F ||x||)``
transmits its signal x far better than noise. The papers leave open what A is in a residual layer, where the net computes
``W x + S x``, and which norm is meant. All defensible readings are computed; none is silently chosen.

Readings of a residual layer (for a plain layer the three agree):

* paper: identity in the numerator, not in the norm: ``||W x + S x|| / (||W|| ||x||)``. "We measure the Frobenius norm of
  the weights of ResNets after removing 1 from the ID entries." Unbounded: W -> 0 gives infinity.
* transferred: identity in both, the cushion of the plain layer T(W): ``||W x + S x|| / (||T(W)|| ||x||)``.
* branch: identity in neither: ``||W x|| / (||W|| ||x||)``.

Norms: kernel is the Frobenius norm of the weights; operator is the Frobenius norm (not the spectral norm) of the matrix that
maps x to A x, zero padding included, about sqrt(output map) times larger. A does not include the bias.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from lightning_app.common.errors import UserError
from lightning_app.measures.core.histogram import Histogram, histogram
from lightning_app.measures.core.probe import LayerNorms
from lightning_app.networks.layers import Layer, padding_of

# Plain layers lie near 1/sqrt(C), residual ones near 3 and higher where ||r|| is small: 100 bins a decade, from 0.01.
EDGES = torch.logspace(-2, 2, 401, dtype=torch.float64, device="cpu")


@dataclass(frozen=True)
class WeightNorms:
    """The four norms a cushion can be divided by. Without a skip the transferred ones equal the others."""

    kernel: float  # ||W||_F of the weights
    operator: float  # ||.||_F of the matrix of x -> W x
    transferred_kernel: float  # the same two of T(W), the plain layer that computes W x + S x
    transferred_operator: float


@dataclass(frozen=True, eq=False)
class CushionStatistics:
    """Per-sample cushions of one layer and their statistics. Dimensionless; every value is >= 0.

    Unnamed statistics are the paper's reading with the kernel norm. Samples with the other norm are the same up to a
    factor: ``samples * kernel_norm / operator_norm``. Infinity: a residual layer with W = 0. NaN: W = 0 without a
    skip, only dead inputs (x = 0), or an input whose rows are not samples. If maps differ in size, each sample has its own
    operator norm, and those of the layer are NaN.
    """

    median: float  # over samples, the paper's reading, kernel norm
    minimum: float  # over data: the layer cushion proper, the largest mu with mu ||A|| ||x|| <= ||A x|| for all x
    mean: float  # over samples, the paper's reading, kernel norm
    median_operator: float  # the paper's reading, operator norm
    median_transferred: float  # identity in both, kernel norm
    median_transferred_operator: float  # identity in both, operator norm
    median_branch: float  # identity in neither, kernel norm
    median_branch_operator: float  # identity in neither, operator norm
    dead: int  # samples with x = 0; they are in no statistic
    kernel_norm: float  # ||W||_F, as `WeightNorms` has it
    operator_norm: float  # of the matrix of x -> W x
    transferred_kernel_norm: float  # ||T(W)||_F
    transferred_operator_norm: float  # of the matrix of x -> T(W) x
    histogram: Histogram  # of samples
    samples: Tensor  # (n,) float32, NaN where the input is dead, in probe order
    samples_transferred: Tensor  # (n,) float32
    samples_branch: Tensor  # (n,) float32


def cushions(layers: Sequence[Layer], norms: Mapping[str, LayerNorms]) -> dict[str, CushionStatistics]:
    """Cushions by layer, from the norms that `probe.probe_forward` computes (section 5); layers without norms are left out.

    Invariances: mu(a x) = mu(x) for a != 0; scaling all of A does not change plain, transferred and branch readings, but
    changes the paper's reading of a residual layer; permuting output channels changes nothing in a plain layer.

    Range: plain and transferred with the operator norm 0..1; with the kernel norm 0..sqrt(U V), 3 for 3x3 kernels of
    stride 1; paper's reading of a residual layer 0..infinity.

    Cost: a few passes over the weights for each map size.
    """
    return {layer.name: _layer_cushion(layer, norms[layer.name]) for layer in layers if layer.name in norms}


def _layer_cushion(layer: Layer, norms: LayerNorms) -> CushionStatistics:
    of_sizes = {size: vars(weight_norms(layer, size)) for size in dict.fromkeys(norms.map_sizes)}
    of_samples = [of_sizes[size] for size in norms.map_sizes]
    by = {
        field.name: torch.tensor([each[field.name] for each in of_samples], dtype=torch.float64, device="cpu")  # (n,)
        for field in fields(WeightNorms)
    }
    alive = norms.input != 0  # a NaN is alive: it must show

    readings = {
        "": (norms.output, "kernel"),
        "_operator": (norms.output, "operator"),
        "_transferred": (norms.output, "transferred_kernel"),
        "_transferred_operator": (norms.output, "transferred_operator"),
        "_branch": (norms.branch, "kernel"),
        "_branch_operator": (norms.branch, "operator"),
    }
    samples = {
        reading: torch.where(alive, numerator / (by[norm] * norms.input), math.nan)
        for reading, (numerator, norm) in readings.items()
    }
    paper = samples[""]
    # Not `torch.quantile`, which makes NaN of infinities.
    medians = ((reading, values[alive]) for reading, values in samples.items())
    found: dict[str, Any] = {f"median{key}": float(np.median(of)) if len(of) else math.nan for key, of in medians}
    found |= {f"{name}_norm": float(of[0]) if len(of.unique()) == 1 else math.nan for name, of in by.items()}
    found |= {f"samples{reading}": samples[reading].float() for reading in ("", "_transferred", "_branch")}
    return CushionStatistics(
        minimum=float(paper[alive].min()) if alive.any() else math.nan,
        mean=float(paper[alive].mean()),
        dead=int((~alive).sum()),
        histogram=histogram(paper, EDGES),
        **found,
    )


def weight_norms(layer: Layer, map_size: tuple[int, ...]) -> WeightNorms:
    """Kernel and operator norm of a layer, without and with the identity of its skip; ``map_size`` of a sample in `LayerNorms`.

    >>> halves = nn.Linear(2, 2, bias=False)
    >>> _ = nn.init.constant_(halves.weight, 0.5)
    >>> weight_norms(Layer("layer01", halves, "weight", skip=True), ())
    WeightNorms(kernel=1.0, operator=1.0, transferred_kernel=2.23606797749979, transferred_operator=2.23606797749979)
    """
    weight = layer.weight64()
    whole = layer.transferred()
    return WeightNorms(
        kernel=float(weight.norm()),
        operator=operator_norm(layer.module, map_size, weight),
        transferred_kernel=float(whole.norm()),
        transferred_operator=operator_norm(layer.module, map_size, whole),
    )


def operator_norm(module: nn.Module, map_size: tuple[int, ...], weight: Tensor | None = None) -> float:
    """Frobenius norm (not the spectral norm) of the matrix of x -> W x, exactly, without building it.

    A weight at tap (u, v) of a convolution occurs in the matrix once for every output position at which the tap reads the
    input, not its zero padding: ``||A||_F^2 = sum_{u,v} n_u(H) n_v(W) sum_{d,c} K[d,c,u,v]^2``, in any number of dimensions.
    A transposed convolution has the transposed matrix: a tap counts for every input position from which it writes into the
    output. Any other map is applied at each of its positions.

    Args:
        module: the layer, with its strides, padding, dilation and groups.
        map_size: size of a sample's maps, as in `LayerNorms`.
        weight: used instead of the module's own.

    Cost: one pass over the weights. ``||K||_F sqrt(Ho Wo)`` is an upper bound, 20 to 25 % too large on 5x5 maps.

    >>> sum3x3 = nn.Conv2d(1, 1, 3, padding=1)
    >>> _ = nn.init.ones_(sum3x3.weight)
    >>> operator_norm(sum3x3, (2, 2))  # each of the 4 outputs sees all 4 inputs
    4.0
    """
    given: Any = module.weight if weight is None else weight
    squares = given.detach().double().square()
    if not isinstance(module, _ConvNd):
        return math.sqrt(float(squares.sum()) * math.prod(map_size))
    if module.padding_mode != "zeros":
        raise UserError(
            f"the operator norm of a convolution is known only for zero padding, got padding_mode={module.padding_mode!r}, "
            "which reads border inputs twice: leave this layer out, or pad with zeros."
        )
    squares, transposed = squares.sum((0, 1)), isinstance(module, _ConvTransposeNd)  # (U, V)
    several = zip(module.kernel_size, module.stride, padding_of(module), module.dilation)
    for axis, (window, stride, padding, dilation) in enumerate(several):
        if transposed:
            places, size = map_size[axis], map_size[axis + len(module.kernel_size)]
        else:
            size = map_size[axis]
            places = (size + sum(padding) - dilation * (window - 1) - 1) // stride + 1
        readings = _readings(size, places, window, stride, padding[0], dilation).to(squares)
        squares = torch.tensordot(readings, squares, 1)
    return math.sqrt(float(squares))


def _readings(size: int, places: int, window: int, stride: int, before: int, dilation: int) -> Tensor:
    """n_u: at how many of the kernel's places tap u = 0..window-1 lies on one of ``size`` entries, not on padding. (window,)

    >>> _readings(32, 32, 3, 1, 1, 1).tolist(), _readings(32, 16, 3, 2, 1, 1).tolist()
    ([31, 32, 31], [15, 16, 16])
    """
    place, tap = (torch.arange(count, device="cpu") for count in (places, window))
    position = place[:, None] * stride + tap * dilation - before
    return ((position >= 0) & (position < size)).sum(0)
