"""Normalisation layers are found in any net, named after the layers before them, and told apart by who takes what."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
import torchvision
from torch import Tensor, nn

from lightning_app.common.errors import UserError
from lightning_app.measures import (
    Normalisation,
    driving_force,
    effective_scale,
    lambda_statistics,
    lambda_totals,
    normalisations_of,
)
from lightning_app.measures.core.recalibrate import needs_recalibration, recalibrated
from lightning_app.measures.weights.normalisation import affine
from lightning_app.networks import CifarResNet, PreactResNet, SimplifiedNet, layers_of
from lightning_app.networks.residual_mlp import MeanStdNorm
from tests.helpers import with_moved_norms

IMAGE = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))


class OneFactor(nn.Module):
    """The paper's Eq. 22: one lambda and one sigma for a whole layer."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(-3.0))
        self.register_buffer("running_var", torch.tensor(4.0))
        self.eps = 0.0

    def forward(self, x):
        return self.weight * x / (self.running_var + self.eps).sqrt()


class Via(nn.Module):
    """A convolution and a BatchNorm with something between or beside them."""

    def __init__(self, run, conv=None, norm=None):
        super().__init__()
        self.conv = conv or nn.Conv2d(3, 4, 3, padding=1)
        self.norm = norm or nn.BatchNorm2d(4)
        self.run = run

    def forward(self, x):
        return self.run(x, self.conv, self.norm)


def found(net: nn.Module, image: Tensor = IMAGE) -> dict[str, tuple[str, str | None]]:
    return {norm.name: (norm.path, norm.into) for norm in normalisations_of(net, image)}


def absorbable(net: nn.Module) -> set[str]:
    return {norm.path for norm in normalisations_of(net, IMAGE) if norm.into is not None}


@pytest.mark.parametrize(
    ("layer", "norm", "shape", "absorbed"),
    [
        (nn.Linear(3, 4), nn.BatchNorm1d(4), (3,), True),
        (nn.Conv1d(3, 4, 3), nn.BatchNorm1d(4), (3, 8), True),
        (nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), (3, 8, 8), True),
        (nn.Conv3d(3, 4, 3), nn.BatchNorm3d(4), (3, 8, 8, 8), True),
        (nn.Conv2d(3, 4, 3), nn.SyncBatchNorm(4), (3, 8, 8), True),
        (nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, affine=False), (3, 8, 8), True),
        (nn.Conv2d(3, 4, 3), nn.InstanceNorm2d(4, track_running_stats=True), (3, 8, 8), True),
        (nn.Conv2d(3, 4, 3), torchvision.ops.FrozenBatchNorm2d(4), (3, 8, 8), True),
        (nn.Conv2d(3, 4, 3), OneFactor(), (3, 8, 8), True),
        (nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, track_running_stats=False), (3, 8, 8), False),
        (nn.Conv2d(3, 4, 3), nn.InstanceNorm2d(4), (3, 8, 8), False),
        (nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), (3, 8, 8), False),
        (nn.Conv2d(3, 4, 3), nn.LayerNorm([6, 6]), (3, 8, 8), False),
        (nn.Linear(3, 4), nn.LayerNorm(4), (3,), False),
        (nn.Linear(3, 4), nn.RMSNorm(4), (3,), False),
        (nn.ConvTranspose2d(3, 4, 3), nn.BatchNorm2d(4), (3, 8, 8), False),
        (nn.Linear(3, 4), nn.BatchNorm1d(5), (5, 3), False),  # its channels are not the linear map's
    ],
    ids=lambda part: type(part).__name__ if isinstance(part, nn.Module) else None,
)
def test_every_kind_is_found_and_absorbed_where_that_is_exact(layer, norm, shape, absorbed):
    (one,) = normalisations_of(nn.Sequential(layer, norm, nn.ReLU()), torch.randn(1, *shape))
    assert one.module is norm and one.path == "1"
    assert one.into == ("0" if absorbed else None)
    assert one.has_lambda == (getattr(norm, "weight", None) is not None)


@pytest.mark.parametrize(("kind", "offset"), [("llama.modeling_llama.Llama", 0), ("gemma.modeling_gemma.Gemma", 1)])
def test_lambda_is_what_a_layer_multiplies_by(kind, offset):
    """An RMSNorm of Gemma multiplies by 1 + w."""
    module, _, name = f"transformers.models.{kind}RMSNorm".rpartition(".")
    norm = getattr(pytest.importorskip(module), name)(4).double()
    nn.init.normal_(norm.weight, std=0.1)
    net, x = nn.Sequential(nn.Linear(3, 4), norm, nn.Linear(4, 2)).double(), torch.randn(5, 3).double()
    (found,) = normalisations_of(net, x[:1])
    assert found.offset == offset
    normed, by_hand = norm(net[0](x)), found.lambdas * F.rms_norm(net[0](x), (4,), eps=1e-6)
    torch.testing.assert_close(normed, by_hand)
    before = net(x)
    net[2].weight.data *= found.lambdas  # W diag(lambda)
    norm.weight.data.fill_(1 - offset)
    torch.testing.assert_close(net(x), before)
    force = driving_force(net, [(x, torch.arange(5) % 2)], layers_of(net), [found])
    assert force["layer01"].size == 4.0


def test_a_layer_that_only_looks_like_a_normalisation_has_its_weight():
    class Adding(nn.LayerNorm):
        def forward(self, x):
            return x + super().forward(x)

    (found,) = normalisations_of(nn.Sequential(nn.Linear(3, 4), Adding(4)), torch.randn(1, 3))
    assert found.offset == 0 and (found.lambdas == 1).all()


@pytest.mark.parametrize("net", [CifarResNet(8), PreactResNet(20, n=2)], ids=["ResNet", "PreactResNet"])
def test_rounding_to_bfloat16_decides_nothing(net):
    expected = absorbable(net)
    found = normalisations_of(net.bfloat16(), IMAGE.bfloat16())
    assert expected and {norm.path for norm in found if norm.into is not None} == expected


def test_the_scale_of_a_bfloat16_net_is_computed_in_float32():
    norm = nn.BatchNorm2d(8)
    for tensor in (norm.running_var, norm.running_mean, norm.weight.data, norm.bias.data):
        tensor.copy_(torch.rand(8) + 0.5).copy_(tensor.bfloat16())
    expected = affine(norm)
    assert all(torch.equal(*each) for each in zip(affine(copy.deepcopy(norm).bfloat16()), expected))


def test_own_nets():
    net = CifarResNet(8)
    pairs = found(net)
    assert pairs["layer01"] == ("bn0", "conv0") and pairs["layer03"] == ("blocks.0.bn2", "blocks.0.conv2")
    assert list(pairs) == [layer.name for layer in net.layers()[:-1]]
    assert found(SimplifiedNet(5)) == {}


def test_a_sum_before_a_normalisation_keeps_it_from_being_absorbed():
    """Behind a unit's sum, and where a shortcut takes the same output: only within units, and in the plain net everywhere."""
    net = PreactResNet(20, n=2)
    assert absorbable(net) == {"blocks.0.norms.0"} | {f"blocks.{unit}.norms.1" for unit in range(9)}
    plain = PreactResNet(20, n=2, residual=False)
    assert len(absorbable(plain)) == len(normalisations_of(plain, IMAGE)) == 19


@pytest.mark.parametrize(
    ("run", "absorbed"),
    [
        (lambda x, conv, norm: norm(conv(x)), True),
        (lambda x, conv, norm: F.relu_(norm(nn.Identity()(conv(x)))), True),
        (lambda x, conv, norm: _asked_for_its_form(norm, conv(x)), True),
        (lambda x, conv, norm: (lambda out: norm(out) + out)(conv(x)), False),
        (lambda x, conv, norm: (lambda out: norm(out) + out[:, :1])(conv(x)), False),
        (lambda x, conv, norm: (lambda out: norm(out) * float(out.max()))(conv(x)), False),
        (lambda x, conv, norm: (lambda out: (norm(out), {"feature": [out]}))(conv(x)), False),
        (lambda x, conv, norm: (lambda out: norm(out) + norm(out))(conv(x)), False),
        (lambda x, conv, norm: norm(conv(x)) + conv(2 * x), False),
        (lambda x, conv, norm: norm(F.relu_(conv(x))), False),
        (lambda x, conv, norm: norm(conv(x).mul_(2)), False),
        (lambda x, conv, norm: norm(conv(x).permute(0, 1, 3, 2)), False),
    ],
)
def test_whoever_else_takes_the_output_keeps_it_from_being_absorbed(run, absorbed):
    assert found(Via(run))["layer01"] == ("norm", "conv" if absorbed else None)


def _asked_for_its_form(norm, out):
    assert (
        out.dim() == len(out.shape) == out.ndim == 4 and out.size(1) == 4 and out.numel() and out.dtype and out.device
    )
    return norm(out)


class NormRelu(nn.BatchNorm2d):
    def forward(self, x):
        return F.relu(super().forward(x))


class Standardised(nn.Conv2d):
    def forward(self, x):
        return F.conv2d(x, self.weight - self.weight.mean(), self.bias, padding=1)


@pytest.mark.parametrize(
    "parts",
    [
        {"norm": NormRelu(4)},
        {"conv": Standardised(3, 4, 3)},
        {"conv": nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 4, 3))},
        {"conv": nn.utils.spectral_norm(nn.Conv2d(3, 4, 3))},
    ],
)
def test_what_is_more_than_a_convolution_and_a_normalisation_is_left_alone(parts):
    net = Via(lambda x, conv, norm: norm(conv(x)), **parts)
    ((_, into),) = found(net).values()
    assert into is None


def test_names_follow_the_forward_pass():
    """Not the order of registration; two behind one layer are numbered, one before all layers has its own name."""

    class Crossed(nn.Module):
        def __init__(self):
            super().__init__()
            self.late, self.early, self.first = nn.BatchNorm2d(4), nn.BatchNorm2d(4), nn.BatchNorm2d(3)
            self.never = nn.BatchNorm2d(4)
            self.conv1, self.conv2 = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1)

        def forward(self, x):
            x = self.conv1(self.first(x))
            return self.late(self.conv2(F.relu(self.early(x))).relu())

    assert list(found(Crossed()).items()) == [
        ("first", ("first", None)),
        ("layer01", ("early", "conv1")),
        ("layer02", ("late", None)),
    ]
    transformer = torchvision.models.VisionTransformer(32, 8, 1, 2, 16, 32)
    assert list(found(transformer)) == ["layer01", "layer05", "layer07"]  # attention has four layers


def test_the_net_is_left_as_it_was():
    net = CifarResNet(8).train()
    net.bn0.eval()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    normalisations_of(net, IMAGE)
    assert [module.training for module in (net, net.bn0, net.blocks[0].bn1)] == [True, False, True]
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in net.modules())
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())


def test_statistics_of_lambda_and_of_the_whole_net():
    norms = normalisations_of(with_moved_norms(CifarResNet(8)), IMAGE)
    norms[1].module.weight.data[:3] *= -1
    each = [lambda_statistics(norm, torch.ones(len(norm.lambdas))) for norm in norms]
    assert [(layer.negative, layer.sign_changes) for layer in each[:3]] == [(0, 0), (3, 3), (0, 0)]
    assert each[1].values.tolist() == norms[1].module.weight.tolist()
    assert lambda_statistics(norms[1]).sign_changes == 0
    whole = lambda_totals(each)
    assert (whole.negative, whole.sign_changes, whole.layers, whole.absorbable) == (3, 3, 7, 7)
    assert whole.l2 == pytest.approx(sum(norm.module.weight.norm().item() for norm in norms) / 7)


def test_a_lambda_of_0_is_not_negative():
    """As Torch7's U(0, 1) and a penalty leave some: a sign changes where an entry becomes negative or ceases to be."""
    module = nn.BatchNorm2d(4)
    module.weight.data = torch.tensor([0.0, 1.0, -1.0, -1.0])
    before = Normalisation("layer01", "1", module, None).lambdas
    module.weight.data = torch.tensor([-1.0, 0.0, 0.0, -1.0])
    found = lambda_statistics(Normalisation("layer01", "1", module, None), before)
    assert (found.negative, found.sign_changes) == (2, 2)


def test_a_lambda_that_was_pruned_has_changed_no_sign():
    module = nn.BatchNorm2d(4)
    found = lambda_statistics(Normalisation("layer01", "1", module, None), -torch.ones(6, dtype=torch.float64))
    assert (found.negative, found.sign_changes) == (0, 0)


def test_signs_of_a_net_that_has_diverged_are_not_known():
    module = nn.BatchNorm2d(4)
    before = Normalisation("layer01", "1", module, None).lambdas
    module.weight.data[0] = torch.nan
    found = lambda_statistics(Normalisation("layer01", "1", module, None), before)
    whole = lambda_totals([found, lambda_statistics(Normalisation("layer02", "2", nn.BatchNorm2d(4), None))])
    assert all(math.isnan(each.negative) and math.isnan(each.sign_changes) for each in (found, whole))


def test_the_scale_is_the_slope_of_the_net_in_evaluation_mode():
    norm = with_moved_norms(nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))).double().eval()[1]
    x = torch.randn(2, 4, 5, 5, dtype=torch.float64)
    slopes = (norm(x + 1) - norm(x)).mean((0, 2, 3))
    scale, shift = affine(norm)
    assert torch.allclose(slopes, scale, atol=1e-12)
    assert torch.allclose(norm(torch.zeros_like(x))[0, :, 0, 0], shift, atol=1e-12)
    norm.weight.data[:2] *= -1
    whole = effective_scale(Normalisation("layer01", "1", norm, None))
    assert whole == pytest.approx(float(slopes.abs().mean()))  # of their sizes
    one_factor = normalisations_of(nn.Sequential(OneFactor()), IMAGE)[0]
    assert effective_scale(one_factor) == 1.5 and one_factor.lambdas.tolist() == [-3.0]


def test_no_running_statistics_are_an_error_message():
    (norm,) = normalisations_of(nn.Sequential(nn.BatchNorm2d(3, track_running_stats=False)), IMAGE)
    assert norm.lacks_statistics
    with pytest.raises(UserError, match=r"BatchNorm2d .* keeps no running statistics: .*track_running_stats=True"):
        effective_scale(norm)
    (norm,) = normalisations_of(nn.Sequential(nn.GroupNorm(1, 3)), IMAGE)
    assert not norm.lacks_statistics and not norm.has_statistics


def test_too_few_samples_for_statistics_are_an_error_message():
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).eval()
    with pytest.raises(UserError, match=r"before training, .* 1 is not enough .*data\.probe_size"):
        recalibrated(net, torch.randn(1, 3))
    assert recalibrated(net, torch.randn(2, 3)) is not net


def test_statistics_of_some_data_are_left_as_they_are():
    """Of no data are mean 0 and variance 1 together, or a variance of 1 where there is no mean."""
    norm, own = nn.BatchNorm1d(2), MeanStdNorm(2)
    assert needs_recalibration(norm) and needs_recalibration(own)
    own.running_var.fill_(0.5)
    norm.running_mean[0] = 0.1
    assert not needs_recalibration(norm) and not needs_recalibration(own)
    norm.running_mean[0], norm.running_var[0] = 0.0, 0.9
    assert not needs_recalibration(norm)


def test_batchnorms_that_wait_for_other_processes_in_training_mode_are_never_in_it():
    """Only one process measures."""
    torch.manual_seed(0)
    net, x = CifarResNet(depth=8).eval(), torch.randn(16, 3, 32, 32)
    waiting = nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(net))
    modes = []
    for module in waiting.modules():
        if isinstance(module, nn.SyncBatchNorm):
            module.register_forward_pre_hook(lambda norm, _: modes.append(norm.training))
    torch.testing.assert_close(recalibrated(waiting, x)(x), recalibrated(net, x)(x))
    assert modes and not any(modes)
