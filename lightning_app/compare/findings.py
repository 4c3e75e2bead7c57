"""What a comparison finds: a verdict for each number, at the end and at equal training risk, as data and as sentences."""

import math
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from lightning_app.common.latex import escaped
from lightning_app.common.numbers import brief, epoch_text, plural, whole
from lightning_app.common.text import printable
from lightning_app.compare.sides import Sides, lower_is_better
from lightning_app.runs import Net
from lightning_app.statistics.paired import CONFIDENCE, Spread, differences, error_at_risk, spread
from lightning_app.statistics.sequential import PLANNED, Order, confidence_sequence, order, pairs_needed

UNKNOWN = "a number is not finite or not known"  # why a pair is left out


class Verdict(StrEnum):
    """Of A against B. Numbers that are neither good nor bad are larger or smaller."""

    BETTER = "better"
    WORSE = "worse"
    LARGER = "larger"
    SMALLER = "smaller"
    EQUIVALENT = "equivalent"
    UNRESOLVED = "unresolved"


@dataclass(frozen=True)
class Finding:
    """One number compared: A minus B over pairs."""

    name: str
    at: str  # "epoch 200", or the training risk at which it was read
    a: tuple[float, ...]  # of each pair
    b: tuple[float, ...]
    difference: float  # mean of A - B
    low: float  # of an interval that is valid at every look
    high: float
    verdict: Verdict
    pairs: int
    left_out: int  # pairs with a number that is not known, or of which both nets have diverged
    diverged: tuple[int, int]  # nets of A and of B that have diverged, and count as worse than any that has not
    pairs_needed: int | None  # to settle it, about; None: it is settled, none is foreseen, or it was not asked
    parted_at: float | None  # first epoch from which the verdict stays what it is, looked at epoch by epoch


def compare(
    sides: Sides, names: Sequence[str], margin: float | None = None, at_equal_risk: bool = True
) -> list[Finding]:
    """A finding for each name at the last epoch that all nets have, and for errors one at equal training risk.

    The chance that any verdict other than "unresolved" is wrong is at most 5 %. All questions share it, also those at equal
    training risk if not all nets reach such a risk, since they may at the next look. Verdicts at equal training risk have this
    chance for one look only, because that risk depends on all nets that there are.
    """
    equal = {name: reached for name in names if at_equal_risk and (reached := errors_at_equal_risk(sides, name))}
    alpha = level_of(names, at_equal_risk)
    found = []
    for name in names:
        epochs, a, b = sides.table(name)
        ends = (a.iloc[-1].to_numpy(), b.iloc[-1].to_numpy())
        at_end = judged(name, f"epoch {epoch_text(float(epochs[-1]))}", *ends, margin, alpha)
        failing = lower_is_better(name)
        pairs = [_counted(before, after, failing) for before, after in zip(a.to_numpy(), b.to_numpy())]
        orders = [_order(name, each, margin, alpha) for each in pairs]
        found.append(_parted(at_end, epochs, orders))
        if name in equal:
            level, a_there, b_there = equal[name]
            at_risk = f"training risk {brief(level, 3)}"
            found.append(judged(name, at_risk, a_there, b_there, margin, alpha))
    return found


def errors_at_equal_risk(sides: Sides, name: str) -> tuple[float, np.ndarray, np.ndarray] | None:
    """The lowest training risk that all nets reach while their errors are measured, and the errors there.

    None: not an error, or no such risk.
    """
    if (risk := sides.risk) is None or not _has_equal_risk(name):
        return None
    reached = error_at_risk(*([risk_and_error(net, risk, name) for net in nets] for nets in (sides.a, sides.b)))
    if not len(reached.levels):
        return None
    return float(reached.levels[-1]), reached.plain[:, -1], reached.residual[:, -1]


def risk_and_error(net: Net, risk: str, error: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Epochs from the first to the last one at which the error was measured, finite or not, the risks there, and the errors.

    Errors may be measured less often than risks; NaN where they were not.
    """
    risks, errors = net.series(risk), net.series(error)
    if len(errors):
        risks = risks.loc[errors.index[0] : errors.index[-1]]
    return risks.index.to_numpy(), risks.to_numpy(), errors.reindex(risks.index).to_numpy()


def level_of(names: Collection[str], at_equal_risk: bool = True) -> float:
    """The chance of a mistake that each question has."""
    return (1 - CONFIDENCE) / questions(names, at_equal_risk)


def questions(names: Collection[str], at_equal_risk: bool = True) -> int:
    """How many share the chance of a mistake: each name, and errors once more at equal training risk, reached or not."""
    return len(names) + at_equal_risk * sum(map(_has_equal_risk, names))


def _has_equal_risk(name: str) -> bool:
    """Whether it is asked for at equal training risk: by its name alone, so that the questions are fixed in advance."""
    last = name.rpartition("/")[2]
    trained_on = name.startswith(("train/", "probe/")) or last.startswith("train")
    return lower_is_better(name) and last.endswith("error") and not trained_on


def judged(
    name: str,
    at: str,
    a: np.ndarray,
    b: np.ndarray,
    margin: float | None,
    alpha: float,
    plan: bool = True,
) -> Finding:
    """The finding on numbers (pairs,) of both sides, as in `Sides.table`, wrong with chance alpha at most.

    The mean difference is of pairs with finite numbers. Other pairs are left out, but for those of which one net has diverged: an
    infinite error, risk or cost is worse than any other.

    Args:
        plan: say how many pairs would settle what is open, which is simulated and takes most of the time.
    """
    a, b = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    failing = lower_is_better(name)
    difference, its = _counted(a, b, failing), spread(differences(a, b))
    low = high = math.nan
    if difference.size:
        interval = confidence_sequence(difference, alpha)
        low, high = interval.low, interval.high
    verdict = _order(name, difference, margin, alpha)
    needed = None
    if plan and verdict is Verdict.UNRESOLVED and its.count > 1:
        needed = pairs_needed(its.mean, its.sd, margin, seen=difference, alpha=alpha)
    failed_a, failed_b = (int(np.isinf(side).sum()) * failing for side in (a, b))
    values = tuple(a.tolist()), tuple(b.tolist())
    left_out, failed = a.size - difference.size, (failed_a, failed_b)
    return Finding(name, at, *values, its.mean, low, high, verdict, difference.size, left_out, failed, needed, None)


def _counted(a: np.ndarray, b: np.ndarray, failing: bool) -> np.ndarray:
    """Differences of the finite pairs; of failures too, if infinite numbers are some: infinite where one net of two has failed.

    Where both have, neither is worse, and by how much they differ nobody knows: such a pair tells nothing.
    """
    found = differences(a, b)
    if not failing:
        return found[np.isfinite(found)]
    lost_a, lost_b = np.isinf(a), np.isinf(b)
    found = np.where(lost_a, math.inf, np.where(lost_b, -math.inf, found))
    found[lost_a & lost_b] = math.nan
    return found[~np.isnan(found)]


def _order(name: str, difference: np.ndarray, margin: float | None, alpha: float) -> Verdict:
    rated = lower_is_better(name)  # other numbers are larger or smaller, neither better nor worse
    return {
        Order.ABOVE: Verdict.WORSE if rated else Verdict.LARGER,
        Order.BELOW: Verdict.BETTER if rated else Verdict.SMALLER,
        Order.EQUIVALENT: Verdict.EQUIVALENT,
        Order.UNRESOLVED: Verdict.UNRESOLVED,
    }[order(difference, margin, alpha)]


def _parted(finding: Finding, epochs: np.ndarray, verdicts: Sequence[Verdict]) -> Finding:
    """With the first epoch from which every later one has the final verdict, if that is a difference."""
    if finding.verdict in (Verdict.UNRESOLVED, Verdict.EQUIVALENT):
        return finding
    others = [number for number, verdict in enumerate(verdicts) if verdict is not finding.verdict]
    first = others[-1] + 1 if others else 0
    return replace(finding, parted_at=whole(float(epochs[first])))


def text(finding: Finding, margin: float | None = None) -> str:
    """One line: what, where, both means, the difference with its interval, the verdict, and what would settle it."""
    a, b = _spreads(finding)
    means = f"A {brief(a.mean, sd=a.sd)}, B {brief(b.mean, sd=b.sd)}"
    lost = left_out(finding)
    if any(finding.diverged):
        lost.insert(0, "diverged, which counts as worst: {} of A, {} of B; not in the means".format(*finding.diverged))
    pairs = plural(finding.pairs, "pair") + f" ({'; '.join(lost)})" * bool(lost)
    return f"{printable(finding.name)} at {finding.at}: {means}; A - B {_interval(finding)}, {pairs}: {_said(finding, margin)}"


def left_out(finding: Finding) -> list[str]:
    """How many pairs are left out, and why."""
    both = sum(math.isinf(a) and math.isinf(b) for a, b in zip(finding.a, finding.b)) if any(finding.diverged) else 0
    reasons = [f"{plural(both, 'pair')} left out: both nets diverged"] * (both > 0)
    unknown = finding.left_out - both
    return reasons + [f"{unknown} more left out: {UNKNOWN}"] * (unknown > 0)


def _spreads(finding: Finding) -> list[Spread]:
    """Of A and of B, over the pairs whose numbers are finite."""
    both = np.array([finding.a, finding.b])
    return [spread(side) for side in both[:, np.isfinite(both).all(axis=0)]]


def _said(finding: Finding, margin: float | None) -> str:
    if finding.verdict is Verdict.EQUIVALENT:
        return f"equivalent within {brief(margin)}"
    if finding.verdict is not Verdict.UNRESOLVED:
        since = "" if finding.parted_at is None else f", from epoch {epoch_text(finding.parted_at)} on"
        return f"A is {finding.verdict}{since}"
    if finding.pairs < 2:
        return "unresolved: fewer than two pairs say nothing about other seeds"
    if _spreads(finding)[0].count < 2:
        return "unresolved; too few pairs have finite numbers on both sides to say how many would settle it"
    if finding.pairs_needed is None:
        return f"unresolved; {PLANNED} pairs like these would not settle it"
    more = finding.pairs_needed - finding.pairs
    return f"unresolved: about {plural(more, 'more seed')} would settle it"


def latex(finding: Finding) -> str:
    r"""A row of a table: name & where & pairs & A & B & difference with interval & verdict \\."""
    a, b = _spreads(finding)
    lost = [f"{plural(sum(finding.diverged), 'net')} diverged"] * any(finding.diverged)
    lost += [f"{finding.left_out} left out"] * (finding.left_out > 0)
    pairs = f"{finding.pairs}" + f" ({', '.join(lost)})" * bool(lost)
    where, numbers = (finding.name, finding.at), [brief(a.mean, sd=a.sd), brief(b.mean, sd=b.sd), _interval(finding)]
    return " & ".join([*map(escaped, where), pairs, *map(_math, numbers), finding.verdict]) + r" \\"


def _math(words: str) -> str:
    """
    >>> print(_math("6.2e-05 ± 1e+20"))
    $6.2 \\cdot 10^{-5} \\pm 1 \\cdot 10^{20}$
    """
    words = re.sub(r"e([-+]\d+)", lambda found: rf" \cdot 10^{{{int(found[1])}}}", words)
    return "$" + words.replace("±", r"\pm").replace("inf", r"\infty") + "$"


def _interval(finding: Finding) -> str:
    return f"{brief(finding.difference, 3)} [{brief(finding.low, 3)}, {brief(finding.high, 3)}]"
