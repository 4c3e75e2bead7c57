"""The tests that claims are put to."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from lightning_app.papers.predicates import (
    LEVEL,
    All,
    Factor,
    IntervalAbove,
    IntervalExcludes,
    NextDraw,
    Share,
    Within,
    above,
    at_least,
    at_most,
    below,
    epochs_to,
    judged,
    matched,
    noted,
    tested,
)
from lightning_app.papers.verdicts import (
    Basis,
    Claim,
    Class,
    Outcome,
    Reading,
    Sample,
    Varies,
    Verdict,
    counted,
    described,
    holds,
    in_words,
    judge,
    judge_reduced,
    untested,
)
from lightning_app.statistics.paired import paired


@pytest.mark.parametrize(
    ("test", "values", "held"),
    [
        (above(2), (2.0, 2.001, 1.999), [False, True, False]),
        (at_least(2), (2.0, 2.001, 1.999), [True, True, False]),
        (at_most(2), (2.0, 2.001, 1.999), [True, False, True]),
        (below(2), (2.0, 2.001, 1.999), [False, False, True]),
        (Within(1.0, 0.25), (0.74, 0.75, 1.25, 1.26), [False, True, True, False]),
        (Share(-2.0, 0.1), (-1.79, -1.81, -2.19, 2.0), [False, True, True, False]),
        (Factor(2.0, 1.5), (1.32, 1.34, 3.0, 3.1, -1.0), [False, True, True, False, False]),  # it needs the same sign
    ],
)
def test_at_the_limit(test, values, held):
    assert [test(Sample((x,))).held for x in values] == held


def test_a_bound_is_on_the_mean_or_on_every_seed():
    ours = Sample((0.9, 1.5))
    assert above(1)(ours).held is True
    assert above(1, each=True)(ours) == Outcome(False, "0.9 in the worst seed")
    assert below(1.2, each=True)(ours).why == "1.5 in the worst seed"
    assert (str(above(1)), str(above(1, each=True))) == ("above 1", "above 1 in every seed")
    assert [Within(1.0, 0.25, each=each)(Sample((0.5, 1.5))).held for each in (False, True)] == [True, False]


@pytest.mark.parametrize("test", [Within, Share])
@pytest.mark.parametrize("values", [(1.1, 1.3, 0.6), (0.6, 1.1, 1.3)])
def test_of_every_seed_the_one_that_is_furthest_off_decides(test, values):
    """The mean is the paper's number, and all but one seed are near it."""
    assert test(1.0, 0.35)(Sample(values)).held is True
    assert test(1.0, 0.35, each=True)(Sample(values)).held is False
    assert test(1.0, 0.41, each=True)(Sample(values)).held is True


@pytest.mark.parametrize(
    "test", [above(0), Within(1.0, 0.5), Factor(1.0, 2), Share(1.0, 0.5), NextDraw(1.0, 18), IntervalAbove()]
)
def test_what_was_not_measured_cannot_be_told(test):
    for ours in (Sample(missing="no run of depth20"), Sample((math.nan,) * 6, "no run of depth20")):
        outcome = test(ours)
        assert (outcome.held, outcome.judged) == (None, True)
    assert test(Sample(missing="no run of depth20")).why == "no run of depth20"


def test_the_next_draw_needs_three_seeds():
    assert NextDraw(1.0, 1)(Sample((1.0, 1.1))).held is None
    assert NextDraw(1.0, 1)(Sample((1.0, 1.1), "epoch 3 of 200")).why == "epoch 3 of 200"


def test_the_interval_is_student_s_with_room_for_one_more():
    """Of three seeds with sd 0.1: t(0.975, 2) = 4.303, times sqrt(4/3)."""
    ours, reach = Sample((1.0, 1.1, 1.2)), 4.302653 * math.sqrt(4 / 3) * 0.1
    assert [NextDraw(1.1 + sign * f * reach, 1)(ours).held for sign in (-1, 1) for f in (0.999, 1.001)] == [
        True,
        False,
    ] * 2


@pytest.mark.parametrize("count", [3, 5, 13])
@pytest.mark.parametrize("family", [1, 5])
def test_one_more_draw_fails_as_often_as_said(count, family):
    """If the print is one more normal draw, each test fails with 5 % / family: in 40,000 trials to 4 standard errors."""
    trials, rate = 40_000, LEVEL / family
    draws = np.random.default_rng(count).normal(3.0, 0.2, (trials, count + 1))
    off = np.abs(draws[:, :-1].mean(axis=1) - draws[:, -1])
    failed = np.mean(off > NextDraw(0.0, family).widths(count) * draws[:, :-1].std(axis=1, ddof=1))
    assert abs(failed - rate) < 4 * math.sqrt(rate / trials)
    some = [NextDraw(float(row[-1]), family)(Sample(tuple(map(float, row[:-1])))).held for row in draws[:50]]
    assert some == list(off[:50] <= NextDraw(0.0, family).widths(count) * draws[:50, :-1].std(axis=1, ddof=1))


def test_one_open_test_leaves_the_whole_open():
    both = All(NextDraw(1.0, 18), Factor(1.0, 1.5))
    assert both(Sample((9.0, 9.1))) == untested("a spread needs 3 seeds, there are 2")
    assert both(Sample((1.0, 1.1, 1.2))).held is True
    assert both(Sample((1.0, 9.0, 17.0))) == Outcome(False, "off by a factor 9")


def test_a_whole_is_unresolved_only_where_nothing_contradicts_it():
    mixed = Sample((-0.3, 0.2, -0.1, 0.3, 0.1, -0.2))
    assert All(IntervalAbove(), below(1))(mixed).unresolved
    assert not All(IntervalAbove(), below(-1))(mixed).unresolved
    assert not All(IntervalAbove(), below(1))(Sample((0.1,) * 6)).unresolved


@pytest.mark.parametrize(
    ("test", "other", "words"),
    [
        (above(2), above(3), "above 2"),
        (below(0.5, each=True), below(0.4, each=True), "below 0.5 in every seed"),
        (at_most(2, note="layers"), at_most(3, note="layers"), "at most 2: layers"),
        (Within(0.1263, 0.015), Within(0.1263, 0.02), "within 0.015 of 0.1263"),
        (Factor(0.2, 1.5), Factor(0.2, 3), "within a factor 1.5 of 0.2"),
        (Share(0.76, 0.1), Share(0.76, 0.15), "within 10 % of 0.76"),
        (
            NextDraw(0.07, 18),
            NextDraw(0.07, 12),
            "0.07 in the prediction interval of our seeds, 5 % over a family of 18 (mean ± t sd √(1 + 1/n))",
        ),
        (All(Factor(2, 1.5), below(9)), All(Factor(2, 1.5), below(8)), "within a factor 1.5 of 2, and below 9"),
    ],
)
def test_another_tolerance_has_other_words(test, other, words):
    assert str(test) == words
    assert str(other) != words


def test_a_claim_s_words_are_those_of_its_test():
    claim = tested("mu", "smaller", below(1.0), {"kernel": Sample((0.5,)), "operator": Sample((2.0,))})
    assert claim.test == "below 1"
    assert judge(claim) == (Verdict.ARTEFACT, "true only under: kernel")
    growth = judged("", Sample((0.1,)), above(0), shown=Sample((0.4,)))
    assert (growth.ours.mean, growth.outcome.held) == (0.4, True)
    assert noted("plain", Sample((1.0, 3.0))).outcome == described("1 to 3")


def test_crossings_are_linear_between_epochs_and_the_first_counts():
    curves = pd.DataFrame({0: [2.0, 1.0, 0.4, 1.0, 0.1], 1: [0.3, 0.2, 0.2, 0.2, 0.2]}, index=[0, 1, 2, 3, 4])
    assert epochs_to(curves, 0.7) == [1.5, 0.0]
    errors = pd.DataFrame({0: [0.9, 0.5, 0.3, 0.3, 0.2], 1: [0.8, 0.7, 0.7, 0.7, 0.7]}, index=[0, 1, 2, 3, 4])
    assert matched(errors, curves, 0.7) == pytest.approx([0.4, 0.8])
    assert math.isnan(matched(errors, curves, 0.01)[0])


def test_a_number_that_is_measured_less_often_is_matched_between_its_own_epochs():
    risks, errors = pd.DataFrame({0: [2.0, 1.0, 0.2]}, index=[0, 1, 2]), pd.DataFrame({0: [0.8, 0.4]}, index=[0, 2])
    assert matched(errors, risks, 1.0) == pytest.approx([0.6])


ABOVE, MIXED = (0.1, 0.12, 0.11, 0.13, 0.1, 0.12), (-0.3, 0.1, 0.12, 0.11, 0.13, 0.1)


@pytest.mark.parametrize(
    ("values", "is_above", "excludes"),
    [
        (ABOVE, True, True),
        ((-0.3, *ABOVE), False, False),  # although their mean is above zero
        (tuple(-x for x in ABOVE), False, True),
        ((0.1,) * 5, None, None),  # too few
        ((0.1,) * 6, True, True),
        ((-0.1,) * 6, False, True),
        ((0.1,) * 6 + (math.nan,), None, None),
    ],
)
def test_an_interval_above_zero_or_on_either_side(values, is_above, excludes):
    assert (IntervalAbove()(Sample(values)).held, IntervalExcludes()(Sample(values)).held) == (is_above, excludes)


def test_an_interval_that_contains_zero_is_unresolved():
    for test in (IntervalAbove(), IntervalExcludes()):
        outcome = test(Sample(MIXED))
        assert outcome.unresolved
        assert outcome.why.startswith("unresolved, the interval contains 0: ")
    assert not IntervalAbove()(Sample((-0.1,) * 6)).unresolved  # that contradicts


def test_at_reduced_scale_unresolved_is_undecided():
    claims = [tested("E", "", IntervalAbove(), Sample(values), ratio=True) for values in (MIXED, (-0.1,) * 6)]
    assert [judge_reduced(claim)[0] for claim in claims] == [Verdict.UNDECIDED, Verdict.DISAGREES]


def test_at_reduced_scale_one_unresolved_reading_leaves_a_claim_undecided():
    readings = {"kernel": Sample((-0.1,) * 6), "operator": Sample(MIXED)}
    claim = tested("E", "", IntervalAbove(), readings, ratio=True)
    assert (judge(claim)[0], judge_reduced(claim)[0]) == (Verdict.NOT_REPRODUCED, Verdict.UNDECIDED)


@pytest.mark.parametrize("held", [(True, True), (False, False), (True, False)])
@pytest.mark.parametrize("basis", Basis)
@pytest.mark.parametrize("varies", Varies)
def test_at_reduced_scale_nothing_but_orderings_and_ratios_is_judged(held, basis, varies):
    claim = Claim("L", 0.07, "within 10 %", readings(*held), basis=basis, varies=varies)
    assert judge_reduced(claim)[0] is Verdict.NOT_TESTED
    agrees = {2: Verdict.AGREES, 1: Verdict.UNDECIDED, 0: Verdict.DISAGREES}[sum(held)]
    assert judge_reduced(replace(claim, ratio=True))[0] is agrees


def test_the_finding_is_said_where_it_held_and_where_not():
    for sign, verdict in ((1, Verdict.REPRODUCED), (-1, Verdict.NOT_REPRODUCED)):
        ours = Sample(tuple(sign * x for x in ABOVE))
        found, why = judge(tested("q", "", IntervalAbove(), ours))
        assert found is verdict
        assert why == str(paired(ours.values, [0.0] * 6))


def test_what_is_described_is_not_judged():
    judged = Reading("", Sample((1.0,)), holds(True))
    beside = Reading("plain", Sample((2.0,)), described("1 to 3"))
    assert judge(Claim("q", "", "t", (judged, beside)))[0] is Verdict.REPRODUCED
    assert judge(Claim("q", "", "none", (beside,))) == (Verdict.DESCRIBED, "1 to 3")
    unfinished = Reading("plain", Sample((2.0,), "epoch 1 of 2"), described("1 to 3"))
    assert judge(Claim("q", "", "none", (unfinished,))) == (Verdict.NOT_TESTED, "epoch 1 of 2")


def readings(*held: bool | None) -> tuple[Reading, ...]:
    outcomes = [untested("open") if each is None else holds(each) for each in held]
    return tuple(Reading(name, Sample((1.0,)), outcome) for name, outcome in zip("ab", outcomes))


@pytest.mark.parametrize(
    ("held", "kinds", "verdict"),
    [
        ((True, True), {}, Verdict.REPRODUCED),
        ((False, False), {}, Verdict.NOT_REPRODUCED),
        ((True, False), {}, Verdict.ARTEFACT),
        ((False, True), {}, Verdict.ARTEFACT),
        ((True, None), {}, Verdict.NOT_TESTED),
        ((True, True), {"basis": Basis.OURS}, Verdict.CHECKED),
        ((True, True), {"basis": Basis.REBUILT}, Verdict.REBUILT),
        ((False, False), {"basis": Basis.OURS}, Verdict.NOT_REPRODUCED),
        ((True, False), {"varies": Varies.SETTING}, Verdict.DEPENDS),
        ((True, True), {"varies": Varies.SETTING}, Verdict.REPRODUCED),
    ],
)
def test_the_verdict_of_two_readings_and_what_they_rest_on(held, kinds, verdict):
    assert judge(Claim("q", 1.0, "t", readings(*held), **kinds))[0] is verdict


def test_an_unfinished_run_is_not_tested_whatever_its_numbers():
    reading = Reading("", Sample((1.0,), "epoch 12 of 200"), holds(True))
    assert judge(Claim("q", 1.0, "t", (reading,))) == (Verdict.NOT_TESTED, "epoch 12 of 200")


def test_a_seed_that_is_not_a_number_is_said_also_where_nothing_is_tested():
    ours, lost = Sample((1.0, math.nan, 2.0)), (Verdict.NOT_TESTED, "not a number for 1 of 3 seeds")
    assert judge(Claim("q", "", "none", (noted("", ours),))) == lost
    assert judge(Claim("q", 1.0, "t", (judged("", Sample((1.0,)), above(0), shown=ours),))) == lost


def test_a_range_is_of_the_finite_values():
    assert Sample((math.nan, 1.0, math.inf, 3.25, -math.inf)).range == "1 to 3.25"
    assert Sample((math.nan, math.inf)).range == Sample(()).range == ""


def test_samples_are_combined_seed_by_seed_and_stay_marked():
    part = Sample((1.0, 2.0), "epoch 1 of 2")
    assert Sample((2.0, 6.0)) / part == Sample((2.0, 3.0), "epoch 1 of 2")
    assert (Sample((2.0, 6.0)) - part).mean == 2.5
    assert math.isnan((Sample((2.0,)) / Sample((0.0,))).mean)


def test_counts_have_no_sum_over_classes():
    pairs = [(Class.TRAINED, Verdict.REPRODUCED), (Class.FORMULA, Verdict.REPRODUCED)]
    assert in_words(counted(pairs)) == "formula: 1 reproduced; trained: 1 reproduced"
    assert counted(reversed(pairs)) == counted(pairs)
    assert counted([]) == {}
