"""The bound: its factors make up the product, and what must leave it alone does."""

import math
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from lightning_app.identity import transfer
from lightning_app.measures import (
    NoiseBound,
    contraction,
    cushions,
    margins,
    minimal_cushions,
    noise_bound,
    probe_forward,
)
from lightning_app.measures.noise_stability.bound import QUANTILE
from lightning_app.networks import CifarResNet, SimplifiedNet
from tests.measures.nets import drawn, labelled

BATCHES = labelled(40)
net = partial(drawn, std=0.2)


def bound(some: nn.Module, batches: list[tuple[Tensor, Tensor]] | None = None) -> NoiseBound:
    ((images, labels),) = batches = batches or BATCHES
    by_layer = cushions(some.layers(), probe_forward(some, some.layers(), batches).layers)
    c = contraction(some, batches).maximum
    with torch.no_grad():
        return noise_bound(by_layer, minimal_cushions(some, batches), c, some(images), labels)


@pytest.mark.parametrize("kind", [(SimplifiedNet, 8, True), (SimplifiedNet, 8, False), (CifarResNet, 8, True)])
def test_the_factors_make_up_the_product(kind):
    found = bound(net(*kind))
    assert found.depth == len(net(*kind).layers()) == len(found.interlayer)
    for reading in ("", "_transferred", "_branch"):
        mu, total = getattr(found, f"cushions{reading}"), getattr(found, f"sum{reading}")
        assert total == pytest.approx(float((1 / (mu**2 * found.interlayer**2)).sum()), rel=1e-12)
        product = found.contraction**2 * found.depth**2 * found.output**2 * total / found.margin**2 / found.count
        assert 10 ** getattr(found, f"log10{reading}") == pytest.approx(product, rel=1e-9)


def test_factors_are_those_of_the_parts():
    some, ((images, labels),) = net(), BATCHES
    found = bound(some)
    by_layer = cushions(some.layers(), probe_forward(some, some.layers(), BATCHES).layers)
    assert found.cushions.tolist() == pytest.approx([each.minimum for each in by_layer.values()], rel=1e-6)
    assert torch.equal(found.interlayer, minimal_cushions(some, BATCHES).minimal)  # layers and cuts, one to one
    assert found.contraction == contraction(some, BATCHES).maximum
    logits = some(images).detach()
    assert found.output == pytest.approx(float(logits.norm(dim=1).max()))
    right = margins(logits, labels)[logits.argmax(1) == labels]
    assert found.margin == pytest.approx(float(right.quantile(QUANTILE)))
    assert found.margin_loss == pytest.approx(float((margins(logits, labels) <= found.margin).double().mean()))
    assert found.count == 40


def test_inner_layers_take_the_cushion_of_their_blocks_end():
    some = net(CifarResNet, 8)
    found, by_cut = bound(some).interlayer, minimal_cushions(some, BATCHES).minimal
    assert found.tolist() == by_cut[[0, 1, 1, 2, 2, 3, 3, 4]].tolist()


def test_scaling_the_logits_leaves_the_bound_alone():
    some = net()
    nn.init.zeros_(some.fc.bias)
    one = bound(some)
    some.fc.weight.data.mul_(1000)
    other = bound(some)
    assert other.output == pytest.approx(1000 * one.output) and other.margin == pytest.approx(1000 * one.margin)
    assert other.log10 == pytest.approx(one.log10, abs=1e-6)
    assert other.margin_loss == one.margin_loss


def test_the_transferred_reading_is_that_of_the_plain_twin():
    some = net()
    residual, plain = bound(some), bound(transfer(some))
    assert residual.log10_transferred == pytest.approx(plain.log10, rel=1e-6)
    assert residual.margin == pytest.approx(plain.margin)
    # W small beside its identity: the paper's reading is the kinder one
    for block in some.blocks:
        block.conv.weight.data.mul_(0.01)
    assert bound(some).log10 < bound(some).log10_transferred - 1


def test_a_skip_alone_costs_nothing_in_the_papers_reading():
    some = net()
    for block in some.blocks:
        nn.init.zeros_(block.conv.weight)
    found = bound(some)
    assert found.cushions[1:-1].tolist() == [math.inf] * 6
    assert math.isfinite(found.log10) and math.isfinite(found.log10_transferred)
    assert math.isnan(found.log10_branch)  # no layer at all


def test_a_sample_that_is_no_number_is_not_left_out_of_a_minimum():
    some, ((images, labels),) = net(), BATCHES
    found = bound(some, [(torch.cat([images[:3] * math.nan, images[3:]]), labels)])
    assert found.cushions.isnan().all() and found.cushions_branch.isnan().all()


def test_where_nothing_is_right_there_is_no_bound():
    some, ((images, _),) = net(), BATCHES
    wrong = (some(images).argmax(1) + 1) % 10
    found = bound(some, [(images, wrong)])
    assert all(math.isnan(value) for value in (found.margin, found.margin_loss, found.log10, found.log10_transferred))
    assert math.isfinite(found.sum) and math.isfinite(found.output)
