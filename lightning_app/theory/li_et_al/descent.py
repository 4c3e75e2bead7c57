"""Many small full-batch gradient descents as one tensor program: every learning rate and seed of a figure at once.

The nets of Li et al. (2016, section 5) are square and tiny: one step of one run is a hundred products of 10 x 10
matrices, whose cost is calls, not arithmetic. Here k runs (each with a learning rate and initial weights) are the leading
dimension of every tensor. A linear net depends on the data only through second moments; other nets pass over all samples,
features before samples and in pieces, so that the tensors for the backward pass are still in the cache.

Shapes: k runs, R units of n matrices, width d, m samples.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from lightning_app.theory.li_et_al import linear
from lightning_app.theory.li_et_al.linear import Moments

Activation = Literal["identity", "relu", "tanh"]
CACHED = 2**22  # numbers that backward needs of one piece: 16 MB in float32, a share of a CPU's last cache
RUNS = 4  # passed over the samples together: of few runs the pieces are long, and long products are fast ones
LEAST_PIECE = 128  # samples: below, calls cost more than the cache saves


@dataclass(frozen=True)
class Descent:
    """The course of k descents. Column 0 is before the first step.

    A run has diverged when its loss is not finite. From that column on its numbers are inf and its weights nan.
    """

    rates: Tensor  # (k,) learning rates
    losses: Tensor  # (k, steps + 1) float64
    norms: Tensor  # (k, steps + 1) mean Frobenius norm of a matrix
    gradient_norms: Tensor  # (k, steps + 1) 2-norm of the whole gradient
    weights: Tensor  # (k, R, n, d, d) after the last step
    path: Tensor | None = None  # (k, steps + 1, R, n, d, d) the weights of every column, if ``keep`` was set


@dataclass(frozen=True)
class LinearProblem:
    """A linear net's loss 1/2 E||x^R - y||^2, in float64. It depends on the data only through their second moments."""

    moments: Moments
    shortcut: bool = True
    dtype: ClassVar[torch.dtype] = torch.float64

    def loss_and_gradient(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """For weights (k, R, n, d, d): losses, (k,) float64, and gradients with the shape and dtype of ``weights``."""
        return linear.loss_and_gradient(weights, self.moments, self.shortcut)


class SampleProblem:
    """The loss 1/(2m) sum ||x^R - y||^2 over all samples of a net with an activation between a unit's matrices.

    A unit is x <- (x if shortcut else 0) + W^n mid(... mid(W^1 x)) (Li et al. 2016, Definition 2). Without shortcuts and
    with n = 2 this is a plain net with activations after its odd layers, as many as in the 2-shortcut net of the same depth.
    Inputs x and targets y are (m, d); runs are computed in the dtype of x.
    """

    def __init__(self, x: Tensor, y: Tensor, shortcut: bool = True, mid: Activation = "relu") -> None:
        self.dtype = x.dtype
        self.x, self.y = x.T.contiguous(), y.to(x.dtype).T.contiguous()  # (d, m)
        self.shortcut = shortcut
        self.mid: Activation = mid

    def loss_and_gradient(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        if len(weights) > RUNS:
            losses, gradients = zip(*(self.loss_and_gradient(some) for some in weights.split(RUNS)))
            return torch.cat(losses), torch.cat(gradients)
        k, d, samples = len(weights), *self.x.shape
        loss, gradient = weights.new_zeros(k, dtype=torch.float64), torch.zeros_like(weights)
        size = max(LEAST_PIECE, CACHED // (weights.numel() // d))
        for x, y in zip(self.x.split(size, 1), self.y.split(size, 1)):
            with torch.enable_grad():
                w = weights.detach().requires_grad_()
                errors = (self._outputs(w.movedim(0, 2), x.expand(k, -1, -1)) - y).square().sum((1, 2))
                gradient += torch.autograd.grad(errors.sum(), w)[0]
            loss += errors.detach().double()
        return loss / (2 * samples), gradient.div_(2 * samples)

    def _outputs(self, weights: Tensor, x: Tensor) -> Tensor:
        """Of weights (R, n, k, d, d) and inputs (k, d, piece)."""
        folded = weights if self.shortcut or weights.shape[1] == 1 else _folded(weights)
        for *earlier, last in folded:
            hidden = x
            for w in earlier:
                hidden = _ACTIVATIONS[self.mid](w @ hidden)
            x = torch.baddbmm(x, last, hidden) if self.shortcut else last @ hidden
        return x


Problem = LinearProblem | SampleProblem
_ACTIVATIONS = {"identity": lambda x: x, "relu": Tensor.relu_, "tanh": Tensor.tanh_}


def _folded(weights: Tensor) -> Tensor:
    """A plain net with half the products: where units meet without an activation, the two matrices multiplied.

    (R, n, k, d, d), n >= 2 -> one unit (1, R (n - 1) + 1, k, d, d) with an activation between all of its matrices.
    """
    firsts = torch.cat([weights[:1, 0], weights[1:, 0] @ weights[:-1, -1]])
    earlier = torch.cat([firsts.unsqueeze(1), weights[:, 1:-1]], 1).flatten(0, 1)
    return torch.cat([earlier, weights[-1:, -1]]).unsqueeze(0)


@torch.no_grad()
def descend(problem: Problem, weights: Tensor, rates: Tensor, steps: int, keep: bool = False) -> Descent:
    """``steps`` steps of full-batch gradient descent w <- w - rate * gradient, of k independent runs.

    It starts from weights (k, R, n, d, d), which are not changed, with rates (k,). A run that diverges is not continued.
    ``keep``: also return the weights of every column.
    """
    k = len(rates)
    runs, w = torch.arange(k, device=weights.device), weights.to(problem.dtype, copy=True)  # those still computed
    step_sizes = rates.to(w).view(-1, 1, 1, 1, 1)
    losses, norms, gradient_norms = (w.new_full((k, steps + 1), torch.inf, dtype=torch.float64) for _ in range(3))
    path = w.new_full((k, steps + 1, *w.shape[1:]), torch.nan) if keep else None
    final = torch.full_like(w, torch.nan)
    for step in range(steps + 1):
        loss, gradient = problem.loss_and_gradient(w)
        if not (alive := loss.isfinite()).all():
            runs, w, loss, gradient, step_sizes = (each[alive] for each in (runs, w, loss, gradient, step_sizes))
        if not len(runs):
            break
        losses[runs, step] = loss
        norms[runs, step] = w.norm(dim=(-2, -1)).mean((1, 2)).double()
        gradient_norms[runs, step] = gradient.flatten(1).norm(dim=1).double()
        if path is not None:
            path[runs, step] = w
        if step < steps:
            w.addcmul_(step_sizes, gradient, value=-1)
    final[runs] = w
    return Descent(rates, losses, norms, gradient_norms, final, path)
