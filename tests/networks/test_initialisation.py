"""Standard deviations against their closed forms."""

import math

import pytest
import torch
from torch import nn

from lightning_app.networks.cifar import initialise, standard_deviation


@pytest.mark.parametrize("scheme", ["kwi", "hmwi"])
@pytest.mark.parametrize("fan", ["in", "out"])
@pytest.mark.parametrize("layer", [nn.Conv2d(16, 32, 3), nn.Conv2d(64, 64, 3), nn.Linear(64, 200)])
def test_drawn_weights_have_the_schemes_deviation(scheme, fan, layer):
    torch.manual_seed(0)
    initialise(layer, scheme, fan)
    outputs, inputs = layer.weight.shape[:2]
    size = (inputs if fan == "in" else outputs) * (9 if isinstance(layer, nn.Conv2d) else 1)
    expected = math.sqrt(2 / size) if scheme == "kwi" else 1 / size
    assert standard_deviation(layer.weight, scheme, fan) == pytest.approx(expected, rel=1e-15)
    # the sample deviation of n normal draws has a relative deviation of 1/sqrt(2n), their mean one of std/sqrt(n)
    count = layer.weight.numel()
    assert layer.weight.std().item() == pytest.approx(expected, rel=4 / math.sqrt(2 * count))
    assert abs(layer.weight.mean().item()) < 4 * expected / math.sqrt(count)
    assert not layer.bias.any()


def test_torch_leaves_the_layer_alone():
    torch.manual_seed(0)
    layer = nn.Linear(64, 10)
    before, state = [p.clone() for p in layer.parameters()], torch.get_rng_state()
    initialise(layer, "torch")
    assert all(torch.equal(a, b) for a, b in zip(before, layer.parameters()))
    assert torch.equal(state, torch.get_rng_state())


def test_an_unknown_scheme_is_refused():
    with pytest.raises(ValueError, match=r"'kwi', 'hmwi' or 'torch' .*got 'xavier'"):
        standard_deviation(torch.empty(3, 4), "xavier")
