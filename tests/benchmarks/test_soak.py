"""What the soak compares: everything that a run leaves behind, but times."""

import numpy as np
import pytest
import torch

from benchmarks.soak import apart, contents
from lightning_app.runs import Row, RunFolder


def left(path, weight=1.0, momentum=0.0, error=0.25, samples=3.0, seconds=1.0):
    """A run folder, and what the soak finds in it."""
    run = RunFolder(path)
    run.append([Row("net", 1, 16, "test/error", error), Row("", 1, 16, "time/epoch", seconds)])
    run.save_arrays(1, "cushion", {"net/samples": np.array([samples])})
    run.checkpoints.mkdir()
    state = {"state_dict": {"w": torch.tensor([weight])}, "optimizer_states": [{"state": {0: torch.tensor(momentum)}}]}
    torch.save(state, run.checkpoints / "last.ckpt")
    return contents(path)


def test_two_runs_that_differ_in_times_are_equal(tmp_path):
    found = left(tmp_path / "one")
    assert len(found) == 4 and apart(found, left(tmp_path / "two", seconds=2.0)) == []


@pytest.mark.parametrize(
    ("changed", "where"),
    [
        ({"weight": 1.0 + 2**-23}, "checkpoint /state_dict/w"),
        ({"momentum": -0.0}, "checkpoint /optimizer_states/0/state/0"),
        ({"error": 0.25 + 2**-54}, "log net 1 test/error"),
        ({"samples": 4.0}, "measurements/epoch=0001/cushion.npz"),
    ],
)
def test_one_bit_is_a_difference(tmp_path, changed, where):
    assert apart(left(tmp_path / "one"), left(tmp_path / "two", **changed)) == [where]


def test_what_is_there_only_once_is_a_difference():
    assert apart({"a": "1"}, {"a": "1", "b": "2"}) == apart({"a": "1", "b": "2"}, {"a": "1"}) == ["b"]
