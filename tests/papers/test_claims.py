"""The tests of claims at their edges: a seed that is not a number leaves a claim open, whichever sample it is in."""

import inspect
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from lightning_app.papers import PAPERS, paper
from lightning_app.papers.parts import PAPER
from lightning_app.papers.verdicts import Basis, Claim, Class, Sample, Varies, Verdict, judge, judge_reduced
from lightning_app.papers.yu_tomasi.fig_3_interlayer_noise import cushions, interlayer
from lightning_app.papers.yu_tomasi.nets import ARMS, DEPTHS
from lightning_app.papers.yu_tomasi.table_1 import FAMILY, as_printed, deeper, penalties, printed, smaller
from lightning_app.papers.yu_tomasi.table_3_fig_7 import id_shares
from lightning_app.reproduce.evidence import Reproduction
from lightning_app.reproduce.registration import NOWHERE

LOST = math.nan


@dataclass(frozen=True)
class Given:
    """Results of our choosing: whatever is measured of an arm of a depth has these values in its seeds."""

    samples: Mapping[tuple[str, int], Sample]

    def final(self, run: str, arm: str, name: str) -> Sample:
        return self.samples.get((arm, int(re.search(r"\d+", run)[0])), Sample(missing="no run"))


def verdicts(claims) -> list[Verdict]:
    return [judge(claim)[0] for claim in claims]


@pytest.mark.parametrize(
    ("plain", "residual", "verdict"),
    [
        ((6.9, 7.0), (1.7, 1.8), Verdict.REPRODUCED),
        ((2.3, 2.5), (1.7, 1.8), Verdict.NOT_REPRODUCED),
        ((6.9, LOST), (1.7, 1.8), Verdict.NOT_TESTED),
        ((6.9, 7.0), (1.7, LOST), Verdict.NOT_TESTED),
    ],
)
def test_degradation_needs_both_depths_and_arms(plain, residual, verdict):
    """Of the loss as a ratio, of the error as a difference."""
    shallow = {(arm, 20): Sample((1.0, 1.0)) for arm in ARMS}
    deep = {("plain", 44): Sample(plain), ("residual", 44): Sample(residual)}
    assert verdicts(deeper(Given(shallow | deep))) == [verdict] * 2


def test_an_error_that_falls_with_depth_is_not_constant():
    deep = {("plain", 44): Sample((1.1, 1.1)), ("residual", 44): Sample((0.2, 0.2))}
    shallow = {(arm, 20): Sample((1.0, 1.0)) for arm in ARMS}
    _, of_error = deeper(Given(shallow | deep))
    assert judge(of_error)[0] is Verdict.NOT_REPRODUCED and "plain - 2 |residual|" in of_error.quantity


def gaps(symbol: str, by_depth: Mapping[int, Sample]) -> list[Claim]:
    """Claims on plain minus residual, from the differences."""
    plain = {("plain", depth): sample for depth, sample in by_depth.items()}
    residual = {("residual", depth): sample.map(lambda _: 0.0) for depth, sample in by_depth.items()}
    found = {claim.quantity: claim for claim in smaller(Given(plain | residual))}
    return [found[f"{symbol} of plain - residual, depth {depth}"] for depth in by_depth]


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


@pytest.mark.parametrize(
    ("symbol", "values", "verdict"),
    [
        ("L", (0.070, 0.072, 0.074), Verdict.REPRODUCED),
        ("L", (0.1090, 0.1091, 0.1092), Verdict.NOT_REPRODUCED),  # off by a factor 1.51
        ("L", (0.0800, 0.0801, 0.0802), Verdict.NOT_REPRODUCED),  # off by 10 %, but by 78 of their standard deviations
        ("E", (0.125, 0.127, 0.129), Verdict.REPRODUCED),
        ("E", (0.100, 0.110, 0.120), Verdict.NOT_REPRODUCED),  # off by 1.63 points
        ("L", (0.070, 0.074), Verdict.NOT_TESTED),
    ],
)
def test_a_printed_number_has_to_be_near_and_a_possible_draw(symbol, values, verdict):
    paper = {"L": 0.07227, "E": 0.1263}[symbol]
    claim = as_printed(symbol, "plain", 20, paper, Sample(values))
    assert judge(claim)[0] is verdict
    assert judge_reduced(claim)[0] is Verdict.NOT_TESTED  # a printed value
    assert FAMILY == 18 and "± 22 of their standard deviations" in claim.power


def test_a_single_run_has_no_spread_to_be_drawn_from():
    claim = as_printed("C", "plain", 20, 0.04183, Sample((0.05,)), seeds=False)
    assert (claim.test, judge(claim)[0], claim.power) == ("within a factor 1.5 of 0.04183", Verdict.REPRODUCED, "")


def all_claims() -> list[Claim]:
    results = Given({(arm, depth): Sample((1.0, 2.0, 3.0)) for arm in ARMS for depth in DEPTHS})
    finders = (printed, smaller, deeper, penalties, id_shares, cushions, interlayer)
    return [claim for find in finders for claim in find(results)]


def test_each_says_what_it_is_about_and_whose_it_is():
    for claim in all_claims():
        assert claim.about is Class.TRAINED, claim.quantity
        assert claim.basis is Basis.PAPER, claim.quantity
        assert claim.varies is Varies.CONVENTION, claim.quantity
        assert claim.paper != "", claim.quantity


def test_reduced_scale_judges_orderings_and_ratios_only():
    judged = {claim.quantity.split(",")[0] for claim in all_claims() if claim.ratio}
    assert judged == {
        "L of plain - residual",
        "E of plain - residual",
        "L(44) / L(20)",
        "E(44) - E(20)",
        "ID entries / |w| ≥ 0.25",
        "median cushion of layer 10",
        "layers where the residual median is not larger",
        "residual / plain",
    }


def test_the_paper_s_column_has_no_bound_of_ours():
    """A sign of inequality is of a test; the paper has numbers and words."""
    assert not [claim.quantity for claim in all_claims() if set("<>≥≤") & set(str(claim.paper))]


@pytest.mark.parametrize("key", PAPERS)
def test_what_is_ours_has_nothing_in_the_paper_s_column(key):
    """Of every artefact, without any result. A paper may have none; those of `findings` are all ours."""
    asked = [Reproduction(paper(key), each, PAPER, NOWHERE) for each in paper(key).artefacts]
    claims = [claim for each in asked for claim in each.artefact.claims(each.evidence().results)]
    ours = [claim for claim in claims if claim.basis is Basis.OURS]
    assert {claim.quantity: claim.paper for claim in ours if claim.paper != ""} == {}
    assert ours == claims or key != "findings"


def test_the_growth_of_a_gap_is_tested_and_the_gap_shown():
    shallow, deep = gaps("L", {20: Sample((0.3,)), 32: Sample((0.4,))})
    assert (shallow.paper, deep.paper) == ("0.07227 and 0.04287", "0.1225 and 0.04847")
    assert shallow.test == "above 0: by the print 0.0294"
    assert deep.test == "above 0: the difference less that of depth 20; by the print 0.04463"
    assert deep.ours.mean == 0.4
    assert judge(gaps("L", {20: Sample((0.3,)), 32: Sample((0.2,))})[1])[1] == "-0.1"


@pytest.mark.parametrize("key", PAPERS)
def test_pieces_name_every_parameter_that_their_function_takes(key):
    """A parameter with a default would decide numbers without being in the digest."""
    for computation in (each for artefact in paper(key).artefacts for each in artefact.computations):
        takes = set(inspect.signature(computation.compute).parameters) - {"source"}
        outermost = inspect.signature(computation.compute, follow_wrapped=False).parameters
        takes |= {"seeds"} & set(outermost)  # which `seed_by_seed` takes itself
        for asked in computation.pieces.values():  # data that are no name are found by source and limit
            wanted = {"limit" if name == "data" and name not in asked else name for name in takes}
            assert {*asked} == wanted, computation.name


@pytest.mark.parametrize("key", PAPERS)
def test_artefacts_of_a_paper_have_names_of_their_own(key):
    keys = [artefact.key for artefact in paper(key).artefacts]
    assert keys and len(keys) == len(set(keys))
