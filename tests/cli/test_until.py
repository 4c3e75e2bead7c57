"""`fit --until`: questions, what is refused, and one real run that is called twice."""

import pytest

from lightning_app.cli import main
from lightning_app.cli.until import Question
from lightning_app.common.errors import UserError
from lightning_app.compare.findings import Verdict
from tests.helpers import LEARNING, TINY, command


def test_questions():
    question = Question.parse("test/error: better|equivalent within 0.002")
    assert question == Question("test/error", frozenset({Verdict.BETTER, Verdict.EQUIVALENT}), 0.002)
    assert Question.parse("test/error: within 1e-3").margin == 0.001
    assert Question.parse("train/risk:worse").hoped == {Verdict.WORSE}


@pytest.mark.parametrize(
    "words", ["", "test/error: best", "test/error within", "a: better within 0", "a: better within 1e"]
)
def test_no_question_gets_an_example(words):
    with pytest.raises(UserError, match=r"--until expects .* as in --until \"test/error: better"):
        Question.parse(words)


def test_an_equivalence_has_a_margin():
    with pytest.raises(UserError, match="equivalent within what"):
        Question.parse("test/error: equivalent")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--until", "test/error", "--max-seeds", "6"], "--max-seeds expects a number of seeds, at least 7, got '6'"),
        (["--until"], "--until expects a value"),
    ],
)
def test_a_mistake_trains_nothing(words, said, capsys):
    assert main(["fit", *words]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.slow
def test_seeds_are_trained_until_it_is_settled_or_there_are_enough(tmp_path):
    words = (*TINY, *LEARNING, "--trainer.max_epochs", "1", "--trainer.logger", "[]")
    question = ("--until", "test/error: equivalent within 10", "--max-seeds", "7")
    for _ in range(2):  # the second time there is nothing left to train
        done = command(*words, *question, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "7 pairs: equivalent within 10" in done.stdout.splitlines()[-1]
        assert [path.name for path in (tmp_path / "runs" / "digits").iterdir()] == ["quickstart-seed0-6"]
    assert "epoch 1/1" not in done.stdout
    hopeless = command(*words, "--until", "test/error: worse within 1e-9", "--max-seeds=7", cwd=tmp_path)
    assert hopeless.returncode in (1, 4)  # settled otherwise, or not by so few


@pytest.mark.slow
def test_one_arm_is_refused(tmp_path):
    done = command("fit", "--config", "configs/res20.yaml", "--until", "test/error", cwd=tmp_path)
    assert done.returncode == 2
    assert "compares two arms, the configuration has 0" in done.stderr
