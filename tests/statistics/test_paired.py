"""Statistics over seeds: against scipy, against slow independent witnesses, and by their laws."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from lightning_app.statistics.paired import (
    ENOUGH,
    _bootstrap,
    bootstrap_interval,
    common_levels,
    differences,
    error_at_risk,
    first_reached,
    paired,
    paired_curve,
    spread,
    value_where_reached,
)
from tests.silence import SILENT

pytestmark = SILENT  # the degenerate cases too are silent

RANDOM = np.random.default_rng(0)
PLAIN, RESIDUAL = RANDOM.normal(0.13, 0.01, 13), RANDOM.normal(0.12, 0.01, 13)


def test_spread_against_numpy_and_without_the_lost():
    found = spread([*PLAIN, math.inf, math.nan])
    assert (found.mean, found.min, found.max, found.count) == (PLAIN.mean(), PLAIN.min(), PLAIN.max(), 13)
    assert found.sd == stats.tstd(PLAIN)
    assert math.isnan(spread([1.0]).sd)
    assert math.isnan(spread([math.nan]).mean)


def test_the_interval_is_scipy_s_at_the_expanded_level():
    t = stats.t.ppf(0.975, 12)
    level = 1 - 2 * stats.norm.sf(math.sqrt(13 / 12) * t)
    assert level == pytest.approx(0.9767, abs=1e-4)
    same = stats.bootstrap((PLAIN,), np.mean, method="percentile", confidence_level=level, random_state=0)
    found = bootstrap_interval(PLAIN)
    assert (found.low, found.high) == pytest.approx(same.confidence_interval, rel=1e-12)


def test_the_interval_is_that_of_all_resamples():
    """An independent witness: seven values have 7^7 equally likely resamples, small enough to list."""
    values = RANDOM.exponential(size=7)
    means = np.array([*itertools.product(values, repeat=7)]).mean(axis=1)
    tail = stats.norm.sf(math.sqrt(7 / 6) * stats.t.ppf(0.975, 6))
    found = bootstrap_interval(values)
    # 9,999 resamples estimate a quantile: the true tails beyond it are binomial around the level asked for
    error = 4 * math.sqrt(tail * (1 - tail) / 9999)
    assert np.mean(means < found.low) == pytest.approx(tail, abs=error)
    assert np.mean(means > found.high) == pytest.approx(tail, abs=error)


@pytest.mark.parametrize("count", [ENOUGH, 13])
def test_the_interval_covers_as_often_as_it_says(count):
    samples = np.random.default_rng(1).normal(1.0, 2.0, (count, 1000))
    low, high = _bootstrap(samples)
    assert np.mean((low <= 1.0) & (high >= 1.0)) == pytest.approx(0.95, abs=4 * math.sqrt(0.95 * 0.05 / 1000))


def test_fewer_than_enough_cannot_cover():
    """The largest interval there is, the range of the values, leaves their mean out once in 2^(n-1)."""
    assert 2.0 ** (1 - ENOUGH) < 0.05 < 2.0 ** (2 - ENOUGH)
    samples = np.random.default_rng(2).normal(size=(3, 1000))
    low, high = _bootstrap(samples)
    assert np.mean((low <= 0) & (high >= 0)) == pytest.approx(0.75, abs=4 * math.sqrt(0.75 * 0.25 / 1000))


@pytest.mark.parametrize("lost", [math.nan, math.inf])
def test_what_diverged_is_refused_by_name(lost):
    with pytest.raises(ValueError, match="leave out what diverged"):
        bootstrap_interval([1.0, lost])
    with pytest.raises(ValueError, match="one or more"):
        bootstrap_interval([])


def test_p_values_are_scipy_s():
    found = paired(PLAIN, RESIDUAL)
    assert found.t_p == pytest.approx(stats.ttest_rel(PLAIN, RESIDUAL).pvalue, rel=1e-9)
    assert found.wilcoxon_p == pytest.approx(stats.wilcoxon(PLAIN, RESIDUAL).pvalue, rel=1e-12)
    assert (found.mean, found.sd) == pytest.approx((np.mean(PLAIN - RESIDUAL), stats.tstd(PLAIN - RESIDUAL)))
    assert (found.low, found.high, found.count) == (*map(pytest.approx, stats_interval(PLAIN - RESIDUAL)), 13)


def stats_interval(values: np.ndarray) -> tuple[float, float]:
    found = bootstrap_interval(values)
    return found.low, found.high


def test_signed_ranks_by_trying_every_sign():
    d = np.array([0.3, -0.1, 0.5, 0.25, 0.7, -0.2, 0.9])
    ranks = stats.rankdata(np.abs(d))
    sums = np.array([ranks @ np.array(signs) for signs in itertools.product((0, 1), repeat=len(d))])
    ours = ranks @ (d > 0)
    by_hand = min(1.0, 2 * min(np.mean(sums >= ours), np.mean(sums <= ours)))
    assert paired(d, np.zeros(7)).wilcoxon_p == pytest.approx(by_hand)


@pytest.mark.parametrize(
    "d", [[3, 3, -1], [2, 0], [1, 1, 0, -1, 2, 2], [0, 0, 1, 2, -3, 4], [1, -1] * 4, [5] * 14, [0] + [2] * 13]
)
def test_equal_and_zero_differences_have_scipy_s_p_to_the_bit(d):
    assert paired(d, np.zeros(len(d))).wilcoxon_p == stats.wilcoxon(np.array(d, dtype=float)).pvalue


def test_one_pair_has_a_difference_and_nothing_else():
    found = paired([3.0], [1.0])
    assert (found.mean, found.count) == (2.0, 1)
    assert all(math.isnan(x) for x in (found.sd, found.low, found.high, found.t_p, found.wilcoxon_p))


@pytest.mark.parametrize("value", [0.1, 0.0, -0.3])
def test_equal_differences_have_no_spread_to_test_against(value):
    found = paired([1 + value] * 7, [1.0] * 7)
    assert (found.mean, found.low, found.high) == pytest.approx((value, value, value))
    assert math.isnan(found.t_p)
    assert found.wilcoxon_p == (1.0 if value == 0 else 2.0**-6)
    assert "t test not defined" in str(found)


def test_subtraction_makes_no_spread_and_unties_no_ranks():
    """Errors are multiples of 1/N: 0.12 - 0.11 and 0.13 - 0.12 are one difference, not two."""
    plain, residual = np.arange(12, 18) / 100, np.arange(11, 17) / 100
    assert len(set(plain - residual)) > 1
    found = paired(plain, residual)
    assert (math.isnan(found.t_p), found.low, found.high) == (True, found.mean, found.mean)
    generator = np.random.default_rng(0)
    for _ in range(5):
        wrong = generator.integers(1095, 1140, (2, 9))  # of 10,000 images
        exact = stats.wilcoxon((wrong[0] - wrong[1]).astype(float)).pvalue
        assert paired(*(wrong / 10_000)).wilcoxon_p == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize("lost", [0.6, 1e14, 1e100])
def test_a_net_that_diverged_says_nothing_about_the_others(lost):
    plain = np.array([0.52, 0.55, 0.51, 0.58, 0.53, 0.57, 0.56, lost])
    residual = np.array([0.42, 0.44, 0.43, 0.46, 0.41, 0.47, 0.45, 0.4])
    assert differences(plain, residual)[:-1].tolist() == [0.1, 0.11, 0.08, 0.12, 0.12, 0.1, 0.11]
    assert paired(plain, residual).wilcoxon_p == 2.0**-7


def test_a_value_is_not_told_where_it_was_not_measured():
    epochs, risk = np.array([0.0, 1.0, 10.0]), np.array([2.0, 1.0, 0.5])
    error = np.array([np.nan, np.nan, 0.1])
    found = value_where_reached(epochs, error, risk, np.array([1.0, 0.5]))
    assert math.isnan(found[0]) and found[1] == 0.1


def test_a_pair_with_a_lost_net_is_left_out_and_counted():
    with_lost = paired([*PLAIN, math.nan, math.inf], [*RESIDUAL, 1.0, math.inf])
    assert with_lost == paired(PLAIN, RESIDUAL)
    nothing = paired([math.nan], [1.0])
    assert (math.isnan(nothing.mean), nothing.count) == (True, 0)


def test_unmatched_seeds_are_refused():
    with pytest.raises(ValueError, match="13 plain and 12 residual"):
        paired(PLAIN, RESIDUAL[1:])
    with pytest.raises(ValueError, match="one shape"):
        paired_curve(np.zeros((3, 2)), np.zeros((2, 2)))


def test_a_curve_is_the_paired_difference_of_each_epoch():
    plain, residual = RANDOM.normal(size=(2, 7, 5))
    plain[2, 3] = math.nan
    plain[1, 4] = residual[1, 4] = math.inf
    found = paired_curve(plain, residual)
    for epoch in range(3):
        one = paired(plain[:, epoch], residual[:, epoch])
        ends = found.mean[epoch], found.low[epoch], found.high[epoch]
        assert ends == pytest.approx((one.mean, one.low, one.high), rel=1e-12)
    for epoch in (3, 4):
        assert all(math.isnan(line[epoch]) for line in (found.mean, found.low, found.high))


def crossing(epochs: np.ndarray, curve: np.ndarray, level: float) -> float:
    """First epoch at or below a level, walked through one by one."""
    before = None
    for epoch, value in zip(epochs, curve):
        if not math.isfinite(value):
            continue
        if value <= level:
            if before is None:
                return epoch
            e, v = before
            return e + (epoch - e) * (v - level) / (v - value)
        before = epoch, value
    return math.nan


def test_first_reached_is_what_walking_along_the_curve_finds():
    for _ in range(200):
        epochs = np.cumsum(RANDOM.integers(1, 4, 12))
        curve = RANDOM.random(12).round(1)  # ties and levels met exactly among them
        curve[RANDOM.random(12) < 0.2] = math.nan
        levels = RANDOM.random(9).round(1)
        found = first_reached(epochs, curve, levels)
        assert found == pytest.approx([crossing(epochs, curve, level) for level in levels], nan_ok=True)


def test_what_was_never_measured_or_reached_is_nan():
    levels = np.array([0.5])
    assert np.isnan(first_reached(np.arange(2), np.full(2, math.nan), levels)).all()
    assert np.isnan(first_reached(np.empty(0), np.empty(0), levels)).all()
    assert np.isnan(value_where_reached(np.arange(2), np.ones(2), np.ones(2), levels)).all()
    assert np.isnan(value_where_reached(np.arange(2), np.full(2, math.nan), np.zeros(2), levels)).all()


def test_all_nets_pass_the_common_levels_from_above():
    curves = [np.array([2.3, 1.0, 0.2, 0.3]), np.array([2.2, math.nan, 0.1]), np.array([2.4, 0.05])]
    levels = common_levels(curves, 7)
    assert (levels[0], levels[-1], len(levels)) == (2.2, 0.2, 7)
    assert np.diff(np.log(levels)) == pytest.approx(np.log(0.2 / 2.2) / 6)
    for curve in curves:
        assert not np.isnan(first_reached(np.arange(len(curve)), curve, levels)).any()


def test_levels_begin_where_the_lowest_curve_does():
    """Also where that rises first: what lies above its start it never came down to."""
    levels = common_levels([np.array([1.0, 2.0, 0.5]), np.array([1.5, 0.4])], 3)
    assert (levels[0], levels[-1]) == (1.0, 0.5)


@pytest.mark.parametrize("curves", [[], [np.array([])], [np.array([2.0, 1.0]), np.array([0.5, 0.4])], [np.ones(3)]])
def test_no_common_level(curves):
    assert common_levels(curves).size == 0


def test_error_at_equal_risk_forgets_how_fast_the_nets_were():
    """E = 0.1 + 0.3 L, and 0.02 more in plain nets: the difference is 0.02 at every risk, at any pace."""

    def net(pace: float, gap: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        epochs = np.arange(0, 100, 5)
        risk = 2.3 * np.exp(-pace * epochs)
        return epochs, risk, 0.1 + 0.3 * risk + gap

    paces = (0.01, 0.02, 0.03, 0.025, 0.04, 0.015)
    found = error_at_risk([net(pace, 0.02) for pace in paces], [net(2 * pace, 0.0) for pace in paces])
    assert found.plain.shape == found.residual.shape == (6, 60)
    assert found.residual == pytest.approx(np.tile(0.1 + 0.3 * found.levels, (6, 1)))
    ends = found.difference
    assert [*ends.mean, *ends.low, *ends.high] == pytest.approx([0.02] * 180)


def test_nothing_in_common_is_an_empty_curve():
    found = error_at_risk(
        [(np.arange(2), np.array([2.0, 1.5]), np.ones(2))], [(np.arange(2), np.array([1.0, 0.5]), np.ones(2))]
    )
    assert found.levels.size == found.difference.mean.size == 0
