"""Signals by layer: against automatic differentiation, finite differences, laws of scale and closed forms."""

import copy
import math
from functools import partial
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.nn.utils.parametrizations import spectral_norm

from lightning_app.common.errors import UserError
from lightning_app.identity import shortcut
from lightning_app.measures.signal import SignalWatch, expected, gathered, profile
from lightning_app.networks import CifarResNet, SimplifiedNet
from lightning_app.networks.tracing import survey
from tests.helpers import same_weights


def watched(net: nn.Module, x, y, lr: float = 0.0) -> dict[str, float]:
    """One step of gradient descent."""
    watch = SignalWatch(net)
    F.cross_entropy(net(x), y).backward()
    for weight in net.parameters():
        weight.data -= lr * weight.grad
    return profile(watch.stop())


def data(count: int = 6, size: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(3)
    return torch.randn(count, 3, size, size, generator=draw, dtype=torch.float64), torch.arange(count) % 10


def net(residual: bool, depth: int = 8, seed: int = 0, **more) -> SimplifiedNet:
    torch.manual_seed(seed)
    return SimplifiedNet(depth, residual=residual, **{"width": 4, "init": "kwi", **more}).double()


def rms(x: torch.Tensor) -> float:
    return float(x.square().mean().sqrt())


def cosine(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cosine_similarity(x.flatten(), y.flatten(), dim=0, eps=1e-300)


@pytest.mark.parametrize("residual", [False, True])
def test_against_automatic_differentiation(residual):
    one, (x, y) = net(residual), data()
    found = watched(one, x, y, lr=0.1)
    one, outs = net(residual), []
    h = F.relu(outs.append(one.conv0(x)) or outs[-1])
    for block in one.blocks:
        outs.append(block.conv(h))
        h = F.relu(outs[-1] + shortcut(h, outs[-1].shape[1], block.conv.stride[0]) if residual else outs[-1])
    outs.append(one.fc(h.mean((2, 3))))
    losses = F.cross_entropy(outs[-1], y, reduction="sum")  # each sample's own loss: no sample meets another
    weights = [layer.weight for layer in one.layers()]
    gradients = torch.autograd.grad(losses, [*outs, *weights])
    for layer, out, gradient, of_weight in zip(one.layers(), outs, gradients, gradients[len(outs) :]):
        numbers = {
            "activation": rms(out),
            "gradient": rms(gradient),
            "weight": rms(layer.weight),
            "weight_gradient": rms(of_weight) / len(x),
            "update": 0.1 * rms(of_weight) / len(x) / rms(layer.weight),
            "gradient_correlation": rms(torch.stack([cosine(gradient[i], gradient[i - 1]) for i in range(len(x))])),
        }
        for field, value in numbers.items():
            assert found[f"{layer.name}/{field}"] == pytest.approx(value, rel=1e-12), (layer.name, field)


def test_weight_gradients_are_finite_differences():
    """Along its own gradient a loss changes by the gradient's norm."""
    one, (x, y) = net(True), data()
    found = watched(one, x, y)
    for layer in one.layers():
        direction = layer.weight.grad / layer.weight.grad.norm()
        losses = []
        for step in (1e-5, -1e-5):
            layer.weight.data += step * direction
            losses.append(float(F.cross_entropy(one(x), y)))
            layer.weight.data -= step * direction
        slope = (losses[0] - losses[1]) / 2e-5
        assert found[f"{layer.name}/weight_gradient"] * layer.weight.numel() ** 0.5 == pytest.approx(slope, rel=1e-6)


def smooth() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 1)).double(), torch.randn(6, 2).double()


def test_gradients_within_a_loss_are_not_those_of_the_loss():
    """As in a physics-informed net: -u'' = u at points x."""

    def loss() -> torch.Tensor:
        points = x.clone().requires_grad_()
        u = one(points)
        (slope,) = torch.autograd.grad(u.sum(), points, create_graph=True)
        (bend,) = torch.autograd.grad(slope[:, 0].sum(), points, create_graph=True)
        return (bend[:, 0] + u[:, 0]).square().mean()

    one, x = smooth()
    watch = SignalWatch(one)
    loss().backward()
    found, outs = profile(watch.stop()), []
    for layer in (one[0], one[2]):
        layer.register_forward_hook(lambda _, inputs, out: outs.append(out))
    for name, gradient in zip(("layer01", "layer02"), torch.autograd.grad(loss(), outs)):
        assert found[f"{name}/gradient"] == pytest.approx(len(x) * rms(gradient), rel=1e-12)


def test_a_gradient_that_an_optimizer_differentiates_again_is_counted_and_what_it_makes_of_it_is_not():
    found = []
    for twice in (False, True):
        one, x = smooth()
        watch, weights = SignalWatch(one), [*one.parameters()]
        slopes = torch.autograd.grad(one(x).square().mean(), weights, create_graph=twice)
        watch.close()  # the step begins
        if twice:
            torch.autograd.grad(slopes, weights, [torch.ones_like(w) for w in weights])
        found.append(profile(watch.stop()))
    assert found[0] == found[1] and "layer02/gradient" in found[0]


def test_a_sparse_gradient_of_an_embedding_is_the_dense_one():
    found, tokens = [], torch.tensor([[1, 2], [2, 5]])
    for sparse in (False, True):
        torch.manual_seed(0)
        one = nn.Sequential(nn.Embedding(7, 4, sparse=sparse), nn.Flatten(), nn.Linear(8, 3))
        found.append(watched(one, tokens, torch.tensor([0, 2]), lr=0.1))
    assert found[0] == pytest.approx(found[1]) and found[0]["layer01/weight_gradient"] > 0


def test_gradients_are_what_an_optimizer_gets_and_not_what_it_makes_of_them():
    one, x = smooth()
    watch, optimizer = SignalWatch(one), torch.optim.SGD(one.parameters(), 0.1, 0.9, nesterov=True, foreach=True)
    one(x).square().mean().backward()
    expected = rms(one[0].weight.grad)
    watch.close()  # the step begins
    optimizer.step()
    assert rms(one[0].weight.grad) == pytest.approx(1.9 * expected)  # it adds the momentum in place
    assert profile(watch.stop())["layer01/weight_gradient"] == pytest.approx(expected, rel=1e-12)


def test_laws_of_scale():
    """Layers without biases are homogeneous: c in one layer is c in all activations behind it, and 1/c where loss is fixed."""
    x, y = data()
    plain, scaled = net(False), net(False)
    scaled.layers()[3].weight.data *= 3
    before, after = (watched(each, x, y) for each in (plain, scaled))
    for number in range(1, 8):
        factor = 3 if number >= 4 else 1
        key = f"layer0{number}/activation"
        assert after[key] == pytest.approx(factor * before[key], rel=1e-12)
    assert after["layer04/update"] == before["layer04/update"] == 0
    twice = watched(net(False), torch.cat([x, x]), torch.cat([y, y]))
    assert twice == pytest.approx(before, rel=1e-12)  # of a batch twice as large, also gradients


def test_gradients_of_plain_nets_shatter_and_those_of_residual_nets_do_not():
    """Balduzzi et al. (2017), with inputs that have nothing in common and one label, backwards from the last block."""
    x, y = data(24)[0], torch.zeros(24, dtype=torch.int64)
    inits = {False: "kwi", True: None}  # of the paper of these nets: branches that are small at first
    plain, residual = (watched(net(skip, depth=20, width=16, init=init), x, y) for skip, init in inits.items())
    ratio = "layer02/gradient_correlation", "layer18/gradient_correlation"
    lost = {name: found[ratio[0]] / found[ratio[1]] for name, found in (("plain", plain), ("residual", residual))}
    assert lost["plain"] < 0.5 * lost["residual"]
    assert all(0 < found[key] <= 1 for found in (plain, residual) for key in found if "correlation" in key)


def test_a_single_sample_and_one_without_a_gradient_have_no_neighbours():
    one, (x, y) = net(False), data()
    assert not any("correlation" in key for key in watched(one, x[:1], y[:1]))
    watch = SignalWatch(again := net(False))
    (F.cross_entropy(again(x), y, reduction="none") * torch.tensor([1.0, 1, 0, 0, 0, 0])).sum().backward()
    two = watched(net(False), x[:2], y[:2])
    found = profile(watch.stop())
    keys = [key for key in two if "correlation" in key]
    assert [found[key] for key in keys] == pytest.approx([two[key] for key in keys], rel=1e-9)


def test_a_layer_without_units_has_no_numbers_and_the_others_have_theirs():
    branch = nn.Sequential(nn.Linear(4, 0), nn.ReLU(), nn.Linear(0, 4))
    net = nn.Sequential(branch, nn.Linear(4, 2))
    found = watched(net, torch.randn(5, 4), torch.tensor([0, 1, 0, 1, 0]))
    assert all(math.isnan(found[f"layer01/{kind}"]) for kind in ("activation", "gradient", "dead", "weight"))
    assert found["layer03/gradient"] > 0 and "layer01/gradient_correlation" not in found


def test_an_expert_without_samples_has_no_numbers_and_the_others_have_theirs():
    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate, self.last = nn.Linear(4, 2), nn.Linear(4, 3)
            self.experts = nn.ModuleList(nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 4)) for _ in range(2))

        def forward(self, x):
            scores, chosen = self.gate(x).softmax(1).max(1)
            y = torch.zeros_like(x)
            for number, expert in enumerate(self.experts):
                (rows,) = (chosen == number).nonzero(as_tuple=True)
                y = y.index_add(0, rows, expert(x[rows]) * scores[rows, None])
            return self.last(x + y)

    torch.manual_seed(0)
    net, x = Experts().double(), torch.randn(6, 4, dtype=torch.float64)
    net.gate.bias.data[1] = -1e3
    found = watched(net, x, torch.arange(6) % 3)
    hidden = net.experts[0][0](x)
    assert found["layer03/activation"] == pytest.approx(rms(hidden), rel=1e-12)
    assert found["layer03/dead"] == float((hidden <= 0).all(0).double().mean())
    assert math.isnan(found["layer05/activation"]) and "layer05/dead" not in found


def test_a_step_is_bit_identical_when_watched():
    def trained(watching: bool) -> nn.Module:
        torch.manual_seed(0)
        one = CifarResNet(8, width=4)
        watch = SignalWatch(one) if watching else None
        x, y = torch.randn(8, 3, 8, 8), torch.arange(8)
        optimizer = torch.optim.SGD(one.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            F.cross_entropy(one(x), y).backward()
            optimizer.step()
        if watch:
            assert watch.stop() and not any(m._forward_hooks or m._forward_pre_hooks for m in one.modules())
        return one

    assert same_weights(trained(True), trained(False))


def test_a_step_of_a_net_with_spectral_norm_is_bit_identical_when_watched():
    """Each reading of such a weight in training mode is a step of a power iteration."""

    def trained(watch: bool) -> nn.Module:
        torch.manual_seed(0)
        one = nn.Sequential(spectral_norm(nn.Linear(4, 3)), nn.ReLU(), nn.Linear(3, 2)).double()
        watched_by = SignalWatch(one) if watch else None
        F.cross_entropy(one(torch.ones(2, 4).double()), torch.tensor([0, 1])).backward()
        if watched_by is not None:
            assert profile(watched_by.stop())["layer01/weight"] > 0
        return one

    for_state, alone = trained(True).state_dict(), trained(False).state_dict()
    assert for_state.keys() == alone.keys() and all(for_state[name].equal(alone[name]) for name in alone)


class OwnCall(nn.Module):
    """Whose pass is a call of itself, as Lightning's training step under DDP is."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x, inner=False):
        if inner:
            return self.net(x)
        out = self(x, True)
        F.relu(out)  # behind the pass, as in a loss: no unit is dead by it
        return out


def test_a_net_that_calls_itself_is_seen_once_and_nothing_stays_behind():
    x, y = data()
    alone, module = net(True), OwnCall(net(True))
    for _ in range(3):
        assert watched(module, x, y, lr=0.1) == watched(alone, x, y, lr=0.1)
    assert torch.overrides._get_current_function_mode() is None


class Positions(nn.Embedding):
    """Called with a shape, as those of several transformers are."""

    def forward(self, shape):
        return super().forward(torch.arange(shape[1]))


class WithPositions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.positions, self.fc = Positions(4, 3), nn.Linear(3, 2)

    def forward(self, x):
        return self.fc((x + self.positions(x.shape)).mean(1))


def test_embeddings_that_are_given_a_shape():
    torch.manual_seed(0)
    one, x = WithPositions(), torch.randn(5, 4, 3)
    found = watched(one, x, torch.tensor([0, 1, 0, 1, 1]))
    assert found["layer01/activation"] == pytest.approx(rms(one.positions.weight.detach()), rel=1e-6)
    assert [(each.path, each.reason) for each in survey(one, x[:1])] == [
        ("positions", "its input is not a tensor"),
        ("fc", ""),
    ]


def test_passes_in_evaluation_mode_are_somebodys_measurement():
    x, y = data()
    one = net(True)
    watch = SignalWatch(one)
    F.cross_entropy(one.eval()(x), y).backward()
    assert watch.missed and not any("activation" in key for key in watch.stop())
    assert "layer01/activation" in watched(one, x, y)  # of a net that is trained in this mode


def test_what_stops_a_pass_leaves_nothing_behind():
    class Stopped(nn.Linear):
        def forward(self, x):
            raise KeyboardInterrupt

    watch = SignalWatch(one := nn.Sequential(nn.Linear(2, 2), Stopped(2, 2)))
    with pytest.raises(KeyboardInterrupt):
        one(torch.ones(1, 2))
    watch.close()
    assert torch.overrides._get_current_function_mode() is None


class Blocks(nn.Module):
    """As torchvision writes it: ReLUs and additions in place, a projection; and one layer that two calls share."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.again = nn.Linear(3, 4), nn.Linear(4, 4)
        self.down = nn.Linear(4, 4)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        x = self.relu(self.first(x))
        self.stream = self.down(x).clone()
        out = self.again(self.relu(self.again(x)))
        self.branch = out.clone()
        out += self.down(x)
        return self.relu(out)


@pytest.mark.parametrize("make", [partial(SimplifiedNet, 8, residual=True), partial(CifarResNet, 8)])
def test_nothing_waits_for_the_device_until_the_end(make):
    """Tensors without values stand for those of a device that is still at work: whoever asks for a number is refused."""
    x, y = (each.float() if each.is_floating_point() else each for each in data())
    with FakeTensorMode() as device:
        net = make()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        watch = SignalWatch(net)
        F.cross_entropy(net(device.from_tensor(x)), device.from_tensor(y)).backward()
        optimizer.step()
        watch.close()
        assert watch.error is None and {key.partition("/")[2] for key in watch._sums} >= {
            "activation",
            "gradient",
            "dead",
        }
        with pytest.raises(DataDependentOutputException):
            watch.stop()


def test_branch_and_stream_in_place_with_a_layer_called_twice():
    torch.manual_seed(0)
    one, x = Blocks().double(), torch.randn(5, 3, dtype=torch.float64)
    watch = SignalWatch(one)
    one(x).square().sum().backward()
    found = profile(watch.stop())
    b, s = one.branch.flatten(), one.stream.flatten()
    assert found["layer02_2/branch_ratio"] == pytest.approx(float(b.norm() / s.norm()), rel=1e-12)
    assert found["layer02_2/branch_cosine"] == pytest.approx(float(F.cosine_similarity(b, s, 0)), rel=1e-12)
    assert [key for key in found if "branch" in key] == ["layer02_2/branch_ratio", "layer02_2/branch_cosine"]
    hidden = one.again(F.relu(one.first(x)))
    assert found["layer02/activation"] == pytest.approx(rms(hidden), rel=1e-12)
    assert found["layer02_2/activation"] == pytest.approx(rms(one.again(F.relu(hidden))), rel=1e-12)


def test_units_that_are_dead_for_every_sample_are_counted():
    one, (x, y) = net(False), data()
    first, second = one.layers()[:2]
    first.module.bias.data[:3] = -100
    second.module.bias.data[:1] = -100
    found = watched(one, x, y)
    assert (found["layer01/dead"], found["layer02/dead"]) == (0.75, 0.25)
    assert found["layer03/dead"] == 0 and "layer08/dead" not in found  # the last layer has no ReLU


class Dense(nn.Module):
    """A ReLU on what a layer puts out, and one on that beside the layer's input."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.grown, self.last = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1), nn.Linear(8, 10)

    def forward(self, x):
        x = F.relu(self.first(x))
        return self.last(F.relu(torch.cat([x, F.relu(self.grown(x))], 1)).mean((2, 3)))


def test_dead_units_are_those_of_the_first_relu_where_another_one_has_more():
    one, (x, y) = Dense().double(), data()
    one.first.bias.data[:], one.grown.bias.data[:] = 10, 10
    one.grown.bias.data[:3] = -1e3
    found = watched(one, x, y)
    assert (found["layer01/dead"], found["layer02/dead"]) == (0, 0.75)


class Squeezed(nn.Module):
    """Maps as wide as they have channels, times a gate of each channel."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.gate, self.last = nn.Conv2d(3, 8, 1), nn.Linear(8, 8), nn.Linear(8, 10)

    def forward(self, x):
        x = self.conv(x)
        return self.last(F.relu(x * self.gate(x.mean((2, 3))).sigmoid()[:, :, None, None]).mean((2, 3)))


def test_dead_units_behind_a_gate_are_channels_also_where_maps_are_as_wide():
    one, (x, y) = Squeezed().double(), data(size=8)
    one.conv.bias.data[:] = torch.tensor([-1e3] * 6 + [10.0] * 2)
    assert watched(one, x, y)["layer02/dead"] == 0.75


class Ending(nn.Module):
    """Linear maps on maps whose channels are last, one called three times before its ReLUs; one number a sample."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.again, self.last = nn.Linear(3, 5), nn.Linear(5, 5), nn.Linear(5, 1)

    def forward(self, x):
        x = F.relu(self.first(x.movedim(1, -1)))
        once, twice, _ = (self.again(x) for _ in range(3))
        return F.relu(self.last((F.relu(once) + F.relu(twice)).mean((1, 2))).squeeze(1))


def test_dead_units_of_layers_called_again_of_channels_that_are_last_and_of_one_number():
    torch.manual_seed(0)
    one, (x, _) = Ending().double(), data()
    with torch.no_grad():
        one.first.bias[:2], one.last.bias[:] = -1e3, -1e3
    watch = SignalWatch(one)
    one(x).sum().backward()
    found = profile(watch.stop())
    assert (found["layer01/dead"], found["layer03/dead"]) == (2 / 5, 1)
    assert "layer02/dead" in found and "layer02_2/dead" in found


def test_the_parts_of_a_batch_add_up_to_it():
    x, y = data()
    parts = []
    for rows in (slice(0, 3), slice(3, 6)):
        one = net(True)
        watch = SignalWatch(one)
        F.cross_entropy(one(x[rows]), y[rows]).backward()
        parts.append(watch.stop())
    whole, summed = watched(net(True), x, y), profile(gathered(parts))
    assert summed.keys() == whole.keys()
    # Ranks have the gradient of weights in common (see the callback), and a part of the neighbours is in no part.
    same = [key for key in whole if not key.endswith(("weight_gradient", "gradient_correlation"))]
    assert [summed[key] for key in same] == pytest.approx([whole[key] for key in same], rel=1e-12)


@pytest.mark.parametrize("first", ["samples and tokens", "tokens"])
def test_gradients_where_a_layers_rows_are_not_the_samples(first):
    """They are those of the layer whose rows are, which computes the same."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.head = nn.Linear(3, 4), nn.Linear(4, 2)

        def forward(self, x):  # (B, T, 3)
            if self.first == "samples":
                h = self.inner(x)
            elif self.first == "tokens":
                h = self.inner(x.transpose(0, 1)).transpose(0, 1)
            else:
                h = self.inner(x.flatten(0, 1)).unflatten(0, x.shape[:2])
            return self.head(h.tanh().mean(1))

    torch.manual_seed(0)
    one, x, y = Net().double(), torch.randn(6, 5, 3, dtype=torch.float64), torch.arange(6) % 2
    found = {}
    for one.first in ("samples", first):
        found[one.first] = watched(one, x, y)
    assert found[first]["layer01/gradient"] == pytest.approx(found["samples"]["layer01/gradient"], rel=1e-12)
    assert "layer01/gradient_correlation" in found["samples"]
    assert "layer01/gradient_correlation" not in found[first]


def test_a_layer_of_one_vector_with_as_many_units_as_samples_has_no_neighbours():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.of_all, self.head = nn.Linear(3, 6), nn.Linear(3, 6)

        def forward(self, x):
            return self.head(x) + self.of_all(x.mean(0))

    found = watched(Net(), torch.randn(6, 3), torch.arange(6))
    assert found["layer01/gradient"] > 0 and "layer01/gradient_correlation" not in found
    assert "layer02/gradient_correlation" in found


def test_gradients_of_a_net_whose_input_is_no_tensor():
    class Net(nn.Sequential):
        def forward(self, graph):
            return super().forward(graph.x)

    torch.manual_seed(0)
    x, y = torch.randn(6, 3, dtype=torch.float64), torch.arange(6) % 2
    plain = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    found = watched(Net(*plain), SimpleNamespace(x=x), y)
    plain.zero_grad()
    assert found == watched(plain, x, y)


def test_what_a_layer_raises_stops_watching_and_not_training():
    class Odd(nn.Linear):
        def forward(self, x):
            return super().forward(x), "and more"

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.odd = Odd(2, 2)

        def forward(self, x):
            return self.odd(x)[0]

    one = Net()
    watch = SignalWatch(one)
    one(torch.ones(1, 2)).sum().backward()
    with pytest.raises(UserError, match="expected layer01 to return a tensor, got a tuple"):
        watch.stop()
    assert one.odd.weight.grad is not None and not one.odd._forward_hooks


# Closed forms


def mean_squares(make, field: str, seeds: int, batch) -> tuple[dict[str, float], dict[str, float]]:
    """Over draws of the weights: mean squares as found, and as expected from the same draw's first."""
    found, lines = {}, {}
    for seed in range(seeds):
        one = make(seed)
        numbers = watched(one, *batch)
        for key, line in expected(one, numbers, batch[0].shape[1:]).items():
            if key.endswith(f"/{field}_expected"):
                found[key] = found.get(key, 0) + numbers[key.removesuffix("_expected")] ** 2
                lines[key] = lines.get(key, 0) + line**2
    return found, lines


def test_linear_nets_keep_the_variance_times_fan_in(seeds=20):
    """E z_l^2 = n sigma^2 E z_{l-1}^2, up to sqrt(2 / n) a layer and draw: depth 6, n 64, 20 draws, so 10 %."""
    ratios = []
    for seed in range(seeds):
        torch.manual_seed(seed)
        chain = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(6)))
        for layer in chain:
            nn.init.normal_(layer.weight, 0, 1.5 / 8)
        watch = SignalWatch(chain)
        chain(torch.randn(32, 64)).square().mean().backward()
        found = profile(watch.stop())
        ratios.append((found["layer06/activation"] / found["layer01/activation"]) ** 2)
    sd = math.sqrt(5 * 2 * 2 / 64 / seeds)
    assert sum(ratios) / seeds / 1.5 ** (2 * 5) == pytest.approx(1, abs=4 * sd)


@pytest.mark.parametrize("field", ["activation", "gradient"])
def test_a_plain_net_follows_its_recursion_on_average(field):
    batch = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64), torch.arange(4)
    found, lines = mean_squares(lambda seed: net(False, seed=seed, width=32), field, 8, batch)
    ratios = [found[key] / lines[key] for key in found]
    assert len(ratios) == 7 and ratios == pytest.approx([1] * 7, abs=0.15)
    assert math.exp(sum(map(math.log, ratios)) / 7) == pytest.approx(1, abs=0.08)


def test_a_residual_net_stays_below_its_bound_and_near_it():
    batch = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64), torch.arange(4)
    make = lambda seed: net(True, depth=20, seed=seed, width=16, init="hmwi")  # noqa: E731
    found, lines = mean_squares(make, "activation", 6, batch)
    ratios = [found[key] / lines[key] for key in found]
    assert len(ratios) == 19 and all(0.85 < ratio < 1.15 for ratio in ratios)


def test_channels_that_the_identity_fills_have_the_stream_and_the_others_half_a_branch():
    """On maps of one place, with branches larger than the stream: E x^2 + E z^2 where x is added, else E relu(z)^2."""
    one, stream = net(True), 9.0 / 2
    convs = [layer for layer in one.layers() if layer.is_conv]
    sizes = {"layer01/activation": 3.0} | {f"{layer.name}/weight": 0.9 for layer in convs}
    lines = expected(one, sizes, (3, 1, 1))
    for layer in convs[1:]:
        inputs, outputs = layer.module.in_channels, layer.module.out_channels
        branch = 0.81 * inputs * stream
        assert lines[f"{layer.name}/activation_expected"] == pytest.approx(math.sqrt(branch), rel=1e-12)
        stream = (inputs * (stream + branch) + (outputs - inputs) * branch / 2) / outputs


def test_the_wrong_gain_is_exponential_in_the_depth():
    x, y = data(4, 16)
    one = net(False, depth=20, width=16)
    for layer in one.layers()[1:-1]:
        layer.weight.data *= 0.5
    lines = expected(one, watched(one, x, y), x.shape[1:])
    steps = [
        lines[f"layer{n:02d}/activation_expected"] / lines[f"layer{n - 1:02d}/activation_expected"] for n in range(3, 8)
    ]
    assert steps == pytest.approx([steps[0]] * 5, rel=0.1) and steps[0] == pytest.approx(0.5, rel=0.1)


def test_there_are_no_closed_forms_for_other_nets():
    torch.manual_seed(0)
    full, (x, y) = CifarResNet(8, width=4).double(), data()
    assert expected(full, watched(full, x, y), x.shape[1:]) == {}
    vectors = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    assert expected(vectors, {}, (4,)) == {}


@pytest.mark.parametrize("between", [nn.MaxPool2d(2), nn.BatchNorm2d(4)], ids=["pooling", "normalisation"])
def test_nor_where_something_lies_before_the_blocks(between):
    torch.manual_seed(0)
    chain, (x, y) = net(False, width=4), data()
    assert expected(chain, watched(chain, x, y), x.shape[1:])
    chain.conv0 = nn.Sequential(chain.conv0, between).double()
    chain.layers = None  # as registered
    assert expected(chain, watched(chain, x, y), x.shape[1:]) == {}


def test_nor_of_a_grouped_or_dilated_convolution():
    chain, (x, y) = net(False, width=4), data()
    for change in ({"groups": 2}, {"dilation": 2, "padding": 2}):
        torch.manual_seed(0)
        chain.blocks[0].conv = nn.Conv2d(4, 4, 3, **{"padding": 1} | change).double()
        assert expected(chain, watched(chain, x, y), x.shape[1:]) == {}


class Weighed(nn.Module):
    """x plus a branch with a weight, in one call or in two."""

    def __init__(self, weight: float, in_one_call: bool) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 4)
        self.weight, self.in_one_call = weight, in_one_call

    def forward(self, x):
        x = self.first(x)
        branch = self.second(x)
        return torch.add(x, branch, alpha=self.weight) if self.in_one_call else x + self.weight * branch


@pytest.mark.parametrize("weight", [0.1, -2])
def test_a_branch_has_the_weight_with_which_it_is_added(weight):
    found = []
    for in_one_call in (True, False):
        torch.manual_seed(0)
        one = Weighed(weight, in_one_call).double()
        watch = SignalWatch(one)
        one(torch.ones(5, 3).double()).sum().backward()
        found.append(profile(watch.stop()))
    assert found[0] == pytest.approx(found[1], rel=1e-12, nan_ok=True)
    assert {"layer02/branch_ratio", "layer02/branch_cosine"} <= found[0].keys()


@pytest.mark.parametrize("scale", [2e-4, 500])  # in float16 products of such numbers are 0, or infinite
def test_the_cosine_of_a_branch_in_half_precision_is_that_of_the_same_numbers(scale):
    torch.manual_seed(0)
    half = Weighed(1.0, in_one_call=True)
    half.first.weight.data *= scale
    half.first.bias.data *= scale
    half.second.bias.data.zero_()
    half, x = half.half(), torch.randn(5, 3).half()
    found = []
    for one, inputs in ((half, x), (copy.deepcopy(half).double(), x.double())):
        watch = SignalWatch(one)
        one(inputs).mean().backward()
        found.append(profile(watch.stop())["layer02/branch_cosine"])
    assert found[0] == pytest.approx(found[1], abs=0.01)
