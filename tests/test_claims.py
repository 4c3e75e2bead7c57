"""The tests of claims at their edges: a seed that is not a number leaves a claim open, whichever sample it is in."""

import math

import pytest

from lightning_app.claims import degradation, gaps
from lightning_app.verdicts import Sample, Verdict, judge

LOST = math.nan


def verdicts(claims) -> list[Verdict]:
    return [judge(claim)[0] for claim in claims]


@pytest.mark.parametrize(
    ("plain", "residual", "verdict"),
    [
        ((6.9, 7.0), (1.7, 1.8), Verdict.REPRODUCED),
        ((3.0, 3.2), (1.7, 1.8), Verdict.NOT_REPRODUCED),
        ((6.9, LOST), (1.7, 1.8), Verdict.NOT_TESTED),
        ((6.9, 7.0), (1.7, LOST), Verdict.NOT_TESTED),
    ],
)
def test_degradation_needs_both_ratios(plain, residual, verdict):
    assert verdicts(degradation(Sample(plain), Sample(residual))) == [verdict] * 2


@pytest.mark.parametrize(
    ("shallow", "deep", "expected"),
    [
        ((0.1, 0.2), (0.3, 0.4), [Verdict.REPRODUCED] * 2),
        ((0.3, 0.4), (0.1, 0.2), [Verdict.REPRODUCED, Verdict.NOT_REPRODUCED]),
        ((0.1, LOST), (0.3, 0.4), [Verdict.NOT_TESTED] * 2),
    ],
)
def test_a_gap_is_larger_than_one_that_is_known(shallow, deep, expected):
    assert verdicts(gaps("E", {20: Sample(shallow), 32: Sample(deep)})) == expected
