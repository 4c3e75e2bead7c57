"""Which weights can be measured: found by following a sample, and a reason for every other one."""

from functools import partial
from unittest.mock import Mock

import pytest
import torch
import torchvision
from torch import nn
from torch.nn.utils import prune

from lightning_app.common.calls import Inputs
from lightning_app.common.errors import UserError
from lightning_app.networks import CifarResNet, SimplifiedNet, layers_of, measurable, survey
from lightning_app.networks.layers import ROLES


def reasons(net: nn.Module, *shape: int) -> dict[str, str]:
    return {found.path: found.reason for found in survey(net, torch.zeros(1, *shape))}


@pytest.mark.parametrize(
    ("net", "shape"),
    [
        (SimplifiedNet(8, residual=True, width=4), (3, 32, 32)),
        (CifarResNet(8, residual=False), (3, 32, 32)),
        (torchvision.models.resnet18(num_classes=3), (3, 32, 32)),
        (torchvision.models.densenet121(num_classes=3), (3, 32, 32)),
    ],
)
def test_every_layer_of_a_convolutional_net_has_a_cushion(net, shape):
    found = survey(net, torch.zeros(1, *shape))
    assert [one.reason for one in found] == [""] * len(found)
    assert measurable(found) == layers_of(net)
    weights = {id(weight) for weight in net.parameters() if weight.ndim > 1}
    assert len(found) == len(weights)


def test_layers_come_in_the_order_of_the_forward_pass_and_keep_their_registered_names():
    class Backwards(nn.Module):
        def __init__(self):
            super().__init__()
            self.last, self.first = nn.Linear(3, 2), nn.Linear(4, 3)

        def forward(self, x):
            return self.last(self.first(x))

    found = survey(Backwards(), torch.zeros(1, 4))
    assert [(one.path, one.layer.name) for one in found] == [("first", "layer02"), ("last", "layer01")]
    assert [layer.name for layer in measurable(found)] == ["layer01", "layer02"]


def test_what_has_no_cushion_has_a_reason():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.shared, self.unused = nn.Linear(4, 4), nn.Linear(4, 4)
            self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
            self.position = nn.Parameter(torch.zeros(2, 4))
            self.bilinear = nn.Bilinear(4, 4, 4)

        def forward(self, x):
            x = self.shared(self.shared(x)) + self.position
            x = self.attention(x, x, x)[0]
            return self.bilinear(x, x)

    said = reasons(Odd(), 2, 4)
    assert said.keys() == {"shared", "unused", "attention", "position", "bilinear"}
    assert said["shared"] == said["attention"] == ""
    assert "never calls it" in said["unused"]
    assert "this is a Bilinear" in said["bilinear"]
    assert "no layer holds" in said["position"]
    rows = [(one.layer.name, one.kind) for one in survey(Odd(), torch.zeros(1, 2, 4)) if one.layer]
    assert rows[:2] == [("layer01", "Linear"), ("layer01_2", "Linear")]
    assert [kind for _, kind in rows[2:6]] == [f"MultiheadAttention {role}" for role in ROLES]


@pytest.mark.filterwarnings("ignore:.*weight_norm.*is deprecated")
def test_what_a_weight_is_computed_from_is_no_weight_beside_it():
    wrapped = nn.utils.weight_norm, nn.utils.spectral_norm, partial(prune.l1_unstructured, name="weight", amount=1)
    net = nn.Sequential(
        *(wrap(nn.Linear(4, 4)) for wrap in wrapped), nn.utils.parametrizations.orthogonal(nn.Linear(4, 4))
    )
    assert reasons(net, 4) == dict.fromkeys("0123", "")


def test_a_layer_whose_input_has_other_rows_than_samples_has_none():
    flat = nn.Sequential(nn.Flatten(0, 1), nn.Linear(4, 2), nn.Unflatten(0, (-1, 3)))
    assert "has 3 rows for 1 samples" in reasons(flat, 3, 4)["1"]


def test_padding_that_reads_inputs_twice_and_other_dimensions_are_named():
    circular = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1, padding_mode="circular"), nn.Flatten(), nn.Linear(32, 2))
    assert "pads by 'circular'" in reasons(circular, 1, 4, 4)["0"]
    one_dimension = nn.Sequential(nn.Conv1d(1, 2, 3, padding=1, padding_mode="reflect"))
    assert "pads by 'reflect'" in reasons(one_dimension, 1, 4)["0"]


def test_a_survey_leaves_no_trace():
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Dropout(), nn.Flatten(), nn.Linear(8, 2))
    net[1].eval()
    before, drawn = {name: tensor.clone() for name, tensor in net.state_dict().items()}, torch.get_rng_state()
    survey(net, torch.randn(2, 1, 4, 4, generator=torch.Generator().manual_seed(0)))
    assert torch.equal(torch.get_rng_state(), drawn)
    assert [module.training for module in net] == [True, False, True, True, True]
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())
    assert not any(module._forward_pre_hooks for module in net.modules())


def test_a_sample_that_the_net_cannot_take_is_an_error():
    with pytest.raises(UserError, match=r"cannot take samples of shape \(5,\): .*mat1 and mat2"):
        survey(nn.Sequential(nn.Linear(4, 3)), torch.zeros(1, 5))
    with pytest.raises(
        UserError, match=r"samples of shape \(4,\) and \(4,\): .*takes 2 positional arguments but 3 were given"
    ):
        survey(nn.Sequential(nn.Linear(4, 3)), Inputs([torch.zeros(1, 4), torch.zeros(1, 4)]))


def test_memory_that_runs_out_is_no_fault_of_the_sample():
    net = nn.Sequential(Checking(1, 2, 3))
    net[0].register_forward_hook(Mock(side_effect=torch.OutOfMemoryError("CUDA out of memory.")))
    with pytest.raises(torch.OutOfMemoryError):
        survey(net, torch.zeros(1, 1, 6, 6))


@pytest.mark.parametrize("net", [nn.Linear(4, 2), nn.Conv2d(1, 2, 3)])
def test_a_net_may_be_one_layer(net):
    (found,) = survey(net, torch.zeros(1, *((4,) if isinstance(net, nn.Linear) else (1, 5, 5))))
    assert (found.path, found.reason) == ("", "") and measurable((found,)) == layers_of(net)
    assert net.get_parameter(found.layer.weight_name) is net.weight


def test_a_parametrised_weight_is_one_weight():
    net = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), nn.ReLU(), nn.Linear(3, 2))
    assert reasons(net, 4) == {"0": "", "2": ""}


class Standardised(nn.Conv2d):
    """As timm's StdConv2d."""

    def forward(self, x):
        weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        return nn.functional.conv2d(x, weight, self.bias, self.stride, self.padding)


class Padding(nn.Conv2d):
    """As timm's Conv2dSame, which pads its input by itself."""

    def _conv_forward(self, x, weight, bias):
        return super()._conv_forward(nn.functional.pad(x, (0, 1, 0, 1)), weight, bias)


class Checking(nn.Conv2d):
    """As detectron's: another forward, the same map."""

    def forward(self, input):
        assert input.ndim == 4
        return super().forward(input)


class Scaled(nn.Embedding):
    def forward(self, tokens):
        return 8 * super().forward(tokens)


@pytest.mark.parametrize("kind", [Standardised, Padding])
def test_a_subclass_that_computes_something_else_has_no_cushion(kind):
    torch.manual_seed(0)
    net = nn.Sequential(kind(1, 2, 3), Checking(2, 2, 1))
    said = {found.path: found.reason for found in survey(net, torch.randn(1, 1, 6, 6))}
    assert said == {"0": f"its class {kind.__name__} uses the weight in another way than Conv2d", "1": ""}
    (found,) = survey(nn.Sequential(Scaled(3, 2)), torch.tensor([[1, 2]]))
    assert "class Scaled uses the weight in another way" in found.reason


def test_a_class_of_the_same_name_is_named_with_its_module():
    (found,) = survey(nn.Sequential(type("Conv2d", (Standardised,), {})(1, 2, 3)), torch.randn(1, 1, 6, 6))
    assert found.reason == f"its class {__name__}.Conv2d uses the weight in another way than Conv2d"
    passing = type("Linear", (nn.Bilinear,), {"forward": lambda self, x: x})
    (found,) = survey(nn.Sequential(passing(4, 4, 3)), torch.randn(1, 4))
    assert found.reason.endswith(f"this is a {__name__}.Linear")


class Hyper(nn.Module):
    """A layer that computes the weight of another one, which has one of its own besides."""

    def __init__(self, dtype: torch.dtype | None = None, poisoned: bool = False) -> None:
        super().__init__()
        self.main, self.weights, self.dtype = nn.Linear(4, 3, bias=False), nn.Linear(4, 12), dtype
        if poisoned:
            self.main.weight.data[0, 0] = torch.nan

    def forward(self, x):
        copied = self.dtype is not None
        weight = self.main.weight.to(self.dtype, copy=True) if copied else self.weights(x).mean(0).view(3, 4)
        return torch.func.functional_call(self.main, {"weight": weight}, (x.to(weight.dtype),))


class Together(nn.Module):
    """An ensemble, whose members run in one pass."""

    def __init__(self) -> None:
        super().__init__()
        self.parts, self.last = nn.ModuleList(nn.Linear(4, 3) for _ in range(2)), nn.Linear(3, 3)

    def forward(self, x):
        states = torch.func.stack_module_state([*self.parts])
        outputs = torch.vmap(lambda state: torch.func.functional_call(self.parts[0], state, (x,)))(states)
        return self.last(outputs.mean(0))


def test_a_layer_that_is_called_with_another_weight_than_its_own_has_no_cushion():
    assert "with another weight in place of its own" in reasons(Hyper(), 4)["main"]
    for copied in (Hyper(torch.float32), Hyper(torch.bfloat16), Hyper(torch.float32, poisoned=True)):
        assert reasons(copied, 4)["main"] == ""
    found = reasons(Together(), 4)
    assert "with another weight in place of its own" in found["parts.0"] and found["last"] == ""


class Forwarding(nn.ConvTranspose2d):
    def forward(self, x):
        return super().forward(x)


class Positions(nn.Embedding):
    """As of transformers: called with tokens, looked up by their places."""

    def forward(self, tokens):
        return super().forward(torch.arange(tokens.shape[1]).expand(tokens.shape))


def test_a_subclass_is_compared_whatever_it_puts_out():
    (found,) = survey(Forwarding(1, 2, 3), torch.randn(1, 1, 4, 4))
    assert found.reason == ""
    diverged = Checking(1, 2, 3)
    nn.init.constant_(diverged.weight, torch.nan)
    (found,) = survey(diverged, torch.randn(1, 1, 4, 4))
    assert found.reason == ""
    (found,) = survey(nn.Sequential(Positions(4, 2)), torch.tensor([[50, 70]]))  # no rows of its weight
    assert "class Positions uses the weight in another way" in found.reason


def test_the_tenth_call_of_a_layer_comes_after_the_ninth():
    names = [layer.name for layer in measurable(survey(nn.Sequential(*[nn.Linear(2, 2)] * 11), torch.zeros(1, 2)))]
    assert names == ["layer01", *(f"layer01_{call}" for call in range(2, 12))]
