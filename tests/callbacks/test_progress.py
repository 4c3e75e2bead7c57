"""What a running fit says of the time that it takes."""

import math
import re
import time
from unittest import mock

import pytest
import pytorch_lightning as pl
from pytorch_lightning.callbacks import ModelCheckpoint
from torch import nn

from callbacks import ProgressLines, TrainingMetrics, training
from callbacks.log import LoggingCallback
from callbacks.measure import Measure
from lightning_app.runs import RunFolder
from lightning_app.runs.loggers import RunLogger
from tests.helpers import classifier, digits, fit, trainer


@pytest.mark.parametrize(
    ("patience", "place", "line"),
    [
        (0.0, 0, r"an epoch takes about [\d.]+ s without evaluation and measures; 3 to go: about [\d.]+ s"),
        (1e9, 1, r"an epoch takes about [\d.]+ s; 2 to go: about [\d.]+ s"),
    ],
)
def test_the_time_of_an_epoch_is_said_once_as_soon_as_it_is_known(patience, place, line, monkeypatch, capsys):
    monkeypatch.setattr(training, "PATIENCE", patience)
    fit(classifier(), 3, digits(), callbacks=[ProgressLines()])
    said = [one for one in capsys.readouterr().out.splitlines() if "epoch" in one]
    assert [bool(re.fullmatch(line, one)) for one in said] == [number == place for number in range(4)]


@pytest.mark.parametrize(("patience", "times"), [(0.0, 1), (1e9, 0)])
def test_a_long_evaluation_before_training_says_once_how_long_it_takes(patience, times, monkeypatch, capsys):
    monkeypatch.setattr(training, "PATIENCE", patience)
    fit(classifier(), 1, digits(eval_batch_size=100), callbacks=[ProgressLines()], num_sanity_val_steps=-1)
    first, *others = capsys.readouterr().out.splitlines()
    assert bool(re.fullmatch(r"the evaluation before training takes about [\d.]+ s", first)) == bool(times)
    assert not any(line.startswith("the evaluation") for line in others)


def test_a_run_of_one_epoch_says_nothing_of_those_to_come(capsys):
    fit(classifier(), 1, digits(), callbacks=[ProgressLines()])
    assert "takes" not in capsys.readouterr().out


class Slow(Measure):
    """It claims to have measured for 1,000 seconds, after steps and epochs."""

    family = "slow"

    def measure(self, context):
        self.spent += 1000
        return {}


class SlowWatch(LoggingCallback):
    """The same of one that has no clock, as `TwinDivergence`."""

    def on_train_batch_end(self, *_):
        self.spent += 1000


@pytest.mark.parametrize("make", [lambda: Slow(every_n_steps=1), SlowWatch])
def test_the_time_of_an_epoch_is_without_measures(make, tmp_path):
    fit(classifier(), 2, digits(), callbacks=[make(), TrainingMetrics()], logger=[RunLogger(tmp_path)])
    times = RunFolder(tmp_path).log().query("name == 'time/epoch'")["value"]
    assert len(times) == 2 and (times < -1000).all()


class Idle(Measure):
    family = "idle"

    def measure(self, context):
        return {}


def test_what_measures_spend_is_what_they_are_said_to_cost(tmp_path):
    fit(classifier(), 1, digits(), callbacks=[idle := Idle(every_n_steps=1)], logger=[RunLogger(tmp_path)])
    costs = RunFolder(tmp_path).log().query("name == 'cost/idle'")["value"]
    assert len(costs) > 2 and 0 < idle.spent == pytest.approx(costs.sum())


def test_an_epoch_that_a_resume_goes_on_with_lasts_from_there(tmp_path):
    save = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=2, save_top_k=-1)
    fit(classifier(), 1, digits(), enable_checkpointing=True, callbacks=[save])
    began = time.perf_counter()
    run = trainer(1, callbacks=[TrainingMetrics()], logger=[RunLogger(tmp_path / "run")])
    run.fit(classifier(), datamodule=digits(), ckpt_path=tmp_path / "step=2.ckpt")
    (seconds,) = RunFolder(tmp_path / "run").log().query("name == 'time/epoch'")["value"]
    assert 0 < seconds < time.perf_counter() - began


def test_what_is_said_of_an_epoch_that_a_resume_goes_on_with_is_of_its_rest(tmp_path, monkeypatch, capsys):
    save = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=2, save_top_k=-1)
    fit(classifier(), 1, digits(), enable_checkpointing=True, callbacks=[save])
    run = trainer(3, callbacks=[ProgressLines()])
    monkeypatch.setattr(training, "PATIENCE", 1e9)
    capsys.readouterr()
    next(
        one for one in run.callbacks if isinstance(one, ProgressLines)
    )._started -= 1000  # made long before training goes on
    run.fit(classifier(), datamodule=digits(), ckpt_path=tmp_path / "step=2.ckpt")
    first, second, third, *_ = (one for one in capsys.readouterr().out.splitlines() if "epoch" in one)
    assert first.startswith("resuming after epoch 0")
    assert second.startswith("epoch 1/3") and float(re.findall(r"([\d.]+) s\)$", second)[0]) < 900
    assert third.startswith("epoch 2/3")  # and no forecast from a part of an epoch


@pytest.mark.parametrize(("whole", "said"), [(True, "epoch 2/2  "), (False, "within epoch 2/2  ")])
def test_training_that_ends_within_an_epoch_does_not_end_that(monkeypatch, capsys, whole, said):
    monkeypatch.setattr("callbacks.training.members_of", lambda _: [])
    monkeypatch.setattr("callbacks.training.metrics_of", lambda *_: {})
    ProgressLines().on_train_epoch_end(mock.Mock(is_last_batch=whole, current_epoch=1, max_epochs=2), mock.Mock())
    assert capsys.readouterr().out.startswith(said)


def test_what_a_part_of_an_epoch_has_counted_is_forgotten(monkeypatch, capsys):
    """After a resume at the epoch's second-last batch, the next epoch counts from its first."""
    monkeypatch.setattr(training, "PATIENCE", 0.0)
    there = mock.Mock(num_training_batches=20, max_epochs=3, current_epoch=1)
    lines = ProgressLines()
    lines.on_train_batch_end(there, None, None, None, 1)
    lines.on_train_epoch_start(there, None)
    for number in range(3):
        lines.on_train_batch_end(there, None, None, None, number)
    (said,) = capsys.readouterr().out.splitlines()
    assert re.match(r"an epoch takes about \d", said)


def test_each_fit_has_its_own_forecast(monkeypatch, capsys):
    monkeypatch.setattr(training, "PATIENCE", 0.0)
    lines = ProgressLines()
    for _ in range(2):
        fit(classifier(), 1, digits(eval_batch_size=100), callbacks=[lines], num_sanity_val_steps=-1)
        assert capsys.readouterr().out.count("the evaluation before training takes about") == 1


def test_batches_of_an_unknown_number_have_no_forecast(monkeypatch):
    monkeypatch.setattr(training, "PATIENCE", -1.0)
    forecast = training._Forecast()
    assert [forecast.seconds(number, math.inf) for number in range(3)] == [None] * 3 and not forecast.known
    assert forecast.seconds(3, 10) is not None and forecast.known


def test_nets_in_no_bank_have_lines_of_their_own(capsys):
    class Pair(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.members = [("one", nn.Linear(1, 1)), ("two", nn.Linear(1, 1))]

        def metrics(self):
            return {name: {"train/risk_running": float(number)} for number, (name, _) in enumerate(self.members)}

    there = mock.Mock(current_epoch=0, max_epochs=1)
    ProgressLines().on_train_epoch_end(there, Pair())
    assert "one risk 0 | two risk 1" in capsys.readouterr().out


def test_training_that_steps_limit_has_no_number_of_epochs_to_come(capsys):
    fit(classifier(), -1, digits(), max_steps=8, callbacks=[ProgressLines()])
    said = capsys.readouterr().out
    assert re.search(r"^epoch 2  ", said, re.MULTILINE) and "/-1" not in said and "/None" not in said
