"""Laws of spec and paper, closed forms of the initial distributions, and Table 3 of the paper at epoch 0."""

import dataclasses
import math

import pytest
import torch
from torch import nn

from lightning_app.identity import transfer
from lightning_app.measures import conv_weights, noise_norms, weight_norms
from lightning_app.measures.weights.mass import HIGH, LARGE, WeightStatistics, weight_mass
from lightning_app.networks import Layer, PreactResNet, ShortcutNet, SimplifiedNet, layers_of


def net(seed: int = 0, **arguments) -> SimplifiedNet:
    torch.manual_seed(seed)
    return SimplifiedNet(**arguments)


def one(weight: torch.Tensor, **layer) -> WeightStatistics:
    conv = nn.Conv2d(weight.shape[1], weight.shape[0], weight.shape[2])
    conv.weight = nn.Parameter(weight)
    return weight_mass((Layer("layer01", conv, "weight", **layer),))["layer01"]


def numbers(statistics: WeightStatistics) -> dict[str, float]:
    return {
        field.name: getattr(statistics, field.name)
        for field in dataclasses.fields(statistics)
        if not field.name.startswith("histogram")
    }


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("transferred", [False, True])
def test_total_is_that_of_all_convolutions_together(residual, transferred):
    some = net(depth=8, residual=residual)
    layers = some.layers()
    source = transfer(some) if residual and transferred else some
    convs = [layer for layer in source.layers() if layer.is_conv]
    w = torch.cat([layer.weight.detach().double().flatten() for layer in convs])
    at_id = torch.cat([layer.weight.detach().double()[layer.id_mask()] for layer in convs if layer.has_id])

    found = weight_mass(layers, transferred)[""]
    assert found.count == w.numel() and found.id_count == at_id.numel()
    # transfer() rounds r + 1 to float32 and weight_mass(transferred=True) does not
    assert found.mean == pytest.approx(w.mean().item(), rel=1e-6, abs=1e-12)
    assert found.std == pytest.approx(w.std(correction=0).item(), rel=1e-6)
    assert found.all == pytest.approx(w.abs().sum().item(), rel=1e-6)
    assert found.large == pytest.approx(w.abs()[w.abs() >= LARGE].sum().item(), rel=1e-6)
    assert found.id_entries == pytest.approx(at_id.abs().sum().item(), rel=1e-6)
    assert found.above_07 == int((w.abs() > HIGH).sum()) and found.above_07_signed == int((w > HIGH).sum())
    assert found.norm == pytest.approx(w.norm().item(), rel=1e-6)
    assert int(found.histogram.counts.sum()) + found.histogram.below + found.histogram.above == w.numel()
    assert int(found.histogram_id.counts.sum()) == at_id.numel()


def test_keys_are_the_layers_and_biases_do_not_count():
    some = net(depth=8)
    before = weight_mass(some.layers())
    assert list(before) == ["", *(layer.name for layer in some.layers())]
    assert before["layer08"].count == 640  # fc has an entry, and is not in the total
    assert before[""].count == 48384 * 2 - 22608
    with torch.no_grad():
        for layer in some.layers():
            layer.module.bias.fill_(5.0)
        some.fc.weight.fill_(5.0)
    assert numbers(weight_mass(some.layers())[""]) == numbers(before[""])


def test_transferred_in_bfloat16_loses_nothing():
    some = net(depth=5).to(torch.bfloat16)
    r, t = weight_mass(some.layers())[""], weight_mass(some.layers(), transferred=True)[""]
    assert t.mean - r.mean == pytest.approx(t.id_count / t.count, rel=1e-12)


def test_a_small_spread_around_a_large_mean_survives():
    """E[x^2] - E[x]^2 in float32 would give 0 or worse."""
    found = one(1000 + 1e-3 * torch.tensor([-1.0, 1.0], dtype=torch.float64).view(2, 1, 1, 1))
    assert found.std == pytest.approx(1e-3, rel=1e-6)


def test_how_many_are_large_is_not_known_where_one_is_nan():
    found = one(torch.tensor([[0.8, math.nan], [0.1, -0.9]], dtype=torch.float64)[..., None, None])
    assert all(math.isnan(each) for each in (found.large, found.above_07, found.above_07_signed, found.all, found.norm))
    assert found.count == 4


def test_a_net_without_convolutions_totals_its_linear_layers():
    found = weight_mass(layers_of(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))))
    assert found[""].count == 20
    assert math.isnan(one(torch.zeros(1, 1, 1, 1)).id_over_large)


def test_a_layer_without_weights_counts_nothing():
    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 0), nn.Linear(0, 4))
    found = weight_mass(layers_of(net))
    assert numbers(found[""]) == pytest.approx(numbers(found["layer01"]), nan_ok=True)
    assert math.isnan(found["layer02"].mean)


def test_where_half_of_the_layers_are_convolutions_these_count():
    half = [nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(16, 2)]
    assert weight_mass(layers_of(nn.Sequential(*half)))[""].count == 108
    assert weight_mass(layers_of(nn.Sequential(*half, nn.Linear(2, 2))))[""].count == 108 + 32 + 4


def test_the_vector_holds_the_weights_that_table_3_counts():
    net = SimplifiedNet(20)
    total = weight_mass(net.layers(), transferred=True)[""]
    vector = conv_weights(net.layers())
    assert len(vector) == total.count == 267_696
    assert float(vector.norm()) == pytest.approx(total.norm, rel=1e-12)
    assert float(vector.abs().sum()) == pytest.approx(total.all, rel=1e-12)


def test_a_residual_net_and_its_plain_twin_are_at_the_same_place():
    net = SimplifiedNet(8, width=4).double()
    assert torch.equal(conv_weights(net.layers()), conv_weights(transfer(net).layers()))


def test_a_net_without_convolutions_gives_all_its_weights():
    assert len(conv_weights(layers_of(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))))) == 20


def test_table_3_all_weights_of_t0_by_fan_out():
    found = weight_mass(net(depth=32, residual=True, fan="out").layers(), transferred=True)[""]
    assert found.all == pytest.approx(1927, abs=6)
    assert round(found.all, -2) == 1900


@pytest.mark.parametrize("net", [ShortcutNet(4, n=1), PreactResNet(8, n=1, width=2)], ids=type)
def test_t_is_one_map_for_all_measures(net):
    """W + 1 wherever a skip goes around a layer alone, also in nets without ID entries."""
    mass = weight_mass(net.layers(), transferred=True)
    skipped = [layer for layer in net.layers() if layer.skip]
    assert skipped
    for layer in skipped:
        size = (3, 3) if layer.is_conv else ()
        assert weight_norms(layer, size).transferred_kernel == pytest.approx(mass[layer.name].norm, rel=1e-12)
        assert noise_norms(layer)["transferred"] == pytest.approx(mass[layer.name].norm, rel=1e-12)
