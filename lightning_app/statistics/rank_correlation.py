"""Kendall's tau of many measures with one target: which number of a net goes with its generalisation gap?

"Goes with" can mean two things. Over nets of several architectures a measure may merely tell these apart; within an
architecture, from seed to seed, nothing but the measure is left to explain the gap. So pairs of nets are counted over all
nets, or only within strata: the pooled tau of strata, which for strata of one size without ties is the mean of their
taus, as in the granulated coefficient of Jiang et al. (2020), "Fantastic generalization measures and where to find them".

The interval is a score interval. Fisher's z with Fieller, Hartley & Pearson's (1957) variance 0.437 / (n - 4), the usual one
(Bonett & Wright 2000), has no n when there are strata, is not defined for |tau| = 1, and where it can be carried over (by the
n of equal null variance) it covers tau = 0.8 in 77 to 90 % of the cases. Here each tau_0 is tested with the
standard deviation that tau would have there, known in closed form for normal pairs (Esscher 1924; Kendall & Gibbons 1990,
chapter 10), and the interval is what is not rejected. Simulated coverage at 95 % (normal pairs, tau 0 to 0.8, 20,000 times):

| nets, or strata x nets | 5 | 6 | 8 | 13 | 26 | 2 x 13 | 6 x 3 | 2 x 5 | 3 x 3 | 6 x 2 |
|---|---|---|---|---|---|---|---|---|---|---|
| lowest, % | 93 | 94 | 94 | 95 | 95 | 95 | 95 | 94 | 93 | 91 |
| highest, % | 99 | 97 | 96 | 96 | 96 | 96 | 96 | 97 | 97 | 99 |

95 to 98 % where both are rounded to halves of their deviation (6 x 2: 93), and 92 to 97 % for pairs that are far from normal
(Clayton's copula). Nets are taken as independent, and strata as having one tau.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy import stats

CONFIDENCE = 0.95
# Three strata of three nets, or five nets; with fewer, coverage means little: so few orders are possible.
ENOUGH_PAIRS = 9
EXACT_PAIRS = 10_000  # up to which p is exact: 140 nets; beyond, orders are so many that their distribution is normal
AT_ONCE = 4_000_000  # pairs x measures: memory


@dataclass(frozen=True, eq=False)
class Kendall:
    """tau-b of each of M measures with the target, (M,) each; nan: not defined.

    tau is (concordant - discordant pairs) / sqrt(pairs untied in the measure x pairs untied in the target), -1..1.
    """

    tau: np.ndarray  # nan where no two nets differ in the measure, or none in the target
    low: np.ndarray  # of the 95 % interval, nan with fewer than `ENOUGH_PAIRS` pairs
    high: np.ndarray
    p: np.ndarray  # two-sided, of tau = 0: every order of the target (within its stratum) equally likely
    nets: np.ndarray  # that have both numbers
    pairs: np.ndarray  # of these, within strata, tied or not


def kendall(measures: np.ndarray, target: np.ndarray, strata: Sequence[int] | None = None) -> Kendall:
    """Kendall's tau-b (1938, 1945) of each row with the target, over all pairs of nets or those within strata only.

    p is exact where nothing is tied: of the sum of the strata's numbers of discordant pairs. Where ties are, and above
    `EXACT_PAIRS`, it is that of a normal approximation with the exact variance under permutations (Daniels 1944) and a
    continuity correction of half a pair.

    Args:
        measures: (M, n), a column a net; nan: not measured, and left out of this row. Infinities have a rank.
        target: (n,), or (M, n) for one a row.
        strata: (n,), the stratum of each net; None: all are in one.

    Invariances: increasing maps of either leave everything as it is, negation swaps the signs.

    >>> found = kendall(np.array([[1.0, 2.0, 4.0, 3.0, 5.0]]), np.arange(5.0))
    >>> [float(number.round(4)) for (number,) in (found.tau, found.low, found.high, found.p)]
    [0.8, -0.0002, 0.965, 0.0833]
    >>> within = kendall(np.array([[1.0, 2.0, 9.0, 8.0]]), np.arange(4.0), strata=[0, 0, 1, 1])
    >>> within.tau, within.pairs  # one pair of each order; the pairs between strata would be concordant
    (array([0.]), array([2]))
    """
    measures = np.atleast_2d(np.asarray(measures, dtype=np.float64))
    target = np.broadcast_to(np.asarray(target, dtype=np.float64), measures.shape)
    own = np.zeros(measures.shape[1], dtype=int) if strata is None else np.asarray(strata)
    found = np.full((6, len(measures)), np.nan)
    for rows, kept in _patterns(~(np.isnan(measures) | np.isnan(target))):
        for some in np.array_split(rows, -(-len(rows) * max(kept.sum(), 1) ** 2 // AT_ONCE)):
            found[:, some] = _complete(measures[some][:, kept], target[some][:, kept], own[kept])
    return Kendall(*found[:4], *found[4:].astype(int))


def _patterns(known: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Rows that know the same nets, and which these are: a few patterns among thousands of measures."""
    patterns, which = np.unique(known, axis=0, return_inverse=True)
    return [(np.flatnonzero(which.ravel() == number), kept) for number, kept in enumerate(patterns)]


def _complete(x: np.ndarray, y: np.ndarray, strata: np.ndarray) -> list[np.ndarray]:
    """tau, low, high, p, nets, pairs of rows without gaps, (M, n)."""
    sizes, total = [], np.zeros((4, len(x)))
    for stratum in np.unique(strata):
        own = strata == stratum
        sizes.append(int(own.sum()))
        total += _score(x[:, own], y[:, own])
    score, untied_x, untied_y, variance = total
    pairs = sum(math.comb(size, 2) for size in sizes)
    with np.errstate(invalid="ignore", divide="ignore"):
        scale = np.sqrt(untied_x * untied_y)
        tau, sd = score / scale, np.sqrt(variance) / scale
    low = _lower(tau, sd, sizes) if pairs >= ENOUGH_PAIRS else np.full(len(x), np.nan)
    high = -_lower(-tau, sd, sizes) if pairs >= ENOUGH_PAIRS else low
    tied = (untied_x < pairs) | (untied_y < pairs)
    p = _p_values(score, variance, tuple(sorted(sizes)), tied)
    return [tau, low, high, np.where(np.isnan(tau), np.nan, p), np.full(len(x), x.shape[1]), np.full(len(x), pairs)]


def _score(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Concordant less discordant pairs of one stratum, its untied pairs in x and in y, and the score's null variance, (4, M).

    The variance is that over all permutations (Daniels 1944), with a_ij the signs of differences and r_i their row sums:
    ``(sum r^2 - sum a^2) (same of y) / n(n-1)(n-2) + (sum a^2) (same of y) / 2n(n-1)``; without ties n(n-1)(2n+5)/18.
    """
    n = x.shape[1]
    signs = _signs(x), _signs(y)
    score = (signs[0] * signs[1]).sum(axis=1, dtype=int)
    untied = [np.count_nonzero(sign, axis=1) for sign in signs]
    rows = [((2 * stats.rankdata(values, axis=1) - n - 1) ** 2).sum(axis=1) for values in (x, y)]
    beyond = [row - 2 * count for row, count in zip(rows, untied, strict=True)]
    variance = beyond[0] * beyond[1] / max(n * (n - 1) * (n - 2), 1) + 2 * untied[0] * untied[1] / max(n * (n - 1), 1)
    return np.array([score, *untied, variance], dtype=float)


def _signs(values: np.ndarray) -> np.ndarray:
    """Signs of the differences of all pairs, (M, n(n-1)/2); by comparison, since infinities have no difference."""
    left, right = _pairs(values)
    return (left > right).astype(np.int8) - (left < right)


def _lower(tau: np.ndarray, null_sd: np.ndarray, sizes: Sequence[int]) -> np.ndarray:
    """The smallest tau_0 from which tau lies no more than 1.96 standard deviations, by bisection; tau_0 = tau never does.

    With ties the standard deviation is that without, times what ties make of it at tau_0 = 0.
    """
    quantile = stats.norm.ppf((1 + CONFIDENCE) / 2) * null_sd / math.sqrt(_normal_variance(np.zeros(1), sizes).item())
    low, high = np.where(np.isnan(tau), np.nan, -1.0), tau.copy()
    for _ in range(50):
        middle = (low + high) / 2
        rejected = tau - middle > quantile * np.sqrt(_normal_variance(middle, sizes))
        low, high = np.where(rejected, middle, low), np.where(rejected, high, middle)
    return high


def _normal_variance(tau: np.ndarray, sizes: Sequence[int]) -> np.ndarray:
    """Variance of the score of normal pairs whose tau is given: Esscher (1924), summed over strata.

    ``n(n-1)/2 (1 - tau^2 + 2(n-2) (1/9 - ((2/pi) asin(rho/2))^2))`` with rho = sin(pi tau / 2).

    >>> _normal_variance(np.array([0.0, 1.0]), [5]).round(9) + 0.0  # 5 * 4 * 15 / 18, and no spread at all
    array([16.66666667,  0.        ])
    """
    shared = 1 / 9 - (2 / np.pi * np.arcsin(np.sin(np.pi * tau / 2) / 2)) ** 2
    variance = sum(n * (n - 1) / 2 * (1 - tau**2 + 2 * (n - 2) * shared) for n in sizes)
    return np.maximum(variance, 0)  # at the ends rounding may leave -1e-17


def _p_values(score: np.ndarray, variance: np.ndarray, sizes: tuple[int, ...], tied: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore", divide="ignore"):
        normal = 2 * stats.norm.sf((np.abs(score) - 1).clip(min=0) / np.sqrt(variance))
    pairs = sum(n * (n - 1) // 2 for n in sizes)
    if pairs > EXACT_PAIRS:
        return normal
    discordant = ((pairs - np.abs(score)) // 2).astype(int)
    return np.where(tied, normal, np.minimum(1, 2 * _at_most(sizes)[discordant]))


@lru_cache(maxsize=64)
def _at_most(sizes: tuple[int, ...]) -> np.ndarray:
    """P(at most d discordant pairs), d = 0, 1, ...: inserting the k-th net makes 0 to k-1 of them, equally likely.

    >>> _at_most((3,)) * 6, _at_most((2, 2)) * 4
    (array([1., 3., 5., 6.]), array([1., 3., 4.]))
    """
    mass = np.ones(1)
    for size in sizes:
        for k in range(2, size + 1):
            mass = np.convolve(mass, np.full(k, 1 / k))
    return mass.cumsum()


def adjusted(p: np.ndarray) -> np.ndarray:
    """q of Benjamini & Hochberg (1995): if all with q <= 5 % count as findings, 5 % of the findings are chance. nan stays nan.

    This holds for measures that are independent or positively correlated; measures of the same net are the latter.

    >>> adjusted(np.array([0.01, 0.04, np.nan, 0.03]))
    array([0.03, 0.04,  nan, 0.04])
    """
    known = ~np.isnan(p)
    q = np.full(np.shape(p), np.nan)
    if known.any():
        q[known] = stats.false_discovery_control(p[known])
    return q


def largest_by_chance(
    measures: np.ndarray, target: np.ndarray, strata: Sequence[int] | None = None, shuffles: int = 400
) -> np.ndarray:
    """The largest |tau| over all measures, for each of ``shuffles`` random shuffles of the target (within strata), (shuffles,).

    This is what a search over many measures finds by chance, however they are correlated (Westfall & Young 1993): in 5 % of the
    cases, one of them exceeds the 95 % quantile. The shuffles are the same each time. Arguments as in `kendall`, for M >= 1
    measures that have a tau; nets without a target are left out.
    """
    known = ~np.isnan(target)
    measures, target = measures[:, known], target[known]
    own = np.zeros(len(target), dtype=int) if strata is None else np.asarray(strata)[known]
    random, shuffled = np.random.default_rng(0), np.tile(target, (shuffles, 1))
    for stratum in np.unique(own):
        inside = np.flatnonzero(own == stratum)
        shuffled[:, inside] = random.permuted(shuffled[:, inside], axis=1)
    together = np.equal(*_pairs(own[None]))[0]
    largest = np.zeros(shuffles)
    for rows, kept in _patterns(~np.isnan(measures)):
        pairs = together & np.logical_and(*_pairs(kept[None]))[0]
        ours = _signs(shuffled)[:, pairs].astype(np.float32)
        theirs = _signs(measures[rows])[:, pairs].astype(np.float32)
        scale = np.sqrt(np.outer(np.abs(theirs).sum(axis=1), np.abs(ours).sum(axis=1)))
        score = np.abs(theirs @ ours.T)
        largest = np.maximum(largest, np.divide(score, scale, out=np.zeros_like(score), where=scale > 0).max(axis=0))
    return largest


def _pairs(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    first, second = np.triu_indices(values.shape[1], 1)
    return values[:, first], values[:, second]
