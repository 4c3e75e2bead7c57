"""Conventions: their keys are logged ones, conclusions are those of statistics, and the page says where the choice decides."""

import csv
import io
import json
import math
import re

import numpy as np
import pytest

from lightning_app.papers.findings.notation import MEASURES, SAME
from lightning_app.report.blocks import Figure, Section, Table
from lightning_app.report.conventions import (
    AGREES,
    DECIDES,
    INVARIANT,
    LARGER,
    NOTATION,
    OPEN,
    SMALLER,
    TOO_FEW,
    UNDER_T,
    UNRESOLVED,
    Convention,
    Quantity,
    across_conventions,
    quantities,
    values_of,
)
from lightning_app.report.page_data import gather
from lightning_app.report.pairs import pairs
from lightning_app.report.sections import conventions
from lightning_app.runs import Row, RunFolder
from lightning_app.statistics.paired import bootstrap_interval, paired
from tests.helpers import ROOT
from tests.test_docs import EVERY, expanded, pattern

CUSHION = "Layer cushion: the identity and the norm"
A = Convention("a", "measure/a", "first")
B = Convention("b", "measure/b", "second")
QUANTITY = Quantity("Quantity", (A, B))


@pytest.fixture
def nets(tmp_path):
    """nets({member: {name: value}}): a run of one epoch."""

    def nets(members: dict[str, dict[str, float]], name: str = "run", epoch: int = 1) -> RunFolder:
        run = RunFolder(tmp_path / "runs" / name)
        run.append([Row(member, epoch, epoch, key, x) for member, found in members.items() for key, x in found.items()])
        return run

    return nets


def arms(plain: dict[str, list[float]], residual: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    """Members of two arms from numbers by seed."""
    return {
        f"{arm}-seed{seed:02d}": {name: values[seed] for name, values in found.items()}
        for arm, found in (("plain", plain), ("residual", residual))
        for seed in range(len(next(iter(found.values()))))
    }


def entry(run: RunFolder, quantity: Quantity = QUANTITY):
    ((pair,), _) = pairs(gather([run]), least=1)
    ((found),) = across_conventions(pair, [quantity])
    return found


def section(*runs: RunFolder) -> Section:
    return conventions.section(gather(runs))


def table(found: Section, title: str) -> dict[str, list[str]]:
    """Exact cells by the first of the row."""
    (block,) = (block for block in found.blocks if isinstance(block, Table) and block.title == title)
    return {row[0].text: [cell.exact or cell.text for cell in row[1:]] for row in block.rows}


def data(found: Section) -> list[dict[str, str]]:
    (block,) = (block for block in found.blocks if isinstance(block, Figure))
    return [*csv.DictReader(io.StringIO(block.csv))]


DOCUMENTED = [pattern(key) for one in EVERY for key in expanded(one)]


def is_documented(key: str) -> bool:
    """Whether a callback's table of keys has it; a test compares these tables with what is logged.

    >>> is_documented("cushion/layer*/median"), is_documented("cushion/layer*/medium")
    (True, False)
    """
    one = key.replace("layer*", "layer07").replace("block*", "block05").replace("*", "0.1")
    return any(each.fullmatch(one) for each in DOCUMENTED)


def test_every_key_is_one_that_is_logged():
    assert is_documented("noise/response_*") and not is_documented("noise/respond_*")
    for quantity in quantities():
        for key in (key for each in quantity.conventions for key in each.keys):
            assert is_documented(key), (
                f"conventions.yaml, '{quantity.title}': expected a key in the table of keys of a callback's docstring, "
                f"got '{key}'. Correct it, or add it to the callback's table."
            )


def test_labels_and_titles_are_unique():
    assert len({quantity.title for quantity in quantities()}) == len(quantities())
    for quantity in quantities():
        assert len(quantity.conventions) > 1
        assert bool(quantity.over) == any("*" in each.value for each in quantity.conventions)


def largest_changes() -> dict[str, dict[str, float]]:
    """By key of the finding's, of each way of writing: the largest relative change in its record."""
    record = json.loads((ROOT / "results" / "findings" / "notation" / "verdict.json").read_text(encoding="utf-8"))
    found: dict[str, dict[str, float]] = {}
    for row in record["rows"]:
        words, by = row["quantity"].split(": relative change by ")
        values = [x for reading in row["readings"] for x in map(float, reading["values"])]
        found.setdefault(MEASURES[words][0].replace("/*/", "/"), {})[by] = np.nanmax(values)
    return found


def test_what_rewriting_does_is_what_the_finding_measured():
    changes, compared = largest_changes(), set()
    for each in (each for quantity in quantities() for each in quantity.conventions):
        key = re.sub(r"/(layer|block)[*]/", "/", each.value.removeprefix("10^")).replace("_*", "_0.1")
        if key in changes:
            stays = {by: change <= SAME for by, change in changes[key].items()}
            expected = NOTATION if not stays["T"] else INVARIANT if stays["absorbing BatchNorm"] else UNDER_T
            assert each.rewritten == expected, f"{each.value}: {changes[key]}"
            compared.add(key)
    assert len(compared) == 16


def test_what_rewriting_does_is_said_in_three_words_or_not_at_all():
    conventions = {each.value: each.rewritten for quantity in quantities() for each in quantity.conventions}
    assert {*conventions.values()} == {INVARIANT, UNDER_T, NOTATION, ""}
    unknown = {value for value, rewritten in conventions.items() if not rewritten}
    assert all("cost" in value or "running" in value for value in unknown)


def test_what_rewriting_does_stands_beside_each_convention(make):
    found = section(make("bank"))
    rewritten = {each.label: each.rewritten for each in quantities()[0].conventions}
    shown = {label: cells[0] for label, cells in table(found, CUSHION).items()}
    assert shown == {label: rewritten[label] for label in shown} and {*shown.values()} == {NOTATION, UNDER_T}
    in_data = {row["convention"]: row["rewritten"] for row in data(found) if row["quantity"] == CUSHION}
    assert in_data == shown


def test_a_convention_takes_the_last_value_of_all_layers_and_of_nothing_else(nets):
    run = nets({"net": {"cushion/layer02/median": 5.0, "cushion/layer10/median": 7.0, "cushion/layer02/mean": 1.0}})
    run.append([Row("net", 2, 2, "cushion/layer02/median", 6.0)])
    (net,) = gather([run]).nets
    assert values_of([net], Convention("", "cushion/layer*/median", "")) == {"02": [6.0], "10": [7.0]}


def test_nets_are_compared_at_the_last_epoch_that_all_have(nets):
    """The residual net trained on; its later numbers have no counterpart."""
    run = nets({arm: {"measure/a": 2.0, "measure/b": 3.0} for arm in ("plain", "residual")})
    run.append([Row("residual", 2, 2, "measure/a", 9.0)])
    assert entry(run).effect == OPEN
    run.append([Row("plain", 2, 2, "measure/a", 1.0)])
    assert [each.ratio for each in entry(run).conventions] == pytest.approx([9, 1])


def test_a_difference_is_of_one_epoch(nets):
    convention = next(q for q in quantities() if q.title.startswith("Generalisation gap")).conventions[0]
    run = nets({"net": {"test/error": 0.5, "train/error": 0.25}})
    assert values_of(gather([run]).nets, convention) == {"": [0.25]}
    run.append([Row("net", 2, 2, "test/error", 0.4)])
    assert values_of(gather([run]).nets, convention) == {"": [0.25]}
    run.append([Row("net", 2, 2, "train/error", 0.3)])
    assert values_of(gather([run]).nets, convention)[""] == pytest.approx([0.1])


def test_medians_are_over_the_layers_that_all_nets_have(nets):
    convention = Convention("", "m/layer*/x", "")
    layers = {"plain": [1.0, 2.0, 9.0, 50.0], "residual": [4.0, 8.0, 6.0]}
    run = nets({arm: {f"m/layer{i}/x": x for i, x in enumerate(values)} for arm, values in layers.items()})
    found = entry(run, Quantity("", (convention, Convention("again", "m/layer*/x", "")), "layers")).conventions[0]
    assert (found.plain, found.residual) == (2.0, 6.0)
    assert (found.above, found.items) == (2, 3)
    assert found.ratio == pytest.approx(3)


def test_at_a_layer_the_residual_nets_are_larger_if_their_mean_is(nets):
    """And not their median, or most of them."""
    convention = Convention("", "m/layer*/x", "")
    run = nets(arms({"m/layer0/x": [1.0, 1.0, 9.0]}, {"m/layer0/x": [2.0, 2.0, 2.0]}))
    found = entry(run, Quantity("", (convention, Convention("again", "m/layer*/x", "")), "layers")).conventions[0]
    assert (found.above, found.items) == (0, 1)


def test_ratio_and_interval_are_those_of_logarithms_over_pairs(nets):
    random = np.random.default_rng(0)
    plain, residual = random.lognormal(0, 0.1, 6), random.lognormal(1, 0.1, 6)
    run = nets(arms(*({"measure/a": [*values], "measure/b": [*(values * 9)]} for values in (plain, residual))))
    one, other = entry(run).conventions
    expected = bootstrap_interval(np.log(residual / plain))
    ends = np.exp([expected.mean, expected.low, expected.high])
    assert [one.ratio, one.low, one.high] == pytest.approx(ends, rel=1e-9)
    assert (one.conclusion, other.ratio) == (LARGER, pytest.approx(one.ratio))


def test_a_ratio_that_no_float_holds_is_infinite(nets):
    """As of bounds of 1e-9 and 1e306: the page, and so the end of `fit`, was a traceback."""
    run = nets(arms(*({"measure/a": [value] * 6, "measure/b": [value] * 6} for value in (1e-9, 1e306))))
    one, _ = entry(run).conventions
    assert (one.ratio, one.low, one.high, one.conclusion) == (math.inf, math.inf, math.inf, LARGER)
    assert conventions._summary([entry(run)]).rows


def test_what_is_not_positive_is_compared_by_difference(nets):
    plain, residual = [-3.0, -2.0, 0.0, 1.0, -1.0, -2.0], [-1.0, 1.0, 2.0, 2.5, 0.5, 0.5]
    run = nets(arms({"measure/a": plain, "measure/b": residual}, {"measure/a": residual, "measure/b": plain}))
    one, other = entry(run).conventions
    assert (one.conclusion, other.conclusion) == (LARGER, SMALLER)
    assert math.isnan(one.ratio)
    assert paired(residual, plain).low > 0


def test_seeds_that_disagree_are_unresolved_and_the_choice_decides_that(nets):
    mixed, apart = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [2.0, 1.0, 4.0, 3.0, 6.0, 5.0]
    run = nets(arms({"measure/a": mixed, "measure/b": mixed}, {"measure/a": apart, "measure/b": [9.0] * 6}))
    found = entry(run)
    assert [each.conclusion for each in found.conventions] == [UNRESOLVED, LARGER]
    assert found.effect == DECIDES


def test_of_two_to_five_seeds_nothing_is_concluded(nets):
    """Five differences of noise have one sign once in sixteen times: their range is no 95 % interval."""
    side = {"measure/a": [1.0, 2.0, 3.0, 4.0, 5.0], "measure/b": [1.0, 2.0, 3.0, 4.0, 5.0]}
    found = entry(nets(arms(side, {name: [x + 1 for x in values] for name, values in side.items()})))
    assert [each.conclusion for each in found.conventions] == [TOO_FEW, TOO_FEW] and found.effect == TOO_FEW


@pytest.mark.parametrize(
    ("residual", "conclusion"),
    [(1.04, UNRESOLVED), (1.052, UNRESOLVED), (1.06, LARGER), (0.94, SMALLER), (1.0, UNRESOLVED)],
)
def test_one_seed_has_to_differ_by_more_than_a_twentieth(nets, residual, conclusion):
    """Of the larger one."""
    values = {"plain": 1.0, "residual": residual}
    run = nets({arm: {"measure/a": x, "measure/b": -x} for arm, x in values.items()})
    one, other = entry(run).conventions
    assert one.conclusion == conclusion
    assert other.conclusion == {LARGER: SMALLER, SMALLER: LARGER}.get(conclusion, UNRESOLVED)
    assert math.isnan(one.low)


@pytest.mark.parametrize(("second", "conclusion"), [(math.nan, "–"), (3.0, LARGER)])
def test_nan_leads_to_no_conclusion_and_conventions_that_agree_decide_nothing(nets, second, conclusion):
    plain, residual = [1.0] * 6, [2.0] * 5 + [second]
    found = entry(nets(arms({"measure/a": plain, "measure/b": plain}, {"measure/a": residual, "measure/b": [9.0] * 6})))
    assert [each.conclusion for each in found.conventions] == [conclusion, LARGER]
    assert found.effect == AGREES


def test_cushions_of_made_runs_are_turned_round_by_the_convention(make):
    """The runs are made with ratios of 14, 1.1 and 0.7: larger, larger, smaller."""
    seeds = [f"{arm}-seed{seed:02d}" for arm in ("plain", "residual") for seed in range(6)]
    found = section(make("bank", seeds, 1))
    summary = table(found, "What the choice of convention does")
    assert summary[CUSHION][:4] == ["3", "2", "0", "1"]
    assert summary[CUSHION][-1] == "yes: larger or smaller"
    ratios = {row["convention"]: float(row["ratio"]) for row in data(found) if row["quantity"] == CUSHION}
    assert [*ratios.values()] == pytest.approx([14, 1.1, 0.7], rel=0.02)
    assert [float(end) for end in summary[CUSHION][4:6]] == [min(ratios.values()), max(ratios.values())]
    assert any(CUSHION in sentence for sentence in found.notices if "more or less" in sentence)
    assert {row["of"] for row in data(found) if row["quantity"] == CUSHION} == {"19"}


@pytest.mark.parametrize(
    ("residual", "seeds", "said"),
    [
        (1.0, 1, "No convention resolves a difference: {}."),
        (2.0, 1, "The convention changes no conclusion: {}."),
        (2.0, 3, "Too few seeds for a conclusion under any convention: {}."),
    ],
)
def test_without_a_conclusion_none_is_said_to_stay(nets, residual, seeds, said):
    sides = ({"train/risk": [x] * seeds, "train/cost": [x] * seeds} for x in (1.0, residual))
    found = section(nets(arms(*sides)))
    assert found.notices[0] == said.format("Training cost: what the penalty counts")


def test_one_net_of_each_arm_is_a_pair_even_without_a_seed(finished):
    found = section(finished)
    assert table(found, "Weight mass, all weights")["w"][-2] == "smaller"
    assert "With one seed" in next(block for block in found.blocks if isinstance(block, Table)).caption


def test_several_pairs_stand_in_one_table(make):
    found = section(make("deep20"), make("deep32", seed=1))
    (summary,) = (block for block in found.blocks if isinstance(block, Table) and block.title.startswith("What"))
    assert summary.head[1] == "pair"
    assert {row[1].text for row in summary.rows} == {"deep20/plain − residual", "deep32/plain − residual"}


@pytest.mark.parametrize("arms", [("plain", "residual"), ("plain",)])
def test_what_each_convention_is_stands_in_its_row(nets, arms):
    cushions = {f"cushion/layer01/{each}": 0.5 for each in ("median", "mean", "minimum")}
    found = section(nets(dict.fromkeys(arms, cushions))).blocks
    assert found[-1].head[-1] == "meaning"
    assert [row[0].text for row in found[-1].rows] == ["median", "mean", "minimum"]
    assert found[-1].rows[-1][-1].text == "the layer cushion by the definition of Arora et al."
    assert all(block.caption.strip().endswith(".") for block in found)


def test_of_several_pairs_a_meaning_stands_with_the_first(make):
    found = section(make("deep20"), make("deep32", seed=1))
    (mass,) = (
        block for block in found.blocks if isinstance(block, Table) and block.title == "Weight mass, all weights"
    )
    meanings = [row[-1].text for row in mass.rows]
    assert len(meanings) == 4 and all(meanings[:2]) and not any(meanings[2:])


def test_the_figure_of_ratios_says_what_is_over_what(make):
    (figure,) = (block for block in section(make("run")).blocks if isinstance(block, Figure))
    assert [entry.label for entry in figure.legend] == ["residual over plain"]


def test_without_pairs_conventions_stand_side_by_side_without_a_conclusion(make):
    found = section(make("one", ["net"]))
    cells = table(found, CUSHION)
    assert [*cells] == ["paper, kernel", "transferred, kernel", "branch, kernel"]
    assert not found.notices
    assert not [block for block in found.blocks if isinstance(block, Figure)]
    log = make("one", ["net"]).log()
    medians = log[(log["epoch"] == log["epoch"].max()) & log["name"].str.fullmatch(r"cushion/layer\d+/median")]
    assert float(cells["paper, kernel"][1]) == np.median(medians["value"])


def test_what_only_residual_nets_have_stands_side_by_side_below_the_pairs(nets):
    depths = {"depth/effective": 3.0, "depth/coherent": 4.0}
    costs = {arm: {"train/risk": 1.0, "train/cost": cost} for arm, cost in {"plain": 1.1, "residual": 1.2}.items()}
    found = section(nets(costs | {"residual": costs["residual"] | depths}))
    assert table(found, "Effective depth of the ensemble (layers)") == {
        "d_eff": ["notation", "3.0", "mean length of a path, weighted by the square of its output"],
        "d_coh": ["notation", "4.0", "weighted by what a path adds to the sum of all"],
    }
    assert table(found, "Training cost: what the penalty counts")["as trained"][-2] == LARGER


def test_a_pair_that_diverged_is_in_no_conclusion(nets):
    lost = {"train/risk": math.nan, "train/cost": math.nan}
    found = section(nets({"plain": lost, "residual": {"train/risk": 1.0, "train/cost": 1.2}}))
    assert "plain − residual: the only pair left out, because a net diverged." in found.notices
    assert [block.title for block in found.blocks] == ["Training cost: what the penalty counts"]


def test_one_convention_is_no_choice(nets):
    found = section(nets({"plain": {"train/risk": 1.0}, "residual": {"train/risk": 2.0}}))
    assert found.notices == ["No quantity of these runs was logged under more than one convention."]
    assert not found.blocks


def test_the_section_stands_on_the_page(page):
    assert all(f'id="{key}"' in page for key in ("conventions", "conventions-ratios", "conventions-0"))
