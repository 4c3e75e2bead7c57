"""Minimal interlayer cushions against Jacobians written out, and their laws."""

import math
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.func import jacrev

from lightning_app.identity import transfer
from lightning_app.measures import CutNet, minimal_cushions
from lightning_app.measures.noise_stability.jacobian import signs
from lightning_app.networks import CifarResNet, SimplifiedNet
from tests.measures.nets import drawn, labelled

net = partial(drawn, width=2, std=0.4)


@torch.no_grad()
def by_jacobians(some: nn.Module, images: Tensor) -> Tensor:
    """mu_{i,j}, minimum over samples, with J built row by row."""
    cuts = CutNet(some, images)
    count = len(cuts.signals)
    mu = torch.full((count, count), math.nan, dtype=torch.float64)
    for i, x in enumerate(cuts.signals[:-1]):
        for j in range(i + 1, count):
            of_samples = []
            for sample in x:
                J = jacrev(lambda x, i=i, j=j: cuts.after(i, x[None])[j - i - 1].flatten())(sample).flatten(1)
                norm = (J @ sample.flatten()).norm() / (J.norm() * sample.norm())
                of_samples.append(float(norm) * math.sqrt(math.prod(x.shape[2:])))
            mu[i, j] = min(of_samples)
    return mu


@pytest.mark.slow
@pytest.mark.parametrize("kind", [(SimplifiedNet, 5, False), (CifarResNet, 8, True)])
def test_against_jacobians_written_out(kind):
    some, ((images, _),) = net(*kind), labelled(2, 4)
    expected = by_jacobians(some, images)
    found = minimal_cushions(some, labelled(2, 4), tangents=200)
    off = ~expected.isnan()
    assert off.sum() == len(expected) * (len(expected) - 1) / 2
    # the worst case, rank one: 1 / sqrt(2 k) = 5 %
    ratio = found.pairs[off] / expected[off]
    assert ratio.sub(1).abs().max() < 0.2 and ratio.log().mean().abs() < 0.04
    assert 0 < found.error < 1 / math.sqrt(400)


@pytest.mark.slow
def test_the_error_is_what_scatters():
    some = net(depth=5, residual=False)
    one = torch.stack([minimal_cushions(some, labelled(1, 6), tangents=8, seed=seed).pairs for seed in range(30)])
    scatter = (one.std(0) / one.mean(0)).masked_fill(~torch.ones_like(one[0], dtype=torch.bool).triu(1), math.nan)
    said = minimal_cushions(some, labelled(1, 6), tangents=256).error * math.sqrt(256 / 8)
    assert float(scatter.nanmedian()) == pytest.approx(said, rel=0.35)


def test_the_error_of_two_tangents_is_half_of_what_they_differ_by():
    """|q1 - q2| / 2 of their mean q of squares, over 2 q; the median over pairs of cuts, of which a cut and itself is none."""
    some, ((images, _),) = net(depth=5, residual=False), labelled(1, 6)
    cuts, generator, errors = CutNet(some, images), torch.Generator().manual_seed(0), []
    for i, x in enumerate(cuts.signals[:-1]):
        one, two = (sum_of_squares(cuts.push(i, signs(1, x, generator)[0])) for _ in range(2))
        errors.append((one - two).abs() / 2 / (one + two))
    found = minimal_cushions(some, labelled(1, 6), tangents=2)
    assert found.error == pytest.approx(float(torch.cat(errors).median()), rel=1e-9)


def sum_of_squares(signals: list[Tensor]) -> Tensor:
    return torch.stack([signal.detach().square().sum() for signal in signals])


@pytest.mark.parametrize("residual", [False, True])
def test_a_cut_to_itself(residual):
    """mu_{i,i} = sqrt(n_i / dim x^i), and no minimal cushion is above it."""
    found = minimal_cushions(net(depth=8, residual=residual, width=3), labelled(4, 6), tangents=2)
    channels = torch.tensor([3, 3, 3, 6, 6, 12, 12, 10], dtype=torch.float64)
    torch.testing.assert_close(found.pairs.diagonal(), channels.rsqrt())
    assert (found.minimal <= channels.rsqrt() + 1e-12).all()
    assert found.pairs.tril(-1).nan_to_num(0).eq(0).all() and found.pairs[1, 0].isnan()
    expected = torch.stack([row[i:].min() for i, row in enumerate(found.pairs)])
    assert torch.equal(found.minimal, expected)


def test_twins_have_the_same():
    some = net(depth=8)
    one, other = (minimal_cushions(which, labelled(4, 6)) for which in (some, transfer(some)))
    torch.testing.assert_close(one.pairs, other.pairs, equal_nan=True)
    assert one.cut_after == other.cut_after


def test_a_net_without_blocks():
    some = nn.Sequential(nn.Flatten(), nn.Linear(108, 4)).double()
    found = minimal_cushions(some, labelled(4, 6))
    assert found.minimal.tolist() == [0.5] and found.error == 0


def test_where_nothing_arrives_there_is_no_constraint():
    some = net(depth=8, residual=False)
    nn.init.constant_(some.blocks[3].conv.bias, -1e3)  # all of its ReLUs are shut
    found = minimal_cushions(some, labelled(4, 6))
    assert found.pairs[0, 5] == found.pairs[4, 7] == math.inf
    assert found.pairs[0, 4] < math.inf and found.minimal.isfinite().all() and math.isfinite(found.error)


class Tokenwise(nn.Module):
    """A block of linear maps on the last axis, as transformers have."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(self.first(x).tanh())


class Last(nn.Module):
    """Channels last, as of what a convolution cut a picture into; then as many vectors as there are patches."""

    def forward(self, x: Tensor) -> Tensor:
        return x.movedim(1, -1)


@pytest.mark.parametrize("tokens", [True, False])
def test_positions_are_tokens_where_channels_come_last(tokens):
    """mu_{i,i} = 1 / sqrt(channels) for 9 positions of 5 channels, in a row or as a map."""
    torch.manual_seed(0)
    shape = [nn.Flatten(1, 2)] if tokens else []
    blocks = nn.Sequential(Tokenwise(5), Tokenwise(5))
    some = nn.Sequential(nn.Conv2d(3, 5, 2, 2), Last(), *shape, blocks, nn.Flatten(), nn.Linear(45, 4)).double().eval()
    found = minimal_cushions(some, labelled(2, 6), tangents=2)
    torch.testing.assert_close(found.pairs.diagonal(), torch.tensor([5, 5, 5, 4], dtype=torch.float64).rsqrt())


def test_attention_is_pushed_through_as_it_is():
    torch.manual_seed(0)
    layers = (nn.TransformerEncoderLayer(4, 2, 8, batch_first=True) for _ in range(2))
    some = nn.Sequential(nn.Conv2d(3, 4, 2, 2), Last(), nn.Flatten(1, 2), nn.Sequential(*layers), nn.Flatten()).eval()
    found = minimal_cushions(some, labelled(2, 6, dtype=torch.float32), tangents=2)
    assert (found.pairs[0, 1:3] > 0).all()
