"""An n-shortcut net as a pure function of one vector of parameters (Li et al. 2016, Definitions 2 and 5, Eq. 3).

The network module of the same name is for training; this one is for the theorems and the checks that differentiate it: parameters
in the order of Definition 5, and activations with known derivatives at 0.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Activation:
    """An elementwise function and its derivatives at 0; at mid and post it is 0 there (Assumption 3)."""

    name: str
    function: Callable[[Tensor], Tensor]
    slope: float | None  # first derivative at 0; None where there is none
    curvature: float | None  # second derivative at 0

    def __call__(self, x: Tensor) -> Tensor:
        return self.function(x)

    def derivative(self, x: Tensor) -> Tensor:
        """The derivative at every entry of x, by autograd: exact where it exists (for a ReLU at exactly 0 it is taken as 0)."""
        return torch.func.grad(lambda t: self.function(t).sum())(x)


IDENTITY = Activation("identity", lambda t: t, 1.0, 0.0)
TANH = Activation("tanh", torch.tanh, 1.0, 0.0)
RELU = Activation("relu", torch.relu, None, None)


def relu_surrogate(slope: float = 0.5) -> Activation:
    """The linear function that replaces a ReLU near 0, where a ReLU has no derivative.

    Slope 1/2 is the mean of the two one-sided ones: at small weights w of a hidden unit the ReLU's part of the Hessian is
    ``M_w = E[(x - y) 1[w.x > 0] x^T]``, with ``M_w + M_-w = M`` exactly, and ``M_w = M / 2`` for data symmetric in x.
    Slope 0 is autograd's choice at exactly 0; it makes the Hessian at zero vanish.
    """
    return Activation(f"relu with slope {slope:g} at 0", lambda t: slope * t, slope, 0.0)


@dataclass(frozen=True)
class ShortcutForm:
    """R units ``x + post(W^n mid(... mid(W^1 pre(x) + b)))`` on R^d, for any d.

    The parameters are one vector in the order of Definition 5: unit, matrix, column, row. With ``bias`` the vector b of a
    unit is one more column of its first matrix, the (d + 1)-th.
    """

    units: int  # R
    n: int  # matrices a unit
    pre: Activation = IDENTITY
    mid: Activation = IDENTITY
    post: Activation = IDENTITY
    bias: bool = False  # b after the first matrix of each unit (Eq. 3)

    def unit_size(self, d: int) -> int:
        """Parameters of a unit.

        >>> ShortcutForm(units=3, n=2, bias=True).unit_size(10)
        210
        """
        return self.n * d * d + self.bias * d

    def vector(self, weights: Tensor, biases: Tensor | None = None) -> Tensor:
        """The parameters of matrices (R, n, d, d) and biases (R, d) as one vector; without biases they are 0."""
        columns = weights.mT.flatten(2)  # (R, n, d d)
        if not self.bias:
            return columns.flatten()
        biases = weights.new_zeros(weights.shape[0], weights.shape[-1]) if biases is None else biases
        return torch.cat([columns[:, 0], biases, columns[:, 1:].flatten(1)], 1).flatten()

    def __call__(self, parameters: Tensor, x: Tensor) -> Tensor:
        """x^R, (m, d), for inputs (m, d)."""
        d = x.shape[1]
        for unit in parameters.view(self.units, self.unit_size(d)):
            columns = unit.view(-1, d)  # one row for each column of [W^1 b], W^2, ..., W^n
            out = self.pre(x) @ columns[:d]
            out = out + columns[d] if self.bias else out
            for transposed in columns[d + self.bias :].view(self.n - 1, d, d):
                out = self.mid(out) @ transposed
            x = x + self.post(out)
        return x

    def loss(self, parameters: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """``1/(2m) sum ||x^R - y||^2``, ()."""
        return (self(parameters, x) - y).square().sum() / (2 * len(x))
