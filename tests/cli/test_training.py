"""Small decisions of the command line."""

from unittest.mock import Mock

import pytest
import torch
from pytorch_lightning.callbacks import TQDMProgressBar

from callbacks import EpochBar, ProgressLines
from lightning_app.cli import FOLDER_VARIABLE, main, training
from lightning_app.cli.run_folders import RunFolders
from lightning_app.cli.training import TrainingCLI, _accelerator, _progress, run_training
from lightning_app.common.errors import MachineError, UserError
from lightning_app.common.processes import is_lost_rank
from lightning_app.common.signals import stopping
from lightning_app.runs import RunFolder
from tests.helpers import TINY, built, refused


def test_auto_never_takes_an_accelerator_without_float64(monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert (_accelerator("auto"), _accelerator("mps")) == ("cpu", "mps")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert _accelerator("auto") == "auto"


@pytest.mark.parametrize("asked", ["gpu", "cuda"])
def test_a_gpu_where_there_is_none_is_an_error_message(monkeypatch, asked):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match=r"needs a GPU, and PyTorch .* sees none here: set it to cpu or auto"):
        _accelerator(asked)


def test_a_bar_below_the_lines_on_a_terminal_and_lines_elsewhere():
    shown, hidden = {"enable_progress_bar": True}, {"enable_progress_bar": False}
    own = TQDMProgressBar(refresh_rate=5)
    assert [type(callback) for callback in _progress(shown, [])] == [ProgressLines, EpochBar]
    assert _progress(shown, [own]) == [own]
    assert [type(callback) for callback in _progress(hidden, [])] == [ProgressLines]


@pytest.mark.parametrize(
    ("words", "gone"),
    [
        ("[..pair.cc:545] Read error [127.0.0.1]:60057: Connection reset by peer. This is typically", True),
        ("[..] Connection closed by peer [127.0.0.1]:27795", True),
        ("[..] Timed out waiting 1800000ms for recv operation to complete", True),
        (
            "NCCL error ... ncclRemoteError: A call failed possibly due to a network error or a remote process exiting",
            True,
        ),
        ("NCCL error ... ncclInvalidUsage: Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 9000", False),
        ("CUDA out of memory. Tried to allocate 20.00 MiB", False),
    ],
)
def test_only_a_lost_connection_is_another_process_gone(monkeypatch, words, gone):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    assert is_lost_rank(RuntimeError(words)) is gone
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: False)
    assert not is_lost_rank(RuntimeError(words))


def test_online_without_wandb_is_refused(tmp_path, capsys, monkeypatch):
    """A run that need not be online is trained: tests/cli/test_loaded.py."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(training, "find_spec", lambda name: None)
    online = ["--trainer.logger", "AutoWandbLogger", "--trainer.logger.mode", "online"]
    said = refused(*TINY, *online, capsys=capsys, monkeypatch=monkeypatch)
    assert "mode is online, but W&B is not installed" in said


def test_of_several_processes_one_says_how_the_run_begins(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    monkeypatch.setenv(FOLDER_VARIABLE, "")  # what the command leaves there is taken back
    monkeypatch.chdir(tmp_path)  # the quickstart's checkpoint may lie in the folder of the same name in the checkout
    for rank in (0, 1):
        monkeypatch.setattr(training.ranks, "rank", rank)
        built(*TINY, cwd=tmp_path)._last_of_folder()
        said = [line.split(":")[0] for line in capsys.readouterr().out.splitlines()]
        assert said == ([] if rank else ["SLURM has started this job again", "--ckpt_path last"])


def test_what_stops_before_anything_is_saved_does_not_name_the_checkpoint_of_an_older_run(
    tmp_path, monkeypatch, capsys
):
    older = RunFolders(str(tmp_path / "runs"), "digits", "quickstart").claim()
    (older.path / "log.csv").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(FOLDER_VARIABLE, "")
    monkeypatch.setattr(stopping, "listen", lambda: None)
    for error, code in ((KeyboardInterrupt(), 130), (MachineError("x cannot be written."), 1)):
        monkeypatch.setattr(TrainingCLI, "_run_subcommand", Mock(side_effect=error))
        assert main([*TINY, "--trainer.logger", "[]"]) == code
        said = capsys.readouterr().err
        assert "nothing was saved, run the same command again" in said and "last" not in said
        assert [*older.path.parent.iterdir()] == [older.path]
    older.checkpoints.mkdir()
    (older.checkpoints / "last.ckpt").touch()
    assert main([*TINY, "--trainer.logger", "[]", "--ckpt_path", "last"]) == 1
    assert "Then: resume with --ckpt_path last." in capsys.readouterr().err


@pytest.mark.parametrize("option", ["max_epochs", "limit_train_batches"])
def test_what_trains_nothing_names_no_run_folder(tmp_path, monkeypatch, capsys, option):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(FOLDER_VARIABLE, "")
    monkeypatch.setattr(stopping, "listen", lambda: None)
    answer = {}
    run_training([*TINY, "--trainer.logger", "[]", f"--trainer.{option}", "0"], answer)
    said = capsys.readouterr().out
    assert f"nothing was trained, the run folder is removed; trainer.{option} is 0\n" in said
    assert answer == {"run": None, "nets": {}, "notes": [], "report": None}
    assert not [*(tmp_path / "runs").rglob("quickstart*")]


@pytest.mark.parametrize(
    ("command", "left", "said"),
    [
        ("fit", "log.csv", "interrupted: resume with --ckpt_path last"),
        ("fit", "finished", "interrupted"),  # as a resume that has not begun to train, or where the page is made
        ("measure", "log.csv", "interrupted: {} is incomplete, remove it"),
        ("measure", "finished", "interrupted"),
        ("validate", None, "interrupted"),
    ],
)
def test_what_ctrl_c_advises_is_possible(tmp_path, monkeypatch, capsys, command, left, said):
    def stopped(*_):
        if left:
            (tmp_path / left).touch()
            monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
        raise KeyboardInterrupt

    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    monkeypatch.setattr(stopping, "listen", lambda: None)
    monkeypatch.setattr("lightning_app.cli.training.run_training", stopped)
    assert main([command]) == 130
    assert capsys.readouterr().err == f"{said.format(tmp_path)}\n"


def test_an_interruption_while_the_page_is_made_says_that_the_run_is_finished(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("lightning_app.report.write_report", Mock(side_effect=KeyboardInterrupt))
    cli = Mock(folder=RunFolder(tmp_path))
    with pytest.raises(KeyboardInterrupt):
        TrainingCLI._write_page(cli)
    said = f"{tmp_path} is finished and saved, except for its page: `report {tmp_path}` makes it\n"
    assert capsys.readouterr().err == said


def test_a_machine_on_which_nothing_compiles_gets_a_message(monkeypatch, capsys):
    from torch._inductor.exc import CppCompileError, InductorError

    def fails(*_):
        raise InductorError(CppCompileError(["g++"], "main.cpp:26:10: fatal error: Python.h: No such file"), None)

    monkeypatch.setattr("lightning_app.cli.training.run_training", fails)
    assert main(["fit"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: torch.compile failed (fatal error: Python.h: No such file): it needs a C++ compiler")
