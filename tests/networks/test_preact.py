"""Pre-activation nets with shortcuts of any depth: fixed counts, an independent forward pass, and what n decides."""

import itertools
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from lightning_app.identity import id_entries
from lightning_app.networks import PreactResNet
from tests.helpers import drawn, images

net = partial(drawn, PreactResNet)
IMAGES = images(dtype=torch.float64)
KINDS = pytest.mark.parametrize("residual", [False, True])
DEPTHS_OF_N = pytest.mark.parametrize("n", [1, 2, 3, 4, 6])


def tensors(some: PreactResNet) -> list[torch.Tensor]:
    """Weights of convolutions, BatchNorms in the order of the forward pass, and fc."""
    norms = [norm for block in some.blocks for norm in block.norms] + [some.norm]
    return [layer.weight for layer in some.layers()] + [w for norm in norms for w in (norm.weight, norm.bias)]


@DEPTHS_OF_N
@KINDS
def test_n_and_shortcuts_change_no_parameter(n, residual):
    """Depth 38: 12 convolutions a group; each has a BN of its inputs, and there is a last BN."""
    widths = [16] * 13 + [32] * 12 + [64] * 12  # of what enters and leaves the 36 convolutions
    convs = sum(9 * before * after for before, after in itertools.pairwise(widths))
    expected = 9 * 3 * 16 + convs + sum(2 * width for width in widths) + (64 * 10 + 10)
    some = PreactResNet(38, n=n, residual=residual)
    assert sum(p.numel() for p in some.parameters()) == expected
    assert [w.shape for w in tensors(some)] == [w.shape for w in tensors(PreactResNet(38))]


def test_all_nets_of_a_seed_start_from_the_same_weights():
    first, *others = (
        tensors(net(3, depth=20, width=4, n=n, residual=residual)) for n in (1, 2, 3) for residual in (False, True)
    )
    for other in others:
        assert all(torch.equal(a, b) for a, b in zip(first[:20], other[:20]))  # convolutions and fc


def by_hand(some: PreactResNet, x: torch.Tensor) -> torch.Tensor:
    """In evaluation mode, from the list of convolutions and BatchNorms alone."""
    convs = [layer.weight for layer in some.layers()[1:-1]]
    norms = [norm for block in some.blocks for norm in block.norms] + [some.norm]
    group = len(convs) // 3

    def relu_of_norm(x: torch.Tensor, norm: torch.nn.BatchNorm2d) -> torch.Tensor:
        mean, variance, weight, bias = (
            v.view(-1, 1, 1) for v in (norm.running_mean, norm.running_var, norm.weight, norm.bias)
        )
        return torch.relu((x - mean) / (variance + 1e-5).sqrt() * weight + bias)

    x = F.conv2d(x, some.conv0.weight, padding=1)
    for place, (w, norm) in enumerate(zip(convs, norms)):
        stride = 2 if place in (group, 2 * group) else 1
        active = relu_of_norm(x, norm)
        if place % some.n == 0:  # a shortcut starts
            skipped = active if place % group == 0 else x
            skipped = skipped[:, :, ::stride, ::stride]
            if stride == 2:
                skipped = torch.cat([skipped, torch.zeros_like(skipped)], 1)
        x = F.conv2d(active, w, stride=stride, padding=1)
        if place % some.n == some.n - 1 and some.residual:
            x = x + skipped
    x = relu_of_norm(x, norms[-1])
    return x.flatten(2).mean(2) @ some.fc.weight.T + some.fc.bias


@KINDS
@pytest.mark.parametrize(("depth", "n"), [(5, 1), (20, 1), (20, 2), (20, 3), (20, 6), (14, 4)])
def test_forward_pass_by_hand(depth, n, residual):
    some = net(depth=depth, n=n, residual=residual, width=4).double().eval()
    with torch.no_grad():
        expected = by_hand(some, IMAGES)
        assert expected.abs().max() > 0.1  # so that 1e-11 says something
        torch.testing.assert_close(some(IMAGES), expected, rtol=0, atol=1e-11)


def test_layers_with_a_shortcut_around_them_say_so():
    """n = 1: the first unit of each group is the convolution with W + identity of its input."""
    some = net(depth=20, n=1, width=4).double().eval()
    skips = [i for i, layer in enumerate(some.layers()) if layer.skip]
    assert skips == [1, 7, 13]
    for i in skips:
        unit, conv = some.blocks[i - 1], some.layers()[i].module
        x = IMAGES[:, :1].expand(-1, conv.in_channels, -1, -1)
        whole = conv.weight + id_entries(conv.weight)
        expected = F.conv2d(unit.norms[0](x).relu(), whole, stride=conv.stride, padding=1)
        torch.testing.assert_close(unit(x), expected, rtol=0, atol=1e-12)
    for others in (net(depth=20, n=2), net(depth=20, n=1, residual=False)):
        assert not any(layer.skip or layer.has_id for layer in others.layers())
