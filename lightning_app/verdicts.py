"""Claims, the readings under which they can be tested, and the verdict.

A claim of a paper may have several defensible readings (of a norm, of a cost, of an initialisation). True under all of
them it is reproduced, under none not reproduced, under some an artefact of a convention. A claim whose test needs more
than the runs hold is not tested, and says what is missing. What the paper shows without claiming a number is described.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

__all__ = ["Claim", "Outcome", "Reading", "Sample", "Verdict", "described", "holds", "judge", "one", "untested"]


class Verdict(StrEnum):
    REPRODUCED = "reproduced"
    NOT_REPRODUCED = "not reproduced"
    ARTEFACT = "artefact of a convention"
    NOT_TESTED = "not tested"
    DESCRIBED = "described"  # nothing was claimed: our number, for the reader


@dataclass(frozen=True)
class Sample:
    """One number of each seed, and how complete the runs behind it are."""

    values: tuple[float, ...] = ()
    missing: str = ""  # why this is not the number the claim is about: "epoch 12 of 200"

    @property
    def count(self) -> int:
        return len(self.values)

    @property
    def mean(self) -> float:
        return float(np.mean(self.values)) if self.values else float("nan")

    @property
    def sd(self) -> float:
        """Over seeds, n - 1 in the denominator; nan for fewer than two."""
        return float(np.std(self.values, ddof=1)) if self.count > 1 else float("nan")

    @property
    def range(self) -> str:
        """ "0.113 to 0.126": the smallest and the largest of the finite ones; "" for none."""
        finite = [value for value in self.values if math.isfinite(value)]
        return f"{min(finite):.3g} to {max(finite):.3g}" if finite else ""

    def map(self, function, *others: "Sample") -> "Sample":
        """The function seed by seed, of this and other samples over the same seeds."""
        missing = next((sample.missing for sample in (self, *others) if sample.missing), "")
        rows = zip(self.values, *(other.values for other in others), strict=False)
        return Sample(tuple(float(function(*row)) for row in rows), missing)


@dataclass(frozen=True)
class Outcome:
    """Of one test: did it hold? None: cannot be told, ``why`` says what is missing; or was not asked, if not ``judged``."""

    held: bool | None
    why: str = ""
    finding: str = ""  # said even where it held
    judged: bool = True


def holds(condition: bool, why: str = "", finding: str = "") -> Outcome:
    return Outcome(bool(condition), why, finding)


def described(words: str) -> Outcome:
    """Of no test: a number that stands beside a claim, and what is to be said of it."""
    return Outcome(None, words, judged=False)


def untested(why: str) -> Outcome:
    return Outcome(None, why)


@dataclass(frozen=True)
class Reading:
    """One way to read a claim, with our number under it."""

    convention: str  # "" where there is only one
    ours: Sample
    outcome: Outcome


@dataclass(frozen=True)
class Claim:
    """One line of an artefact's table."""

    quantity: str
    paper: float | str  # as printed
    test: str  # in words, with its tolerance, fixed before any run
    readings: tuple[Reading, ...]

    @property
    def ours(self) -> Sample:
        """Under the first reading, the one this project takes for the paper's."""
        return self.readings[0].ours


def one(quantity: str, paper: float | str, test: str, ours: Sample, outcome: Outcome) -> Claim:
    """A claim that has one reading."""
    return Claim(quantity, paper, test, (Reading("", ours, outcome),))


def judge(claim: Claim) -> tuple[Verdict, str]:
    """Verdict and its reason.

    >>> sample = Sample((1.0,))
    >>> one, other = Reading("kernel", sample, holds(True)), Reading("operator", sample, holds(False, "3 > 2"))
    >>> judge(Claim("mu", 1.0, "larger", (one, other)))
    (<Verdict.ARTEFACT: 'artefact of a convention'>, 'true only under: kernel')
    >>> judge(Claim("mu", 1.0, "larger", (one,)))[0].value
    'reproduced'
    """
    missing = [lacking for reading in claim.readings if (lacking := _lacking(reading))]
    if missing:
        return Verdict.NOT_TESTED, missing[0]
    judged = [reading for reading in claim.readings if reading.outcome.judged]
    if not judged:
        return Verdict.DESCRIBED, claim.readings[0].outcome.why
    held = [reading for reading in judged if reading.outcome.held]
    if len(held) == len(judged):
        return Verdict.REPRODUCED, _joined(reading.outcome.finding for reading in held)
    if not held:
        return Verdict.NOT_REPRODUCED, _joined(reading.outcome.why for reading in judged)
    return Verdict.ARTEFACT, f"true only under: {'; '.join(reading.convention for reading in held)}"


def _joined(words: Iterable[str]) -> str:
    return "; ".join(filter(None, words))


def _lacking(reading: Reading) -> str:
    """Why a reading cannot be told; "" when it can."""
    lost = sum(math.isnan(value) for value in reading.ours.values)
    if reading.ours.missing:
        return reading.ours.missing
    if lost:
        return f"not a number for {lost} of {reading.ours.count} seeds"
    return reading.outcome.why if reading.outcome.judged and reading.outcome.held is None else ""
