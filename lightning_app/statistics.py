"""Statistics over seeds, in one place: what trackers, reports and verdicts say of several nets of one kind."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

__all__ = ["Spread", "spread"]


@dataclass(frozen=True)
class Spread:
    """One number over seeds.

    ``sd`` is the sample standard deviation (divisor ``count`` - 1), nan for one seed. Seeds whose number is not finite are
    left out, and ``count`` is how many are left; with none, all are nan.
    """

    mean: float
    sd: float
    min: float
    max: float
    count: int


def spread(values: Iterable[float]) -> Spread:
    """Mean, standard deviation, minimum, maximum and count over seeds.

    >>> spread([1.0, 2.0, 3.0, float("nan")])
    Spread(mean=2.0, sd=1.0, min=1.0, max=3.0, count=3)
    """
    seeds = np.asarray([*values], dtype=np.float64)
    seeds = seeds[np.isfinite(seeds)]
    if not seeds.size:
        return Spread(np.nan, np.nan, np.nan, np.nan, 0)
    sd = float(seeds.std(ddof=1)) if seeds.size > 1 else np.nan
    return Spread(float(seeds.mean()), sd, float(seeds.min()), float(seeds.max()), seeds.size)
