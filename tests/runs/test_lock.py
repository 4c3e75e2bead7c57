"""One process writes into a run folder; its death frees the folder, however it died."""

import errno
import subprocess
import sys

import pytest

from lightning_app.common.errors import UserError
from lightning_app.runs.lock import claimed, take
from tests.helpers import ROOT

HOLDER = """
import sys, time
from pathlib import Path
from lightning_app.runs.lock import take
lock = take(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(600)
"""


def test_a_folder_in_use_is_refused_and_says_by_whom_and_free_once_that_is_killed(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, tmp_path], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(UserError, match=rf"process {holder.pid} on .*two runs in one folder"):
            take(tmp_path)
        holder.kill()
    with take(tmp_path), pytest.raises(UserError, match="two runs in one folder"):
        take(tmp_path)
    take(tmp_path).close()


FORKING = """
import os, sys, time
from pathlib import Path
from lightning_app.runs.lock import take
lock = take(Path(sys.argv[1]))
begun, begins = os.pipe()
if os.fork():
    os.read(begun, 1)  # on a busy machine a child may have done nothing yet
    print("held", flush=True)
    time.sleep(600)
os.write(begins, b".")
sys.stdin.read()
print("lived on")
"""


def test_a_forked_process_such_as_a_loaders_worker_does_not_hold_the_lock(tmp_path):
    """It lives on for seconds after a kill, and with persistent_workers after the end of a training."""
    with subprocess.Popen(
        [sys.executable, "-c", FORKING, tmp_path], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(UserError, match=rf"process {holder.pid} on"):
            take(tmp_path)
        holder.kill()
        holder.wait()
        take(tmp_path).close()
        holder.stdin.close()
        assert holder.stdout.read() == "lived on\n"


def test_a_lock_that_is_a_link_is_not_followed(tmp_path):
    (tmp_path / "theirs").write_text("kept")
    (tmp_path / ".lock").symlink_to(tmp_path / "theirs")
    (tmp_path / ".results.lock").symlink_to(tmp_path / "theirs")
    with pytest.raises(OSError, match="symbolic links"):
        take(tmp_path)
    with pytest.raises(UserError, match="symbolic links"), claimed(tmp_path, "results", "results"):
        pass
    assert (tmp_path / "theirs").read_text() == "kept"


def test_a_lock_that_fails_leaves_no_file_open(tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr("fcntl.flock", lambda file, _: opened.append(file) or file.seek(-1))
    with pytest.raises(ValueError, match="negative"):
        take(tmp_path)
    assert [file.closed for file in opened] == [True]


def test_where_there_are_no_locks_both_warn_and_go_on(tmp_path, monkeypatch, caplog):
    def none(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", none)
    take(tmp_path).close()
    with claimed(tmp_path, "depth20", "run depth20"):
        pass
    assert sum("has no locks" in message for message in caplog.messages) == 2
