"""A disk that is full, a quota, a folder without permission: a message that names the file, and nothing half written."""

import contextlib
import multiprocessing
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from lightning_app.common.errors import MachineError
from lightning_app.common.files import write_atomically
from lightning_app.runs import Row, RunFolder

FULL = Path("/dev/full")
NOBODY = 65534


def rows(epoch: int) -> list[Row]:
    return [Row("net", epoch, epoch, f"key{number}", 1 / (number + 1)) for number in range(50)]


@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full here")
def test_a_full_disk_is_named_with_the_file_and_what_to_do(tmp_path):
    (tmp_path / "log.csv").symlink_to(FULL)
    with pytest.raises(MachineError) as caught:
        RunFolder(tmp_path).append(rows(1))
    said = str(caught.value)
    assert said.startswith(f"{tmp_path / 'log.csv'} cannot be written: No space left on device.")
    assert "was saved before is kept" in said and "Free space" in said


@contextlib.contextmanager
def largest_file(size: int) -> Iterator[None]:
    """No file may become larger: the system then says so in the middle of a write, as a quota does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("room", [0, 1, 20, 500])
def test_the_log_keeps_whole_lines_and_goes_on_where_it_was(tmp_path, room):
    run = RunFolder(tmp_path)
    run.append(rows(1))
    size = (tmp_path / "log.csv").stat().st_size
    with largest_file(size + room), pytest.raises(MachineError, match=r"log.csv cannot be written: File too large"):
        run.append(rows(2))
    assert set(run.log()["value"]) <= {row.value for row in rows(2)}  # no number is cut off
    run.append(rows(2))
    once = RunFolder(tmp_path / "once")
    once.append(rows(1) + rows(2))
    assert run.log().sort_values(["epoch", "value"]).values.tolist() == (
        once.log().sort_values(["epoch", "value"]).values.tolist()
    )


def test_of_arrays_the_earlier_file_stays_whole(tmp_path):
    run = RunFolder(tmp_path)
    file = run.save_arrays(1, "family", {"net/key": np.arange(3)})
    with largest_file(1000), pytest.raises(MachineError, match=r"family.npz cannot be written: File too large"):
        run.save_arrays(1, "family", {"net/key": np.random.default_rng(0).random(10_000)})
    assert run.arrays(1, "family")["net/key"].tolist() == [0, 1, 2]
    assert [path.name for path in file.parent.iterdir()] == ["family.npz"]  # no temporary file stays


def _as_nobody(act: Callable[[], None], answers) -> None:
    if os.geteuid() == 0:
        os.setuid(NOBODY)  # root may write anywhere
    try:
        act()
        answers.put("nothing was raised")
    except MachineError as error:
        answers.put(str(error))
    except BaseException as error:
        answers.put(repr(error))


WRITES = {
    "log.csv": lambda run: run.append(rows(1)),
    "measurements/epoch=0001": lambda run: run.save_arrays(1, "family", {"net/key": np.ones(2)}),
    "layers.csv": lambda run: run.save_layers([]),
    "notes.txt": lambda run: run.add_notes(["a message"]),
    "finished": lambda run: run.finish(2),
    "id": lambda run: run.identifier(),
    "other": lambda run: write_atomically(run.path / "other", b"bytes"),
}


@pytest.mark.parametrize("name", WRITES)
def test_a_folder_without_permission_is_an_error_message(tmp_path, name):
    folder = tmp_path / "run"
    folder.mkdir()
    for parent in (folder, *folder.parents):
        if parent.is_relative_to("/tmp") and parent != Path("/tmp") and os.geteuid() == 0:
            parent.chmod(0o755)
    folder.chmod(0o555)
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    child = context.Process(target=_as_nobody, args=(lambda: WRITES[name](RunFolder(folder)), answers))
    child.start()
    said = answers.get(timeout=120)
    child.join()
    assert said.startswith(f"{folder / name} cannot be written: Permission denied.")
    assert list(folder.iterdir()) == []


def test_a_folder_below_the_working_directory_is_written_where_it_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = RunFolder(Path("runs/one"))
    for write in WRITES.values():
        write(run)
    written = {path.relative_to(tmp_path / "runs" / "one").as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert written == {*WRITES} - {"measurements/epoch=0001"} | {"measurements/epoch=0001/family.npz"}
