"""The full CIFAR nets: closed-form counts, an independent forward pass, and the ways a net is run."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F

from lightning_app.common.errors import UserError
from lightning_app.identity import transfer, untransfer
from lightning_app.modules import Arm
from lightning_app.networks import CifarResNet
from tests.helpers import classifier, drawn, images, same_weights

net = partial(drawn, CifarResNet)
KINDS = pytest.mark.parametrize("residual", [False, True])


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


def test_there_is_no_twin_and_the_message_says_why():
    for move in (transfer, untransfer):
        with pytest.raises(ValueError, match="CifarResNet does not say which of its weights have ID entries"):
            move(CifarResNet(8))
    twins = {"residual": Arm(net=lambda: CifarResNet(8, width=4)), "plain": Arm(twin_of="residual")}
    with pytest.raises(UserError, match="so it has no twin"):
        classifier(twins)
