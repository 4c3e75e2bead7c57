"""What the CIFAR nets have in common, whichever shortcuts they have."""

import copy

import pytest
import torch
import torch.nn.functional as F

from lightning_app.common.errors import UserError
from lightning_app.networks import CifarResNet, PreactResNet, SimplifiedNet, blocks_of, layers_of
from tests.helpers import drawn, images, same_weights

KINDS = [SimplifiedNet, CifarResNet, PreactResNet]
NETS = [(kind, residual) for kind in KINDS for residual in (False, True)]
EVERY = pytest.mark.parametrize(("kind", "residual"), NETS, ids=[f"{kind.__name__}-{r}" for kind, r in NETS])


def net(kind, residual: bool, seed: int = 0, **arguments) -> torch.nn.Module:
    return drawn(kind, seed, **({"depth": 8, "residual": residual, "width": 4} | arguments))


@EVERY
def test_layers_and_blocks_are_those_of_the_forward_pass(kind, residual):
    some, called = net(kind, residual), []
    layers, state = layers_of(some), some.state_dict()
    for layer in layers:
        layer.module.register_forward_hook(lambda module, *_: called.append(module))
        assert state[layer.weight_name].data_ptr() == layer.weight.data_ptr()
    some(images(1))
    assert called == [layer.module for layer in layers] and len(layers) == 8
    assert [layer.name for layer in layers] == [f"layer{number:02d}" for number in range(1, 9)]
    assert [block.modules for block in blocks_of(some)] == [(block,) for block in some.blocks]


@EVERY
def test_width_classes_and_channels_are_free(kind, residual):
    some = net(kind, residual, num_classes=7, in_channels=1)
    assert some(torch.randn(2, 1, 28, 28)).shape == (2, 7)
    with pytest.raises(ValueError, match="at least 1 channel, got 0"):
        kind(8, width=0)


@EVERY
def test_weights_follow_the_seed(kind, residual):
    assert same_weights(net(kind, residual, 3), net(kind, residual, 3))
    assert not same_weights(net(kind, residual, 3), net(kind, residual, 4))


@EVERY
def test_every_parameter_has_a_gradient(kind, residual):
    some = net(kind, residual)
    F.cross_entropy(some(images()), torch.tensor([0, 1, 2])).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() and p.grad.any() for p in some.parameters())


@EVERY
def test_channels_last_gives_the_same(kind, residual):
    some, x = net(kind, residual).double(), images(dtype=torch.float64)
    with torch.no_grad():
        last = copy.deepcopy(some).to(memory_format=torch.channels_last)(x.to(memory_format=torch.channels_last))
        torch.testing.assert_close(last, some(x), rtol=0, atol=1e-12)


@EVERY
def test_nothing_is_overwritten_in_place(kind, residual):
    """What a hook keeps is still true when the forward pass is over."""
    some, kept = net(kind, residual), []

    def keep(module, inputs, out):
        kept.append((out, out.clone(), inputs[0], inputs[0].clone()))

    for module in some.modules():
        module.register_forward_hook(keep)
    with torch.no_grad():
        some(images())
    assert len(kept) == sum(not isinstance(module, torch.nn.ModuleList) for module in some.modules())
    for out, out_then, x, x_then in kept:
        assert torch.equal(out, out_then) and torch.equal(x, x_then)


@EVERY
def test_compiled_equals_eager_in_one_graph(kind, residual):
    """Traced forward and backward; the kernels that the default back end makes of it are PyTorch's own matter."""
    some = net(kind, residual)
    outputs = []
    for each in (some, torch.compile(copy.deepcopy(some), backend="aot_eager", fullgraph=True)):
        loss = F.cross_entropy(each(images()), torch.tensor([0, 1, 2]))
        loss.backward()
        outputs.append([loss.detach(), *(p.grad for p in each.parameters())])
    for eager, traced in zip(*outputs):
        torch.testing.assert_close(traced, eager, rtol=1e-4, atol=1e-6)


DEPTHS = {  # what is asked for -> what is said to be nearest
    SimplifiedNet: {(21,): "20 and 23", (6,): "5 and 8", (2,): "5", (0,): "5", (-1,): "5"},
    CifarResNet: {(21,): "20 and 26", (115,): "110 and 116", (7,): "8", (2,): "8", (-4,): "8"},
    PreactResNet: {(20, 4): "14 and 26", (32, 3): "29 and 38", (21, 2): "20 and 26", (4, 1): "5", (2, 2): "8"},
}
FORMS = {SimplifiedNet: "simplified net must be 3N", CifarResNet: "full CIFAR net must be 6N"}


@pytest.mark.parametrize(("kind", "depth"), [(kind, depth) for kind in KINDS for depth in DEPTHS[kind]])
def test_depth_is_checked(kind, depth):
    form = FORMS.get(kind) or f"{depth[1]}-shortcut pre-activation net must be {3 * depth[1]}N"
    said = rf"{form} \+ 2 .* got {depth[0]}\. Nearest: {DEPTHS[kind][depth]}\."
    with pytest.raises(UserError, match=said):
        kind(depth[0], **dict(zip(["n"], depth[1:])))


def test_a_shortcut_is_around_a_convolution_at_least():
    with pytest.raises(UserError, match="spans, must be at least 1, got 0"):
        PreactResNet(20, n=0)
