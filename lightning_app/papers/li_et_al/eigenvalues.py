"""What figures say of a Hessian's eigenvalues."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lightning_app.papers.parts import Arrays

if TYPE_CHECKING:
    from torch import Tensor

ROUNDING = 1e-10  # of the largest: eigenvalues below are zero
CUT = 1e16  # of max |λ| / min |λ|: what float64 resolves

SPECTRUM = (
    "cond10 = max |λ| / 10th percentile of |λ| (linear between order statistics), the paper's substitute for the condition "
    "number; index: share of λ < -1e-10 max |λ|. Loss 1/(2m) Σ‖x^L - y‖²: another factor changes no condition number. "
    "All entries of all weight matrices, in the order of Def. 5. M = I - Σ_YX, and with it the spectrum, depends on sign "
    "and order of the principal components. "
)


@dataclass(frozen=True)
class Spectrum:
    """What the figures say of a Hessian."""

    largest: float  # of |λ|
    percentile10: float  # of |λ|
    smallest: float  # of |λ|
    zeros: float  # how many |λ| <= 1e-10 of the largest
    index: float  # share of negative eigenvalues

    @classmethod
    def of(cls, hessian: "Tensor") -> "Spectrum":
        """
        >>> import torch
        >>> Spectrum.of(torch.diag(torch.tensor([40.0, -20.0, 0.0, 10.0, 30.0])))
        Spectrum(largest=40.0, percentile10=4.0, smallest=0.0, zeros=1, index=0.2)
        """
        import torch

        if not hessian.isfinite().all():  # of a descent that has diverged
            return cls(*[math.nan] * 5)
        values = torch.linalg.eigvalsh(hessian).numpy()
        sizes = np.abs(values)
        largest, zero = float(sizes.max()), ROUNDING * float(sizes.max())
        ends = largest, float(np.percentile(sizes, 10)), float(sizes.min())
        return cls(*ends, int((sizes <= zero).sum()), float((values < -zero).mean()))


def cond10(arrays: Arrays) -> np.ndarray:
    """max |λ| / 10th percentile of |λ|; inf where a tenth of the eigenvalues is zero."""
    with np.errstate(divide="ignore"):
        return arrays["largest"] / arrays["percentile10"]


def cond(arrays: Arrays) -> np.ndarray:
    """max |λ| / min |λ|, cut at 1e16: beyond it the smallest eigenvalue is nothing but rounding.

    >>> cond({"largest": np.array([4.0, 4.0, 4.0]), "smallest": np.array([2.0, 1e-19, 0.0])})
    array([2.e+00, 1.e+16, 1.e+16])
    """
    with np.errstate(divide="ignore"):
        return np.minimum(arrays["largest"] / arrays["smallest"], CUT)
