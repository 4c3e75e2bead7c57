"""Which measure predicts generalisation: nets made so that the answer is known, and what the section must leave out and say."""

import csv
import io
import math
import re

import numpy as np
import pytest
import yaml

from lightning_app.report import write_report
from lightning_app.report.blocks import Figure, Section, Table
from lightning_app.report.gap_correlation import final_measures, predict
from lightning_app.report.page_data import gather
from lightning_app.report.sections import prediction
from lightning_app.runs import Row, RunFolder
from lightning_app.statistics.rank_correlation import adjusted, kendall, largest_by_chance

ARMS = {"plain": 0.10, "residual": 0.05, "wide": 0.15}
SEEDS = 6
EPOCHS = 3
NETS = [(arm, seed) for arm in ARMS for seed in range(SEEDS)]
LUCK = np.random.default_rng(0).permutation(SEEDS)  # the order of gaps within an arm


def gap(arm: str, seed: int) -> float:
    return ARMS[arm] + 0.001 * LUCK[seed]


def numbers(arm: str, seed: int) -> dict[str, float]:
    size = gap(arm, seed)
    return {
        "train/risk": 0.5,
        "train/error": 0.02,
        "test/risk": 0.5 - size,  # the gap in risk is the other way round
        "test/error": 0.02 + size,
        "train/cost": size,
        "hessian/top1": math.exp(9 * size),  # in the same order everywhere
        "bn_lambda/l2": ARMS[arm] - 0.001 * LUCK[seed],  # tells arms apart; the wrong way within them
        "depth/longest": 10.0,  # constant
        "noise/response_0.1": LUCK[(seed + 1) % SEEDS],
        **{f"cushion/layer{layer:02d}/median": -size * layer if layer < 4 else LUCK[seed - 2] for layer in range(1, 6)},
    }


def member_rows(arm: str, seed: int, changes: dict[str, float | None]) -> list[Row]:
    final = {name: value for name, value in (numbers(arm, seed) | changes).items() if value is not None}
    start = {name: LUCK[seed - 3] for name in final} | {"hessian/early": gap(arm, seed), "train/risk": 2.3}
    member = f"{arm}-seed{seed:02d}"
    epochs = {0: start, EPOCHS: final}
    return [Row(member, epoch, epoch, name, float(x)) for epoch, found in epochs.items() for name, x in found.items()]


def leave_bank(path, arms=None, changed=None) -> RunFolder:
    """A run in which the gap and some measures are known, of {arm: seeds}, with {(arm, seed): changed numbers}."""
    run = RunFolder(path)
    for arm, seeds in (arms or dict.fromkeys(ARMS, range(SEEDS))).items():
        for seed in seeds:
            run.append(member_rows(arm, seed, (changed or {}).get((arm, seed), {})))
    return run


@pytest.fixture
def bank(tmp_path):
    return lambda arms=None, changed=None, name="bank": leave_bank(tmp_path / "runs" / name, arms, changed)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> RunFolder:
    """All arms and seeds, nothing changed."""
    return leave_bank(tmp_path_factory.mktemp("runs") / "bank")


@pytest.fixture(scope="module")
def shown(whole) -> Section:
    return section(whole)


def section(*runs: RunFolder) -> Section:
    return prediction.section(gather(runs))


def test_validation_data_stand_in_for_test_data(bank, whole):
    run = bank()
    (run.path / "log.csv").write_text((run.path / "log.csv").read_text().replace("test/", "val/"))
    found, expected = final_measures(gather([run])), final_measures(gather([whole]))
    assert len(found.nets) == len(NETS) and found.values.equals(expected.values)
    assert all(np.array_equal(found.gaps[kind], expected.gaps[kind]) for kind in ("error", "risk"))
    for its, words in ((run, "validation"), (whole, "test")):
        drawn = "".join(panel.svg for panel in figure(section(its)).panels)
        assert f"gap: {words} − train error" in drawn and "{" not in re.sub(
            r"<style.*?</style>", "", drawn, flags=re.DOTALL
        )


def tables(found: Section) -> list[dict[str, list[str]]]:
    """Exact cells by measure, of each table."""
    return [
        {row[0].text: [cell.exact or cell.text for cell in row[1:]] for row in block.rows}
        for block in found.blocks
        if isinstance(block, Table)
    ]


def figure(found: Section) -> Figure:
    return next(block for block in found.blocks if isinstance(block, Figure))


def rows(text: str) -> dict[str, dict[str, str]]:
    return {row["measure"]: row for row in csv.DictReader(io.StringIO(text))}


def test_a_measure_in_the_order_of_the_gap_has_tau_one_in_all_ways(shown):
    row = rows(figure(shown).csv)["hessian/top1"]
    assert [float(row[f"error gap {way} tau"]) for way in ("all", "within", "across")] == [1, 1, 1]
    assert float(row["risk gap all tau"]) == -1
    assert [row[f"error gap {way} pairs"] for way in ("all", "within", "across")] == ["153", "45", "3"]


def test_no_chance_is_zero_in_the_data(shown):
    """Of 18 nets in one order p is 2 / 18!, and the share of that among few measures is not much more."""
    found = rows(figure(shown).csv)
    assert float(found["hessian/top1"]["error gap all p"]) == pytest.approx(2 / math.factorial(18), rel=1e-5, abs=0)
    assert 0 < float(found["hessian/top1"]["error gap all q"]) < 1e-12


def test_what_tells_architectures_apart_only_does_not_predict_within_them(shown):
    row = rows(figure(shown).csv)["bn_lambda/l2"]
    assert float(row["error gap across tau"]) == 1
    assert float(row["error gap within tau"]) == -1
    assert float(row["error gap all tau"]) == pytest.approx((153 - 2 * 45) / 153, abs=1e-6)


def test_numbers_are_those_of_kendall(shown):
    found = tables(shown)[0]
    gaps = np.array([gap(*net) for net in NETS])
    noise = np.array([numbers(*net)["noise/response_0.1"] for net in NETS])
    strata = np.repeat(range(3), SEEDS)
    count, over_all, _, within, _, across, *_ = found["noise/response_0.1"]
    assert count == str(len(NETS))
    assert float(over_all) == kendall(noise, gaps).tau.item()
    assert float(within) == kendall(noise, gaps, strata).tau.item()
    assert across == "–"  # all architectures have the same mean


@pytest.mark.parametrize("large", [1000.0, math.inf])
def test_across_is_of_means_over_seeds(bank, large):
    """One seed's measure moves its architecture's mean to the other end, also where it has no end, as a condition number."""
    row = rows(figure(section(bank(changed={("plain", 0): {"hessian/top1": large}}))).csv)["hessian/top1"]
    assert float(row["error gap across tau"]) == pytest.approx(1 / 3, abs=1e-6)


def test_q_is_over_all_measures(whole):
    found = predict(final_measures(gather([whole]))).taus["error", "all"]
    np.testing.assert_array_equal(found["q"], adjusted(found["p"].to_numpy()))
    assert (found["q"] >= found["p"]).all()


def test_the_strongest_come_first_and_of_layers_the_best_one(shown):
    whole, layers = tables(shown)
    assert {*whole} == {"hessian/top1", "cushion/layer*/median", "bn_lambda/l2", "noise/response_0.1"}
    taus = [abs(float(cells[1])) for cells in whole.values()]
    assert taus == sorted(taus, reverse=True)
    assert [*layers] == ["cushion/layer01/median"]  # layers 1 to 3 are equal, 4 and 5 are noise


def test_layers_are_there_one_by_one_and_as_their_median(whole):
    values = final_measures(gather([whole])).values
    layers = values.loc[[f"cushion/layer{layer:02d}/median" for layer in range(1, 6)]]
    np.testing.assert_array_equal(values.loc["cushion/layer*/median"], layers.median())


def test_findings_are_counted_and_chance_is_said(whole, shown):
    notices, found = shown.notices, predict(final_measures(gather([whole])))
    assert f"{found.findings('all')} over all nets" in notices[0]
    assert f"{found.limit('all'):.2f} (all nets)" in notices[1]
    assert 0.3 < found.limit("all") < found.limit("within") < 1
    by_chance = largest_by_chance(found.measures.values.to_numpy(), found.measures.gaps["error"])
    assert np.mean(by_chance > found.limit("all")) == pytest.approx(0.05, abs=0.015)


def test_neither_what_the_gap_is_made_of_nor_constants_nor_old_numbers(whole):
    names = [*final_measures(gather([whole])).values.index]
    assert {"hessian/top1", "bn_lambda/l2"} <= set(names)
    assert not [name for name in names if name.startswith(("train/", "test/"))]
    assert "depth/longest" not in names
    assert "hessian/early" not in names  # measured before training only


def test_half_of_the_nets_have_to_have_a_measure(bank):
    without = {net: {"hessian/top1": None} for net in NETS[:9]}
    assert tables(section(bank(changed=without)))[0]["hessian/top1"][0] == "9"
    fewer = without | {NETS[9]: {"hessian/top1": None}}
    assert "hessian/top1" not in final_measures(gather([bank(changed=fewer, name="fewer")])).values.index


def test_the_legend_names_only_nets_that_are_drawn(bank, shown):
    labels = [entry.label for entry in figure(shown).legend]
    assert labels[-len(ARMS) :] == [*ARMS]
    names = [name for name in numbers("plain", 0) if not name.startswith(("train/", "test/", "hessian/"))]
    lacks = {net: dict.fromkeys(names) | {"hessian/top1": None} for net in NETS if net[0] == "plain"}
    found = figure(section(bank(changed=lacks)))
    assert [entry.label for entry in found.legend][len(labels) - len(ARMS) :] == ["residual", "wide"]


def test_of_plain_nets_t_is_w(bank):
    """Layer by layer t is logged where T changes something: in residual nets."""
    changed = {}
    for arm, seed in NETS:
        changed[arm, seed] = {"weight_mass/layer02/all": 5.0 + seed, "weight_mass_transferred/all": 9.0}
        changed[arm, seed] |= {"weight_mass_transferred/layer02/all": 8.0} if arm == "residual" else {}
    measures = final_measures(gather([bank(changed=changed)]))
    transferred = measures.values.loc["weight_mass_transferred/layer02/all"]
    expected = [8.0 if net.kind == "residual" else 5.0 + net.seed for net in measures.nets]
    assert [*transferred] == expected


def test_diverged_nets_and_nets_without_a_gap_are_left_out_and_named(bank):
    run = bank(changed={("plain", 1): {"train/risk": math.nan}, ("wide", 2): {"test/error": None}})
    found = section(run)
    assert tables(found)[0]["hessian/top1"][0] == "16"
    assert "Left out, diverged: plain-seed01." in found.notices
    assert any("wide-seed02" in sentence and "last epoch" in sentence for sentence in found.notices)


def test_nets_that_are_not_equally_far_are_said_to_be(bank, whole):
    """A net that was stopped early was one of "the end of training"."""
    run = bank()
    log = run.path / "log.csv"
    rows = [row for row in log.read_text().splitlines() if not row.startswith(f"plain-seed01,{EPOCHS},")]
    log.write_text("\n".join(rows).replace("plain-seed01,0,0,", "plain-seed01,1,1,") + "\n")
    (found,) = [said for said in section(run).notices if "not equally far" in said]
    assert f"their gaps are of epoch 1 and {EPOCHS}." in found
    assert not any("not equally far" in said for said in section(whole).notices)


def test_twins_are_no_more_nets(bank):
    run = bank()
    alone = final_measures(gather([run]))
    arms = {"residual": {"net": {"class_path": "SimplifiedNet"}}, "plain": {"twin_of": "residual"}}
    (run.path / "config.yaml").write_text(yaml.safe_dump({"model": {"arms": arms}}))
    found = final_measures(gather([run]))
    assert set(alone.groups) - set(found.groups) == {"plain"} and len(found.nets) == 2 * SEEDS
    assert found.left_out[0].startswith(
        "Left out, twins, which are the functions of other nets once more: plain-seed00, "
    )


def test_a_seed_that_two_runs_trained_counts_once(bank):
    one, other = bank(name="fig2-seed0-6"), bank({"plain": [5], "wide": [5]}, name="fig2-seed5-9")
    evidence = gather([one, other])
    assert len(evidence.nets) == 3 * SEEDS + 2
    assert len(final_measures(evidence).nets) == 3 * SEEDS


def test_gaps_that_are_equal_are_ties(bank):
    """0.32 - 0.02 and 0.31 - 0.01 differ by rounding."""
    changed = {("plain", 0): {"test/error": 0.32}, ("plain", 1): {"test/error": 0.31, "train/error": 0.01}}
    gaps = final_measures(gather([bank(changed=changed)])).gaps["error"]
    assert gaps[0] == gaps[1] == 0.3


def test_fewer_than_five_nets_are_too_few(bank, finished):
    found = section(bank({"plain": range(2), "residual": range(2)}))
    assert not found.blocks
    assert "at least 5 nets" in found.notices[0]
    assert "got 4" in found.notices[0]
    assert "got 2" in section(finished).notices[0]


def test_seeds_are_said_to_be_no_independent_nets_where_architectures_differ(bank, shown):
    assert any("18 nets of 3 architectures tell" in notice for notice in shown.notices)
    alone = bank({"plain": range(SEEDS)}, name="one")
    assert not any("independent" in notice for notice in section(alone).notices)


def test_one_architecture_has_no_across_and_one_seed_each_no_within(bank):
    found = section(bank({"plain": range(6)}))
    assert "With nets of one architecture there is no τ across architectures." in found.notices
    singles = section(*(bank({arm: [seed] for arm in ARMS}, name=name) for seed, name in enumerate("ab")))
    assert "No architecture has two nets, so there is no τ within architectures." in singles.notices
    assert "error gap within tau" not in figure(singles).csv.splitlines()[0]


def test_two_architectures_are_no_correlation_and_three_have_no_interval(bank, shown):
    found = section(bank({"plain": range(6), "residual": range(6)}))
    assert "across" not in figure(found).csv.splitlines()[0]
    assert "With 3 architectures τ across them has no interval." in shown.notices


def test_without_measures_or_without_differences_it_is_said(bank):
    names = [name for name in numbers("plain", 0) if not name.startswith(("train/", "test/"))]
    found = section(bank(changed={net: dict.fromkeys(names) for net in NETS}))
    assert not found.blocks
    assert "nothing to compare" in found.notices[0]
    same = section(bank(changed={net: {"test/error": 0.5} for net in NETS}, name="same"))
    assert "same gap" in same.notices[0]


def test_the_section_stands_on_the_page_and_names_are_text(bank):
    hostile = {net: {"hessian/<b>$x$</b>": gap(*net)} for net in NETS}
    text = write_report([bank(changed=hostile)]).read_text()
    keys = ("prediction", "prediction-figure", "prediction-intervals", "prediction-scatter-0")
    assert [text.count(f'id="{key}"') for key in keys] == [1] * 4
    assert "<b>$x$</b>" not in text


def test_the_data_hold_all_measures_and_all_nets(whole, shown):
    block, values = figure(shown), final_measures(gather([whole])).values
    assert rows(block.csv).keys() == set(values.index)
    nets = [*csv.DictReader(io.StringIO(block.more["nets"]))]
    assert [float(row["error gap"]) for row in nets] == pytest.approx([gap(*net) for net in NETS])
    best = block.panels[1].title
    assert [float(row[best]) for row in nets] == [*values.loc[best]]


def test_a_number_of_one_layer_among_several_alone(bank):
    others = dict.fromkeys(
        name for name in numbers("plain", 0) if "/" in name and not name.startswith(("train", "test"))
    )
    dead = {f"mine/layer{layer:02d}/dead": 0.0 for layer in (2, 3)} | {"depth/longest": None}
    run = bank(changed={net: others | dead | {"mine/layer01/dead": float(LUCK[net[1]])} for net in NETS})
    assert write_report([run]).is_file()
