"""What a few Lanczos steps say of a spectral distribution, and what they leave open.

A start v has the spectral measure mu_v = sum_i <v, y_i>^2 delta(lambda_i). m Lanczos steps know its first 2m moments
exactly: the Gauss rule has m nodes and integrates polynomials to degree 2m - 1. Between the nodes nothing is known, but
the mass below any point z is bounded by the rule that has z among its nodes (Chebyshev, Markov, Stieltjes; the Gauss-Radau
rule of Golub 1973): sum_{theta < z} w <= mu(-inf, z) and mu(-inf, z] <= sum_{theta <= z} w, and no better bound follows from
these moments. The weight at z itself is the resolution.

For v uniform on the sphere of R^n, mu_v(A) is distributed as Beta(k/2, (n - k)/2), with k eigenvalues in A: its mean is
the share k/n, its variance 2 p (1 - p)/(n + 2).
"""

import math
from dataclasses import dataclass

import numpy as np

from lightning_app.measures.curvature.lanczos import Krylov

__all__ = ["Bounds", "Rule", "mass_below", "mass_within", "widened"]

SAME = 1e-12  # relative: a node at z


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

    The deviation is that of the share in question, not of the measured one (Wilson), so that nothing found is not taken for
    nothing there. ``dimension`` is n + 2, times the number of starts that were averaged.

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
