"""Theorems 3 and 4 of Littwin & Wolf on small nets: identities against autograd, signs of steps, and what the model is."""

import math

import pytest
import torch

from lightning_app.theory.littwin_wolf.driving_force import SkipNet, _slope, skip_net, theorem_3, theorem_4

PARTS = (SkipNet.around, SkipNet.through)
BLOCKS = [(2, range(1, 2)), (3, range(1, 2)), (5, range(1, 3)), (5, range(2, 5)), (6, range(1, 6))]


def net(p: int, block: range, seed: int = 0, **more) -> SkipNet:
    return skip_net(p, block, 8, 4, 30, torch.Generator().manual_seed(seed), **more)


def forward(net: SkipNet) -> torch.Tensor:
    """Eq. 22 with true ReLUs: -mean(label Y)."""
    hidden = net.x
    for layer, W in enumerate(net.matrices):
        if layer == net.block.start:
            skipped = hidden
        hidden = net.lambdas[layer] * torch.relu(hidden @ W) / net.sigmas[layer]
        if layer == net.block.stop - 1:
            hidden = hidden + skipped
    return -(net.labels * hidden.sum(1)).mean()


@pytest.mark.parametrize(("p", "block"), BLOCKS)
@pytest.mark.parametrize("normalised", [True, False])
def test_the_two_parts_are_the_net_s_loss(p, block, normalised):
    model = net(p, block, normalised=normalised)
    assert float(model.loss()) == pytest.approx(float(forward(model)), rel=1e-12)
    assert model.m == p - len(block)
    if normalised:
        W = model.matrices[0]
        assert float(model.sigmas[0]) == pytest.approx(float(torch.relu(model.x @ W).std(0, correction=0).mean()))
    else:
        assert bool((model.sigmas == 1).all() and (model.lambdas == 1).all())


@pytest.mark.parametrize(("p", "block"), BLOCKS)
@pytest.mark.parametrize("seed", range(3))
def test_theorem_3(p, block, seed):
    model = net(p, block, seed)
    for layer in range(p):
        found = theorem_3(model, layer)
        assert max(found.identity, found.energy) < 1e-8
        assert found.skipped == (layer in block)
        assert found.growth == pytest.approx(found.predicted, rel=0.05)
        if not found.skipped:
            assert found.drive == pytest.approx(1)
            assert found.growth > 0


def test_a_weak_block_s_scale_can_be_driven_down():
    """||g_p|| << ||g_m||: the sign of the drive is that of g_p . g_m, and both occur."""
    found = [theorem_3(net(5, range(1, 3), seed, strength=0.02), 1) for seed in range(12)]
    assert {each.drive > 0 for each in found} == {True, False}
    for each in found:
        assert each.norms < 1
        assert (each.growth > 0) == (each.drive > 0)


def test_a_strong_block_s_scale_is_driven_up():
    """||g_p|| > ||g_m|| is enough, by Cauchy and Schwarz."""
    for seed in range(12):
        found = theorem_3(net(5, range(1, 3), seed, strength=50.0), 1)
        assert found.norms > 1
        assert found.drive > 0
        assert found.growth > 0


@pytest.mark.parametrize(("p", "block"), BLOCKS)
@pytest.mark.parametrize("seed", range(3))
def test_theorem_4(p, block, seed):
    found = theorem_4(net(p, block, seed, normalised=False))
    assert max(found.euler, found.identity) < 1e-8
    assert found.printed > 1e-6  # the line before has another term


@pytest.mark.parametrize(("p", "block"), BLOCKS)
def test_drive_cosine_and_bound_of_theorem_4_by_hand(p, block):
    """At the nearest net with dL/dC = 0, which differs in the first matrix alone."""
    model = net(p, block, normalised=False)
    found, m, first = theorem_4(model), model.m, model.matrices[0].numel()

    def scaled(w: torch.Tensor) -> torch.Tensor:
        return m * model.with_weights(w).around() + p * model.with_weights(w).through()

    slope = torch.func.grad(scaled)(model.w)
    slope[first:] = 0
    rest = model.w - scaled(model.w) / (slope @ slope) * slope
    g_m, g_p = (torch.func.grad(lambda w, part=part: part(model.with_weights(w)))(rest) for part in PARTS)
    a, b = float(g_m.norm()), float(g_p.norm())
    assert found.cosine == pytest.approx(float(g_m @ g_p) / (a * b), rel=1e-9)
    drive = m * a**2 + p * b**2 + (m + p) * float(g_m @ g_p)
    assert found.drive == pytest.approx(drive / float((g_m + g_p).norm()) ** 2, rel=1e-9)
    # Of all norms b = r a, those at which the drive is least have none left where the cosine is the bound, and some above it.
    r = math.sqrt(m / p)
    assert m + p * r**2 + (m + p) * r * found.bound == pytest.approx(0, abs=1e-12)


def test_slopes_of_polynomials_are_exact():
    for degree in range(1, 13):
        found = _slope(lambda t, degree=degree: (1 + t) ** degree, 0.1)
        assert float(found) == pytest.approx(degree, rel=1e-12)
