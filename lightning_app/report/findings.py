"""What a run with plain and residual nets shows, in sentences for somebody who has not read the page yet."""

import math
from collections.abc import Sequence
from functools import partial

from lightning_app.common.numbers import epoch_text, plural, span
from lightning_app.report.page_data import gather
from lightning_app.report.pairs import DIVERGED, Pair, pairs
from lightning_app.report.sections.cushions import choose_layer
from lightning_app.runs import RunFolder
from lightning_app.runs.reader import Final, HeldOut


def findings(run: RunFolder) -> list[str]:
    """At most three sentences for each pair of arms, named where there are several; none without such a pair. Then which seeds
    are left out of them, because a net diverged.

    Last test or validation errors, training errors, and the median cushion of one layer: what is there, whichever net it
    speaks for.

    Raises:
        ValueError: from the run folder, if there is no log or it is not one of ours.
    """
    page = gather([run])
    found, notices = pairs(page, least=1)
    says = partial(_unseen, data=page.held_out), _train, _cushions
    said = [(pair, sentence) for pair in found for say in says if (sentence := say(pair))]
    named = len(found) > 1
    return [f"{pair.label}: {each[:1].lower()}{each[1:]}" if named else each for pair, each in said] + [
        each for each in notices if each.endswith(DIVERGED)
    ]


def _unseen(pair: Pair, data: HeldOut) -> str:
    residual, plain, more = _finite(*_both(pair, data.error))
    if not residual:
        return ""
    epochs = _epochs(residual + plain)
    count, depth = len(residual), pair.residual[0].depth
    layers = "" if depth is None else f" of {depth} layers"
    arms = f"the residual net{layers} has", "the plain one"
    if count > 1:
        arms = f"the {count} residual nets{layers} have", f"the {count} plain ones"
    return (
        f"After {epochs} {arms[0]} a {data.words} error of {_range(residual)}, {arms[1]} "
        f"{_range(plain)}: {_ahead(residual, plain)}{more}."
    )


def _train(pair: Pair) -> str:
    residual, plain, more = _finite(*_both(pair, "train/error"))
    if not residual:
        return ""
    return (
        f"On the training samples the error is {_range(residual)} with skips and {_range(plain)} without"
        f"{_earlier(pair, residual + plain)}: {_ahead(residual, plain)}{more}."
    )


def _cushions(pair: Pair) -> str:
    if (layer := choose_layer(pair.nets)) is None:
        return ""
    residual, plain = _both(pair, f"cushion/{layer}/median")
    same, _ = _both(pair, f"cushion/{layer}/median_transferred")
    if not residual or not same or not all(math.isfinite(one.value) for one in residual + plain + same):
        return ""
    counted = f" as the paper counts it, {_range(same)} with the identity counted as weights,"
    if [one.value for one in same] == [one.value for one in residual]:  # the layer itself has no skip
        counted = ""
    return (
        f"The median cushion of {layer} (how well it withstands noise on its weights) is {_range(residual)} with "
        f"skips{counted} and {_range(plain)} without skips{_earlier(pair, residual + plain)}."
    )


def _epochs(finals: Sequence[Final]) -> str:
    ends = {choose(last.epoch for last in finals) for choose in (min, max)}
    said = " to ".join(map(epoch_text, sorted(ends)))
    return f"{said} epoch{'s' * (said != '1')}"


def _earlier(pair: Pair, finals: Sequence[Final]) -> str:
    """After how many epochs, where nets have been trained on since: then it is not their end."""
    end = min(net.epoch for net in pair.nets)
    return f" (measured after {_epochs(finals)})" * any(last.epoch < end for last in finals)


def _both(pair: Pair, name: str) -> tuple[list[Final], list[Final]]:
    """The last values of the residual and of the plain nets, seed by seed; both empty if one net lacks the number."""
    sides = ([net.final(name) for net in nets] for nets in (pair.residual, pair.plain))
    residual, plain = ([last for last in side if last is not None] for side in sides)
    return (residual, plain) if len(residual) == len(plain) == len(pair.plain) else ([], [])


def _finite(residual: Sequence[Final], plain: Sequence[Final]) -> tuple[list[Final], list[Final], str]:
    """The seeds of which both numbers are finite, and how many more there are: NaN has no place in a range or an order."""
    pairs = [*zip(residual, plain, strict=True)]
    kept = [both for both in pairs if all(math.isfinite(last.value) for last in both)]
    lost = len(pairs) - len(kept)
    more = f"; {plural(lost, 'seed')} left out, as an error is not finite" * (lost > 0)
    return [one for one, _ in kept], [other for _, other in kept], more


def _ahead(residual: Sequence[Final], plain: Sequence[Final]) -> str:
    """In how many pairs the residual net has the smaller error, and in how many both have the same."""
    pairs = [(one.value, other.value) for one, other in zip(residual, plain, strict=True)]
    ahead, equal = sum(one < other for one, other in pairs), sum(one == other for one, other in pairs)
    if equal == len(pairs):
        return "they are equal"
    if len(pairs) == 1:
        return f"the {'residual' if ahead else 'plain'} net is ahead"
    return f"the residual net is ahead with {ahead} of {len(pairs)} seeds" + f", and equal with {equal}" * (equal > 0)


def _range(finals: Sequence[Final]) -> str:
    return span([last.value for last in finals], 2)
