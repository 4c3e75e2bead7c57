"""Straight lines: slope, residuals and interval by hand, and how often the interval covers."""

import math

import numpy as np
import pytest

from lightning_app.statistics.fitting import exponential, power

LOG_Y = np.array([0.0, 3.0, 0.0])  # at 1, 2, 3: slope 0 about 1, residuals -1, 2, -1
T_1 = 12.706205  # Student's 97.5 % quantile of one degree of freedom


@pytest.mark.parametrize(("fit", "of"), [(exponential, np.asarray), (power, np.exp)])
def test_three_points_by_hand(fit, of):
    line = fit(of([1.0, 2.0, 3.0]), np.exp(LOG_Y))
    assert line.slope == pytest.approx(0.0, abs=1e-12)
    assert line.rms == pytest.approx(math.sqrt(6 / 3))  # over all three, not over the one degree of freedom
    reach = T_1 * math.sqrt(6 / 1) / math.sqrt(2)  # sd of the residuals over the root of the sum of (x - 2)^2
    assert (line.low, line.high) == pytest.approx((-reach, reach), rel=1e-6)


@pytest.mark.parametrize("count", [3, 4, 8])
def test_the_interval_covers_as_often_as_it_says(count):
    """Of normal errors in 95 % of 2,000 draws, to four standard errors."""
    random, x, draws = np.random.default_rng(count), np.arange(1.0, count + 1), 2000
    errors = random.normal(0, 0.3, (draws, count))
    lines = [exponential(x, np.exp(1 - 0.5 * x + each)) for each in errors]
    covered = np.mean([line.low <= -0.5 <= line.high for line in lines])
    assert abs(covered - 0.95) < 4 * math.sqrt(0.95 * 0.05 / draws)
