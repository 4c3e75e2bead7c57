"""One code path to every logger, and what each of them then holds."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from pytorch_lightning.loggers import CSVLogger, TensorBoardLogger

from callbacks.emit import emit
from lightning_app.measures import Histogram, histogram
from lightning_app.runs import RunFolder
from lightning_app.runs.loggers import AutoWandbLogger, RunLogger


@dataclass(frozen=True)
class Result:
    median: float
    count: int
    tensor: torch.Tensor
    samples: torch.Tensor
    histogram: Histogram


def result(value: float) -> Result:
    samples = torch.linspace(0, value, 11)
    return Result(
        value, 3, torch.tensor(value / 3, dtype=torch.float64), samples, histogram(samples, torch.linspace(0, 1, 5))
    )


def run_emit(logger, members=("plain", "residual"), epoch=2):
    trainer = SimpleNamespace(loggers=[logger], global_step=70)
    emit(trainer, epoch, "family", {name: {"cushion/layer10": result(0.5)} for name in members}, {"cost/family": 1.5})


def test_run_folder_has_a_column_for_the_member_and_arrays_beside(tmp_path):
    run_emit(RunLogger(tmp_path))
    run = RunFolder(tmp_path)
    log = run.log().set_index(["member", "name"])["value"]
    assert log["residual", "cushion/layer10/tensor"] == 0.5 / 3
    assert log["", "cost/family"] == 1.5
    assert set(run.log()["epoch"]) == {2}
    arrays = run.arrays(2, "family")
    assert arrays["plain/cushion/layer10/histogram/counts"].tolist() == [5, 5, 1, 0]
    np.testing.assert_array_equal(arrays["plain/cushion/layer10/samples"], result(0.5).samples)


@pytest.mark.parametrize(
    ("members", "key"), [(("net",), "cushion/layer10/median"), (("a", "b"), "cushion/layer10/median/a")]
)
def test_other_loggers_get_the_member_in_the_key_only_when_there_are_several(tmp_path, members, key):
    logger = CSVLogger(tmp_path, name="csv", version=0)
    run_emit(logger, members)
    text = (tmp_path / "csv" / "version_0" / "metrics.csv").read_text()
    assert key in text.splitlines()[0].split(",")
    assert "Histogram" not in text


def test_tensorboard_holds_numbers_and_histograms(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logger = TensorBoardLogger(tmp_path, name="tb", version=0)
    run_emit(logger, ("net",))
    logger.finalize("success")
    events = EventAccumulator(logger.log_dir).Reload()
    assert events.Scalars("cushion/layer10/median")[0].value == 0.5
    assert events.Scalars("cushion/layer10/median")[0].step == 2
    assert events.Histograms("cushion/layer10/histogram")[0].histogram_value.num == 11


def test_wandb_offline_holds_numbers_histograms_config_and_the_epoch_axis(tmp_path, monkeypatch):
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setenv("WANDB_API_KEY", "")
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    folder = RunFolder(tmp_path / "group" / "run")
    logger = AutoWandbLogger()
    logger.attach(folder)
    logger.experiment.config.update({"model": {"net": {"depth": 20}}})
    run_emit(logger)
    logger.finalize("success")
    (offline,) = (folder.path / "wandb").glob("offline-run-*")
    inspect = [str(Path(sys.executable).parent / "wandb"), "leet", "inspect", "--json", str(offline)]
    shown = subprocess.run(inspect, capture_output=True, text=True, check=True, timeout=60).stdout
    records = [json.loads(line) for line in shown.splitlines()]
    by_type = {
        kind: [record[kind] for record in records if record["type"] == kind]
        for kind in ("run", "config", "metric", "history")
    }
    (run,) = by_type["run"]
    assert (run["run_id"], run["run_group"], run["display_name"]) == (folder.identifier(), "group", "run")
    assert by_type["config"][0]["update"] == {"model": {"net": {"depth": 20}}}
    axes = {metric.get("glob_name"): metric.get("step_metric") for metric in by_type["metric"]}
    assert axes["cushion/*"] == axes["cost/*"] == "epoch"
    (row,) = (history["item"] for history in by_type["history"])
    assert (row["epoch"], row["trainer/global_step"], row["cost/family"]) == (2, 70, 1.5)
    assert row["cushion/layer10/median/residual"] == 0.5
    assert row["cushion/layer10/histogram/plain.values"] == [5, 5, 1, 0]
    assert row["cushion/layer10/histogram/plain.bins"] == [0, 0.25, 0.5, 0.75, 1]
