"""Shortcut nets against the linear theory and a forward pass written by hand, and what they are drawn from."""

import pytest
import torch
from torch import Tensor, nn

from lightning_app.common.errors import UserError
from lightning_app.modules.members import Member
from lightning_app.modules.resume import check_members, describe
from lightning_app.networks import ShortcutNet, blocks_of, draw, layers_of
from lightning_app.theory.li_et_al.linear import Moments, loss_and_gradient

KINDS = pytest.mark.parametrize("shortcut", [True, False], ids=["shortcut", "plain"])


def net(seed: int = 0, **arguments) -> ShortcutNet:
    torch.manual_seed(seed)
    return ShortcutNet(**({"width": 4, "init": "xavier"} | arguments)).double()


def samples(m: int = 12, d: int = 4) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    x, y = torch.randn(2, m, d, generator=generator, dtype=torch.float64)
    return x, y


def half_mean_square(out: Tensor, y: Tensor) -> Tensor:
    return (out - y).square().sum() / (2 * len(y))


@KINDS
@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_linear_net_is_the_one_of_the_theory(n, shortcut):
    some, (x, y) = net(n=n, units=3, shortcut=shortcut), samples()
    weights, moments = some.weights(), Moments.of(x, y)
    assert weights.shape == (3, n, 4, 4)
    ours = half_mean_square(some(x), y)
    loss, gradient = loss_and_gradient(weights, moments, shortcut)
    assert ours.item() == pytest.approx(loss.item(), rel=1e-12)
    ours.backward()
    slopes = torch.stack([torch.stack([layer.weight.grad for layer in unit.path]) for unit in some.units])
    torch.testing.assert_close(slopes, gradient, rtol=0, atol=1e-12)


RELU, TANH = torch.relu, torch.tanh


@KINDS
def test_pre_mid_and_post_are_where_definition_2_puts_them(shortcut):
    some, (x, _) = net(units=2, n=3, pre="tanh", mid="relu", post="tanh", shortcut=shortcut), samples()
    out = x
    for W1, W2, W3 in some.weights():
        path = TANH(RELU(RELU(TANH(out) @ W1.T) @ W2.T) @ W3.T)
        out = out + path if shortcut else path
    torch.testing.assert_close(some(x), out, rtol=0, atol=1e-14)


def test_with_a_hidden_bias_and_a_relu_it_is_equation_3():
    some, (x, _) = net(units=2, mid="relu", bias=True), samples()
    out = x
    for unit in some.units:
        assert bool((unit.path[0].bias == 0).all()) and unit.path[1].bias is None
        nn.init.normal_(unit.path[0].bias)
        (U, b), V = unit.path[0].parameters(), unit.path[1].weight
        out = out + RELU(out @ U.T + b) @ V.T
    torch.testing.assert_close(some(x), out, rtol=0, atol=1e-14)


@pytest.mark.parametrize("activation", ["identity", "relu", "tanh"])
@KINDS
def test_at_zero_weights_a_shortcut_net_is_the_identity_and_a_plain_one_is_zero(activation, shortcut):
    some, (x, _) = net(init="zero", scale=0.0, mid=activation, post=activation, shortcut=shortcut), samples()
    assert torch.equal(some(x), x if shortcut else torch.zeros_like(x))


@KINDS
@pytest.mark.parametrize(("units", "n"), [(4, 1), (2, 2), (60, 2)])
def test_layers_and_blocks(units, n, shortcut):
    some = net(units=units, n=n, shortcut=shortcut, bias=True)
    layers, state = layers_of(some), some.state_dict()
    assert layers == some.layers() and len(layers) == units * n
    assert layers[0].name == ("layer001" if units * n >= 100 else "layer01")
    assert all(state[layer.weight_name].data_ptr() == layer.weight.data_ptr() for layer in layers)
    assert torch.equal(torch.stack([layer.weight for layer in layers]), some.weights().flatten(0, 1))
    assert all(layer.skip is (shortcut and n == 1) for layer in layers)
    assert [block.modules for block in blocks_of(some)] == [(unit,) for unit in some.units]
    assert sum(p.numel() for p in some.parameters()) == units * n * 16 + units * 4


def test_a_checkpoint_of_one_kind_is_refused_by_the_other():
    """Their tensors are the same. What was saved before the net said its kind does not know it."""
    plain, residual = (describe(Member("net", "net", 0, net(shortcut=kind))) for kind in (False, True))
    with pytest.raises(UserError, match=r"it has 'net' \(seed 0, plain ShortcutNet\), .* residual ShortcutNet"):
        check_members([plain], [residual])
    check_members([plain | {"residual": None}], [plain])
    with pytest.raises(UserError, match="no such member"):
        check_members([], [plain])


def test_only_a_linear_layer_has_a_skip_of_its_own():
    assert layers_of(net(n=1))[0].skip
    assert not layers_of(net(n=1, pre="relu"))[0].skip and not layers_of(net(n=1, post="tanh"))[0].skip


def test_xavier_has_the_variance_of_both_fans():
    weights = draw((200, 10, 10), "xavier", generator=torch.Generator().manual_seed(0))
    assert weights.dtype == torch.float64
    assert float(weights.mean()) == pytest.approx(0, abs=4 * (0.1 / weights.numel()) ** 0.5)
    assert float(weights.var()) == pytest.approx(0.1, rel=4 * (2 / weights.numel()) ** 0.5)
    small = draw((200, 10, 10), "zero", scale=0.03, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(small, 0.03 * weights, rtol=1e-14, atol=0)  # the same draw, a fraction of it


def test_orthogonal_matrices_are_orthogonal_and_of_either_determinant():
    weights = draw((400, 6, 6), "orthogonal", generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(weights @ weights.mT, torch.eye(6).double().expand(400, 6, 6), rtol=0, atol=1e-14)
    positive = float((torch.linalg.det(weights) > 0).double().mean())
    assert positive == pytest.approx(0.5, abs=4 * 0.5 / 400**0.5)


def test_orthogonal_matrices_are_uniform():
    """Haar measure: every entry has mean 0, variance 1/d and fourth moment 3 / (d (d + 2)). Unsigned QR fails the first."""
    d, count = 5, 20_000
    weights = draw((count, d, d), "orthogonal", generator=torch.Generator().manual_seed(0))
    error = 5 / count**0.5
    torch.testing.assert_close(weights.mean(0), torch.zeros(d, d).double(), rtol=0, atol=error)
    torch.testing.assert_close(weights.square().mean(0), torch.full((d, d), 1 / d).double(), rtol=0, atol=error)
    torch.testing.assert_close(
        weights.pow(4).mean(0), torch.full((d, d), 3 / (d * (d + 2))).double(), rtol=0, atol=error
    )


@pytest.mark.parametrize("init", ["xavier", "orthogonal", "zero"])
def test_a_net_is_drawn_from_the_global_state_in_the_order_of_its_layers(init):
    torch.manual_seed(4)
    some = ShortcutNet(width=3, units=2, init=init, scale=0.5)
    torch.manual_seed(4)
    for _ in range(4):
        nn.Linear(3, 3, bias=False)  # PyTorch's own draws come first
    expected = torch.stack([draw((3, 3), init, 0.5) for _ in range(4)]).view(2, 2, 3, 3)
    assert some.weights().dtype == torch.float32 and torch.equal(some.weights(), expected.float())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"width": 0}, "width of ShortcutNet must be at least 1, got 0"),
        ({"units": 0}, "units of ShortcutNet must be at least 1, got 0"),
        ({"n": 0}, "n of ShortcutNet must be at least 1, got 0"),
        ({"mid": "gelu"}, "mid of a shortcut net must be one of identity, relu, tanh, got 'gelu'"),
        ({"init": "kaiming"}, "init of a shortcut net must be 'zero', 'xavier' or 'orthogonal', got 'kaiming'"),
    ],
)
def test_what_does_not_exist(arguments, message):
    with pytest.raises(UserError, match=message):
        ShortcutNet(**arguments)


def test_matrices_that_are_not_square():
    with pytest.raises(UserError, match=r"square matrices, \(\.\.\., d, d\), got \(3, 4\)"):
        draw((3, 4))
