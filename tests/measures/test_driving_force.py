"""Theorems 3 and 4 in any net: forces are finite differences of the push."""

import copy
import math
from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightning_app.common.errors import UserError
from lightning_app.measures import Force, driving_force, normalisations_of, scale_change
from lightning_app.networks import CifarResNet, layers_of

DEPTH, SKIPPED = 5, (2, 3)  # p layers, numbered from 1; a skip goes around two of them, so m = 3


class Factor(nn.Module):
    """lambda / sigma of Eq. 22, sigma frozen."""

    def __init__(self, value: float, variance: float):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(value, dtype=torch.float64))
        self.register_buffer("running_var", torch.tensor(variance, dtype=torch.float64))
        self.eps = 0.0

    def forward(self, x):
        return x * (self.weight / (self.running_var + self.eps).sqrt())


class OneSkip(nn.Module):
    """Eq. 23 and, without factors, Eq. 26: linear layers with frozen gates and one skip; its output is a sum of units."""

    def __init__(self, normalised: bool = True, width: int = 4, seed: int = 0):
        super().__init__()
        torch.manual_seed(seed)
        self.linears = nn.ModuleList(nn.Linear(width, width, bias=False, dtype=torch.float64) for _ in range(DEPTH))
        scales = (2 * torch.rand(DEPTH) - 1).tolist()
        self.norms = nn.ModuleList(Factor(scale, 0.5 + abs(scale)) if normalised else nn.Identity() for scale in scales)
        self.register_buffer("gates", (torch.rand(DEPTH, width) < 0.8).double())

    def forward(self, x):
        kept = x
        for number, linear, norm, gate in zip(range(1, DEPTH + 1), self.linears, self.norms, self.gates):
            kept = x if number == SKIPPED[0] else kept
            x = gate * norm(linear(x))
            x = x + kept if number == SKIPPED[-1] else x
        return x.sum(1)


def linear_loss(outputs: Tensor, labels: Tensor) -> Tensor:
    return (outputs * labels).mean()


def samples(count: int = 6, width: int = 4) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(7)
    return torch.randn(count, width, generator=generator, dtype=torch.float64), torch.randn(
        count, generator=generator, dtype=torch.float64
    )


def forces_on(net: nn.Module, x: Tensor, y: Tensor, loss=linear_loss, **more) -> dict[str, Force]:
    return driving_force(net, [(x, y)], layers_of(net), normalisations_of(net, x[:1]), loss, **more)


def gradient(net: nn.Module, x: Tensor, y: Tensor, loss=linear_loss) -> tuple[Tensor, ...]:
    """In the weights of the layers."""
    return torch.autograd.grad(loss(net(x), y), [layer.weight for layer in layers_of(net)])


def dot(one: Sequence[Tensor], other: Sequence[Tensor]) -> float:
    return float(sum((a * b).sum() for a, b in zip(one, other)))


def after_step(net: nn.Module, step: float, x: Tensor, y: Tensor, loss) -> nn.Module:
    """The net at w - step * g: only the weights move."""
    moved = copy.deepcopy(net)
    for layer, g in zip(layers_of(moved), gradient(net, x, y, loss)):
        layer.weight.data.sub_(step * g)
    return moved


def push_on_lambda(net: nn.Module, path: str, x: Tensor, y: Tensor, loss) -> float:
    weight = net.get_submodule(path).weight
    (slope,) = torch.autograd.grad(loss(net(x), y), [weight])
    return -float((weight.detach().sign() * slope).sum())


def push_on_scale(net: nn.Module, x: Tensor, y: Tensor, loss) -> float:
    weights = [layer.weight.detach() for layer in layers_of(net)]
    scale = math.sqrt(dot(weights, weights) / sum(w.numel() for w in weights))
    return -dot(gradient(net, x, y, loss), weights) / scale


def slope(f, h: float) -> float:
    """f'(0) by central differences of fourth order."""
    return (8 * (f(h) - f(-h)) - (f(2 * h) - f(-2 * h))) / (12 * h)


def smooth_net() -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.Tanh(), nn.Flatten(), nn.Linear(144, 5), nn.BatchNorm1d(5)
    ).double()
    net[1].weight.data = torch.tensor([0.7, -1.2, 0.4, 1.0], dtype=torch.float64)
    net(torch.randn(16, 3, 8, 8, dtype=torch.float64))
    return net.eval()


def images() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(6, 3, 8, 8, generator=generator, dtype=torch.float64), torch.arange(6) % 5


@pytest.mark.parametrize(
    ("net", "pairs", "loss", "h"),
    [
        (OneSkip(), samples(), linear_loss, 1e-2),
        (OneSkip(normalised=False), samples(), lambda out, y: (out - y).square().mean(), 1e-3),
        (smooth_net(), images(), F.cross_entropy, 1e-3),
    ],
    ids=["multilinear", "squared-error", "batchnorm"],
)
def test_forces_are_finite_differences_of_the_push(net, pairs, loss, h):
    found = forces_on(net, *pairs, loss)
    norms = normalisations_of(net, pairs[0][:1])
    assert set(found) == {*(norm.name for norm in norms), "scale"}
    for norm in norms:
        force = found[norm.name]
        assert force.first_order == pytest.approx(push_on_lambda(net, norm.path, *pairs, loss), rel=1e-10)

        def push(step, path=norm.path):
            return push_on_lambda(after_step(net, step, *pairs, loss), path, *pairs, loss)

        assert force.second_order == pytest.approx(slope(push, h), rel=1e-8), norm.name
    force = found["scale"]
    assert force.first_order == pytest.approx(push_on_scale(net, *pairs, loss), rel=1e-10)

    def push(step):
        return push_on_scale(after_step(net, step, *pairs, loss), *pairs, loss)

    assert force.second_order == pytest.approx(slope(push, h), rel=1e-8)


def relu_net() -> nn.Module:
    torch.manual_seed(1)
    net = CifarResNet(8, width=4).double()
    net(torch.randn(16, 3, 8, 8, dtype=torch.float64))
    return net.eval()


def test_a_small_step_of_gradient_descent_goes_where_the_first_order_says():
    net, (x, y) = relu_net(), images()
    before = forces_on(net, x, y, F.cross_entropy)
    parameters = list(net.parameters())
    for parameter, g in zip(parameters, torch.autograd.grad(F.cross_entropy(net(x), y), parameters)):
        parameter.data.sub_(1e-6 * g)
    now = forces_on(net, x, y, F.cross_entropy)
    compared = {name: scale_change(before[name], now[name]) for name in now}
    assert all(one.agrees_first == 1 for one in compared.values())
    for name in set(now) - {"scale"}:
        assert compared[name].observed == pytest.approx(1e-6 * before[name].first_order, rel=1e-2)


def test_nothing_to_compare_is_neither_agreement_nor_disagreement():
    still, pushed = Force(1.0, 0.0, 0.0), Force(1.0, 1.0, -1.0)
    assert all(
        math.isnan(one) for one in (scale_change(still, Force(2.0, 0, 0)).agrees, scale_change(pushed, still).agrees)
    )
    assert math.isnan(scale_change(Force(1.0, math.nan, math.nan), Force(2.0, 0, 0)).agrees)
    found = scale_change(pushed, Force(0.5, 0, 0))
    assert (found.observed, found.agrees, found.agrees_first) == (-0.5, 1, 0)


def test_frozen_parameters_have_no_force():
    net, pairs = smooth_net(), images()
    net[1].weight.requires_grad_(False)
    assert set(forces_on(net, *pairs, F.cross_entropy)) == {"layer02", "scale"}
    net.requires_grad_(False)
    with pytest.raises(UserError, match="layers with trained weights, but this Sequential has none"):
        forces_on(net, *pairs, F.cross_entropy)


def test_the_loss_of_tokens_is_the_cross_entropy_of_all_other_measures():
    torch.manual_seed(0)
    net, x, labels = nn.Linear(3, 4), torch.randn(2, 5, 3), torch.arange(10).reshape(2, 5) % 4
    expected = forces_on(net, x, labels, lambda out, y: F.cross_entropy(out.movedim(-1, 1), y))
    found = driving_force(net, [(x, labels)], layers_of(net))
    assert found["scale"].first_order == pytest.approx(expected["scale"].first_order, rel=1e-6)
