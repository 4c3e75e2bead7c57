"""Every run has a folder of its own; a resumed one has its old one; no name leaves the root."""

import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from jsonargparse import Namespace

from lightning_app.cli.run_folders import RunFolders, claim_measured, discard_if_unused
from lightning_app.cli.training import TrainingCLI
from lightning_app.common.errors import MachineError, UserError
from lightning_app.runs import Row, RunFolder


def finish(folder):
    folder.checkpoints.mkdir()
    (folder.checkpoints / "last.ckpt").touch()


def test_new_runs_never_share_a_folder(tmp_path):
    folders = RunFolders(str(tmp_path), "g", "res20")
    names = [folders.find(None).label for _ in range(3)]
    assert names == ["res20", "res20~2", "res20~3"]


def test_last_is_the_newest_that_can_be_resumed(tmp_path):
    folders = RunFolders(str(tmp_path), "g", "res20")
    claimed = [folders.claim() for _ in range(11)]
    for folder in (claimed[0], claimed[9]):
        finish(folder)
    assert folders.find("last").label == "res20~10"
    assert folders.checkpoint("last") == str(tmp_path / "g" / "res20~10" / "checkpoints" / "last.ckpt")


def test_last_is_a_newer_run_of_ours_that_was_killed_before_its_first_checkpoint(tmp_path):
    folders = RunFolders(str(tmp_path), "g", "res20")
    finish(folders.claim())
    killed = folders.claim()
    assert folders.find("last", lambda folder: True).path == killed.path
    assert folders.find("last", lambda folder: False).label == "res20"
    killed.finish(3)
    assert folders.find("last", lambda folder: True).label == "res20"


def test_a_job_that_slurm_starts_again_goes_on_in_its_own_run(tmp_path):
    folders = RunFolders(str(tmp_path), "g", "res20")
    ours, others = folders.claim(), folders.claim()
    for folder in (ours, others):
        finish(folder)
    assert folders.find("last", lambda folder: folder.path == ours.path, "first").path == ours.path
    assert folders.find("last", lambda folder: folder.path == ours.path).path == others.path  # asked for by hand
    assert folders.find("last", lambda folder: False, "first").path == others.path  # begun by an older version
    assert folders.find("last", lambda folder: False, "only").path not in {ours.path, others.path}


def test_a_name_that_looks_like_a_repetition_is_another_run(tmp_path):
    finish(RunFolders(str(tmp_path), "g", "lr-5").claim())
    assert RunFolders(str(tmp_path), "g", "lr").checkpoint("last") is None


def test_an_earlier_checkpoint_of_the_same_run_starts_a_new_folder(tmp_path):
    folders = RunFolders(str(tmp_path), "g", "res20")
    folder = folders.claim()
    finish(folder)
    earlier = folder.checkpoints / "epoch=0001.ckpt"
    earlier.touch()
    assert folders.find(str(earlier)).label == "res20~2"


def test_a_dangling_root_is_a_message_and_no_endless_loop(tmp_path):
    (tmp_path / "runs").symlink_to(tmp_path / "not mounted")
    with pytest.raises(UserError, match=r"run\.root"):
        RunFolders(str(tmp_path / "runs"), "g", "a").claim()


def test_last_of_nothing_starts_a_new_run(tmp_path):
    folders = RunFolders(str(tmp_path), "g", "res20")
    assert folders.checkpoint("last") is None
    assert folders.find("last").label == "res20"


def test_a_checkpoint_of_this_run_resumes_there_and_another_runs_starts_a_new_one(tmp_path):
    folders, other = RunFolders(str(tmp_path), "g", "res20"), RunFolders(str(tmp_path), "g", "res20wide")
    folder = folders.claim()
    finish(folder)
    file = str(folder.checkpoints / "last.ckpt")
    assert folders.find(file).path.resolve() == folder.path.resolve()
    assert other.find(file).label == "res20wide"


@pytest.mark.parametrize("name", ["", "..", "a/b", "/abs", "a\\b", ".hidden", "-x", "a~2"])
def test_a_name_that_is_a_path_is_refused(tmp_path, name):
    with pytest.raises(UserError, match=r"run\.name"):
        RunFolders(str(tmp_path), "g", name)


def test_a_run_without_checkpoint_goes_on_from_another_runs_and_not_from_its_own_by_another_name(tmp_path, monkeypatch):
    """Its own was removed, after a resume that named it."""
    monkeypatch.chdir(tmp_path)
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    cli = SimpleNamespace(folder=folder)
    for path, began in (("other.ckpt", "other.ckpt"), ("null", None), ("run/checkpoints/last.ckpt", None)):
        (folder.path / "config.yaml").write_text(f"ckpt_path: {path}\n")
        assert TrainingCLI._last_of_folder(cli) == began


def test_a_root_that_cannot_be_written_is_an_error_message(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"run\.root"):
        RunFolders(str(tmp_path / "file"), "g", "a").claim()


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, MachineError),
        (errno.EROFS, MachineError),
        (errno.EACCES, MachineError),
        (errno.ENOTDIR, UserError),
    ],
)
def test_a_full_or_read_only_disk_is_a_fault_of_the_machine(monkeypatch, tmp_path, number, kind):
    """By whose exit code a scheduler tries again, which a mistake's forbids."""

    def refuse(path, *_, **__):
        raise OSError(number, os.strerror(number), path)

    folders = RunFolders(str(tmp_path), "g", "a")
    monkeypatch.setattr(os, "mkdir", refuse)
    for make in (folders.claim, lambda: claim_measured(str(tmp_path / "new"), folders, None, Namespace())):
        with pytest.raises(UserError, match=r"cannot make .*Choose another") as refused:
            make()
        assert refused.type is kind


def test_a_name_too_long_for_a_folder_is_what_is_to_be_changed(tmp_path):
    with pytest.raises(UserError, match=r"too long\. Choose a shorter run\.name"):
        RunFolders(str(tmp_path), "g", "n" * 300).claim()


def test_only_an_unused_folder_is_discarded(tmp_path):
    folders = RunFolders(str(tmp_path), "g", "a")
    used, ended, unused, of_no_epochs = (folders.claim() for _ in range(4))
    used.append([Row("", 0, 0, "lr", 0.1)])
    ended.finish(1)  # nothing of ours was logged: other loggers may have
    (unused.path / "config.yaml").touch()
    discard_if_unused(used)
    discard_if_unused(ended)
    discard_if_unused(unused)
    of_no_epochs.finish(0)
    discard_if_unused(of_no_epochs)
    assert not of_no_epochs.path.exists()
    assert used.path.exists() and ended.path.exists()
    assert not unused.path.exists()


@pytest.mark.parametrize("kept", ["link", "mount"])
def test_a_mistake_leaves_what_cannot_be_removed_empty_and_hides_nothing(monkeypatch, tmp_path, kept):
    """A container's volume as --out, or a link to a folder; on NFS, too, a folder of which a file is open."""
    remove = os.rmdir

    def busy(path, **options):
        if Path(path) == tmp_path / "mount":
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), path)
        remove(path, **options)

    monkeypatch.setattr(os, "rmdir", busy)
    (tmp_path / "target").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "target")
    folder = claim_measured(str(tmp_path / kept), RunFolders(), None, Namespace())
    (folder.path / "config.yaml").touch()
    (folder.path / "wandb").mkdir()
    discard_if_unused(folder)
    assert not [*folder.path.iterdir()]
    assert claim_measured(str(folder.path), RunFolders(), None, Namespace()) == folder
