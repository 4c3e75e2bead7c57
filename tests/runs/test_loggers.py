"""W&B never asks, never hangs and never stops a run."""

import pickle
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torchvision
import wandb

from lightning_app.common.errors import UserError
from lightning_app.runs import RunFolder
from lightning_app.runs.loggers import AutoWandbLogger, log_to_wandb, tags_of


class Run:
    dir, url = "folder/wandb/run/files", "https://example.org/run"

    def __getattr__(self, name):
        return lambda *args, **kwargs: None


@pytest.fixture
def started(monkeypatch, tmp_path):
    """Starts a logger against a wandb whose init fails as told; returns the modes it was asked for."""
    monkeypatch.delenv("WANDB_MODE", raising=False)

    def start(failures: dict[str, list[str]], logged_in=True, seeds=(), **options):
        modes = []

        def init(mode, **_):
            modes.append(mode)
            if failures.get(mode) and (reason := failures[mode].pop(0)):
                raise RuntimeError(reason)
            return Run()

        monkeypatch.setattr(wandb, "init", init)
        monkeypatch.setattr(wandb, "login", lambda **_: logged_in)
        monkeypatch.setattr(wandb, "teardown", lambda: None)
        monkeypatch.setattr("time.sleep", lambda _: None)
        logger = AutoWandbLogger(**options)
        logger.attach(RunFolder(tmp_path / "g" / "r"), seeds)
        assert logger.experiment is not None
        return modes

    return start


def test_what_is_set_privately_reaches_wandb(asked, tmp_path):
    logger = AutoWandbLogger()
    logger._wandb_init["notes"] = "set by hand"
    logger.attach(RunFolder(tmp_path / "g" / "r"))
    assert logger.experiment is not None
    assert (asked[0]["notes"], asked[0]["dir"], asked[0]["name"]) == ("set by hand", str(tmp_path / "g" / "r"), "r"), (
        "WandbLogger.experiment does not pass _wandb_init on to wandb.init any more, on which AutoWandbLogger builds."
    )


def test_files_go_where_the_run_is_even_from_a_service_with_another_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    logger = AutoWandbLogger()
    logger.attach(RunFolder(Path("runs/g/r")))
    assert Path(logger.save_dir) == tmp_path / "runs/g/r"


SEEDS = {"seeds": (3, 4, 5), "run_per": "seed"}


@pytest.mark.parametrize(
    ("failures", "options", "modes", "said"),
    [
        ({}, {}, ["online"], "W&B: https://example.org/run"),
        ({}, {"logged_in": False}, ["offline"], "wandb sync folder/wandb/run"),
        ({"online": ["timeout"]}, {}, ["online", "offline"], ""),  # the server does not answer
        ({"offline": ["run ID a is in use"] * 3}, {"logged_in": False}, ["offline"] * 4, ""),  # by a killed process
        ({"online": ["no"], "offline": ["disk"]}, {}, ["online", "offline", "disabled"], ""),
        # the second of three is not let in: all start again, offline
        ({"online": ["", "no"]}, SEEDS, ["online"] * 2 + ["offline"] * 3, "these runs later with: wandb sync folder/"),
        (
            {},
            SEEDS,
            ["online"] * 3,
            "W&B: https://example.org/run and 2 more, one per seed (uploads nothing with WANDB_MODE=offline)\n",
        ),
        ({}, {"seeds": (3,), "run_per": "seed"}, ["online"], ""),
    ],
)
def test_online_when_it_can_else_offline_else_not_at_all(started, capsys, failures, options, modes, said):
    failures = {mode: [*reasons] for mode, reasons in failures.items()}
    assert started(failures, **options) == modes
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(("options", "said"), [({}, "'my runs/wandb/run'"), (SEEDS, "'my runs/wandb'/offline-run-*")])
def test_a_folder_with_a_space_is_one_word_of_the_command_that_is_named(started, monkeypatch, capsys, options, said):
    monkeypatch.setattr(Run, "dir", "my runs/wandb/run/files")
    started({}, logged_in=False, **options)
    assert f"wandb sync {said}\n" in capsys.readouterr().out


def test_online_as_an_order_is_refused_in_a_message(started):
    with pytest.raises(UserError, match=r"did not start online \(no answer\): .* set the logger's mode to auto"):
        started({"online": ["no answer"]}, mode="online")


@pytest.fixture
def asked(monkeypatch):
    """What wandb.init was asked for, run by run."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    calls = []

    def init(**arguments):
        calls.append(arguments)
        return Run()

    monkeypatch.setattr(wandb, "init", init)
    return calls


def test_every_run_is_named_tagged_and_grouped(asked, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_TAGS", "night,mine")
    logger = AutoWandbLogger(tags=["mine"], run_per="seed")
    logger.attach(RunFolder(tmp_path / "group" / "run"), (3, 100), ["CIFAR10", "depth 20"], "fit")
    assert logger.runs.keys() == {3, 100}
    assert [call["name"] for call in asked] == ["run-seed003", "run-seed100"]
    assert [call["config"] for call in asked] == [{"seed": 3}, {"seed": 100}]
    for call in asked:
        assert call["tags"] == ["mine", "night", "CIFAR10", "depth 20"]
        assert (call["group"], call["job_type"], call["resume"]) == ("group", "fit", "allow")
    assert [call["settings"].x_disable_stats for call in asked] == [False, True]  # one machine, measured once


def test_all_keys_are_drawn_over_epochs_also_those_without_parts():
    axes, rows = {}, []
    run = SimpleNamespace(define_metric=lambda name, step_metric: axes.update({name: step_metric}), log=rows.append)
    log_to_wandb(run, {"lr": 0.1, "train/risk": 1.0, "train/error": 0.5}, 2.5, 7)
    assert axes == {"lr": "epoch", "train/*": "epoch"}
    assert rows == [{"lr": 0.1, "train/risk": 1.0, "train/error": 0.5, "epoch": 2.5, "trainer/global_step": 7}]


def test_a_tag_that_wandb_refuses_is_refused_before_training(tmp_path):
    logger = AutoWandbLogger(tags=["x" * 65])
    with pytest.raises(UserError, match="1 to 64 characters"):
        logger.attach(RunFolder(tmp_path))


def test_a_sweeps_trial_is_one_run(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_SWEEP_ID", "sweep7")
    AutoWandbLogger(run_per="seed").attach(RunFolder(tmp_path), (3,))
    with pytest.raises(UserError, match="run_per to job"):
        AutoWandbLogger(run_per="seed").attach(RunFolder(tmp_path), (3, 4))


def test_runs_of_seeds_do_not_go_into_spawned_processes(tmp_path):
    logger = AutoWandbLogger(run_per="seed")
    logger.attach(RunFolder(tmp_path), (3, 4))
    with pytest.raises(UserError, match="run_per to job"):
        pickle.dumps(logger)


def test_a_service_that_died_is_one_warning(asked, tmp_path, monkeypatch, caplog):
    class Dead(Run):
        def log(self, row):
            raise ConnectionResetError("gone")

        def finish(self, exit_code):
            raise ConnectionResetError("gone too")

    monkeypatch.setattr(wandb, "init", lambda **_: Dead())
    logger = AutoWandbLogger(run_per="seed")
    logger.attach(RunFolder(tmp_path), (3, 4))
    for run in logger.runs.values():
        log_to_wandb(run, {"test/error": 0.5}, epoch=7, step=70)
    logger.log_metrics({"lr": 0.1, "epoch": 7}, 70)
    logger.finalize("success")
    assert [record.message for record in caplog.records] == [
        "W&B did not accept the numbers of epoch 7 (gone).",
        "W&B did not finish (gone too).",
    ]


def test_runs_that_are_not_taken_in_time_are_waited_for_together_and_said_once(asked, tmp_path, monkeypatch, caplog):
    meet = threading.Barrier(2, timeout=120)  # one after the other, nobody comes to the second

    class Slow(Run):
        def __init__(self, name, **_):
            self.dir = f"{name}/files"

        def finish(self, exit_code):
            meet.wait()
            raise TimeoutError("Timed out finishing run.")

    monkeypatch.setattr(wandb, "init", lambda **options: Slow(**options))
    logger = AutoWandbLogger(run_per="seed", finish_timeout=7)
    logger.attach(RunFolder(tmp_path / "g" / "r"), (3, 4))
    assert len(logger.runs) == 2
    logger.finalize("success")
    (record,) = caplog.records
    assert "it did not receive all of 2 runs within 7 s" in record.message
    assert record.message.endswith("wandb sync --include-online r-seed03 r-seed04")


def test_every_run_has_a_limit_on_its_last_upload(asked, tmp_path):
    logger = AutoWandbLogger(finish_timeout=7)
    logger.attach(RunFolder(tmp_path))
    assert logger.experiment is not None
    assert (asked[0]["settings"].finish_timeout, asked[0]["settings"].finish_timeout_raises) == (7, True)
    for wrong in ({"timeout": 0}, {"finish_timeout": -1}):
        with pytest.raises(UserError, match="timeout above 0 seconds"):
            AutoWandbLogger(**wrong)


NET = {"class_path": "lightning_app.networks.SimplifiedNet", "init_args": {"depth": 32, "residual": False}}


@pytest.mark.parametrize(
    ("model", "tags"),
    [
        ({"net": NET, "arms": None}, ["Digits", "SimplifiedNet", "depth 32", "plain"]),
        (
            {"net": None, "arms": {"a": {"net": NET}, "b": {"net": None, "twin_of": "a"}}},
            ["Digits", "SimplifiedNet", "depth 32", "plain", "twin"],
        ),
        ({"net": {"class_path": "torchvision.models.resnet18", "init_args": None}}, ["Digits", "resnet18"]),
        ({"net": {"class_path": "a." + "x" * 70}}, ["Digits", "x" * 64]),
    ],
)
def test_tags_say_what_a_configuration_trains(model, tags):
    assert tags_of({"data": {"class_path": "lightning_app.datamodules.Digits"}, "model": model}) == tags


def test_a_function_that_makes_a_net_is_a_tag_too():
    config = {"data": {"class_path": "lightning_app.datamodules.CIFAR10"}, "model": {}}
    for net in ("torchvision.models.resnet18", torchvision.models.resnet18):
        assert tags_of(config | {"model": {"net": net}}) == ["CIFAR10", "resnet18"]


def test_a_variable_that_wandb_refuses_is_named_before_training(monkeypatch, tmp_path):
    monkeypatch.setenv("WANDB_MODE", "ofline")
    logger = AutoWandbLogger()
    logger.attach(RunFolder(tmp_path / "g" / "r"))
    with pytest.raises(UserError, match=r"ofline.*Correct or unset the variables that begin with WANDB_"):
        _ = logger.experiment
