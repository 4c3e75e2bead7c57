"""The tests that claims are put to. Each returns whether it held and, if not, by how much; None where it cannot be told."""

import math
from collections.abc import Callable

import numpy as np
import pandas as pd

from lightning_app.statistics import ENOUGH, first_reached, paired, value_where_reached
from lightning_app.verdicts import Outcome, Sample, holds, untested

__all__ = [
    "all_of",
    "epochs_to",
    "excludes_zero",
    "if_measured",
    "matched",
    "within",
    "within_factor",
    "within_sds",
    "within_share",
]

SEEDS_FOR_A_SPREAD = 3


def if_measured(ours: Sample, test: Callable[[], Outcome]) -> Outcome:
    """The test's outcome, once there is something to test."""
    return test() if ours.count and not math.isnan(ours.mean) else untested(ours.missing or "not measured")


def within_sds(ours: Sample, paper: float, sds: float, rounding: float = 0.0) -> Outcome:
    """Is the paper's number within so many standard deviations of our seeds' mean, its own rounding apart?"""
    if ours.count < SEEDS_FOR_A_SPREAD:
        return untested(f"a spread needs {SEEDS_FOR_A_SPREAD} seeds, there are {ours.count}")
    return within(ours, paper, sds * ours.sd + rounding, f"{sds:g} sd")


def within(ours: Sample, paper: float, tolerance: float, words: str = "") -> Outcome:
    """|ours - paper| <= tolerance, of the mean."""
    if not ours.count:
        return untested(ours.missing or "not measured")
    off = abs(ours.mean - paper)
    return holds(off <= tolerance, f"off by {off:.3g}, {words or 'tolerance'} {tolerance:.3g}")


def within_factor(ours: Sample, paper: float, factor: float) -> Outcome:
    """Do ours and the paper's number differ by less than a factor?"""
    if not ours.count:
        return untested(ours.missing or "not measured")
    off = max(ours.mean / paper, paper / ours.mean) if ours.mean > 0 else math.inf
    return holds(off <= factor, f"off by a factor {off:.3g}")


def within_share(ours: Sample, paper: float, share: float) -> Outcome:
    """|ours / paper - 1| <= share."""
    if not ours.count:
        return untested(ours.missing or "not measured")
    off = abs(ours.mean / paper - 1)
    return holds(off <= share, f"off by {100 * off:.3g} %")


def excludes_zero(differences: Sample) -> Outcome:
    """Is the 95 % bootstrap interval of the mean of paired differences above zero?"""
    if differences.count < ENOUGH:
        return untested(f"a 95 % bootstrap interval needs {ENOUGH} seeds, there are {differences.count}")
    if not all(map(math.isfinite, differences.values)):
        return untested("not all differences are finite")
    found = paired(differences.values, np.zeros(differences.count))
    return holds(found.low > 0, str(found), finding=str(found))


def all_of(*outcomes: Outcome) -> Outcome:
    """All held; what cannot be told makes the whole untold."""
    told = [outcome for outcome in outcomes if outcome.held is not None]
    if len(told) < len(outcomes):
        return next(outcome for outcome in outcomes if outcome.held is None)
    return Outcome(all(outcome.held for outcome in told), "; ".join(o.why for o in told if not o.held))


def epochs_to(curves: pd.DataFrame, level: float) -> list[float]:
    """The epoch at which each seed's curve first reaches a level from above, linear between epochs; nan if never.

    >>> epochs_to(pd.DataFrame({0: [2.0, 1.0, 0.2], 1: [2.0, 1.5, 1.2]}), 0.6)
    [1.5, nan]
    """
    return [float(first_reached(curves.index, curves[seed], np.array([level]))[0]) for seed in curves]


def matched(of: pd.DataFrame, at: pd.DataFrame, level: float) -> list[float]:
    """The value of one number where another first reaches a level, seed by seed, linear between epochs."""
    return [_matched(of[seed], at[seed], level) for seed in of]


def _matched(of: pd.Series, at: pd.Series, level: float) -> float:
    both = pd.concat({"of": of, "at": at}, axis=1).sort_index()
    return float(value_where_reached(both.index, both["of"], both["at"], np.array([level]))[0])
