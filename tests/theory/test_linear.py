"""Closed forms against automatic differentiation of a forward pass over samples, and against laws."""

import pytest
import torch
from torch import Tensor
from torch.func import grad
from torch.func import hessian as autograd_hessian

from lightning_app.theory.li_et_al.linear import Moments, hessian, loss_and_gradient

CASES = pytest.mark.parametrize(
    ("units", "n"), [(1, 1), (2, 1), (6, 1), (12, 1), (1, 2), (3, 2), (6, 2), (1, 3), (2, 3), (4, 3), (3, 4)]
)
NETS = pytest.mark.parametrize("shortcut", [False, True], ids=["plain", "shortcut"])


def data(d: int, m: int = 30) -> tuple[Tensor, Tensor]:
    """Neither centred nor whitened."""
    generator = torch.Generator().manual_seed(5)
    mixing = torch.randn(d, d, generator=generator, dtype=torch.float64)
    x = torch.randn(m, d, generator=generator, dtype=torch.float64) @ mixing + 0.5
    return x, torch.randn(m, d, generator=generator, dtype=torch.float64) + x.tanh()


def draw(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64) / shape[-1] ** 0.5


def to_vector(weights: Tensor) -> Tensor:
    """Order of Definition 5, entry by entry: the later an index here, the faster it runs."""
    units, n, d, _ = weights.shape
    places = [(r, k, i, j) for r in range(units) for k in range(n) for j in range(d) for i in range(d)]
    return torch.stack([weights[place] for place in places])


def outputs(vector: Tensor, x: Tensor, units: int, n: int, shortcut: bool) -> Tensor:
    """f(x), (m, d), sample by sample through the layers."""
    d = x.shape[1]
    columns = vector.view(units, n, d, d)  # [r, k, column, row]
    for unit in columns:
        out = x
        for matrix in unit:
            out = out @ matrix  # rows of samples: x^T W^T, and W^T is [column, row]
        x = x + out if shortcut else out
    return x


def sample_loss(vector: Tensor, x: Tensor, y: Tensor, units: int, n: int, shortcut: bool) -> Tensor:
    """1/(2m) sum ||f(x) - y||^2"""
    return (outputs(vector, x, units, n, shortcut) - y).square().sum() / (2 * len(x))


@CASES
@NETS
def test_loss_gradient_and_hessian_are_those_of_autograd(units, n, shortcut):
    d = 3
    x, y = data(d)
    weights, moments = draw(units, n, d, d), Moments.of(x, y)
    vector, form = to_vector(weights), (x, y, units, n, shortcut)
    expected = autograd_hessian(sample_loss)(vector, *form)
    scale = max(1.0, float(expected.abs().max()))
    loss, gradient = loss_and_gradient(weights, moments, shortcut)
    assert float(loss) == pytest.approx(float(sample_loss(vector, *form)), rel=1e-13)
    torch.testing.assert_close(to_vector(gradient), grad(sample_loss)(vector, *form), rtol=0, atol=1e-10)
    H = hessian(weights, moments, shortcut)
    torch.testing.assert_close(H, expected, rtol=0, atol=1e-10)
    assert float((H - H.mT).abs().max()) < 1e-14 * scale


@pytest.mark.parametrize(("units", "n"), [(1, 1), (1, 3), (4, 1), (2, 2)])
@NETS
def test_at_a_global_minimum_1_minus_1_over_l_of_the_eigenvalues_are_zero(units, n, shortcut):
    """There E[(A x - y) x^T] = 0, and what is left of H has at most the rank d^2 of a map A; these matrices are regular."""
    d, L = 3, units * n
    x, y = data(d)
    weights = draw(units, n, d, d)
    unexplained = y - x @ torch.linalg.lstsq(x, y).solution
    minimum = Moments.of(x, outputs(to_vector(weights), x, units, n, shortcut) + unexplained)
    assert float(loss_and_gradient(weights, minimum, shortcut)[0]) == pytest.approx(minimum.optimum(), rel=1e-12)
    for moments, zeros in ((minimum, (L - 1) * d**2), (Moments.of(x, y), 0)):
        eigenvalues = torch.linalg.eigvalsh(hessian(weights, moments, shortcut)).abs()
        assert int((eigenvalues < 1e-12 * eigenvalues.max()).sum()) == zeros


@NETS
def test_many_nets_are_one_by_one(shortcut):
    weights, moments = draw(2, 5, 3, 2, 4, 4), Moments.of(*data(4))
    losses, gradients = loss_and_gradient(weights, moments, shortcut)
    assert losses.shape == (2, 5) and gradients.shape == weights.shape
    for place in [(0, 0), (1, 3)]:
        alone, own = loss_and_gradient(weights[place], moments, shortcut)
        torch.testing.assert_close(losses[place], alone, rtol=1e-14, atol=0)
        torch.testing.assert_close(gradients[place], own, rtol=0, atol=1e-13)


def test_a_hessian_goes_where_it_is_told():
    weights, moments = draw(2, 2, 3, 3), Moments.of(*data(3))
    out = torch.full((36, 36), float("nan"), dtype=torch.float64)
    assert hessian(weights, moments, True, out=out) is out
    assert torch.equal(out, hessian(weights, moments, True))
