"""Divergence of twins, sign flips and growth laws: closed forms, the map's own rounding bound, synthetic series."""

import math

import pytest
import torch
from torch import nn

from lightning_app.identity import id_entries, transfer, untransfer
from lightning_app.measures import SignWatch, TwinHistory, growth, sign_flips, twin_divergence
from lightning_app.networks import SimplifiedNet

UNIT = {torch.float64: 2.0**-53, torch.float32: 2.0**-24}


def pair(dtype: torch.dtype = torch.float64, depth: int = 8) -> tuple[SimplifiedNet, SimplifiedNet]:
    """(plain, residual): T-twins, the residual one with weights that have low bits to lose."""
    torch.manual_seed(0)
    residual = SimplifiedNet(depth, width=4).to(dtype)
    with torch.no_grad():
        for w in residual.parameters():
            w.normal_(0, 0.05)
    return transfer(residual), residual


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_fresh_twins_differ_by_the_rounding_of_the_map_alone(dtype):
    plain, residual = pair(dtype)
    gap = twin_divergence(plain, residual)
    largest = max(float(residual.get_parameter(name).detach().abs().max()) for name in residual.id_weights())
    assert 0 < gap.divergence_id <= UNIT[dtype] * (1 + largest)
    assert (gap.divergence, gap.divergence_other) == (gap.divergence_id, 0)


def test_agrees_with_the_inverse_map_on_every_parameter():
    plain, residual = pair()
    torch.manual_seed(1)
    with torch.no_grad():
        for w in plain.parameters():
            w.add_(torch.randn_like(w), alpha=1e-3)
    back, here = untransfer(plain).state_dict(), residual.state_dict()
    gaps = {name: (back[name] - value).abs() for name, value in here.items()}
    on_id = max(float(gaps[name][id_entries(gaps[name])].max()) for name in residual.id_weights())
    off_id = max(
        float(gap[~id_entries(gap)].max()) if name in residual.id_weights() else float(gap.max())
        for name, gap in gaps.items()
    )
    gap = twin_divergence(plain, residual)
    assert (gap.divergence_id, gap.divergence_other) == (on_id, off_id)
    assert gap.divergence == max(on_id, off_id)


@pytest.mark.parametrize("name", ["blocks.0.conv.weight", "fc.weight"])
def test_a_lost_weight_shows(name):
    plain, residual = pair()
    with torch.no_grad():
        plain.get_parameter(name).flatten()[4] = math.nan
    assert math.isnan(twin_divergence(plain, residual).divergence)


def test_the_order_of_the_nets_matters():
    plain, residual = pair()
    for wrong in ((residual, plain), (plain, plain), (residual, residual)):
        with pytest.raises(ValueError, match="in this order"):
            twin_divergence(*wrong)


def test_nets_of_different_parameters_are_refused():
    plain, residual = pair()
    plain.extra = torch.nn.Parameter(torch.zeros(2))
    with pytest.raises(ValueError, match=r"'extra' has the shapes torch.Size\(\[2\]\) and None"):
        twin_divergence(plain, residual)


def test_flips_are_counted_and_the_furthest_pair_is_told():
    original = torch.tensor([[1.0, -1.0, 0.0, 2.0], [3.0, -1e-9, 5.0, 0.0]])
    twin = torch.tensor([[2.0, -2.0, 1e-9, -1.0], [3.0, 1e-9, 5.0, 0.0]])
    flip = sign_flips("layer03", original, twin)
    assert (flip.layer, flip.units, flip.original, flip.twin) == ("layer03", 3, 2.0, -1.0)


def relu_inputs(net: SimplifiedNet, x: torch.Tensor) -> list[torch.Tensor]:
    """An independent witness: the net's own blocks, one by one."""
    found = [net.conv0(x)]
    for block in net.blocks:
        found.append(block.before_relu(found[-1].relu()))
    return found


@pytest.mark.parametrize("twin_first", [False, True])
def test_the_watch_sees_what_the_relus_get(twin_first):
    plain, residual = pair()
    with torch.no_grad():
        plain.blocks[3].conv.bias += 0.02  # layer05, with signs that flip there and behind
    x = torch.randn(6, 3, 32, 32, dtype=torch.float64)
    watch = SignWatch(residual, plain, gap_at=5)
    for net in (plain, residual) if twin_first else (residual, plain):
        net(x)
    watch.stop()
    ours, theirs = relu_inputs(residual, x)[4], relu_inputs(plain, x)[4]
    flipped = (ours > 0) != (theirs > 0)
    assert (watch.flip.layer, watch.flip.units) == ("layer05", int(flipped.sum()))
    assert watch.flip.units > 0
    assert watch.flip.original in ours[flipped] and watch.flip.twin in theirs[flipped]
    apart = (theirs - ours).detach().abs()
    assert watch.gap == [float(apart.max()), pytest.approx(float(apart.mean()), rel=1e-12)]
    assert watch.seconds > 0


@pytest.mark.parametrize("depth", [5, 101])
def test_the_second_layer_is_compared_at_any_depth(depth):
    """Layer names have three digits from 100 layers on, and the keys have two."""
    plain, residual = pair(depth=depth)
    history, x = TwinHistory(), torch.randn(2, 3, 8, 8, dtype=torch.float64)
    watch = SignWatch(residual, plain, history.layer_to_compare(0))
    for net in (residual, plain):
        net(x)
    history.note(watch, 0)
    apart = (relu_inputs(plain, x)[1] - relu_inputs(residual, x)[1]).detach().abs().max()
    assert history.second["layer02_at_start"] == float(apart) > 0


def test_the_watch_changes_no_bit_and_leaves_nothing_behind():
    plain, residual = pair()
    x = torch.randn(4, 3, 32, 32, dtype=torch.float64)
    alone = torch.autograd.grad(residual(x).square().sum(), list(residual.parameters()))
    watch = SignWatch(residual, plain)
    watched = torch.autograd.grad(residual(x).square().sum(), list(residual.parameters()))
    watch.stop()
    assert all(torch.equal(a, b) for a, b in zip(alone, watched))
    assert not any(module._forward_hooks for net in (plain, residual) for module in net.modules())


def test_the_last_layer_has_no_relu():
    nets = [nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1)) for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    with torch.no_grad():
        for net, bias in zip(nets, (9, -9)):
            net[2].bias.fill_(bias)
    watch = SignWatch(*nets)
    outputs = [net(torch.ones(1, 2)).sign() for net in nets]
    assert outputs[0] != outputs[1]
    assert watch.flip is None


STEPS = torch.arange(1, 301)


@pytest.mark.parametrize("exponent", [0.5, 1.0, -0.3])
def test_a_power_law_is_found(exponent):
    law = growth(STEPS, 2e-16 * STEPS.double() ** exponent)
    assert law.power_exponent == pytest.approx(exponent, abs=1e-10)
    assert law.power_scale == pytest.approx(2e-16, rel=1e-10, abs=0)
    assert (law.power_steps, law.exponential_steps) == (300, 0)
    assert math.isnan(law.exponential_rate) and math.isnan(law.exponential_scale)


def test_a_change_of_law_at_the_flip_is_found():
    slow, fast = 1e-15 * STEPS.double() ** 0.5, 3e-14 * (0.05 * (STEPS.double() - 120)).exp()
    law = growth(STEPS, torch.where(STEPS < 120, slow, fast), flip_step=120)
    assert (law.power_exponent, law.exponential_rate) == (pytest.approx(0.5), pytest.approx(0.05))
    assert (law.power_scale, law.exponential_scale) == pytest.approx((1e-15, 3e-14), rel=1e-6, abs=0)
    assert (law.power_steps, law.exponential_steps) == (119, 181)
    assert max(law.power_error, law.exponential_error) < 1e-6


def test_the_error_is_that_of_the_logarithms():
    wave = torch.where(STEPS % 2 == 0, 1.1, 1 / 1.1)
    law = growth(STEPS, 1e-12 * wave, flip_step=1)
    assert law.exponential_error == pytest.approx(math.log(1.1), rel=1e-3)


def test_every_decade_of_a_power_law_weighs_the_same():
    """A kink at 10^2 in 1..10^4: half the decades follow 0, half follow 1, and equal weights would say 1."""
    steps = torch.arange(1, 10_001).double()
    law = growth(steps, 1e-15 * (steps / 100).clamp(min=1))
    assert law.power_exponent == pytest.approx(0.5, abs=0.05)


def test_zeros_and_lost_numbers_are_left_out():
    d = 1e-15 * STEPS.double()
    d[:4], d[9], d[20] = 0.0, math.nan, math.inf
    law = growth(STEPS, d)
    assert (law.power_exponent, law.power_steps) == (pytest.approx(1.0), 294)


def test_what_follows_saturation_is_left_out():
    d = (1e-9 * (0.1 * STEPS.double()).exp()).clamp(max=0.05)
    d[250:] = 1e-5  # even if it comes down again
    law = growth(STEPS, d, flip_step=1)
    assert law.exponential_rate == pytest.approx(0.1)
    assert law.exponential_steps == math.ceil(math.log(1e-3 / 1e-9) / 0.1) - 1


def test_the_history_is_fitted_over_all_epochs_and_all_parameters():
    """Not over the last epoch, nor over the ID entries, whose divergence is the smaller one here."""
    history, found = TwinHistory(), []
    for steps in STEPS.split(100):
        history.steps = [[float(s), 1e-16 * float(s) ** 0.5, 1e-17, 2.0, 3.0] for s in steps]
        found.append(history.take_steps())
    assert torch.cat([each.number for each in found]).equal(STEPS)
    assert all((each.risk_difference == 1).all() for each in found)
    numbers = history.scalars()
    assert (numbers["growth/power_exponent"], numbers["growth/power_steps"]) == (pytest.approx(0.5), 300)
    assert numbers["growth/power_scale"] == pytest.approx(1e-16, rel=1e-6, abs=0)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_two_points_make_no_law(count):
    law = growth(STEPS[:count], torch.full((count,), 1e-9))
    assert math.isnan(law.power_exponent) and law.power_steps == count
    law = growth(STEPS[:count], torch.full((count,), 1e-9), flip_step=1)
    assert math.isnan(law.exponential_rate) and law.exponential_steps == count
