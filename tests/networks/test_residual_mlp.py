"""The residual MLP against forward passes written by hand, and the normalisation of Eq. 22 against its definition."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightning_app.common.errors import UserError
from lightning_app.networks import ResidualMLP, blocks_of, layers_of
from lightning_app.networks.residual_mlp import MeanStdNorm

NORMS = pytest.mark.parametrize("norm", ["eq22", "before_relu", "after_relu", "none"])


def net(seed: int = 0, **arguments) -> ResidualMLP:
    torch.manual_seed(seed)
    return ResidualMLP(**({"inputs": 5, "width": 4, "blocks": 3, "classes": 3} | arguments)).double()


def samples(m: int = 12, d: int = 5) -> Tensor:
    return torch.randn(m, d, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def close(ours: Tensor, theirs: Tensor, atol: float = 1e-14) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=atol)


def batch_norm(x: Tensor, norm: nn.BatchNorm1d) -> Tensor:
    """With the batch's statistics."""
    scaled = (x - x.mean(0)) / (x.var(0, correction=0) + norm.eps).sqrt()
    return norm.weight * scaled + norm.bias


def mean_std(x: Tensor, norm: MeanStdNorm) -> Tensor:
    sigma = sum(float(((unit - unit.mean()) ** 2).mean()) ** 0.5 for unit in x.detach().T) / x.shape[1]
    return norm.weight * x / math.sqrt(sigma**2 + norm.eps)


BRANCHES = {
    "eq22": lambda block, x: mean_std(F.relu(x @ block.linear.weight.T), block.norm),
    "before_relu": lambda block, x: F.relu(batch_norm(x @ block.linear.weight.T, block.norm)),
    "after_relu": lambda block, x: batch_norm(F.relu(x @ block.linear.weight.T), block.norm),
    "none": lambda block, x: F.relu(x @ block.linear.weight.T),
}


@NORMS
@pytest.mark.parametrize("residual", [True, False])
def test_it_computes_what_the_paper_says(norm, residual):
    some, x = net(norm=norm, residual=residual), samples()
    for place, parameter in enumerate(some.parameters()):  # lambdas that are not 1, shifts that are not 0
        nn.init.normal_(parameter, generator=torch.Generator().manual_seed(place))
    out = BRANCHES[norm](some.blocks[0], x)  # the first layer is not skipped
    for block in some.blocks[1:]:
        out = BRANCHES[norm](block, out) + (out if residual else 0)
    close(some(x), out @ some.readout.weight.T + some.readout.bias, atol=1e-12)


def test_scale_of_the_batch_does_not_matter():
    norm, x = MeanStdNorm(5, eps=0.0).double(), samples()
    close(norm(7 * x), norm(x))
    other = MeanStdNorm(5, eps=0.0, centred=False).double()
    close(other(7 * x), other(x))
    assert not torch.allclose(other(x), norm(x), rtol=1e-3)


def test_uncentred_is_the_root_mean_square():
    x = samples() + 3
    sigma = sum(float((unit**2).mean()) ** 0.5 for unit in x.T) / 5
    close(MeanStdNorm(5, eps=0.0, centred=False).double()(x), x / sigma)


def test_evaluation_uses_what_training_saw():
    norm, x = MeanStdNorm(5, momentum=1.0).double(), samples()
    trained = norm(x)
    norm.eval()
    close(norm(x), trained)
    close(norm(2 * x), 2 * trained)  # frozen: linear
    scale = norm.weight / (norm.running_var + norm.eps).sqrt()
    close(norm(x), scale * x)


def test_sigma_is_remembered_as_batch_norm_remembers_variances():
    norm, bn, x = MeanStdNorm(1).double(), nn.BatchNorm1d(1).double(), samples(d=1)
    for batch in (x, 2 * x, 5 * x):
        norm(batch), bn(batch)
    expected = 0.9**3 + (bn.running_var - 0.9**3) * 11 / 12  # BatchNorm remembers the unbiased ones
    close(norm.running_var, expected)


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("scalar", [True, False])
def test_gradients_go_through_sigma(centred, scalar):
    norm = MeanStdNorm(4, scalar=scalar, centred=centred).double()
    x = samples(d=4).requires_grad_()
    assert norm.weight.shape == (1 if scalar else 4,)
    assert torch.autograd.gradcheck(lambda x, _: norm(x), (x, norm.weight))


@pytest.mark.parametrize("centred", [True, False])
def test_dead_units_have_finite_gradients(centred):
    x = samples()
    x[:, 1] = 0.0
    for batch in (x, torch.zeros_like(x)):  # one unit, and the whole layer
        batch = batch.clone().requires_grad_()
        MeanStdNorm(5, centred=centred).double()(batch).sum().backward()
        assert batch.grad.isfinite().all()


def test_in_bfloat16_it_is_remembered_in_float32():
    norm, x = MeanStdNorm(5, momentum=1.0), samples().to(torch.bfloat16)
    norm(x)
    assert norm.running_var.dtype == torch.float32
    assert float(norm.running_var) == pytest.approx(float(x.float().std(0, correction=0).mean() ** 2), rel=0.02)


@NORMS
def test_layers_and_blocks(norm):
    some = net(norm=norm)
    layers, state = layers_of(some), some.state_dict()
    assert [layer.name for layer in layers] == ["layer01", "layer02", "layer03", "layer04"]
    assert [layer.weight_name for layer in layers][2:] == ["blocks.2.linear.weight", "readout.weight"]
    assert all(state[layer.weight_name].data_ptr() == layer.weight.data_ptr() for layer in layers)
    assert not any(layer.skip or layer.has_id for layer in layers)
    assert [block.modules for block in blocks_of(some)] == [(block,) for block in some.blocks]
    assert [block.residual for block in some.blocks] == [False, True, True]


@pytest.mark.parametrize("norm", ["before_relu", "after_relu", "eq22"])
def test_torch7_starts_uniform_weights_and_factors(norm):
    torch.manual_seed(1)
    some = ResidualMLP(inputs=300, width=100, norm=norm, start="torch7", scalar=False)
    for layer in some.layers():
        entries = layer.weight.detach().double() * layer.module.in_features**0.5
        assert 0.98 < entries.abs().max() <= 1 and abs(entries.var() - 1 / 3) < 0.03
    factors = torch.cat([block.norm.weight for block in some.block_list()])
    assert 0 <= factors.min() < 0.02 and 0.98 < factors.max() <= 1 and abs(factors.mean() - 0.5) < 0.05
    assert 0 < some.readout.bias.abs().max() <= 0.1


@pytest.mark.parametrize(("gain", "norm"), [(1.0, "none"), (0.5, "eq22"), (2**0.5, "before_relu")])
def test_weights_start_normal_with_the_gain_over_the_square_root_of_the_inputs(gain, norm):
    torch.manual_seed(0)
    some = ResidualMLP(inputs=300, width=100, gain=gain, norm=norm)
    for layer in some.layers():
        entries = layer.weight.detach().double() * layer.module.in_features**0.5 / gain
        assert float(entries.mean()) == pytest.approx(0, abs=5 / entries.numel() ** 0.5)
        assert float(entries.var()) == pytest.approx(1, abs=5 * (2 / entries.numel()) ** 0.5)
    assert (some.readout.bias == 0).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"inputs": 0}, "inputs of ResidualMLP must be at least 1, got 0"),
        ({"width": -1}, "width of ResidualMLP must be at least 1, got -1"),
        ({"blocks": 0}, "blocks of ResidualMLP must be at least 1, got 0"),
        ({"classes": 0}, "classes of ResidualMLP must be at least 1, got 0"),
        ({"norm": "layer"}, "norm of a residual MLP must be one of eq22, before_relu, after_relu, none, got 'layer'"),
        ({"start": "kaiming"}, "start of a residual MLP must be one of normal, torch7, got 'kaiming'"),
        ({"gain": 0.0}, "gain of a residual MLP must be positive, got 0.0"),
        ({"gain": float("nan")}, "positive, got nan"),
    ],
)
def test_what_does_not_exist(arguments, message):
    with pytest.raises(UserError, match=message):
        ResidualMLP(**arguments)
