"""The loss of an n-shortcut net at zero weights (Li et al. 2016, Theorem 2), in closed form.

At zero every unit is the identity, so all units have the same inputs and errors, and a derivative with respect to parameters of a
unit is nonzero only if it includes a parameter of each of its n matrices. Hence

* n >= 3: all derivatives up to order n - 1 vanish, the Hessian among them;
* n = 2: the Hessian is R copies of ``[[0, A^T], [A, 0]]``, whose eigenvalues are plus and minus the singular values of one
  d x d matrix M, times a constant: its condition number, ``s_1(M) / s_d(M)`` (Eq. 9), does not depend on depth;
* n = 1: zero is not even stationary; the Hessian is block Toeplitz, its condition number grows with depth.

With P = pre(x), e = x - y, a = post'(0), b = post''(0) and c = mid'(0)^(n-1) post'(0), everything follows from M = E[e P^T]
and, where n = 1, from E[P P^T] and two third moments. A hidden bias (Eq. 3) is one more entry, 1, of P.

`zero_point_deviations` compares this with automatic differentiation of the loss at zero; `orthogonal_equivalence` shows why
shortcuts of length 1 do not help.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.func import grad
from torch.func import hessian as autograd_hessian

from lightning_app.common.errors import UserError
from lightning_app.theory.li_et_al.lemmas import directional_derivatives
from lightning_app.theory.li_et_al.linear import Moments, hessian
from lightning_app.theory.li_et_al.shortcut import Activation, ShortcutForm

DIRECTIONS = 3  # along which derivatives of all orders are compared


@dataclass(frozen=True, eq=False)
class ZeroPoint:
    """Theorem 2 for one net and one set of data. Parameters are in the order of `ShortcutForm`."""

    form: ShortcutForm
    M: Tensor  # (d, d), or (d, d + 1) with the bias: E[(x - y) pre(x)^T]
    factor: float  # c: the loss is its value at 0 plus c sum_r <M, W^{r,n} ... W^{r,1}> and terms of order n + 1
    diagonal: Tensor  # (q, q): the Hessian's block of any unit; q parameters a unit
    below: Tensor  # (q, q): its block of a later unit (rows) and an earlier one (columns); 0 for n >= 2

    def gradient(self) -> Tensor:
        """(R q,): ``a M`` in every unit for n = 1, else 0."""
        unit = self.factor * self.M.mT.flatten() if self.form.n == 1 else self.M.new_zeros(len(self.diagonal))
        return unit.repeat(self.form.units)

    def hessian(self) -> Tensor:
        """(R q, R q), block Toeplitz; for n >= 2 block diagonal."""
        ones = self.M.new_ones(self.form.units, self.form.units)
        H = torch.kron(ones.tril(-1), self.below)
        return H + H.mT + torch.kron(torch.eye(len(ones), dtype=ones.dtype, device=ones.device), self.diagonal)

    @cached_property
    def eigenvalues(self) -> Tensor:
        """Eigenvalues of the Hessian, (R q,), ascending.

        n = 2: ``+-|c| s_a(M)``, R d times each, and R d times 0 with the bias. n >= 3: 0. n = 1 has no closed form for general M:
        they are computed from the matrix.
        """
        if self.form.n == 1:
            return torch.linalg.eigvalsh(self.hessian())
        if self.form.n > 2:
            return self.M.new_zeros(self.form.units * len(self.diagonal))
        values = abs(self.factor) * torch.linalg.svdvals(self.M)
        values = torch.cat([-values, self.M.new_zeros(int(self.form.bias)), values.flip(0)])
        return values.repeat_interleave(self.form.units * len(self.M))


def zero_point(form: ShortcutForm, x: Tensor, y: Tensor) -> ZeroPoint:
    """Gradient and Hessian of ``1/(2m) sum ||x^R - y||^2`` at zero weights and biases, without automatic differentiation.

    Args:
        form: the net. A ReLU at pre is exact. At mid and post it has no derivative at 0: use a `relu_surrogate`.
        x, y: inputs and targets, (m, d) float64.

    Raises:
        UserError: for a ReLU at a place where its derivative at 0 is needed.
    """
    slope = _slope(form, form.post, "post") * (_slope(form, form.mid, "mid") ** (form.n - 1) if form.n > 1 else 1.0)
    P, errors = form.pre(x), x - y
    P = torch.cat([P, torch.ones_like(P[:, :1])], 1) if form.bias else P
    M = errors.mT @ P / len(x)
    size = form.unit_size(x.shape[1])
    diagonal = below = M.new_zeros(size, size)
    if form.n == 1:
        diagonal, below = _one_shortcut_blocks(form, x, P, errors)
    elif form.n == 2:
        diagonal = _two_shortcut_block(slope * M)
    return ZeroPoint(form, M, slope, diagonal, below)


def _two_shortcut_block(M: Tensor) -> Tensor:
    """[[0, A^T], [A, 0]] of [W^1 b] and W^2, with ``A = d2L / dW2_ki dW1_pq = c M_kq delta_ip`` (Eqs. 23 to 25)."""
    d, columns = M.shape
    A = torch.einsum("kq,ip->ikqp", M, torch.eye(d, dtype=M.dtype, device=M.device)).reshape(d * d, columns * d)
    block = A.new_zeros((columns + d) * d, (columns + d) * d)
    block[columns * d :, : columns * d], block[: columns * d, columns * d :] = A, A.mT
    return block


def _one_shortcut_blocks(form: ShortcutForm, x: Tensor, P: Tensor, errors: Tensor) -> tuple[Tensor, Tensor]:
    """B, one unit's, and A, a later unit's W_ij and an earlier one's W_kl (Eqs. 27 to 32):

    ``B = delta_ik (a^2 E[P_j P_l] + b E[e_i P_j P_l])``, ``A = a^2 (delta_ik E[P_j P_l] + delta_jk E[e_i pre'(x)_j P_l])``.
    """
    (m, d), columns = x.shape, P.shape[1]
    a, b = form.post.slope, form.post.curvature
    assert a is not None and b is not None  # `_slope` has checked
    eye, second = torch.eye(d, columns, dtype=x.dtype, device=x.device), P.mT @ P / m
    same = torch.einsum("ik,jl->jilk", eye[:, :d], a**2 * second)
    curved = torch.einsum("mi,mj,ml->ijl", errors, P, P) / m
    moved = torch.einsum("mi,mj,ml->ijl", errors, form.pre.derivative(x), P) / m  # j = 1, ..., d: b moves no input
    B = same + b * torch.einsum("ik,ijl->jilk", eye[:, :d], curved)
    A = same + a**2 * torch.einsum("kj,ikl->jilk", eye, moved)
    size = columns * d
    return B.reshape(size, size), A.reshape(size, size)


def _slope(form: ShortcutForm, activation: Activation, place: str) -> float:
    if activation.slope is None or (form.n == 1 and activation.curvature is None):
        raise UserError(
            f"Theorem 2 needs the derivative at 0 of the activation at {place}, but {activation.name} has none. Use "
            "relu_surrogate(0.5), the mean of its two slopes: with autograd's slope of 0 the Hessian vanishes."
        )
    return activation.slope


@dataclass(frozen=True)
class Deviations:
    """Largest absolute differences between Theorem 2 and automatic differentiation at zero; all 0 up to rounding."""

    gradient: float
    hessian: float
    eigenvalues: float  # of the closed form's spectrum from the eigenvalues of autograd's Hessian
    lower_orders: float  # largest |directional derivative| of the orders 1 to n - 1; 0 for n = 1, which has none
    leading: float  # of the directional derivative of order n, n! c sum_r <M, V^{r,n} ... V^{r,1}>, divided by n!


def zero_point_deviations(form: ShortcutForm, x: Tensor, y: Tensor) -> Deviations:
    """Theorem 2 against automatic differentiation, for one net and one set of data.

    Derivatives of the orders 1 to n are taken along `DIRECTIONS` random directions with standard normal entries.
    Cost: `torch.func.hessian`, so (R q) forward passes and about as many backward ones: keep R, d and m moderate.
    """
    theory, zero = zero_point(form, x, y), x.new_zeros(form.units * form.unit_size(x.shape[1]))

    def loss(parameters: Tensor) -> Tensor:
        return form.loss(parameters, x, y)

    H = autograd_hessian(loss)(zero)
    generator = torch.Generator().manual_seed(0)
    lower, leading = [0.0], []
    for _ in range(DIRECTIONS):
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
    are ``P_L^T y``. So the two Hessians are orthogonally similar, and shortcuts of length 1 have essentially no effect.

    Returned is the largest absolute difference between the plain net's Hessian in the variables V and the other one, 0 up to
    rounding, for matrices Q_1, ..., Q_L, (L, d, d) float64.
    """
    plain = hessian(matrices[:, None], moments, shortcut=False)
    changes, P = [], torch.eye(matrices.shape[-1], dtype=matrices.dtype, device=matrices.device)
    for Q in matrices:
        changes.append(torch.kron(P, Q @ P))  # vec(P_k V P_{k-1}^T) = (P_{k-1} kron P_k) vec(V)
        P = Q @ P
    change = torch.block_diag(*changes)
    turned = Moments(moments.xx, P.mT @ moments.yx, moments.yy)
    residual = hessian(torch.zeros_like(matrices)[:, None], turned, shortcut=True)
    return float((change.mT @ plain @ change - residual).abs().max())
