"""Theorem 2 in closed form against automatic differentiation of the loss at zero."""

import math
from dataclasses import asdict, dataclass

import torch
from torch import Tensor
from torch.func import grad, hessian

from lightning_app.theory.li_et_al.derivatives import directional_derivatives
from lightning_app.theory.li_et_al.shortcut import ShortcutForm
from lightning_app.theory.li_et_al.zero_point import ZeroPoint, zero_point

__all__ = ["Deviations", "zero_point_deviations"]


@dataclass(frozen=True)
class Deviations:
    """Largest absolute differences between Theorem 2 and automatic differentiation at zero; all 0 but for rounding."""

    gradient: float
    hessian: float
    eigenvalues: float  # of the closed form's spectrum from the eigenvalues of autograd's Hessian
    lower_orders: float  # largest |directional derivative| of the orders 1 to n - 1; 0 for n = 1, which has none
    leading: float  # of the directional derivative of order n, n! c sum_r <M, V^{r,n} ... V^{r,1}>, divided by n!

    @property
    def largest(self) -> float:
        return max(asdict(self).values())


def zero_point_deviations(
    form: ShortcutForm, x: Tensor, y: Tensor, directions: int = 3, generator: torch.Generator | None = None
) -> Deviations:
    """Theorem 2 against automatic differentiation, for one net and one set of data.

    Args:
        form, x, y: as in `zero_point`.
        directions: random ones, of standard normal entries, along which derivatives of the orders 1 to n are taken.
        generator: of the directions; None takes one of seed 0.

    Cost: `torch.func.hessian`, so (R q) forward passes and about as many backward ones: keep R, d and m moderate.
    """
    theory, zero = zero_point(form, x, y), x.new_zeros(form.units * form.unit_size(x.shape[1]))

    def loss(parameters: Tensor) -> Tensor:
        return form.loss(parameters, x, y)

    H = hessian(loss)(zero)
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
        eigenvalues=_distance(torch.linalg.eigvalsh(H), theory.spectrum.all()),
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
