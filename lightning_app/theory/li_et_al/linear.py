"""Loss, gradient and Hessian of linear nets in closed form (Li et al. 2016, Eqs. 1 and 2, Definition 5).

A net of R units of n square matrices maps x by ``x <- s x + W^n ... W^1 x``, unit by unit, with s = 1 (shortcuts around n
matrices) or s = 0 (plain). Its loss ``1/2 E ||A x - y||^2`` is quadratic in its linear map A, with the coefficients E[x x^T],
E[y x^T] and E ||y||^2 (`Moments`): two small matrices replace sixty thousand images in loss, gradient, Hessian and full-batch
gradient descent, exactly. In any pair of matrices it is at most quadratic, so that the Hessian is a sum of Kronecker
products over all pairs, without automatic differentiation.

Shapes: weights (..., R, n, d, d), W[r, k] is the (k+1)-th matrix of the (r+1)-th unit; N = R n matrices.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Moments:
    """Second moments (means over the samples, 1/m, nothing centred) of inputs x in R^d and targets y in R^c."""

    xx: Tensor  # (d, d) float64, E[x x^T]
    yx: Tensor  # (c, d) float64, E[y x^T]
    yy: float  # E ||y||^2

    @classmethod
    def of(cls, x: Tensor, y: Tensor) -> "Moments":
        """Moments of m samples, inputs (m, d) and targets (m, c), computed in float64.

        >>> moments = Moments.of(torch.tensor([[1.0], [-1.0]]), torch.tensor([[2.0], [0.0]]))
        >>> moments.xx.item(), moments.yx.item(), moments.yy
        (1.0, 1.0, 2.0)
        """
        x, y = x.double(), y.double()
        return cls(x.mT @ x / len(x), y.mT @ x / len(x), float(y.square().sum() / len(y)))

    def optimum(self) -> float:
        """The least ``1/2 E ||A x - y||^2`` over all matrices A, the floor of every linear net. 0 where y = A x.

        >>> Moments.of(torch.tensor([[1.0], [-1.0]]), torch.tensor([[2.0], [0.0]])).optimum()  # A = 1 leaves (1, 1)
        0.5
        """
        explained = (self.yx @ torch.linalg.pinv(self.xx, hermitian=True) * self.yx).sum()
        return max(0.5 * (self.yy - float(explained)), 0.0)


def loss_and_gradient(weights: Tensor, moments: Moments, shortcut: bool) -> tuple[Tensor, Tensor]:
    """``1/2 E ||A x - y||^2``, (...), and its gradient, (..., R, n, d, d), for any number of nets of the same shape.

    The loss is >= `Moments.optimum`. Backpropagation with moments instead of samples: 3 N products of d x d matrices per net.

    >>> two = Moments.of(torch.eye(1), torch.full((1, 1), 5.0))  # 1/2 (w2 w1 - 5)^2 at w1 = 2, w2 = 3
    >>> weights = torch.tensor([2.0, 3.0], dtype=torch.float64).view(1, 2, 1, 1)
    >>> [each.flatten().tolist() for each in loss_and_gradient(weights, two, shortcut=False)]
    [[0.5], [3.0, 2.0]]
    """
    entering, whole = _forward(weights, shortcut)
    gradients = torch.empty_like(weights)
    back = whole @ moments.xx - moments.yx  # E[(A x - y) x^T], the derivative by what leaves the last unit
    for unit in reversed(range(weights.shape[-4])):
        through = back
        for place in reversed(range(weights.shape[-3])):
            torch.matmul(through, entering[..., unit, place, :, :].mT, out=gradients[..., unit, place, :, :])
            through = weights[..., unit, place, :, :].mT @ through
        back = back + through if shortcut else through
    return 0.5 * (((whole @ moments.xx - 2 * moments.yx) * whole).sum((-2, -1)) + moments.yy), gradients


def hessian(weights: Tensor, moments: Moments, shortcut: bool, out: Tensor | None = None) -> Tensor:
    """The Hessian of the same loss at one net, (D, D) with D = R n d^2, symmetric up to rounding.

    Order of Definition 5: unit, matrix, column, row (each matrix as a column-major vector), so that position
    ``((r n + k) d + column) d + row`` is ``W[r, k, row, column]``.

    With J_ba the derivative of what enters matrix b (or leaves the net) by what leaves matrix a (or enters the net), Y_b =
    J_b,in, X_a = J_out,a and E = E[(A x - y) x^T], the second derivative by W_b's entry (i, j) and W_a's (k, q) is

        (Y_b Sxx Y_a^T)_jq (X_b^T X_a)_ik  +  F_iq Z_jk,   F = X_b^T E Y_a^T, Z = J_ba,   where a comes before b,

    the same with exchanged roles if b comes before a, and without the second term if b = a.

    Cost: N products of small matrices and one pass over the result, whatever the number of samples.

    ``out``: memory for the result, (D, D) float64, contiguous. Most of the time for a large result is spent on allocating it.

    >>> two = Moments.of(torch.eye(1), torch.full((1, 1), 5.0))  # 1/2 (w2 w1 - 5)^2 at w1 = 2, w2 = 3
    >>> hessian(torch.tensor([2.0, 3.0], dtype=torch.float64).view(1, 2, 1, 1), two, shortcut=False).tolist()
    [[9.0, 7.0], [7.0, 4.0]]
    """
    units, n, d, _ = weights.shape
    count = units * n
    J = _jacobians(weights, shortcut)
    whole, Y = J[count, :, 0], J[:count, :, 0].reshape(count * d, d)
    X = J[count, :, 1:].reshape(d, count * d)
    Z = J[:count, :, 1:].reshape(count * d, count * d)  # 0 but where a comes before b
    below = torch.kron(Z.new_ones(count, count).tril(-1), Z.new_ones(d, d))  # 1 strictly below the blocks' diagonal
    F = (X.mT @ (whole @ moments.xx - moments.yx) @ Y.mT) * below
    crossed = F + Z.mT  # (b, i; a, q): the factor of row and column; its transpose is that of column and row
    by_column, by_row = Y @ moments.xx @ Y.mT, X.mT @ X  # (b, j; a, q) and (b, i; a, k)
    return _products(by_column, by_row, crossed, count, out)


def _products(by_column: Tensor, by_row: Tensor, crossed: Tensor, count: int, out: Tensor | None) -> Tensor:
    """``H[b j i, a q k] = by_column[b j, a q] by_row[b i, a k] + crossed[b i, a q] crossed[a k, b j]``.

    The factors are spread over the columns (a, q, k) first, and the rows of one b are filled at a time: long contiguous
    products whose factors stay in the cache.
    """
    d = len(by_row) // count
    H = by_row.new_empty(count * d * d, count * d * d) if out is None else out
    rows = H.view(count, d, d, -1)  # b, j, i
    over = [matrix.view(count, d, count, d, 1) for matrix in (by_column, crossed)]  # over q
    over += [matrix.reshape(count, d, count, 1, d) for matrix in (by_row, crossed.mT)]  # over k
    full = (count, d, count, d, d)
    column, row_column, row, column_row = (spread.expand(full).reshape(count, d, -1) for spread in over)
    for b in range(count):
        torch.mul(column[b, :, None], row[b, None], out=rows[b])
        rows[b].addcmul_(row_column[b, None], column_row[b, :, None])
    return H


def _jacobians(weights: Tensor, shortcut: bool) -> Tensor:
    """J, (N + 1, d, N + 1, d): of what enters matrix b (b = N: leaves the net) by what enters the net (a = 0) or leaves
    matrix a (a = 1, ..., N). 0 where a comes after b."""
    units, n, d, _ = weights.shape
    J = weights.new_zeros(units * n + 1, d, units * n + 1, d)
    J[0, :, 0] = torch.eye(d, dtype=weights.dtype, device=weights.device)
    for b, matrix in enumerate(weights.flatten(0, 1)):
        after = J[b + 1].view(d, -1)
        torch.mm(matrix, J[b].view(d, -1), out=after)
        J[b + 1, :, b + 1] = J[0, :, 0]
        if shortcut and b % n == n - 1:
            after += J[b + 1 - n].view(d, -1)
    return J


def _forward(weights: Tensor, shortcut: bool) -> tuple[Tensor, Tensor]:
    """What enters each matrix, (..., R, n, d, d), and leaves the net, (..., d, d), as matrices that act on x."""
    entering = torch.empty_like(weights)
    x = torch.eye(weights.shape[-1], dtype=weights.dtype, device=weights.device).expand(weights[..., 0, 0, :, :].shape)
    for unit in range(weights.shape[-4]):
        start = x
        for place in range(weights.shape[-3]):
            entering[..., unit, place, :, :] = x
            x = weights[..., unit, place, :, :] @ x
        x = start + x if shortcut else x
    return entering, x
