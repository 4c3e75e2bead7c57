"""The simplified nets: counts of the paper, an independent forward pass, and the ways a net is run."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F

from lightning_app.networks import SimplifiedNet
from lightning_app.networks.cifar import standard_deviation
from tests.helpers import drawn, images

net = partial(drawn, SimplifiedNet)


@pytest.mark.parametrize(
    ("depth", "convs", "blocks", "biases", "weights", "parameters", "ids"),
    [
        (20, 267_696, 267_264, 688, 268_336, 269_034, 624),
        (32, 461_232, 460_800, 1_136, 461_872, 463_018, 1_072),
        (44, 654_768, 654_336, 1_584, 655_408, 657_002, 1_520),
    ],
)
@pytest.mark.parametrize("residual", [False, True])
def test_counts(depth, convs, blocks, biases, weights, parameters, ids, residual):
    some = net(depth=depth, residual=residual)
    layers = some.layers()
    conv_layers = [layer for layer in layers if layer.is_conv]
    assert sum(layer.weight.numel() for layer in conv_layers) == convs
    assert sum(layer.weight.numel() for layer in conv_layers[1:]) == blocks
    assert sum(layer.module.bias.numel() for layer in conv_layers) == biases
    assert sum(layer.weight.numel() for layer in layers) == weights
    assert sum(p.numel() for p in some.parameters()) == parameters
    assert sum(int(layer.id_mask().sum()) for layer in layers if layer.has_id) == ids


def test_the_weights_with_id_entries_are_those_of_the_blocks():
    assert net(depth=8).id_weights() == [f"blocks.{i}.conv.weight" for i in range(6)]


@pytest.mark.parametrize(("residual", "scheme"), [(False, "kwi"), (True, "hmwi")])
def test_each_arm_has_the_papers_scheme_on_every_convolution(residual, scheme):
    for layer in net(depth=20, residual=residual).layers()[:-1]:
        expected = standard_deviation(layer.weight, scheme)
        assert layer.weight.std().item() == pytest.approx(expected, rel=5 / (2 * layer.weight.numel()) ** 0.5)
        assert not layer.module.bias.any()


def test_schemes_can_be_chosen_by_layer():
    some = net(depth=5, residual=True, init_conv0="kwi", init_fc="hmwi", fan="out")
    assert some.conv0.weight.std().item() == pytest.approx((2 / 144) ** 0.5, rel=0.15)
    assert some.blocks[2].conv.weight.std().item() == pytest.approx(1 / 576, rel=0.05)
    assert some.fc.weight.std().item() == pytest.approx(1 / 10, rel=0.15)
    assert not some.fc.bias.any()


def by_hand(some: SimplifiedNet, x: torch.Tensor) -> torch.Tensor:
    """The forward pass from the paper's figures: explicit subsampling and explicit zero channels."""
    x = torch.relu(F.conv2d(x, some.conv0.weight, some.conv0.bias, padding=1))
    for block in some.blocks:
        weight, stride = block.conv.weight, block.conv.stride[0]
        out = F.conv2d(x, weight, block.conv.bias, stride=stride, padding=1)
        if some.residual:
            out[:, : x.shape[1]] += x[:, :, ::stride, ::stride]
        x = torch.relu(out)
    assert x.shape[-2:] == (8, 8)
    return F.avg_pool2d(x, 8).flatten(1) @ some.fc.weight.T + some.fc.bias


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("depth", [5, 11])
def test_forward_pass_by_hand(residual, depth):
    some = net(depth=depth, residual=residual).double()
    x = images(dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(some(x), by_hand(some, x), rtol=0, atol=1e-13)


def test_counterpart_flips_residual_everywhere_and_leaves_the_net_alone():
    some = net(depth=8, residual=True)
    twin = some.counterpart()
    assert some.residual and not twin.residual and not any(block.residual for block in twin.blocks)
    assert all(torch.equal(a, b) for a, b in zip(some.parameters(), twin.parameters()))
    assert not any(layer.skip for layer in twin.layers()) and twin.id_weights() == some.id_weights()
    assert twin.counterpart().residual
    with torch.no_grad():
        twin.conv0.weight.zero_()
    assert some.conv0.weight.any()
