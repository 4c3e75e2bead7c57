"""Smoothness: infinite where a net is linear, and what the definition says where it is not."""

import math
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.func import jvp

from lightning_app.identity import transfer
from lightning_app.measures import smoothness
from tests.measures.nets import drawn, labelled

net = partial(drawn, width=3)


class LinearBlock(nn.Module):
    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x)


def linear(bias: bool) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(LinearBlock(bias) for _ in range(3)), nn.Flatten()).double()


def test_a_linear_net_is_perfectly_smooth():
    found = smoothness(linear(bias=False), labelled(4, 6))
    assert found.minimum > 1e12 and found.minimum_linearisation > 1e12


def test_biases_count_against_a_net_by_definition_but_not_by_linearisation():
    strong, weak = (smoothness(linear(bias=True), labelled(4, 6), strength=strength) for strength in (0.1, 0.001))
    assert strong.minimum_linearisation > 1e12 and weak.minimum_linearisation > 1e9
    assert strong.rho < 100
    assert weak.rho == pytest.approx(strong.rho / 100, rel=1e-9)  # ||eta|| over the biases' part, whatever eta


@torch.no_grad()
def test_by_the_definition():
    """One sample, so that the noise is known: every pair of cuts by hand."""
    some, ((images, _),) = net(depth=5), labelled(1, 6)
    found = smoothness(some, labelled(1, 6), strength=0.2, seed=5)
    generator = torch.Generator().manual_seed(5)
    signals = [some.conv0(images)]
    for block in some.blocks:
        signals.append(block.before_relu(signals[-1].relu()))
    for i, x in enumerate(signals):
        eta = torch.randn(x.shape, generator=generator).double()
        eta *= 0.2 * x.norm() / eta.norm()
        for j in range(i + 1, len(signals)):

            def M(x: Tensor, i: int = i, j: int = j) -> Tensor:
                for block in some.blocks[i:j]:
                    x = block.before_relu(x.relu())
                return x

            _, whole = jvp(M, (x,), (x + eta,))
            _, part = jvp(M, (x,), (eta,))
            scale = eta.norm() * signals[j].norm() / x.norm()
            assert float(found.pairs[i, j]) == pytest.approx(float(scale / (M(x + eta) - whole).norm()), rel=1e-9)
            expected = float(scale / (M(x + eta) - M(x) - part).norm())
            assert float(found.pairs_linearisation[i, j]) == pytest.approx(expected, rel=1e-9)
    least = found.pairs[~found.pairs.isnan()].min()  # the output's column included
    assert found.rho == found.minimum == found.median == float(least)


def test_twins_are_equally_smooth():
    some = net()
    one, other = (smoothness(which, labelled(4, 6)) for which in (some, transfer(some)))
    assert one.rho == pytest.approx(other.rho, rel=1e-9)
    assert one.rho_linearisation == pytest.approx(other.rho_linearisation, rel=1e-9)


def test_order_of_the_statistics():
    found = smoothness(net(), labelled(40, 6))
    assert 0 < found.minimum <= found.rho <= found.median
    assert 0 < found.minimum_linearisation <= found.rho_linearisation <= found.median_linearisation
    assert (found.strength, found.quantile) == (0.1, 0.05)
    assert found.pairs.isnan().sum() == 8 * 9 / 2  # the diagonal and below


def test_a_net_without_blocks_has_no_pairs():
    found = smoothness(nn.Sequential(nn.Flatten(), nn.Linear(108, 4)).double(), labelled(4, 6))
    assert math.isnan(found.rho) and math.isnan(found.minimum_linearisation)


def test_where_nothing_arrives_nothing_is_wrong():
    some = net(residual=False)
    nn.init.constant_(some.blocks[3].conv.bias, -1e3)  # all of its ReLUs are shut: a constant from there on
    found = smoothness(some, labelled(4, 6))
    assert found.pairs_linearisation[0, 5] == math.inf
    assert 0 < found.rho_linearisation < math.inf
