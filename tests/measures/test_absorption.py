"""Absorbed nets compute what the nets do in evaluation mode; norms have the invariances of Fig. 2's construction."""

import copy
import math
from typing import get_args

import pytest
import torch
import torchvision
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from lightning_app.measures import absorb, absorbed_norms, normalisations_of, weight_norm
from lightning_app.measures.weights.absorption import NormName
from lightning_app.networks import CifarResNet, PreactResNet, SimplifiedNet, layers_of
from lightning_app.networks.residual_mlp import MeanStdNorm

IMAGES = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def moved(make) -> nn.Module:
    """With BatchNorms of all dimensions as after some training."""
    torch.manual_seed(0)
    net = make().double()
    for norm in (module for module in net.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)):
        for values, low, high in ((norm.weight, -1.5, 1.5), (norm.bias, -0.5, 0.5), (norm.running_mean, -0.5, 0.5)):
            if values is not None:
                nn.init.uniform_(values, low, high)
        norm.running_var.uniform_(0.5, 1.5)
    return net


def linear_net() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(3 * 32 * 32, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10)
    )


def odd_net() -> nn.Module:
    """Groups, reflected borders, Conv1d and Conv3d, a normalisation without lambda."""
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1, padding_mode="reflect", groups=3),
        nn.BatchNorm2d(6, affine=False),
        nn.Unflatten(1, (2, 3)),
        nn.Conv3d(2, 4, (3, 5, 5), stride=(1, 3, 3)),
        nn.BatchNorm3d(4),
        nn.Flatten(2),
        nn.Conv1d(4, 2, 3, stride=5),
        nn.BatchNorm1d(2, eps=0.3),
        nn.Flatten(),
    )


@pytest.mark.parametrize(
    ("make", "merged"),
    [
        (lambda: CifarResNet(20), 19),
        (lambda: CifarResNet(14, residual=False), 13),
        (lambda: PreactResNet(20, n=1), 1),
        (lambda: SimplifiedNet(5), 0),
        (lambda: torchvision.models.resnet18(num_classes=10), 20),
        (lambda: torchvision.models.mobilenet_v2(num_classes=10), 52),
        (lambda: torchvision.models.DenseNet(4, (2, 2), 8, bn_size=2), 5),
        (linear_net, 1),
        (odd_net, 3),
        (lambda: nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), MeanStdNorm(4)), 1),  # one number for all channels
    ],
)
def test_the_absorbed_net_is_the_net_in_evaluation_mode(make, merged):
    net = moved(make).train()
    before = copy.deepcopy(net.state_dict())
    small = absorb(net, IMAGES[:1])
    with torch.no_grad():
        out, expected = small(IMAGES), net.eval()(IMAGES)
    assert (out - expected).abs().max() <= 1e-12 * expected.abs().max()
    assert len(normalisations_of(net, IMAGES[:1])) - len(normalisations_of(small, IMAGES[:1])) == merged
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    again = absorb(small, IMAGES[:1])
    assert all(torch.equal(one, other) for one, other in zip(again.parameters(), small.parameters()))


class Twice(nn.Module):
    """A normalisation that is an attribute and in a Sequential."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm2d(4)
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3), self.norm)

    def forward(self, x):
        return self.body(x)


def test_a_normalisation_with_two_names_is_absorbed_once():
    net = moved(Twice).eval()
    with torch.no_grad():
        out, expected = absorb(net, IMAGES[:1])(IMAGES), net(IMAGES)
    assert (out - expected).abs().max() <= 1e-12 * expected.abs().max()


def test_absorbed_norms_are_the_norms_of_the_absorbed_net():
    net = moved(lambda: CifarResNet(8))
    small = absorb(net, IMAGES[:1])
    for norm in get_args(NormName):
        found = absorbed_norms(layers_of(net), normalisations_of(net, IMAGES[:1]), norm)
        alone = absorbed_norms(layers_of(small), (), norm)
        names = [layer.name for layer in net.layers()]
        for name in names[:-1]:
            assert found[f"{name}/absorbed"] == pytest.approx(alone[f"{name}/own"], rel=1e-12)
        assert f"{names[-1]}/absorbed" not in found  # nothing follows the linear layer
        assert found["own"] == pytest.approx(sum(found[f"{name}/own"] for name in names[:-1]) / 7)
        assert found["absorbed"] == pytest.approx(alone["own"])
        assert "absorbed" not in alone
    total = absorbed_norms(layers_of(net), ())["total"]
    assert total == pytest.approx(math.hypot(*(layer.weight.detach().norm().item() for layer in net.layers())))


def test_a_net_without_convolutions_counts_all_layers():
    net = moved(linear_net)
    found = absorbed_norms(layers_of(net), normalisations_of(net, IMAGES[:1]))
    assert found["own"] == pytest.approx((found["layer01/own"] + found["layer02/own"]) / 2)
    assert found["absorbed"] == found["layer01/absorbed"]
    assert absorbed_norms((), ()) == {}


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_norms_of_several_layers_are_those_of_all_their_weights(sizes):
    weights = [torch.randn(size, 7, dtype=torch.float64) for size in sizes]
    together = torch.cat(weights)
    assert weight_norm(weights) == pytest.approx(together.norm().item())
    assert weight_norm(weights, "rms") == pytest.approx(together.square().mean().sqrt().item())
    assert weight_norm(weights, "filter") == pytest.approx(together.norm(dim=1).mean().item())


def test_filters_are_those_of_output_channels_where_the_weight_has_its_inputs_first():
    """Of a transposed convolution of two groups, 3 inputs and 2 outputs each; of a table, whose outputs are columns."""
    transposed, table = nn.ConvTranspose2d(6, 4, 3, groups=2), nn.Embedding(5, 3)
    filters = [transposed.weight[3 * (d // 2) :][:3, d % 2] for d in range(4)]
    expected = {
        "layer01/own": sum(float(each.detach().norm()) for each in filters) / 4,
        "layer02/own": float(table.weight.detach().norm(dim=0).mean()),
    }
    found = absorbed_norms(layers_of(nn.Sequential(transposed, table)), (), "filter")
    assert {name: found[name] for name in expected} == pytest.approx(expected)


def test_a_layer_whose_weights_are_used_elsewhere_too_is_not_absorbed():
    class Sharing(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 3, 3, padding=1, bias=False), nn.BatchNorm2d(3)

        def forward(self, x):
            return self.norm(self.conv(x)) + torch.nn.functional.conv2d(x, self.conv.weight, padding=1)

    torch.manual_seed(0)
    net, x = Sharing().double().eval(), torch.randn(2, 3, 5, 5, dtype=torch.float64)
    net.norm.weight.data.uniform_(0.5, 2)
    assert torch.allclose(absorb(net, x[:1])(x), net(x), rtol=1e-12)


@pytest.mark.parametrize("kind", ["LayerNorm", "RMSNorm", "GroupNorm", "LlamaRMSNorm"])
@torch.no_grad()
def test_norms_of_the_sample_keep_their_statistics_and_can_lend_their_lambda_to_the_map_behind_them(kind):
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    make = {"LlamaRMSNorm": LlamaRMSNorm, "GroupNorm": lambda size: nn.GroupNorm(3, size)}.get(kind) or getattr(
        nn, kind
    )
    net = nn.Sequential(nn.Linear(5, 6), make(6), nn.Linear(6, 4)).double()
    for weights in net.parameters():
        nn.init.normal_(weights)
    x = torch.randn(7, 5, dtype=torch.float64)
    (norm,) = normalisations_of(net, x[:1])
    assert (norm.name, norm.path, norm.into) == ("layer01", "1", None) and torch.equal(norm.lambdas, net[1].weight)
    torch.testing.assert_close(absorb(net, x[:1])(x), net(x), rtol=1e-12, atol=0)
    assert (net[1](net[0](2 * x)) - 2 * net[1](net[0](x))).abs().max() > 0.1  # no affine map of what comes in
    lent, beta = copy.deepcopy(net), getattr(net[1], "bias", None)
    lent[2].weight.mul_(net[1].weight)
    lent[2].bias.add_(0 if beta is None else net[2].weight @ beta)
    for part, value in ((lent[1].weight, 1.0), (getattr(lent[1], "bias", None), 0.0)):
        if part is not None:
            nn.init.constant_(part, value)
    torch.testing.assert_close(
        lent(x), net(x), rtol=1e-6 if kind == "LlamaRMSNorm" else 1e-12, atol=1e-12
    )  # its float32
