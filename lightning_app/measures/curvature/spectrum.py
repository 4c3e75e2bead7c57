"""The spectrum of a symmetric map from a few dozen products: its ends with bounds, its trace, density, index and condition.

A first Lanczos run finds the ends. Further runs (``probes``) start from random vectors orthogonal to the eigenvectors found, and
sample the rest of the spectrum, as in Hutch++ (Meyer et al. 2021); without them the first run serves for both. Either way the
eigenvalues found count exactly, so that a few outliers do not dominate the errors of trace and norm.

A single start sees only one copy of a multiple eigenvalue, and nets have multiple ones by symmetry: with a readout of zeros, as
in softmax regression at its start, each eigenvalue of its block occurs once for every class but one. So if the first run is to
serve for both, a short second run, orthogonal to the eigenvectors found, looks for further copies. If it cannot rule them out,
the second run samples the rest, copies included.

Averages over the spectrum, from stochastic quadrature, come with a standard error. For the number of negative eigenvalues and
for percentiles, a few dozen products give only an interval (`lanczos`): most eigenvalues of nets are very close to zero, and
the products cannot tell on which side. The interval is logged, not its middle.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightning_app.common.errors import DivergedError, UserError, at_least
from lightning_app.measures.core.histogram import Histogram
from lightning_app.measures.curvature.hessian import Symmetric
from lightning_app.measures.curvature.lanczos import Bounds, Krylov, Rule, lanczos, mass_below, mass_within, widened

ZERO = 1e-10  # of |lambda|max: below it an exactly computed eigenvalue counts as 0 (double precision)
PERCENT = 10  # Li et al. (2016), appendix B: the 10th percentile of |lambda| instead of the minimum
SURE = 2  # standard errors that widen an interval
COPY = 1e-3  # n <v, y>^2 of a random start is chi-square with one degree of freedom: 1 in 40 has less of an eigenvector
LEAST = 3  # steps: the error of ||H||_F^2 needs the fourth moment, which 3 nodes have
BISECTIONS = 16  # of 37 e-folds: to a relative 1e-3
NOT_FINITE = (
    "a spectrum needs a Hessian of finite numbers, but this net's contains NaN or infinity: it has diverged (try a "
    "smaller learning rate), or samples or labels are not finite."
)

# Eight bins a decade to both sides, and one bin for what is smaller than 1e-6. Fixed: pictures of epochs, nets and seeds
# can be laid over each other, and counts of seeds added up.
_DECADES = torch.logspace(-6, 4, 81, dtype=torch.float64, device="cpu")
EDGES = torch.cat([-_DECADES.flip(0), _DECADES])


@dataclass(frozen=True, eq=False)
class Spectrum:
    """Spectrum of a symmetric H with n eigenvalues. Shares are relative to n; the ends of an exact interval are equal."""

    dimension: int  # n
    products: int  # H v that it took
    top: Tensor  # (k,) float64, the largest eigenvalues, decreasing
    top_residual: Tensor  # (k,), ||H y - theta y||: an eigenvalue lies within this distance
    bottom: Tensor  # (k,), the smallest (most negative) ones, increasing
    bottom_residual: Tensor  # (k,)
    unconverged: int  # of these 2k: residual above the tolerance; 0: all are eigenvalues, up to multiplicity
    trace: float  # sum of all eigenvalues
    trace_error: float  # standard error; 0 if exact
    frobenius: float  # ||H||_F
    frobenius_error: float  # standard error; 0 if exact
    index_low: float  # share of negative eigenvalues, at least
    index_high: float  # share of negative eigenvalues, at most
    unresolved: float  # share that cannot be told from 0: by so few products, or in double precision
    condition10_low: float  # |lambda|max / 10th percentile of |lambda|, at least
    condition10_high: float  # the same, at most; infinite while the percentile may be 0
    nodes: Tensor  # (q,) float64: where the density has its mass
    weights: Tensor  # (q,), sum 1
    density: Histogram  # expected number of eigenvalues in fixed bins, logarithmic to both sides of 0


def spectrum(
    operator: Symmetric,
    k: int = 5,
    steps: int = 40,
    probes: int = 0,
    probe_steps: int = 20,
    tolerance: float = 1e-3,
    seed: int = 0,
) -> tuple[Spectrum, Tensor]:
    """Spectrum of a map that is known only by its products, and the eigenvector of the largest |lambda|, (n,).

    Args:
        operator: the map. ``steps + probes * probe_steps`` products are made, from random starts given by the seed. Without
            probes, if eigenvalues have converged, up to half of ``steps`` (at least 3) more look for further copies of them.
        k: number of eigenvalues at each end.
        steps: number of steps of the run that finds the ends. On nets of depth 20, 10 find the first two, 15 to 30 the first
            five to 1e-3.
        probes: number of further runs, of ``probe_steps`` each, that sample density, trace and norm; errors fall with the root of
            their number.
        tolerance: an eigenpair counts as converged if its residual is at most this share of |lambda|.

    Raises:
        UserError: for a count or tolerance outside its range.
        DivergedError: if H v is not finite.
    """
    check_asked("a spectrum", k, steps, probes, probe_steps, tolerance)
    generator = torch.Generator().manual_seed(seed)
    first = _finite(lanczos(operator, steps, generator))
    values, residuals = first.eigen()[0], first.residuals()
    ends = _Ends(values, residuals, min(k, len(values)), tolerance)
    leading = first.vectors(np.abs(values).argmax(keepdims=True))[0]
    if len(values) == operator.size:
        return _described(ends, _Exact(values, first.floor, rounded=True), len(values)), leading
    found = (residuals <= tolerance * np.abs(values)) & (values != 0)
    locked = first.vectors(np.flatnonzero(found))
    runs = [_finite(lanczos(operator, probe_steps, generator, locked)) for _ in range(probes)]
    rules = [Rule.of(run) for run in runs]
    if not probes:
        rules = [Rule.of(first)]
        if found.any():
            hardest_first = sorted(values[found], key=abs)
            around = np.sort(np.outer(hardest_first, [1 - tolerance, 1 + tolerance]))
            alone = partial(_none_within, around, operator.size)
            second = _finite(lanczos(operator, max(LEAST, steps // 2), generator, locked, until=alone))
            rules = [rules[0].without(found) if alone(second) and not found.all() else Rule.of(second)]
            runs = [second]
    products = len(values) + sum(len(run.diagonal) for run in runs)
    return _described(ends, _Sampled(operator.size, values[found], rules, first.floor), products), leading


def _none_within(intervals: np.ndarray, size: int, run: Krylov) -> bool:
    """Whether a run shows that no eigenvalue lies in any interval: its random start would have more of the eigenvector.

    Of starts that have as little, most show it by a node there, after a few steps.
    """
    rule = Rule.of(run)
    return len(rule.nodes) >= LEAST and all(
        size * (mass_below(rule, high).high - mass_below(rule, low).low) < COPY
        and not ((rule.nodes >= low) & (rule.nodes <= high)).any()
        for low, high in intervals
    )


def check_asked(who: str, k: int, steps: int, probes: int, probe_steps: int, tolerance: float) -> None:
    """Raise an error, in the name of ``who``, for a count or tolerance outside its range."""
    least = {"k": (k, 1), "steps": (steps, LEAST), "probes": (probes, 0), "probe_steps": (probe_steps, LEAST)}
    for name, (value, smallest) in least.items():
        at_least(smallest, who, **{name: value})
    if not 0 < tolerance < 1:
        raise UserError(f"tolerance of {who}, a share of an eigenvalue, must be between 0 and 1, got {tolerance}.")


def exact_spectrum(matrix: Tensor, k: int = 5) -> tuple[Spectrum, Tensor]:
    """The same for a matrix (n, n), from all of its eigenvalues, in float64.

    >>> found, vector = exact_spectrum(torch.diag(torch.tensor([3.0, 0.0, -1.0, 2.0])), k=1)
    >>> found.top.item(), found.bottom.item(), found.trace, found.index_low, found.unresolved
    (3.0, -1.0, 4.0, 0.25, 0.25)
    """
    if not bool(matrix.isfinite().all()):
        raise DivergedError(NOT_FINITE)
    values, vectors = torch.linalg.eigh(matrix.double().cpu())
    zero = ZERO * float(values.abs().max())
    ends = _Ends(values.numpy(), np.zeros(len(values)), min(k, len(values)), 1.0)
    leading = vectors[:, values.abs().argmax()]
    return _described(ends, _Exact(values.numpy(), zero), len(values)), leading.to(matrix)


class _Exact:
    """A distribution known eigenvalue by eigenvalue."""

    def __init__(self, values: np.ndarray, zero: float, rounded: bool = False) -> None:
        self.dimension = len(values)
        self._values = values
        self._zero = zero  # eigenvalues up to this size count as 0
        self._rounded = rounded  # products are rounded by as much: such an eigenvalue may have either sign

    def total(self, function: Callable[[np.ndarray], np.ndarray]) -> tuple[float, float]:
        return float(function(self._values).sum()), 0.0

    def rule(self) -> tuple[np.ndarray, np.ndarray]:
        return self._values, np.full(self.dimension, 1 / self.dimension)

    def negative(self) -> tuple[Bounds, float]:
        share = float((self._values < -self._zero).mean())
        most = float((self._values <= self._zero).mean()) if self._rounded else share
        return Bounds(share, most), float((np.abs(self._values) <= self._zero).mean())

    def percentile(self, largest: float) -> Bounds:
        value = float(np.percentile(np.abs(self._values), PERCENT))
        if self._rounded:
            return Bounds(max(value - self._zero, 0.0), value + self._zero)
        value = 0.0 if value <= self._zero else value
        return Bounds(value, value)


class _Sampled:
    """``known`` eigenvalues, and random runs in the complement of their eigenvectors.

    Products are rounded in proportion to all of H, in the complement too: ``floor`` is that of the run that saw all of it.
    """

    def __init__(self, dimension: int, known: np.ndarray, rules: Sequence[Rule], floor: float) -> None:
        self.dimension = dimension
        self._known = known
        self._rules = rules
        self._rest = dimension - len(known)  # dimension of the complement
        self._floor = max(floor, *(rule.floor for rule in rules))

    def total(self, function: Callable[[np.ndarray], np.ndarray]) -> tuple[float, float]:
        """Sum of a function over all eigenvalues, and its standard error: that of a quadratic form on the sphere.

        For the error a node counts as one eigenvalue at least, however little the start has of it, if it surely stands for one
        that no other node stands for: a start that has little of an outlier would underestimate both sum and error.
        """
        rest = float(np.mean([function(rule.nodes) @ rule.weights for rule in self._rules]))
        square = float(np.mean([function(rule.nodes) ** 2 @ self._at_least(rule) for rule in self._rules]))
        variance = 2 * self._rest**2 * max(0.0, square - rest**2) / (self._rest + 2) / len(self._rules)
        return float(function(self._known).sum()) + self._rest * rest, math.sqrt(variance)

    def rule(self) -> tuple[np.ndarray, np.ndarray]:
        """Nodes and weights of the whole density."""
        share = self._rest / self.dimension / len(self._rules)
        nodes = np.concatenate([self._known, *(rule.nodes for rule in self._rules)])
        exact = np.full(len(self._known), 1 / self.dimension)
        return nodes, np.concatenate([exact, *(rule.weights * share for rule in self._rules)])

    def negative(self) -> tuple[Bounds, float]:
        """Share of negative eigenvalues, and how much of it is open: to the products, and to rounding."""
        below = float((self._known < 0).sum())
        low = self._whole(lambda rule: mass_below(rule, -self._floor), below).low
        high = self._whole(lambda rule: mass_below(rule, self._floor), below).high
        return self._widened(Bounds(low, high)), high - low

    def percentile(self, largest: float) -> Bounds:
        """Between which sizes the 10th percentile of |lambda| lies; sizes below the rounding may be 0."""

        def within(size: float) -> Bounds:
            known = float((np.abs(self._known) <= size).sum())
            return self._widened(self._whole(lambda rule: mass_within(rule, size), known))

        low = _first(lambda size: within(size).high >= PERCENT / 100, largest)
        high = _first(lambda size: within(size).low >= PERCENT / 100, largest)
        return Bounds(low if low > self._floor else 0.0, min(max(high, self._floor), largest))

    def _at_least(self, rule: Rule) -> np.ndarray:
        """Weights, at least that of one eigenvalue where the interval around a node that has one meets no other's."""
        radii = rule.beyond * np.abs(rule.last)
        apart = np.pad(np.diff(rule.nodes) > radii[1:] + radii[:-1], 1, constant_values=True)
        return np.maximum(rule.weights, (apart[1:] & apart[:-1]) / self._rest)

    def _whole(self, bounds: Callable[[Rule], Bounds], known: float) -> Bounds:
        """Of the whole spectrum: a mean over the runs, and the known ones."""
        found = [bounds(rule) for rule in self._rules]
        low, high = (float(np.mean([getattr(each, end) for each in found])) for end in ("low", "high"))
        return Bounds(*((known + self._rest * share) / self.dimension for share in (low, high)))

    def _widened(self, share: Bounds) -> Bounds:
        """By what the random starts leave open."""
        return widened(share, (self._rest + 2) * len(self._rules), SURE)


class _Ends:
    """The k largest and the k smallest of sorted eigenvalues: `found`, by the names that they have in a `Spectrum`."""

    def __init__(self, values: np.ndarray, residuals: np.ndarray, k: int, tolerance: float) -> None:
        top, top_residual = (torch.from_numpy(each[::-1][:k].copy()) for each in (values, residuals))
        bottom, bottom_residual = (torch.from_numpy(each[:k].copy()) for each in (values, residuals))
        pairs = ((top, top_residual), (bottom, bottom_residual))
        self.found: dict[str, Any] = {"top": top, "top_residual": top_residual}
        self.found |= {"bottom": bottom, "bottom_residual": bottom_residual}
        self.found["unconverged"] = sum(int((error > tolerance * value.abs()).sum()) for value, error in pairs)
        place = np.abs(values).argmax()
        self.largest = float(np.abs(values[place]))
        self.at_most = self.largest + float(residuals[place])


def _described(ends: _Ends, distribution: _Exact | _Sampled, products: int) -> Spectrum:
    trace, trace_error = distribution.total(lambda values: values)
    squares, squares_error = distribution.total(np.square)
    frobenius = math.sqrt(squares)
    index, unresolved = distribution.negative()
    percentile = distribution.percentile(ends.largest)
    nodes, weights = map(torch.from_numpy, distribution.rule())
    place = torch.bucketize(nodes.contiguous(), EDGES, right=True)
    counts = weights.new_zeros(len(EDGES) + 1).index_add_(0, place, weights * distribution.dimension)
    return Spectrum(
        dimension=distribution.dimension,
        products=products,
        **ends.found,
        trace=trace,
        trace_error=trace_error,
        frobenius=frobenius,
        frobenius_error=squares_error / (2 * frobenius) if frobenius else 0.0,
        index_low=index.low,
        index_high=index.high,
        unresolved=unresolved,
        condition10_low=_ratio(ends.largest, percentile.high),
        condition10_high=_ratio(ends.at_most, percentile.low),
        nodes=nodes,
        weights=weights,
        density=Histogram(counts[1:-1], EDGES, below=float(counts[0]), above=float(counts[-1])),
    )


def _first(holds: Callable[[float], bool], largest: float) -> float:
    """The size from which on something holds, to a relative 1e-3; 0 if it holds from 16 decades below the largest on."""
    low, high = math.log(1e-16), 0.0
    if not largest or holds(largest * math.exp(low)):
        return 0.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(largest * math.exp(middle)) else (middle, high)
    return largest * math.exp(high)


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else math.inf if numerator else math.nan


def _finite(run: Krylov) -> Krylov:
    if not np.isfinite(run.diagonal).all() or not np.isfinite(run.beside).all():
        raise DivergedError(NOT_FINITE)
    return run
