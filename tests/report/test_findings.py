"""The sentences at the end of a run with plain and residual nets."""

import re

from lightning_app.report import findings
from lightning_app.runs import Row
from lightning_app.runs.folder import MemberRow
from tests.report.conftest import on_validation_data


def test_one_seed(run):
    test, train, cushions = findings(run)
    log = run.log().query("epoch == 6").set_index(["member", "name"])["value"]
    plain, residual = (f"{log[member, 'test/error']:.2g}" for member in ("plain", "residual"))
    assert test == (
        f"After 6 epochs the residual net has a test error of {residual}, the plain one {plain}: "
        "the residual net is ahead."
    )
    assert f"{log['plain', 'train/error']:.2g} without" in train
    of_layer = [f"{log['residual', f'cushion/layer10/{field}']:.2g}" for field in ("median", "median_transferred")]
    assert re.findall(r"is ([\d.]+) with skips .* it, ([\d.]+) with", cushions) == [tuple(of_layer)]


def test_several_seeds_by_their_range_and_seed_by_seed(make):
    members = [f"{arm}-seed{seed:02d}" for arm in ("plain", "residual") for seed in (0, 1)]
    run = make("several", members)
    run.save_members(MemberRow(name, name[:-7], int(name[-2:]), "", "res" in name, "", 20, 1) for name in members)
    errors = dict(zip(members, (0.5, 0.3, 0.25, 0.4)))
    run.append(Row(member, 7, 7 * 391, "test/error", error) for member, error in errors.items())
    assert findings(run)[0] == (
        "After 7 epochs the 2 residual nets of 20 layers have a test error of 0.25 to 0.4, the 2 plain ones 0.3 to 0.5: "
        "the residual net is ahead with 1 of 2 seeds."
    )


def test_a_layer_without_a_skip_of_its_own_has_one_cushion(run):
    """Skips around several layers are in no layer's weights: three readings would be one number three times."""
    log = run.log().query("epoch == 6").set_index(["member", "name"])["value"]
    same = log["residual", "cushion/layer10/median"]
    run.append([Row("residual", 6, 6 * 391, "cushion/layer10/median_transferred", same)])
    plain = log["plain", "cushion/layer10/median"]
    assert findings(run)[2].endswith(f"is {same:.2g} with skips and {plain:.2g} without skips.")


def test_validation_data_stand_in_for_test_data(run):
    tested = findings(run)
    validated = findings(on_validation_data(run))
    assert validated == [tested[0].replace("a test error", "a validation error"), *tested[1:]] != tested


def test_whoever_is_ahead_is_said(run):
    run.append(Row(net, 7, 2737, "test/error", 0.7 if net == "residual" else 0.2) for net in ("plain", "residual"))
    assert findings(run)[0].endswith("a test error of 0.7, the plain one 0.2: the plain net is ahead.")


def test_what_was_not_measured_is_not_said_and_one_kind_alone_is_not_compared(make, tmp_path):
    bare = make("bare", epochs=0)
    log = bare.path / "log.csv"
    log.write_text("".join(line for line in log.read_text().splitlines(keepends=True) if "cushion/" not in line))
    assert [sentence.split()[0] for sentence in findings(bare)] == ["After", "On"]
    assert findings(make("alone", ["residual-seed00", "residual-seed01"])) == []


def test_a_cushion_that_is_no_number_is_left_out(run):
    run.append([Row("residual", 6, 6 * 391, "cushion/layer10/median_transferred", float("nan"))])
    assert [sentence.split()[0] for sentence in findings(run)] == ["After", "On"]


def test_an_end_within_an_epoch_is_rounded(make):
    run = make("within", epochs=1)
    run.append(Row(member, 4 / 3, 500, "test/error", 0.5) for member in ("plain", "residual"))
    assert findings(run)[0].startswith("After 1.3333 epochs the residual net")


def test_what_was_measured_last_before_the_end_says_when(run):
    """Cushions of epoch 6 stood below errors of epoch 9 as if they were of that, too."""
    run.append(Row(member, 9, 9 * 391, "test/error", 0.5) for member in ("plain", "residual"))
    test, train, cushions = findings(run)
    assert test.startswith("After 9 epochs")
    assert " without (measured after 6 epochs): " in train
    assert cushions.endswith(" without skips (measured after 6 epochs).")


def test_equal_errors_are_said(make):
    """Six nets that learnt nothing: the residual ones are not behind."""
    members = [f"{arm}-seed{seed:02d}" for arm in ("plain", "residual") for seed in range(3)]
    run = make("equal", members)
    run.append(Row(member, 7, 7, "test/error", 0.9) for member in members)
    assert findings(run)[0].endswith("test error of 0.9, the 3 plain ones 0.9: they are equal.")
    run.append(Row(members[seed], 8, 8, "test/error", error) for seed, error in enumerate((0.91, 0.9, 0.89)))
    run.append(Row(member, 8, 8, "test/error", 0.9) for member in members[3:])
    assert findings(run)[0].endswith("the residual net is ahead with 1 of 3 seeds, and equal with 1.")


def test_of_several_pairs_each_sentence_names_its_own(make):
    run = make("several", ["pln20", "pln32", "res20", "res32"], 1)
    said = findings(run)
    assert len(said) == 6 and all(sentence.startswith("pln20 − res20: ") for sentence in said[:3])
    assert said[3].startswith("pln32 − res32: after 1 epoch the residual net")


def test_seeds_without_a_finite_number_are_said_to_be_left_out(make):
    members = [f"{arm}-seed{seed:02d}" for arm in ("plain", "residual") for seed in range(3)]
    run = make("lost", members)
    run.append(Row(member, 7, 7, "train/risk", float("nan") if member == "plain-seed01" else 1.0) for member in members)
    assert findings(run)[-1] == "plain − residual: seed 1 left out, because a net diverged."


def test_an_error_that_is_not_finite_is_in_no_range_and_not_behind(make):
    """Its net has finite risks, and so has not diverged: of the smallest of 0.3 and NaN nothing can be said."""
    members = [f"{arm}-seed{seed:02d}" for arm in ("plain", "residual") for seed in range(3)]
    run = make("no number", members)
    errors = dict(zip(members, (float("nan"), 0.3, 0.5, 0.1, 0.2, 0.2)))
    run.append(Row(member, 7, 7, "test/error", error) for member, error in errors.items())
    assert findings(run)[0].endswith(
        "the 2 residual nets have a test error of 0.2, the 2 plain ones 0.3 to 0.5: the residual net is ahead with 2 of 2 "
        "seeds; 1 seed left out, as an error is not finite."
    )
