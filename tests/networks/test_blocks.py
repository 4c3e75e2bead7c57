"""How nets describe their blocks, and what is message of a block that is not there."""

import pytest
import torch
import torchvision
from torch import nn

from lightning_app.common.errors import UserError
from lightning_app.networks import SimplifiedNet, blocks_of, layers_of, span_of


def test_a_nets_own_blocks_are_numbered_from_one():
    net = SimplifiedNet(8)
    assert [block.name for block in blocks_of(net)] == [f"block{i:02d}" for i in range(1, 7)]
    assert blocks_of(net)[4].modules == (net.blocks[4],)


def test_a_span_composes_its_blocks():
    net = SimplifiedNet(8, width=4).eval()
    x = torch.randn(2, 4, 8, 8)
    assert torch.equal(span_of(net, "block01-block03")(x), net.blocks[2](net.blocks[1](net.blocks[0](x))))
    before = span_of(net, "block01-block03")(x, before_relu=True)
    assert (before < 0).any()
    assert torch.equal(before.relu(), span_of(net, "block01-block03")(x))


def test_the_blocks_of_a_foreign_net_are_found_by_their_paths():
    net = torchvision.models.resnet18()
    names = [block.name for block in blocks_of(net)]
    assert names == [f"layer{group}.{i}" for group in (1, 2, 3, 4) for i in (0, 1)]
    assert span_of(net, "layer1.0.conv1").modules == (net.layer1[0].conv1,)
    with pytest.raises(UserError, match=r"layer1.0 is a BasicBlock without one: set before_relu"):
        span_of(net, "layer1.0")(torch.zeros(1, 64, 8, 8), before_relu=True)


@pytest.mark.parametrize("conv", [nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose2d])
def test_blocks_of_any_convolution_are_found(conv):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = conv(2, 2, 1)

    assert [block.name for block in blocks_of(nn.Sequential(Block(), nn.ReLU(), Block()))] == ["0", "2"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("block99", r"no block 'block99' in this net\..* It has: block01, .*block06"),
        ("block5", r"Did you mean 'block05'\?"),
        ("blok03", r"Did you mean 'block03'\?"),
        ("block04-block02", r"earlier block first: expected 'block02-block04'"),
    ],
)
def test_a_block_that_does_not_exist_gets_the_nearest_name_and_the_list(name, message):
    with pytest.raises(UserError, match=message):
        span_of(SimplifiedNet(8), name)


def test_a_net_without_blocks_lists_its_modules():
    with pytest.raises(UserError, match=r"It has: 0, 1\."):
        span_of(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), "block01")
    with pytest.raises(UserError, match=r"It has: no modules\."):
        span_of(nn.Linear(4, 2), "block01")


def test_a_compiled_net_has_the_names_of_the_net():
    net = torchvision.models.resnet18()
    compiled = torch.compile(net)
    assert [block.name for block in blocks_of(compiled)] == [block.name for block in blocks_of(net)]
    assert [layer.weight_name for layer in layers_of(compiled)] == [layer.weight_name for layer in layers_of(net)]
    assert span_of(compiled, "layer1.0.conv1").modules == (net.layer1[0].conv1,)
