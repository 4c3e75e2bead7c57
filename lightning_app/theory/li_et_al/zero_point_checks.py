"""Theorem 2 in closed form against automatic differentiation of the loss at zero, and why shortcuts of length 1 are no help."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import grad
from torch.func import hessian as autograd_hessian

from lightning_app.common.errors import UserError
from lightning_app.theory.li_et_al.lemmas import Checked, directional_derivatives
from lightning_app.theory.li_et_al.linear import hessian
from lightning_app.theory.li_et_al.moments import Moments
from lightning_app.theory.li_et_al.shortcut import ShortcutForm
from lightning_app.theory.li_et_al.zero_point import ZeroPoint, zero_point

__all__ = ["Deviations", "orthogonal_equivalence", "zero_point_deviations"]


@dataclass(frozen=True)
class Deviations(Checked):
    """Largest absolute differences between Theorem 2 and automatic differentiation at zero; all 0 but for rounding."""

    gradient: float
    hessian: float
    eigenvalues: float  # of the closed form's spectrum from the eigenvalues of autograd's Hessian
    lower_orders: float  # largest |directional derivative| of the orders 1 to n - 1; 0 for n = 1, which has none
    leading: float  # of the directional derivative of order n, n! c sum_r <M, V^{r,n} ... V^{r,1}>, divided by n!


def zero_point_deviations(
    form: ShortcutForm, x: Tensor, y: Tensor, directions: int = 3, generator: torch.Generator | None = None
) -> Deviations:
    """Theorem 2 against automatic differentiation, for one net and one set of data.

    Along so many random directions, of standard normal entries (None: of seed 0), derivatives of the orders 1 to n are taken.
    Cost: `torch.func.hessian`, so (R q) forward passes and about as many backward ones: keep R, d and m moderate.
    """
    theory, zero = zero_point(form, x, y), x.new_zeros(form.units * form.unit_size(x.shape[1]))

    def loss(parameters: Tensor) -> Tensor:
        return form.loss(parameters, x, y)

    H = autograd_hessian(loss)(zero)
    generator = generator or torch.Generator().manual_seed(0)
    lower, leading = [0.0], []
    for _ in range(directions):
        direction = torch.randn(len(zero), generator=generator, dtype=x.dtype)
        *below, last = directional_derivatives(loss, zero, direction, form.n).tolist()
        lower += [abs(value) for value in below]
        leading.append(abs(last / math.factorial(form.n) - _leading_term(theory, direction)))
    return Deviations(
        gradient=_distance(grad(loss)(zero), theory.gradient()),
        hessian=_distance(H, theory.hessian()),
        eigenvalues=_distance(torch.linalg.eigvalsh(H), theory.eigenvalues),
        lower_orders=max(lower),
        leading=max(leading),
    )


def _leading_term(theory: ZeroPoint, direction: Tensor) -> float:
    """``c sum_r <M, V^{r,n} ... V^{r,1}>``, the loss's term of order n along a direction."""
    form, (d, columns) = theory.form, theory.M.shape
    total = 0.0
    for unit in direction.view(form.units, -1):
        product = unit[: d * columns].view(columns, d).mT  # [V^1 b]
        for transposed in unit[d * columns :].view(form.n - 1, d, d):
            product = transposed.mT @ product
        total += theory.factor * float((theory.M * product).sum())
    return total


def _distance(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max())


def orthogonal_equivalence(matrices: Tensor, moments: Moments) -> float:
    """How far the Hessian of a plain linear net at orthogonal weights is from that of a 1-shortcut net at zero.

    With ``W_k = Q_k + dW_k``, the Q_k orthogonal, and ``P_k = Q_k ... Q_1``, the plain net is ``P_L (I + V_L) ... (I + V_1)``
    for ``dW_k = P_k V_k P_{k-1}^T``, an orthogonal change of variables: its loss is that of a 1-shortcut net whose targets
    are ``P_L^T y``. So the two Hessians are orthogonally similar, and shortcuts of length 1 are essentially no shortcuts.

    Returned is the largest absolute difference between the plain net's Hessian in the variables V and the other, 0 but for
    rounding, for matrices Q_1, ..., Q_L, (L, d, d) float64.

    Raises:
        UserError: for matrices that are not orthogonal.
    """
    eye = torch.eye(matrices.shape[-1], dtype=matrices.dtype, device=matrices.device)
    if float((matrices @ matrices.mT - eye).abs().max()) > 1e-10:
        raise UserError("the equivalence holds at orthogonal matrices, got others: draw them with init='orthogonal'.")
    plain = hessian(matrices[:, None], moments, shortcut=False)
    changes, P = [], eye
    for Q in matrices:
        changes.append(torch.kron(P, Q @ P))  # vec(P_k V P_{k-1}^T) = (P_{k-1} kron P_k) vec(V)
        P = Q @ P
    change = torch.block_diag(*changes)
    turned = Moments(moments.xx, P.mT @ moments.yx, moments.yy)
    residual = hessian(torch.zeros_like(matrices)[:, None], turned, shortcut=True)
    return float((change.mT @ plain @ change - residual).abs().max())
