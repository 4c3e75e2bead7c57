"""Cushions, noise and signals of every kind of layer, against the explicit matrix of its map."""

import copy
import math
from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torchvision
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils import prune, spectral_norm, weight_norm

from callbacks import HessianSpectrum, MeasureContext
from lightning_app.common.calls import Inputs, adapted
from lightning_app.measures import absorbed_norms, conv_weights, cushions, noise_injection, probe_forward, weight_mass
from lightning_app.measures.signal import SignalWatch, profile
from lightning_app.networks import measurable, survey
from lightning_app.networks.layers import ROLES, each_once, layers_of

SAMPLES = 3


class Mean(nn.Module):
    """Outputs (B, classes) of anything (B, ...): the first entries."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, *x):
        return self.layer(*x).flatten(1)[:, :4]


def their_conv1d(outputs: int, inputs: int) -> nn.Module:
    from transformers.pytorch_utils import Conv1D

    return Conv1D(outputs, inputs)


KINDS = {
    "conv1d": (lambda: nn.Conv1d(2, 3, 3, stride=2, padding=1, dilation=2), (2, 9)),
    "conv1d of groups": (lambda: nn.Conv1d(4, 6, 2, groups=2, padding="same"), (4, 5)),
    "conv3d": (lambda: nn.Conv3d(2, 3, (2, 1, 3), padding=(1, 0, 1)), (2, 2, 3, 4)),
    "conv2d": (lambda: nn.Conv2d(2, 3, (3, 2), stride=(2, 1), padding=(1, 0)), (2, 5, 4)),
    "transposed 1d": (lambda: nn.ConvTranspose1d(2, 3, 4, stride=3, padding=2, output_padding=1), (2, 5)),
    "transposed 2d": (lambda: nn.ConvTranspose2d(4, 2, 3, stride=2, padding=1, dilation=2, groups=2), (4, 3, 4)),
    "linear on a sequence": (lambda: nn.Linear(4, 3), (5, 4)),
    "transformers' Conv1D": (lambda: their_conv1d(3, 4), (5, 4)),
}


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def matrix(function, x: Tensor) -> Tensor:
    """The matrix of a linear map on one sample, column by column."""
    basis = torch.eye(x.numel(), dtype=x.dtype).view(-1, *x.shape)
    return torch.stack([(function(one[None]) - function(torch.zeros_like(one)[None])).flatten() for one in basis], 1)


def measured(net: nn.Module, x, labels: Tensor):
    layers = measurable(survey(net, x[:1]))
    return cushions(layers, probe_forward(net, layers, [(x, labels)]).layers)


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_a_cushion_is_that_of_the_matrix(kind):
    make, shape = KINDS[kind]
    torch.manual_seed(0)
    layer = make().double()
    nn.init.normal_(layer.bias)
    x = drawn(SAMPLES, *shape)
    (found,) = measured(Mean(layer), x, torch.zeros(SAMPLES, dtype=torch.long)).values()
    A = matrix(layer, x[0])
    by_hand = torch.stack([(A @ one.flatten()).norm() / one.norm() for one in x])
    assert found.operator_norm == pytest.approx(float(A.norm()), rel=1e-12)
    assert found.kernel_norm == pytest.approx(float(layer.weight.norm()), rel=1e-12)
    torch.testing.assert_close(found.samples * found.kernel_norm, by_hand.float(), rtol=1e-5, atol=0)


@torch.no_grad()
def test_an_embedding_is_a_linear_map_of_ones_at_its_tokens():
    table, tokens = nn.Embedding(5, 3).double(), torch.tensor([[0, 1, 1, 4], [2, 2, 2, 2]])
    (found,) = measured(Mean(table), tokens, torch.zeros(2, dtype=torch.long)).values()
    ones = F.one_hot(tokens, 5).double()
    A = matrix(lambda x: x @ table.weight, ones[0])
    by_hand = torch.stack([(A @ one.flatten()).norm() / one.norm() / A.norm() for one in ones])
    torch.testing.assert_close(found.samples * found.kernel_norm / found.operator_norm, by_hand.float())


class Attends(nn.Module):
    def __init__(self, batch_first: bool, separate: bool, bias: bool) -> None:
        super().__init__()
        sizes = {"kdim": 6, "vdim": 5} if separate else {}
        self.attention = nn.MultiheadAttention(4, 2, bias=bias, batch_first=batch_first, **sizes)

    def forward(self, query, key=None, value=None):
        given = [each if self.attention.batch_first else each.transpose(0, 1) for each in (query, key, value)]
        out = self.attention(given[0], given[1], value=given[2])[0]
        return (out if self.attention.batch_first else out.transpose(0, 1)).mean(1)


def of_attention(batch_first: bool, separate: bool, bias: bool = True):
    """A net, what goes into it, and what goes into and comes out of each of its four maps, computed by hand."""
    torch.manual_seed(0)
    net = Attends(batch_first, separate, bias).double().eval()
    attention = net.attention
    for weights in net.parameters():
        nn.init.normal_(weights)
    x = [
        drawn(SAMPLES, 5, 4),
        drawn(SAMPLES, 6, 6 if separate else 4, seed=1),
        drawn(SAMPLES, 6, 5 if separate else 4, seed=2),
    ]
    packed = attention.in_proj_weight
    weights = (
        [attention.q_proj_weight, attention.k_proj_weight, attention.v_proj_weight] if separate else packed.chunk(3)
    )
    biases = attention.in_proj_bias.chunk(3) if bias else [0.0] * 3
    pairs = [(each, each @ w.T) for each, w in zip(x, weights)]
    heads = [(y + b).unflatten(-1, (2, 2)).transpose(1, 2) for (_, y), b in zip(pairs, biases)]
    pattern = (heads[0] @ heads[1].transpose(-1, -2) / math.sqrt(2)).softmax(-1)
    mixed = (pattern @ heads[2]).transpose(1, 2).flatten(2)
    pairs.append((mixed, mixed @ attention.out_proj.weight.T))
    return net, Inputs(x), pairs, [*weights, attention.out_proj.weight]


@pytest.mark.parametrize(
    ("batch_first", "separate", "bias"), [(True, False, True), (False, True, True), (True, False, False)]
)
@torch.no_grad()
def test_the_four_maps_of_attention(batch_first, separate, bias):
    net, inputs, pairs, weights = of_attention(batch_first, separate, bias)
    labels = torch.zeros(SAMPLES, dtype=torch.long)
    with adapted(net):
        found = measured(net, inputs, labels)
    assert len(found) == 4
    for cushion, (x, y), weight in zip(found.values(), pairs, weights):
        by_hand = y.flatten(1).norm(dim=1) / x.flatten(1).norm(dim=1)
        assert cushion.kernel_norm == pytest.approx(float(weight.norm()), rel=1e-12)
        assert cushion.operator_norm == pytest.approx(float(weight.norm()) * x.shape[1] ** 0.5, rel=1e-12)
        torch.testing.assert_close(cushion.samples * cushion.kernel_norm, by_hand.float(), rtol=1e-5, atol=0)


@torch.no_grad()
def test_noise_in_one_map_of_packed_weights_leaves_the_others(strength=0.5):
    net, inputs, _, _ = of_attention(True, False)
    with adapted(net):
        found = noise_injection(net, [(inputs, torch.zeros(SAMPLES, dtype=torch.long))], [strength], draws=1)[
            "relative"
        ]
        clean = net(inputs)
        for number, (layer, response) in enumerate(zip(layers_of(net), found.median)):
            state = np.random.SeedSequence((0, number, 0)).generate_state(1)[0]
            noise = torch.randn(
                layer.weight.shape, generator=torch.Generator().manual_seed(int(state)), dtype=torch.float64
            )
            weights = {name: weight.clone() for name, weight in net.named_parameters()}
            part = weights[layer.weight_name]
            part = part if layer.role == "output" else part[4 * ROLES.index(layer.role) :][:4]
            part += strength * part.norm() * noise / noise.norm()
            noisy = functional_call(net, weights, (inputs,))
            by_hand = ((noisy - clean).norm(dim=1) / clean.norm(dim=1)).quantile(0.5)
            assert float(response) == pytest.approx(float(by_hand), rel=1e-9)


class Twice(nn.Module):
    """One map called twice, and a table of tokens whose weight is also the last map's."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.map, self.head = nn.Embedding(5, 4), nn.Linear(4, 4), nn.Linear(4, 5, bias=False)
        self.head.weight = self.table.weight

    def forward(self, tokens):
        x = self.table(tokens)
        y = torch.tanh(self.map(x))
        self.seen = [x.detach(), y.detach()]
        return self.head(torch.tanh(self.map(y)))


def test_each_call_has_its_row_and_tied_weights_are_noisy_in_all_their_places():
    torch.manual_seed(0)
    net, tokens = Twice().double().eval(), torch.tensor([[0, 1, 2], [3, 3, 4]])
    found = measured(net, tokens, tokens)
    assert [*found] == ["layer01", "layer02", "layer02_2", "layer03"]
    net(tokens)
    for name, x in (("layer02", net.seen[0]), ("layer02_2", net.seen[1])):
        by_hand = (x @ net.map.weight.T).flatten(1).norm(dim=1) / x.flatten(1).norm(dim=1) / net.map.weight.norm()
        torch.testing.assert_close(found[name].samples, by_hand.detach().float())
    responses = noise_injection(net, [(tokens, tokens)], [0.1], draws=1)["relative"]
    assert responses.layers == ("layer01", "layer02")  # the head's weight is the table's
    assert {layer.weight_name for layer in layers_of(net)} == {"table.weight", "map.weight"}


def test_a_shared_weight_counts_once_in_totals():
    torch.manual_seed(0)
    net = Twice()
    sizes = [net.table.weight.detach().norm().item(), net.map.weight.detach().norm().item()]
    mass = weight_mass(layers_of(net))
    assert mass[""].count == 20 + 16 and mass[""].norm == pytest.approx(math.hypot(*sizes))
    assert mass["layer03"].count == 20  # by itself as before
    assert len(conv_weights(layers_of(net))) == 36
    norms = absorbed_norms(layers_of(net), ())
    assert norms["total"] == pytest.approx(math.hypot(*sizes)) and norms["own"] == pytest.approx(sum(sizes) / 2)


def test_keys_that_are_queries_too_and_attention_whose_weights_another_shares():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = (nn.MultiheadAttention(4, 2, batch_first=True) for _ in range(2))
            self.three = nn.MultiheadAttention(4, 2, batch_first=True, kdim=4, vdim=3)
            self.two.in_proj_weight, self.two.in_proj_bias = self.one.in_proj_weight, self.one.in_proj_bias
            self.three.k_proj_weight = self.three.q_proj_weight

        def forward(self, x):
            x = self.two(*[self.one(x, x, x)[0]] * 3)[0]
            return self.three(x, x, x[..., :3])[0][:, 0]

    torch.manual_seed(0)
    net, x, labels = Tied().double().eval(), drawn(3, 5, 4), torch.arange(3)
    layers = layers_of(net)
    assert [layer.name for layer in each_once(layers)] == [f"layer{n:02d}" for n in (1, 2, 3, 4, 8, 9, 11, 12)]
    assert weight_mass(layers)[""].count == 48 + 16 + 16 + 16 + 12 + 16
    assert len(measured(net, x, labels)) == 12
    noise = noise_injection(net, [(x, labels)], [0.1], draws=1)["relative"]
    assert len(noise.layers) == 8 and noise.median.min() > 0
    found = HessianSpectrum(samples=3, exact=1000, k=1, parts=True).evaluate(MeasureContext(net, [(x, labels)]))
    assert len(found["hessian/leading"]) == 12
    assert float(found["hessian/leading"].sum()) == pytest.approx(1, abs=1e-9)  # all of its parameters, each once
    blocks = {name for name, value in found.items() if name.endswith("/top1")}
    assert blocks == {"hessian/top1", *(f"hessian/layer{n:02d}/top1" for n in (1, 2, 3, 4, 8, 9, 10, 11, 12))}


@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.RMSNorm])
def test_a_transformer_is_more_than_its_patches(norm):
    net = torchvision.models.VisionTransformer(8, 4, 2, 2, 8, 16, num_classes=4, norm_layer=norm)
    whole = sum(
        p.numel() for name, p in net.named_parameters() if p.ndim > 1 and name.split(".")[-1] != "pos_embedding"
    )
    assert weight_mass(layers_of(net))[""].count == whole - net.class_token.numel()


def test_signals_of_calls_and_of_parts_of_attention():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention, self.map = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 4)

        def forward(self, x):
            y = self.attention(x, x, value=x)[0]
            self.kept = [y, self.map(y), self.map(self.map(y))]
            return self.kept[2].mean(1)

    torch.manual_seed(0)
    net, x = Both().double(), drawn(SAMPLES, 5, 4)
    watch = SignalWatch(net)
    F.cross_entropy(net(x), torch.arange(SAMPLES)).backward()
    found = profile(watch.stop())
    weight, bias = net.attention.in_proj_weight.detach(), net.attention.in_proj_bias.detach()
    for number, (w, b, gradient) in enumerate(
        zip(weight.chunk(3), bias.chunk(3), net.attention.in_proj_weight.grad.chunk(3)), 1
    ):
        assert found[f"layer0{number}/activation"] == pytest.approx(rms(x @ w.T + b))
        assert found[f"layer0{number}/weight"] == pytest.approx(rms(w))
        assert found[f"layer0{number}/weight_gradient"] == pytest.approx(rms(gradient))
        assert f"layer0{number}/gradient" not in found
    assert found["layer04/activation"] == pytest.approx(rms(net.kept[0]))
    assert found["layer04/gradient"] > 0
    assert found["layer05/activation"] == pytest.approx(rms(net.kept[1]))
    assert found["layer05_3/activation"] == pytest.approx(rms(net.kept[2]))


@pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated")
@pytest.mark.parametrize(
    "computed", [lambda layer: prune.l1_unstructured(layer, "weight", 0.5), weight_norm, spectral_norm]
)
def test_a_weight_that_a_hook_computes_is_that_of_the_next_pass(computed):
    """Between a step and the next pass the attribute is still that of the pass before."""
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).double(), drawn(4, 6)
    computed(net[0])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    weights, found, norms = [], [], []
    for _ in range(2):
        net.eval()(x)
        weights.append(net[0].weight.detach().clone())
        watch = SignalWatch(net.train())
        optimizer.zero_grad()
        F.cross_entropy(net(x), torch.arange(4) % 3).backward()
        optimizer.step()
        found.append(profile(watch.stop())["layer01/update"])
        norms.append(weight_mass(layers_of(net))["layer01"].norm)
    net.eval()(x)
    weights.append(net[0].weight.detach())
    assert norms == pytest.approx([weight.norm().item() for weight in weights[1:]])
    if computed is not spectral_norm:  # a pass in training mode is a step of its power iteration too
        assert found == pytest.approx([((b - a).norm() / a.norm()).item() for a, b in pairwise(weights)])


def test_a_net_that_can_be_copied_still_can_after_its_layers_were_asked_for():
    net = nn.Sequential(nn.Linear(6, 8))
    prune.l1_unstructured(net[0], "weight", 0.5)
    with torch.no_grad():
        net(torch.ones(1, 6))
    copy.deepcopy(net)
    layers_of(net)
    copy.deepcopy(net)


def test_a_weight_that_attention_reads_without_a_call_stays_as_it_is():
    net = nn.MultiheadAttention(4, 2)
    prune.l1_unstructured(net.out_proj, "weight", 0.5)
    before = net.out_proj.weight.detach().clone()
    with torch.no_grad():
        net.out_proj.weight_orig += 1
    layers_of(net)
    assert net.out_proj.weight.equal(before)


def test_a_layer_that_was_replaced_has_no_update():
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    watch = SignalWatch(net)
    net[2] = nn.Linear(8, 5)
    net(torch.ones(4, 6)).sum().backward()
    found = profile(watch.stop())
    assert "layer01/update" in found and not any(key.startswith("layer02") for key in found)


def rms(x: Tensor) -> float:
    return x.detach().square().mean().sqrt().item()
