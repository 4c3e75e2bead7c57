"""Lanczos' method: from products H v alone, a tridiagonal T that sees the ends of the spectrum first.

Without reorthogonalisation rounding lets found eigenvectors back in, and eigenvalues come out several times ("ghosts":
7 copies of the largest one after 40 steps on a net of depth 20). Here every new vector is made orthogonal to all earlier
ones, twice; that costs 1.5 % of a product with a net's Hessian.

What a few steps say of the spectral distribution, and what they leave open: a start v has the spectral measure
mu_v = sum_i <v, y_i>^2 delta(lambda_i). m Lanczos steps know its first 2m moments exactly: the Gauss rule has m nodes and
integrates polynomials to degree 2m - 1. Between the nodes nothing is known, but the mass below any point z is bounded by
the rule that has z among its nodes (Chebyshev, Markov, Stieltjes; the Gauss-Radau rule of Golub 1973):
sum_{theta < z} w <= mu(-inf, z) and mu(-inf, z] <= sum_{theta <= z} w, and no better bound follows from these moments. The
weight at z itself is the resolution.

For v uniform on the sphere of R^n, mu_v(A) is distributed as Beta(k/2, (n - k)/2), with k eigenvalues in A: its mean is
the share k/n, its variance 2 p (1 - p)/(n + 2).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from scipy.linalg import eigh_tridiagonal
from torch import Tensor

from lightning_app.measures.curvature.hessian import Symmetric

ROUNDING = 64  # roundings of H's norm: a smaller eigenvalue may have any sign
SAME = 1e-12  # relative: a node at z
BREAKDOWN = 1e-10  # of H's norm: with a smaller remainder (or one below the rounding) the subspace is invariant


@dataclass(frozen=True, eq=False)
class Krylov:
    """``H basis.T = basis.T T + residual e_m^T`` with m orthonormal rows, ||residual|| = ``beyond``."""

    basis: Tensor  # (m, n)
    diagonal: np.ndarray  # (m,) float64, of T
    beside: np.ndarray  # (m - 1,) float64
    beyond: float  # the next entry beside the diagonal; 0 if the rows span an invariant subspace
    floor: float = 0.0  # what rounding alone does to an eigenvalue, in the precision of the products

    def eigen(self) -> tuple[np.ndarray, np.ndarray]:
        """Ritz values (m,), increasing, and T's eigenvectors (m, m), a column each."""
        return eigh_tridiagonal(self.diagonal, self.beside)

    def residuals(self) -> np.ndarray:
        """||H y - theta y|| of the Ritz pairs, at least the rounding: H has an eigenvalue this near to each Ritz value."""
        return np.maximum(self.beyond * np.abs(self.eigen()[1][-1]), self.floor)

    def vectors(self, which: np.ndarray) -> Tensor:
        """Ritz vectors, (k, n), orthonormal."""
        rows = torch.from_numpy(np.ascontiguousarray(self.eigen()[1][:, which].T))
        return rows.to(self.basis) @ self.basis


def lanczos(
    operator: Symmetric,
    steps: int,
    generator: torch.Generator,
    against: Tensor | None = None,
    until: Callable[[Krylov], bool] | None = None,
) -> Krylov:
    """A run of ``steps`` products (at most ``operator.size``), from a random start, uniform on the sphere orthogonal to
    ``against``.

    When the invariant subspace of the start is exhausted, the run continues in a new random direction, so that multiple
    eigenvalues are found several times, as they should be. The Gauss rule remains that of the start. ``against``: (k, n)
    orthonormal eigenvectors. ``until``: stops the run once it returns true for the run so far.

    >>> from types import SimpleNamespace
    >>> class Diagonal(SimpleNamespace):
    ...     size, like = 3, torch.ones(3, dtype=torch.float64)
    ...     def __matmul__(self, v): return torch.tensor([1.0, 4.0, 4.0], dtype=torch.float64) * v
    >>> lanczos(Diagonal(), 9, torch.Generator().manual_seed(0)).eigen()[0].round(9)
    array([1., 4., 4.])
    """
    steps = min(steps, operator.size - (0 if against is None else len(against)))
    basis = operator.like.new_empty(steps, operator.size)
    diagonal: list[float] = []
    beside: list[float] = []
    length = dropped = 0.0
    for step in range(steps):
        if not length:
            # On the CPU: the same for every device.
            drawn = torch.randn(operator.size, generator=generator, dtype=torch.float64, device="cpu")
            vector, _ = _orthogonal((drawn / drawn.norm()).to(operator.like), basis[:step], against)
        basis[step] = vector
        product = operator @ vector
        diagonal.append(float(vector.double() @ product.double()))
        vector, length = _orthogonal(product, basis[: step + 1], against)
        norm = max(map(abs, (*diagonal, *beside, length)))
        floor = ROUNDING * torch.finfo(basis.dtype).eps * norm
        if length <= max(floor, BREAKDOWN * norm):
            dropped, length = math.hypot(dropped, length), 0.0
        beside.append(length)
        floor += math.sqrt(2) * dropped  # each would stand twice in T
        run = Krylov(basis[: step + 1], np.array(diagonal), np.array(beside[:-1]), length, floor)
        if until and until(run):
            break
    return run


def _orthogonal(vector: Tensor, basis: Tensor, against: Tensor | None) -> tuple[Tensor, float]:
    """What is left of a vector beside the rows, with length 1, and the length it had. Twice is enough (Kahan)."""
    for _ in range(2):
        for rows in (basis,) if against is None else (basis, against):
            vector = vector - (rows @ vector) @ rows
    length = float(vector.double().norm())
    return (vector / length if length else vector), length


@dataclass(frozen=True)
class Bounds:
    """Shares between which the true one lies."""

    low: float
    high: float


@dataclass(frozen=True, eq=False)
class Rule:
    """A Lanczos run in the basis of its Ritz vectors: the Gauss rule of its start, and what couples it to the unknown."""

    nodes: np.ndarray  # (m,) Ritz values
    first: np.ndarray  # (m,) components of the start, of length 1
    last: np.ndarray  # (m,) components of the last Lanczos vector
    beyond: float  # coupling of this vector to the next one, which was not reached
    floor: float = 0.0  # rounding of an eigenvalue

    @classmethod
    def of(cls, run: Krylov) -> "Rule":
        values, vectors = run.eigen()
        return cls(values, vectors[0], vectors[-1], run.beyond, run.floor)

    @property
    def weights(self) -> np.ndarray:
        return self.first**2

    def without(self, found: np.ndarray) -> "Rule":
        """The rule of the start's projection on the complement of found eigenvectors (a mask), uniform there."""
        first = self.first[~found]
        return Rule(self.nodes[~found], first / np.linalg.norm(first), self.last[~found], self.beyond, self.floor)

    def through(self, z: float) -> tuple[np.ndarray, np.ndarray]:
        """Nodes and weights of the Gauss-Radau rule with a node at z: one vector more, on a diagonal entry that makes it so."""
        apart = self.nodes - z
        if not self.beyond or np.abs(apart).min() <= SAME * np.abs(self.nodes).max():
            return self.nodes, self.weights  # the measure itself, or a node at z already
        coupled = self.beyond * self.last
        wider = np.diag(np.append(self.nodes, z + float((coupled**2 / apart).sum())))
        wider[-1, :-1] = wider[:-1, -1] = coupled
        nodes, vectors = np.linalg.eigh(wider)
        return nodes, (self.first @ vectors[:-1]) ** 2


def mass_below(rule: Rule, z: float) -> Bounds:
    """Bounds of mu(-inf, z): ``low`` of the mass below z, ``high`` of the mass up to z.

    >>> half = Rule(np.array([-1.0, 1.0]), np.array([-1, 1]) / 2**0.5, np.array([1, 1]) / 2**0.5, 1.0)
    >>> found = mass_below(half, 0.0)  # rule through 0: -1.41.., 0, 1.41..; half of the mass lies on no known side
    >>> round(found.low, 9), round(found.high, 9)
    (0.25, 0.75)
    """
    nodes, weights = rule.through(z)
    at = np.abs(nodes - z) <= SAME * max(1e-300, float(np.abs(nodes).max()))
    low = float(weights[(nodes < z) & ~at].sum())
    return Bounds(_share(low), _share(low + float(weights[at].sum())))


def mass_within(rule: Rule, size: float) -> Bounds:
    """Bounds of mu[-size, size], the share of eigenvalues with |lambda| <= size."""
    below, above = mass_below(rule, -size), mass_below(rule, size)
    return Bounds(_share(above.low - below.high), _share(above.high - below.low))


def _share(value: float) -> float:
    return min(1.0, max(0.0, value))


def widened(measured: Bounds, dimension: float, sure: float) -> Bounds:
    """Bounds of the share of eigenvalues, from bounds of mu_v for starts v: ``sure`` standard deviations wider.

    The standard deviation is that of the candidate share, not of the measured one (Wilson), so that a measured share of 0 does
    not imply a true share of 0. ``dimension`` is n + 2, times the number of starts that were averaged.

    >>> found = widened(Bounds(0.0, 0.0), dimension=100, sure=2)
    >>> found.low, round(found.high, 4)
    (0.0, 0.0741)
    """
    c = 2 * sure**2 / dimension

    def wilson(measured: float, side: int) -> float:
        """|measured - p| = sure sqrt(2 p (1 - p) / dimension): a root of (1 + c) p^2 - (2 measured + c) p + measured^2."""
        half = measured + c / 2
        root = math.sqrt(max(0.0, half**2 - (1 + c) * measured**2))
        return _share((half + side * root) / (1 + c))

    return Bounds(wilson(measured.low, -1), wilson(measured.high, 1))
