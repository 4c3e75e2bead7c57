"""Claims, the readings under which they can be tested, and the outcome.

A claim of a paper may have several defensible readings: of a convention of measuring (a norm, a cost), or of a setting
that the paper does not give (a learning rate, where BatchNorm stands). True under all of them it is reproduced, under none
not reproduced; under some it is an artefact of the convention, or depends on the setting. A claim whose test needs more
than the runs hold is not tested, and says what is missing.

What a row rests on decides the word: a statement of the paper is *reproduced*; one that we rebuilt, because the text lost
its formula, *holds as rebuilt*; an identity, an executed proof or an addition of ours is *checked*; a number without a
test is *described*. What a row is about is its class. Counts are per class, and never one sum.

At reduced scale (fewer epochs or seeds than the paper) only orderings and dimensionless ratios are judged, in words of
their own: agrees, disagrees, undecided.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np


class Verdict(StrEnum):
    REPRODUCED = "reproduced"
    NOT_REPRODUCED = "not reproduced"
    ARTEFACT = "artefact of a convention"
    DEPENDS = "depends on a setting"
    REBUILT = "holds as rebuilt"
    CHECKED = "checked"
    DESCRIBED = "described"
    NOT_TESTED = "not tested"
    # at reduced scale
    AGREES = "agrees"
    DISAGREES = "disagrees"
    UNDECIDED = "undecided"


class Class(StrEnum):
    """What a claim is about."""

    FORMULA = "formula"  # closed forms, theorems, constructions
    INITIALISATION = "initialisation"  # nets before training
    TRAINED = "trained"  # nets during and after training


class Basis(StrEnum):
    """Whose statement is tested."""

    PAPER = "paper"
    REBUILT = "rebuilt"  # the paper's, but the text at hand lost its formula or constants
    OURS = "ours"  # an identity, an executed proof, or an addition of ours: the paper states no such thing


class Varies(StrEnum):
    """What the readings of a claim differ in."""

    CONVENTION = "convention"  # of measuring, and nothing else
    SETTING = "setting"  # of the experiment, which the paper does not give


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

    def map(self, function: Callable[..., float], *others: "Sample") -> "Sample":
        """The function seed by seed, of this and other samples over the same seeds."""
        missing = next((sample.missing for sample in (self, *others) if sample.missing), "")
        rows = zip(self.values, *(other.values for other in others), strict=False)
        return Sample(tuple(float(function(*row)) for row in rows), missing)

    def __sub__(self, other: "Sample") -> "Sample":
        return self.map(lambda one, two: one - two, other)

    def __truediv__(self, other: "Sample") -> "Sample":
        """NaN where there is nothing to divide by."""
        return self.map(lambda one, two: one / two if two else math.nan, other)


@dataclass(frozen=True)
class Outcome:
    """Result of one test.

    ``held`` is None if it could not be evaluated (``why`` says what is missing), or if there is no test (``judged`` is
    False). ``unresolved``: it did not hold, but the data do not contradict it either, as an interval that contains zero.
    """

    held: bool | None
    why: str = ""
    finding: str = ""  # said even where it held
    judged: bool = True
    unresolved: bool = False


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

    convention: str  # or setting; "" where there is only one
    ours: Sample
    outcome: Outcome


@dataclass(frozen=True)
class Claim:
    """One line of an artefact's table."""

    quantity: str
    paper: float | str  # as printed, nothing of ours; "" where the paper has no such number or statement
    test: str  # in words, with its tolerance, fixed before any run
    readings: tuple[Reading, ...]
    about: Class | None = None  # None: what the artefact says
    basis: Basis = Basis.PAPER
    varies: Varies = Varies.CONVENTION
    power: str = ""  # what the test would let pass, where that is much
    ratio: bool = False  # an ordering or a dimensionless ratio, which reduced scale may judge

    @property
    def ours(self) -> Sample:
        """Under the first reading, the one this project takes for the paper's."""
        return self.readings[0].ours


HELD = {Basis.PAPER: Verdict.REPRODUCED, Basis.REBUILT: Verdict.REBUILT, Basis.OURS: Verdict.CHECKED}
MIXED = {Varies.CONVENTION: Verdict.ARTEFACT, Varies.SETTING: Verdict.DEPENDS}
REDUCED = {
    **dict.fromkeys((Verdict.REPRODUCED, Verdict.REBUILT, Verdict.CHECKED), Verdict.AGREES),
    **{Verdict.NOT_REPRODUCED: Verdict.DISAGREES},
    **dict.fromkeys((Verdict.ARTEFACT, Verdict.DEPENDS), Verdict.UNDECIDED),
}


def judge(claim: Claim) -> tuple[Verdict, str]:
    """Verdict and its reason.

    >>> sample = Sample((1.0,))
    >>> one, other = Reading("kernel", sample, holds(True)), Reading("operator", sample, holds(False, "3 > 2"))
    >>> judge(Claim("mu", 1.0, "larger", (one, other)))
    (<Verdict.ARTEFACT: 'artefact of a convention'>, 'true only under: kernel')
    >>> judge(Claim("mu", 1.0, "larger", (one, other), varies=Varies.SETTING))[0].value
    'depends on a setting'
    >>> judge(Claim("mu", 1.0, "larger", (one,)))[0].value, judge(Claim("mu", "", "is 1", (one,), basis=Basis.OURS))[0].value
    ('reproduced', 'checked')
    """
    missing = [lacking for reading in claim.readings if (lacking := _lacking(reading))]
    if missing:
        return Verdict.NOT_TESTED, missing[0]
    judged = [reading for reading in claim.readings if reading.outcome.judged]
    if not judged:
        return Verdict.DESCRIBED, claim.readings[0].outcome.why
    held = [reading for reading in judged if reading.outcome.held]
    if len(held) == len(judged):
        return HELD[claim.basis], "; ".join(filter(None, (reading.outcome.finding for reading in held)))
    if not held:
        return Verdict.NOT_REPRODUCED, "; ".join(filter(None, (reading.outcome.why for reading in judged)))
    return MIXED[claim.varies], f"true only under: {'; '.join(reading.convention for reading in held)}"


def judge_reduced(claim: Claim) -> tuple[Verdict, str]:
    """Verdict at reduced scale and its reason: never on a printed value, and undecided where the data do not decide.

    >>> near, far = Reading("", Sample((1.2,)), holds(True)), Reading("", Sample((0.9,)), holds(False, "0.9"))
    >>> judge_reduced(Claim("plain / residual", "> 1", "above 1", (far,), ratio=True))
    (<Verdict.DISAGREES: 'disagrees'>, '0.9')
    >>> judge_reduced(Claim("L", 0.07, "within 10 %", (near,)))[0].value
    'not tested'
    """
    verdict, why = judge(claim)
    if verdict in REDUCED and not claim.ratio:
        return Verdict.NOT_TESTED, "only orderings and dimensionless ratios are judged at reduced scale"
    judged = [reading.outcome for reading in claim.readings if reading.outcome.judged]
    if verdict is Verdict.NOT_REPRODUCED and any(outcome.unresolved for outcome in judged):
        return Verdict.UNDECIDED, why
    return REDUCED.get(verdict, verdict), why


def counted(pairs: Iterable[tuple[Class, Verdict]]) -> dict[str, dict[str, int]]:
    """Verdicts by what the claims are about, in the enums' order. There is no sum over classes.

    >>> counted([(Class.TRAINED, Verdict.NOT_TESTED), (Class.FORMULA, Verdict.CHECKED)])
    {'formula': {'checked': 1}, 'trained': {'not tested': 1}}
    """
    found = Counter(pairs)
    by_class = {about.value: {v.value: n for v in Verdict if (n := found[about, v])} for about in Class}
    return {about: verdicts for about, verdicts in by_class.items() if verdicts}


def in_words(counts: Mapping[str, Mapping[str, int]]) -> str:
    """Counts as people read them.

    >>> in_words({"formula": {"reproduced": 1, "checked": 1}, "trained": {"not tested": 1}})
    'formula: 1 reproduced, 1 checked; trained: 1 not tested'
    """
    parts = (f"{about}: {', '.join(f'{n} {v}' for v, n in verdicts.items())}" for about, verdicts in counts.items())
    return "; ".join(parts) or "nothing claimed"


def with_power(test: str, power: str) -> str:
    """A test in words, with what it would let pass."""
    return f"{test} (power: {power})" if power else test


def _lacking(reading: Reading) -> str:
    """Why a reading cannot be told; "" when it can."""
    lost = sum(math.isnan(value) for value in reading.ours.values)
    if reading.ours.missing:
        return reading.ours.missing
    if lost:
        return f"not a number for {lost} of {reading.ours.count} seeds"
    return reading.outcome.why if reading.outcome.judged and reading.outcome.held is None else ""
