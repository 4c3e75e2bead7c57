"""Straight lines through few points, with honest intervals: exponents and growth laws of figures against depth."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from lightning_app.common.numbers import interval

__all__ = ["Line", "exponential", "power"]


@dataclass(frozen=True)
class Line:
    """Least squares. The interval is Student's at 95 %, of independent errors with one variance."""

    slope: float
    low: float
    high: float
    rms: float  # of the residuals

    def __str__(self) -> str:
        return interval(self.slope, self.low, self.high, 3)


def power(x: Sequence[float] | np.ndarray, y: Sequence[float] | np.ndarray) -> Line:
    """log y against log x: the slope is the exponent of y = a x^slope.

    >>> round(power([1, 2, 4, 8], [1.0, 0.5, 0.25, 0.125]).slope, 12)
    -1.0
    """
    return _line(np.log(x), np.log(y))


def exponential(x: Sequence[float] | np.ndarray, y: Sequence[float] | np.ndarray) -> Line:
    """log y against x: the slope is the rate of y = a exp(slope x)."""
    return _line(np.asarray(x, float), np.log(y))


def _line(x: np.ndarray, y: np.ndarray) -> Line:
    fit = stats.linregress(x, y)
    reach = stats.t.ppf(0.975, len(x) - 2) * fit.stderr
    rms = float(np.sqrt(np.mean((y - fit.intercept - fit.slope * x) ** 2)))
    return Line(float(fit.slope), float(fit.slope - reach), float(fit.slope + reach), rms)
