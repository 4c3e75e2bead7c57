"""Which of two is better: evidence from paired differences that stays valid however often one looks.

An ordinary test is valid only for a number of pairs that was fixed in advance. If one looks after each pair and stops when the
result is good, one finds differences too often where there are none. Evidence here is a martingale: if the differences are
distributed symmetrically about zero, the chance that it *ever* reaches 1/α is at most α (Ville's inequality), however many
pairs follow.

Symmetry is the only assumption. It holds for two arms that do not differ: exchanging the arms of a pair changes the sign of its
difference, not its size, whatever the distribution of errors. For a test of equivalence it must hold about the margin, as it does
if the arms differ by a shift only.

The price: n pairs of the same sign have a chance of 2^(1-n), so no method can decide at 5 % with fewer than six. This one needs
seven of about the same size, or six of which the last are the largest; two questions that share the 5 % need eight.

Vovk & Wang (2024), "Nonparametric e-tests of symmetry", New England Journal of Statistics in Data Science;
Ramdas et al. (2023), "Game-theoretic statistics and safe anytime-valid inference", Statistical Science 38.
"""

import math
from collections.abc import Sequence
from enum import StrEnum

import numpy as np

from lightning_app.statistics.paired import CONFIDENCE, Interval

# How much is staked on the next difference having the same sign: little where the effect is small against the spread, all but
# everything where it is large. The mean over these is within a tenth of the best single one for effects of 0.3 to 5 sd.
STAKES = np.array([0.25, 0.5, 1.0, 2.0, 4.0])
ALPHA = 1 - CONFIDENCE
PLANNED = 400  # pairs beyond which no plan is made
PATHS = 2000  # simulated
FAR = np.geomspace(1e-3, 1e3, 121)  # spans beyond the smallest and largest difference where an interval may end


class Order(StrEnum):
    """Where the centre of the differences is."""

    ABOVE = "above zero"
    BELOW = "below zero"
    EQUIVALENT = "within the margin"
    UNRESOLVED = "unresolved"


def evidence(differences: np.ndarray) -> np.ndarray:
    """Evidence after each pair that the centre of the differences is above zero: 1 means none, 20 a chance of at most 1 in 20.

    Definition:
        E_n = mean over stakes c of Π_i exp(c s_i) / cosh(c s_i), with s_i = d_i / √(mean of d_1², ..., d_i²). Given its size,
        d_i has either sign with equal chance under symmetry, so each factor has mean 1. An infinite d_i, of a pair in which one
        net has failed, has as |s_i| the largest |d| before it, divided by the present root mean square, and at least 1. It does
        not enter that mean.

    Args:
        differences: (..., n), in the order in which they were seen. Zeros are no evidence, but count as pairs.

    Returns:
        (..., n), positive; independent of the differences' unit.

    >>> evidence(np.array([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0])).round(1)
    array([ 1.7,  2.9,  5.2,  9.5, 17.6, 32.9, 62.4])
    """
    known = np.where(infinite := np.isinf(differences), 0.0, differences)
    _, exponent = np.frexp(np.abs(known).max(axis=-1, keepdims=True, initial=0.0))
    known = np.ldexp(known, -exponent)  # exactly; else squares of the very small are 0, and of the very large infinite
    pairs = np.maximum(np.cumsum(~infinite, axis=-1), 1)
    size = np.sqrt(np.cumsum(known**2, axis=-1) / pairs)
    s = np.divide(known, size, out=np.zeros_like(known, dtype=np.float64), where=size > 0)
    if infinite.any():
        largest = np.divide(np.maximum.accumulate(np.abs(known), axis=-1), size, out=np.ones_like(s), where=size > 0)
        s = np.where(infinite, np.sign(differences) * np.maximum(largest, 1.0), s)
    total = np.zeros_like(s)
    for stake in STAKES:
        x = stake * s
        factors = x - np.logaddexp(x, -x) + math.log(2)
        total += np.exp(np.cumsum(factors, axis=-1)) / len(STAKES)
    return total


def order(differences: Sequence[float] | np.ndarray, margin: float | None = None, alpha: float = ALPHA) -> Order:
    """Whether the centre is above zero, below, or within ±margin; each answer is wrong with a chance of at most alpha over all
    looks.

    Args:
        margin: differences below it do not matter: if the centre is within it, its sign is not decided. None: only the sign is.
        alpha: chance of an error; divided by the number of questions if there are several.

    Raises:
        ValueError: for a difference that is NaN.
    """
    d = np.asarray(differences, dtype=np.float64)
    if d.ndim != 1 or np.isnan(d).any():
        raise ValueError(f"expected a list of differences, one per pair and none NaN, got {d}.")
    return Order(str(orders(d[None], margin, alpha)[0, -1])) if d.size else Order.UNRESOLVED


def orders(d: np.ndarray, margin: float | None, alpha: float) -> np.ndarray:
    """`order` after each pair, of many sequences (S, n)."""
    found = np.full(d.shape, Order.UNRESOLVED.value, dtype=object)
    found[evidence(d) >= 2 / alpha] = Order.ABOVE.value
    found[evidence(-d) >= 2 / alpha] = Order.BELOW.value
    if margin is not None:
        within = np.minimum(evidence(d + margin), evidence(margin - d)) >= 2 / alpha
        found[within] = Order.EQUIVALENT.value
    return found


def confidence_sequence(differences: Sequence[float] | np.ndarray, alpha: float = ALPHA) -> Interval:
    """The mean difference, and an interval that contains the centre at all looks together with probability 1 - alpha.

    It contains the values that the evidence does not exclude, and is infinite for fewer than seven pairs, although six may decide
    the sign. The mean is that of the finite differences.

    Raises:
        ValueError: if there is no difference, or one is NaN.
    """
    d = np.asarray(differences, dtype=np.float64)
    if d.ndim != 1 or not d.size or np.isnan(d).any():
        raise ValueError(f"expected a list of one or more differences, one per pair and none NaN, got {d}.")
    finite = d[np.isfinite(d)]
    mean = float(finite.mean()) if finite.size else math.nan
    return Interval(mean, 0 - _upper_end(-d, alpha), _upper_end(d, alpha))


def _upper_end(d: np.ndarray, alpha: float) -> float:
    """The largest shift m of which it is not certain that the centre lies below."""
    finite = d[np.isfinite(d)]
    if not finite.size:
        return math.inf
    span = float(np.ptp(finite)) or abs(float(finite[0])) or 1.0
    ranks = np.linspace(0, finite.size - 1, 1001)  # not evenly spread: one huge difference would hide the others
    between = np.interp(ranks, np.arange(finite.size), np.sort(finite))
    grid = np.concatenate([between, finite.max() + span * FAR])

    def excluded(shifts: np.ndarray) -> np.ndarray:
        return evidence(shifts[:, None] - d)[:, -1] >= 2 / alpha

    held = np.flatnonzero(~excluded(grid))
    if held.size and held[-1] == len(grid) - 1:
        return math.inf
    last = int(held[-1]) if held.size else 0
    low, high = grid[last], grid[last + 1]
    for _ in range(5):  # each a thousandth of the step before
        finer = np.linspace(low, high, 33)
        inside = np.flatnonzero(~excluded(finer))
        step = int(inside[-1]) if inside.size else 0
        low, high = finer[step], finer[min(step + 1, 32)]
    return float(low)


def pairs_needed(
    mean: float,
    sd: float,
    margin: float | None = None,
    *,
    seen: Sequence[float] | np.ndarray = (),
    chance: float = 0.5,
    alpha: float = ALPHA,
) -> int | None:
    """Number of pairs after which `order` has an answer with this chance, by simulation from normal differences.

    Args:
        mean, sd: mean and standard deviation of the differences to come.
        margin: as in `order`.
        seen: differences seen so far, which count.
        chance: probability of an answer; 0.8 is usual in planning.

    Returns:
        Number of pairs in total; None: more than `PLANNED`, or never.

    >>> pairs_needed(mean=0.01, sd=0.005, chance=0.8), pairs_needed(mean=0.0, sd=1.0)
    (8, None)
    """
    sign = -1.0 if mean < 0 else 1.0  # the same plan for A - B and B - A, although the draws are those of one seed
    first = sign * np.asarray(seen, dtype=np.float64)
    draws = np.random.default_rng(0).normal(sign * mean, sd, (PATHS, PLANNED))
    for count in (25, 100, PLANNED):  # most questions need few, and the time grows with the number
        paths = np.concatenate([np.broadcast_to(first, (PATHS, first.size)), draws[:, :count]], axis=1)
        settled = orders(paths, margin, alpha)[:, max(first.size - 1, 0) :] != Order.UNRESOLVED.value
        share = np.maximum.accumulate(settled, axis=1).mean(axis=0)
        if share[-1] >= chance:
            return max(first.size, 1) + int(np.argmax(share >= chance))
    return None
