"""The tests that claims are put to: objects that are called with our number and print themselves.

What a test prints is what tables and the registration say of it, so that words and tolerance cannot part.
"""

import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
import pandas as pd
from scipy import stats

from lightning_app.papers.verdicts import Basis, Claim, Outcome, Reading, Sample, Varies, described, holds, untested
from lightning_app.statistics.paired import ENOUGH, first_reached, paired, value_where_reached

SEEDS_FOR_A_SPREAD = 3
LEVEL = 0.05  # of a whole family of tests


class Predicate(ABC):
    """A test of one number over seeds; as text, what it asks."""

    def __call__(self, ours: Sample) -> Outcome:
        """The test's outcome, once there is something to test."""
        measured = ours.count and not math.isnan(ours.mean)
        return self._outcome(ours) if measured else untested(ours.missing or "not measured")

    @abstractmethod
    def _outcome(self, ours: Sample) -> Outcome: ...


def _noted(each: bool, of: str, note: str) -> str:
    """What a test says behind its limit: of what it holds, and what that means."""
    return f"{f' in every {of}' if each else ''}{f': {note}' if note else ''}"


COMPARED = {"above": operator.gt, "at least": operator.ge, "at most": operator.le, "below": operator.lt}


@dataclass(frozen=True)
class Bound(Predicate):
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
        return f"{self.side} {self.limit:g}{_noted(self.each, self.of, self.note)}"

    def _outcome(self, ours: Sample) -> Outcome:
        worst = (max if self.side in ("at most", "below") else min)(ours.values) if self.each else ours.mean
        words = f"{worst:.3g}{f' in the worst {self.of}' if self.each and ours.count > 1 else ''}"
        return holds(COMPARED[self.side](worst, self.limit), words)


above, below = partial(Bound, "above"), partial(Bound, "below")
at_least, at_most = partial(Bound, "at least"), partial(Bound, "at most")


@dataclass(frozen=True)
class Within(Predicate):
    """|mean - paper| <= tolerance; with ``each``, of every seed."""

    paper: float
    tolerance: float
    note: str = ""  # where the tolerance comes from: "4 sampling sd"
    each: bool = False
    of: str = "seed"

    def __str__(self) -> str:
        return f"within {self.tolerance:.3g} of {self.paper:g}{_noted(self.each, self.of, self.note)}"

    def _outcome(self, ours: Sample) -> Outcome:
        off = max(abs(value - self.paper) for value in (ours.values if self.each else (ours.mean,)))
        return holds(off <= self.tolerance, f"off by {off:.3g}, tolerance {self.tolerance:.3g}")


@dataclass(frozen=True)
class Factor(Predicate):
    """Do ours and the paper's number differ by at most a factor? Of the mean over seeds."""

    paper: float
    factor: float

    def __str__(self) -> str:
        return f"within a factor {self.factor:g} of {self.paper:g}"

    def _outcome(self, ours: Sample) -> Outcome:
        off = max(ours.mean / self.paper, self.paper / ours.mean) if ours.mean > 0 else math.inf
        return holds(off <= self.factor, f"off by a factor {off:.3g}")


@dataclass(frozen=True)
class Share(Predicate):
    """|ours / paper - 1| <= share; of the mean, or of every seed."""

    paper: float
    share: float
    each: bool = False
    of: str = "seed"

    def __str__(self) -> str:
        return f"within {100 * self.share:g} % of {self.paper:g}{_noted(self.each, self.of, '')}"

    def _outcome(self, ours: Sample) -> Outcome:
        off = max(abs(value / self.paper - 1) for value in (ours.values if self.each else (ours.mean,)))
        return holds(off <= self.share, f"off by {100 * off:.3g} %")


@dataclass(frozen=True)
class NextDraw(Predicate):
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
        return super().__call__(ours)

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
class IntervalAbove(Predicate):
    """Is the 95 % bootstrap interval of the mean above zero?"""

    asks: ClassVar[str] = "above 0"

    def __str__(self) -> str:
        return f"95 % bootstrap interval of the mean over seeds {self.asks}"

    def __call__(self, ours: Sample) -> Outcome:
        if ours.count < ENOUGH:
            few = f"a 95 % bootstrap interval needs {ENOUGH} seeds, there are {ours.count}"
            return untested(ours.missing or few)
        return self._outcome(ours) if all(map(math.isfinite, ours.values)) else untested("not all values are finite")

    def _outcome(self, ours: Sample) -> Outcome:
        found = paired(ours.values, [0.0] * ours.count)
        unresolved = found.low <= 0 <= found.high
        words = f"unresolved, the interval contains 0: {found}" if unresolved else str(found)
        return Outcome(self._holds(found.low, found.high), words, finding=str(found), unresolved=unresolved)

    def _holds(self, low: float, high: float) -> bool:
        return low > 0


@dataclass(frozen=True)
class IntervalExcludes(IntervalAbove):
    """Does the 95 % bootstrap interval of the mean exclude zero, on either side?"""

    asks = "excludes 0"

    def _holds(self, low: float, high: float) -> bool:
        return low > 0 or high < 0


@dataclass(frozen=True, init=False)
class All(Predicate):
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

    _outcome = __call__


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


Ours = Sample | Mapping[str, Sample]  # one number, or one under each reading


def _by_reading(ours: Ours, read: Callable[[str, Sample], Reading], beside: tuple[Reading, ...]) -> tuple[Reading, ...]:
    readings = ours.items() if isinstance(ours, Mapping) else [("", ours)]
    return (*(read(convention, sample) for convention, sample in readings), *beside)


def tested(
    quantity: str, paper: float | str, test: Predicate, ours: Ours, *beside: Reading, all_of: int = 0, **more: Any
) -> Claim:
    """A claim with one test, which says of itself what it asks.

    Args:
        beside: readings of no test, or with tests of other numbers.
        all_of: seeds; a reading that could be measured with fewer only is described.
        more: further fields of `Claim`.

    >>> found = tested("mu", "smaller", below(1), {"kernel": Sample((0.5,)), "operator": Sample((2.0,))})
    >>> found.test, [reading.outcome.held for reading in found.readings]
    ('below 1', [True, False])
    """

    def reading(convention: str, sample: Sample) -> Reading:
        few = too_few(sample, all_of)
        return noted(convention, sample, few) if few else judged(convention, sample, test)

    return Claim(quantity, paper, str(test), _by_reading(ours, reading, beside), **more)


def too_few(sample: Sample, all_of: int) -> str:
    """Why a number of fewer seeds is described; "" of enough."""
    few = not sample.missing and sample.count < all_of
    return f"not judged: measured with {sample.count} seeds, and it takes {all_of}" if few else ""


def shown(quantity: str, paper: float | str, why: str, ours: Ours, *beside: Reading, **more: Any) -> Claim:
    """A claim, or a number of ours beside the claims, without a test: why there is none."""
    return Claim(quantity, paper, f"none: {why}", _by_reading(ours, noted, beside), **more)


def predicted(quantity: str, test: Predicate, ours: Ours, **more: Any) -> Claim:
    """A tested claim of ours, of which no paper says anything; its readings are settings."""
    return tested(quantity, "", test, ours, **{"basis": Basis.OURS, "varies": Varies.SETTING} | more)


def observed(quantity: str, ours: Ours) -> Claim:
    """A number of ours beside the predictions."""
    return shown(quantity, "", "of no prediction", ours, basis=Basis.OURS)


# -- curves ---------------------------------------------------------------------------------------------------------------


def epochs_to(curves: pd.DataFrame, level: float) -> list[float]:
    """The epoch at which each seed's curve first reaches a level from above, linear between epochs; nan if never.

    >>> epochs_to(pd.DataFrame({0: [2.0, 1.0, 0.2], 1: [2.0, 1.5, 1.2]}), 0.6)
    [1.5, nan]
    """
    return [float(first_reached(curves.index, curves[seed], np.array([level]))[0]) for seed in curves]


def matched(of: pd.DataFrame, at: pd.DataFrame, level: float) -> list[float]:
    """The value of one number where another first reaches a level, seed by seed, linear between epochs."""
    both = [pd.concat({"of": of[seed], "at": at[seed]}, axis=1).sort_index() for seed in of]
    return [float(value_where_reached(each.index, each["of"], each["at"], np.array([level]))[0]) for each in both]
