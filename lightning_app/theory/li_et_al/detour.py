"""Paths on the unit sphere that keep their distance from other points (Li et al. 2016, Lemma 2, Figure 10)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Arc:
    """``centre + cos(s) first + sin(s) second`` for s from 0 to ``angle``, an arc of a circle."""

    centre: Tensor  # (d,)
    first: Tensor  # (d,), as long as the radius
    second: Tensor  # (d,), orthogonal to it and as long
    angle: float

    @property
    def length(self) -> float:
        return self.angle * float(self.first.norm())

    def at(self, lengths: Tensor) -> Tensor:
        """The points (k, d) at arc lengths (k,)."""
        s = (lengths / self.first.norm())[:, None]
        return self.centre + s.cos() * self.first + s.sin() * self.second


@dataclass(frozen=True)
class Path:
    """Consecutive arcs on the unit sphere."""

    start: Tensor  # (d,)
    end: Tensor  # (d,)
    arcs: tuple[Arc, ...]

    @property
    def length(self) -> float:
        """At most pi^2 / 2."""
        return sum(arc.length for arc in self.arcs)

    def points(self, steps: int) -> Tensor:
        """The ends of ``steps`` steps of equal length along the path, (steps + 1, d)."""
        places = torch.linspace(0, self.length, steps + 1, dtype=self.start.dtype, device=self.start.device)
        points, passed = self.start.repeat(steps + 1, 1), 0.0
        for arc in self.arcs:
            here = places >= passed
            points[here] = arc.at((places[here] - passed).clamp(max=arc.length))
            passed += arc.length
        points = points / points.norm(dim=1, keepdim=True)
        points[0], points[-1] = self.start, self.end
        return points


def detour(start: Tensor, end: Tensor, obstacles: Tensor, rho: float) -> Path:
    """A short path on the unit sphere that stays rho/2 away from all obstacles.

    It is the shorter great arc, except that every passage through a cap ``||p - o|| < rho/2`` around an obstacle o is replaced by
    the shorter way along the cap's edge. Caps of points that are rho apart do not meet (their radius, 2 asin(rho/4) as an angle,
    is at most half of 2 asin(rho/2)), so an edge runs through no other cap. The edge is at most pi/2 times as long as the
    passage, so the path is no longer than pi^2 / 2.

    All points are unit vectors, (d,) and (p, d), d >= 3, at distances of at least rho from each other.
    """
    assert len(start) >= 3, "on a circle no path from a point to its label can avoid a point between them"
    angle, ahead = _angle(start, end), _direction(start, end)
    crossings = sorted(_crossings(start, ahead, angle, obstacles, rho), key=lambda crossing: crossing[0])
    great = Arc(torch.zeros_like(start), start, ahead, angle)
    arcs, passed = [], 0.0
    for entry, leaving, obstacle in crossings:
        arcs += [_part(great, passed, entry), _edge(great, entry, leaving, obstacle)]
        passed = leaving
    return Path(start, end, (*arcs, _part(great, passed, angle)))


def _crossings(
    start: Tensor, ahead: Tensor, angle: float, obstacles: Tensor, rho: float
) -> list[tuple[float, float, Tensor]]:
    """Where the great arc enters and leaves a cap, as angles from its start, and the cap's centre.

    At the angle t the arc's product with an obstacle is ``along cos t + across sin t = A cos(t - t0)``.
    """
    along, across = obstacles @ start, obstacles @ ahead
    nearest, height = torch.atan2(across, along), torch.hypot(along, across)
    cap = 1 - rho**2 / 8  # product with its centre of a point on the edge of a cap of chord radius rho/2
    inside = (cap / height).clamp(max=1).acos()  # half the angle within the cap; 0 where there is none
    met = (inside > 0) & (nearest > 0) & (nearest < angle)
    ends = zip((nearest - inside)[met].tolist(), (nearest + inside)[met].tolist())
    return [(*entry_and_exit, obstacle) for entry_and_exit, obstacle in zip(ends, obstacles[met])]


def _edge(great: Arc, entry: float, leaving: float, obstacle: Tensor) -> Arc:
    """The shorter way along the edge of an obstacle's cap, from where the great arc enters it to where it leaves."""
    enters, leaves = great.at(great.first.new_tensor([entry, leaving]))
    centre = obstacle * (obstacle @ enters)
    first, last = enters - centre, leaves - centre
    radius = first.norm()
    second = _direction(first / radius, last / radius, avoiding=obstacle)
    return Arc(centre, first, second * radius, _angle(first, last))


def _part(arc: Arc, start: float, stop: float) -> Arc:
    cosine, sine = math.cos(start), math.sin(start)
    first, second = cosine * arc.first + sine * arc.second, cosine * arc.second - sine * arc.first
    return Arc(arc.centre, first, second, stop - start)


def _angle(one: Tensor, other: Tensor) -> float:
    """Between two vectors, 0..pi, exact near both ends."""
    one, other = one / one.norm(), other / other.norm()
    return 2 * math.atan2(float((one - other).norm()), float((one + other).norm()))


def _direction(start: Tensor, end: Tensor, avoiding: Tensor | None = None) -> Tensor:
    """The unit vector orthogonal to ``start`` that points towards ``end``; any one (orthogonal to ``avoiding``) if they are
    antipodes, where all ways are equally short."""
    others = [start] if avoiding is None else [start, avoiding]
    ahead = _orthogonal(end, others)
    if not float(ahead.norm()) > 1e-12:  # it is nothing but rounding
        axes = torch.eye(len(start), dtype=start.dtype, device=start.device)
        ahead = max((_orthogonal(axis, others) for axis in axes), key=lambda axis: float(axis.norm()))
    return ahead / ahead.norm()


def _orthogonal(vector: Tensor, others: Sequence[Tensor]) -> Tensor:
    """What is left of a vector without its parts along orthonormal others; twice, for what rounding leaves."""
    for _ in range(2):
        for other in others:
            vector = vector - (vector @ other) * other
    return vector
