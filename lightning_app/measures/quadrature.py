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

from lightning_app.measures.lanczos import Krylov

__all__ = ["Bounds", "mass_below", "mass_within", "spread_of_share"]

SAME = 1e-12  # relative: a node at z


@dataclass(frozen=True)
class Bounds:
    """Shares between which the true one lies."""

    low: float
    high: float


def mass_below(krylov: Krylov, z: float) -> Bounds:
    """Bounds of mu(-inf, z): ``low`` of the mass below z, ``high`` of the mass up to z.

    >>> half = Krylov(None, np.array([0.0, 0.0]), np.array([1.0]), 1.0)  # nodes -1 and 1
    >>> found = mass_below(half, 0.0)  # rule through 0: -1.41.., 0, 1.41..; half of the mass lies on no known side
    >>> round(found.low, 9), round(found.high, 9)
    (0.25, 0.75)
    """
    nodes, weights = _rule_through(krylov, z)
    at = np.abs(nodes - z) <= SAME * max(1e-300, float(np.abs(nodes).max()))
    low = float(weights[(nodes < z) & ~at].sum())
    return Bounds(_share(low), _share(low + float(weights[at].sum())))


def mass_within(krylov: Krylov, size: float) -> Bounds:
    """Bounds of mu[-size, size], the share of eigenvalues with |lambda| <= size."""
    below, above = mass_below(krylov, -size), mass_below(krylov, size)
    return Bounds(_share(above.low - below.high), _share(above.high - below.low))


def _rule_through(krylov: Krylov, z: float) -> tuple[np.ndarray, np.ndarray]:
    """The Gauss-Radau rule with a node at z: one more row, whose diagonal entry puts an eigenvalue there."""
    if not krylov.beyond:
        return krylov.nodes()  # the measure itself
    values, vectors = krylov.eigen()
    apart = values - z
    if np.abs(apart).min() <= SAME * np.abs(values).max():
        return krylov.nodes()
    corner = krylov.beyond**2 * float((vectors[-1] ** 2 / apart).sum())  # beta^2 (T - z)^-1 at (m, m)
    wider = Krylov(None, np.append(krylov.diagonal, z + corner), np.append(krylov.beside, krylov.beyond), 0.0)
    return wider.nodes()


def _share(value: float) -> float:
    return min(1.0, max(0.0, value))


def spread_of_share(share: float, dimension: int) -> float:
    """Standard deviation of mu_v(A) around the share of eigenvalues in A, over starts v.

    >>> spread_of_share(0.5, 48)
    0.1
    """
    return math.sqrt(2 * share * (1 - share) / (dimension + 2))
