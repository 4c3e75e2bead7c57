"""Which of two is better, looked at as often as one likes: evidence from paired differences that stays valid at every look.

An ordinary test is valid for a number of pairs that was fixed before. Who looks after each pair and stops when it looks good
finds a difference too often where there is none. Evidence here is a martingale: where the differences scatter symmetrically
about zero, the chance that it *ever* reaches 1/α is at most α (Ville's inequality), however long one goes on.

Symmetry is all that is assumed, and two arms that do not differ have it: exchanging the arms of a pair turns the sign of its
difference and leaves its size, whatever the distribution of errors. About the margin of an equivalence the differences are
symmetric where the arms differ by a shift only.

The price: n pairs of one sign have a chance of 2^(1-n), so six are the least that could settle anything at 5 %. Here it takes
seven of about one size, or six of which the last are the largest; two questions that share the 5 % take eight.

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
    """What the differences say of their centre."""

    ABOVE = "above zero"
    BELOW = "below zero"
    EQUIVALENT = "within the margin"
    UNRESOLVED = "unresolved"


def evidence(differences: np.ndarray) -> np.ndarray:
    """Evidence after each pair that the differences' centre is above zero: 1 is none, 20 is a chance of 1 in 20 at most.

    Definition:
        E_n = mean over stakes c of Π_i exp(c s_i) / cosh(c s_i), with s_i = d_i / √(mean of d_1², ..., d_i²). Given its size,
        d_i has either sign with equal chance under symmetry, so each factor has mean 1. An infinite d_i, of a pair of which one
        net has failed, takes for |s_i| the largest |d| before it over the present root mean square, at least 1, and
        has no part in that mean.

    Args:
        differences: (..., n), in the order in which they were seen. Zeros say nothing and count as pairs.

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
    """Is the centre above zero, below, or within ±margin; each wrong with a chance of at most alpha over all looks.

    Args:
        margin: differences below it do not matter: within it, which side of zero is not asked. None: only that is.
        alpha: chance of an error; divided by the number of questions if there are several.

    Raises:
        ValueError: for a difference that is no number.
    """
    d = np.asarray(differences, dtype=np.float64)
    if d.ndim != 1 or np.isnan(d).any():
        raise ValueError(f"expected differences, one a pair, got {d}; leave out what is no number.")
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
    """The mean difference, and an interval for the centre that holds it at all looks together with chance 1 - alpha.

    It is what the evidence does not exclude, and infinite for fewer than seven pairs, though six may settle their sign. The mean
    is of the finite differences.

    Raises:
        ValueError: for no differences, or one that is no number.
    """
    d = np.asarray(differences, dtype=np.float64)
    if d.ndim != 1 or not d.size or np.isnan(d).any():
        raise ValueError(f"expected one or more differences, one a pair, got {d}; leave out what is no number.")
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
    """After how many pairs the question is settled with this chance, by simulation from normal differences.

    Args:
        mean, sd: of the differences that will be seen.
        margin: of `order`.
        seen: differences that are there already; they count.
        chance: 0.8 is the usual power of a plan.

    Returns:
        Number of pairs in all; None: more than `PLANNED`, or never.

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
