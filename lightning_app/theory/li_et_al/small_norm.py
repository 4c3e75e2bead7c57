"""A net that is exact on its data with weights of vanishing norm (Li et al. 2016, Theorem 1, Eq. 7).

Units ``x <- x + V relu(U x + b)`` (Eq. 3) move the inputs to their labels one point at a time. A hidden unit that responds to
a single point of the sphere (Lemma 1) moves it a short step and does not change any other, bit for bit; the steps follow a path
that keeps its distance from the other points (Lemma 2). More and shorter steps need smaller weights.

The paper's formulas are lost in its text version; the construction follows its proofs, the constants are derived here: k
units for each of m points (rows), R = m k units, L = 2 R layers, and ``max(||U||_F, ||V||_F) <= 2 pi / (rho sqrt(k))``.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from lightning_app.common.errors import UserError
from lightning_app.theory.li_et_al.detour import detour

UNIT_LENGTH = 1e-12  # how far from 1 the norm of a unit vector may be
APART = 1e-3  # least rho: a unit tells points apart by q^2/2 in their products, which float64 must resolve
CLOSER = 1e-8  # a unit reaches that share short of q: rounding does not wake its hidden unit in the next point


def moving_unit(point: Tensor, target: Tensor, reach: float) -> tuple[Tensor, Tensor, Tensor]:
    """The unit ``x + V relu(U x + b)`` that moves a unit vector to another one, and no unit vector at a distance of q or more.

    ``U = e_1 (c x)^T, b = -c (1 - q^2/2) e_1, V = 1/h (z - x) e_1^T`` with ``c = sqrt(2 ||z - x||) / q``: the one hidden unit is
    at ``h = c q^2/2`` in x and at exactly 0 in every unit vector at a distance of q or more, where ``x.p <= 1 - q^2/2``.

    Returned are U and V, (d, d), and b, (d,), with ``||U||_F = ||V||_F = sqrt(2 ||z - x||) / q`` and ``||b|| <= ||U||_F``, for
    a point x and its target z, (d,), and a reach q in 0..2. h corrects for rounding in the length of the point.
    """
    step, d = target - point, len(point)
    U, V, b = point.new_zeros(d, d), point.new_zeros(d, d), point.new_zeros(d)
    c = math.sqrt(2 * float(step.norm())) / reach
    if c:  # else there is nothing to move
        U[0] = c * point
        b[0] = -c * (1 - reach**2 / 2)
        V[:, 0] = step / (c * (float(point @ point) - 1 + reach**2 / 2))
    return U, V, b


def apply_unit(U: Tensor, V: Tensor, b: Tensor, x: Tensor) -> Tensor:
    """``x + V relu(U x + b)`` for each row of x, (B, d).

    It uses sums instead of matrix products, whose rounding depends on the number of rows. Along a path of length l a net
    magnifies deviations like ``exp(sqrt(2) l / q)``: a unit translates a point, so that the point leaves the sphere, where
    hidden units respond by ``2/q^2``. So each unit is constructed for the actual position of its point.
    """
    hidden = torch.relu((x[:, None] * U).sum(-1) + b)
    return x + (hidden[:, None] * V).sum(-1)


@dataclass(frozen=True, eq=False)
class SmallNormNet:
    """R = m k units ``x + V relu(U x + b)`` that map every input to its label."""

    U: Tensor  # (R, d, d)
    V: Tensor  # (R, d, d)
    b: Tensor  # (R, d)
    x: Tensor  # (m, d), the inputs
    y: Tensor  # (m, d), their labels
    rho: float  # least distance between any two of the inputs and labels
    units_per_point: int  # k

    @property
    def layers(self) -> int:
        """L = 2 R."""
        return 2 * len(self.U)

    @cached_property
    def norm(self) -> float:
        """``max(||U||_F, ||V||_F)`` over all units."""
        return float(torch.stack([self.U, self.V]).flatten(2).norm(dim=2).max())

    @property
    def bound(self) -> float:
        """``2 pi / (rho sqrt(k)) = (2 pi / rho) sqrt(2 m / L)``, which `norm` does not exceed."""
        return 2 * math.pi / (self.rho * self.units_per_point**0.5)

    @cached_property
    def error(self) -> float:
        """Largest distance between an output and its label; 0 up to rounding."""
        return float((self(self.x) - self.y).norm(dim=1).max())

    def __call__(self, x: Tensor) -> Tensor:
        """Outputs (B, d) for inputs (B, d)."""
        for U, V, b in zip(self.U, self.V, self.b):
            x = apply_unit(U, V, b, x)
        return x


def small_norm_net(x: Tensor, y: Tensor, units_per_point: int) -> SmallNormNet:
    """The construction of Theorem 1 for inputs x and labels y, unit vectors, (m, d), d >= 3, with k units for each point.

    The 2 m points must differ (Assumption 2): repeated labels need a little noise, see `perturbed_labels`.

    Raises:
        UserError: if the points are not unit vectors, or not far enough apart.

    Cost: about two forward passes of the m points through R = m k units, and 16 R d^2 bytes.
    """
    x, y = x.double(), y.double()
    rho = _least_distance(torch.cat([x, y]))
    units, now = [], x
    for i in range(len(x)):
        others = torch.cat([y[:i], x[i + 1 :]])  # the earlier points have arrived, the later ones are still at home
        stops = detour(x[i], y[i], others, rho).points(units_per_point)
        reaches = torch.full((units_per_point,), rho / 2, dtype=x.dtype)  # q: rho/2, or what rounding has left of it
        if len(others):
            gaps = torch.cdist(stops[:-1], others, compute_mode="donot_use_mm_for_euclid_dist").min(1).values
            reaches = gaps.clamp(max=rho / 2) * (1 - CLOSER)
        for stop, reach in zip(stops[1:], reaches.tolist()):
            units.append(moving_unit(now[i], stop, reach))
            now = apply_unit(*units[-1], now)
    U, V, b = (torch.stack(parts) for parts in zip(*units))
    return SmallNormNet(U, V, b, x, y, rho, units_per_point)


def _least_distance(points: Tensor) -> float:
    """rho of Assumption 2."""
    off, rho = float((points.norm(dim=1) - 1).abs().max()), float(torch.pdist(points).min())
    if not (off < UNIT_LENGTH and rho >= APART):
        raise UserError(
            f"Theorem 1 needs float64 unit vectors that are at least {APART:g} apart (Assumption 2), got lengths that "
            f"differ from 1 by up to {off:.3g} and a smallest distance of {rho:.3g}. Divide the vectors by their lengths, "
            "and add a little noise to repeated labels (perturbed_labels)."
        )
    return rho


def perturbed_labels(
    labels: Tensor, classes: int, noise: float = 0.1, generator: torch.Generator | None = None
) -> Tensor:
    """One-hot labels with a little noise, rescaled to unit length, so that no two are equal. (m,) -> (m, classes) float64.

    ``noise``: standard deviation of the noise of each entry. Without a ``generator`` the global random state is used.
    """
    hot = torch.nn.functional.one_hot(labels, classes).double()
    hot = hot + noise * torch.randn(hot.shape, generator=generator, dtype=torch.float64)
    return hot / hot.norm(dim=1, keepdim=True)
