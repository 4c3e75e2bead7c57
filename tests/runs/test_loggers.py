"""W&B never asks, never hangs and never stops a run."""

from pathlib import Path

import pytest
import wandb

from lightning_app.errors import UserError
from lightning_app.runs import RunFolder
from lightning_app.runs.loggers import AutoWandbLogger


class Run:
    dir, url = "folder/wandb/run/files", "https://example.org/run"

    def __getattr__(self, name):
        return lambda *args, **kwargs: None


@pytest.fixture
def started(monkeypatch, tmp_path):
    """Starts a logger against a wandb whose init fails as told; returns the modes it was asked for."""
    monkeypatch.delenv("WANDB_MODE", raising=False)

    def start(failures: dict[str, list[str]], logged_in=True, **options):
        modes = []

        def init(mode, **_):
            modes.append(mode)
            if failures.get(mode):
                raise RuntimeError(failures[mode].pop(0))
            return Run()

        monkeypatch.setattr(wandb, "init", init)
        monkeypatch.setattr(wandb, "login", lambda **_: logged_in)
        monkeypatch.setattr(wandb, "teardown", lambda: None)
        monkeypatch.setattr("time.sleep", lambda _: None)
        logger = AutoWandbLogger(**options)
        logger.attach(RunFolder(tmp_path / "g" / "r"))
        assert logger.experiment is not None
        return modes

    return start


def test_files_go_where_the_run_is_even_from_a_service_with_another_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    logger = AutoWandbLogger()
    logger.attach(RunFolder(Path("runs/g/r")))
    assert Path(logger.save_dir) == tmp_path / "runs/g/r"


def test_online_when_logged_in(started):
    assert started({}) == ["online"]


def test_offline_when_not_logged_in_with_the_line_that_says_how_to_sync(started, capsys):
    assert started({}, logged_in=False) == ["offline"]
    assert "wandb sync folder/wandb/run" in capsys.readouterr().out


def test_offline_when_the_server_does_not_answer(started):
    assert started({"online": ["timeout"]}) == ["online", "offline"]


def test_a_run_id_held_by_a_killed_process_is_waited_for(started):
    assert started({"offline": ["run ID a is in use"] * 3}, logged_in=False) == ["offline"] * 4


def test_disabled_when_nothing_works(started):
    assert started({"online": ["no"], "offline": ["disk"]}) == ["online", "offline", "disabled"]


def test_online_as_an_order_is_refused_in_a_sentence(started):
    with pytest.raises(UserError, match="set the logger's mode to auto"):
        started({"online": ["no"]}, mode="online")
