"""Laws of every measure: it leaves no trace, and what it says depends on the net, the samples and its seed alone."""

import copy
import dataclasses
import math

import pytest
import torch
from torch import Tensor, nn

from lightning_app.common.errors import UserError
from lightning_app.measures import (
    CutNet,
    Hessian,
    contraction,
    driving_force,
    effective_depth,
    interlayer_cushions,
    minimal_cushions,
    noise_injection,
    normalisations_of,
    path_gradients,
    path_outputs,
    probe_forward,
    smoothness,
    spectrum,
)
from lightning_app.networks import CifarResNet, blocks_of, layers_of
from lightning_app.networks.residual_mlp import MeanStdNorm
from tests.helpers import with_moved_norms

X = torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
LABELS = torch.arange(6) % 10
WHOLE, PARTS = [(X, LABELS)], [(X[:2], LABELS[:2]), (X[2:], LABELS[2:])]


def interlayer(mode, probes):
    return lambda net, pairs, seed: interlayer_cushions(
        net, blocks_of(net), [x for x, _ in pairs], mode, probes, seed=seed
    )


MEASURES = {
    "probe": lambda net, pairs, seed: probe_forward(net, layers_of(net), pairs),
    "cuts": lambda net, pairs, seed: (lambda cuts: cuts.push(1, cuts.signals[1]))(CutNet(net, pairs[0][0])),
    "contraction": lambda net, pairs, seed: contraction(net, pairs),
    "minimal cushions": lambda net, pairs, seed: minimal_cushions(net, pairs, seed=seed),
    "smoothness": lambda net, pairs, seed: smoothness(net, pairs, seed=seed),
    "noise": lambda net, pairs, seed: noise_injection(net, pairs, (0.1,), seed=seed),
    "interlayer": interlayer("eval", None),
    "interlayer, batch1": interlayer("batch1", None),
    "interlayer, probes": interlayer("eval", 2),
    "hessian": lambda net, pairs, seed: (lambda H: H @ torch.ones(H.size, dtype=torch.float64))(Hessian(net, pairs)),
    "hessian, double": lambda net, pairs, seed: Hessian(net, pairs, double=True).gradient(),
    "spectrum": lambda net, pairs, seed: spectrum(Hessian(net, pairs), steps=4, seed=seed),
    "force": lambda net, pairs, seed: driving_force(net, pairs, layers_of(net), normalisations_of(net, X[:1])),
    "depth": lambda net, pairs, seed: effective_depth(net, pairs),
    "paths": lambda net, pairs, seed: (path_outputs(net, X[:2]), path_gradients(net, X[:2], LABELS[:2])),
    "normalisations": lambda net, pairs, seed: [norm.lambdas for norm in normalisations_of(net, X[:1])],
}
EVERY = pytest.mark.parametrize("measure", MEASURES.values(), ids=MEASURES)
SEEDED = ("minimal cushions", "smoothness", "noise", "interlayer, probes", "spectrum")
OF_SAMPLES = ("probe", "contraction", "noise", "interlayer", "interlayer, batch1", "hessian", "force", "depth")


def net() -> CifarResNet:
    torch.manual_seed(0)
    return with_moved_norms(CifarResNet(8, width=4)).double().eval()


def numbers(found) -> Tensor:
    """All numbers in dataclasses, lists and dictionaries, as one vector."""
    if dataclasses.is_dataclass(found):
        found = [getattr(found, field.name) for field in dataclasses.fields(found)]
    if isinstance(found, dict):
        found = list(found.values())
    if isinstance(found, (list, tuple)):
        return torch.cat([numbers(each) for each in found]) if found else torch.empty(0).double()
    return torch.as_tensor(math.nan if isinstance(found, str) else found).detach().double().flatten()


def same(one, other, **more) -> None:
    torch.testing.assert_close(numbers(one), numbers(other), equal_nan=True, **({"rtol": 0, "atol": 0} | more))


def state_of(some: nn.Module) -> list:
    modules = [(sorted(module.__dict__), module.training, len(module._forward_hooks)) for module in some.modules()]
    hooks = [len(module._forward_pre_hooks) for module in some.modules()]
    grads = [(parameter.grad, parameter.requires_grad) for parameter in some.parameters()]
    return [modules, hooks, grads, torch.get_rng_state().tolist()]


@EVERY
def test_nothing_is_left_behind(measure):
    some, x = net(), X.clone()
    before, tensors = state_of(some), copy.deepcopy(some.state_dict())
    found = measure(some, WHOLE, 0)
    assert state_of(some) == before
    assert all(torch.equal(value, tensors[name]) for name, value in some.state_dict().items())
    assert torch.equal(X, x)
    values = (
        [getattr(found, field.name) for field in dataclasses.fields(found)] if dataclasses.is_dataclass(found) else ()
    )
    assert not any(isinstance(value, Tensor) and (value.requires_grad or type(value) is not Tensor) for value in values)


@EVERY
def test_a_compiled_net_is_measured_as_what_it_is(measure):
    some = net()
    expected = measure(some, WHOLE, 0)
    with torch.compiler.set_stance("fail_on_recompile"):
        same(measure(torch.compile(some), WHOLE, 0), expected)
    some.compile(backend="eager")
    same(measure(some, WHOLE, 0), expected)


@pytest.mark.parametrize("name", SEEDED)
def test_the_seed_decides_and_the_global_random_state_does_not(name):
    some = net()
    one = MEASURES[name](some, WHOLE, 1)
    torch.manual_seed(9)
    torch.set_default_dtype(torch.float64)
    try:
        same(MEASURES[name](some, WHOLE, 1), one)
    finally:
        torch.set_default_dtype(torch.float32)
    assert not torch.equal(numbers(MEASURES[name](some, WHOLE, 2)).nan_to_num(), numbers(one).nan_to_num())


@pytest.mark.parametrize("name", OF_SAMPLES)
def test_batches_are_samples(name):
    same(MEASURES[name](net(), PARTS, 0), MEASURES[name](net(), WHOLE, 0), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "headline"),
    [
        ("contraction", lambda found: found.maximum),
        ("smoothness", lambda found: found.rho),
        ("noise", lambda found: found["relative"].median[0, 0]),
        ("interlayer", lambda found: found["block02"].mean),
        ("interlayer, batch1", lambda found: found["block02"].median),
        ("interlayer, probes", lambda found: found["block02"].mean),
        ("depth", lambda found: found.effective),
    ],
)
@pytest.mark.parametrize("weight", [math.nan, math.inf])
def test_a_diverged_net_shows(name, headline, weight):
    some = net()
    some.conv0.weight.data[0, 0, 0, 0] = weight
    assert math.isnan(headline(MEASURES[name](some, WHOLE, 0)))


class DropPath(nn.Module):
    """As timm's."""

    def __init__(self) -> None:
        super().__init__()
        self.drop_prob = 0.1


@pytest.mark.parametrize("measure", ["probe", "cuts", "contraction", "interlayer", "hessian", "depth"])
@pytest.mark.parametrize(
    "part",
    [
        nn.BatchNorm2d(3),
        nn.RReLU(),
        nn.LSTM(2, 2, 2, dropout=0.1),
        nn.MultiheadAttention(2, 1, dropout=0.1),
        DropPath(),
        MeanStdNorm(2),
    ],
    ids=lambda part: type(part).__name__,
)
def test_a_net_with_a_part_in_training_mode_is_refused(measure, part):
    some = net()
    some.part = part
    part.train()
    with pytest.raises(UserError, match=r"'part.*' is in training mode: call net.eval"):
        MEASURES[measure](some, WHOLE, 0)
