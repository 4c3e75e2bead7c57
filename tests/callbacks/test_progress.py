"""What a running fit says of the time that it takes."""

import re
from unittest import mock

import pytest
import pytorch_lightning as pl
from torch import nn

from callbacks import ProgressLines, TrainingMetrics, training
from callbacks.measure import Measure
from lightning_app.runs import RunFolder
from lightning_app.runs.loggers import RunLogger
from tests.helpers import classifier, digits, fit


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


def test_a_run_of_one_epoch_says_nothing_of_those_to_come(capsys):
    fit(classifier(), 1, digits(), callbacks=[ProgressLines()])
    assert "takes" not in capsys.readouterr().out


class Slow(Measure):
    """It claims to have measured for 1,000 seconds, after steps and epochs."""

    family = "slow"

    def measure(self, context):
        self.spent += 1000
        return {}


def test_the_time_of_an_epoch_is_without_measures(tmp_path):
    callbacks = [Slow(every_n_steps=1), TrainingMetrics()]
    fit(classifier(), 2, digits(), callbacks=callbacks, logger=[RunLogger(tmp_path)])
    times = RunFolder(tmp_path).log().query("name == 'time/epoch'")["value"]
    assert len(times) == 2 and (times < -1000).all()


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
