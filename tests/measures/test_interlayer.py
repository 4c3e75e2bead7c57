"""Interlayer cushions against Jacobians written out, their laws, and what BatchNorm on one sample does to them."""

import copy
import itertools
import math
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torchvision
from torch import Tensor, nn
from torch.func import jacrev, jvp
from torchvision.models.resnet import BasicBlock, Bottleneck

from lightning_app.common.errors import UserError
from lightning_app.identity import shortcut
from lightning_app.measures import InterlayerStatistics, absorb, interlayer_cushions
from lightning_app.measures.noise_stability.batch_of_one import SampleNorm, normalising
from lightning_app.measures.noise_stability.block_jacobian import block_jacobian
from lightning_app.measures.noise_stability.block_norm import block_norm
from lightning_app.networks import CifarResNet, SimplifiedNet, blocks_of, span_of
from lightning_app.networks.blocks import BlockParts, Span
from lightning_app.networks.cifar_resnet import CifarBlock

# equal, widening and narrowing channels, each with other windows
SHAPES = [((3, 3), (5, 3, 1)), ((2, 4), (1, 5, 3)), ((4, 3), (3, 3, 3))]
STRIDES = [(1,), (2,), (1, 1), (2, 1), (1, 2), (2, 2), (1, 1, 1)]
MODES = ("eval", "batch1")


class AnyBlock(nn.Module):
    """A block of any number of stages that says what it is made of."""

    def __init__(self, channels=(3, 3), strides=(1, 1), windows=(3, 3, 3), skip=True, bn=True, eps=1e-5, bias=True):
        super().__init__()
        sizes = [channels[0], *[5] * (len(strides) - 1), channels[1]]
        self.convs = nn.ModuleList(
            nn.Conv2d(c, d, window, stride, window // 2, bias=bias)
            for c, d, window, stride in zip(sizes, sizes[1:], windows, strides)
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(d, eps=eps) for d in sizes[1:]) if bn else [None] * len(strides)
        for norm in self.norms if bn else ():
            nn.init.uniform_(norm.weight, -1, 1.5)
            nn.init.normal_(norm.bias)
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2)
        self.skip, self.channels, self.stride = skip, channels[1], math.prod(strides)

    def before_relu(self, x: Tensor) -> Tensor:
        out = x
        for number, (conv, norm) in enumerate(zip(self.convs, self.norms)):
            out = conv(F.relu(out) if number else out)
            out = out if norm is None else norm(out)
        return out + shortcut(x, self.channels, self.stride) if self.skip else out

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.before_relu(x))

    def block_parts(self) -> BlockParts:
        return BlockParts(tuple(zip(self.convs, self.norms)), self.skip)


class SilentBlock(AnyBlock):
    """The same; it says nothing, so it is differentiated."""

    block_parts = property()


class PairOf(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, x


def seeded(make, *args, seed: int = 0, **more) -> nn.Module:
    """A double-precision module in evaluation mode."""
    torch.manual_seed(seed)
    return make(*args, **more).double().eval()


def maps(count: int = 3, channels: int = 3, size: tuple[int, int] = (6, 7), seed: int = 1) -> Tensor:
    """What goes into a block: non-negative."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(count, channels, *size, generator=generator, dtype=torch.float64) + 0.1


def alone(block: nn.Module) -> nn.Module:
    """The block in training mode, its BatchNorms made to keep no statistics: an independent witness of batch1."""
    block = copy.deepcopy(block).train()
    for norm in block.modules():
        if isinstance(norm, nn.BatchNorm2d):
            norm.track_running_stats, norm.running_mean, norm.running_var = False, None, None
    return block


def matrices(function, x: Tensor) -> Tensor:
    """(B, outputs, inputs), sample by sample, each a batch of one."""
    return torch.stack([jacrev(lambda one: function(one[None])[0].flatten())(one).flatten(1) for one in x]).detach()


def defined(function, x: Tensor) -> tuple[Tensor, Tensor]:
    """mu with n = C H W and ||J||_F, from the definition."""
    J = matrices(function, x)
    norm, flat = torch.linalg.matrix_norm(J), x.flatten(1)
    image = torch.einsum("bij,bj->bi", J, flat).norm(dim=1)
    return math.sqrt(flat.shape[1]) * image / (norm * flat.norm(dim=1)), norm


def chain(*blocks: nn.Module) -> nn.Sequential:
    """A net, in the blocks' mode."""
    return nn.Sequential(*blocks).train(any(block.training for block in blocks))


def measure(*blocks: nn.Module, x: Tensor, name: str = "0", **options) -> InterlayerStatistics:
    """Cushions of the first block of a net that consists of blocks; x are its images."""
    net = chain(*blocks)
    return interlayer_cushions(net, [span_of(net, name)], [x], **options)[name]


def close(found: Tensor, expected: Tensor, rel: float = 1e-6) -> None:
    """Statistics keep samples as float32."""
    torch.testing.assert_close(found.double(), expected.double(), rtol=rel, atol=0)


@pytest.mark.parametrize("skip, bn", [*itertools.product([False, True], repeat=2)])
@pytest.mark.parametrize("strides", STRIDES, ids=str)
def test_hand_made_jacobians_are_those_of_autograd(strides, skip, bn):
    for (channels, windows), gated, mode in itertools.product(SHAPES, [False, True], MODES if bn else MODES[:1]):
        block = seeded(AnyBlock, channels, strides, windows, skip, bn)
        x, v = maps(2, channels[0]), maps(6, channels[0]).unflatten(0, (3, 2)) - 0.6
        function = block if gated else block.before_relu
        witness = alone(block) if gated else alone(block).before_relu
        J = matrices(function if mode == "eval" else witness, x)
        with torch.no_grad(), normalising(mode, block):
            gate = (block(x) > 0).double() if gated else None
            found = block_jacobian(block.block_parts().stages, skip, x, gate, mode == "batch1")
            norm = block_norm(found)
        torch.testing.assert_close(norm.norm, torch.linalg.matrix_norm(J), rtol=1e-10, atol=0)
        scale = float(J.abs().max())
        image, pushed = torch.einsum("bij,bj->bi", J, x.flatten(1)), torch.einsum("bij,kbj->kbi", J, v.flatten(2))
        torch.testing.assert_close(found.image.flatten(1), image, rtol=1e-9, atol=1e-12 * scale)
        torch.testing.assert_close(found.push(v).flatten(2), pushed, rtol=1e-10, atol=1e-12 * scale)


@pytest.mark.parametrize("Block", [AnyBlock, SilentBlock])
def test_a_relu_whose_input_is_exactly_0_lets_nothing_through(Block):
    """As PyTorch's derivative has it: without biases all inputs of the inner ReLU are 0 at a black image."""
    block, x = seeded(Block, bn=False, bias=False, skip=False), torch.cat([maps(1), torch.zeros_like(maps(1))])
    found = measure(block, x=x, before_relu=True)
    assert found.norms[0] > 0 == found.norms[1]


@pytest.mark.parametrize("mode, before_relu", [*itertools.product(MODES, [False, True])])
@pytest.mark.parametrize("Block", [AnyBlock, SilentBlock])
def test_cushions_are_those_of_the_definition(Block, mode, before_relu):
    block, x = seeded(Block, strides=(2, 1), channels=(2, 4)), maps(5, 2)
    witness = alone(block) if mode == "batch1" else block
    mu, norm = defined(witness.before_relu if before_relu else witness, x)
    found = measure(block, x=x, bn_mode=mode, before_relu=before_relu)
    close(found.samples, mu)
    close(found.norms, norm)
    assert found.median == pytest.approx(float(mu.median()))
    assert found.mean == pytest.approx(float(mu.mean()))
    assert found.std == pytest.approx(float(mu.std()))
    assert found.minimum == pytest.approx(float(mu.min()))
    assert found.mean_hw == pytest.approx(float(mu.mean()) / math.sqrt(2))  # two channels
    assert found.frobenius == pytest.approx(float(norm.mean()))
    assert (found.probes, found.relative_error, found.dead, found.flat) == (0, 0.0, 0, 0)
    assert int(found.histogram.counts.sum()) == 5


@pytest.mark.parametrize("mode", MODES)
def test_what_goes_into_a_block_was_normalised_the_same_way(mode):
    """The second block's input comes from the first one in the same mode, sample by sample."""
    first, second = seeded(AnyBlock), seeded(AnyBlock, seed=1)
    x = maps(4)
    one, other = (alone(first), alone(second)) if mode == "batch1" else (first, second)
    before = torch.cat([one(sample[None]) for sample in x]).detach()
    close(measure(first, second, x=x, name="1", bn_mode=mode).samples, defined(other, before)[0])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("Block", [AnyBlock, SilentBlock])
def test_a_span_of_blocks_has_the_product_of_their_jacobians(Block, mode):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Sequential(*(Block((3, 3), strides) for strides in ((1, 1), (2,), (1, 1)))))
    net = net.double().eval()
    net.block_list = lambda: list(net[0])
    x = maps(2)
    second, third = (alone(block) if mode == "batch1" else block for block in net[0][1:])

    def pair(before_relu: bool, t: Tensor) -> Tensor:
        return third.before_relu(second(t)) if before_relu else third(second(t))

    before = alone(net[0][0])(x[:1]) if mode == "batch1" else net[0][0](x[:1])
    for before_relu in (False, True):
        found = interlayer_cushions(net, [span_of(net, "block02-block03")], [x], mode, before_relu=before_relu)
        close(found["block02-block03"].samples[:1], defined(partial(pair, before_relu), before.detach())[0])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("Foreign", [BasicBlock, Bottleneck])
def test_foreign_blocks_are_differentiated(Foreign, mode):
    """torchvision's: they work in place and have a convolution in their skip."""
    wide = 2 * Foreign.expansion
    skip = nn.Sequential(nn.Conv2d(3, wide, 1, 2), nn.BatchNorm2d(wide))
    block, x = seeded(Foreign, 3, 2, stride=2, downsample=skip), maps()
    close(measure(block, x=x, bn_mode=mode).samples, defined(alone(block) if mode == "batch1" else block, x)[0])


@pytest.mark.parametrize("mode", MODES)
def test_a_block_that_changes_its_input_is_measured_at_what_it_was_given(mode):
    block, x = seeded(lambda: nn.Sequential(nn.ReLU(True), nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))), maps() - 0.6
    found = measure(block, x=x.clone(), bn_mode=mode)
    block[0].inplace = False
    close(found.samples, defined(alone(block) if mode == "batch1" else block, x)[0])


def test_no_input_passes_better_than_the_first_singular_vector():
    """mu <= sqrt(n) ||J||_2 / ||J||_F; of a linear block J is the same everywhere."""
    block, x = seeded(AnyBlock, strides=(1,), bn=False, bias=False), maps()
    J = matrices(block.before_relu, x[:1])[0]
    _, singular, vectors = torch.linalg.svd(J)
    found = measure(block, x=torch.cat([3 * vectors[:1].view_as(x[:1]), x]), before_relu=True).samples
    assert float(found[0]) == pytest.approx(math.sqrt(x[0].numel()) * float(singular[0] / J.norm()), rel=1e-6)
    assert found[0] == found.max()


@pytest.mark.parametrize("size", [(4, 4), (3, 5)])
def test_the_identity_has_the_square_root_of_n_over_its_size(size):
    found = measure(nn.Identity().eval(), x=maps(3, 4, size))
    assert found.mean == pytest.approx(1.0)
    assert found.mean_hw == pytest.approx(0.5)  # 4 channels
    assert (found.std, found.gain) == (pytest.approx(0.0, abs=1e-12), pytest.approx(1.0))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("after", ["scaled", "turned", "permuted"])
def test_scaling_and_orthogonal_maps_of_the_output_change_nothing(mode, after):
    class Then(nn.Module):
        def __init__(self, block, matrix):
            super().__init__()
            self.block, self.matrix = block, matrix

        def forward(self, x):
            return torch.einsum("dc,bchw->bdhw", self.matrix, self.block(x))

    turn = torch.linalg.qr(torch.randn(3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64))[0]
    matrix = {"scaled": -7.5 * torch.eye(3).double(), "turned": turn, "permuted": torch.eye(3).double()[[2, 0, 1]]}[
        after
    ]
    block, x = seeded(AnyBlock), maps()
    close(measure(Then(block, matrix).eval(), x=x, bn_mode=mode).samples, measure(block, x=x, bn_mode=mode).samples)


@pytest.mark.parametrize("eps", [1e-5, 1e-3, 0.1])
def test_batch_normalisation_of_one_sample_obeys_eulers_identity(eps):
    """J u = gamma uhat eps / (v + eps)."""
    norm = seeded(nn.BatchNorm2d, 3, eps=eps)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    u = maps() - 0.5
    m, v = u.mean((2, 3), keepdim=True), u.var((2, 3), keepdim=True, unbiased=False)
    gamma = norm.weight.view(-1, 1, 1).detach()
    expected = gamma * (u - m) / (v + eps).sqrt() * eps / (v + eps)
    value, image = jvp(lambda t: SampleNorm.at(t, norm).value, (u,), (u,))
    torch.testing.assert_close(image.detach(), expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(SampleNorm.at(u, norm).own_image.detach(), expected, rtol=1e-12, atol=1e-16)
    witness = torch.cat([alone(norm)(one[None]) for one in u])
    torch.testing.assert_close(value, witness, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("Block", [AnyBlock, SilentBlock])
def test_the_cushion_of_a_plain_block_is_proportional_to_eps(Block):
    """J x = sum of eps / (v + eps) terms: proportional up to eps / v. Nothing else of it depends on eps that much."""
    x = maps()
    none = 1e-300  # added to a variance in float64 it is nothing; torch 2.11 refuses 0
    means = {
        eps: measure(seeded(Block, skip=False, eps=eps), x=x, bn_mode="batch1").mean for eps in (1e-5, 1e-7, 1e-8, none)
    }
    assert means[1e-5] / means[1e-7] == pytest.approx(100, rel=1e-2)
    assert means[1e-7] / means[1e-8] == pytest.approx(10, rel=1e-4)
    assert means[none] < 1e-12


def test_in_float32_too_the_defect_of_a_plain_block_is_no_rounding_error():
    x = maps()
    precise = measure(seeded(AnyBlock, skip=False), x=x, bn_mode="batch1").samples
    for Block in (AnyBlock, SilentBlock):
        single = measure(seeded(Block, skip=False).float(), x=x.float(), bn_mode="batch1").samples
        close(single, precise, rel=1e-3)


def test_so_it_is_in_a_block_without_weights():
    block, x = nn.Sequential(nn.BatchNorm2d(3, affine=False)).eval(), torch.randn(2, 3, 6, 6)
    single = measure(block, x=x, bn_mode="batch1").samples
    close(single, measure(copy.deepcopy(block).double(), x=x.double(), bn_mode="batch1").samples, rel=1e-3)


def test_batch_normalisation_is_put_back_as_it_was():
    block, x = seeded(AnyBlock), maps()
    state, expected = copy.deepcopy(block.state_dict()), block(x)
    with pytest.raises(RuntimeError), normalising("batch1", block):
        assert not torch.allclose(block(x), expected)
        raise RuntimeError
    assert torch.equal(block(x), expected)
    assert all(torch.equal(one, other) for one, other in zip(state.values(), block.state_dict().values()))


@pytest.mark.slow
@pytest.mark.cifar10
def test_the_papers_contrast_of_residual_and_plain_blocks_is_one_of_batch_of_one_statistics(cifar10_root):
    """At initialisation already: plain 3e-7, residual .14 with n = H W; with running statistics both are near 1 / 5.6."""
    images = torch.from_numpy(np.load(cifar10_root / "cifar10" / "train_images.npy")[:20]).permute(0, 3, 1, 2).float()
    images = (images - images.mean()) / images.std()
    for residual in (True, False):
        torch.manual_seed(0)
        net = CifarResNet(20, residual).eval()
        span = span_of(net, "block05")
        alone_ = interlayer_cushions(net, [span], [images], "batch1", probes=16)["block05"]
        running = interlayer_cushions(net, [span], [images], "eval", probes=16)["block05"]
        assert (0.1 < alone_.mean_hw < 0.2) if residual else (1e-7 < alone_.mean_hw < 1e-6)
        assert 0.08 < running.mean_hw < 0.3


def test_numbers_are_a_function_of_seed_batch_and_span_alone():
    net, x = chain(seeded(AnyBlock), seeded(AnyBlock, seed=1)), maps(4)
    spans = [span_of(net, "0"), span_of(net, "1")]

    def samples(spans: list[Span], batches: list[Tensor], seed: int = 0) -> Tensor:
        return interlayer_cushions(net, spans, batches, probes=2, seed=seed)["1"].samples

    torch.manual_seed(1)
    one = samples(spans, [x, x])
    torch.manual_seed(2)
    assert torch.equal(one, samples(spans[1:], [x, x]))
    assert torch.equal(one[:4], samples(spans, [x]))
    assert not torch.equal(one[:4], one[4:])  # other probes in the next batch
    assert not torch.equal(one, samples(spans, [x, x], seed=1))


@pytest.mark.parametrize("skip", [False, True])
def test_half_precision_of_the_probes_costs_far_less_accuracy_than_their_number(skip):
    block, x = seeded(CifarBlock, 16, 32, 2, skip).float(), maps(8, 16, (16, 16)).float()
    whole, half = (measure(block, x=x, probes=4, half=half) for half in (False, True))
    assert not torch.equal(whole.norms, half.norms)
    close(half.norms, whole.norms, rel=whole.relative_error / 5)
    assert half.gain == whole.gain


@pytest.mark.parametrize(
    "Block, options", [(SilentBlock, {"probes": 2}), (AnyBlock, {"probes": 2, "bn_mode": "batch1"})]
)
def test_half_precision_is_for_what_it_is_harmless_for(Block, options):
    block, x = seeded(Block), maps()
    whole, half = (measure(block, x=x, half=half, **options) for half in (False, True))
    assert torch.equal(whole.norms, half.norms)


@pytest.mark.parametrize("Block", [AnyBlock, SilentBlock])
@pytest.mark.parametrize("probes", [None, 2])
def test_dead_inputs_and_flat_blocks_are_counted_and_left_out(Block, probes):
    block, x = seeded(Block, bn=False, skip=False), maps(4)
    alive = measure(block, x=x, probes=probes)
    found = measure(block, x=torch.cat([x, torch.zeros_like(x[:1])]), probes=probes)
    assert (found.dead, found.flat, alive.dead) == (1, 0, 0)
    assert found.samples.isnan().tolist() == [False] * 4 + [True]
    if probes is None:
        assert found.mean == pytest.approx(alive.mean)
    nn.init.constant_(block.convs[-1].bias, -100)
    nothing = measure(block, x=x, probes=probes)
    assert (nothing.dead, nothing.flat, nothing.frobenius) == (0, 4, 0.0)
    assert math.isnan(nothing.mean)
    assert math.isnan(nothing.minimum)
    both = measure(block, x=torch.cat([x, torch.zeros_like(x[:1])]), probes=probes)
    assert (both.dead, both.flat) == (1, 4)  # each sample is one of the two


class Above(nn.Module):
    """relu(2 x - 1): J is 2 where x is above 1/2, else 0."""

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(2 * x - 1)


def test_the_gain_is_of_the_samples_that_are_kept():
    x = torch.tensor([1.0, 0.25, 3.0, 0.0], dtype=torch.float64).view(4, 1, 1, 1).expand(4, 2, 3, 3)
    found = measure(Above().eval(), x=x)
    assert (found.dead, found.flat, found.gain) == (1, 1, pytest.approx(2.0))
    assert found.frobenius == pytest.approx(2 * math.sqrt(18) * 2 / 4)  # of all four


class Mixing(nn.Module):
    """x + relu(C x - 1): the identity for small x."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.relu(self.conv(x) - 1)


def test_the_relative_error_is_a_root_mean_square_over_samples():
    """Random signs know the norm of the identity exactly, so that a second sample of error 0 halves the mean square."""
    net, x = chain(seeded(Mixing)), 10 * maps(1)
    one, other = (interlayer_cushions(net, [span_of(net, "0")], xs, probes=2)["0"] for xs in ([x], [x, 1e-3 * x]))
    assert one.relative_error > 1e-4
    assert other.relative_error == pytest.approx(one.relative_error / math.sqrt(2), rel=1e-6)


def refuses(message: str, *blocks: nn.Module, x: Tensor | None = None, **options):
    with pytest.raises(UserError, match=message):
        measure(*blocks, x=maps() if x is None else x, **options)


def test_mistakes_are_error_messages():
    block = seeded(AnyBlock)
    refuses("training mode", seeded(AnyBlock).train())
    refuses("'eval' or 'batch1', got 'train'", block, bn_mode="train")
    refuses("at least 1, or None", block, probes=0)
    refuses("a block with BatchNorm, and 0 has none", seeded(AnyBlock, bn=False), bn_mode="batch1")
    refuses("called twice", block, block)
    refuses("needs running statistics", seeded(nn.BatchNorm2d, 3, track_running_stats=False))
    refuses("returns a tuple", PairOf().eval())
    dense = torchvision.models.DenseNet(4, (2, 2), 8, bn_size=2).double().eval()  # its layers take a list of maps
    with pytest.raises(UserError, match=r"features.denseblock1.denselayer2 is called with \(list\): leave it out"):
        interlayer_cushions(dense, [span_of(dense, "features.denseblock1.denselayer2")], [maps(2, 3, (32, 32))])
    refuses(
        r"real numbers, but 0 is called with \(torch.int64\)",
        seeded(nn.Embedding, 5, 2),
        x=torch.tensor([[1, 2], [3, 4]]),
    )
    refuses("more than one value per channel", block, x=maps(2, 3, (1, 1)), bn_mode="batch1")
    with pytest.raises(ValueError, match="at least one batch"):
        interlayer_cushions(chain(block), [span_of(chain(block), "0")], [])


def test_a_span_that_is_not_passed_is_refused():
    net = chain(seeded(AnyBlock))
    with pytest.raises(UserError, match="never calls elsewhere"):
        interlayer_cushions(net, [Span("elsewhere", (seeded(AnyBlock),))], [maps()])


def test_blocks_with_something_between_them_are_no_span():
    net = chain(seeded(AnyBlock), nn.Tanh().eval(), seeded(AnyBlock, seed=1))
    net.block_list = lambda: [net[0], net[2]]
    with pytest.raises(UserError, match="does something between"):
        interlayer_cushions(net, [span_of(net, "block01-block02")], [maps()])


@pytest.mark.parametrize("mode", MODES)
def test_a_block_that_misdescribes_itself_is_refused(mode):
    class Mistaken(AnyBlock):
        def block_parts(self):
            return BlockParts(super().block_parts().stages, skip=False)

    refuses(r"block_parts\(\) of a block in .* does not describe", seeded(Mistaken), bn_mode=mode)


@pytest.mark.parametrize("options", [{"padding_mode": "reflect"}, {"groups": 3}, {"dilation": 2}, {"padding": "same"}])
def test_extraordinary_convolutions_are_differentiated(options):
    block, x = seeded(AnyBlock, bn=False, skip=False), maps(2)
    block.convs[0] = nn.Conv2d(3, 3 if "groups" in options else 5, 3, **({"padding": 1} | options)).double()
    if "groups" in options:
        block.convs[1] = nn.Conv2d(3, 3, 3, padding=1).double()
    close(measure(block, x=x).samples, defined(block, x)[0])


def test_blocks_of_one_convolution_are_exact_whatever_the_probes():
    torch.manual_seed(0)
    net, images = SimplifiedNet(8, width=4).eval(), [torch.randn(3, 3, 32, 32)]
    exact, probed = (interlayer_cushions(net, blocks_of(net), images, probes=probes) for probes in (None, 1))
    for name, one in probed.items():
        assert torch.equal(one.norms, exact[name].norms)
        assert (one.probes, one.relative_error) == (0, 0)


def test_an_absorbed_batch_norm_leaves_the_cushions_of_blocks():
    torch.manual_seed(0)
    net, images = CifarResNet(8).double().eval(), torch.randn(3, 3, 16, 16, dtype=torch.float64)
    for norm in (module for module in net.modules() if isinstance(module, nn.BatchNorm2d)):
        nn.init.uniform_(norm.weight, 0.5, 1.5), nn.init.normal_(norm.bias)
    one, other = (
        interlayer_cushions(each, blocks_of(each), [images], probes=4) for each in (net, absorb(net, images[:1]))
    )
    assert {name: found.median for name, found in one.items()} == pytest.approx(
        {name: found.median for name, found in other.items()}, rel=1e-10
    )


def test_n_of_tokens_is_their_number():
    torch.manual_seed(0)
    block = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 5)).double().eval()
    found = measure(block, x=torch.randn(4, 3, 5, dtype=torch.float64))
    assert found.median_hw == pytest.approx(found.median / math.sqrt(5))


def test_batches_of_tokens_may_differ_in_length():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 5))).double().eval()
    short, long = (torch.randn(2, length, 5, dtype=torch.float64) for length in (3, 9))

    def samples(*batches):
        return interlayer_cushions(net, [span_of(net, "0")], batches)["0"].samples

    torch.testing.assert_close(samples(short, long), torch.cat([samples(short), samples(long)]))


def test_attention_is_differentiated_as_it_is():
    torch.manual_seed(0)
    block = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True).eval()
    assert measure(block, x=torch.randn(2, 3, 4), probes=2).median > 0


@pytest.mark.parametrize("times", [2, 3, 5])
def test_a_block_that_is_given_time_before_samples_is_refused(times):
    class TimeFirst(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(nn.TransformerEncoderLayer(4, 1, 8, dropout=0.0))

        def forward(self, x):
            return self.layers(x.transpose(0, 1)).mean(0)

    net = TimeFirst().eval()
    for samples in (1, 2, 3):
        with pytest.raises(UserError, match=r"layers\.0 gets . rows for . samples and . for ., as if time came first"):
            interlayer_cushions(net, blocks_of(net), [torch.randn(samples, times, 4)])


class Cumulated(nn.Module):
    """Along the first axis, forwards or backwards: the first row, or the last one, sees no other."""

    def __init__(self, backwards: bool) -> None:
        super().__init__()
        self.backwards = backwards

    def forward(self, x):
        return x.flip(0).cumsum(0).flip(0) if self.backwards else x.cumsum(0)


@pytest.mark.parametrize(
    "block", [nn.TransformerEncoderLayer(4, 1, 8, dropout=0.0), Cumulated(backwards=False), Cumulated(backwards=True)]
)
def test_a_block_that_takes_samples_for_time_is_refused(block):
    """As many rows as samples: only what comes out tells."""
    net = nn.Sequential(nn.Sequential(block)).eval()
    with pytest.raises(UserError, match=r"output of 0\.0 for a sample depends on the other"):
        interlayer_cushions(net, [span_of(net, "0.0")], [torch.randn(3, 5, 4)])


def test_a_block_that_draws_random_numbers_is_told_so():
    class Dropped(nn.Linear):
        def forward(self, x):
            return torch.dropout(super().forward(x), 0.5, train=True)

    net = nn.Sequential(nn.Sequential(Dropped(4, 4))).eval()
    with pytest.raises(
        UserError, match=r"an interlayer cushion of 0\.0 needs .* draws random numbers in evaluation mode"
    ):
        interlayer_cushions(net, [span_of(net, "0.0")], [torch.randn(3, 4)])


class Frames(nn.Module):
    """The frames of films as rows of a block."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(block)

    def forward(self, x):
        return self.layers(x.flatten(0, 1)).unflatten(0, x.shape[:2]).mean(1)


def test_a_block_that_mixes_the_rows_of_a_sample_is_refused():
    class Shift(nn.Module):
        def forward(self, x):
            films = x.unflatten(0, (-1, 5)) if len(x) % 5 == 0 else x[None]
            return (films + films.mean(1, keepdim=True)).flatten(0, 1)

    net = Frames(Shift()).eval()
    with pytest.raises(UserError, match=r"output of layers\.0 for a sample depends on the other"):
        interlayer_cushions(net, [span_of(net, "layers.0")], [torch.randn(3, 5, 4)])


@pytest.mark.parametrize("before", [lambda x: x + torch.randn_like(x), lambda x: x - x.mean(0)])
def test_what_mixes_samples_before_a_block_is_not_the_blocks(before):
    class Before(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))

        def forward(self, x):
            return self.layers(before(x)).squeeze().log_softmax(1)

    net = Before().eval()
    assert interlayer_cushions(net, [span_of(net, "layers.0")], [torch.randn(3, 4)])["layers.0"].median > 0


def test_several_rows_a_sample_have_cushions_each():
    """Frames of a film: the same as films of one frame."""
    torch.manual_seed(0)
    block = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 4))
    net, x = Frames(block).double().eval(), torch.randn(3, 5, 4, dtype=torch.float64)
    span = [span_of(net, "layers.0")]
    found, alone = (interlayer_cushions(net, span, [each])["layers.0"] for each in (x, x.reshape(15, 1, 4)))
    assert found.samples.tolist() == pytest.approx(alone.samples.tolist())


def test_a_net_for_one_number_of_samples_is_measured():
    class Fixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(4, 4))

        def forward(self, x):
            return self.layers(x.view(3, 4))

    net = Fixed().eval()
    assert interlayer_cushions(net, [span_of(net, "layers.0")], [torch.randn(3, 4)])["layers.0"].median > 0
