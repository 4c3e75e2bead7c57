"""Cuts: the signals are the net's own, and the rest of a net is what it would have computed."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.func import jacrev

from lightning_app.measures import CutNet, noise_injection
from lightning_app.measures.core.hooks import sample_norms
from lightning_app.networks import CifarResNet, SimplifiedNet
from tests.measures import nets
from tests.measures.nets import drawn

EVERY = pytest.mark.parametrize(
    "net", [drawn(k, residual=r) for k in (SimplifiedNet, CifarResNet) for r in (False, True)], ids=type
)


def noise(count: int = 3) -> Tensor:
    return nets.noise(count)


def stem(net: nn.Module, x: Tensor) -> Tensor:
    return net.bn0(net.conv0(x)) if hasattr(net, "bn0") else net.conv0(x)


def rest(net: nn.Module, cut: int, signal: Tensor) -> list[Tensor]:
    """All signals behind a cut, by hand."""
    found = []
    for block in net.blocks[cut:]:
        signal = block.before_relu(signal.relu())
        found.append(signal)
    return [*found, net.fc(signal.relu().mean((2, 3)))]


@EVERY
def test_signals_are_the_pre_activations_between_blocks(net):
    x = noise()
    first = stem(net, x)
    expected = [first, *rest(net, 0, first)]
    found = CutNet(net, x).signals
    assert len(found) == len(net.blocks) + 2
    for one, other in zip(found, expected):
        assert torch.equal(one, other)
    assert torch.equal(found[-1], net(x))


@EVERY
def test_the_net_goes_on_from_any_cut_with_any_signal_of_any_batch_size(net):
    cuts = CutNet(net, noise())
    for cut, like in enumerate(cuts.signals[:-1]):
        signal = torch.randn(5, *like.shape[1:], dtype=torch.float64)
        for one, other in zip(cuts.after(cut, signal), rest(net, cut, signal), strict=True):
            torch.testing.assert_close(one, other)


@EVERY
def test_push_is_the_jacobian_at_the_clean_signal(net):
    cuts = CutNet(net, noise(2))
    for cut in (0, 2):
        x = cuts.signals[cut]
        v = torch.randn_like(x)
        for j, pushed in enumerate(cuts.push(cut, v)):
            for sample in range(len(x)):
                jacobian = jacrev(lambda x, cut=cut, j=j: rest(net, cut, x[None])[j][0])(x[sample])
                expected = torch.tensordot(jacobian, v[sample], dims=3)
                torch.testing.assert_close(pushed[sample], expected)


@EVERY
def test_other_weights_of_a_layer_give_the_output_of_a_net_with_these_weights(net):
    cuts, x, before = CutNet(net, noise()), noise(), copy.deepcopy(net.state_dict())
    for layer in net.layers():
        weights = {layer.weight_name: torch.randn_like(layer.weight)}
        other = copy.deepcopy(net)
        other.load_state_dict(net.state_dict() | weights)
        torch.testing.assert_close(cuts.output_with(layer.name, weights), other(x))
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x).relu()


class Outer(nn.Module):
    """A skip round two blocks: what lies between those determines nothing alone."""

    def __init__(self, skip: bool) -> None:
        super().__init__()
        self.inner = nn.Sequential(Inner(), Inner())
        self.skip = skip

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + self.skip * x


@pytest.mark.parametrize(("skip", "cuts"), [(True, 4), (False, 8)])
def test_a_boundary_that_something_goes_round_is_no_cut(skip, cuts):
    torch.manual_seed(0)
    net = nn.Sequential(Outer(skip), Outer(skip), nn.Flatten()).double()
    found = CutNet(net, noise())
    assert len(found.signals) == cuts
    assert torch.equal(found.signals[0], noise())  # no ReLU made it: the signal itself
    torch.testing.assert_close(found.after(1, found.signals[1])[-1], net(noise()))


class Counting(nn.Module):
    """Asks at its start how many samples there are, as many nets do."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.last = nn.Sequential(Inner(), Inner()), nn.Linear(192, 4)

    def forward(self, x: Tensor) -> Tensor:
        count = len(x)
        return self.last(self.blocks(x).reshape(count, -1))


@pytest.mark.parametrize("count", [1, 3])
def test_a_net_that_counts_its_samples_has_cuts(count):
    torch.manual_seed(0)
    net = Counting().double()
    found, flat = CutNet(net, noise(count)), nn.Sequential(net.blocks, nn.Flatten(), net.last)
    expected = CutNet(flat, noise(count))
    assert len(found.signals) == len(expected.signals) == 4
    for cut, signal in enumerate(found.signals[:-1]):
        assert torch.equal(signal, expected.signals[cut])
        for times in (1, 2) if count > 1 else (1,):
            samples = torch.cat([signal] * times)
            torch.testing.assert_close(found.after(cut, samples), expected.after(cut, samples))
        torch.testing.assert_close(found.push(cut, signal), expected.push(cut, signal))


class Beside(Outer):
    """With a branch that is 0 before training."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.inner(x), 0 * x], 1)


def test_a_boundary_beside_a_dead_branch_takes_part_in_any_batch_size_or_is_no_cut():
    net = nn.Sequential(Beside(True), nn.Flatten()).double()
    found = CutNet(net, noise())
    for cut, signal in enumerate(found.signals[:-1]):
        torch.testing.assert_close(found.after(cut, signal)[-1], net(noise()))


@pytest.mark.parametrize("inplace", [False, True])
def test_relus_in_place_hide_no_signal(inplace):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 3, 1), nn.ReLU(inplace), nn.Sequential(Outer(True)), nn.Flatten()).double()
    found = CutNet(net, noise())
    assert torch.equal(found.signals[0], net[0](noise()))
    torch.testing.assert_close(found.after(0, found.signals[0])[-1], net(noise()))


def test_a_net_without_blocks_has_its_output_only():
    net = nn.Sequential(nn.Conv2d(3, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(72, 4)).double()
    found = CutNet(net, noise())
    assert [tuple(signal.shape) for signal in found.signals] == [(3, 4)]
    assert found.cut_after == {"layer01": 0, "layer02": 0}


class Spare(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.spare, self.used = nn.Linear(2, 2), nn.Linear(192, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.used(x.flatten(1))


def test_a_layer_that_is_never_called_is_absent():
    assert list(CutNet(Spare().double(), noise()).cut_after) == ["layer02"]


class InPlace(nn.Module):
    """A block that returns its own input, changed."""

    def __init__(self, inplace: bool) -> None:
        super().__init__()
        self.conv, self.inplace = nn.Conv2d(3, 3, 3, padding=1), inplace

    def forward(self, x: Tensor) -> Tensor:
        if not self.inplace:
            return x + self.conv(x)
        x += self.conv(x)
        return x


def test_blocks_that_change_their_input_have_the_cuts_of_those_that_do_not():
    torch.manual_seed(0)
    changing, other = (
        nn.Sequential(*(InPlace(kind) for _ in range(3)), nn.Flatten()).double() for kind in (True, False)
    )
    changing.load_state_dict(other.state_dict())
    found, expected = CutNet(changing, noise()), CutNet(other, noise())
    assert len(found.signals) == len(expected.signals) == 5
    for one, same in zip(found.signals, expected.signals):
        assert torch.equal(one, same)
    v = torch.randn_like(found.signals[1])
    for one, same in zip(found.push(1, v), expected.push(1, v), strict=True):
        torch.testing.assert_close(one, same)


class Adding(nn.Module):
    """Adds its input to what a ReLU has let through, in place or not."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.linear, self.in_place = nn.Linear(4, 4), in_place

    def forward(self, x):
        h = self.linear(x).relu()
        if not self.in_place:
            return h + x
        h += x
        return h


def test_what_is_added_to_a_relu_in_place_is_seen():
    found = []
    for in_place in (False, True):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Sequential(*(Adding(in_place) for _ in range(3))), nn.Linear(4, 2))
        found.append(CutNet(net.eval(), torch.randn(5, 4)).signals)
    assert len(found[0]) == len(found[1]) == 5
    assert all(map(torch.equal, *found))


class Passing(nn.Module):
    """A block that takes its signal by name, or returns it with something else."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, str]:
        return self.conv(x).relu(), "state"


class Around(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Passing(), Passing(), Inner())

    def forward(self, x: Tensor) -> Tensor:
        first, second, third = self.blocks
        return third(second(x=first(x)[0])[0]).flatten(1)


def test_what_is_no_tensor_by_position_is_no_boundary():
    torch.manual_seed(0)
    net = Around().double()
    found = CutNet(net, noise())
    assert len(found.signals) == 4  # into the first block, into the third and out of it, the output
    for cut, signal in enumerate(found.signals[:-1]):
        torch.testing.assert_close(found.after(cut, signal)[-1], net(noise()))


def test_one_number_a_sample_is_an_output():
    net = nn.Sequential(nn.Flatten(), nn.Linear(192, 1), nn.Flatten(0)).double()
    found = noise_injection(net, [(noise(), torch.randn(3))], (0.1,), draws=1, loss=nn.functional.mse_loss)
    assert (found["relative"].median > 0).all()
    assert sample_norms(torch.tensor([3.0, -4.0])).tolist() == [3.0, 4.0]
