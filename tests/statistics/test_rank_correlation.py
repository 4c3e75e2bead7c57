"""Kendall's tau of many measures: against scipy, a double loop and all permutations; its laws; the coverage of its interval."""

import itertools
import math
from functools import cache

import numpy as np
import pytest
from scipy import stats

from lightning_app.statistics.rank_correlation import ENOUGH_PAIRS, adjusted, kendall, largest_by_chance
from tests.silence import SILENT

pytestmark = SILENT  # the degenerate cases too are silent

RANDOM = np.random.default_rng(0)
TARGET = RANDOM.normal(size=26)
MEASURES = RANDOM.normal(size=(40, 26)) + np.linspace(0, 2, 40)[:, None] * TARGET
STRATA = np.repeat([0, 1, 2], [13, 9, 4])
FIELDS = ("tau", "low", "high", "p", "nets", "pairs")


def same(one, other, rows=slice(None)) -> None:
    for field in FIELDS:
        np.testing.assert_allclose(getattr(one, field)[rows], getattr(other, field), rtol=1e-12, atol=1e-15)


def double_loop(x, y, strata) -> float:
    """tau-b as it is defined."""
    score = untied_x = untied_y = 0
    for i, j in itertools.combinations(range(len(x)), 2):
        if strata[i] == strata[j]:
            a, b = (int(v[i] > v[j]) - int(v[i] < v[j]) for v in (x, y))
            score, untied_x, untied_y = score + a * b, untied_x + abs(a), untied_y + abs(b)
    return score / math.sqrt(untied_x * untied_y)


def test_against_scipy():
    found = kendall(MEASURES, TARGET)
    expected = [stats.kendalltau(measure, TARGET, method="exact") for measure in MEASURES]
    np.testing.assert_allclose(found.tau, [each.statistic for each in expected], rtol=1e-13)
    np.testing.assert_allclose(found.p, [each.pvalue for each in expected], rtol=1e-9)
    assert set(found.nets) == {26}
    assert set(found.pairs) == {26 * 25 // 2}


@pytest.mark.parametrize("strata", [np.zeros(26), STRATA], ids=["all", "within"])
@pytest.mark.parametrize("digits", [3, 0], ids=["few ties", "many ties"])
def test_against_a_double_loop(strata, digits):
    measures, target = MEASURES.round(digits), TARGET.round(digits)
    found = kendall(measures, target, strata)
    np.testing.assert_allclose(found.tau, [double_loop(each, target, strata) for each in measures], rtol=1e-13)


@pytest.mark.parametrize("digits", [(0, 0), (0, 9), (9, 0)], ids=["in both", "in the measure", "in the target"])
def test_with_ties_tau_is_scipys_and_so_is_the_variance(digits):
    """scipy's normal approximation has no continuity correction: put it in."""
    x, y = (values.round(each) for values, each in zip((MEASURES[20], TARGET), digits, strict=True))
    theirs = stats.kendalltau(x, y, method="asymptotic")
    found = kendall(x, y)
    assert found.tau.item() == pytest.approx(theirs.statistic)
    untied = math.sqrt(math.prod(sum(a != b for a, b in itertools.combinations(v, 2)) for v in (x, y)))
    score, z = theirs.statistic * untied, stats.norm.isf(theirs.pvalue / 2)
    assert found.p.item() == pytest.approx(2 * stats.norm.sf(z * (abs(score) - 1) / abs(score)))


def test_p_within_strata_is_that_of_all_permutations():
    """3! 3! 2! orders of a target within strata, each with its tau."""
    x, y, strata = np.array([0.0, 1, 2, 5, 3, 4, 7, 6]), np.array([1.0, 0, 2, 3, 4, 5, 7, 6]), [0, 0, 0, 1, 1, 1, 2, 2]
    orders = itertools.product(*map(itertools.permutations, (y[:3], y[3:6], y[6:])))
    taus = kendall(np.tile(x, (72, 1)), np.array([np.concatenate(order) for order in orders]), strata).tau
    found = kendall(x, y, strata)
    assert found.p.item() == pytest.approx(np.mean(np.abs(taus) >= abs(found.tau.item()) - 1e-12))


def test_above_the_limit_p_is_normal_and_close_to_exact(monkeypatch):
    exact = kendall(MEASURES[:20], TARGET).p
    monkeypatch.setattr("lightning_app.statistics.rank_correlation.EXACT_PAIRS", 100)
    np.testing.assert_allclose(kendall(MEASURES[:20], TARGET).p, exact, atol=0.005)


def test_increasing_maps_change_nothing_and_negation_the_signs():
    found = kendall(MEASURES, TARGET, STRATA)
    same(kendall(np.exp(MEASURES), TARGET**3 + 7, STRATA), found)
    other = kendall(-MEASURES, TARGET, STRATA)
    np.testing.assert_array_equal([other.tau, other.p], [-found.tau, found.p])
    np.testing.assert_allclose([other.low, other.high], [-found.high, -found.low], atol=1e-12)


def test_one_stratum_is_none_and_shifted_strata_do_not_matter():
    same(kendall(MEASURES, TARGET, np.full(26, 7)), kendall(MEASURES, TARGET))
    same(kendall(MEASURES + 100 * STRATA, TARGET - 50 * STRATA, STRATA), kendall(MEASURES, TARGET, STRATA))


def test_nets_without_the_number_are_left_out_of_that_row_only():
    gappy = MEASURES.copy()
    gappy[3, :5] = np.nan
    gappy[4, 20] = np.nan
    found = kendall(gappy, TARGET, STRATA)
    same(found, kendall(MEASURES[[3], 5:], TARGET[5:], STRATA[5:]), rows=[3])
    same(found, kendall(MEASURES[[5]], TARGET, STRATA), rows=[5])
    assert found.nets[[3, 4, 5]].tolist() == [21, 25, 26]


def test_infinity_has_a_rank():
    x = np.arange(6.0)
    same(kendall(np.append(x, np.inf), np.arange(7.0)), kendall(np.append(x, 99), np.arange(7.0)))


def test_what_is_not_defined_is_nan():
    constant = kendall(np.ones(8), np.arange(8.0))
    assert np.isnan([constant.tau, constant.low, constant.high, constant.p]).all()
    nothing = kendall(np.full(8, np.nan), np.arange(8.0))
    assert np.isnan(nothing.tau).all()
    assert nothing.nets == 0
    alone = kendall(np.arange(8.0), np.arange(8.0), strata=np.arange(8))
    assert np.isnan([alone.tau, alone.p]).all()
    assert alone.pairs == 0


def test_few_pairs_have_no_interval():
    four, five = (kendall(np.arange(n), np.arange(n)) for n in (4.0, 5.0))
    assert four.pairs < ENOUGH_PAIRS <= five.pairs
    assert np.isnan([four.low, four.high]).all()
    assert four.p == pytest.approx(2 / math.factorial(4))
    assert five.high == 1
    assert 0 < five.low < 1


def test_pairs_of_two_have_wilsons_interval():
    """With one pair a stratum tau is a share, 2 s - 1, and the score interval of a share is Wilson's."""
    target = np.tile([0.0, 1.0], 10)
    measure = target.copy()
    measure[:6] = 1 - measure[:6]  # 3 of 10 pairs are discordant
    found = kendall(measure + np.arange(20) / 100, target, np.arange(20) // 2)
    wilson = stats.binomtest(7, 10).proportion_ci(method="wilson")
    assert found.tau.item() == pytest.approx(0.4)
    # scipy's quantile and ours are the same 1.96, and 50 bisections leave 2^-50
    assert [found.low.item(), found.high.item()] == pytest.approx([2 * wilson.low - 1, 2 * wilson.high - 1], abs=1e-9)


def normal_pairs(sizes, tau, count, digits, seed):
    random = np.random.default_rng(seed)
    rho, n = math.sin(math.pi * tau / 2), sum(sizes)
    y = random.normal(size=(count, n))
    x = rho * y + math.sqrt(1 - rho**2) * random.normal(size=(count, n))
    strata = np.repeat(np.arange(len(sizes)), sizes)
    rounded = np.round(x * digits) / digits, np.round(y * digits) / digits
    return *(rounded if digits < 100 else (x, y)), strata


@cache
def population_tau_b(tau, digits) -> float:
    """Of two independent pairs that are rounded: by a million of them."""
    x, y, _ = normal_pairs([2], tau, 1_000_000, digits, seed=9)
    a, b = (np.sign(v[:, 0] - v[:, 1]) for v in (x, y))
    return float((a * b).mean() / math.sqrt((a != 0).mean() * (b != 0).mean()))


@pytest.mark.slow
@pytest.mark.parametrize("digits", [100, 2], ids=["untied", "tied"])
@pytest.mark.parametrize("sizes", [(5,), (8,), (13,), (26,), (13, 13), (3,) * 6], ids=str)
def test_intervals_cover(sizes, digits):
    """4,000 samples each: a coverage of 95 % is measured as 94.0 to 96.0. With few nets tau takes few values, and it jumps."""
    lowest, highest = (0.915, 0.995) if sum(sizes) == 5 else (0.93, 0.985)
    for seed, tau in enumerate((0.0, 0.2, 0.4, 0.6, 0.8)):
        x, y, strata = normal_pairs(sizes, tau, 4000, digits, seed)
        found = kendall(x, y, strata)
        true = tau if digits == 100 else population_tau_b(tau, digits)
        defined = np.isfinite(found.low)
        covered = np.mean((found.low <= true)[defined] & (true <= found.high)[defined])
        assert lowest <= covered <= highest, f"tau {tau}: {covered}"
        assert defined.mean() > 0.99  # of five rounded numbers all may be equal


@pytest.mark.slow
def test_intervals_cover_pairs_that_are_far_from_normal():
    """Clayton's copula has tau = theta / (theta + 2) and pairs that go together in their lower tail only."""
    random = np.random.default_rng(3)
    for tau in (0.2, 0.5, 0.8):
        theta = 2 * tau / (1 - tau)
        common = random.gamma(1 / theta, size=(4000, 13))
        x, y = ((1 + random.exponential(size=(4000, 13)) / common) ** (-1 / theta) for _ in range(2))
        found = kendall(x, y)
        assert 0.91 <= np.mean((found.low <= tau) & (tau <= found.high)) <= 0.97


def test_q_against_the_definition():
    p = RANDOM.uniform(size=30) ** 2
    order = np.argsort(p)
    stepwise = [min(p[order[j]] * 30 / (j + 1) for j in range(i, 30)) for i in range(30)]
    np.testing.assert_allclose(adjusted(p)[order], np.minimum(stepwise, 1))
    assert np.isnan(adjusted(np.array([np.nan]))).all()


@pytest.mark.slow
def test_the_largest_by_chance_against_shuffling_one_by_one():
    """The same law, other shuffles: medians and 95 % quantiles agree."""
    random = np.random.default_rng(5)
    gappy = MEASURES.copy()
    gappy[:10, 4] = np.nan
    found = largest_by_chance(gappy, TARGET, STRATA, shuffles=2000)
    slow = []
    for _ in range(300):
        target = TARGET.copy()
        for stratum in range(3):
            own = stratum == STRATA
            target[own] = random.permutation(TARGET[own])
        slow.append(np.abs(kendall(gappy, target, STRATA).tau).max())
    np.testing.assert_allclose(np.quantile(found, [0.5, 0.95]), np.quantile(slow, [0.5, 0.95]), atol=0.05)


def test_the_largest_of_one_measure_is_its_own_null_distribution():
    """Eight nets, one measure: P(|tau| >= t) by chance is the exact p of t."""
    x, y = np.arange(8.0), np.array([1.0, 0, 3, 2, 5, 4, 7, 6])
    found, once = largest_by_chance(x[None], y, shuffles=20_000), kendall(x, y)
    assert np.mean(found >= once.tau.item() - 1e-6) == pytest.approx(once.p.item(), abs=0.005)


def test_nets_without_a_target_are_left_out():
    target = np.append(TARGET, np.nan)
    more = np.column_stack([MEASURES, np.zeros(40)])
    np.testing.assert_array_equal(largest_by_chance(more, target), largest_by_chance(MEASURES, TARGET))
