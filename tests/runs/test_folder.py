"""The run folder: what is written comes back, torn and foreign files are told apart, nothing is half-written."""

import os
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_app.common.errors import MachineError, UserError
from lightning_app.common.files import write_atomically
from lightning_app.runs import MemberRow, Row, RunFolder, find_runs, read_runs
from lightning_app.runs.folder import by_number


def row(epoch: int, value: float, name: str = "test/error", member: str = "net") -> Row:
    return Row(member, epoch, 10 * epoch, name, value)


def test_after_a_resume_the_later_row_wins_and_each_key_is_seen_once(tmp_path):
    run = RunFolder(tmp_path)
    run.append([row(1, 0.5), row(2, 0.4)])
    run.append([row(2, 0.3), row(3, 0.2)])
    assert run.log()[["epoch", "value"]].to_numpy().tolist() == [[1, 0.5], [2, 0.3], [3, 0.2]]


def test_what_a_resume_trains_again_is_dropped_first(tmp_path):
    run = RunFolder(tmp_path)
    run.append([row(epoch, 1 / (1 + epoch), 'a, quoted "name"') for epoch in range(5)])
    run.append([Row("net", 2.5, 25, "within", 1.0), Row("net", 3.5, 35, "within", 1.0)])
    run.append([Row("", 2, 28, "later", 1.0)])  # of an epoch whose other rows, and arrays, are earlier
    for epoch in (0, 2, 2.5, 3, 3.5):
        run.save_arrays(epoch, "a", {"net/a": np.zeros(2)})
    with (tmp_path / "log.csv").open("a") as file:
        file.write("no row of ours\n")
    before = (tmp_path / "log.csv").read_text()
    run.drop_after(40)
    assert (tmp_path / "log.csv").read_text() == before
    run.drop_after(27)
    kept = [line for line in before.splitlines() if not line.startswith(("net,3", "net,4", ",2,28"))]
    assert (tmp_path / "log.csv").read_text().splitlines() == kept and run.array_epochs("a") == [0, 2, 2.5]


@given(st.data())
def test_a_line_torn_by_a_kill_is_neither_read_nor_left_in_the_way(tmp_path_factory, data):
    """Cut anywhere, also in the first line."""
    run = RunFolder(tmp_path_factory.mktemp("torn"))
    run.append([row(1, 0.5), row(2, 0.123456789)])
    log = run.path / "log.csv"
    whole = log.read_bytes()
    log.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    if b"\n" in log.read_bytes():
        assert run.log()["value"].tolist() in ([0.5], [])
    run.append([row(2, 0.25)])
    assert run.log()["value"].tolist() in ([0.5, 0.25], [0.25])


def test_a_log_that_is_a_link_is_not_ours_to_change(tmp_path):
    (tmp_path / "theirs").write_text("not ours, and without an end")
    (tmp_path / "log.csv").symlink_to(tmp_path / "theirs")
    with pytest.raises(UserError, match="is a link to another file"):
        RunFolder(tmp_path).append([Row("net", 1, 2, "lr", 0.5)])
    assert (tmp_path / "theirs").read_text() == "not ours, and without an end"


def test_a_run_that_begins_again_has_no_end_yet(tmp_path):
    folder = RunFolder(tmp_path)
    folder.finish(3)
    (tmp_path / ".last.ckpt.x.tmp").touch()
    folder.begin()
    assert folder.finished == 3 and len([*tmp_path.iterdir()]) == 1  # until it trains
    folder.reopen()
    assert folder.finished is None and not [*tmp_path.iterdir()]


MEMBER = MemberRow("a", "a", 0, "A", True, "", 3, 4)
LISTS = {
    "notes.txt": (lambda run: run.add_notes(["one", "two\nlines", "one"]), RunFolder.notes, ["one", "two lines"]),
    "keys.csv": (lambda run: run.describe_keys({"one": "a"}), RunFolder.described_keys, {"one": "a"}),
    "members.csv": (lambda run: run.save_members([MEMBER]), RunFolder.members, [MEMBER]),
}


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        *[(name, b"\xff") for name in LISTS],
        *[("keys.csv", b"name\n"), ("keys.csv", b"name,meaning\none\n"), ("members.csv", b"name,arm\n")],
    ],
)
def test_damaged_lists_stop_nothing_and_are_kept(tmp_path, name, damage):
    write, read, expected = LISTS[name]
    (tmp_path / name).write_bytes(damage)
    write(RunFolder(tmp_path))
    assert read(RunFolder(tmp_path)) == expected
    assert (tmp_path / f"damaged-{name}").read_bytes() == damage


def test_names_with_commas_and_quotes_survive(tmp_path):
    run = RunFolder(tmp_path)
    run.append([row(1, 1.0, name='a,"b"\nc', member="<x>")])
    assert run.log()[["member", "name"]].iloc[0].tolist() == ["<x>", 'a,"b"\nc']


def test_arrays_come_back_and_a_repeated_epoch_replaces_them(tmp_path):
    run = RunFolder(tmp_path)
    run.save_arrays(3, "cushion", {"net/a": np.arange(3), "net/b": np.ones((2, 2))})
    run.save_arrays(3, "cushion", {"net/a": np.zeros(1)})
    run.save_arrays(12, "cushion", {"net/a": np.zeros(1)})
    assert list(run.arrays(3, "cushion")) == ["net/a"]
    assert run.array_epochs("cushion") == [3, 12]


def test_pickled_arrays_are_not_loaded(tmp_path):
    run = RunFolder(tmp_path)
    run.save_arrays(0, "cushion", {"net/a": np.zeros(1)})
    np.savez(tmp_path / "measurements" / "epoch=0000" / "cushion.npz", a=np.array([{}], dtype=object))
    with pytest.raises(ValueError, match="pickle"):
        run.arrays(0, "cushion")


def test_added_runs_come_last(tmp_path):
    """By letters run~10 came before run~2."""
    for number in range(1, 12):
        RunFolder(tmp_path / ("run" if number == 1 else f"run~{number}")).append([row(1, 0.5)])
    assert [run.label for run in find_runs([tmp_path])] == ["run", *(f"run~{number}" for number in range(2, 12))]
    same = [Path("a01"), Path("a1"), Path("a1b"), Path("b")]
    assert sorted(same, key=by_number) == sorted(same[::-1], key=by_number) == same


def test_find_runs_looks_below_and_names_what_holds_none(tmp_path):
    RunFolder(tmp_path / "group" / "one").append([row(0, 1.0)])
    RunFolder(tmp_path / "group" / "two").append([row(0, 1.0)])
    assert [run.label for run in find_runs([tmp_path])] == ["one", "two"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="empty"):
        find_runs([tmp_path / "empty"])


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("log.csv", "step,loss\n1,2\n", "must begin with the line member,epoch,step,name,value"),
        ("log.csv", "member,epoch,step,name,value\nnet,two,3,test/error,0.1\n", "has a row that is not"),
        ("config.yaml", "a: [b\n", "is not YAML"),
        ("config.yaml", "- 1\n", "expected keys and values, found a list"),
    ],
)
def test_what_is_not_ours_is_refused_in_a_message(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=message):
        RunFolder(tmp_path).log() if name == "log.csv" else RunFolder(tmp_path).config()


def test_a_reader_never_sees_a_part_of_an_atomic_write(tmp_path):
    target = tmp_path / "file"
    contents = [bytes([letter]) * 2_000_000 for letter in b"ab"]
    write_atomically(target, contents[0])
    done = threading.Event()

    written = []

    def write() -> None:
        try:
            written.extend(write_atomically(target, contents[turn % 2]) for turn in range(40))
        finally:
            done.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not done.is_set():
        assert target.read_bytes() in contents
    writer.join()
    assert len(written) == 40
    assert os.listdir(tmp_path) == ["file"]


def test_a_failed_atomic_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    target = tmp_path / "file"
    write_atomically(target, b"old")
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(MachineError, match="disk full"):
        write_atomically(target, b"new")
    assert target.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_how_far_a_run_has_come_is_read_from_the_end_of_its_log(tmp_path):
    run = RunFolder(tmp_path)
    assert (run.last_epoch, run.finished) == (None, None)
    run.append(Row("net", epoch, 10 * epoch, "test/error", 0.5) for epoch in range(300))
    assert run.last_epoch == 299
    with (tmp_path / "log.csv").open("a") as file:
        file.write("net,300,3000,test/er")  # a killed process
    assert run.last_epoch == 299
    run.finish(300)
    assert run.finished == 300


def test_names_with_commas_are_no_reason_to_miss_the_last_epoch(tmp_path):
    run = RunFolder(tmp_path)
    run.append([Row("net", 1, 10, "test/error", 0.5)])
    run.append([Row("plain, deep", 2, 20, "test/error", 0.5)])
    assert run.last_epoch == 2
    run.append([Row("", 3, 30, "loss a,b", value) for value in range(400)])  # more than is read from the end
    assert run.last_epoch == 3


@pytest.mark.parametrize("member", ["plain", "residual-seed03"])
def test_who_diverged_is_read_from_the_note(tmp_path, member):
    run = RunFolder(tmp_path)
    assert run.divergence() is None
    said = f"the loss of member '{member}' became NaN or infinite in epoch 4 (step 7)."
    run.add_divergence(4, said)
    assert run.divergence() == (member, 4)
    run.reopen()
    assert run.divergence() is None and run.notes() == [f"stopped in epoch 4, and went on later: {said}"]
    run.add_divergence(4, said)  # again, at the same rate
    assert run.divergence() == (member, 4)


def test_the_working_folder_is_called_by_its_name(tmp_path, monkeypatch):
    (tmp_path / "res20" / "checkpoints").mkdir(parents=True)
    RunFolder(tmp_path / "res20").append([row(1, 0.5)])
    for place, path in (("res20", "."), ("res20/checkpoints", "..")):
        monkeypatch.chdir(tmp_path / place)
        assert [run.label for run in find_runs([path])] == ["res20"]
        assert [run.label for run in read_runs(find_runs([path]))] == ["res20"]
