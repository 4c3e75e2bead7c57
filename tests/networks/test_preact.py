"""Pre-activation nets with shortcuts of any depth: fixed counts, an independent forward pass, and what n decides."""

import itertools

import pytest
import torch
import torch.nn.functional as F

from lightning_app.common.errors import UserError
from lightning_app.identity import id_entries
from lightning_app.networks import CifarResNet, PreactResNet, layers_of
from tests.helpers import with_moved_norms

KINDS = pytest.mark.parametrize("residual", [False, True])
DEPTHS_OF_N = pytest.mark.parametrize("n", [1, 2, 3, 4, 6])


def net(seed: int = 0, **arguments) -> PreactResNet:
    """A net whose BatchNorms are not the identity, as after some training."""
    torch.manual_seed(seed)
    return with_moved_norms(PreactResNet(**arguments))


def images(count: int = 3, size: int = 32, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(1), dtype=dtype)


def tensors(some: PreactResNet) -> list[torch.Tensor]:
    """Weights of convolutions, BatchNorms in the order of the forward pass, and fc."""
    norms = [norm for block in some.blocks for norm in block.norms] + [some.norm]
    return [layer.weight for layer in some.layers()] + [w for norm in norms for w in (norm.weight, norm.bias)]


# --- structure


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


@pytest.mark.parametrize("depth", [20, 56])
def test_as_many_parameters_as_with_batchnorm_behind_each_convolution(depth):
    """BatchNorms of what enters the convolutions and of what leaves the last: of what leaves each of them, conv0 included."""
    counts = [sum(p.numel() for p in some(depth).parameters()) for some in (PreactResNet, CifarResNet)]
    assert counts[0] == counts[1]


@pytest.mark.parametrize(("depth", "n"), [(20, 1), (20, 2), (38, 3), (110, 2)])
def test_the_figures_depths(depth, n):
    some = PreactResNet(depth, n=n)
    layers = layers_of(some)
    assert layers == some.layers() and len(layers) == depth
    group = (depth - 2) // 3
    assert [i for i, layer in enumerate(layers) if layer.stride == 2] == [group + 1, 2 * group + 1]
    assert len(some.blocks) == (depth - 2) // n


@pytest.mark.parametrize(
    ("depth", "n", "nearest"),
    [(20, 4, "14 and 26"), (32, 3, "29 and 38"), (21, 2, "20 and 26"), (4, 1, "5"), (2, 2, "8")],
)
def test_depth_is_checked(depth, n, nearest):
    said = rf"{n}-shortcut pre-activation net has depth {3 * n}N \+ 2 .* got {depth}\. Nearest: {nearest}\."
    with pytest.raises(UserError, match=said):
        PreactResNet(depth, n=n)


def test_n_is_checked():
    with pytest.raises(UserError, match="n >= 1 convolutions, got 0"):
        PreactResNet(20, n=0)


# --- initialisation


def test_initial_weights():
    torch.manual_seed(0)
    some = PreactResNet(20, n=3)
    for layer in some.layers()[:-1]:
        expected = (2 / (9 * layer.weight.shape[0])) ** 0.5  # fan-out: k k out_channels
        assert layer.weight.std().item() == pytest.approx(expected, rel=5 / (2 * layer.weight.numel()) ** 0.5)
        assert layer.module.bias is None
    norms = [module for module in some.modules() if isinstance(module, torch.nn.BatchNorm2d)]
    assert len(norms) == 19
    assert all((norm.weight == 1).all() and not norm.bias.any() for norm in norms)
    assert not some.fc.bias.any()


def test_all_nets_of_a_seed_start_from_the_same_weights():
    first, *others = (
        tensors(net(3, depth=20, width=4, n=n, residual=residual)) for n in (1, 2, 3) for residual in (False, True)
    )
    for other in others:
        assert all(torch.equal(a, b) for a, b in zip(first[:20], other[:20]))  # convolutions and fc


# --- forward pass


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
        expected = by_hand(some, images())
        assert expected.abs().max() > 0.1  # so that 1e-11 says something
        torch.testing.assert_close(some(images()), expected, rtol=0, atol=1e-11)


def test_plain_nets_are_one_net_whatever_n():
    outputs = []
    for n in (1, 2, 3, 6):
        some = net(depth=20, n=n, residual=False, width=4).double().eval()
        for ours, theirs in zip(tensors(some), tensors(net(depth=20, residual=False, width=4))):
            ours.data.copy_(theirs)
        for module in some.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.reset_running_stats()
        outputs.append(some(images()))
    assert all(torch.equal(outputs[0], other) for other in outputs[1:])


@DEPTHS_OF_N
def test_a_unit_without_weights_is_its_shortcut(n):
    some = net(depth=38, n=n, width=4).double().eval()
    for layer in some.layers()[1:-1]:
        torch.nn.init.zeros_(layer.weight)
    x = torch.randn(2, 4, 8, 8, dtype=torch.float64)
    first, second, *_ = (block for block in some.blocks)
    assert torch.equal(first(x), first.norms[0](x).relu()) and torch.equal(second(x), x)
    widening = some.blocks[len(some.blocks) // 3]
    out = widening(x)
    assert out.shape == (2, 8, 4, 4) and not out[:, 4:].any()
    assert torch.equal(out[:, :4], widening.norms[0](x).relu()[:, :, ::2, ::2])


def test_layers_with_a_shortcut_around_them_say_so():
    """n = 1: the first unit of each group is the convolution with W + identity of its input."""
    some = net(depth=20, n=1, width=4).double().eval()
    skips = [i for i, layer in enumerate(some.layers()) if layer.skip]
    assert skips == [1, 7, 13]
    for i in skips:
        unit, conv = some.blocks[i - 1], some.layers()[i].module
        x = images()[:, :1].expand(-1, conv.in_channels, -1, -1)
        whole = conv.weight + id_entries(conv.weight)
        expected = F.conv2d(unit.norms[0](x).relu(), whole, stride=conv.stride, padding=1)
        torch.testing.assert_close(unit(x), expected, rtol=0, atol=1e-12)
    for others in (net(depth=20, n=2), net(depth=20, n=1, residual=False)):
        assert not any(layer.skip or layer.has_id for layer in others.layers())
