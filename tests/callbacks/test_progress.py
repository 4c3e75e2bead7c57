"""What a running fit says of the time that it takes."""

import re

import pytest

from callbacks import ProgressLines, training
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
