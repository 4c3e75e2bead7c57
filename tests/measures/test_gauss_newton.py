"""Gauss-Newton and Fisher matrices against their definitions, written out with Jacobians of every term."""

from typing import get_args

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, jacrev

from callbacks import HessianSpectrum
from callbacks.context import MeasureContext
from lightning_app.common.errors import DivergedError, UserError
from lightning_app.measures.curvature.gauss_newton import Approximation, GaussNewton
from tests.callbacks.test_calls import reader, texts


def by_hand(net: nn.Module, rows, labels) -> dict[str, torch.Tensor]:
    """``rows``: parameters by name -> outputs (n, classes) of the terms."""
    weights = {name: weight.detach() for name, weight in net.named_parameters()}
    outputs = rows(weights)
    J = torch.cat([part.flatten(2) for part in jacrev(rows)(weights).values()], 2)  # (n, classes, parameters)
    p = outputs.softmax(1)
    curved = torch.diag_embed(p) - p[:, :, None] * p[:, None]
    g = torch.einsum("ncp,nc->np", J, p - F.one_hot(labels, p.shape[1]))
    return {
        "gauss_newton": torch.einsum("ncp,ncd,ndq->pq", J, curved, J) / len(labels),
        "empirical_fisher": g.T @ g / len(labels),
    }


def matrix_of(operator: GaussNewton) -> torch.Tensor:
    return torch.stack([operator @ one for one in torch.eye(operator.size, dtype=torch.float64)], 1)


@pytest.mark.parametrize("matrix", get_args(Approximation))
def test_of_samples_in_any_batches(matrix):
    torch.manual_seed(0)
    net, x, y = (
        nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double(),
        torch.randn(5, 3).double(),
        torch.arange(5) % 3,
    )
    expected = by_hand(net, lambda weights: functional_call(net, weights, (x,)), y)[matrix]
    found = matrix_of(GaussNewton(net, [(x[:2], y[:2]), (x[2:], y[2:])], matrix))
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("matrix", get_args(Approximation))
def test_of_tokens_with_masks_and_the_loss_of_the_net(matrix):
    net, batch = reader().double(), texts(4)
    context = MeasureContext(net, [batch])
    samples = context.samples(4)
    said = batch["labels"][:, 1:]

    def rows(weights):
        return functional_call(net, weights, kwargs=batch).logits[:, :-1][said != -100]

    expected = by_hand(net, rows, said[said != -100])[matrix]
    found = matrix_of(GaussNewton(net, samples, matrix, context.loss))
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_its_spectrum_has_the_bounds_of_a_hessians():
    net, batch = reader().double(), texts(4)
    context = MeasureContext(net, [batch])
    found = HessianSpectrum(k=2, steps=40, samples=4, matrix="gauss_newton").evaluate(context)
    values = torch.linalg.eigvalsh(matrix_of(GaussNewton(net, context.samples(4), "gauss_newton", context.loss)))
    for number in (1, 2):
        near = (values - found[f"gauss_newton/top{number}"]).abs().min()
        assert near <= found[f"gauss_newton/top{number}_residual"] + 1e-12
        assert found[f"gauss_newton/top{number}"] == pytest.approx(float(values[-number]), rel=1e-6)
    assert found["gauss_newton"].bottom[0] > -1e-10


def test_refusals():
    net, batches = nn.Linear(2, 2), [(torch.ones(3, 2), torch.tensor([0, 1, 0]))]
    with pytest.raises(
        UserError, match=r"for the mean cross-entropy only, .* but this loss is .*: set matrix to hessian"
    ):
        GaussNewton(net, batches, loss=lambda outputs, labels: outputs.square().mean())
    with pytest.raises(UserError, match="at least one sample whose label counts, got none"):
        GaussNewton(net, [])
    mixing = nn.Sequential(net, nn.BatchNorm1d(2, track_running_stats=False)).eval()
    with pytest.raises(UserError, match="gauss_newton needs outputs that do not depend on the other samples"):
        GaussNewton(mixing, batches)
    with pytest.raises(UserError, match="one of hessian, gauss_newton, empirical_fisher, got 'fisher'"):
        HessianSpectrum(matrix="fisher")
    with pytest.raises(UserError, match="parts of HessianSpectrum need the matrix 'hessian', got 'gauss_newton'"):
        HessianSpectrum(matrix="gauss_newton", parts=True)


def test_samples_that_do_not_count_are_left_out_and_a_net_that_diverged_says_so():
    torch.manual_seed(0)
    net, x, y = nn.Linear(3, 2).double(), torch.randn(4, 3).double(), torch.tensor([0, 1, 1, 0])
    ignored = (torch.randn(2, 3).double(), torch.full((2,), -100))
    expected = matrix_of(GaussNewton(net, [(x, y)]))
    assert torch.equal(matrix_of(GaussNewton(net, [ignored, (x, y)])), expected)
    with pytest.raises(UserError, match="whose label counts, got none"):
        GaussNewton(net, [ignored])
    nn.init.constant_(net.weight, torch.nan)
    with pytest.raises(DivergedError, match="it diverged"):
        GaussNewton(net, [(x, y)])


def test_attention_has_a_forward_mode_derivative():
    torch.manual_seed(0)
    net = nn.Sequential(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), nn.Flatten(), nn.Linear(12, 2)).eval()
    operator = GaussNewton(net, [(torch.randn(2, 3, 4), torch.tensor([0, 1]))])
    assert (operator @ torch.ones(operator.size)).isfinite().all()
