"""Gauss-Newton and Fisher matrices as products, by curvlinops, for the same Lanczos runs with the same bounds as a Hessian.

    G = 1/N sum_n J_n^T H_n J_n,        F = 1/N sum_n g_n g_n^T,

with J_n the Jacobian of a sample's outputs, H_n the second derivative of its loss in the outputs and g_n the gradient of its
loss, all in the parameters. G is the Hessian without the curvature of the net itself: positive semi-definite for a loss that is
convex in the outputs. For a cross-entropy it is the Fisher matrix, an expectation over labels drawn from the model. F is the
empirical Fisher matrix, with the labels of the data: the gradients' second moment, which is not G.
"""

import math
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightning_app.common.calls import adapt
from lightning_app.common.errors import DivergedError, UserError
from lightning_app.common.isolation import attention_written_out, unrounded
from lightning_app.measures.core.hooks import own_copy, shared_copy
from lightning_app.measures.core.losses import Batches, Loss, cross_entropy, rows_of
from lightning_app.measures.curvature.hessian import CHUNK, ParameterMap, check_samples_apart, chosen, cut

Approximation = Literal["gauss_newton", "empirical_fisher"]


class GaussNewton(ParameterMap):
    """One of these matrices for the mean cross-entropy over samples, or over tokens whose label is not -100; a `Symmetric`.

    Args:
        net: inputs -> outputs, in evaluation mode.
        batches: (inputs, labels) on the net's device.
        matrix: "gauss_newton" or "empirical_fisher". The sum of the latter is over the terms of the mean: over tokens, if these
            have labels.
        loss: (outputs, labels) -> mean over a batch, a cross-entropy.
        double: compute in float64, on a copy of the net.

    Cost: a product takes one forward-mode, one reverse-mode and two forward passes, a third more than a Hessian's with kept
    graphs.

    Raises:
        UserError: if curvlinops is not installed; for another loss, half precision, no samples, training mode, or a BatchNorm
            without running statistics.
        DivergedError: for a net whose loss is not finite.

    >>> net = nn.Linear(1, 2, bias=False).double()
    >>> _ = nn.init.zeros_(net.weight)
    >>> G = GaussNewton(net, [(torch.full((1, 1), 2.0), torch.tensor([0]))])
    >>> G @ torch.tensor([1.0, 0.0], dtype=torch.float64)  # x^2 (diag(p) - p p^T), p = 1/2
    tensor([ 1., -1.], dtype=torch.float64)
    """

    def __init__(
        self,
        net: nn.Module,
        batches: Batches,
        matrix: Approximation = "gauss_newton",
        loss: Loss = cross_entropy,
        double: bool = False,
    ) -> None:
        try:
            import curvlinops
        except ImportError as error:
            raise UserError(f"{matrix} needs curvlinops: pip install curvlinops-for-pytorch.") from error
        self._net = own_copy(net).double() if double else shared_copy(net)
        check_samples_apart(self._net, matrix)
        adapt(self._net)
        self.parameters = chosen(self._net)
        pieces = cut(batches, loss, self.like.dtype, CHUNK)
        self._parts: list[tuple[int, Any]] = []
        kind = {"gauss_newton": curvlinops.GGNLinearOperator, "empirical_fisher": curvlinops.EFLinearOperator}[matrix]
        for inputs, labels in pieces:
            terms = _Terms(self._net, inputs, labels, loss)
            rows = self._checked(terms, loss, matrix)
            given = (terms, nn.CrossEntropyLoss(), [*self.parameters.values()], [(rows[:1], rows)])
            self._parts.append((len(rows), kind(*given, check_deterministic=False, num_data=1)))
        if not self._parts:
            raise UserError(f"{matrix} needs at least one sample whose label counts, got none.")

    @unrounded()
    def __matmul__(self, vector: Tensor) -> Tensor:
        found, total = torch.zeros_like(vector), sum(count for count, _ in self._parts)
        for count, operator in self._parts:
            found += count / total * (operator @ vector)
        return found

    @unrounded()
    @torch.no_grad()
    def _checked(self, terms: "_Terms", loss: Loss, matrix: Approximation) -> Tensor:
        """The labels of the rows, of a loss that is their mean cross-entropy."""
        outputs = self._net(terms.inputs)
        rows, labels = rows_of(outputs, terms.labels, loss)
        asked, known = float(loss(outputs, terms.labels)), float(F.cross_entropy(rows, labels))
        if not math.isfinite(asked) and not math.isfinite(known):
            raise DivergedError(f"{matrix} needs a finite loss, but that of this net is {known}: it diverged.")
        if not math.isclose(asked, known, rel_tol=1e-3, abs_tol=1e-6):
            raise UserError(
                f"{matrix} is defined for the mean cross-entropy only, which is {known:.4g} here, but this loss is {asked:.4g}: "
                "set matrix to hessian."
            )
        return labels


class _Terms(nn.Module):
    """A net on fixed samples, with a row of outputs for each term of the loss; what it is called with does not count."""

    def __init__(self, net: nn.Module, inputs: Any, labels: Tensor, loss: Loss) -> None:
        super().__init__()
        self.net, self.inputs, self.labels, self.loss = net, inputs, labels, loss

    def forward(self, _: Tensor) -> Tensor:
        with attention_written_out():
            return rows_of(self.net(self.inputs), self.labels, self.loss)[0]
