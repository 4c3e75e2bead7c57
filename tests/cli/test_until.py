"""`fit --until`: questions, what is refused, and one real run that is called again."""

import json
import math

import jsonschema
import pytest
import yaml

from lightning_app.cli import main, until
from lightning_app.cli.run_folders import RunFolders
from lightning_app.cli.until import Question, Runs, _asked, _begun, _check_same, _until_settled
from lightning_app.common.errors import UserError
from lightning_app.compare.findings import Verdict
from lightning_app.runs import Row, RunFolder
from tests.compare.test_compare import SCHEMA
from tests.helpers import LEARNING, TINY, command


def test_questions():
    question = Question.parse("test/error: better|equivalent within 0.002")
    assert question == Question("test/error", frozenset({Verdict.BETTER, Verdict.EQUIVALENT}), 0.002)
    assert Question.parse("test/error: within 1e-3").margin == 0.001
    assert Question.parse("train/risk:worse").hoped == {Verdict.WORSE}


@pytest.mark.parametrize(
    "words",
    ["", "test/error: best", "test/error within", "a: better within 0", "a: better within 1e", "a: worse within 1e999"],
)
def test_no_question_gets_an_example(words):
    with pytest.raises(UserError, match=r"--until expects .* as in --until \"test/error: better"):
        Question.parse(words)


def test_an_equivalence_has_a_margin():
    with pytest.raises(UserError, match="'equivalent' needs a margin"):
        Question.parse("test/error: equivalent")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--until", "test/error", "--max-seeds", "6"], "--max-seeds expects a number of seeds, at least 7, got '6'"),
        (["--until", "test/error", "--max-seeds", "²"], "--max-seeds expects a number of seeds, at least 7, got '²'"),
        (["--until"], "--until expects a value"),
        (["--until", "test/error", "--until=test/risk"], "--until is given twice"),
        (["--until", "test/error", "--print_config"], "--until trains and --print_config does not"),
        (["--help", "--until", "test/error"], "--until trains and --help does not"),
    ],
)
def test_a_mistake_trains_nothing(words, said, capsys):
    assert main(["fit", *words]) == 2
    assert said in capsys.readouterr().err


def test_a_folder_with_a_comma_is_refused():
    run = {"root": "a,b", "group": "g", "name": "n"}
    with pytest.raises(UserError, match="a,b/g/n has a comma in it: choose another --run"):
        _asked({"run": run, "model": {"seeds": "0", "arms": {"a": {}, "b": {}}}, "trainer": {}})


def test_runs_of_other_options_are_not_mixed(tmp_path):
    stored = {"run": {"name": "x-seed0-6"}, "model": {"seeds": "0-6", "lr": 0.1}, "trainer": {"devices": 1}}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(stored))
    run = RunFolder(tmp_path)
    asked = {"run": {"name": "x"}, "model": {"seeds": "3", "lr": 0.1}, "trainer": {"devices": 2}}
    _check_same([run], asked)
    with pytest.raises(UserError, match=r"model.lr: 0.1 there, 0.2 now; model.momentum: None there, 0.9 now"):
        _check_same([run], asked | {"model": {"lr": 0.2, "momentum": 0.9}})


def test_a_run_that_logs_nothing_settles_nothing():
    with pytest.raises(UserError, match="fast_dev_run"):
        _asked({"run": {}, "model": {"seeds": "5-7", "arms": {"a": {}, "b": {}}}, "trainer": {"fast_dev_run": 1}})


def test_runs_are_looked_for_where_fit_writes_them(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    run = {"root": "~/runs", "group": "digits", "name": "x"}
    folder, *_, start = _asked({"run": run, "model": {"seeds": "5-7", "arms": {"a": {}, "b": {}}}, "trainer": {}})
    assert folder == RunFolders(run["root"], run["group"], run["name"]).parent == tmp_path / "runs" / "digits"
    assert start == 5


@pytest.mark.parametrize("name", ["/abs/x", "**x"])
def test_a_name_that_is_none_is_left_to_fit(tmp_path, name):
    """It ended in a traceback of pathlib's."""
    assert not _begun(Runs(tmp_path, name, "a", "b", start=0))


def test_a_fit_that_leaves_no_run_ends_it(monkeypatch, tmp_path):
    monkeypatch.setattr(until, "to_its_end", lambda words: 0)
    asked = Runs(tmp_path, "x", "a", "b", start=100)
    with pytest.raises(UserError, match=r"--until: expected a run in .*x-seed100-106, found none after `fit`"):
        _until_settled([], Question.parse("test/error"), 26, asked, {})


@pytest.mark.parametrize(
    ("question", "most", "code", "last"),
    [
        ("test/error: better", 26, 0, "A is better"),
        ("test/error: worse", 26, 5, "A is better"),  # settled otherwise
        ("test/error: better", 8, 4, "unresolved"),
    ],
)
def test_seeds_follow_each_other_until_it_is_settled_or_there_are_enough(
    monkeypatch, tmp_path, capsys, question, most, code, last
):
    """Errors of the last arm are smaller by one standard deviation of the differences, about."""
    trained = []

    def fit(words, name, seeds, resume=False):
        assert not resume
        trained.extend(seeds)
        run = RunFolder(tmp_path / name)
        numbers = [(seed, 0.5 + 0.1 * math.sin(40 * seed)) for seed in seeds]
        run.append(Row(f"first-seed{seed:02d}", 1, 4, "test/error", 0.5) for seed, _ in numbers)
        run.append(Row(f"last-seed{seed:02d}", 1, 4, "test/error", error - 0.07) for seed, error in numbers)
        run.finish(1)
        return 0

    monkeypatch.setattr(until, "_fit", fit)
    asked, answer = Runs(tmp_path, "x", "first", "last", start=3), {}
    assert _until_settled([], Question.parse(question), most, asked, answer) == code
    assert trained == [*range(3, 3 + len(trained))] and 7 <= len(trained) <= most
    assert (len(trained) == most) == (code == 4) and len([*tmp_path.iterdir()]) > 1
    (finding,) = answer["findings"]
    assert last in capsys.readouterr().out.splitlines()[-1] and finding["pairs"] == len(trained)
    again = [*trained]
    assert _until_settled([], Question.parse(question), most, asked, {}) == code and trained == again


def test_a_net_that_diverges_is_compared_and_ends_nothing(monkeypatch, tmp_path, capsys):
    """Of the first seven pairs one has diverged, and ended the others of its run before they were any good: nobody knows them."""
    codes = []

    def fit(words, name, seeds, resume=False):
        assert not resume
        run = RunFolder(tmp_path / name)
        epochs = (0, 1) if codes else (0,)
        for epoch in epochs:
            ends = {"first": 0.5, "last": 0.4} if epoch else {"first": 0.9, "last": 0.9}
            numbers = {f"{arm}-seed{seed:02d}": error for arm, error in ends.items() for seed in seeds}
            run.append(Row(member, epoch, 4 * epoch, "test/error", error) for member, error in numbers.items())
        if codes:
            run.finish(1)
        else:
            run.add_divergence(1, "the loss of member 'first-seed03' became NaN or infinite in epoch 1 (step 2).")
        codes.append(0 if codes else 2)
        return codes[-1]

    monkeypatch.setattr(until, "_fit", fit)
    asked, answer = Runs(tmp_path, "x", "first", "last", start=3), {}
    assert _until_settled([], Question.parse("test/error: better"), 26, asked, answer) == 0
    (finding,) = answer["findings"]
    assert codes[0] == 2 and len(codes) > 1 and not any(codes[1:])
    assert (finding["left_out"], finding["diverged"]) == (6, (0, 1)) and finding["at"] == "epoch 1"


def test_a_run_that_fit_does_not_continue_is_not_taken_for_a_finished_one(monkeypatch, tmp_path):
    """As one that was copied without its checkpoints: `fit` begins another run, and a verdict on the first epochs stood."""
    run = RunFolder(tmp_path / "x-seed0-7")
    ends = {"first": 0.5, "last": 0.4}
    run.append(Row(f"{arm}-seed{seed:02d}", 1, 4, "test/error", end) for arm, end in ends.items() for seed in range(8))
    monkeypatch.setattr(until, "_fit", lambda words, name, seeds, resume=False: 0)
    asked = Runs(tmp_path, "x", "first", "last", start=0)
    with pytest.raises(UserError, match="x-seed0-7 is not finished, and `fit` could not continue it"):
        _until_settled([], Question.parse("test/error"), 26, asked, {})
    run.finish(1)
    assert _until_settled([], Question.parse("test/error"), 26, asked, {}) == 0


def test_the_short_help_does_not_train(capsys):
    assert main(["fit", "--until", "test/error", "-h"]) == 0
    assert "--until" in capsys.readouterr().out


@pytest.mark.slow
def test_seeds_are_trained_until_it_is_settled_or_there_are_enough(tmp_path):
    words = (*TINY, *LEARNING, "--trainer.max_epochs", "1", "--trainer.logger", "[]")
    question = ("--until", "test/error: equivalent within 10", "--max-seeds", "7")
    done = command(*words, *question, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "7 pairs: equivalent within 10" in done.stdout.splitlines()[-1]
    again = command(*words, *question, "--json", cwd=tmp_path)  # there is nothing left to train
    assert again.returncode == 0, again.stderr
    assert "7 pairs: equivalent within 10" in again.stderr and "epoch 1/1" not in again.stderr
    jsonschema.validate(found := json.loads(again.stdout), SCHEMA)
    assert found["findings"][0]["verdict"] == "equivalent"
    assert [path.name for path in (tmp_path / "runs" / "digits").iterdir()] == ["quickstart-seed0-6"]
    hopeless = command(*words, "--until", "test/error: worse within 10", "--max-seeds=7", cwd=tmp_path)
    assert hopeless.returncode == 5  # settled otherwise
    misspelt = command(*words, "--until", "test/eror", "--max-seeds=7", cwd=tmp_path)
    assert misspelt.returncode == 2 and "epoch 1/1" not in misspelt.stdout
    assert "--until: no number 'test/eror' was measured" in misspelt.stderr and "test/error" in misspelt.stderr
    other = command(*words, "--model.optimizer.lr", "0.3", *question, cwd=tmp_path)
    assert other.returncode == 2
    assert "trained with other options (model.optimizer.init_args.lr: " in other.stderr.replace(
        "dict_kwargs", "init_args"
    )


@pytest.mark.slow
def test_one_arm_is_refused(tmp_path):
    done = command("fit", "--config", "configs/res20.yaml", "--until", "test/error", cwd=tmp_path)
    assert done.returncode == 2
    assert "compares two arms, and model.arms has 0" in done.stderr
