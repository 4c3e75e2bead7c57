"""What happened: how far the runs are, and findings with effect, interval and number of pairs, each with a link to its figure.

The numbers and verdicts are those of ``compare``. What is asked depends on what was measured, never on what came out, and all
sentences of a page share one chance of a mistake.
"""

import math
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

from lightning_app.common.errors import UserError
from lightning_app.common.numbers import brief, epoch_text, plural
from lightning_app.compare.findings import Finding, Verdict, errors_at_equal_risk, judged, left_out
from lightning_app.compare.sides import Sides, lower_is_better, matched
from lightning_app.report.blocks import Cell, Section, Sentences
from lightning_app.report.page_data import PageData
from lightning_app.report.pairs import counterparts, most_telling
from lightning_app.report.sections.curvature import key_of
from lightning_app.report.sections.cushions import choose_layer
from lightning_app.report.sections.outcome import outcome
from lightning_app.report.spectra import prefixes
from lightning_app.runs.reader import HeldOut, held_out
from lightning_app.statistics.paired import CONFIDENCE, common_levels, differences, first_reached
from lightning_app.statistics.sequential import evidence

TITLE = "What happened"
THUMBNAILS = ("learning-test-error", "learning-test-risk", "learning-train-risk", "learning-val-error")
MOST = 7  # sentences
WITHIN = 0.1  # a ratio so near to 1 does not matter
CAPTION = (
    "Each number is a mean difference over pairs of nets, or a geometric mean of ratios; its interval is in brackets. "
    "Numbers and verdicts are those of the command compare. The chance that any verdict is wrong is at most 5 %, however "
    "often you look (for sentences at a training risk: if you look once). To settle {} takes {} pairs or more: with "
    "fewer, a sentence describes these nets only."
)
OF_RATIOS = (
    f" Ratios are judged by their logarithms, and a ratio within {100 * WITHIN:.0f} % of 1 counts as equivalent: compare has "
    "no option for this."
)
OTHER = "Not compared with {}, because they were trained on different tasks: {}."
UNPAIRED = "Not paired by seed, but compared in their order: {}."
REST = "{} more arms have no sentence here: the command compare works on any two."


class Question(NamedTuple):
    """What is asked of an arm A and another one B; the sentence is: when, A, what it does, the effect, less or more, B."""

    when: str
    does: str
    less: str
    more: str
    a: np.ndarray  # (pairs,)
    b: np.ndarray
    figures: tuple[str, ...]  # keys: the first of them on the page is linked
    ratio: bool = False  # a and b are logarithms
    name: str = ""  # of the number, where a net that has none has failed
    same: str = "as large as that of"  # in place of less and more where the numbers of each pair are equal

    def pairs(self) -> int:
        """How many have two finite numbers."""
        return int((np.isfinite(self.a) & np.isfinite(self.b)).sum())

    def is_answered(self) -> bool:
        """Is there a pair of finite numbers, or one of which one net has diverged?"""
        return self.pairs() > 0 or self.one_diverged()

    def one_diverged(self) -> bool:
        """Is there a pair of which one net has diverged and the other has not, as `judged` counts them?"""
        return lower_is_better(self.name) and bool((np.isinf(self.a) != np.isinf(self.b)).any())

    def is_equal(self) -> bool:
        """Do A and B differ in no pair, less the rounding of a subtraction?"""
        return not self.one_diverged() and not np.nan_to_num(differences(self.a, self.b)).any()


Asked = tuple[tuple[str, str], Question | None]  # names of A and B; None: these numbers give no answer


def section(page: PageData, anchors: Collection[str]) -> Section:
    """Always how far the runs are, and the findings where two arms can be compared.

    Args:
        anchors: keys of the figures and panels on the page.
    """
    plain_of = {own[0]: plain[0] for plain, own in counterparts(page) if len(plain) == len(own) == 1}
    sides, notices = _sides(page, plain_of)
    asked: list[Asked] = []
    for arm, against in [*sides][:MOST]:
        questions = _questions(page, sides[arm, against], plain_of.get(arm) == against)
        asked += [((arm, against), question) for question in questions[: MOST // min(len(sides), MOST)]]
    lead, thumbnail = outcome(page), next((key for key in THUMBNAILS if key in anchors), "")
    blocks = [_findings(asked, anchors)] if any(question for _, question in asked) else []
    return Section("findings", TITLE, lead, blocks, notices, thumbnail=thumbnail)


def _findings(asked: Sequence[Asked], anchors: Collection[str]) -> Sentences:
    """A sentence for each answer. All that is asked shares the chance of a mistake: what is answered may change with a look."""
    alpha = (1 - CONFIDENCE) / len(asked)
    answered = [(arms, question) for arms, question in asked if question is not None]
    cells = []
    for arms, question in answered:
        figure = next((key for key in question.figures if key in anchors), "")
        cells.append(Cell(_sentence(*arms, question, alpha), link=figure))
    least = int(np.argmax(evidence(np.ones(64)) >= 2 / alpha)) + 1
    count = f"one of {len(asked)} questions" + ", answered or not," * (len(answered) < len(asked))
    caption = CAPTION.format(count if asked[1:] else "this question", least)
    tested = any(each.ratio and each.pairs() >= least for _, each in answered)
    return Sentences(cells, caption + OF_RATIOS * tested)


def _sides(page: PageData, plain_of: dict[str, str]) -> tuple[dict[tuple[str, str], Sides], list[str]]:
    """Each arm against its own plain one where that is certain, else against the first plain arm, or the first of all."""
    groups = page.groups
    plain = [name for name, nets in groups.items() if most_telling(nets).kind == "plain"]
    recorded = [name for name in plain if not most_telling(groups[name]).guessed]
    reference = next(iter([*recorded, *plain, *groups]), "")
    found: dict[tuple[str, str], Sides] = {}
    other = []
    for arm in groups:
        if arm != reference and arm not in plain_of.values():
            against = plain_of.get(arm, reference)
            try:
                found[arm, against] = matched(groups[arm], groups[against])
            except UserError:
                other.append(arm)
    unpaired = [f"{a} and {b}" for (a, b), sides in found.items() if sides.seeds is None and len(sides.a) > 1]
    notices = [OTHER.format(reference, ", ".join(other))] * bool(other)
    notices += [UNPAIRED.format(", ".join(unpaired))] * bool(unpaired)
    return found, notices + [REST.format(len(found) - MOST)] * (len(found) > MOST)


def _questions(page: PageData, sides: Sides, own: bool) -> list[Question | None]:
    """All that can be asked of what was measured, the most telling first; is it a plain arm and its ``own`` residual one?

    None: the numbers give no answer, as without a training risk that all nets reach. It is asked nevertheless.
    """
    unseen = held_out(sides.names)
    figure = f"learning-{unseen.key}-error"
    found = [_at_end(sides, unseen.error, f"a {unseen.words} error", figure)] * (unseen.error in sides.names)
    if sides.risk is not None:
        found.append(_epochs(sides, sides.risk))
    if sides.risk is not None and unseen.error in sides.names:
        found.append(_at_risk(sides, unseen, ("seeds-at-risk",) * own + (figure,)))
    for each in prefixes(page.nets) if sides.one_loss else ():
        what = "a largest eigenvalue" + (" of the Hessian" if each == "hessian" else f" ({each})")
        if (name := f"{each}/top1") in sides.names:
            found.append(_at_end(sides, name, what, f"{key_of(each)}-curves", ratio=True))
    if layer := choose_layer(page.nets, page.layer):
        name = f"cushion/{layer}/median"
        counts = name in sides.names and any(
            net.final(name) != net.final(f"{name}_transferred") for net in sides.a + sides.b
        )
        what = f"a median cushion at {layer}" + " (the identity counted as weights)" * counts
        if f"{name}_transferred" in sides.names:
            found.append(_at_end(sides, f"{name}_transferred", what, "cushion-median_transferred", ratio=True))
    if "train/error" in sides.names:
        found.append(_at_end(sides, "train/error", "a training error", "learning-train-error"))
    return [question if question is not None and question.is_answered() else None for question in found]


def _epochs(sides: Sides, risk: str) -> Question | None:
    """To the lowest round training risk that all nets reach."""
    ends = common_levels([net.series(risk).to_numpy() for net in sides.a + sides.b], 2)
    if not len(ends):
        return None
    scale = 10.0 ** math.floor(math.log10(ends[1]))
    level = next(round_ for step in (1, 2, 5, 10) if (round_ := step * scale) >= ends[1])
    if level >= ends[0]:
        return None
    curves = ([net.series(risk) for net in nets] for nets in (sides.a, sides.b))
    at = np.array([level])
    a, b = (np.array([first_reached(c.index.to_numpy(), c.to_numpy(), at)[0] for c in side]) for side in curves)
    words = "", f"reaches training risk {level:g} after", "fewer epochs than", "more epochs than"
    return Question(*words, a, b, (f"learning-{risk.replace('/', '-')}",), same="as many epochs as")


def _at_risk(sides: Sides, unseen: HeldOut, figures: tuple[str, ...]) -> Question | None:
    reached = errors_at_equal_risk(sides, unseen.error)
    if reached is None:
        return None
    risk, a, b = reached
    words = f"At training risk {brief(risk, 3)}", f"has a {unseen.words} error", "below that of", "above that of"
    return Question(*words, a, b, figures)


def _at_end(sides: Sides, name: str, what: str, figure: str, ratio: bool = False) -> Question | None:
    """At the last epoch at which all nets have the number."""
    try:
        epochs, *tables = sides.table(name)
    except UserError:  # there is no such epoch
        return None
    a, b = (table.iloc[-1].to_numpy() for table in tables)
    when = f"After epoch {epoch_text(float(epochs[-1]))}" if epochs[-1] else "Before training"
    if epochs[-1] < max(net.epoch for net in sides.a + sides.b):
        when += " (the last at which all nets have this number)"
    words = (when, f"has {what}", *(("times that of",) * 2 if ratio else ("below that of", "above that of")))
    if ratio:
        with np.errstate(divide="ignore", invalid="ignore"):  # a number that is not positive is left out
            a, b = np.log(a), np.log(b)
    return Question(*words, a, b, (figure,), ratio, "" if ratio else name)


def _sentence(a: str, b: str, question: Question, alpha: float) -> str:
    margin = math.log1p(WITHIN) if question.ratio else None
    found = judged(question.name, "", question.a, question.b, margin, alpha, plan=False)
    pairs = plural(found.pairs, "pair")
    if not question.pairs():
        return _of_diverged(a, b, question, found, pairs)
    numbers = [found.difference, found.low, found.high]
    if question.ratio:
        numbers = np.exp(numbers).tolist()
    elif found.difference < 0:
        numbers = [-found.difference, -found.high, -found.low]
    tested = math.isfinite(found.low) or math.isfinite(found.high)  # where nets diverged, one end is open
    effect, *ends = (brief(number, 3) for number in numbers)
    effect += f" [{', '.join(ends)}]" * tested
    less, better = found.difference < 0, found.verdict is Verdict.BETTER
    decided = any(found.diverged) and found.verdict in (Verdict.BETTER, Verdict.WORSE)  # by those
    if decided and not found.difference:
        less = better
    how = f"{effect} {question.less if less else question.more} {b}"
    if not decided and not np.nan_to_num(differences(question.a, question.b), posinf=0.0, neginf=0.0).any():
        how = f"{question.same} {b}" + ": they are equal" * question.is_equal()  # in the words of `fit`
    pairs += f"; {plural(sum(found.diverged), 'net')} diverged, which counts as worst" * any(found.diverged)
    if decided and less is not better:  # the nets that did not diverge tell the opposite
        pairs += f", so that {a} is {found.verdict}"
    pairs = ", ".join([pairs, *left_out(found)])
    verdict = {Verdict.EQUIVALENT: f"; equivalent within {100 * WITHIN:.0f} %", Verdict.UNRESOLVED: "; unresolved"}
    said = verdict.get(found.verdict, "") if tested else ", too few to test"
    return f"{question.when} {a} {question.does} {how} ({pairs}{said}).".lstrip()


def _of_diverged(a: str, b: str, question: Question, found: Finding, pairs: str) -> str:
    """Without a pair of finite numbers there is no difference, but how many nets diverged may tell."""
    lost, other = (
        f"{count} of {len(question.a)} nets of {arm}" for count, arm in zip(found.diverged, (a, b), strict=True)
    )
    verdict = {Verdict.BETTER: f": {a} is better", Verdict.WORSE: f": {a} is worse"}.get(found.verdict, ": unresolved")
    number, pairs = question.does.removeprefix("has a "), ", ".join([pairs, *left_out(found)])
    return f"{question.when}, {lost} and {other} have no finite {number}, as they diverged{verdict} ({pairs})."
