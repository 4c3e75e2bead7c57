"""Distances in weight space: translation, T, and which weights count."""

import pytest
import torch
from torch import nn

from lightning_app.identity import transfer
from lightning_app.measures import conv_weights, distance, weight_mass
from lightning_app.networks import SimplifiedNet, layers_of


def test_the_vector_holds_the_weights_that_table_3_counts():
    net = SimplifiedNet(20)
    total = weight_mass(net.layers(), transferred=True)[""]
    vector = conv_weights(net.layers(), transferred=True)
    assert len(vector) == total.count == 267_696
    assert float(vector.norm()) == pytest.approx(total.norm, rel=1e-12)
    assert float(vector.abs().sum()) == pytest.approx(total.all, rel=1e-12)


def test_a_residual_net_and_its_plain_twin_are_at_the_same_place():
    net = SimplifiedNet(8, width=4).double()
    assert torch.equal(conv_weights(net.layers(), True), conv_weights(transfer(net).layers(), True))


def test_distances_do_not_see_the_identity():
    one, other = SimplifiedNet(8, width=4).double(), SimplifiedNet(8, width=4).double()
    inside = distance(conv_weights(one.layers()), conv_weights(other.layers()))
    assert distance(conv_weights(one.layers(), True), conv_weights(other.layers(), True)) == pytest.approx(
        inside, 1e-12
    )


def test_a_net_without_convolutions_gives_all_its_weights():
    assert len(conv_weights(layers_of(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))))) == 20
