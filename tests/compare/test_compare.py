"""The command `compare` on run folders made by hand: sides, pairs, verdicts, exit codes, and what it refuses."""

import json
import math
from pathlib import Path

import jsonschema
import numpy as np
import pytest
import yaml

from lightning_app.cli import main
from lightning_app.common.errors import UserError
from lightning_app.common.numbers import epoch_text
from lightning_app.compare.findings import judged, latex, questions, text
from lightning_app.compare.sides import sides_of
from lightning_app.report import write_report
from lightning_app.runs import Row, RunFolder, find_runs, read_runs
from lightning_app.runs.folder import MemberRow
from tests.helpers import ROOT

SCHEMA = json.loads((ROOT / "lightning_app" / "compare" / "findings.schema.json").read_text())
DATA = {"class_path": "CIFAR10", "init_args": {"batch_size": 128}}


def make(
    path: Path, arms: dict[str, list[float]], seeds: list[int] | None = None, data: dict = DATA, **more
) -> RunFolder:
    """A run of three epochs whose test errors fall to the given ones, a seed each; risks are their doubles."""
    run = RunFolder(path)
    seeds = seeds or [*range(len(next(iter(arms.values()))))]
    names = {(arm, seed): f"{arm}-seed{seed:02d}" for arm in arms for seed in seeds}
    run.save_members(MemberRow(name, arm, seed, "Net", None, "", 20, 1) for (arm, seed), name in names.items())
    for epoch, factor in enumerate((9.0, 3.0, 2.0, 1.0)):
        for (arm, seed), name in names.items():
            error = arms[arm][seeds.index(seed)] * factor
            numbers = {"test/error": error, "train/risk": 2 * error, "cushion/layer02/median": 1 / error}
            run.append(Row(name, epoch, 10 * epoch, key, value) for key, value in numbers.items())
    config = {"data": data, "model": {"arms": {arm: {"net": {"class_path": arm}} for arm in arms}}} | more
    (path / "config.yaml").write_text(yaml.safe_dump(config))
    return run


GOOD = [0.1 + 0.001 * seed for seed in range(10)]
BAD = [0.2 - 0.001 * seed for seed in range(10)]


@pytest.fixture
def run(tmp_path) -> str:
    make(tmp_path / "run", {"good": GOOD, "bad": BAD})
    return str(tmp_path / "run")


def test_two_arms_of_a_run(run, capsys):
    assert main(["compare", f"{run}:good", f"{run}:bad"]) == 0
    said = capsys.readouterr().out
    assert "paired by seed: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9" in said
    assert "test/error at epoch 3: A 0.1045 ± 0.003, B 0.1955 ± 0.003; A - B -0.091 [" in said
    assert "10 pairs: A is better, from epoch 0 on" in said
    assert "net: good / bad" in said.replace("net.class_path", "net")
    assert main(["compare", f"{run}:bad", f"{run}:good"]) == 1


def test_without_test_data_the_validation_error_is_compared(run, capsys):
    assert main(["compare", f"{run}:good", f"{run}:bad"]) == 0
    tested = capsys.readouterr().out
    log = Path(run) / "log.csv"
    log.write_text(log.read_text().replace("test/error", "val/error"))
    assert main(["compare", f"{run}:good", f"{run}:bad"]) == 0
    assert capsys.readouterr().out == tested.replace("test/error", "val/error")
    RunFolder(run).append([Row("good-seed00", 3, 30, "test/error", 0.1)])  # of one net of all
    assert main(["compare", f"{run}:good", f"{run}:bad"]) == 0


def test_json_follows_the_schema_and_is_what_is_written(run, tmp_path, capsys):
    words = ["compare", f"{run}:good", f"{run}:bad", "--json", "--out", str(tmp_path / "new" / "findings.json")]
    assert main([*words, "-m", "test/error", "-m", "cushion/*/median"]) == 0
    found = json.loads(capsys.readouterr().out)
    jsonschema.validate(found, SCHEMA)
    assert json.loads((tmp_path / "new" / "findings.json").read_text()) == found
    end, equal, cushion = found["findings"]
    jsonschema.validate(found | {"findings": [end | {"at": f"epoch {epoch_text(2.5e-5)}"}]}, SCHEMA)
    assert (end["a"], end["b"]) == (GOOD, BAD)
    assert (cushion["name"], cushion["verdict"]) == ("cushion/layer02/median", "larger")
    assert equal["at"].startswith("training risk")
    assert equal["difference"] == pytest.approx(0, abs=1e-9)  # the error is half the risk in both arms


def test_three_seeds_are_too_few_and_it_says_how_many_are_not(tmp_path, capsys):
    make(tmp_path / "run", {"good": GOOD[:3], "bad": BAD[:3]})
    assert main(["compare", f"{tmp_path}/run:good", f"{tmp_path}/run:bad"]) == 4
    assert "[-inf, inf], 3 pairs: unresolved: about 5 more seeds would settle it" in capsys.readouterr().out


def test_equivalence_within_a_margin(tmp_path, capsys):
    noise = np.random.default_rng(0).normal(0, 0.001, (2, 13))
    make(tmp_path / "run", {"one": (0.1 + noise[0]).tolist(), "other": (0.1 + noise[1]).tolist()})
    sides = [f"{tmp_path}/run:one", f"{tmp_path}/run:other"]
    assert main(["compare", *sides, "--margin", "0.005"]) == 3
    assert "equivalent within 0.005" in capsys.readouterr().out
    assert main(["compare", *sides]) == 4


def test_runs_are_paired_by_seed_where_their_data_agree(tmp_path, capsys):
    for seed in range(10):
        make(tmp_path / "a" / f"one-seed{seed}", {"net": [GOOD[seed]]}, [seed])
        make(tmp_path / "b" / f"two-seed{seed}", {"net": [BAD[seed]]}, [seed], model={"lr": 0.1})
    assert main(["compare", f"{tmp_path}/a", f"{tmp_path}/b/*"]) == 0
    said = capsys.readouterr().out
    assert "paired by seed: 0, 1" in said
    assert "model.lr: None / 0.1" in said
    make(tmp_path / "c", {"net": BAD}, data={"class_path": "CIFAR10", "init_args": {"batch_size": 64}})
    assert main(["compare", f"{tmp_path}/a", f"{tmp_path}/c"]) == 0
    assert "because their data differ (data.init_args.batch_size)" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["test/error_ema", "train/risk_running", "train/cost_paper", "hessian/top1"])
def test_which_numbers_are_better_small(tmp_path, capsys, name):
    run = make(tmp_path / "run", {"good": GOOD, "bad": BAD})
    for arm, values in (("good", GOOD), ("bad", BAD)):
        run.append(Row(f"{arm}-seed{seed:02d}", 3, 30, name, values[seed]) for seed in range(10))
    assert main(["compare", f"{run.path}:good", f"{run.path}:bad", "-m", name]) == (1 if "top" in name else 0)
    assert f"A is {'smaller' if 'top' in name else 'better'}" in capsys.readouterr().out


def test_rows_for_a_paper(run, capsys):
    main(["compare", f"{run}:good", f"{run}:bad", "--latex"])
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith(r"test/error & epoch 3 & 10 & $0.1045 \pm 0.003$ & $0.1955 \pm 0.003$ & $-0.091 [")
    assert first.endswith(r"better \\")


def test_a_row_has_powers_of_ten():
    row = latex(judged("train/risk", "epoch 1", np.full(8, 3e-5), np.full(8, -6.2e15), None, 0.05))
    assert r"& $3 \cdot 10^{-5} \pm 0$ & $-6.2 \cdot 10^{15} \pm 0$ & $6.2 \cdot 10^{15} [" in row


def test_a_plan(run, capsys):
    assert main(["compare", f"{run}:good", f"{run}:bad", "--plan", "0.01"]) == 0
    assert "a difference of 0.01 in test/error needs 11 seeds of each side" in capsys.readouterr().out
    assert main(["compare", f"{run}:good", f"{run}:bad", "--plan", "0.01", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["needed"] == 11


def test_a_plan_says_of_which_pairs_it_is(tmp_path, capsys):
    """It was silent on a net in its first epoch, which decides at which all are taken, and on nets that are no pairs."""
    for name, errors, size in (("one", GOOD, 64), ("other", BAD, 128)):
        make(tmp_path / name, {"net": errors}, data={"class_path": "CIFAR10", "init_args": {"batch_size": size}})
    log = tmp_path / "one" / "log.csv"
    log.write_text("".join(row for row in log.open() if not row.startswith(("net-seed03,2,", "net-seed03,3,"))))
    assert main(["compare", f"{tmp_path}/one", f"{tmp_path}/other", "--plan", "0.01"]) == 0
    said = capsys.readouterr().out
    assert "Not all nets of A are at epoch 3: one/net-seed03 at 1." in said
    assert "Not paired by seed, because their data differ (data.init_args.batch_size)" in said
    assert "from the spread of 10 differences at epoch 1: sd" in said


def test_a_diverged_net_is_worse_than_any_other_in_errors_and_left_out_elsewhere(tmp_path, capsys):
    make(tmp_path / "run", {"good": [*GOOD, 0.1], "bad": [*BAD, math.nan]})
    words = ["compare", f"{tmp_path}/run:good", f"{tmp_path}/run:bad", "--json", "-m", "test/error", "-m", "cushion/*"]
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)
    jsonschema.validate(found, SCHEMA)
    error, cushion = found["findings"][0], found["findings"][-1]
    assert (error["pairs"], error["left_out"], error["diverged"]) == (11, 0, [0, 1])
    assert (cushion["pairs"], cushion["left_out"], cushion["diverged"]) == (10, 1, [0, 0])
    main([*words[:3], *words[4:]])
    said = capsys.readouterr().out
    assert "11 pairs (diverged, which counts as worst: 0 of A, 1 of B; not in the means): A is better" in said
    assert "10 pairs (1 more left out: a number is not finite or not known)" in said


def one_run_a_net(folder: Path, epoch: int, without: str = "nothing") -> list[str]:
    """Runs of one net each, the words that compare them; the fourth bad one diverged in this epoch, and lacks a number."""
    for arm, values in (("good", GOOD), ("bad", BAD)):
        for seed, value in enumerate(values):
            make(folder / f"{arm}{seed}", {arm: [value]}, [seed])
    run = RunFolder(folder / "bad4")
    epochs = ("epoch", *map(str, range(epoch)))
    log = run.path / "log.csv"
    rows = log.read_text().splitlines(keepends=True)
    log.write_text("".join(row for row in rows if row.split(",")[1] in epochs and without not in row))
    run.add_divergence(epoch, f"the loss of member 'bad-seed04' became NaN or infinite in epoch {epoch} (step 12).")
    return ["compare", f"{folder}/good*", f"{folder}/bad*"]


def test_a_run_that_ended_because_a_net_diverged_is_judged_to_the_end_of_the_others(tmp_path, capsys):
    assert main(one_run_a_net(tmp_path, 2)) == 0
    said = capsys.readouterr().out
    assert "Nets of B that diverged and stopped: bad4/bad-seed04 after epoch 1." in said and "Not all nets" not in said
    assert "test/error at epoch 3" in said and "10 pairs (diverged, which counts as worst: 0 of A, 1 of B" in said


def test_of_a_bank_that_ended_because_a_net_diverged_what_is_not_known_is_left_out(tmp_path, capsys):
    """Seed 10 of `bad` diverged after epoch 1 and ended `good` of its seed, and both nets of seed 11, which nobody knows."""
    make(tmp_path / "run", {"good": GOOD, "bad": BAD})
    bank = make(tmp_path / "bank", {"good": [0.1, 0.1], "bad": [0.3, 0.3]}, [10, 11])
    log = bank.path / "log.csv"
    log.write_text("".join(row for row in log.read_text().splitlines(keepends=True) if row.split(",")[1] in "epoch01"))
    bank.add_divergence(2, "the loss of member 'bad-seed10' became NaN or infinite in epoch 2 (step 12).")
    words = ["compare", *(f"{tmp_path}/run,{tmp_path}/bank:{arm}" for arm in ("good", "bad")), "--json"]
    assert main([*words, "-m", "test/error", "-m", "cushion/*"]) == 0
    error, *_, cushion = json.loads(capsys.readouterr().out)["findings"]
    assert (error["at"], error["pairs"], error["left_out"], error["diverged"]) == ("epoch 3", 11, 1, [0, 1])
    assert (error["a"][10:], error["b"][10:]) == ([None, None], [None, None])
    assert (cushion["at"], cushion["pairs"], cushion["left_out"]) == ("epoch 3", 10, 2)
    assert main(words[:-1]) == 0
    assert "1 of B; not in the means; 1 more left out: a number is not finite or not known)" in capsys.readouterr().out
    assert main([words[0], *words[2:0:-1]]) == 1


def test_a_net_that_diverged_counts_as_worst_where_no_run_went_further(tmp_path, capsys):
    run = make(tmp_path / "run", {"good": GOOD, "bad": BAD})
    run.add_divergence(4, "the loss of member 'bad-seed03' became NaN or infinite in epoch 4 (step 42).")
    assert main(["compare", f"{run.path}:good", f"{run.path}:bad"]) == 0
    said = capsys.readouterr().out
    assert "test/error at epoch 3" in said and "10 pairs (diverged, which counts as worst: 0 of A, 1 of B" in said


def test_a_net_that_diverged_before_it_was_measured_counts_as_worst(tmp_path, capsys):
    assert main(one_run_a_net(tmp_path, 1, "test/error")) == 0
    assert "10 pairs (diverged, which counts as worst: 0 of A, 1 of B" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["val_loss", "val/loss", "test_error", "train_loss_epoch"])
def test_names_of_other_peoples_logs_have_a_direction(tmp_path, name, capsys):
    run = make(tmp_path / "run", {"good": GOOD, "bad": BAD})
    for arm, values in (("good", GOOD), ("bad", BAD)):
        run.append(Row(f"{arm}-seed{seed:02d}", 3, 30, name, values[seed]) for seed in range(10))
    assert main(["compare", f"{run.path}:good", f"{run.path}:bad", "-m", name]) == 0
    assert "A is better" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["hessian/trace_error", "interlayer/block01/relative_error", "own/standard_error"])
def test_uncertainties_are_neither_good_nor_bad(tmp_path, name, capsys):
    run = make(tmp_path / "run", {"good": GOOD, "bad": BAD})
    for arm, values in (("good", GOOD), ("bad", [math.nan, *BAD[1:]])):
        run.append(Row(f"{arm}-seed{seed:02d}", 3, 30, name, values[seed]) for seed in range(10))
    assert main(["compare", f"{run.path}:good", f"{run.path}:bad", "-m", name]) == 1
    assert "9 pairs (1 more left out: a number is not finite or not known): A is smaller" in capsys.readouterr().out


def test_a_file_that_cannot_be_written_is_a_mistake_and_no_verdict(run, tmp_path, capsys):
    log = Path(run, "log.csv").read_bytes()
    (tmp_path / "packed.json").write_text('{"files": {}}')
    for out, why in (
        (tmp_path, f"got {tmp_path}: no file"),
        (f"{run}/log.csv", "a file of another kind"),
        (tmp_path / "packed.json", "a file of another kind"),
        (f"{run}/log.csv/new", "log.csv cannot be written"),
    ):
        assert main(["compare", f"{run}:bad", f"{run}:good", "--json", "--out", str(out)]) == 2
        said = capsys.readouterr()
        assert not said.out and "error: --out: " in said.err and why in said.err
    assert Path(run, "log.csv").read_bytes() == log
    for _ in range(2):  # findings in place of findings
        assert main(["compare", f"{run}:bad", f"{run}:good", "--out", str(tmp_path / "found")]) == 1
    assert main(["compare", f"{run}:good", f"{run}:bad", "--plan", "0.01", "--out", str(tmp_path / "plan.json")]) == 0
    assert json.loads((tmp_path / "plan.json").read_text())["needed"] == 11
    assert main(["compare", f"{run}:good", f"{run}:bad", "--plan", "0.01", "--latex"]) == 2


def test_what_there_is_instead(run, capsys):
    assert main(["compare", f"{run}:good", f"{run}:bad", "-m", "test/eror"]) == 2
    said = capsys.readouterr().err
    assert "did you mean test/error? there are 3, such as test/error, train/risk, cushion/layer02/median" in said
    assert main(["compare", "", f"{run}:bad"]) == 2
    assert "got an empty text: is a variable unset?" in capsys.readouterr().err
    assert main(["compare", f"{run}:", f"{run}:bad"]) == 2
    assert "expected the name of an arm behind the colon" in capsys.readouterr().err


def resumed(run: RunFolder, **before) -> str:
    """A run that had other options of the data before it was resumed."""
    earlier = {**run.config(), "data": {**DATA, "init_args": before}, "trainer": {"max_epochs": 2}}
    (run.path / "config.before-resume-1.yaml").write_text(yaml.safe_dump(earlier))
    return str(run.path)


def test_a_run_that_went_on_with_other_data_is_not_paired_with_one_that_had_these_throughout(tmp_path, capsys):
    changed = resumed(make(tmp_path / "changed", {"good": GOOD, "bad": BAD}), batch_size=64)
    make(tmp_path / "other", {"good": GOOD, "bad": BAD})
    assert main(["compare", f"{changed}:good", f"{tmp_path}/other:bad"]) == 0
    said = capsys.readouterr().out
    assert "changed: resumed with other options than before: data.init_args.batch_size 64 -> 128." in said
    assert (
        "Not paired by seed, because their data differ (data.init_args.batch_size)" in said and "max_epochs" not in said
    )
    Path(changed, "config.before-resume-1.yaml").write_text("a: [")
    assert main(["compare", f"{changed}:good", f"{tmp_path}/other:bad"]) == 0
    said = capsys.readouterr().out
    assert "changed: " in said and "before-resume-1.yaml" in said and "Not paired by seed" in said


@pytest.mark.parametrize("before", [{"batch_size": 64}, {}], ids=["another size", "an option of a newer version"])
def test_runs_that_went_one_way_are_paired(tmp_path, capsys, before):
    """Arms of one run, seeds in a run each of which one was resumed, and two runs that were resumed alike."""
    for seed in (0, 1):
        run = make(tmp_path / "both" / str(seed), {"good": GOOD[seed : seed + 1], "bad": BAD[seed : seed + 1]}, [seed])
    resumed(run, **before)
    for name in ("one", "other"):
        resumed(make(tmp_path / name, {"good": GOOD, "bad": BAD}), **before)
    both, one, other = (f"{tmp_path}/{name}" for name in ("both", "one", "other"))
    for a, b in ((f"{one}:good", f"{one}:bad"), (f"{both}:good", f"{both}:bad"), (f"{one}:good", f"{other}:bad")):
        assert main(["compare", a, b]) in (0, 4)
        said = capsys.readouterr().out
        assert "paired by seed: 0, 1" in said and "resumed with other options" in said


def test_a_link_to_a_run_is_the_run(run, tmp_path):
    link = tmp_path / "linked" / "latest"
    link.parent.mkdir()
    link.symlink_to(run)
    assert len(find_runs([run, link])) == 1
    assert [found.path for found in find_runs([link.parent])] == [link]
    assert [str(found.path) for found in find_runs([tmp_path])] == [run]  # whose own folder is a plain one


def test_a_linked_run_is_called_as_its_link_and_its_page_is_where_that_lies(run, tmp_path):
    home = tmp_path / "home"
    for name in ("best", "other"):
        home.mkdir(exist_ok=True)
        (home / name).symlink_to(make(tmp_path / "far" / "away" / name, {"net": GOOD}).path)
    found = find_runs([home])
    assert [each.label for each in read_runs(found)] == ["best", "other"]
    assert write_report(found) == home / "report.html"


def test_a_link_to_a_folder_of_runs_is_not_followed(run, tmp_path):
    """One that somebody sent could lead to /."""
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "all").symlink_to(Path(run).parent)
    with pytest.raises(UserError, match=r"found no log\.csv in or below"):
        find_runs([tmp_path / "linked"])


def test_to_diverge_can_settle_it_alone(tmp_path):
    """Equal where they work; and one side fails with half of its seeds, by which the other cannot be luckier."""
    same = np.random.default_rng(0).normal(0.2, 0.01, 26)
    lost = [math.nan if seed % 2 else value for seed, value in enumerate(same)]
    make(tmp_path / "run", {"safe": same.tolist(), "lost": lost})
    assert main(["compare", f"{tmp_path}/run:safe", f"{tmp_path}/run:lost"]) == 0
    assert main(["compare", f"{tmp_path}/run:lost", f"{tmp_path}/run:safe"]) == 1
    make(tmp_path / "both", {"one": lost, "other": lost})
    assert main(["compare", f"{tmp_path}/both:one", f"{tmp_path}/both:other"]) == 4


@pytest.mark.parametrize(
    ("name", "asked"),
    [("test/error", 2), ("own/val_error", 2), ("train/error", 1), ("train_error", 1), ("own/standard_error", 1)],
)
def test_errors_on_unseen_data_are_asked_for_at_equal_training_risk(name, asked):
    """An uncertainty is no error, and at equal training risk that of training says nothing new."""
    assert questions([name]) == asked


def test_nets_that_have_all_diverged_are_not_equivalent(tmp_path, capsys):
    """Neither is worse, and nobody knows by how much they differ: a pair of two diverged nets tells nothing."""
    make(tmp_path / "run", {"one": [math.nan] * 9, "other": [math.nan] * 9})
    words = ["compare", f"{tmp_path}/run:one", f"{tmp_path}/run:other", "--margin", "0.01"]
    assert main(words) == 4
    said = capsys.readouterr().out
    lost = "diverged, which counts as worst: 9 of A, 9 of B; not in the means; 9 pairs left out: both nets diverged"
    assert f"A - B – [–, –], 0 pairs ({lost}): unresolved" in said
    assert main([*words, "--json"]) == 4
    found = json.loads(capsys.readouterr().out)
    jsonschema.validate(found, SCHEMA)
    assert [(each["pairs"], each["left_out"], each["diverged"]) for each in found["findings"][:1]] == [(0, 9, [9, 9])]
    make(tmp_path / "few", {"one": [math.nan] * 40 + [1.0] * 3, "other": [math.nan] * 40 + [0.1] * 3})
    assert main([words[0], *(f"{tmp_path}/few:{arm}" for arm in ("one", "other")), *words[3:]]) == 4


def test_errors_that_are_measured_less_often_are_compared_at_a_risk_that_is_reached_while_they_are(tmp_path, capsys):
    """Training goes on for an epoch after the last test error, and all nets come down further: at 0.6 errors are known."""
    run = make(tmp_path / "run", {"good": [0.3] * 8, "bad": [0.3] * 8})
    for arm in ("good", "bad"):
        run.append(Row(f"{arm}-seed{seed:02d}", 4, 40, "train/risk", 0.1) for seed in range(8))
    main(["compare", f"{run.path}:good", f"{run.path}:bad"])
    said = capsys.readouterr().out
    assert "test/error at training risk 0.6: A 0.3 ± 0, B 0.3 ± 0; A - B 0 [0, 0], 8 pairs" in said


def test_risks_of_two_losses_are_never_equal(tmp_path, capsys):
    """Errors were compared where a cross-entropy was as large as a squared error."""
    for name, loss in (("one", "cross_entropy"), ("other", "squared_error"), ("silent", None)):
        model = {"net": "Net", "seeds": "0-7", **({"loss": loss} if loss else {})}
        make(tmp_path / name, {"net": GOOD[:8] if name == "one" else BAD[:8]}, model=model)
    for other, counted in (("other", 1), ("silent", 2)):
        main(["compare", f"{tmp_path}/one", f"{tmp_path}/{other}"])
        said = capsys.readouterr().out
        assert said.count("test/error at") == counted and "2 questions, answered or not" in said


def test_what_an_arm_decays_towards_is_an_option_that_differs(tmp_path, capsys):
    run = make(tmp_path / "run", {"one": GOOD, "other": BAD})
    arms = {arm: {"net": "Net", "decay_towards": centre} for arm, centre in (("one", "zero"), ("other", "identity"))}
    (run.path / "config.yaml").write_text(yaml.safe_dump({"data": DATA, "model": {"arms": arms}}))
    main(["compare", f"{run.path}:one", f"{run.path}:other"])
    assert "options that differ, A / B: decay_towards: zero / identity\n" in capsys.readouterr().out


def test_a_note_names_the_side_of_runs_of_one_name(tmp_path, capsys):
    for side, arm in (("a", GOOD), ("b", BAD)):
        make(tmp_path / side / "run", {"net": arm})
    resumed(RunFolder(tmp_path / "b" / "run"), batch_size=64)
    main(["compare", f"{tmp_path}/a/run", f"{tmp_path}/b/run"])
    assert "\nrun of B: resumed with other options than before: " in "\n" + capsys.readouterr().out


def test_options_of_measures_do_not_hide_those_of_training(tmp_path, capsys):
    for side, rate in (("a", 1), ("b", 2)):
        callbacks = [{"class_path": "C", "init_args": {"every": rate}}] * 9
        make(tmp_path / side, {"net": GOOD}, trainer={"callbacks": callbacks}, model={"lr": rate})
        config = RunFolder(tmp_path / side).config()
        (tmp_path / side / "config.yaml").write_text(
            yaml.safe_dump(dict(sorted(config.items(), reverse=True)), sort_keys=False)
        )
    main(["compare", f"{tmp_path}/a", f"{tmp_path}/b"])
    assert "options that differ, A / B: model.lr: 1 / 2; trainer.callbacks.0." in capsys.readouterr().out


def test_the_nets_that_lack_a_number_are_named(tmp_path, capsys):
    make(tmp_path / "run", {"good": GOOD, "bad": BAD})
    log = tmp_path / "run" / "log.csv"
    log.write_text("".join(row for row in log.open() if not ("good-seed03" in row and "test/error" in row)))
    assert main(["compare", f"{tmp_path}/run:good", f"{tmp_path}/run:bad"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "no number 'test/error' was measured of all nets of both sides (not of run/good-seed03 of A): " in said


def test_one_net_whose_errors_stop_being_numbers_does_not_move_the_risk_at_which_all_are_compared(tmp_path, capsys):
    """It is measured all the same, and trains on: only its pair is left out."""
    run = make(tmp_path / "run", {"good": GOOD, "bad": BAD})
    log = run.path / "log.csv"
    rows = [row.split(",") for row in log.read_text().splitlines()]
    for row in rows:
        if row[0] == "good-seed03" and row[1] != "0" and row[3] == "test/error":
            row[4] = "nan"
    log.write_text("".join(",".join(row) + "\n" for row in rows))
    main(["compare", f"{run.path}:good", f"{run.path}:bad"])
    assert "test/error at training risk 0.4: A 0.2 ± 0, B 0.2 ± 0; A - B 0 [0, 0], 9 pairs" in capsys.readouterr().out


@pytest.mark.parametrize(("batches", "paired"), [(10, False), (1.0, True)])
def test_part_of_the_batches_is_other_data_and_all_of_them_is_the_same_however_it_is_spelled(
    tmp_path, capsys, batches, paired
):
    make(tmp_path / "a", {"net": GOOD}, trainer={"limit_train_batches": batches})
    make(tmp_path / "b", {"net": BAD}, trainer={"limit_train_batches": None})
    assert main(["compare", f"{tmp_path}/a", f"{tmp_path}/b"]) == 0
    said = capsys.readouterr().out
    assert ("paired by seed: 0, 1" in said) == paired
    assert ("because their data differ (trainer.limit_train_batches)" in said) != paired
    assert ("options that differ" in said) != paired


def test_arms_with_batches_of_their_own_are_not_paired_by_seed_but_with_twins_and_themselves(tmp_path, capsys):
    """With `share_batches: false`; the two runs have the same nets."""
    arms = {"good": {"net": {}}, "bad": {"net": {}}, "twin": {"twin_of": "good"}}
    for name in ("a", "b"):
        model = {"arms": arms, "share_batches": False}
        make(tmp_path / name, {"good": GOOD, "bad": BAD, "twin": BAD}, model=model)
    for other, paired in (("a:bad", False), ("b:bad", False), ("a:twin", True), ("b:good", True)):
        main(["compare", f"{tmp_path}/a:good", f"{tmp_path}/{other}"])
        said = capsys.readouterr().out
        assert ("paired by seed: 0, 1" in said) == paired
        assert ("because their data differ (model.share_batches)" in said) != paired


def test_two_spellings_of_all_batches_on_one_side_do_not_hide_that_the_other_saw_a_part(tmp_path, capsys):
    for name, seeds, batches in (("a", [0, 1, 2, 3, 4], None), ("b", [5, 6, 7, 8, 9], 1.0)):
        make(tmp_path / name, {"net": [GOOD[seed] for seed in seeds]}, seeds, trainer={"limit_train_batches": batches})
    make(tmp_path / "c", {"net": BAD}, trainer={"limit_train_batches": 10})
    main(["compare", f"{tmp_path}/a,{tmp_path}/b", f"{tmp_path}/c"])
    said = capsys.readouterr().out
    assert "because their data differ (trainer.limit_train_batches)" in said and "among themselves" not in said


def test_a_plan_without_finite_pairs_says_how_many_there_are(tmp_path, capsys):
    make(tmp_path / "run", {"one": [math.nan] * 9, "other": BAD[:9]})
    assert main(["compare", f"{tmp_path}/run:one", f"{tmp_path}/run:other", "--plan", "0.01"]) == 2
    assert "at least two pairs with finite numbers in test/error, got 0 of 9" in capsys.readouterr().err


def test_the_questions_are_counted_in_advance(tmp_path, capsys):
    """Whether all nets have a training risk in common changes from look to look: the 5 % are shared as if they had."""
    make(tmp_path / "run", {"good": GOOD, "bad": BAD})
    other = make(tmp_path / "other", {"good": GOOD, "bad": BAD})
    other.append(Row("bad-seed00", epoch, 10 * epoch, "train/risk", 50.0) for epoch in range(4))
    ends = []
    for name in ("run", "other"):
        main(["compare", f"{tmp_path}/{name}:good", f"{tmp_path}/{name}:bad", "--json"])
        ends.append(json.loads(capsys.readouterr().out)["findings"])
    assert [len(found) for found in ends] == [2, 1]
    assert ends[0][0] == ends[1][0]
    main(["compare", f"{tmp_path}/other:good", f"{tmp_path}/other:bad"])
    assert (
        "2 questions, answered or not, share the 5 % chance of a wrong verdict (Bonferroni)." in capsys.readouterr().out
    )


def test_nets_that_are_not_equally_far_are_compared_where_all_are(tmp_path, capsys):
    run = make(tmp_path / "run", {"good": GOOD, "bad": BAD})
    run.append([Row("good-seed00", 4, 40, "test/error", 0.01)])
    main(["compare", f"{run.path}:good", f"{run.path}:bad"])
    said = capsys.readouterr().out
    assert "test/error at epoch 3" in said
    assert "Not all nets of A are at epoch 4" in said


@pytest.mark.parametrize(
    ("a", "b", "more", "said"),
    [
        ("run", "run:bad", [], "say which, as in"),
        ("run:god", "run:bad", [], "no arm 'god' in"),
        ("nowhere", "run:bad", [], "expected a run folder"),
        ("run:good", "run:bad", ["-m", "test/eror"], "did you mean test/error"),
        ("run:good", "run:bad", ["--margin", "-1"], "expected a number above 0, got -1"),
        ("run:good", "run:bad", ["--margin", "wide"], "expected a number above 0, got wide"),
        ("run:good", "digits", [], "were trained on different tasks"),
        ("run:good,run:good", "run:bad", [], "found no log.csv"),
        ("twice", "run:bad", [], "has seed 0 in several runs"),
        ("loop", "run:bad", [], "expected a run folder"),
    ],
)
def test_a_mistake_is_one_message(tmp_path, monkeypatch, capsys, a, b, more, said):
    monkeypatch.chdir(tmp_path)
    make(Path("run"), {"good": GOOD, "bad": BAD})
    make(Path("digits"), {"net": GOOD}, data={"class_path": "Digits"})
    make(Path("twice/one"), {"net": [0.1]}), make(Path("twice/two"), {"net": [0.2]})
    Path("loop").symlink_to("loop")
    assert main(["compare", a, b, *more]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1
    assert said in error


def test_a_side_is_in_the_order_of_seeds_and_no_net_is_on_both(tmp_path):
    for name in ("run", "other"):
        make(tmp_path / name, {"net": GOOD}, seeds=[*range(10)][::-1])
    a, b = f"{tmp_path}/run", f"{tmp_path}/run/../other:net"
    assert sides_of(a, b).seeds == tuple(range(10))
    with pytest.raises(UserError, match="run/net-seed00 is on both sides: name two"):
        sides_of(a, f"{tmp_path}/other/../run:net")
    with pytest.raises(UserError, match="test/odd at the same epoch in all nets of both sides, got epochs none in A"):
        RunFolder(tmp_path / "run").append([Row("net-seed00", 9, 90, "test/odd", 1.0)])
        RunFolder(tmp_path / "run").append([Row(f"net-seed0{n}", 8, 80, "test/odd", 1.0) for n in range(1, 10)])
        RunFolder(tmp_path / "other").append([Row(f"net-seed0{n}", 8, 80, "test/odd", 1.0) for n in range(10)])
        sides_of(a, b).table("test/odd")


def test_numbers_of_a_whole_run_are_those_of_its_only_net(tmp_path, capsys):
    """As a module of one's own logs them, with callbacks that measured its net and without."""
    for arm, values in (("good", GOOD), ("bad", BAD)):
        for number, value in enumerate(values):
            run = RunFolder(tmp_path / arm / f"run{number}")
            run.append([Row("", 0, 0, "val_loss", 2.3), Row("", 3, 30, "val_loss", value)])
            if number % 2:
                run.append([Row("net", 3, 30, "test/error", value)])
    assert main(["compare", f"{tmp_path}/good", f"{tmp_path}/bad", "-m", "val_loss"]) == 0
    said = capsys.readouterr().out
    assert "val_loss at epoch 3" in said and "better" in said and "compared in their order" in said
    assert main(["compare", f"{tmp_path}/good", f"{tmp_path}/bad"]) == 2
    assert "of all nets of both sides (not of run0 of A, run2 of A, run4 of A, ...): there are 1, such as val_loss" in (
        capsys.readouterr().err
    )


def test_nets_without_seeds_are_in_the_order_of_the_numbers_of_their_runs(tmp_path):
    """Evidence depends on the order: run10 was put between run1 and run2."""
    for number in range(11):
        for side in "ab":
            RunFolder(tmp_path / side / f"run{number}").append([Row("", 1, 10, "val_loss", 1.0 + number)])
    for names in ("{}", "{}/run*"):
        sides = sides_of(*(f"{tmp_path}/{names.format(side)}" for side in "ab"))
        assert [net.run.label for net in sides.a] == [f"run{number}" for number in range(11)]


def test_numbers_of_a_whole_run_are_nobody_s_where_it_has_several_nets(tmp_path):
    run = make(tmp_path / "run", {"good": GOOD, "bad": BAD})
    run.append([Row("", 3, 30, "time/epoch", 5.0)])
    assert "time/epoch" not in sides_of(f"{run.path}:good", f"{run.path}:bad").names


def test_measured_within_epochs(tmp_path, capsys):
    run = make(tmp_path / "run", {"good": GOOD, "bad": BAD})
    for arm, errors in (("good", GOOD), ("bad", BAD)):
        run.append(Row(f"{arm}-seed{seed:02d}", 1 / 3, 5, "test/error", errors[seed]) for seed in range(10))
    assert main(["compare", f"{run.path}:good", f"{run.path}:bad", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    jsonschema.validate(found, SCHEMA)
    assert found["findings"][0]["at"] == "epoch 3"
    run.append(Row(f"good-seed{seed:02d}", 0, 0, "test/error", 5.0) for seed in range(10))
    main(["compare", f"{run.path}:good", f"{run.path}:bad"])
    assert "better, from epoch 0.3333 on" in capsys.readouterr().out


def test_arms_have_parted_from_the_epoch_after_which_they_never_meet_again(run, capsys):
    """They are equal at epochs 0 and 2."""
    for epoch, factor in ((0, 9.0), (2, 2.0)):
        rows = (Row(f"good-seed{seed:02d}", epoch, 10 * epoch, "test/error", factor * BAD[seed]) for seed in range(10))
        RunFolder(run).append(rows)
    assert main(["compare", f"{run}:good", f"{run}:bad"]) == 0
    assert "A is better, from epoch 3 on" in capsys.readouterr().out


def test_the_rounding_of_floats_is_no_evidence(tmp_path, capsys):
    """Equal errors, of which one side is a bit larger in the last digit, as sums in another order are."""
    make(tmp_path / "run", {"one": GOOD, "other": np.nextafter(GOOD, 1).tolist()})
    assert main(["compare", f"{tmp_path}/run:one", f"{tmp_path}/run:other"]) == 4
    assert "A - B 0 [0, 0], 10 pairs: unresolved" in capsys.readouterr().out


def test_what_does_not_belong_together_gets_a_message(tmp_path, capsys):
    for seed in range(10):
        make(tmp_path / "a" / f"x{seed}", {"net": [GOOD[seed]]}, [seed], model={"lr": 0.1 if seed else 0.2})
    run = make(tmp_path / "b", {"net": BAD}, model={"lr": 0.2})
    run.append(Row(f"net-seed{seed:02d}", 5, 50, "test/error", 0.3) for seed in range(10))
    main(["compare", f"{tmp_path}/a", f"{tmp_path}/b"])
    said = capsys.readouterr().out
    assert "The nets of A differ among themselves in model.lr." in said
    assert "Not all nets of A are at epoch 5" in said
    make(tmp_path / "a" / "y", {"net": [0.1]}, [10], data={"class_path": "Digits"})
    assert main(["compare", f"{tmp_path}/a", f"{tmp_path}/b"]) == 2
    assert "were trained on different tasks" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "a", "b"),
    [("hops", 2, 3), ("letters", 3, 4), ("modulus", 97, 113), ("level", "byte", "character"), ("separation", 1.0, 0.5)],
)
def test_a_harder_task_of_the_same_data_set_is_another_task(tmp_path, capsys, option, a, b):
    for side, value in (("a", a), ("b", b)):
        make(tmp_path / side, {"net": GOOD}, data={"class_path": "Data", "init_args": {option: value}})
    assert main(["compare", f"{tmp_path}/a", f"{tmp_path}/b"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert f"different tasks (data.init_args.{option} is {a} and {b})" in said


def test_an_option_that_only_newer_runs_have_is_no_other_task(tmp_path, capsys):
    """Of a data set that has got one since: runs from before were refused as of another task."""
    for side, options in (("a", {}), ("b", {"label_noise": 0.0})):
        make(tmp_path / side, {"net": GOOD}, data={"class_path": "Data", "init_args": {"batch_size": 8} | options})
    assert main(["compare", f"{tmp_path}/a", f"{tmp_path}/b"]) == 4
    assert "Not paired by seed, because their data differ (data.init_args.label_noise)" in capsys.readouterr().out
    make(tmp_path / "c", {"net": GOOD}, data={"class_path": "Data", "init_args": {"label_noise": 0.5}})
    assert main(["compare", f"{tmp_path}/a", f"{tmp_path}/c"]) == 2
    assert "(data.init_args.label_noise is None and 0.5)" in capsys.readouterr().err
    for seed, options in enumerate(({}, {"label_noise": 0.5}, {"label_noise": 0.0})):  # the last one hid the one before
        data = {"class_path": "Data", "init_args": {"batch_size": 8} | options}
        make(tmp_path / "mixed" / f"{seed}", {"net": GOOD[:1]}, [seed], data)
    assert main(["compare", f"{tmp_path}/mixed", f"{tmp_path}/a"]) == 2
    assert "(data.init_args.label_noise is None and 0.5)" in capsys.readouterr().err


def test_a_side_that_does_not_say_its_data_is_compared_in_order(tmp_path, capsys):
    make(tmp_path / "run", {"net": GOOD}, data={"class_path": "Digits"})
    make(tmp_path / "a, b", {"net": BAD}, data={"class_path": "Digits"})
    (tmp_path / "a, b" / "config.yaml").unlink()
    assert main(["compare", f"{tmp_path}/run", f"{tmp_path}/a, b"]) == 0
    assert "Not paired by seed, because not all configurations say on which data" in capsys.readouterr().out


@pytest.mark.parametrize("silent", [("both", "again", "a", "b"), ("a", "b"), ("both",)])
def test_runs_that_do_not_say_their_data_are_paired_within_each_run_only(tmp_path, silent):
    for name, arms, seed in (("both", "ab", 0), ("a", "a", 1), ("b", "b", 1), ("again", "ab", 1)):
        make(tmp_path / name, {arm: [0.1] for arm in arms}, [seed])
    for name in silent:
        (tmp_path / name / "config.yaml").unlink()
    each = sides_of(f"{tmp_path}/both,{tmp_path}/again:a", f"{tmp_path}/both,{tmp_path}/again:b")
    assert each.seeds == (0, 1)
    mixed = sides_of(f"{tmp_path}/both,{tmp_path}/a:a", f"{tmp_path}/both,{tmp_path}/b:b")
    assert mixed.seeds is None and "not all configurations say" in mixed.notes[-1]


def test_names_of_other_people_do_not_reach_the_terminal(tmp_path, capsys):
    make(tmp_path / "run", {"good": GOOD, "bad": BAD}, model={"\x1b[2J": "\x1b]0;x\x07"})
    make(tmp_path / "other", {"bad": BAD})
    run = RunFolder(tmp_path / "run")
    run.append(Row(f"{arm}-seed{n:02d}", 3, 30, "50%\x1b[31m/error", 0.1) for arm in ("good", "bad") for n in range(10))
    for more in ([], ["--latex"]):
        main(["compare", f"{tmp_path}/run:good", f"{tmp_path}/run:bad", "-m", "50*", *more])
        assert "\x1b" not in (said := capsys.readouterr().out) and "50" in said
    assert said.startswith(r"50\%")
    main(["compare", f"{tmp_path}/run:good", f"{tmp_path}/other", "-m", "test/error"])
    assert "\x1b" not in capsys.readouterr().out
    main(["compare", f"{tmp_path}/run:\x1b[31m", f"{tmp_path}/other"])
    assert "\x1b" not in capsys.readouterr().err


def test_means_are_of_the_pairs_that_are_compared(tmp_path, capsys):
    make(tmp_path / "run", {"good": [*GOOD, 99.0], "bad": [*BAD, math.nan]})
    main(["compare", f"{tmp_path}/run:good", f"{tmp_path}/run:bad"])
    assert "A 0.1045 ± 0.003, B 0.1955 ± 0.003" in capsys.readouterr().out  # of the pairs without a diverged net


def test_nets_without_a_counterpart_are_counted(tmp_path):
    for side, errors, seeds in (("a", GOOD[:1], [7]), ("b", BAD[:2], [8, 9])):
        make(tmp_path / side, {"net": errors}, seeds)
    notes = sides_of(str(tmp_path / "a"), str(tmp_path / "b")).notes
    assert "A has 1 net and B 2: the first 1 of each are compared." in notes


def test_a_path_may_have_brackets(tmp_path):
    make(tmp_path / "x[1]", {"good": GOOD, "bad": BAD}), make(tmp_path / "x1", {"net": GOOD})
    assert main(["compare", f"{tmp_path}/x[1]:good", f"{tmp_path}/x[1]:bad"]) == 0


def test_a_row_of_latex_counts_nets_that_diverged_and_pairs_left_out():
    a, b = np.array([*GOOD, 0.1, math.nan]), np.array([*BAD, math.inf, 0.2])
    row = latex(judged("test/error", "epoch 1", a, b, None, 0.025))
    assert row.startswith("test/error & epoch 1 & 11 (1 net diverged, 1 left out) & $0.1045")


def test_where_one_side_has_no_numbers_nothing_is_said_of_more_seeds():
    lost, fine = np.full(7, math.inf), np.full(7, 0.1)
    said = text(judged("test/error", "epoch 1", lost, fine, None, 0.025))
    assert "too few pairs have finite numbers on both sides" in said and "would not settle" not in said
    assert text(judged("test/error", "epoch 1", np.append(lost, math.inf), np.append(fine, 0.1), None, 0.025)).endswith(
        "A is worse"
    )


def test_findings_may_be_below_the_home_folder(run, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path)), monkeypatch.chdir(tmp_path)
    assert main(["compare", f"{run}:good", f"{run}:bad", "--out=~/found.json"]) == 0
    assert (tmp_path / "found.json").exists() and not (tmp_path / "~").exists()
