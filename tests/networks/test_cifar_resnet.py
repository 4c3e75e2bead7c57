"""The full CIFAR nets: closed-form counts, an independent forward pass, and the ways a net is run."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F

from lightning_app.common.errors import UserError
from lightning_app.identity import transfer, untransfer
from lightning_app.modules import Arm
from lightning_app.networks import CifarResNet, layers_of, span_of
from tests.helpers import classifier, digits, fit, same_weights, with_moved_norms

KINDS = pytest.mark.parametrize("residual", [False, True])


def net(seed: int = 0, **arguments) -> CifarResNet:
    """A net whose BatchNorms are not the identity, as after some training."""
    torch.manual_seed(seed)
    return with_moved_norms(CifarResNet(**arguments))


def images(count: int = 3, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(1)).to(dtype)


# --- structure


# He et al. (2016), Table 6, in millions
@pytest.mark.parametrize(("depth", "millions"), [(20, 0.27), (32, 0.46), (44, 0.66), (56, 0.85), (110, 1.7)])
@KINDS
def test_counts(depth, millions, residual):
    """n blocks of two 3x3 kernels and two BNs a group; a widening block's first kernel has half the inputs."""
    n, widths = (depth - 2) // 6, (16, 32, 64)
    blocks = sum(n * (2 * 9 * w * w + 4 * w) for w in widths) - 9 * 32 * 16 - 9 * 64 * 32
    expected = (9 * 3 * 16 + 2 * 16) + blocks + (64 * 10 + 10)
    some = CifarResNet(depth, residual=residual)
    assert sum(p.numel() for p in some.parameters()) == expected == 97_216 * n - 21_926
    assert round(expected / 1e6, 1 if millions == 1.7 else 2) == millions


@pytest.mark.parametrize("blocks", [1, 2, 5])
def test_any_depth_6n_plus_2(blocks):
    some = CifarResNet(6 * blocks + 2)
    layers = layers_of(some)
    assert layers == some.layers() and len(layers) == 6 * blocks + 2
    assert (layers[0].weight_name, layers[-1].weight_name) == ("conv0.weight", "fc.weight")
    assert [i for i, layer in enumerate(layers) if layer.stride == 2] == [2 * blocks + 1, 4 * blocks + 1]
    assert not any(layer.has_id or layer.skip for layer in layers)
    assert len(some.blocks) == 3 * blocks


@pytest.mark.parametrize(
    ("depth", "nearest"), [(21, "20 and 26"), (110 + 5, "110 and 116"), (7, "8"), (2, "8"), (-4, "8")]
)
def test_depth_is_checked(depth, nearest):
    with pytest.raises(UserError, match=rf"full CIFAR net has depth 6N \+ 2 .* got {depth}\. Nearest: {nearest}\."):
        CifarResNet(depth)


def test_block_5_of_9_is_the_papers():
    """Yu & Tomasi's interlayer cushion: 32 channels of 16x16 on both sides at depth 20."""
    shapes = []
    some = net()
    (block,) = span_of(some, "block05").modules
    block.register_forward_hook(lambda module, inputs, out: shapes.append((inputs[0].shape, out.shape)))
    some(images(2))
    assert shapes == [((2, 32, 16, 16), (2, 32, 16, 16))]


# --- initialisation


@KINDS
def test_initial_weights(residual):
    torch.manual_seed(0)
    some = CifarResNet(20, residual=residual)
    for layer in some.layers()[:-1]:
        expected = (2 / (9 * layer.weight.shape[0])) ** 0.5  # fan-out: k k out_channels
        assert layer.weight.std().item() == pytest.approx(expected, rel=5 / (2 * layer.weight.numel()) ** 0.5)
        assert layer.module.bias is None
    norms = [module for module in some.modules() if isinstance(module, torch.nn.BatchNorm2d)]
    assert len(norms) == 19
    assert all((norm.weight == 1).all() and not norm.bias.any() for norm in norms)
    assert not some.fc.bias.any()
    assert 0.12 < some.fc.weight.abs().max() <= 0.125  # U(-1/8, 1/8)


def test_the_plain_and_the_residual_net_of_a_seed_start_from_the_same_weights():
    assert same_weights(*(net(3, depth=8, residual=residual) for residual in (False, True)))


# --- forward pass


def by_hand(some: CifarResNet, x: torch.Tensor, training: bool = False) -> torch.Tensor:
    """The forward pass from He et al.'s section 4.2 and the state dict alone."""
    state = some.state_dict()

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        weight, bias, mean, variance = (
            state[f"{name}.{key}"].view(-1, 1, 1) for key in ("weight", "bias", "running_mean", "running_var")
        )
        if training:
            mean = x.mean((0, 2, 3), keepdim=True)
            variance = ((x - mean) ** 2).mean((0, 2, 3), keepdim=True)
        return (x - mean) / (variance + 1e-5).sqrt() * weight + bias

    x = torch.relu(norm(F.conv2d(x, state["conv0.weight"], padding=1), "bn0"))
    count = sum(name.endswith("conv1.weight") for name in state)
    for i in range(count):
        stride = 2 if i in (count // 3, 2 * count // 3) else 1
        inner = norm(F.conv2d(x, state[f"blocks.{i}.conv1.weight"], stride=stride, padding=1), f"blocks.{i}.bn1")
        out = norm(F.conv2d(torch.relu(inner), state[f"blocks.{i}.conv2.weight"], padding=1), f"blocks.{i}.bn2")
        if some.residual:
            shortcut = x[:, :, ::stride, ::stride]
            zeros = torch.zeros_like(shortcut) if stride == 2 else shortcut[:, :0]
            out = out + torch.cat([shortcut, zeros], dim=1)
        x = torch.relu(out)
    assert x.shape[-2:] == (8, 8)
    return F.avg_pool2d(x, 8).flatten(1) @ state["fc.weight"].T + state["fc.bias"]


@KINDS
@pytest.mark.parametrize("depth", [8, 20])
@pytest.mark.parametrize("training", [False, True])
def test_forward_pass_by_hand(residual, depth, training):
    some = net(depth=depth, residual=residual).double().train(training)
    x = images(dtype=torch.float64)
    with torch.no_grad():
        expected = by_hand(some, x, training)
        assert expected.abs().max() > 0.1  # so that 1e-11 says something
        torch.testing.assert_close(some(x), expected, rtol=0, atol=1e-11)


@KINDS
def test_a_block_before_its_last_relu(residual):
    block = net(depth=8, residual=residual).eval().blocks[1]
    x = torch.randn(2, 16, 8, 8)
    with torch.no_grad():
        before = block.before_relu(x)
        assert (before < 0).any() and torch.equal(before.relu(), block(x))
        branch = block.bn2(block.conv2(block.bn1(block.conv1(x)).relu()))
        skipped = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 0, 16)) if residual else torch.zeros_like(branch)
    torch.testing.assert_close(before, branch + skipped)


def test_evaluation_depends_on_no_batch_and_training_moves_the_statistics():
    some, x = net(depth=8).double(), images(4, torch.float64)
    state = copy.deepcopy(some.state_dict())
    with torch.no_grad():
        some.eval()
        torch.testing.assert_close(some(x)[:1], some(x[:1]), rtol=0, atol=1e-12)
        assert all(torch.equal(value, state[key]) for key, value in some.state_dict().items())
        some.train()(x)
    moved = {key for key, value in some.state_dict().items() if not torch.equal(value, state[key])}
    assert moved == {key for key in state if "running" in key or "tracked" in key}


# --- among the others


def test_there_is_no_twin_and_the_message_says_why():
    for move in (transfer, untransfer):
        with pytest.raises(ValueError, match="CifarResNet does not say which of its weights have ID entries"):
            move(CifarResNet(8))
    twins = {"residual": Arm(net=lambda: CifarResNet(8, width=4)), "plain": Arm(twin_of="residual")}
    with pytest.raises(UserError, match="so it has no twin"):
        classifier(twins)


def test_both_kinds_train_in_a_bank():
    """One epoch on the digits: both learn, and a member equals the net trained alone."""
    arms = {
        kind: Arm(net=lambda residual=residual: CifarResNet(8, residual=residual, width=8))
        for kind, residual in (("plain", False), ("residual", True))
    }
    both, alone = (
        fit(
            classifier(some, optimizer=lambda p: torch.optim.Adam(p, 0.01)),
            epochs=1,
            data=digits(train_limit=800),
        )
        for some in (arms, {"plain": arms["plain"]})
    )
    for name, numbers in both.metrics().items():
        assert numbers["train/risk_running"] < 0.95 * math.log(10), name  # the mean over the epoch
    assert same_weights(alone.nets["plain"], both.nets["plain"])
    assert alone.nets["plain"].bn0.running_mean.any()
