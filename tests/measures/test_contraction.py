"""Contraction: its closed forms, and that no spelling of ReLU escapes."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightning_app.measures import contraction
from lightning_app.measures.core.hooks import WatchRelus, shared_copy
from lightning_app.networks import SimplifiedNet
from tests.measures.nets import noise


def batch(x: Tensor) -> list[tuple[Tensor, Tensor]]:
    return [(x, torch.zeros(len(x), dtype=torch.long))]


def test_a_symmetric_signal_loses_half_its_square():
    found = contraction(nn.ReLU(), batch(torch.tensor([[1.0, -1.0], [3.0, -3.0]])))
    assert found.maximum == pytest.approx(math.sqrt(2), rel=1e-14)
    assert found.median == pytest.approx(math.sqrt(2), rel=1e-14)
    assert found.histogram.counts[15] == 2


def test_dead_signals_are_counted_and_left_out():
    found = contraction(nn.ReLU(), batch(torch.tensor([[3.0, -4.0], [-1.0, -1.0], [0.0, 0.0]])))
    assert found.dead == 2
    assert found.maximum == found.mean == pytest.approx(5 / 3)
    assert found.histogram.counts.sum() == 1


def test_without_a_living_relu_there_is_no_contraction():
    for net in (nn.Identity(), nn.Sequential(nn.ReLU())):
        found = contraction(net, batch(torch.tensor([[-1.0, -1.0]])))
        assert all(math.isnan(value) for value in (found.maximum, found.median, found.mean))
    assert found.maxima.isnan().tolist() == [True]


@pytest.mark.parametrize("residual", [False, True])
def test_by_the_recursion_of_the_net(residual):
    torch.manual_seed(0)
    net = SimplifiedNet(8, residual=residual, width=4).double()
    signals = [net.conv0(x := noise(6))]
    for block in net.blocks:
        x = signals[-1].relu()
        signals.append(block.before_relu(x))
    ratios = torch.stack([s.flatten(1).norm(dim=1) / s.relu().flatten(1).norm(dim=1) for s in signals]).detach()
    found = contraction(net, [*batch(noise(6)[:4]), *batch(noise(6)[4:])])
    assert found.maximum == pytest.approx(float(ratios.max()), rel=1e-12)
    torch.testing.assert_close(found.maxima, ratios.max(1).values)
    torch.testing.assert_close(found.medians, ratios.quantile(0.5, 1))
    assert found.histogram.counts.sum() == ratios.numel()


class Spelt(nn.Module):
    """Two ReLUs around a linear map, in one of the ways to write them."""

    def __init__(self, relu) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 5)
        self.relu = relu  # a module is registered, a function is an attribute

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.linear(self.relu(x + 0)))


SPELLINGS = {
    "nn.ReLU": nn.ReLU(),
    "nn.ReLU in place": nn.ReLU(inplace=True),
    "F.relu": F.relu,
    "F.relu in place": lambda x: F.relu(x, inplace=True),
    "F.relu in place by position": lambda x: F.relu(x, True),
    "F.relu_": F.relu_,
    "torch.relu": torch.relu,
    "torch.relu by name": lambda x: torch.relu(input=x),
    "torch.relu_": torch.relu_,
    "x.relu()": lambda x: x.relu(),
    "x.relu_()": lambda x: x.relu_(),
    "result not used": lambda x: (x.relu_(), x)[1],
}


@pytest.mark.parametrize("relu", SPELLINGS.values(), ids=SPELLINGS)
def test_no_spelling_escapes_and_none_is_changed(relu):
    torch.manual_seed(0)
    net, x = Spelt(relu), torch.randn(7, 5)
    middle = net.linear(x.relu())
    expected = torch.stack([s.norm(dim=1) / s.relu().norm(dim=1) for s in (x, middle)]).max(1).values.detach()
    out, kept = net(x), x.clone()
    torch.testing.assert_close(contraction(net, batch(x)).maxima, expected.double())
    assert torch.equal(x, kept)
    with WatchRelus(lambda before, after: None):
        assert torch.equal(net(x), out)


def test_other_activations_are_no_relus():
    net = nn.Sequential(nn.ReLU6(), nn.LeakyReLU(), nn.GELU(), nn.Hardtanh())
    assert contraction(net, batch(torch.randn(3, 4))).maxima.tolist() == []


def test_a_shared_copy_shares_tensors_but_not_structure():
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    copied = shared_copy(net)
    assert copied[0] is not net[0] and copied[0].weight is net[0].weight
    assert copied[1].running_mean is net[1].running_mean


class Windowed(nn.Module):
    """ReLUs of samples, of two windows each, and of a table of positions."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.randn(5, 4))

    def forward(self, x: Tensor) -> Tensor:
        windows = x.relu().reshape(-1, 2).relu().reshape(len(x), 4)
        return windows + self.table.relu().mean(0)


def test_relus_of_other_rows_than_samples_are_skipped_and_counted():
    x = torch.cat([torch.ones(7, 1), torch.randn(7, 3)], 1)  # none is dead
    found = contraction(Windowed(), [*batch(x[:5]), *batch(x[5:])])  # 5 rows by chance in the first batch
    assert found.skipped == 2
    torch.testing.assert_close(found.maxima, (x.norm(dim=1) / x.relu().norm(dim=1)).double().amax()[None])
