"""All that a linear net's loss knows of its data.

For a linear map A the mean squared error is quadratic in A with coefficients E[x x^T], E[y x^T] and E ||y||^2. Sixty
thousand images thus act on loss, gradient, Hessian and full-batch gradient descent through two small matrices, exactly.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_app.common.errors import UserError

__all__ = ["Moments"]

ROUNDING = 1e-9  # relative: what sums over a large data set may leave of an exact symmetry or inequality


@dataclass(frozen=True, eq=False)
class Moments:
    """Second moments (means over the samples, 1/m, nothing centred) of inputs x in R^d and targets y in R^c.

    Raises:
        UserError: where the shapes do not fit each other, the precision is not float64, or no data can have such moments
            (E[x x^T] not symmetric and positive semi-definite, E ||y||^2 below what x explains of it).
    """

    xx: Tensor  # (d, d) float64, E[x x^T]
    yx: Tensor  # (c, d) float64, E[y x^T]
    yy: float  # E ||y||^2

    def __post_init__(self) -> None:
        xx, yx = self.xx, self.yx
        if xx.ndim != 2 or yx.ndim != 2 or xx.shape[0] != xx.shape[1] or yx.shape[1] != xx.shape[0]:
            raise UserError(
                f"moments of x in R^d and y in R^c are E[xx^T] (d, d) and E[yx^T] (c, d), got {tuple(xx.shape)} and "
                f"{tuple(yx.shape)}."
            )
        if xx.dtype != torch.float64 or yx.dtype != torch.float64:
            raise UserError(
                f"moments are float64, got {xx.dtype} and {yx.dtype}: make them from samples by Moments.of, which computes "
                "in float64."
            )
        _check_values(self)

    @classmethod
    def of(cls, x: Tensor, y: Tensor) -> "Moments":
        """Moments of m samples, inputs (m, d) and targets (m, c), computed in float64.

        >>> moments = Moments.of(torch.tensor([[1.0], [-1.0]]), torch.tensor([[2.0], [0.0]]))
        >>> moments.xx.item(), moments.yx.item(), moments.yy
        (1.0, 1.0, 2.0)
        """
        if x.ndim != 2 or y.ndim != 2 or len(x) != len(y) or not len(x):
            raise UserError(
                f"moments are taken of inputs (m, d) and targets (m, c) of the same m >= 1 samples, got {tuple(x.shape)} "
                f"and {tuple(y.shape)}: one-hot labels are targets, class numbers are not."
            )
        x, y = x.double(), y.double()
        return cls(x.mT @ x / len(x), y.mT @ x / len(x), float(y.square().sum() / len(y)))

    def optimum(self) -> float:
        """The least ``1/2 E ||A x - y||^2`` over all matrices A, the floor of every linear net. 0 where y = A x.

        >>> Moments.of(torch.tensor([[1.0], [-1.0]]), torch.tensor([[2.0], [0.0]])).optimum()  # A = 1 leaves (1, 1)
        0.5
        """
        explained = (self.yx @ torch.linalg.pinv(self.xx, hermitian=True) * self.yx).sum()
        return max(0.5 * (self.yy - float(explained)), 0.0)


def _check_values(moments: Moments) -> None:
    xx, size = moments.xx, float(moments.xx.abs().max())
    if not (xx.isfinite().all() and moments.yx.isfinite().all()):
        raise UserError("moments are finite numbers, got infinities or NaN: look for them in the data.")
    if float((xx - xx.mT).abs().max()) > ROUNDING * size:
        raise UserError("E[xx^T] is symmetric, got a matrix that is not.")
    if (least := float(torch.linalg.eigvalsh(xx)[0])) < -ROUNDING * len(xx) * size:
        raise UserError(f"E[xx^T] is positive semi-definite, got the eigenvalue {least:.3g}.")
    # By Cauchy and Schwarz E[y x^T] vanishes where x does, and x explains no more of y than there is.
    inverse = torch.linalg.pinv(xx, hermitian=True)
    outside = moments.yx - moments.yx @ inverse @ xx
    explained = float((moments.yx @ inverse * moments.yx).sum())
    if explained > moments.yy * (1 + ROUNDING) or float(outside.norm()) > ROUNDING**0.5 * float(moments.yx.norm()):
        raise UserError(
            f"no data has these moments: x would explain {explained:.6g} of E||y||^2 = {moments.yy:.6g}. Were E[yx^T] and "
            "E[xx^T] taken of the same samples, both divided by m?"
        )
