"""Paths by length: sums, every path counted one by one, closed forms, and one resolution against the other."""

import copy
import itertools
import math

import pytest
import torch
import torch.nn.functional as F
import torchvision
from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock

from lightning_app.common.errors import UserError
from lightning_app.measures import NoBranches, effective_depth, path_gradients, path_outputs
from lightning_app.measures.paths import lengths
from lightning_app.measures.paths.unravel import AtRootOfUnity, unravel
from lightning_app.networks import CifarResNet, PreactResNet, ResidualMLP, ShortcutNet, SimplifiedNet

EXACT = 1e-10


def awake(net: nn.Module, seed: int = 0) -> nn.Module:
    """In float64 and evaluation mode, every vector moved from where it starts, statistics too."""
    torch.manual_seed(seed)
    for module in net.modules():
        if getattr(module, "running_var", None) is not None:
            module.running_var.uniform_(0.5, 2)
            module.running_mean.normal_() if hasattr(module, "running_mean") else None
    for weight in net.parameters():
        if weight.ndim == 1:
            weight.data.add_(0.3 * torch.randn_like(weight))
    return net.double().eval()


class Concatenating(nn.Module):
    """A dense connection, a pool that selects, in-place functions, constants, and a difference."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.third, self.readout = nn.Conv2d(8, 8, 1), nn.Linear(8 * 16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x) + 0.1, inplace=True)
        y = self.second(x)
        y -= 0.5 * x
        x = F.max_pool2d(torch.cat([x, y.relu_()], 1), 2, 2)
        x = 1 - x / 2 + self.third(F.pad(x, (1, 1, 1, 1))[:, :, 1:-1, 1:-1])
        return self.readout(F.adaptive_avg_pool2d(x, 4).flatten(1))


def two_groups() -> nn.Module:
    """torchvision's ResNet without the groups of 256 and 512 channels, which have nothing that the second has not."""
    net = torchvision.models.ResNet(BasicBlock, [1, 1, 1, 1], 10)
    net.layer3, net.layer4, net.fc = nn.Identity(), nn.Identity(), nn.Linear(128, 10)
    return net


IMAGES, VECTORS = (3, 3, 16, 16), (3, 50)
NETS = {
    "simplified": (lambda: SimplifiedNet(11, residual=True, width=4), IMAGES, range(1, 11)),
    "full": (lambda: CifarResNet(14, width=4), IMAGES, range(1, 14)),
    "preactivation 2": (lambda: PreactResNet(14, n=2, width=4), IMAGES, range(1, 14)),
    "preactivation 1": (lambda: PreactResNet(11, n=1, width=4), IMAGES, range(1, 11)),
    "shortcut": (lambda: ShortcutNet(50, mid="relu", init="xavier", bias=True), VECTORS, [0, 2, 4, 6, 8]),
    "mlp": (lambda: ResidualMLP(norm="none"), VECTORS, range(1, 11)),
    "mlp eq22": (lambda: ResidualMLP(norm="eq22", scalar=False), VECTORS, range(1, 11)),
    "mlp before": (lambda: ResidualMLP(norm="before_relu"), VECTORS, range(1, 11)),
    "mlp after": (lambda: ResidualMLP(norm="after_relu"), VECTORS, range(1, 11)),
    "dense": (Concatenating, (3, 3, 8, 8), [1, 2, 3]),
    "torchvision": (two_groups, (2, 3, 32, 32), range(1, 6)),
}


@pytest.fixture(params=NETS, scope="module")
def case(request) -> tuple[nn.Module, Tensor, list[int]]:
    make, shape, lengths = NETS[request.param]
    torch.manual_seed(0)  # else in some draws a gate switches within a finite difference
    net = awake(make())
    return net, torch.randn(shape, dtype=torch.float64), list(lengths)


def size(x: Tensor) -> float:
    return float(x.detach().abs().max())


def test_outputs_of_all_lengths_sum_to_the_outputs(case):
    net, x, lengths = case
    found = path_outputs(net, x)
    assert found.lengths.tolist() == lengths
    assert size(found.outputs.sum(0) + found.constant - net(x)) < EXACT * size(net(x))


def test_gradients_of_all_lengths_sum_to_the_gradient(case):
    net, x, lengths = case
    labels = torch.arange(len(x)) % 5
    found = path_gradients(net, x, labels)
    expected = torch.autograd.grad(F.cross_entropy(net(x), labels), list(net.parameters()))
    expected = torch.cat([gradient.flatten() for gradient in expected])
    assert found.lengths.tolist() == lengths
    assert size(found.gradients.sum(0) + found.constant - expected) < EXACT * size(expected)


def test_the_fourier_transform_over_the_roots_of_unity_says_the_same(case):
    net, x, lengths = case
    found, roots = path_outputs(net, x), lengths[-1] + 1
    with torch.no_grad():
        outs = [unravel(net, x, AtRootOfUnity(torch.zeros(2), 2 * torch.pi * k / roots)) for k in range(roots // 2 + 1)]
    stacks = [out.output_parts.stack for out in outs]
    witness = torch.fft.irfft(torch.stack([torch.complex(*stack) for stack in stacks]).conj(), roots, dim=0)
    expected = torch.zeros_like(witness)
    expected[found.lengths] = found.outputs
    expected[0] += found.constant
    assert size(witness - expected) < EXACT * size(net(x))


def test_gradients_are_derivatives_of_what_each_length_carries(case):
    """In a random direction, by finite differences that leave every gate as it is; delta held fixed."""
    net, x, _ = case
    if isinstance(net, torchvision.models.ResNet):
        pytest.skip("so many gates that some always change")
    labels = torch.arange(len(x)) % 5
    weights = [weight for weight in net.parameters() if weight.requires_grad]
    torch.manual_seed(1)
    direction = [torch.randn_like(weight) for weight in weights]
    outputs = net(x).detach().requires_grad_()
    (delta,) = torch.autograd.grad(F.cross_entropy(outputs, labels), outputs)

    def carried(step: float) -> Tensor:
        with torch.no_grad():
            for weight, along in zip(weights, direction):
                weight.add_(step * along)
            found = (path_outputs(net, x).outputs * delta).sum((1, 2))
            for weight, along in zip(weights, direction):
                weight.sub_(step * along)
        return found

    expected = (carried(1e-7) - carried(-1e-7)) / 2e-7
    found = path_gradients(net, x, labels).gradients @ torch.cat([along.flatten() for along in direction])
    assert size(found - expected) < 1e-5 * size(expected)


@torch.no_grad()
def test_every_path_one_by_one():
    """All 2^(p-1) products of masked matrices of a small net, and those that start at a bias of BatchNorm."""
    net = awake(ResidualMLP(inputs=3, width=4, blocks=5, classes=2, norm="before_relu"))
    x = torch.randn(1, 3, dtype=torch.float64)
    maps, constants, h = [], [], x[0]
    for block in net.blocks:
        scale = block.norm.weight / (block.norm.running_var + block.norm.eps).sqrt()
        shift = block.norm.bias - block.norm.running_mean * scale
        gate = (scale * (block.linear.weight @ h) + shift > 0).double()
        maps.append((gate * scale)[:, None] * block.linear.weight)
        constants.append(gate * shift)
        h = maps[-1] @ h + constants[-1] + (h if block.residual else 0)
    from_input, from_constant = (torch.zeros(6, 2, dtype=torch.float64) for _ in range(2))
    for start in range(6):  # where the path begins: at the input, or at one of five constants
        begin = x[0] if start == 0 else constants[start - 1]
        rest = range(start, 5) if start else range(1, 5)  # blocks it may pass or skip
        for passed in itertools.product((False, True), repeat=len(rest)):
            signal, length = (maps[0] @ begin, 1) if start == 0 else (begin, 1)
            for place in itertools.compress(rest, passed):
                signal, length = maps[place] @ signal, length + 1
            (from_constant if start else from_input)[length] += net.readout.weight @ signal
    found = path_outputs(net, x)
    assert tuple(found.lengths.tolist()) == found.input_lengths == (1, 2, 3, 4, 5)
    assert size(found.from_input[:, 0] - from_input[1:]) < EXACT
    assert size((found.outputs - found.from_input)[:, 0] - from_constant[1:]) < EXACT
    assert torch.allclose(found.constant[0], net.readout.bias)


@pytest.mark.parametrize("gain", [0.1, 1.0, 3.0])
def test_multiples_of_the_identity_have_binomial_paths(gain):
    """x <- x + g x, R times: f_r = binom(R, r) g^r x. Its mean length is R g / (1 + g), Littwin & Wolf's beta / (1 + beta)."""
    net = ShortcutNet(4, units=6, n=1).double().eval()
    for unit in net.units:
        unit.path[0].weight.data.copy_(gain * torch.eye(4, dtype=torch.float64))
    x = torch.randn(5, 4, dtype=torch.float64)
    found = path_outputs(net, x)
    weights = torch.tensor([math.comb(6, r) * gain**r for r in range(7)], dtype=torch.float64)
    assert found.input_lengths == tuple(range(7))
    assert torch.allclose(found.outputs, weights[:, None, None] * x, rtol=EXACT)
    depth = effective_depth(net, [(x, torch.zeros(5, dtype=torch.long))])
    assert depth.coherent == pytest.approx(6 * gain / (1 + gain))
    squares = weights.square()
    assert depth.effective == pytest.approx(float((torch.arange(7) * squares).sum() / squares.sum()))


@pytest.mark.parametrize("scalar", [True, False])
def test_the_derivatives_by_lambda_count_the_layers_of_paths(scalar):
    """Eq. 22: a path has the factor lambda of each layer that it passes, so sum_l lambda_l df/dlambda_l = sum_r r f_r."""
    net, x = awake(ResidualMLP(norm="eq22", scalar=scalar)), torch.randn(3, 50, dtype=torch.float64)
    lambdas = {name: weight.detach() for name, weight in net.named_parameters() if name.endswith("norm.weight")}
    _, expected = torch.func.jvp(lambda moved: torch.func.functional_call(net, moved, x), (lambdas,), (lambdas,))
    found = path_outputs(net, x)
    assert len(lambdas) == 10
    assert size(torch.einsum("r,rbc->bc", found.lengths.double(), found.outputs) - expected) < EXACT * size(expected)


def test_effective_depth_does_not_depend_on_batches_chunks_and_memory(monkeypatch):
    net = awake(CifarResNet(8, width=4))
    x, labels = torch.randn(5, 3, 8, 8, dtype=torch.float64), torch.arange(5)
    expected = effective_depth(net, [(x, labels)])
    squares = path_gradients(net, x, labels).gradients.square().sum(1)
    assert torch.allclose(expected.gradients, squares)
    assert expected.gradient == pytest.approx(float(expected.lengths.double() @ squares / squares.sum()))
    monkeypatch.setattr(lengths, "CHUNK", 2)
    monkeypatch.setattr(lengths, "GRADIENT_CHUNK", 2)
    monkeypatch.setattr(lengths, "MEMORY", 300_000)  # one weight alone takes more; the others fit by several
    groups = [len(names) for names in lengths._groups(net, 7, lengths.MEMORY)]
    assert 4 <= len(groups) <= 8 and min(groups) == 1 < max(groups)
    found = effective_depth(net, [(x[:3], labels[:3]), (x[3:], labels[3:])])
    for field in ("effective", "coherent", "gradient", "effective_input", "bias_share"):
        assert getattr(found, field) == pytest.approx(getattr(expected, field), rel=1e-9)
    assert torch.allclose(found.gradients, expected.gradients)
    assert found.distribution.counts.sum().item() == pytest.approx(1e6, abs=10)
    assert 1 <= found.effective <= found.longest == 7
    assert found.relative == found.effective / 7


@pytest.mark.parametrize("outputs", [1, 4])
def test_the_share_of_biases_is_negative_where_they_cancel_what_comes_from_the_input(outputs):
    """The readout R of x + W x + b with b = -W x: from the input come |R x|^2 + |R W x|^2, and all is |R x|^2.

    Less what all classes have in common; a single output is not one of several.
    """

    class Cancelling(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.readout = nn.Linear(3, 3), nn.Linear(3, outputs)

        def forward(self, x):
            return self.readout(x + self.inner(x))

    torch.manual_seed(0)
    net, x = Cancelling().double().eval(), torch.randn(1, 3, dtype=torch.float64)
    branch, R = x @ net.inner.weight.detach().T, net.readout.weight.detach()
    net.inner.bias.data = -branch[0]
    mean = torch.mean if outputs > 1 else torch.zeros_like
    past, through = ((y - mean(y)).square().sum() for y in (x @ R.T, branch @ R.T))
    found = effective_depth(net, [(x, torch.tensor([0]))])
    assert found.bias_share == pytest.approx(float(-through / past), rel=1e-12)
    assert (found.effective, found.coherent) == (pytest.approx(0, abs=1e-12), pytest.approx(0, abs=1e-12))
    assert found.effective_input == pytest.approx(float(through / (past + through)), rel=1e-12)


def test_what_all_classes_share_does_not_count():
    net = awake(ResidualMLP())
    x, labels = torch.randn(10, 50, dtype=torch.float64), torch.arange(10)
    before = effective_depth(net, [(x, labels)])
    net.readout.weight.data.add_(torch.randn(1, 20))
    after = effective_depth(net, [(x, labels)])
    assert (after.effective, after.coherent) == pytest.approx((before.effective, before.coherent))


def test_a_net_without_branches_is_refused():
    x = torch.randn(2, 3, 8, 8)
    with pytest.raises(NoBranches, match=r"every path from the input passes 7 weight layers"):
        effective_depth(SimplifiedNet(8, residual=False).eval(), [(x, torch.zeros(2, dtype=torch.long))])
    with pytest.raises(UserError, match="at least one sample"):
        effective_depth(SimplifiedNet(8).eval(), [(x[:0], torch.zeros(0, dtype=torch.long))])


class Doing(nn.Linear):
    """A layer in a net that does something else with it."""

    def __init__(self, does):
        super().__init__(4, 4)
        self.does = does

    def forward(self, x):
        return self.does(super().forward, x)


def changing_a_view(layer, x):
    x = layer(x)
    x[:, :1].mul_(2)
    return x


def filling_a_tensor(layer, x):
    filled = torch.zeros(len(x), 4)
    filled[:, 1:] = layer(x)[:, 1:]
    return layer(filled)


def adding_to_a_tensor(layer, x):
    total = torch.zeros(len(x), 4)
    total += x
    return x + layer(total)


@pytest.mark.parametrize(
    ("net", "words"),
    [
        (nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, track_running_stats=False)), r"no running statistics"),
        (nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).train(), r"in training mode"),
        (nn.Sequential(nn.Linear(4, 4), nn.Dropout()).train(), r"in training mode"),
        (Doing(lambda layer, x: F.dropout(layer(x), training=True)), r"drops units at random"),
        (nn.Sequential(nn.ConstantPad1d(1, 5.0), nn.Linear(6, 4)), "through padding with 5.0"),
        (Doing(lambda layer, x: "nothing"), "one tensor of outputs, but Doing returns a str"),
        (nn.Sequential(nn.Linear(4, 4), nn.Unflatten(1, (2, 2))), r"this net makes \(3, 2, 2\) of \(3, 4\) numbers"),
        (Doing(changing_a_view), "do not add up"),
        (Doing(filling_a_tensor), "writes signals into a part of a tensor"),
        (Doing(adding_to_a_tensor), "into an existing tensor"),
    ],
)
def test_what_cannot_be_resolved_is_an_error_message(net, words):
    with pytest.raises(UserError, match=words) as error:
        path_outputs(net.train("training" in words), torch.randn(3, 4))
    assert "\n" not in str(error.value)


def test_a_net_in_training_mode_is_refused_before_its_normalisation_has_counted_the_batch():
    net, x = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)), torch.randn(3, 4)
    before = copy.deepcopy(net.state_dict())
    for resolve in (path_outputs, lambda net, x: path_gradients(net, x, torch.zeros(3).long())):
        with pytest.raises(UserError, match="'1' is in training mode"):
            resolve(net, x)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_half_precision_is_resolved_in_float32():
    torch.manual_seed(0)
    net, x, labels = ResidualMLP(norm="none").eval(), torch.randn(4, 50), torch.arange(4)
    half = copy.deepcopy(net).bfloat16()
    rounded = copy.deepcopy(half).float()
    found = effective_depth(half, [(x.bfloat16(), labels)])
    expected = effective_depth(rounded, [(x.bfloat16().float(), labels)])
    assert (found.effective, found.gradient) == (expected.effective, expected.gradient)


class Fixup(nn.Module):
    """Scalar biases that are 0 at first, and trained (Zhang et al. 2019); no others but the readout's."""

    def __init__(self):
        super().__init__()
        self.first, self.branch = nn.Linear(50, 8, bias=False), nn.Linear(8, 8, bias=False)
        self.before, self.after = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
        self.readout = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x))
        return self.readout(torch.add(x, other=F.relu(self.branch(x + self.before)) + self.after))


def test_constants_that_are_0_and_trained_have_a_gradient():
    torch.manual_seed(0)
    net, x, labels = Fixup().double().eval(), torch.randn(3, 50, dtype=torch.float64), torch.arange(3)
    found = path_gradients(net, x, labels)
    expected = torch.autograd.grad(F.cross_entropy(net(x), labels), list(net.parameters()))
    expected = torch.cat([gradient.flatten() for gradient in expected])
    assert expected[:2].abs().min() > 1e-3  # of the two scalars, which come first
    assert (found.gradients.sum(0) + found.constant - expected).abs().max() < EXACT


@pytest.mark.parametrize("end", [nn.Flatten(), nn.Unflatten(1, (10,)), nn.Dropout()])
def test_a_readout_is_one_in_any_form(end):
    torch.manual_seed(0)
    net = ResidualMLP(norm="none").eval()
    x = torch.randn(3, 50)
    one, other = path_outputs(net, x), path_outputs(nn.Sequential(net, end).eval(), x)
    assert torch.equal(one.lengths, other.lengths) and torch.equal(one.outputs, other.outputs)


def test_frozen_nets_have_no_gradient_depth():
    net = ResidualMLP(norm="none").requires_grad_(False).eval()
    depth = effective_depth(net, [(torch.randn(3, 50), torch.arange(3))])
    assert math.isnan(depth.gradient) and 1 < depth.effective < 10


@pytest.mark.parametrize("weight", [0.0, math.nan, math.inf])
def test_a_net_whose_outputs_are_0_or_diverged_has_no_depth(weight):
    net, x = ResidualMLP(norm="none").eval(), torch.randn(3, 50)
    net.readout.weight.data.fill_(weight)
    depth = effective_depth(net, [(x, torch.arange(3))])
    assert math.isnan(depth.effective) and depth.distribution.counts.tolist() == [0] * 10


class Direct(nn.Module):
    """The inputs also go straight to a readout that has a bias."""

    def __init__(self):
        super().__init__()
        self.branch, self.readout = nn.Linear(50, 50), nn.Linear(50, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.readout(x + F.relu(self.branch(x)))


@pytest.mark.parametrize("make", [Direct, lambda: ResidualMLP(norm="none")])
def test_the_readouts_bias_belongs_to_no_length(make):
    torch.manual_seed(0)
    net, x, labels = make().double().eval(), torch.randn(3, 50, dtype=torch.float64), torch.arange(3)
    found = path_gradients(net, x, labels)
    bias = torch.autograd.grad(F.cross_entropy(net(x), labels), net.readout.bias)[0]
    assert found.gradients[:, -10:].abs().max() < EXACT  # the bias comes last
    assert size(found.constant[-10:] - bias) < EXACT and not found.constant[:-10].any()
    net.readout.bias.requires_grad_(False)
    assert not path_gradients(net, x, labels).constant.any()


def test_a_net_without_parameters_has_paths_and_no_gradients():
    x, labels = torch.randn(3, 4), torch.zeros(3, dtype=torch.long)
    found = path_outputs(nn.Flatten().eval(), x)
    assert found.lengths.tolist() == [0]
    torch.testing.assert_close(found.outputs[0], x)
    frozen, one = nn.Linear(4, 2).requires_grad_(False), nn.Linear(4, 2)
    for net, names, words in (
        (nn.Flatten(), None, "this Flatten is frozen, has no parameters"),
        (frozen, None, "this Linear is frozen"),
        (one, ["wieght"], "'wieght' is not a trained parameter of this Linear"),
    ):
        with pytest.raises(UserError, match=words):
            path_gradients(net, x, labels, names=names)
