"""Configurations, imports and checkpoints from before callbacks were renamed."""

import pytest

import callbacks
from lightning_app.cli.training import run_training
from lightning_app.runs import RunFolder
from tests.helpers import TINY

OLD = {"Learning": callbacks.TrainingMetrics, "WeightTravel": callbacks.DistanceFromStart}


def test_an_old_name_is_the_class_and_not_listed():
    assert {name: getattr(callbacks, name) for name in OLD} == OLD
    assert not OLD.keys() & {*callbacks.__all__}
    with pytest.raises(AttributeError, match="no attribute 'Traveling'"):
        getattr(callbacks, "Traveling")  # noqa: B009


def test_checkpoints_know_callbacks_by_their_first_names():
    keys = {
        callback.state_key
        for callback in (callbacks.DistanceFromStart(), callbacks.DrivingForce(), callbacks.BnLambda())
    }
    assert keys == {"WeightTravel", "DrivingForce", "BnLambda{'norm': 'frobenius'}"}


@pytest.mark.slow
def test_a_configuration_with_old_names_trains(tmp_path, monkeypatch):
    """In short as users write them, and in full as config.yaml of a run has them."""
    monkeypatch.chdir(tmp_path)
    run_training([*TINY, "--trainer.callbacks", "[Learning, callbacks.WeightTravel]", "--run.name", "old"])
    names = set(RunFolder(tmp_path / "runs/digits/old").log()["name"])
    assert {"train/risk_running", "travel/distance", "travel/from_start_of/plain"} <= names
