"""Lemmas 1 to 4 of Li et al. (2016) as checks: each returns quantities that must be 0, or within a bound.

The text version of the paper has lost the formulas. They are reconstructed here, from the proofs and from how Theorems 1 and 2
use them:

* Lemma 1: U, V, b of one unit ``x + V relu(U x + b)`` that moves one column of its input, a unit vector, to another one, and
  leaves the columns at a distance of q or more as they are, with ``||U||_F = ||V||_F = sqrt(2 ||z - x||) / q``. (The paper
  states that the bound has this form; its constant is ours.)
* Lemma 2: the k steps from a point to its label, shorter than ``pi^2 / (2 k)``, that stay rho/2 away from all other points. (The
  text gives the path; that its length is at most pi^2/2 is derived: see `detour`.)
* Lemma 3: where a partial derivative of the loss at zero is not 0, its parameters include one of every matrix of some unit.
  The paper states this, without the symbols. Its proof shows more: the loss is constant where every unit has a matrix that is 0.
* Lemma 4: if the parameters of all units except two are 0, the loss depends on these two and their order, not on their place in
  the net; so does the Hessian's block of the two at zero. The paper states this, without the symbols.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import jvp

from lightning_app.theory.li_et_al.detour import detour
from lightning_app.theory.li_et_al.shortcut import ShortcutForm
from lightning_app.theory.li_et_al.small_norm import CLOSER, apply_unit, moving_unit

Function = Callable[[Tensor], Tensor]


def directional_derivatives(function: Function, at: Tensor, direction: Tensor, order: int) -> Tensor:
    """``d^k/dt^k f(at + t direction)`` at t = 0 for k = 1, ..., order, (order,), by nested forward differentiation.

    All derivatives of f of order k vanish if and only if these do along every direction (polarisation).

    >>> directional_derivatives(lambda v: (v**3).sum(), torch.ones(1), torch.tensor([2.0]), 4).tolist()
    [6.0, 24.0, 48.0, 0.0]
    """

    def along(t: Tensor) -> Tensor:
        return function(at + t * direction)

    def slope(function: Function) -> Function:
        return lambda t: jvp(function, (t,), (torch.ones_like(t),))[1]

    found, start = [], at.new_zeros(())
    derivative: Function = along
    for _ in range(order):
        derivative = slope(derivative)
        found.append(derivative(start))
    return torch.stack(found)


@dataclass(frozen=True)
class Lemma1:
    """All are 0 up to rounding, ``others`` exactly; ``bias`` may be negative."""

    target: float  # distance of the moved point from its target
    others: float  # largest change of an entry of another point
    norms: float  # largest relative difference of ||U||_F and ||V||_F from sqrt(2 ||z - x||) / q
    bias: float  # ||b|| / ||U||_F - 1, at most 0


def lemma_1(points: Tensor, moved: int, target: Tensor) -> Lemma1:
    """One unit moves one of m >= 2 unit vectors, (m, d) float64, to a target and leaves the others, q the least distance."""
    point, others = points[moved], torch.cat([points[:moved], points[moved + 1 :]])
    q = float((others - point).norm(dim=1).min()) * (1 - CLOSER)
    U, V, b = moving_unit(point, target, q)
    after = apply_unit(U, V, b, points)
    expected = (2 * float((target - point).norm())) ** 0.5 / q
    return Lemma1(
        target=float((after[moved] - target).norm()),
        others=float((after - points)[torch.arange(len(points)) != moved].abs().max()),
        norms=max(abs(float(matrix.norm()) / expected - 1) for matrix in (U, V)),
        bias=float(b.norm()) / expected - 1,
    )


@dataclass(frozen=True)
class Lemma2:
    """What the path keeps to, as excesses: at most 0 up to rounding."""

    length: float  # of the path, less pi^2 / 2
    step: float  # the longest one, less pi^2 / (2 k)
    gap: float  # rho/2, less the least distance of a stop from an obstacle
    sphere: float  # largest | ||p|| - 1 | of a stop
    ends: float  # distance of first and last stop from where they belong


def lemma_2(start: Tensor, end: Tensor, obstacles: Tensor, rho: float, steps: int) -> Lemma2:
    """A point goes to its label in k steps, around the others. Arguments as of `detour`; p >= 1 obstacles, k = ``steps``."""
    path = detour(start, end, obstacles, rho)
    stops = path.points(steps)
    bound = torch.pi**2 / 2
    return Lemma2(
        length=path.length - bound,
        step=float((stops[1:] - stops[:-1]).norm(dim=1).max()) - bound / steps,
        gap=rho / 2 - float((stops[:, None] - obstacles).norm(dim=2).min()),
        sphere=float((stops.norm(dim=1) - 1).abs().max()),
        ends=max(float((stops[0] - start).norm()), float((stops[-1] - end).norm())),
    )


@dataclass(frozen=True)
class Lemma3:
    """All are 0, exactly or up to rounding."""

    outputs: float  # largest change of an output where every unit has a matrix that is 0
    derivatives: float  # largest |directional derivative| of the loss at 0 there, of the orders 1 to n


def lemma_3(form: ShortcutForm, x: Tensor, y: Tensor) -> Lemma3:
    """The loss on data x, y, (m, d) float64, does not move from its value at zero while every unit has a matrix that is 0.

    Every choice of one matrix a unit, n^R of them, is tried: the chosen ones are 0, the others are drawn. The
    first matrix of a unit is ``[W^1 b]`` where there is a bias. Derivatives by parameters that miss a matrix in
    every unit are derivatives along such directions.
    """
    d, generator = x.shape[1], torch.Generator().manual_seed(0)
    zero = x.new_zeros(form.units * form.unit_size(d))
    outputs, derivatives = [], []
    for missing in itertools.product(range(form.n), repeat=form.units):
        weights = torch.randn(form.units, form.n, d, d, generator=generator, dtype=x.dtype)
        biases = torch.randn(form.units, d, generator=generator, dtype=x.dtype)
        for unit, place in enumerate(missing):
            weights[unit, place] = 0
            biases[unit] *= place != 0
        direction = form.vector(weights, biases)
        outputs.append(float((form(direction, x) - x).abs().max()))
        found = directional_derivatives(lambda p: form.loss(p, x, y), zero, direction, form.n)
        derivatives.append(float(found.abs().max()))
    return Lemma3(max(outputs), max(derivatives))


@dataclass(frozen=True)
class Lemma4:
    """Both are 0, the losses exactly: units at 0 are the identity, bit for bit."""

    losses: float  # largest difference between the losses of two units' parameters at any two places
    hessians: float  # largest difference between the Hessian's entries of two units at any two places, at zero


def lemma_4(form: ShortcutForm, x: Tensor, y: Tensor) -> Lemma4:
    """Two units at places r1 < r2 of a net, all others 0, are as good at any other two places; arguments as of `lemma_3`.

    All pairs of places are compared with the first two, at a `torch.func.hessian` of two units' parameters each.
    """
    size = form.unit_size(x.shape[1])
    pair = torch.randn(2, size, generator=torch.Generator().manual_seed(0), dtype=x.dtype)

    def loss(pair: Tensor, places: tuple[int, int]) -> Tensor:
        zero = pair.new_zeros(size)
        return form.loss(torch.cat([pair[places.index(r)] if r in places else zero for r in range(form.units)]), x, y)

    places = list(itertools.combinations(range(form.units), 2))
    losses = torch.stack([loss(pair, at) for at in places])
    hessians = torch.stack([torch.func.hessian(loss)(torch.zeros_like(pair), at) for at in places])
    return Lemma4(float((losses - losses[0]).abs().max()), float((hessians - hessians[0]).abs().max()))
