"""Paths through nets with gates: sums, gradients of hand-written frozen twins, closed forms, each function by itself."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F
import torchvision.models as tv
from torch import Tensor, nn

from callbacks.context import MeasureContext
from lightning_app.common.calls import Inputs
from lightning_app.measures import NoPaths, effective_depth, path_gradients, path_outputs
from lightning_app.measures.paths.lengths import _delta
from lightning_app.measures.paths.unravel import ByLength, unravel
from lightning_app.networks import GPT, CifarResNet, ViT

EXACT = 1e-12


def awake(net: nn.Module, seed: int = 0) -> nn.Module:
    """In float64 and evaluation mode; nothing is where it starts, least of all what starts at 0 or close to it."""
    torch.manual_seed(seed)
    for name, tensor in net.state_dict().items():
        if name.endswith("running_var"):
            tensor.uniform_(0.5, 2)
        elif tensor.is_floating_point():
            tensor.add_((0.3 if tensor.squeeze().ndim < 2 else 0.03) * torch.randn_like(tensor))
    return net.double().eval()


class Logits(nn.Module):
    """What a net of transformers returns, as a tensor."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x).logits


SIZE = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}


def theirs(name: str, config: str, **size: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        found = pytest.importorskip("transformers")
        given = {"vocab_size": 20, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2} | size
        return Logits(getattr(found, name)(getattr(found, config)(**given)))

    return make


gpt2 = theirs("GPT2LMHeadModel", "GPT2Config", n_positions=16, n_embd=16, n_layer=2, n_head=2)
bert = theirs("BertForSequenceClassification", "BertConfig", **SIZE, num_labels=3)


TOKENS = torch.arange(16).reshape(2, 8)
NETS: dict[
    str, tuple[Callable[[], nn.Module], int, int]
] = {  # with the size of images, 0 for tokens; and the longest path
    "resnet50": (lambda: tv.resnet50(num_classes=10), 32, 49),
    "densenet121": (lambda: tv.densenet121(num_classes=10), 32, 120),
    "mobilenet_v3_small": (lambda: tv.mobilenet_v3_small(num_classes=10), 32, 35),
    "mobilenet_v3_large": (lambda: tv.mobilenet_v3_large(num_classes=10), 32, 47),
    "efficientnet_b0": (lambda: tv.efficientnet_b0(num_classes=10), 32, 49),
    "convnext_tiny": (lambda: tv.convnext_tiny(num_classes=10), 32, 58),  # 1 + 18 blocks of 3, 3 between stages
    "vit_b_16": (lambda: tv.VisionTransformer(32, 16, 2, 12, 768, 3072, num_classes=10), 32, 9),  # of 2 layers
    "swin_t": (lambda: tv.SwinTransformer([4, 4], 24, [2, 2], [2, 4], [7, 7], num_classes=10), 64, 18),  # 1 + 4 * 4 + 1
    "vit_tiny": (lambda: timm.create_model("vit_tiny_patch16_224", img_size=32, depth=3, num_classes=10), 32, 13),
    # Linear maps of attention's patterns; two blocks of four, one of the class token, which also reads itself.
    "cait": (lambda: timm.models.cait.Cait(32, 8, num_classes=10, embed_dim=16, depth=2, num_heads=2), 32, 17),
    "gpt2": (gpt2, 0, 9),  # the embedding, and two blocks of four
    "gemma": (theirs("GemmaForCausalLM", "GemmaConfig", num_key_value_heads=1, head_dim=8, **SIZE), 0, 9),
    "roberta": (theirs("RobertaForSequenceClassification", "RobertaConfig", **SIZE), 0, 10),  # positions count tokens
    "albert": (theirs("AlbertForSequenceClassification", "AlbertConfig", embedding_size=8, **SIZE), 0, 11),  # shared
    "bloom": (theirs("BloomForCausalLM", "BloomConfig", hidden_size=16, n_layer=2, n_head=2), 0, 9),
    "bert": (bert, 0, 10),  # the pooler too
    "ours": (lambda: GPT(20, context=8, width=16, depth=2, heads=2), 0, 9),
}


@pytest.mark.parametrize("name", NETS)
def test_outputs_of_all_lengths_sum_to_the_outputs(name):
    make, pixels, longest = NETS[name]
    net = awake(make())
    x = torch.randn(1, 3, pixels, pixels, dtype=torch.float64) if pixels else TOKENS
    found, expected = path_outputs(net, x), net(x).detach()
    assert found.input_lengths[-1] == longest
    assert found.gated == (name not in ("resnet50", "densenet121"))
    exact = 1e-6 if name == "gemma" else EXACT  # whose norms are in float32
    assert (found.outputs.sum(0) + found.constant - expected).abs().max() < exact * expected.abs().max()
    moving = found.outputs.abs().amax((1, -1)) > 1e-6 * expected.abs().max()
    assert moving.sum() > 4  # what is compared is not the readout's bias


@pytest.mark.parametrize("make", [gpt2, bert])
def test_dict_batches_are_resolved_as_the_net_computes_them_padded_to_any_length(make):
    """The parts of the gradient are those of the loss that the net returns, and padding changes nothing."""
    net = awake(make()).net
    mask = (torch.arange(8) < torch.tensor([[8], [8], [5], [3]])).long()
    tokens = torch.arange(32).reshape(4, 8) % 20
    labels = tokens.masked_fill(mask == 0, -100) if make is gpt2 else torch.tensor([0, 2, 1, 1])
    batch = {"input_ids": tokens, "attention_mask": mask, "labels": labels}
    context = MeasureContext(net, [batch])
    ((inputs, _),) = context.batches()
    found = path_gradients(net, inputs, labels, context.loss)
    whole = flat(net, net(**batch).loss)
    difference = found.gradients.sum(0) + found.constant + found.through_gates - whole
    assert difference.abs().max() < 1e-5 * whole.abs().max()  # transformers' loss is in float32
    short = {name: value[2:, :5] if value.ndim > 1 else value[2:] for name, value in batch.items()}
    long = {name: value[:2] for name, value in batch.items()}
    padded, cut = (
        effective_depth(net, MeasureContext(net, two).batches(), context.loss) for two in ([batch], [long, short])
    )
    assert cut.outputs.tolist() == pytest.approx(padded.outputs.tolist(), rel=1e-9, abs=0)
    assert cut.gradients.tolist() == pytest.approx(padded.gradients.tolist(), rel=1e-4, abs=0)
    f = path_outputs(net, inputs).outputs
    if make is gpt2:  # a token is compared with the next one, and those that end a text with none
        f = f[:, :, :-1][:, labels[:, 1:] != -100]
    f = f - f.mean(-1, keepdim=True)
    assert padded.outputs.tolist() == pytest.approx(f.square().sum(-1).mean(1).tolist(), rel=1e-9, abs=0)


def test_an_encoder_decoder_makes_its_decoders_tokens_of_the_labels():
    size = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2, "decoder_start_token_id": 0}
    net = awake(theirs("T5ForConditionalGeneration", "T5Config", **size)().net)
    inputs = Inputs(named={"input_ids": TOKENS, "labels": (TOKENS + 3).masked_fill(TOKENS == 7, -100)})
    found, expected = path_outputs(net, inputs), net(**inputs.named).logits.detach()
    assert (found.outputs.sum(0) + found.constant - expected).abs().max() < EXACT * expected.abs().max()
    assert found.input_lengths == (3, 5, 7, 9)  # through the encoder's two branches and the decoder's MLP or not


class Pooled(nn.Module):
    """The mean of what is not masked, behind activations: of a product with these a path of real numbers would be the mask's."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.branch, self.head = nn.Embedding(20, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, tokens: Tensor, pad_mask: Tensor) -> Tensor:
        x = self.embedding(tokens)
        x, counts = torch.relu(x + self.branch(x)), pad_mask.to(x.dtype).unsqueeze(-1)
        return self.head((x * counts).sum(1) / counts.sum(1))


@pytest.mark.parametrize("kind", [torch.bool, torch.float64])
def test_a_mask_is_a_constant_whatever_its_numbers_and_its_place_in_the_batch(kind):
    net, mask = awake(Pooled()), torch.ones_like(TOKENS).index_fill(1, torch.tensor([0]), 0)
    expected = path_outputs(net, Inputs([TOKENS, mask]))
    assert expected.input_lengths == (1, 2)
    mask = mask.to(kind)
    for inputs in (Inputs([TOKENS, mask]), Inputs([TOKENS], {"pad_mask": mask}), {"pad_mask": mask, "tokens": TOKENS}):
        found = path_outputs(net, inputs if isinstance(inputs, Inputs) else Inputs(named=inputs))
        assert found.input_lengths == expected.input_lengths and found.outputs.equal(expected.outputs)


def flat(net: nn.Module, value: Tensor) -> Tensor:
    found = torch.autograd.grad(
        value, list(net.parameters()), allow_unused=True, materialize_grads=True, retain_graph=True
    )
    return torch.cat([gradient.flatten() for gradient in found])


@pytest.mark.parametrize(
    ("net", "x"),
    [
        (lambda: GPT(20, context=8, width=8, depth=1, heads=2), TOKENS),
        (lambda: ViT(8, 4, 3, 5, 8, 1, 2), torch.randn(2, 3, 8, 8)),
    ],
    ids=["gpt", "vit"],
)
def test_gradients_at_roots_of_unity_are_those_of_what_each_length_carries(net, x):
    net, labels = awake(net()), torch.tensor([1, 2])
    x = x.double() if x.is_floating_point() else x
    found, delta = path_gradients(net, x, labels), _delta(net, x, labels, F.cross_entropy)
    out = unravel(net, x, ByLength(x.unsqueeze(0)))
    parts = out.parts.lengthened(-1)
    whole = flat(net, F.cross_entropy(net(x), labels))
    for length, gradient in zip(found.lengths.tolist(), found.gradients):
        carried = sum(part for kind, part in zip(parts.kinds, parts.stack) if kind.length == length)
        assert (gradient - flat(net, (carried * delta).sum())).abs().max() < 1e-10 * whole.abs().max()
    assert (found.gradients.sum(0) + found.constant + found.through_gates - whole).abs().max() < EXACT
    for name, weight in net.named_parameters():  # queries and keys make gates, and nothing else
        if ".query." in name or ".key." in name:
            place = [n for n, _ in net.named_parameters()].index(name)
            start = sum(w.numel() for w in list(net.parameters())[:place])
            assert not (found.gradients.sum(0) + found.constant)[start : start + weight.numel()].abs().max() > 1e-12


class Twin(nn.Module):
    """A net and, where ``frozen``, the same by hand with every gate detached."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.gate = (nn.Linear(8, 8) for _ in range(3))
        self.norm, self.attention = nn.LayerNorm(8), nn.MultiheadAttention(8, 2, add_bias_kv=True, batch_first=True)
        self.groups, self.readout, self.frozen = nn.GroupNorm(2, 4), nn.Linear(8, 3), False
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:  # (B, 4, 8)
        hold = (lambda gate: gate.detach()) if self.frozen else lambda gate: gate
        x = self.layer_norm(x, hold)
        x = x + self.attend(x, hold)
        x = self.group_norm(x, hold)
        h = self.one(x)
        h = self.gelu(h, hold) + x
        h = self.two(h) * hold(F.silu(self.gate(h)))  # a gated unit
        h = h * hold((h.square().mean(-1, keepdim=True) + 1e-3).rsqrt()) * self.scale  # RMSNorm
        h = h * hold(torch.sigmoid(h.mean(1, keepdim=True)))  # squeeze-and-excitation
        return self.readout(h.mean(1))

    def layer_norm(self, x: Tensor, hold: Callable) -> Tensor:
        if not self.frozen:
            return self.norm(x)
        centred = x - x.mean(-1, keepdim=True)
        return (
            centred * hold((x.var(-1, correction=0, keepdim=True) + 1e-5).rsqrt()) * self.norm.weight + self.norm.bias
        )

    def group_norm(self, x: Tensor, hold: Callable) -> Tensor:
        if not self.frozen:
            return self.groups(x)
        rows = x.reshape(len(x), 2, 16)
        rows = (rows - rows.mean(-1, keepdim=True)) * hold((rows.var(-1, correction=0, keepdim=True) + 1e-5).rsqrt())
        return rows.reshape(x.shape) * self.groups.weight[:, None] + self.groups.bias[:, None]

    def gelu(self, h: Tensor, hold: Callable) -> Tensor:
        return h * hold(torch.special.ndtr(h)) if self.frozen else F.gelu(h)

    def attend(self, x: Tensor, hold: Callable) -> Tensor:
        a = self.attention
        if not self.frozen:
            return a(x, x, x)[0]
        q, k, v = F.linear(x, a.in_proj_weight, a.in_proj_bias).chunk(3, -1)
        k, v = (torch.cat([each, bias.expand(len(x), 1, 8)], 1) for each, bias in ((k, a.bias_k), (v, a.bias_v)))
        q, k, v = (each.unflatten(-1, (2, 4)).transpose(1, 2) for each in (q, k, v))
        pattern = hold((q @ k.mT / 2).softmax(-1))
        return a.out_proj((pattern @ v).transpose(1, 2).flatten(2))


def test_gradients_are_those_of_a_twin_whose_gates_are_detached():
    net, x, labels = awake(Twin()), torch.randn(3, 4, 8, dtype=torch.float64), torch.arange(3)
    found = path_gradients(net, x, labels)
    whole = flat(net, F.cross_entropy(net(x), labels))
    net.frozen = True
    frozen = flat(net, F.cross_entropy(net(x), labels))
    assert (whole - frozen).norm() > 0.1 * whole.norm()
    assert (found.gradients.sum(0) + found.constant - frozen).abs().max() < EXACT
    assert (found.through_gates - (whole - frozen)).abs().max() < EXACT


@torch.no_grad()
def test_every_path_of_a_block():
    """One attention and one perceptron: embedding, and around it the branches A (2 layers) and M (2 layers)."""
    net = GPT(6, context=4, width=8, depth=1, heads=2)
    for name, weight in net.named_parameters():
        weight.mul_(0 if "bias" in name or "places" in name else 1)
    net = net.double().eval()
    tokens = torch.tensor([[2, 0, 5, 1]])
    attention, perceptron = net.block_list()

    def frozen_norm(norm: nn.Module, x: Tensor) -> Callable[[Tensor], Tensor]:
        if not isinstance(norm, nn.LayerNorm):
            return lambda part: part
        root = (x.var(-1, correction=0, keepdim=True) + norm.eps).sqrt()
        return lambda part: (part - part.mean(-1, keepdim=True)) / root * norm.weight

    x = net.embedding.tokens(tokens)
    a, norm_a = attention.map, frozen_norm(attention.before, x)
    split = lambda each: each.unflatten(2, (2, 4)).transpose(1, 2)  # noqa: E731
    scores = split(a.query(norm_a(x))) @ split(a.key(norm_a(x))).mT / 2
    pattern = scores.masked_fill(torch.ones(4, 4).triu(1).bool(), -math.inf).softmax(-1)
    A = lambda part: a.out((pattern @ split(a.value(norm_a(part)))).transpose(1, 2).flatten(2))  # noqa: E731
    y = x + A(x)
    norm_m = frozen_norm(perceptron.before, y)
    first, _, second = perceptron.map
    hidden = first(norm_m(y))
    M = lambda part: second(first(norm_m(part)) * torch.special.ndtr(hidden))  # noqa: E731
    end = frozen_norm(net.last_norm, y + M(y))
    expected = [x, A(x) + M(x), M(A(x))]
    found = path_outputs(net, tokens)
    assert found.lengths.tolist() == [1, 2, 3, 4, 5]
    assert not found.outputs[1::2].any()  # of biases, which are 0 here
    for carried, by_hand in zip(found.outputs[::2], expected, strict=True):
        torch.testing.assert_close(carried, net.readout(end(by_hand)[:, -1]), rtol=EXACT, atol=EXACT)


class Unit(nn.Module):
    """w2 phi(w1 x): one path of length 1 (the last layer is the readout), beside the input's own."""

    def __init__(self, phi: Callable[[Tensor], Tensor], w1: float = 0.75, w2: float = -1.25) -> None:
        super().__init__()
        self.one, self.two, self.phi = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False), phi
        self.one.weight.data.fill_(w1), self.two.weight.data.fill_(w2)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(x + self.phi(self.one(x)))


def test_the_share_through_gates_has_a_closed_form():
    """With s = sigmoid(u), u = w1 x: the gradient of w2 silu(u) in w1 is w2 x s frozen, and w2 x u s (1 - s) through s."""
    x = torch.tensor([[1.5]], dtype=torch.float64)
    net = Unit(F.silu).double().eval()
    depth = effective_depth(net, [(x, torch.zeros(1))], loss=lambda out, _: out.sum())
    u = 0.75 * 1.5
    s = 1 / (1 + math.exp(-u))
    through, frozen = -1.25 * 1.5 * u * s * (1 - s), (-1.25 * 1.5 * s, 1.5 + u * s)  # in w1; in w1 and w2
    squares = frozen[0] ** 2 + frozen[1] ** 2
    assert depth.gate_share == pytest.approx(through**2 / (through**2 + squares), rel=1e-12)
    net.two.bias = nn.Parameter(torch.zeros(1, dtype=torch.float64))  # a readout's bias has a gradient of 1, on no path
    depth = effective_depth(net, [(x, torch.zeros(1))], loss=lambda out, _: out.sum())
    assert depth.gate_share == pytest.approx(through**2 / (through**2 + squares + 1), rel=1e-12)


@pytest.mark.parametrize(
    "phi",
    [
        *(F.relu, F.leaky_relu, torch.abs, nn.PReLU().double(), nn.RReLU()),
        *(lambda x: x.clamp_min(0), lambda x: x.clamp(min=0.0)),
    ],
)
def test_no_gradient_runs_through_gates_that_do_not_change_nearby(phi):
    net, x = Unit(phi).double().eval(), torch.tensor([[1.5], [-2.0]], dtype=torch.float64)
    labels = torch.zeros(2)
    loss = lambda out, _: out.square().mean()  # noqa: E731
    assert effective_depth(net, [(x, labels)], loss).gate_share == 0
    found, whole = path_gradients(net, x, labels, loss), flat(net, net(x).square().mean())
    assert not found.through_gates.any()
    assert (found.gradients.sum(0) + found.constant - whole).abs().max() < EXACT * whole.abs().max()


def test_batch_norm_and_relu_have_no_share():
    net = awake(CifarResNet(8, width=4))
    depth = effective_depth(net, [(torch.randn(2, 3, 8, 8, dtype=torch.float64), torch.arange(2))])
    assert depth.gate_share == 0


class Doing(nn.Module):
    """A function between two layers; its argument has zeros of both kinds, dead and cancelled."""

    def __init__(self, does: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.before, self.after, self.does = nn.Linear(6, 6), nn.LazyLinear(2), does

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.does(self.before(x) * torch.tensor([1.0, 1, 1, 1, 3, 0])).flatten(1))


def halves(x: Tensor) -> tuple[Tensor, Tensor]:
    return x[:, :3], x[:, 3:]


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu, tanh": lambda x: F.gelu(x, approximate="tanh"),
    "gelu by hand": lambda x: 0.5 * x * (1.0 + torch.tanh(0.8 * (x + 0.04 * torch.pow(x, 3.0)))),
    "silu in place": nn.SiLU(inplace=True),
    "hard swish in place": nn.Hardswish(inplace=True),
    "hard swish by hand": lambda x: x * (F.relu6(x + 3) / 6),
    "hard sigmoid": nn.Hardsigmoid(),
    "sigmoid in place": lambda x: x.sigmoid_(),
    "tanh": torch.tanh,
    "hardtanh": nn.Hardtanh(inplace=True),
    "relu6": F.relu6,
    "clamp": lambda x: x.clamp(-0.5, 0.2),
    "clamp_min": lambda x: x.clamp_min(0.1) + torch.clamp(x, max=0.2),
    "amax": lambda x: torch.stack([x.amax(1), x.view(-1, 2, 3).amin((1, 2)), x.max(1).values, torch.min(x, 1)[0]], 1),
    "maximum": lambda x: torch.maximum(x, x.flip(1)) + torch.min(x, torch.full((6,), 0.1).double()),
    "adaptive max pool": lambda x: (
        F.adaptive_max_pool1d(x.view(-1, 2, 3), 2).flatten(1) + F.adaptive_max_pool2d(x.view(-1, 1, 2, 3), 2).flatten(1)
    ),
    "leaky relu in place": lambda x: F.leaky_relu(x, 0.2, True),
    "elu": nn.ELU(0.5),
    "selu": F.selu,
    "softplus": F.softplus,
    "mish": F.mish,
    "glu": F.glu,
    "gated unit": lambda x: F.silu(halves(x)[0]) * halves(x)[1],
    "chunk, stack": lambda x: torch.stack([*x.chunk(3, 1)], 1),
    "split": lambda x: torch.cat(x.split([1, 2, 3], 1)[::-1], 1),
    "unbind": lambda x: sum(x.unbind(1)).unsqueeze(1),
    "iteration": lambda x: torch.stack([row.flip(0) for row in x]),
    "roll": lambda x: x.roll(2, 1).expand_as(x),
    "masked_fill": lambda x: x.masked_fill(torch.arange(6) > 3, 2.0),
    "where": lambda x: torch.where(x > 0, x, 0.3),
    "attention by hand": lambda x: x.unsqueeze(2).mul(x.unsqueeze(1)).softmax(-1).bmm(x.unsqueeze(2)),
    "a linear map of a pattern": lambda x: torch.bmm(
        F.linear((x[:, :, None] + x[:, None]).softmax(-1), torch.full((6, 6), 0.1).double()), x[:, :, None]
    ),
    "einsum": lambda x: torch.einsum("bij,bj->bi", (x[:, :, None] + x[:, None]).softmax(-1), x),
    "einsum with a weight": lambda x: torch.einsum("bi,ij->bj", x, torch.full((6, 4), 0.1).double()),
    "grouped queries": lambda x: F.scaled_dot_product_attention(
        x.view(-1, 2, 3, 1), x[:, None, :2, None], x[:, None, 1:3, None], is_causal=True, enable_gqa=True
    ),
    "instance norm": lambda x: F.instance_norm(x.view(-1, 2, 3)),
    "RMSNorm": nn.RMSNorm(6).double(),
    "unit vectors": lambda x: F.normalize(x, dim=1),
    "over its norm": lambda x: x / (x.norm(dim=1, keepdim=True) + 1),
    "addmm": lambda x: torch.addmm(torch.ones(4).double(), x, torch.full((6, 4), 0.1).double()),
    "baddbmm": lambda x: torch.baddbmm(x[:, :, None], x[:, :, None].softmax(1), x[:, None, :1]),
    "addcmul": lambda x: (
        torch.addcmul(torch.ones(6).double(), torch.full((6,), 0.5).double(), x) + x.addcmul(x.sigmoid(), x, value=0.3)
    ),
    "lerp": lambda x: torch.lerp(x, x.sigmoid(), 0.3) + x.lerp(torch.ones(6).double(), x.sigmoid()),
    "baddbmm by name": lambda x: (
        torch.ones(1, 1, 1).double().baddbmm(batch1=x[:, None, :1], batch2=torch.ones(3, 1, 2).double(), beta=0.5)
    ),
    "squeeze and excitation": lambda x: x * x.mean(1, keepdim=True).sigmoid().expand_as(x),
    "softmax in another's form": lambda x: x.relu() * x.softmax(1).view_as(x) + x * x.tanh().to(x),
    "constants in its form": lambda x: x + torch.full((6,), 0.1).to(x) + torch.full((1, 6), 0.2).expand_as(x),
    "alpha dropout": lambda x: F.alpha_dropout(F.selu(x), 0.1, False),
    "detached gate": lambda x: x * x.detach(),
    "empty start": lambda x: torch.cat([torch.tensor([]), x], -1),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_on_parts_adds_up(name):
    torch.manual_seed(0)
    net, x = Doing(FUNCTIONS[name]).double().eval(), torch.randn(3, 6, dtype=torch.float64)
    expected, found = net(x).detach(), path_outputs(net, x)
    assert (found.outputs.sum(0) + found.constant - expected).abs().max() < EXACT * expected.abs().max()
    assert found.from_input.abs().max() > 1e-3


@pytest.mark.parametrize(
    ("does", "words"),
    [
        (lambda x: x.softmax(1), "no path leads through a softmax: let the net return the logits"),
        (lambda x: x * x.flip(1), "multiplies two signals of the same kind"),
        (lambda x: F.relu(x) * F.relu(-x), "multiplies two signals of the same kind"),
        (lambda x: x[:, :, None] @ (x[:, None] @ x[:, :, None]), "multiplies two signals of the same kind"),
        (lambda x: 1 / x, "no path leads through __rdiv__"),
        (lambda x: x.abs().sqrt(), "no path leads through sqrt"),
        (lambda x: F.linear(x, x[:1].expand(6, 6)), "no path leads through linear"),
        (lambda x: torch.pow(x, -1), "the activation pow, which has no slope at 0"),
    ],
)
def test_what_carries_no_path_is_an_error_message(does, words):
    net = Doing(does).double().eval()
    x = torch.randn(3, 6, dtype=torch.float64)
    net(x)
    with pytest.raises(NoPaths, match=words) as error:
        path_outputs(net, x)
    assert "\n" not in str(error.value)


class Reading(nn.Module):
    """Embeds what it makes of tokens, adds positions, and reads out the mean over those that are not 0."""

    def __init__(self, made: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.made, self.embedding, self.readout = made, nn.Embedding(20, 4), nn.Linear(4, 3)
        self.positions = nn.Embedding(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        made, mask = self.made(x), (x != 0).unsqueeze(-1).double() * (x < 19)[..., None].double()
        embedded = made @ self.embedding.weight if made.is_floating_point() else self.embedding(made)
        h = embedded + self.positions(torch.arange(x.shape[1]))
        return self.readout((h.masked_fill(x[..., None] == 1, 0.0) * mask).sum(1) / mask.sum(1))


@pytest.mark.parametrize(
    "made",
    [
        lambda x: x,
        lambda x: x % 7,
        lambda x: (x > 3).long() + 2 * x.clamp(max=5),
        lambda x: torch.where(x == 2, 0, x).max(1, keepdim=True)[0].expand_as(x),
        lambda x: torch.arange(20)[x],
        lambda x: F.one_hot(x, 20).double(),
    ],
    ids=["tokens", "modulo", "sums", "where", "looked up", "one-hot"],
)
def test_paths_start_at_the_embeddings_of_what_is_made_of_tokens(made):
    net = awake(Reading(made))
    found, expected = path_outputs(net, TOKENS), net(TOKENS).detach()
    assert (found.outputs.sum(0) + found.constant - expected).abs().max() < EXACT * expected.abs().max()
    assert found.input_lengths == (1,)
    net.positions.weight.data.zero_()
    alone = path_outputs(net, TOKENS).from_input  # of which positions are no part, up to the order of a product's sums
    assert (alone - found.from_input).abs().max() < EXACT * found.from_input.abs().max()


@pytest.mark.parametrize("made", [lambda x: x + x.new_zeros(x.shape).scatter_(1, x % 8, 1), lambda x: x.tanh().zero_()])
def test_tokens_written_into_a_tensor_are_refused(made):
    with pytest.raises(NoPaths, match="writes signals"):
        path_outputs(awake(Reading(made)), TOKENS)


def test_tokens_that_are_changed_in_place_are_refused():
    net = awake(GPT(20, context=8, width=8, depth=1, heads=2))
    forward = net.forward
    net.forward = lambda x: forward(x.add_(1))
    with pytest.raises(NoPaths, match="into an existing tensor"):
        path_outputs(net, TOKENS.clone())
