"""Theorem 1: the net is exact, its weights are small and fall as L^-1/2, and every unit moves its point alone."""

import math
from dataclasses import astuple

import numpy as np
import pytest
import torch
from torch import Tensor

from lightning_app.common.errors import UserError
from lightning_app.theory.li_et_al.lemmas import lemma_1, lemma_2
from lightning_app.theory.li_et_al.small_norm import (
    SmallNormNet,
    apply_unit,
    moving_unit,
    perturbed_labels,
    small_norm_net,
)
from tests.theory.test_detour import separated


def points(m: int = 12, d: int = 10, rho: float = 0.6, seed: int = 0) -> tuple[Tensor, Tensor]:
    both = separated(2 * m, d, rho, seed)
    return both[:m], both[m:]


def check(net: SmallNormNet, m: int, d: int, k: int) -> None:
    R = m * k
    assert net.U.shape == net.V.shape == (R, d, d) and net.b.shape == (R, d) and net.layers == 2 * R
    assert net.error < 1e-10
    assert net.norm <= net.bound
    assert net.bound == pytest.approx(2 * math.pi / net.rho * math.sqrt(2 * m / net.layers), rel=1e-14)
    assert bool((net.b.norm(dim=1) <= net.U.flatten(1).norm(dim=1)).all())


@pytest.mark.parametrize(("m", "d", "rho"), [(12, 10, 0.6), (1, 3, 0.9), (5, 3, 0.4), (8, 4, 0.3), (10, 25, 0.9)])
@pytest.mark.parametrize("k", [1, 3, 16])
def test_the_net_is_exact_and_within_its_bound(m, d, rho, k):
    x, y = points(m, d, rho)
    net = small_norm_net(x, y, k)
    check(net, m, d, k)
    assert net.rho == pytest.approx(float(torch.pdist(torch.cat([x, y])).min()), rel=1e-15)
    assert net.rho >= rho


def test_norms_fall_with_the_square_root_of_depth():
    """The exponent of L over k = 4 to 256; a single long step is shorter than its arc, so k = 1 bends the line."""
    x, y = points()
    nets = [small_norm_net(x, y, k) for k in (4, 16, 64, 256)]
    for net, k in zip(nets, (4, 16, 64, 256)):
        check(net, 12, 10, k)
    exponent, _ = np.polyfit(np.log([net.layers for net in nets]), np.log([net.norm for net in nets]), 1)
    assert exponent == pytest.approx(-0.5, abs=0.02)
    scaled = [net.norm * net.units_per_point**0.5 for net in nets]
    assert max(scaled) / min(scaled) < 1.1  # bounded, and nearly constant


def test_every_unit_leaves_all_points_but_one_bit_for_bit():
    x, y = points(6, 5, 0.5)
    net, now = small_norm_net(x, y, 8), x
    for r, unit in enumerate(zip(net.U, net.V, net.b)):
        after, moved = apply_unit(*unit, now), r // 8
        others = torch.arange(6) != moved
        assert torch.equal(after[others], now[others])
        assert not torch.equal(after[moved], now[moved])
        now = after
    assert torch.equal(now, net(x))


def test_units_are_those_of_equation_3_and_of_width_one():
    """One hidden unit each; a forward pass by matrix products agrees as far as the net does not magnify its rounding."""
    x, y = points()
    net = small_norm_net(x, y, 4)
    out = x
    for U, V, b in zip(net.U, net.V, net.b):
        assert int(torch.linalg.matrix_rank(U)) == int(torch.linalg.matrix_rank(V)) == 1
        assert torch.count_nonzero(b) <= 1
        out = out + torch.relu(out @ U.T + b) @ V.T
    assert float((out - y).abs().max()) < 1e-9


@pytest.mark.parametrize("seed", range(5))
def test_lemma_1(seed):
    some = separated(9, 4, 0.4, seed)
    target = some[1] + 0.1 * some[2]
    found = lemma_1(some, 1, target / target.norm())
    assert found.others == 0 and found.bias <= 0
    assert np.max(astuple(found)) < 1e-12


def test_lemma_1_by_hand():
    """q = 1, from e_1 to e_2: c = sqrt(2 sqrt(2)), the hidden unit is at c/2 in e_1."""
    x, z = torch.eye(3, dtype=torch.float64)[:2]
    U, V, b = moving_unit(x, z, 1.0)
    c = 2**0.75
    torch.testing.assert_close(U[0], torch.tensor([c, 0, 0]).double(), rtol=0, atol=1e-7)
    assert float(b[0]) == pytest.approx(-c / 2) and not b[1:].any() and not U[1:].any() and not V[:, 1:].any()
    torch.testing.assert_close(V[:, 0], 2 / c * (z - x), rtol=1e-14, atol=0)
    assert float(U.norm()) == pytest.approx(float(V.norm())) == pytest.approx(c)


def test_a_point_that_stays_needs_no_unit():
    x = torch.eye(3, dtype=torch.float64)[0]
    assert not any(part.any() for part in moving_unit(x, x, 0.5))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("steps", [1, 7, 50])
def test_lemma_2(seed, steps):
    start, end, *obstacles = separated(20, 4, 0.55, seed)
    found = lemma_2(start, end, torch.stack(obstacles), 0.55, steps)
    assert np.max(astuple(found)) < 1e-12 and found.length < 0 and found.ends == 0


def test_perturbed_labels_are_distinct_unit_vectors_near_their_classes():
    labels = torch.tensor([0, 2, 2, 1, 2])
    found = perturbed_labels(labels, 4, 0.05, torch.Generator().manual_seed(0))
    torch.testing.assert_close(found.norm(dim=1), torch.ones(5).double(), rtol=0, atol=1e-15)
    assert torch.equal(found.argmax(1), labels) and float(torch.pdist(found).min()) > 0.01
    assert torch.equal(found, perturbed_labels(labels, 4, 0.05, torch.Generator().manual_seed(0)))


X, Y, Z = torch.eye(3, dtype=torch.float64)


@pytest.mark.parametrize(
    ("x", "y", "said"),
    [
        ([X, Y], [Z, 2 * Z], "differ from 1 by up to 1 and"),
        ([X, Y * math.nan], [Z, -Z], "differ from 1 by up to nan"),
        ([X, Y], [Z, X], "a smallest distance of 0"),
    ],
)
def test_assumptions_that_fail(x, y, said):
    with pytest.raises(UserError, match=said):
        small_norm_net(torch.stack(x), torch.stack(y), 1)


def test_single_precision_is_no_unit_length():
    x, y = points(3, 7)
    with pytest.raises(UserError, match="needs float64 unit vectors"):
        small_norm_net(x.float(), y.float(), 1)
