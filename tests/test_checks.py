"""The tests that claims are put to."""

import math

import pandas as pd
import pytest

from lightning_app.checks import (
    all_of,
    epochs_to,
    excludes_zero,
    matched,
    within,
    within_factor,
    within_sds,
    within_share,
)
from lightning_app.statistics import paired
from lightning_app.verdicts import (
    Claim,
    Reading,
    Sample,
    Verdict,
    described,
    holds,
    judge,
    untested,
)


def test_a_spread_needs_three_seeds():
    assert within_sds(Sample((1.0, 1.1)), 1.0, 3).held is None
    assert within_sds(Sample((1.0, 1.1, 1.2)), 1.39, 3).held is True
    assert within_sds(Sample((1.0, 1.1, 1.2)), 1.41, 3).held is False


def test_factors_and_shares_are_symmetric_where_they_should_be():
    assert [within_factor(Sample((x,)), 2.0, 1.5).held for x in (1.32, 1.34, 3.0, 3.1)] == [False, True, True, False]
    assert [within_share(Sample((x,)), -2.0, 0.1).held for x in (-1.79, -1.81, -2.19, 2.0)] == [
        False,
        True,
        True,
        False,
    ]
    assert within_factor(Sample((-1.0,)), 2.0, 1.5).held is False


@pytest.mark.parametrize("check", [within, within_factor, within_share])
def test_what_was_not_measured_cannot_be_told(check):
    outcome = check(Sample(missing="no run of depth20"), 1.0, 0.5)
    assert (outcome.held, outcome.why) == (None, "no run of depth20")


def test_one_open_test_leaves_the_whole_open():
    assert all_of(holds(False), untested("too few")).held is None
    assert all_of(holds(True), holds(True)).held is True
    assert all_of(holds(True), holds(False, "off")).why == "off"


def test_crossings_are_linear_between_epochs_and_the_first_counts():
    curves = pd.DataFrame({0: [2.0, 1.0, 0.4, 1.0, 0.1], 1: [0.3, 0.2, 0.2, 0.2, 0.2]}, index=[0, 1, 2, 3, 4])
    assert epochs_to(curves, 0.7) == [1.5, 0.0]
    errors = pd.DataFrame({0: [0.9, 0.5, 0.3, 0.3, 0.2], 1: [0.8, 0.7, 0.7, 0.7, 0.7]}, index=[0, 1, 2, 3, 4])
    assert matched(errors, curves, 0.7) == pytest.approx([0.4, 0.8])
    assert math.isnan(matched(errors, curves, 0.01)[0])


def test_an_interval_above_zero():
    above = (0.1, 0.12, 0.11, 0.13, 0.1, 0.12)
    assert excludes_zero(Sample(above)).held is True
    assert excludes_zero(Sample((-0.3, *above))).held is False  # although their mean is above zero
    assert excludes_zero(Sample(tuple(-x for x in above))).held is False


def test_too_few_or_lost_pairs_leave_it_open():
    assert excludes_zero(Sample((0.1,) * 5)).held is None
    assert excludes_zero(Sample((0.1,) * 6)).held is True
    assert excludes_zero(Sample((0.1,) * 6 + (math.nan,))).held is None


def test_the_finding_is_said_where_it_held_and_where_not():
    for sign, verdict in ((1, Verdict.REPRODUCED), (-1, Verdict.NOT_REPRODUCED)):
        ours = Sample(tuple(sign * x for x in (0.1, 0.12, 0.11, 0.13, 0.1, 0.12)))
        found, why = judge(Claim("q", "", "t", (Reading("", ours, excludes_zero(ours)),)))
        assert found is verdict
        assert why == str(paired(ours.values, [0.0] * 6))


def test_what_is_described_is_not_judged():
    judged = Reading("", Sample((1.0,)), holds(True))
    beside = Reading("plain", Sample((2.0,)), described("1 to 3"))
    assert judge(Claim("q", "", "t", (judged, beside)))[0] is Verdict.REPRODUCED
    assert judge(Claim("q", "", "none", (beside,))) == (Verdict.DESCRIBED, "1 to 3")
    unfinished = Reading("plain", Sample((2.0,), "epoch 1 of 2"), described("1 to 3"))
    assert judge(Claim("q", "", "none", (unfinished,))) == (Verdict.NOT_TESTED, "epoch 1 of 2")


@pytest.mark.parametrize(
    ("held", "verdict"),
    [
        ((True, True), Verdict.REPRODUCED),
        ((False, False), Verdict.NOT_REPRODUCED),
        ((True, False), Verdict.ARTEFACT),
        ((False, True), Verdict.ARTEFACT),
        ((True, None), Verdict.NOT_TESTED),
    ],
)
def test_the_verdict_of_two_readings(held, verdict):
    outcomes = [untested("open") if h is None else holds(h) for h in held]
    readings = tuple(Reading(name, Sample((1.0,)), outcome) for name, outcome in zip("ab", outcomes))
    assert judge(Claim("q", 1.0, "t", readings))[0] is verdict


def test_an_unfinished_run_is_not_tested_whatever_its_numbers():
    reading = Reading("", Sample((1.0,), "epoch 12 of 200"), holds(True))
    assert judge(Claim("q", 1.0, "t", (reading,))) == (Verdict.NOT_TESTED, "epoch 12 of 200")


def test_samples_are_combined_seed_by_seed_and_stay_marked():
    ratio = Sample((2.0, 6.0)).map(lambda a, b: a / b, Sample((1.0, 2.0), "epoch 1 of 2"))
    assert ratio == Sample((2.0, 3.0), "epoch 1 of 2")
    assert ratio.mean == 2.5
