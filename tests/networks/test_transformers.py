"""GPT and ViT against PyTorch's own transformer layers, and what skips, norms and causality promise."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lightning_app.common.errors import UserError
from lightning_app.networks import GPT, ViT, blocks_of, layers_of, survey

SMALL = {"width": 8, "depth": 2, "heads": 2}
TOKENS = torch.randint(5, (3, 6), generator=torch.Generator().manual_seed(0))
IMAGES = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1)).double()


def gpt(seed: int = 0, **more) -> GPT:
    torch.manual_seed(seed)
    return GPT(**({"vocabulary": 5, "context": 6} | SMALL | more)).double()


def vit(seed: int = 0, **more) -> ViT:
    torch.manual_seed(seed)
    return ViT(**({"image_size": 8, "patch": 4, "num_classes": 7} | SMALL | more)).double()


def by_pytorch(net, stream: torch.Tensor) -> torch.Tensor:
    """The usual net with nn.TransformerEncoderLayer, its weights copied from ours."""
    for block in net.blocks:
        attention, perceptron = (branch.map for branch in block)
        first = block[0].before if isinstance(block[0].before, nn.LayerNorm) else block[0].after
        second = block[1].before if isinstance(block[1].before, nn.LayerNorm) else block[1].after
        order = {"batch_first": True, "norm_first": first is block[0].before, "dtype": torch.float64}
        own = nn.TransformerEncoderLayer(8, 2, 32, 0.0, F.gelu, **order)
        maps = (attention.query, attention.key, attention.value)
        own.load_state_dict(
            {
                "self_attn.in_proj_weight": torch.cat([each.weight for each in maps]),
                "self_attn.in_proj_bias": torch.cat([each.bias for each in maps]),
                **{f"self_attn.out_proj.{name}": value for name, value in attention.out.state_dict().items()},
                **{f"linear1.{name}": value for name, value in perceptron[0].state_dict().items()},
                **{f"linear2.{name}": value for name, value in perceptron[2].state_dict().items()},
                **{f"norm1.{name}": value for name, value in first.state_dict().items()},
                **{f"norm2.{name}": value for name, value in second.state_dict().items()},
            }
        )
        size = stream.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(size, dtype=torch.float64) if net.causal else None
        stream = own(stream, src_mask=mask)
    return stream


def shaken(net: nn.Module) -> nn.Module:
    """Biases and norms that are not what they start as."""
    for parameter in net.parameters():
        nn.init.normal_(parameter, mean=0.1, std=0.5)
    return net


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_the_usual_net_is_pytorchs(norm):
    def normed(net, stream: torch.Tensor) -> torch.Tensor:
        """What the readout gets: behind a norm of its own where the last branch has none behind it."""
        last = net.last_norm
        return F.layer_norm(stream, (8,), last.weight, last.bias) if norm == "pre" else stream

    net = shaken(gpt(norm=norm))
    stream = by_pytorch(net, net.embedding(TOKENS))[:, -1]
    torch.testing.assert_close(net(TOKENS), net.readout(normed(net, stream)), rtol=0, atol=1e-12)
    net = shaken(vit(norm=norm))
    windows = F.unfold(IMAGES, 4, stride=4).transpose(1, 2)  # patches, by another way than a convolution
    kernel = net.embedding.patches
    stream = by_pytorch(net, windows @ kernel.weight.flatten(1).T + kernel.bias + net.embedding.places)
    torch.testing.assert_close(net(IMAGES), net.readout(normed(net, stream).mean(1)), rtol=0, atol=1e-12)


def test_what_a_block_adds_is_the_plain_blocks_scaled():
    """Without norms: residual = x + branch, scaled = x + branch / sqrt(4), plain = branch."""
    x = torch.randn(2, 3, 8).double()
    nets = {skip: gpt(norm="none", skip=skip) for skip in ("none", "identity", "scaled")}
    for branches in zip(*(blocks_of(net) for net in nets.values())):
        plain, identity, scaled = (branch(x) for branch in branches)
        torch.testing.assert_close(identity - x, plain, rtol=0, atol=1e-14)
        torch.testing.assert_close(scaled - x, plain / 2, rtol=0, atol=1e-14)
    assert [net.residual for net in nets.values()] == [False, True, True]
    assert len({sum(p.numel() for p in net.parameters()) for net in nets.values()}) == 1


@pytest.mark.parametrize("skip", ["none", "identity", "scaled"])
def test_a_token_sees_no_later_one(skip):
    net = gpt(skip=skip)
    streams = net.blocks(net.embedding(TOKENS)), net.blocks(net.embedding(torch.cat([TOKENS[:, :4], TOKENS[:, :2]], 1)))
    assert torch.equal(*(stream[:, :4] for stream in streams)) and not torch.equal(*(s[:, 4:] for s in streams))
    torch.testing.assert_close(net(TOKENS[:, :4]), net.readout(net.last_norm(streams[0][:, 3])), rtol=0, atol=1e-12)


def test_the_stream_keeps_its_size_at_the_start():
    """Of unit variance, plain branches aside: each branch of a scaled net adds 1 / branches."""
    torch.manual_seed(0)
    net = GPT(vocabulary=64, context=32, width=128, depth=8, skip="scaled", norm="none", activation="relu")
    stream = net.embedding(torch.randint(64, (16, 32)))
    assert float(stream.detach().square().mean()) == pytest.approx(1, rel=0.1)
    assert 1 <= float(net.blocks(stream).detach().square().mean()) <= 2.8  # at most (1 + 1/16)^16


def test_matrices_start_with_variance_1_over_their_inputs():
    """Of a patch all pixels of all channels, 48. A sample standard deviation is known to 1 / sqrt(2 n)."""
    torch.manual_seed(0)
    net = ViT(image_size=8, patch=4, width=128, depth=1)
    for layer in layers_of(net):
        weight = layer.weight.detach()
        by_hand = weight[0].numel() ** -0.5
        assert float(weight.std()) == pytest.approx(by_hand, rel=5 / (2 * weight.numel()) ** 0.5), layer.weight_name
        assert not layer.bias.any()


def test_layers_in_forward_order_all_with_a_cushion():
    for net, sample, first in ((gpt(), TOKENS, "embedding.tokens"), (vit(), IMAGES, "embedding.patches")):
        layers = layers_of(net)
        assert layers[-1].module is net.readout and len(layers) == 14
        assert layers[0].weight_name == f"{first}.weight"
        called = [found for found in survey(net, sample) if found.layer is not None]
        assert [found.layer.name for found in called] == [layer.name for layer in layers]
        assert not any(found.reason for found in called)
        assert len(blocks_of(net)) == 4


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GPT(width=10, heads=4), "multiple of heads, got 10 and 4"),
        (lambda: GPT(skip="residual"), "skip must be one of none, identity, scaled, got 'residual'"),
        (lambda: GPT(norm="batch"), "norm must be one of pre, post, none"),
        (lambda: GPT(activation="silu"), "activation must be one of gelu, relu"),
        (lambda: GPT(depth=0), "depth of GPT must be at least 1"),
        (lambda: ViT(image_size=30), "multiple of patch, got 30 and 4"),
        (
            lambda: ViT(patch=8)(torch.zeros(2, 3, 8, 8)),
            r"takes images of 32 x 32 pixels, got 8 x 8: set image_size of the net",
        ),
        (lambda: ViT(patch=8)(torch.zeros(2, 3, 39, 39)), "got 39 x 39"),
        (lambda: gpt(context=4)(TOKENS), "takes at most 4 tokens, got 6: set the net's context"),
    ],
)
def test_sizes_that_make_no_net(make, message):
    with pytest.raises(UserError, match=message):
        make()
