"""Theorem 2: closed forms against automatic differentiation, exact cases worked out by hand, and its invariances."""

import math
from dataclasses import astuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lightning_app.common.errors import UserError
from lightning_app.networks import ShortcutNet, draw
from lightning_app.theory.li_et_al.linear import Moments
from lightning_app.theory.li_et_al.shortcut import IDENTITY, RELU, TANH, Activation, ShortcutForm, relu_surrogate
from lightning_app.theory.li_et_al.zero_point import (
    ZeroPoint,
    orthogonal_equivalence,
    zero_point,
    zero_point_deviations,
)

# Smooth at 0 and curved there, as none of the usual ones is: only it sees b = post''(0).
SOFTPLUS = Activation("softplus less log 2", lambda t: F.softplus(t) - math.log(2), 0.5, 0.25)
ACTIVATIONS = {
    "linear": (IDENTITY, IDENTITY, IDENTITY),
    "tanh": (TANH, TANH, TANH),
    "pre relu": (RELU, IDENTITY, IDENTITY),
    "softplus": (RELU, SOFTPLUS, SOFTPLUS),
    "relu surrogate": (RELU, relu_surrogate(), relu_surrogate(0.25)),
}
KINDS = pytest.mark.parametrize("kind", ACTIVATIONS)
BIASES = pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])


def data(d: int = 3, m: int = 20) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(m, d, generator=generator, dtype=torch.float64) + 0.3
    return x, torch.randn(m, d, generator=generator, dtype=torch.float64) + x.roll(1, 1)


def whitened(d: int = 4, m: int = 60) -> Tensor:
    """(m, d) with E[x x^T] = I exactly."""
    x = torch.randn(m, d, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    return torch.linalg.qr(x).Q * m**0.5


def condition_number(point: ZeroPoint) -> float:
    """Largest over smallest |eigenvalue|, but for the exact zeros that a bias adds."""
    sizes = point.eigenvalues.abs()
    sizes = sizes[sizes > 0] if point.form.bias else sizes
    return float(sizes.max() / sizes.min())


@pytest.mark.parametrize(("units", "n"), [(1, 1), (3, 1), (3, 2), (2, 3), (1, 4), (2, 4)])
@KINDS
@BIASES
def test_closed_forms_are_those_of_autograd(n, units, kind, bias):
    """Gradient, Hessian, spectrum, the vanishing of orders 1 to n - 1 and the value of order n."""
    found = zero_point_deviations(ShortcutForm(units, n, *ACTIVATIONS[kind], bias), *data())
    assert np.max(astuple(found)) < 1e-12, found


def test_the_check_can_fail():
    """A curvature that is not that of the function shows in the Hessian, for n = 1 only."""
    wrong = Activation("wrong", SOFTPLUS.function, 0.5, 0.0)
    for n, fails in [(1, True), (2, False)]:
        found = zero_point_deviations(ShortcutForm(2, n, IDENTITY, IDENTITY, wrong), *data())
        assert (np.max(astuple(found)) > 1e-3) == fails


@pytest.mark.parametrize("units", [1, 2, 5])
@BIASES
def test_two_shortcut_spectrum(units, bias):
    """+-|c| s_a(M), R d times each, and R d zeros with the bias: symmetric, and half of the others negative."""
    x, y = data()
    point = zero_point(ShortcutForm(units, 2, TANH, TANH, SOFTPLUS, bias), x, y)
    found = point.eigenvalues
    torch.testing.assert_close(found, torch.linalg.eigvalsh(point.hessian()), rtol=0, atol=1e-13)
    torch.testing.assert_close(found, -found.flip(0), rtol=0, atol=0)
    assert bool((found.unique(return_counts=True)[1] == units * 3).all())
    assert len(found) == units * (18 + 3 * bias) and int((found == 0).sum()) == 3 * units * bias
    assert point.factor == 0.5  # tanh'(0) softplus'(0)


def test_a_negative_slope_turns_the_spectrum_of_two_shortcuts_into_itself():
    x, y = data()
    one, other = (zero_point(ShortcutForm(2, 2, IDENTITY, relu_surrogate(s)), x, y) for s in (0.5, -0.5))
    assert one.factor == -other.factor
    torch.testing.assert_close(other.eigenvalues, torch.linalg.eigvalsh(other.hessian()), rtol=0, atol=1e-13)
    assert torch.equal(one.eigenvalues, other.eigenvalues)


def test_two_shortcut_condition_number_depends_on_the_data_alone():
    x, y = data()
    M = (x - y).mT @ x / len(x)
    expected = float(torch.linalg.cond(M.mT @ M)) ** 0.5
    for units in (1, 2, 7):
        for mid, post in [(IDENTITY, IDENTITY), (TANH, SOFTPLUS), (relu_surrogate(0.1), TANH)]:
            point = zero_point(ShortcutForm(units, 2, IDENTITY, mid, post), x, y)
            assert condition_number(point) == pytest.approx(expected, rel=1e-12)
            sizes = torch.linalg.eigvalsh(point.hessian()).abs()
            assert float(sizes.max() / sizes.min()) == pytest.approx(expected, rel=1e-10)
    scaled = zero_point(ShortcutForm(3, 2), 3 * x, 3 * y)
    torch.testing.assert_close(scaled.M, 9 * M, rtol=1e-13, atol=0)
    assert condition_number(scaled) == pytest.approx(expected, rel=1e-12)


def test_the_hidden_bias_adds_a_column_to_M():
    x, y = data()
    plain, biased = (zero_point(ShortcutForm(2, 2, TANH, bias=bias), x, y) for bias in (False, True))
    assert torch.equal(biased.M[:, :3], plain.M)
    torch.testing.assert_close(biased.M[:, 3], (x - y).mean(0), rtol=1e-13, atol=0)
    s = torch.linalg.svdvals(biased.M)
    assert condition_number(biased) == pytest.approx(float(s[0] / s[-1]), rel=1e-12)


def test_at_half_the_slope_the_relu_is_the_mean_of_its_two_sides():
    """M_w + M_-w = M: at small weights the curvature of a hidden ReLU unit averages to that of slope 1/2."""
    x, y = data()
    w = torch.tensor([1.0, -0.5, 0.25], dtype=torch.float64)
    sides = [(x - y).mT @ (x * (sign * (x @ w) > 0)[:, None]) / len(x) for sign in (1, -1)]
    point = zero_point(ShortcutForm(1, 2, IDENTITY, relu_surrogate(), IDENTITY), x, y)
    torch.testing.assert_close((sides[0] + sides[1]) / 2, point.factor * point.M, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("units", [2, 5, 9])
@pytest.mark.parametrize("mu", [0.7, 1.3, -0.4])
def test_one_shortcut_exact_case(units, mu):
    """Whitened inputs and M = mu I: (1 + mu) R - mu once and -mu for R - 1 times in d (d + 1) / 2 symmetric directions, (1 -
    mu) R + mu once and mu for R - 1 times in d (d - 1) / 2 antisymmetric ones; the condition number is linear in R."""
    d, x = 4, whitened()
    point = zero_point(ShortcutForm(units, 1), x, (1 - mu) * x)
    expected = (
        [(1 + mu) * units - mu] * (d * (d + 1) // 2)
        + [-mu] * ((units - 1) * d * (d + 1) // 2)
        + [(1 - mu) * units + mu] * (d * (d - 1) // 2)
        + [mu] * ((units - 1) * d * (d - 1) // 2)
    )
    expected = torch.tensor(sorted(expected), dtype=torch.float64)
    torch.testing.assert_close(point.eigenvalues, expected, rtol=0, atol=1e-12)
    assert condition_number(point) == pytest.approx(float(expected.abs().max() / expected.abs().min()), rel=1e-10)
    if abs(mu) < 1:
        assert condition_number(point) == pytest.approx(((1 + abs(mu)) * units - abs(mu)) / abs(mu), rel=1e-10)


def test_one_shortcut_is_not_stationary_and_block_toeplitz():
    x, y = data()
    point = zero_point(ShortcutForm(4, 1, TANH, post=SOFTPLUS), x, y)
    H = point.hessian().view(4, 9, 4, 9)
    torch.testing.assert_close(point.gradient().view(4, 3, 3)[2].mT, 0.5 * point.M, rtol=1e-13, atol=0)
    for r in range(4):
        for q in range(4):
            expected = point.diagonal if r == q else point.below if r > q else point.below.mT
            assert torch.equal(H[r, :, q], expected)


@pytest.mark.parametrize("layers", [1, 2, 5])
@pytest.mark.parametrize("d", [2, 4])
def test_an_orthogonal_plain_net_is_the_one_shortcut_net_at_zero(layers, d):
    matrices = draw((layers, d, d), "orthogonal", generator=torch.Generator().manual_seed(3))
    assert orthogonal_equivalence(matrices, Moments.of(*data(d))) < 1e-13


@BIASES
@pytest.mark.parametrize("n", [1, 2, 3])
def test_the_form_is_the_net(n, bias):
    """Same function as the module, parameter by parameter in the order of Definition 5."""
    torch.manual_seed(0)
    net = ShortcutNet(3, 2, n, pre="tanh", mid="relu", post="tanh", init="xavier", bias=bias).double()
    biases = torch.randn(2, 3, dtype=torch.float64) if bias else None
    for unit, b in zip(net.units, biases if bias else ()):
        unit.path[0].bias.data.copy_(b)
    form, (x, y) = ShortcutForm(2, n, TANH, RELU, TANH, bias), data()
    parameters = form.vector(net.weights(), biases)
    assert parameters.numel() == sum(p.numel() for p in net.parameters()) == 2 * form.unit_size(3)
    torch.testing.assert_close(form(parameters, x), net(x).detach(), rtol=0, atol=1e-14)
    assert float(form.loss(parameters, x, y)) == pytest.approx(float((net(x).detach() - y).square().sum() / 40))


def test_a_relu_at_mid_or_post_has_to_be_replaced_by_name():
    for place in ("mid", "post"):
        with pytest.raises(UserError, match=rf"at {place}, but relu has none\. Use relu_surrogate\(0\.5\)"):
            zero_point(ShortcutForm(2, 2, **{place: RELU}), *data())
    zero_point(ShortcutForm(2, 1, mid=RELU), *data())  # n = 1 has no mid


def test_autograd_takes_a_relu_for_flat_at_zero():
    """Why the surrogate is asked for: at exactly zero weights autograd's Hessian vanishes, and slope 0 is its closed form."""
    x, y = data()
    form = ShortcutForm(2, 2, mid=RELU)
    H = torch.func.hessian(lambda p: form.loss(p, x, y))(torch.zeros(36, dtype=torch.float64))
    assert not H.any()
    assert not zero_point(ShortcutForm(2, 2, mid=relu_surrogate(0)), x, y).hessian().any()
