"""One code path to every logger, and what each of them then holds."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from pytorch_lightning.loggers import CSVLogger, TensorBoardLogger

from callbacks.log import log_results
from lightning_app.measures import Histogram, histogram
from lightning_app.modules.members import Member
from lightning_app.runs import RunFolder
from lightning_app.runs.loggers import AutoWandbLogger, RunLogger
from tests.deploy.support import records_of


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


def log_one(logger, members=("plain", "residual"), epoch=2):
    """As from a module whose members are just pairs: each an arm of its own."""
    log_all(logger, [(name, torch.nn.Identity()) for name in members], [result(0.5)] * len(members), epoch)


def log_all(logger, bank: Iterable, results: list[Result], epoch=2):
    module = SimpleNamespace(members=tuple(bank))
    trainer = SimpleNamespace(loggers=[logger], global_step=70, lightning_module=module)
    names = [name for name, _ in module.members]
    by_prefix = {name: {"cushion/layer10": found} for name, found in zip(names, results, strict=True)}
    log_results(trainer, epoch, "family", by_prefix, {"cost/family": 1.5})


ARMS = ("plain", "residual")
SEEDS = (0, 3, 12)


def bank_of(arms=ARMS, seeds=SEEDS) -> list[Member]:
    return [
        Member(f"{arm}-seed{seed:02d}" if len(seeds) > 1 else arm, arm, seed, torch.nn.Identity())
        for arm in arms
        for seed in seeds
    ]


def values_of(bank) -> list[float]:
    """Different for each member; irregular over seeds."""
    return [0.1 + 0.05 * member.seed + 0.3 * (member.arm == "residual") for member in bank]


def header(folder: Path) -> set[str]:
    return set((folder / "csv" / "version_0" / "metrics.csv").read_text().splitlines()[0].split(","))


def row(folder: Path) -> dict[str, float]:
    names, values = (line.split(",") for line in (folder / "csv/version_0/metrics.csv").read_text().splitlines())
    return {name: float(value) for name, value in zip(names, values)}


def test_run_folder_has_a_column_for_the_member_and_arrays_beside(tmp_path):
    log_one(RunLogger(tmp_path))
    run = RunFolder(tmp_path)
    log = run.log().set_index(["member", "name"])["value"]
    assert log["residual", "cushion/layer10/tensor"] == 0.5 / 3
    assert log["", "cost/family"] == 1.5
    assert set(run.log()["epoch"]) == {2}
    arrays = run.arrays(2, "family")
    assert arrays["plain/cushion/layer10/histogram/counts"].tolist() == [5, 5, 1, 0]
    np.testing.assert_array_equal(arrays["plain/cushion/layer10/samples"], result(0.5).samples)


def test_what_lies_outside_a_histogram_is_counted_below_and_above(tmp_path):
    found = histogram(torch.tensor([-1.0, 0.5, 2.0, 3.0]), torch.linspace(0, 1, 5))
    log_all(
        RunLogger(tmp_path), [("net", torch.nn.Identity())], [Result(0.5, 3, torch.zeros(()), torch.zeros(2), found)]
    )
    assert RunFolder(tmp_path).arrays(2, "family")["net/cushion/layer10/histogram/outside"].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("members", "key"), [(("net",), "cushion/layer10/median"), (("a", "b"), "cushion/layer10/median/a")]
)
def test_other_loggers_get_the_member_in_the_key_only_when_there_are_several(tmp_path, members, key):
    logger = CSVLogger(tmp_path, name="csv", version=0)
    log_one(logger, members)
    assert key in header(tmp_path)
    assert "Histogram" not in (tmp_path / "csv" / "version_0" / "metrics.csv").read_text()


def test_a_module_whose_members_are_none_names_no_nets(tmp_path):
    trainer = SimpleNamespace(
        loggers=[CSVLogger(tmp_path, name="csv", version=0)],
        global_step=1,
        lightning_module=SimpleNamespace(members=None),
    )
    log_results(trainer, 1, "family", {"net": {"one": 1.0}})
    assert row(tmp_path)["one"] == 1


FIELDS = ("median", "count", "tensor")


@pytest.mark.parametrize(
    ("arms", "seeds", "keys"),
    [
        (("net",), (3,), {""}),
        (ARMS, (3,), {"/plain", "/residual"}),
        (("net",), (3, 4), {"/mean", "/sd", "/min", "/max"}),
        (ARMS, (3, 4), {f"/{arm}/{name}" for arm in ARMS for name in ("mean", "sd", "min", "max")}),
    ],
)
def test_every_key_of_a_bank(tmp_path, arms, seeds, keys):
    """The table of the module's docstring, whole: nothing beside these keys, and ``seed/...`` with several seeds only."""
    bank = bank_of(arms, seeds)
    log_all(CSVLogger(tmp_path, name="csv", version=0), bank, [result(value) for value in values_of(bank)])
    expected = {f"cushion/layer10/{field}{key}" for field in FIELDS for key in keys}
    if len(seeds) > 1:
        parts = {""} if len(arms) == 1 else {f"/{arm}" for arm in arms}
        expected |= {f"seed/{s:02d}/cushion/layer10/{field}{part}" for s in seeds for field in FIELDS for part in parts}
    assert header(tmp_path) == expected | {"cost/family", "epoch", "step"}


def test_statistics_are_those_over_the_seeds_of_one_arm(tmp_path):
    bank = bank_of()
    values = values_of(bank)
    log_all(CSVLogger(tmp_path, name="csv", version=0), bank, [result(value) for value in values])
    shown = row(tmp_path)
    for place, arm in enumerate(ARMS):
        own = np.array(values[3 * place : 3 * place + 3])
        key = f"cushion/layer10/median/{arm}"
        assert [shown[f"seed/{seed:02d}/{key}"] for seed in SEEDS] == own.tolist()
        statistics = [shown[f"{key}/{name}"] for name in ("mean", "sd", "min", "max")]
        mean = own.sum() / 3
        expected = [mean, math.sqrt(((own - mean) ** 2).sum() / 2), own.min(), own.max()]
        np.testing.assert_allclose(statistics, expected, rtol=1e-12)


def test_an_arm_measured_alone_needs_no_name(tmp_path):
    """As of a family that says something of twins only."""
    twins = [member for member in bank_of() if member.arm == "residual"]
    module = SimpleNamespace(members=tuple(bank_of()))
    trainer = SimpleNamespace(
        loggers=[CSVLogger(tmp_path, name="csv", version=0)], global_step=1, lightning_module=module
    )
    log_results(trainer, 1, "twin", {member.name: {"twin/divergence": 1.0} for member in twins})
    assert {"seed/03/twin/divergence", "twin/divergence/max"} <= header(tmp_path)


def test_the_run_folder_has_rows_by_member_and_no_statistics(tmp_path):
    bank = bank_of()
    log_all(RunLogger(tmp_path), bank, [result(value) for value in values_of(bank)])
    log = RunFolder(tmp_path).log()
    assert set(log["member"]) == {"", *(member.name for member in bank)}
    assert set(log["name"]) == {"cost/family", *(f"cushion/layer10/{field}" for field in FIELDS)}


def test_histograms_of_seeds_that_cannot_be_added_up_are_left_out_with_a_warning(tmp_path, caplog):
    bank = bank_of(("net",), (0, 1))
    results = [result(0.5), Result(0.5, 3, torch.zeros(()), torch.zeros(2), histogram(torch.ones(3), torch.arange(5)))]
    log_all(TensorBoardLogger(tmp_path, name="tb", version=0), bank, results)
    log_all(RunLogger(tmp_path / "run"), bank, results)
    assert "no histogram 'cushion/layer10/histogram': the seeds have different bins" in caplog.text
    assert len([key for key in RunFolder(tmp_path / "run").arrays(2, "family") if key.endswith("histogram/edges")]) == 2


def test_tensorboard_draws_the_histogram_of_all_seeds_of_an_arm(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logger = TensorBoardLogger(tmp_path, name="tb", version=0)
    log_all(logger, bank_of(), [result(value) for value in values_of(bank_of())])
    logger.finalize("success")
    events = EventAccumulator(logger.log_dir).Reload()
    assert set(events.Tags()["histograms"]) == {f"cushion/layer10/histogram/{arm}" for arm in ARMS}
    (drawn,) = events.Histograms("cushion/layer10/histogram/plain")
    shape = drawn.histogram_value
    samples = np.concatenate([result(value).samples for value in values_of(bank_of(("plain",)))])
    counts, edges = np.histogram(samples, np.linspace(0, 1, 5))
    centres = (edges[1:] + edges[:-1]) / 2  # which stand for the samples of a bin
    assert (list(shape.bucket_limit), list(shape.bucket)) == (edges[1:].tolist(), counts.tolist())
    assert (shape.min, shape.max, shape.num) == (0, 1, 3 * 11)
    np.testing.assert_allclose((shape.sum, shape.sum_squares), (counts @ centres, counts @ centres**2), rtol=1e-12)
    assert events.Scalars("seed/12/cushion/layer10/median/plain")[0].step == 2


def test_tensorboard_has_what_ends_training_within_an_epoch_behind_the_last_whole_one(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logger = TensorBoardLogger(tmp_path, name="tb", version=0)
    for epoch in (2, 2.5):
        log_one(logger, ("net",), epoch)
    logger.finalize("success")
    events = EventAccumulator(logger.log_dir).Reload()
    assert [event.step for event in events.Scalars("cushion/layer10/median")] == [2, 3]


@pytest.fixture
def logged_out(monkeypatch, tmp_path):
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setenv("WANDB_API_KEY", "")
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))


def of_kind(records: list[dict], kind: str) -> list[dict]:
    return [record[kind] for record in records if record["type"] == kind]


@pytest.mark.slow
def test_a_resumed_job_goes_on_in_the_same_wandb_runs_and_a_failed_one_is_marked(tmp_path, logged_out):
    folder = RunFolder(tmp_path / "group" / "run")
    for epoch, status in ((1, "failed"), (2, "success")):
        logger = AutoWandbLogger(run_per="seed")
        logger.attach(folder, (3, 4))
        log_all(logger, bank_of(seeds=(3, 4)), [result(0.5)] * 4, epoch)
        logger.log_metrics({"lr-SGD": 0.01, "epoch": epoch}, 70)  # as Lightning's own callbacks log
        logger.finalize(status)
    recorded = records_of(folder.path).values()
    assert all(of_kind(records, "history")[1]["item"]["lr-SGD"] == 0.01 for records in recorded)
    ids = [of_kind(records, "run")[0]["run_id"] for records in recorded]
    codes = [of_kind(records, "exit")[0].get("exit_code", 0) for records in recorded]
    expected = {f"{folder.identifier()}-seed03", f"{folder.identifier()}-seed04"}
    assert (set(ids), len(ids)) == (expected, 4)
    assert sorted(codes) == [0, 0, 1, 1]
