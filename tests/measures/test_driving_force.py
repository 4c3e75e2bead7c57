"""Theorems 3 and 4: the paper's identities in its own model, and finite differences in any net."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightning_app.common.errors import UserError
from lightning_app.measures import Force, compare, driving_force, normalisations_of
from lightning_app.networks import CifarResNet, layers_of

DEPTH, SKIPPED = 5, (2, 3)  # p layers, numbered from 1; a skip goes around two of them, so m = 3
OUTSIDE = [number for number in range(1, DEPTH + 1) if number not in SKIPPED]


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
        self.paths = "both"

    def forward(self, x):
        kept = x
        for number, linear, norm, gate in zip(range(1, DEPTH + 1), self.linears, self.norms, self.gates):
            kept = x if number == SKIPPED[0] else kept
            x = gate * norm(linear(x))
            if number == SKIPPED[-1]:
                x = {"both": x + kept, "long": x, "short": kept}[self.paths]
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


def gradient(net: nn.Module, x: Tensor, y: Tensor, loss=linear_loss, paths: str | None = None) -> list[Tensor]:
    """In the weights of the layers, of the loss over all paths or over those of one length."""
    weights = [layer.weight for layer in layers_of(net)]
    if paths:
        net.paths = paths
    found = torch.autograd.grad(loss(net(x), y), weights, allow_unused=True)
    if paths:
        net.paths = "both"
    return [torch.zeros_like(w) if g is None else g for g, w in zip(found, weights)]


def dot(one: list[Tensor], other: list[Tensor]) -> float:
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


@pytest.mark.parametrize("seed", range(5))
def test_theorem_3(seed):
    """1/|lambda| ||g_m + g_p||^2 for a layer that is not skipped, 1/|lambda| (||g_p||^2 + g_p.g_m) for a skipped one."""
    net = OneSkip(seed=seed)
    x, y = samples()
    found = forces_on(net, x, y)
    g, g_p = gradient(net, x, y), gradient(net, x, y, paths="long")
    for number, norm in enumerate(net.norms, start=1):
        value = abs(norm.weight.item())
        expected = dot(g_p, g) if number in SKIPPED else dot(g, g)
        assert found[f"layer{number:02d}"].second_order == pytest.approx(expected / value, rel=1e-10), number
        assert found[f"layer{number:02d}"].size == value


@pytest.mark.parametrize("seed", range(5))
def test_theorem_3_as_it_is_stated(seed):
    """At dL/dlambda = 0 a step of the weights makes the next step of |lambda| go where the driving force points."""
    net = OneSkip(seed=seed)
    x, y = samples()
    step = 1e-4
    for number in range(1, DEPTH + 1):
        norm = net.norms[number - 1]
        slopes = torch.stack([torch.autograd.grad(net(one[None]).sum(), [norm.weight])[0] for one in x])
        stationary = y - slopes * (slopes @ y) / (slopes @ slopes)  # labels at which the loss does not depend on lambda
        force = forces_on(net, x, stationary)[f"layer{number:02d}"]
        assert force.first_order == pytest.approx(0, abs=1e-12)
        moved = after_step(net, step, x, stationary, linear_loss)
        (now,) = torch.autograd.grad(linear_loss(moved(x), stationary), [moved.norms[number - 1].weight])
        grown = (norm.weight - step * now).abs() - norm.weight.abs()
        assert grown.item() == pytest.approx(step**2 * force.second_order, rel=0.05)
        assert (grown > 0) == (force.second_order > 0)
        assert number in SKIPPED or grown > 0  # the theorem's first case has no condition


@pytest.mark.parametrize("seed", range(5))
def test_theorem_4(seed):
    """(m ||g_m||^2 + p ||g_p||^2 + (m + p) g_m.g_p) / C where g.w = 0, and elsewhere (g.w)^2 / (C ||w||^2) less."""
    net = OneSkip(normalised=False, seed=seed)
    x, y = samples()
    w = [layer.weight.detach() for layer in layers_of(net)]
    along = torch.tensor([dot(gradient(net, one[None], torch.ones(1)), w) for one in x], dtype=torch.float64)
    stationary = y - along * (along @ y) / (along @ along)
    m, p = DEPTH - len(SKIPPED), DEPTH
    for labels in (stationary, y):
        g_m, g_p = gradient(net, x, labels, paths="short"), gradient(net, x, labels, paths="long")
        force = forces_on(net, x, labels)["scale"]
        assert force.size == pytest.approx(math.sqrt(dot(w, w) / (DEPTH * 16)), rel=1e-12)
        theorem = (m * dot(g_m, g_m) + p * dot(g_p, g_p) + (m + p) * dot(g_m, g_p)) / force.size
        lacking = dot(gradient(net, x, labels), w) ** 2 / dot(w, w) / force.size
        assert force.second_order == pytest.approx(theorem - lacking, rel=1e-10)
        if labels is stationary:
            assert lacking < 1e-20 and abs(force.first_order) < 1e-12
            assert force.second_order == pytest.approx(theorem, rel=1e-10)


def test_the_slope_in_c_counts_path_lengths():
    """Eq. 21: C dL/dC = m L_m + p L_p."""
    net = OneSkip(normalised=False)
    x, y = samples()
    by_length = {}
    for paths in ("short", "long"):
        net.paths = paths
        by_length[paths] = linear_loss(net(x), y).item()
    net.paths = "both"
    force = forces_on(net, x, y)["scale"]
    assert -force.first_order * force.size == pytest.approx(3 * by_length["short"] + 5 * by_length["long"], rel=1e-10)


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


def test_relus_are_no_obstacle():
    """With steps too small to reach a kink."""
    net, pairs = relu_net(), images()
    found = forces_on(net, *pairs, F.cross_entropy)
    for norm in normalisations_of(net, pairs[0][:1]):

        def push(step, path=norm.path):
            return push_on_lambda(after_step(net, step, *pairs, F.cross_entropy), path, *pairs, F.cross_entropy)

        assert found[norm.name].second_order == pytest.approx(slope(push, 1e-7), rel=1e-5, abs=1e-8), norm.name


def test_the_drive_is_half_the_slope_of_the_squared_gradient():
    """The other way to say Theorem 3, by differences in lambda."""
    net, pairs = smooth_net(), images()
    force = forces_on(net, *pairs, F.cross_entropy)["layer01"]
    half = 0.0
    for place, value in enumerate(net[1].weight.tolist()):

        def squared(step, place=place):
            moved = copy.deepcopy(net)
            moved[1].weight.data[place] += step
            g = gradient(moved, *pairs, F.cross_entropy)
            return dot(g, g)

        half += 0.5 * math.copysign(1, value) * slope(squared, 1e-2)
    assert force.second_order == pytest.approx(half, rel=1e-8)


def test_batches_of_any_size_give_the_same():
    net, (x, y) = smooth_net(), images()
    whole = forces_on(net, x, y, F.cross_entropy)
    norms = normalisations_of(net, x[:1])
    parts = driving_force(net, list(zip(x.split([1, 3, 2]), y.split([1, 3, 2]))), layers_of(net), norms)
    for name in whole:
        assert vars(parts[name]) == pytest.approx(vars(whole[name]), rel=1e-10)
    precise = driving_force(copy.deepcopy(net).float(), [(x, y)], layers_of(net), norms, double=True)
    assert vars(precise["scale"]) == pytest.approx(vars(whole["scale"]), rel=1e-5)


def test_a_small_step_of_gradient_descent_goes_where_the_first_order_says():
    net, (x, y) = relu_net(), images()
    before = forces_on(net, x, y, F.cross_entropy)
    parameters = list(net.parameters())
    for parameter, g in zip(parameters, torch.autograd.grad(F.cross_entropy(net(x), y), parameters)):
        parameter.data.sub_(1e-6 * g)
    now = forces_on(net, x, y, F.cross_entropy)
    compared = {name: compare(before[name], now[name]) for name in now}
    assert all(one.agrees_first == 1 for one in compared.values())
    for name in set(now) - {"scale"}:
        assert compared[name].observed == pytest.approx(1e-6 * before[name].first_order, rel=1e-2)


def test_nothing_to_compare_is_neither_agreement_nor_disagreement():
    still, pushed = Force(1.0, 0.0, 0.0), Force(1.0, 1.0, -1.0)
    assert all(math.isnan(one) for one in (compare(still, Force(2.0, 0, 0)).agrees, compare(pushed, still).agrees))
    assert math.isnan(compare(Force(1.0, math.nan, math.nan), Force(2.0, 0, 0)).agrees)
    found = compare(pushed, Force(0.5, 0, 0))
    assert (found.observed, found.agrees, found.agrees_first) == (-0.5, 1, 0)


def test_frozen_parameters_have_no_force():
    net, pairs = smooth_net(), images()
    net[1].weight.requires_grad_(False)
    assert set(forces_on(net, *pairs, F.cross_entropy)) == {"layer02", "scale"}
    net.requires_grad_(False)
    with pytest.raises(UserError, match="layers with trained weights, this Sequential has none"):
        forces_on(net, *pairs, F.cross_entropy)
