"""Paths around obstacles: the case that can be worked out by hand, and random ones against the promised bounds."""

import math

import pytest
import torch
from torch import Tensor

from lightning_app.theory.li_et_al.detour import detour

X, Y, Z = torch.eye(3, dtype=torch.float64)


def separated(count: int, d: int, rho: float, seed: int) -> Tensor:
    """Random unit vectors, (count, d), at distances of at least rho."""
    generator, found = torch.Generator().manual_seed(seed), torch.empty(0, d, dtype=torch.float64)
    while len(found) < count:
        point = torch.randn(d, generator=generator, dtype=torch.float64)
        point = point / point.norm()
        if not len(found) or float((found - point).norm(dim=1).min()) >= rho:
            found = torch.cat([found, point[None]])
    return found


def test_without_obstacles_it_is_the_great_arc():
    path = detour(X, Y, torch.empty(0, 3, dtype=torch.float64), 0.5)
    assert path.length == pytest.approx(math.pi / 2, rel=1e-15)
    s = math.pi / 8 * torch.arange(5, dtype=torch.float64)
    expected = torch.stack([s.cos(), s.sin(), 0 * s], 1)
    torch.testing.assert_close(path.points(4), expected, rtol=0, atol=1e-15)


@pytest.mark.parametrize("rho", [0.1, 0.679, 0.76])
def test_an_obstacle_right_on_the_way(rho):
    """Half the edge of the cap instead of its diameter: pi sin(phi) instead of 2 phi, phi = 2 asin(rho/4)."""
    middle, phi = (X + Y) / math.sqrt(2), 2 * math.asin(rho / 4)
    path = detour(X, Y, middle[None], rho)
    assert path.length == pytest.approx(math.pi / 2 - 2 * phi + math.pi * math.sin(phi), rel=1e-12)
    points = path.points(4001)
    assert float((points - middle).norm(dim=1).min()) == pytest.approx(rho / 2, abs=1e-14)


def test_antipodes_are_joined_by_any_great_arc():
    path = detour(X, -X, torch.empty(0, 3, dtype=torch.float64), 1.0)
    assert path.length == pytest.approx(math.pi, rel=1e-15)
    points = path.points(6)
    torch.testing.assert_close(points.norm(dim=1), torch.ones(7).double(), rtol=0, atol=1e-15)
    assert float((points[3] @ X).abs()) < 1e-15


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("d", "count", "rho"), [(3, 14, 0.5), (4, 30, 0.6), (10, 40, 0.75)])
def test_any_path_keeps_its_distance_and_its_length(seed, d, count, rho):
    start, end, *others = separated(count, d, rho, seed)
    obstacles = torch.stack(others)
    path = detour(start, end, obstacles, rho)
    points = path.points(700)
    assert path.length <= math.pi**2 / 2
    assert float(torch.cdist(points, obstacles).min()) >= rho / 2 - 1e-12
    torch.testing.assert_close(points.norm(dim=1), torch.ones(701).double(), rtol=0, atol=1e-15)
    steps = (points[1:] - points[:-1]).norm(dim=1)
    assert float(steps.max()) <= path.length / 700 + 1e-14  # chords of equal arcs, around a corner shorter
    assert torch.equal(points[0], start) and torch.equal(points[-1], end)
