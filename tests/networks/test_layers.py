"""How nets describe themselves."""

import torch
from torch import nn

from lightning_app.networks import layers_of
from lightning_app.networks.layers import number_layers


def test_any_net_is_taken_at_face_value():
    some = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4, 2))
    conv, linear = layers_of(some)
    assert (conv.name, conv.weight_name, conv.stride, conv.is_conv) == ("layer01", "0.weight", 2, True)
    assert (linear.name, linear.weight_name, linear.stride, linear.is_conv) == ("layer02", "4.weight", 1, False)
    assert conv.id_mask() is None and not conv.skip
    assert linear.weight is some[4].weight


def test_names_sort_as_numbers():
    layers = number_layers(nn.Sequential(*(nn.Linear(1, 1) for _ in range(120))), map(str, range(120)))
    names = [layer.name for layer in layers]
    assert names == sorted(names) and names[0] == "layer001"


def test_a_sequential_called_layers_describes_nothing():
    net = nn.Module()
    net.layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4, 2))
    assert [layer.weight_name for layer in layers_of(net)] == ["layers.0.weight", "layers.2.weight"]


def test_the_outputs_of_a_grouped_transposed_convolution_come_first():
    """Each output's row is what a unit gradient of that output alone gives to all inputs."""
    torch.manual_seed(0)
    module = nn.ConvTranspose1d(6, 4, 1, groups=2, bias=False)
    found = number_layers(nn.Sequential(module), ["0"])[0].by_output[..., 0]
    matrix = module(torch.eye(6)[:, :, None])[..., 0].T  # (D, C), zero between groups
    assert torch.equal(found, torch.stack([matrix[:2, :3], matrix[2:, 3:]]).flatten(0, 1))
