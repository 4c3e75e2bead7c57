"""The tests that claims are put to: objects that are called with our number and print themselves.

What a test prints is what tables and the registration say of it, so that words and tolerance cannot part.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol

import numpy as np
import pandas as pd
from scipy import stats

from lightning_app.papers.verdicts import Claim, Outcome, Reading, Sample, described, holds, untested
from lightning_app.statistics.paired import ENOUGH, first_reached, paired, value_where_reached

__all__ = [
    # tests
    "All",
    "Bound",
    "Factor",
    "IntervalAbove",
    "IntervalExcludes",
    "NextDraw",
    "Share",
    "Predicate",
    "Within",
    "above",
    "at_least",
    "at_most",
    "below",
    # claims and readings made with them
    "judged",
    "noted",
    "tested",
    # what they are made of
    "epochs_to",
    "if_measured",
    "matched",
]

SEEDS_FOR_A_SPREAD = 3
LEVEL = 0.05  # of a whole family of tests


class Predicate(Protocol):
    """A test of one number over seeds; as text, what it asks."""

    def __call__(self, ours: Sample) -> Outcome: ...


def if_measured(ours: Sample, test: Callable[[], Outcome]) -> Outcome:
    """The test's outcome, once there is something to test."""
    return test() if ours.count and not math.isnan(ours.mean) else untested(ours.missing or "not measured")


@dataclass(frozen=True)
class Bound:
    """A bound on the mean over seeds, or on every seed.

    >>> print(Bound("below", 0.5, each=True)), Bound("above", 1.0)(Sample((0.9, 1.2))).held
    below 0.5 in every seed
    (None, True)
    """

    side: Literal["above", "at least", "at most", "below"]
    limit: float
    each: bool = False  # of the seeds
    note: str = ""  # what the bound means, for the reader: "a tenth of an ID entry"
    of: str = "seed"  # what there is one number of: "net", "depth"

    def __str__(self) -> str:
        seeds = f" in every {self.of}" if self.each else ""
        return f"{self.side} {self.limit:g}{seeds}{f': {self.note}' if self.note else ''}"

    def __call__(self, ours: Sample) -> Outcome:
        return if_measured(ours, lambda: self._outcome(ours))

    def _outcome(self, ours: Sample) -> Outcome:
        upper = self.side in ("at most", "below")
        worst = (max if upper else min)(ours.values) if self.each else ours.mean
        held = {
            "above": worst > self.limit,
            "at least": worst >= self.limit,
            "at most": worst <= self.limit,
            "below": worst < self.limit,
        }[self.side]
        return holds(held, f"{worst:.3g}{f' in the worst {self.of}' if self.each and ours.count > 1 else ''}")


above = partial(Bound, "above")
at_least = partial(Bound, "at least")
at_most = partial(Bound, "at most")
below = partial(Bound, "below")


@dataclass(frozen=True)
class Within:
    """|mean - paper| <= tolerance; with ``each``, of every seed."""

    paper: float
    tolerance: float
    note: str = ""  # where the tolerance comes from: "4 sampling sd"
    each: bool = False
    of: str = "seed"

    def __str__(self) -> str:
        seeds = f" in every {self.of}" if self.each else ""
        return f"within {self.tolerance:.3g} of {self.paper:g}{seeds}{f': {self.note}' if self.note else ''}"

    def __call__(self, ours: Sample) -> Outcome:
        return if_measured(ours, lambda: self._outcome(ours))

    def _outcome(self, ours: Sample) -> Outcome:
        off = max(abs(value - self.paper) for value in (ours.values if self.each else (ours.mean,)))
        return holds(off <= self.tolerance, f"off by {off:.3g}, tolerance {self.tolerance:.3g}")


@dataclass(frozen=True)
class Factor:
    """Do ours and the paper's number differ by at most a factor? Of the mean over seeds."""

    paper: float
    factor: float

    def __str__(self) -> str:
        return f"within a factor {self.factor:g} of {self.paper:g}"

    def __call__(self, ours: Sample) -> Outcome:
        return if_measured(ours, lambda: self._outcome(ours))

    def _outcome(self, ours: Sample) -> Outcome:
        off = max(ours.mean / self.paper, self.paper / ours.mean) if ours.mean > 0 else math.inf
        return holds(off <= self.factor, f"off by a factor {off:.3g}")


@dataclass(frozen=True)
class Share:
    """|ours / paper - 1| <= share; of the mean, or of every seed."""

    paper: float
    share: float
    each: bool = False
    of: str = "seed"

    def __str__(self) -> str:
        return f"within {100 * self.share:g} % of {self.paper:g}{f' in every {self.of}' if self.each else ''}"

    def __call__(self, ours: Sample) -> Outcome:
        return if_measured(ours, lambda: self._outcome(ours))

    def _outcome(self, ours: Sample) -> Outcome:
        off = max(abs(value / self.paper - 1) for value in (ours.values if self.each else (ours.mean,)))
        return holds(off <= self.share, f"off by {100 * off:.3g} %")


@dataclass(frozen=True)
class NextDraw:
    """Could the paper's number be one more seed of ours? The prediction interval of a normal sample.

    mean ± t sd √(1 + 1/n), Student's t with n - 1 degrees of freedom at a level divided by the number of tests of the
    family (Bonferroni): if all printed numbers are such draws, all pass with 95 %. With three seeds it is wide; `power`
    says how wide.
    """

    paper: float
    family: int  # how many such tests there are

    def __str__(self) -> str:
        return (
            f"{self.paper:g} in the prediction interval of our seeds, {100 * LEVEL:g} % over a family of {self.family} "
            "(mean ± t sd √(1 + 1/n))"
        )

    def __call__(self, ours: Sample) -> Outcome:
        if ours.count < SEEDS_FOR_A_SPREAD:
            return untested(ours.missing or f"a spread needs {SEEDS_FOR_A_SPREAD} seeds, there are {ours.count}")
        return if_measured(ours, lambda: self._outcome(ours))

    def _outcome(self, ours: Sample) -> Outcome:
        off, reach = abs(ours.mean - self.paper), self.widths(ours.count) * ours.sd
        return holds(off <= reach, f"off by {off:.3g}, interval ± {reach:.3g}")

    def widths(self, count: int) -> float:
        """Half the interval's width in standard deviations of our seeds.

        >>> round(NextDraw(0.0, family=1).widths(3), 2), round(NextDraw(0.0, family=18).widths(3), 1)
        (4.97, 21.9)
        """
        return float(stats.t.ppf(1 - LEVEL / self.family / 2, count - 1)) * math.sqrt(1 + 1 / count)


@dataclass(frozen=True)
class IntervalAbove:
    """Is the 95 % bootstrap interval of the mean above zero?"""

    def __str__(self) -> str:
        return "95 % bootstrap interval of the mean over seeds above 0"

    def __call__(self, ours: Sample) -> Outcome:
        return _interval(ours, lambda low, high: low > 0)


@dataclass(frozen=True)
class IntervalExcludes:
    """Does the 95 % bootstrap interval of the mean exclude zero, on either side?"""

    def __str__(self) -> str:
        return "95 % bootstrap interval of the mean over seeds excludes 0"

    def __call__(self, ours: Sample) -> Outcome:
        return _interval(ours, lambda low, high: low > 0 or high < 0)


def _interval(ours: Sample, held: Callable[[float, float], bool]) -> Outcome:
    if ours.count < ENOUGH:
        return untested(ours.missing or f"a 95 % bootstrap interval needs {ENOUGH} seeds, there are {ours.count}")
    if not all(map(math.isfinite, ours.values)):
        return untested("not all values are finite")
    found = paired(ours.values, [0.0] * ours.count)
    unresolved = found.low <= 0 <= found.high
    words = f"unresolved, the interval contains 0: {found}" if unresolved else str(found)
    return Outcome(held(found.low, found.high), words, finding=str(found), unresolved=unresolved)


@dataclass(frozen=True, init=False)
class All:
    """Several tests of one number at once. One that cannot be told leaves the whole open."""

    tests: tuple[Predicate, ...]

    def __init__(self, *tests: Predicate) -> None:
        object.__setattr__(self, "tests", tests)

    def __str__(self) -> str:
        return ", and ".join(map(str, self.tests))

    def __call__(self, ours: Sample) -> Outcome:
        outcomes = [test(ours) for test in self.tests]
        if open_ones := [outcome for outcome in outcomes if outcome.held is None]:
            return open_ones[0]
        failed = [outcome for outcome in outcomes if not outcome.held]
        unresolved = bool(failed) and all(outcome.unresolved for outcome in failed)
        return Outcome(not failed, "; ".join(outcome.why for outcome in failed), unresolved=unresolved)


# -- claims and readings made with them -----------------------------------------------------------------------------------


def judged(convention: str, ours: Sample, test: Predicate, shown: Sample | None = None) -> Reading:
    """A reading that a test judges.

    Args:
        shown: the number beside the paper's, where the test is of another one, such as its growth.
    """
    return Reading(convention, ours if shown is None else shown, test(ours))


def noted(convention: str, ours: Sample, words: str | None = None) -> Reading:
    """A reading of no test, that stands beside others; without words of its own the range over seeds."""
    spread = ours.range if ours.count > 1 else ""
    return Reading(convention, ours, described(spread if words is None else words))


def tested(
    quantity: str,
    paper: float | str,
    test: Predicate,
    ours: Sample | Mapping[str, Sample],
    *beside: Reading,
    **more: Any,
) -> Claim:
    """A claim with one test, which says of itself what it asks.

    Args:
        ours: one number, or one under each reading.
        beside: readings of no test, or with tests of other numbers.
        more: further fields of `Claim`.

    >>> found = tested("mu", "smaller", below(1), {"kernel": Sample((0.5,)), "operator": Sample((2.0,))})
    >>> found.test, [reading.outcome.held for reading in found.readings]
    ('below 1', [True, False])
    """
    by_reading = ours if isinstance(ours, Mapping) else {"": ours}
    readings = [judged(convention, sample, test) for convention, sample in by_reading.items()]
    return Claim(quantity, paper, str(test), (*readings, *beside), **more)


# -- curves ---------------------------------------------------------------------------------------------------------------


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
