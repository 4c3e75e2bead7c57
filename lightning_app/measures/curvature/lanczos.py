"""Lanczos' method: from products H v alone, a tridiagonal T that sees the ends of the spectrum first.

Without reorthogonalisation rounding lets found eigenvectors back in, and eigenvalues come out several times ("ghosts":
7 copies of the largest one after 40 steps on a net of depth 20). Here every new vector is made orthogonal to all earlier
ones, twice; that costs 1.5 % of a product with a net's Hessian.
"""

from dataclasses import dataclass

import numpy as np
import torch
from scipy.linalg import eigh_tridiagonal
from torch import Tensor

from lightning_app.measures.curvature.hessian import Symmetric

__all__ = ["Krylov", "lanczos"]

ROUNDING = 64  # roundings of H's norm: a smaller eigenvalue may have any sign
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
        """||H y - theta y|| of the Ritz pairs, and at least the rounding: an eigenvalue of H lies so near each Ritz value."""
        return np.maximum(self.beyond * np.abs(self.eigen()[1][-1]), self.floor)

    def vectors(self, which: np.ndarray) -> Tensor:
        """Ritz vectors, (k, n), orthonormal."""
        rows = torch.from_numpy(np.ascontiguousarray(self.eigen()[1][:, which].T))
        return rows.to(self.basis) @ self.basis


def lanczos(operator: Symmetric, steps: int, generator: torch.Generator, against: Tensor | None = None) -> Krylov:
    """``steps`` products (at most ``operator.size``), from a start uniform on the sphere of what ``against`` leaves.

    Where the start's own invariant subspace is exhausted, a new random direction goes on: so multiple eigenvalues come out
    several times, as they should. The Gauss rule stays that of the start. ``against``: (k, n) orthonormal eigenvectors.

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
    length = 0.0
    for step in range(steps):
        if not length:
            drawn = torch.randn(operator.size, generator=generator, dtype=torch.float64)  # the same on every device
            vector, _ = _orthogonal((drawn / drawn.norm()).to(operator.like), basis[:step], against)
        basis[step] = vector
        product = operator @ vector
        diagonal.append(float(vector.double() @ product.double()))
        vector, length = _orthogonal(product, basis[: step + 1], against)
        norm = max(map(abs, (*diagonal, *beside, length)))
        floor = ROUNDING * torch.finfo(basis.dtype).eps * norm
        length = 0.0 if length <= max(floor, BREAKDOWN * norm) else length
        beside.append(length)
    return Krylov(basis, np.array(diagonal), np.array(beside[:-1]), length, floor)


def _orthogonal(vector: Tensor, basis: Tensor, against: Tensor | None) -> tuple[Tensor, float]:
    """What is left of a vector beside the rows, with length 1, and the length it had. Twice is enough (Kahan)."""
    for _ in range(2):
        for rows in (basis,) if against is None else (basis, against):
            vector = vector - (rows @ vector) @ rows
    length = float(vector.double().norm())
    return (vector / length if length else vector), length
