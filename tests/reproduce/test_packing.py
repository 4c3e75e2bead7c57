"""What is kept of a run: small, whole whatever interrupts it, and a run folder like any other."""

import contextlib
import itertools
import lzma
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_app.common.errors import MachineError, UserError
from lightning_app.common.safe_io import read_json, read_xz
from lightning_app.common.seeds import spell_seeds
from lightning_app.papers import find
from lightning_app.papers.parts import PAPER, Run
from lightning_app.reproduce import packing, training
from lightning_app.reproduce.evidence import Reproduction
from lightning_app.reproduce.job import JobOptions
from lightning_app.reproduce.making import keep_evidence, make
from lightning_app.reproduce.packing import MANIFEST, damage, pack, restore, unpack
from lightning_app.reproduce.training import FoundRun, RunFailed, TrainingJob
from lightning_app.runs import LayerRow, Row, RunFolder, find_runs, notebook
from lightning_app.runs.checkpoints import AtomicCheckpointIO
from tests.reproduce.conftest import leave_run
from tests.reproduce.test_runner import Recorder, finishing, one

PROPERTY = settings(max_examples=30)
WEIGHTS, LAST = "checkpoints/weights.safetensors", "checkpoints/last.ckpt"
RUN = Run("depth20", seeds=3)
PLAN = TrainingJob("yu-tomasi", RUN, PAPER)
KEPT = {("cushion", 0), ("cushion", 2), ("spectrum", 2)}  # arrays that something reads


@pytest.fixture(autouse=True, scope="module")
def hurry():
    """A search for a free name that has no end once took all memory: it ends here."""

    def few(first: int):
        yield from range(first, 100)
        raise AssertionError("all names up to 100 were looked at")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "itertools", SimpleNamespace(**vars(itertools) | {"count": few}), raising=False)
        yield


class PowerCut(BaseException):
    """No code of ours catches this."""


def write_run(path: Path, epochs: int = 2, finished: bool = True) -> RunFolder:
    """A run as `fit` leaves it, with every kind of file that it can have."""
    run = RunFolder(path)
    numbers = {"test/error": 0.1, "test/risk": 1 / 3, "bound/volume": float("inf"), "noise/median": float("nan")}
    places = itertools.product(range(epochs + 1), ("plain", "other"), numbers.items())
    run.append(Row(net, epoch, 10 * epoch, key, value + epoch) for epoch, net, (key, value) in places)
    (path / "config.yaml").write_text(f"run: {{root: {Path.cwd()}/runs, plan: abc}}\ndata: {Path.home()}/data\n")
    run.add_made({"commit": "abc", "command": f"main.py fit --data.root {Path.home()}/data"})
    run.save_layers([LayerRow("plain", "layer01", "conv1", "Conv2d", (4, 3, 3, 3), "")])
    run.add_notes(["no cushion of the pooling."])
    run.identifier()
    for epoch in range(epochs + 1):
        for family in ("cushion", "spectrum", "histogram"):
            run.save_arrays(epoch, family, {"plain/layer01": np.arange(5.0) + epoch})
    weights = {"net.weight": torch.linspace(0, 1, 12).reshape(3, 4), "net.count": torch.tensor(7 + epochs)}
    state = {"epoch": epochs, "global_step": 10 * epochs, "optimizer_states": [{"momentum": 0.9}]}
    AtomicCheckpointIO().save_checkpoint({"state_dict": weights, **state}, run.checkpoints / "last.ckpt")
    if finished:
        run.finish(epochs)
    return run


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


@contextlib.contextmanager
def power_cut(after: int):
    """The power goes instead of the next file that is written, moved or removed after so many."""
    left = iter(range(after))

    def dying(function):
        def instead(*words, **more):
            if next(left, None) is None:
                raise PowerCut
            return function(*words, **more)

        return instead

    with pytest.MonkeyPatch.context() as patch:
        for place, name in ((packing, "write_atomically"), (os, "replace"), (shutil, "rmtree")):
            patch.setattr(place, name, dying(getattr(place, name)))
        with contextlib.suppress(PowerCut):
            yield


@PROPERTY
@given(epochs=st.integers(0, 4), finished=st.booleans(), arrays=st.sets(st.sampled_from([*KEPT, ("histogram", 1)])))
def test_packing_again_writes_nothing_and_elsewhere_the_same_bytes(tmp_path_factory, epochs, finished, arrays):
    home = tmp_path_factory.mktemp("pack")
    run = write_run(home / "live", epochs, finished)
    before = contents(run.path)
    assert pack(run, home / "one" / "packed", finished, arrays)
    first = contents(home / "one")
    assert not pack(run, home / "one" / "packed", finished, arrays)
    assert contents(home / "one") == first
    assert pack(run, home / "two" / "packed", finished, arrays)
    assert contents(home / "two") == first
    assert contents(run.path) == before
    assert damage(home / "one" / "packed") == []
    assert {path for path in first if "measurements" in path} == {
        f"packed/measurements/epoch={epoch:04d}/{family}.npz" for family, epoch in arrays if epoch <= epochs
    }


@pytest.mark.parametrize("finished", [True, False])
def test_a_finished_run_keeps_weights_and_an_interrupted_one_its_checkpoint(tmp_path, finished):
    run = write_run(tmp_path / "live", finished=finished)
    pack(run, tmp_path / "packed", finished, KEPT)
    there = contents(tmp_path / "packed").keys()
    assert (WEIGHTS in there, LAST in there) == (finished, not finished)
    assert there >= {"config.yaml", "made.jsonl", "layers.csv", "notes.txt", "id", "log.csv.xz", MANIFEST}
    assert ("finished" in there) is finished
    if finished:
        files = (run.path / LAST, tmp_path / "packed" / WEIGHTS)
        said, kept = (AtomicCheckpointIO().load_checkpoint(file) for file in files)
        assert all(torch.equal(kept["state_dict"][name], tensor) for name, tensor in said["state_dict"].items())
        assert kept["epoch"] == said["epoch"]


def test_a_run_that_goes_on_while_it_is_packed_has_a_checkpoint_that_is_not_ahead_of_its_log(tmp_path, monkeypatch):
    run = write_run(tmp_path / "live", epochs=2, finished=False)
    before = (run.checkpoints / "last.ckpt").read_bytes()
    compress = lzma.compress

    def meanwhile(*words, **more):
        run.append([Row("plain", 3, 30, "test/error", 0.1)])
        (run.checkpoints / "last.ckpt").write_bytes(b"of epoch 3")
        return compress(*words, **more)

    monkeypatch.setattr(packing.lzma, "compress", meanwhile)
    pack(run, tmp_path / "packed", False, ())
    assert (tmp_path / "packed" / LAST).read_bytes() == before


@pytest.mark.parametrize("name", ["log.csv.xz", "config.yaml", MANIFEST])
def test_damaged_evidence_is_not_judged(leave, tmp_path, name):
    folder = keep(leave(RUN, one), tmp_path)
    asked = Reproduction(*next(iter(find("yu-tomasi/table-1"))), PAPER, tmp_path / "results")
    make(asked, tmp_path / "runs")
    (folder / name).write_bytes((folder / name).read_bytes()[:-3])
    record = asked.folder / "verdict.json"
    before = record.read_bytes()
    with pytest.raises(UserError):
        make(asked, tmp_path / "runs")
    assert record.read_bytes() == before


def left_out(packed: Path) -> list[str]:
    return read_json(packed / MANIFEST)["left_out"]


def test_what_is_left_out_is_said(tmp_path):
    run = write_run(tmp_path / "live")
    pack(run, tmp_path / "packed", True, {("cushion", 2)})
    assert left_out(tmp_path / "packed") == [
        "2 arrays of cushion, which no claim and no figure reads",
        "3 arrays of histogram, which no claim and no figure reads",
        "3 arrays of spectrum, which no claim and no figure reads",
        "the optimizer's state: training is finished",
    ]
    (run.checkpoints / "last.ckpt").unlink()
    pack(run, tmp_path / "without", False, ())
    assert left_out(tmp_path / "without")[-1] == "weights: the run has no checkpoint"
    for part in ({"epoch": 0}, {"epoch": 1}):
        run.add_made(part)
    pack(run, tmp_path / "resumed", False, ())
    assert left_out(tmp_path / "resumed")[-1] == "what earlier evidence had left out, if the run went on from that"


def test_no_folder_of_the_machine_is_kept(tmp_path):
    pack(write_run(tmp_path / "live"), tmp_path / "packed", True, ())
    packed = contents(tmp_path / "packed")
    texts = [content for name, content in packed.items() if name.endswith((".yaml", ".jsonl", ".txt"))]
    assert not any(f"{place}/".encode() in text for text in texts for place in (Path.cwd(), Path.home()))
    assert RunFolder(tmp_path / "packed").config() == {"run": {"root": "runs", "plan": "abc"}, "data": "~/data"}


def test_a_run_is_called_as_its_plan_and_with_seeds_where_it_lacks_some(tmp_path):
    names = [
        FoundRun(PLAN, RunFolder(tmp_path), seeds, 3, "finished").packed_name for seeds in ((0, 1, 2), (0,), (0, 2))
    ]
    assert names == ["depth20", "depth20~0-0", "depth20~0,2"]


@pytest.mark.slow
@PROPERTY
@given(cuts=st.lists(st.integers(0, 30), max_size=3), finished=st.booleans(), anew=st.booleans())
def test_an_interruption_leaves_the_old_evidence_or_the_new(tmp_path_factory, cuts, finished, anew):
    home = tmp_path_factory.mktemp("pack")
    target = home / "evidence" / "packed"
    old, new = {}, write_run(home / "new", epochs=2, finished=finished)
    if not anew:
        pack(write_run(home / "old", epochs=1, finished=False), target, False, KEPT)
        old = contents(target)
    live = contents(new.path)
    pack(new, home / "whole" / "packed", finished, KEPT)
    for cut in cuts:
        with power_cut(cut):
            pack(new, target, finished, KEPT)
        restore(target)
        assert contents(target) in (old, contents(home / "whole" / "packed"))
        assert not target.exists() or damage(target) == []
        assert contents(new.path) == live
    pack(new, target, finished, KEPT)
    assert damage(target) == []
    assert [path.name for path in target.parent.iterdir()] == ["packed"]  # and nothing half made beside it
    assert contents(home / "evidence") == contents(home / "whole")


def test_evidence_that_cannot_be_written_is_a_message_and_leaves_the_old(tmp_path, monkeypatch):
    target = tmp_path / "evidence" / "packed"
    pack(write_run(tmp_path / "old", epochs=1, finished=False), target, False, KEPT)
    old, new = contents(target), write_run(tmp_path / "new")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(MachineError, match="No space left on device"):
        pack(new, target, True, KEPT)
    monkeypatch.undo()
    restore(target)
    assert contents(target) == old


@PROPERTY
@given(cut=st.integers(0, 12))
def test_an_interruption_while_unpacking_costs_nothing(tmp_path_factory, cut):
    """The next try goes on from the checkpoint, wherever the first was cut: no epoch is trained twice."""
    home = tmp_path_factory.mktemp("unpack")
    folder = leave_run(home, RUN, one, epochs=(0, 12), finished=False)
    keep(folder, home)
    evidence = contents(home / "results")
    with pytest.MonkeyPatch.context() as patch:
        recorder = Recorder(patch, code=1)
        with power_cut(cut), contextlib.suppress(RunFailed):
            PLAN.complete(home / "runs", JobOptions(), home / "results")
        recorder.asked.clear()
        with pytest.raises(RunFailed):
            PLAN.complete(home / "runs", JobOptions(), home / "results")
        checkpoint = recorder.option("--ckpt_path")
    assert checkpoint is not None, "training began anew"
    assert Path(checkpoint).read_bytes() == evidence["yu-tomasi/runs/depth20/checkpoints/last.ckpt"]
    assert Path(checkpoint).is_relative_to(home / "runs")
    assert contents(home / "results") == evidence


@pytest.fixture(scope="module", params=[True, False], ids=["finished", "interrupted"])
def packed(request, tmp_path_factory) -> Path:
    home = tmp_path_factory.mktemp("packed")
    pack(write_run(home / "live", finished=request.param), home / "packed", request.param, KEPT)
    return home / "packed"


@contextlib.contextmanager
def changed(file: Path, content: bytes | None):
    """A file with other bytes, or none, for as long as this lasts."""
    before = file.read_bytes()
    try:
        file.unlink() if content is None else file.write_bytes(content)
        yield
    finally:
        file.write_bytes(before)


@PROPERTY
@given(data=st.data())
def test_any_damage_is_one_message_that_names_the_file(packed, data):
    name = data.draw(st.sampled_from(sorted(contents(packed).keys() - {MANIFEST})))
    content = (packed / name).read_bytes()
    place = data.draw(st.integers(0, len(content) - 1))
    other = bytes([content[place] ^ data.draw(st.integers(1, 255))])
    for instead in (content[:place] + other + content[place + 1 :], content[:place], content + b"\n", None):
        with changed(packed / name, instead):
            (message,) = damage(packed)
            assert str(packed / name) in message
            assert "\n" not in message
    assert damage(packed) == []


def test_packing_again_mends_what_was_damaged(tmp_path):
    run, target = write_run(tmp_path / "live"), tmp_path / "packed"
    pack(run, target, True, KEPT)
    whole = contents(target)
    (target / "log.csv.xz").write_bytes(b"nothing")
    assert pack(run, target, True, KEPT) and contents(target) == whole


@pytest.mark.parametrize("name", ["measurements/other.npz", "config.before-resume-1.yaml"])
def test_a_file_that_was_not_packed_is_named(packed, name):
    (packed / name).write_bytes(b"")
    try:
        (message,) = damage(packed)
    finally:
        (packed / name).unlink()
    assert f"{name} was not packed with the run" in message


@PROPERTY
@given(data=st.data())
def test_no_damage_of_the_manifest_is_more_than_messages(packed, data):
    content = (packed / MANIFEST).read_bytes()
    place = data.draw(st.integers(0, len(content) - 1))
    other = bytes([content[place] ^ data.draw(st.integers(1, 255))])
    with changed(packed / MANIFEST, content[:place]):
        assert len(content[:place].strip()) == len(content.strip()) or damage(packed) != []
    with changed(packed / MANIFEST, content[:place] + other + content[place + 1 :]):
        assert all(str(packed) in message for message in damage(packed))
    with changed(packed / MANIFEST, None):
        (message,) = damage(packed)
        assert MANIFEST in message


@pytest.mark.parametrize("text", ["[]", "{}", '{"files": [], "left_out": []}', '{"files": {}, "left_out": 3}', "{", ""])
def test_what_is_no_manifest_is_an_error_message(packed, text):
    with changed(packed / MANIFEST, text.encode()):
        (message,) = damage(packed)
    assert str(packed / MANIFEST) in message


@PROPERTY
@given(epochs=st.integers(0, 3), torn=st.sampled_from(["", "plain,9,90,test/err", "plain,9"]))
def test_an_unpacked_run_is_what_was_packed_byte_for_byte(tmp_path_factory, epochs, torn):
    home = tmp_path_factory.mktemp("unpack")
    run = write_run(home / "live", epochs, finished=False)
    with (run.path / "log.csv").open("a") as file:
        file.write(torn)  # what a kill leaves
    pack(run, home / "packed", False, KEPT)
    back = unpack(home / "packed", home / "back")
    kept = {name: content for name, content in contents(run.path).items() if name not in ("config.yaml", "made.jsonl")}
    read = {name for name in kept if "measurements" not in name}
    assert {name: contents(back.path)[name] for name in read} == {name: kept[name] for name in read}
    assert not (back.path / MANIFEST).exists()
    assert back.last_epoch == run.last_epoch


@PROPERTY
@given(content=st.binary(max_size=300), end=st.integers(0, 10_000))
def test_xz_that_ends_too_early_is_an_error_message(tmp_path_factory, content, end):
    file = tmp_path_factory.mktemp("xz") / "log.csv.xz"
    packed = lzma.compress(content)
    file.write_bytes(packed)
    assert read_xz(file) == content
    file.write_bytes(packed[: end % len(packed)])
    with pytest.raises(UserError, match=r"log\.csv\.xz cannot be unpacked \(Compressed data ended"):
        read_xz(file)


@given(content=st.binary(max_size=100).filter(lambda content: not content.startswith((b"\xfd", b"]"))))
def test_what_is_not_xz_is_an_error_message(tmp_path_factory, content):
    file = tmp_path_factory.mktemp("xz") / "log.csv.xz"
    file.write_bytes(content)
    with pytest.raises(UserError) as error:
        read_xz(file)
    assert str(error.value).startswith(f"{file} cannot be unpacked (")
    assert "\n" not in str(error.value)


def test_readers_read_a_packed_run_as_the_live_one(tmp_path):
    live = write_run(tmp_path / "live" / "run")
    pack(live, tmp_path / "packed" / "run", True, KEPT)
    packed = RunFolder(tmp_path / "packed" / "run")
    pd.testing.assert_frame_equal(packed.log(), live.log())
    assert (packed.has_log, packed.last_epoch, packed.finished) == (True, 2, 2)
    assert (packed.members(), packed.layers(), packed.notes()) == (live.members(), live.layers(), live.notes())
    assert packed.identifier() == live.identifier()
    for place in (tmp_path / "packed", packed.path):
        assert [run.path for run in find_runs([place])] == [packed.path]
    one, other = (notebook.open_run(run.path) for run in (packed, live))
    pd.testing.assert_frame_equal(one.table(), other.table())
    pd.testing.assert_frame_equal(one.finals(), other.finals())


def test_a_damaged_packed_log_is_an_error_message_for_readers(tmp_path):
    pack(write_run(tmp_path / "live"), tmp_path / "packed", True, ())
    log = tmp_path / "packed" / "log.csv.xz"
    log.write_bytes(log.read_bytes()[:-20])
    for read in (lambda run: run.log(), lambda run: run.last_epoch):
        with pytest.raises(UserError, match=r"log\.csv\.xz cannot be unpacked"):
            read(RunFolder(tmp_path / "packed"))


def keep(folder: RunFolder, home: Path) -> Path:
    """Pack a run that was left below home/runs, and take it away there: as in a fresh clone."""
    folder.identifier()
    (run,) = [run for run in PLAN.found(home / "runs") if run.folder.path == folder.path]
    target = home / "results" / "yu-tomasi" / "runs" / run.packed_name
    pack(folder, target, run.state == "finished", ())
    shutil.rmtree(folder.path)
    return target


def test_finished_evidence_is_not_trained_again(leave, tmp_path, monkeypatch):
    keep(leave(RUN, one), tmp_path)
    recorder = Recorder(monkeypatch)
    PLAN.complete(tmp_path / "runs", JobOptions(), tmp_path / "results")
    assert recorder.asked == []
    assert PLAN.state(tmp_path / "runs", tmp_path / "results") == "finished"
    assert PLAN.state(tmp_path / "runs") == "not run"


def test_only_the_seeds_that_are_not_kept_are_trained(leave, tmp_path, monkeypatch):
    keep(leave(RUN, one, seeds=(0, 2)), tmp_path)
    recorder = Recorder(monkeypatch, finishing(leave))
    PLAN.complete(tmp_path / "runs", JobOptions(), tmp_path / "results")
    assert [recorder.option("--model.seeds", call) for call in range(len(recorder.asked))] == ["1-1"]


def test_interrupted_evidence_goes_on_where_it_was_in_a_folder_of_the_runs(leave, tmp_path, monkeypatch, capsys):
    target = keep(leave(RUN, one, epochs=(0, 12), finished=False), tmp_path)
    before = contents(target)
    assert PLAN.state(tmp_path / "runs", tmp_path / "results") == "epoch 12 of 200"
    recorder = Recorder(monkeypatch, finishing(leave))
    PLAN.complete(tmp_path / "runs", JobOptions(), tmp_path / "results")
    checkpoint = Path(recorder.option("--ckpt_path"))
    assert checkpoint == tmp_path / "runs" / "yu-tomasi" / "depth20" / "checkpoints" / "last.ckpt"
    assert checkpoint.read_bytes() == before["checkpoints/last.ckpt"]
    assert recorder.option("--model.seeds") == spell_seeds(PLAN.seeds)
    assert RunFolder(checkpoint.parents[1]).last_epoch == 12
    assert contents(target) == before  # the evidence stays until there is more
    assert f"from the evidence in {target}" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["log.csv.xz", LAST, "config.yaml", MANIFEST])
def test_damaged_evidence_stops_before_anything_is_unpacked_or_trained(leave, tmp_path, monkeypatch, name):
    file = keep(leave(RUN, one, epochs=(0, 12), finished=False), tmp_path) / name
    file.write_bytes(file.read_bytes()[:-3])
    recorder = Recorder(monkeypatch)
    with pytest.raises(
        UserError, match=r"training cannot be resumed from|cannot be unpacked \(Compressed data ended"
    ) as error:
        PLAN.complete(tmp_path / "runs", JobOptions(), tmp_path / "results")
    assert str(file) in str(error.value)
    assert recorder.asked == []
    assert not (tmp_path / "runs" / "yu-tomasi" / "depth20").exists()


@pytest.mark.parametrize(("live_epoch", "counts"), [(12, "results"), (30, "runs"), (40, "runs")])
def test_of_two_copies_of_a_run_the_further_one_counts(leave, tmp_path, live_epoch, counts):
    """At epoch 30 both are as far: the live one can be written to."""
    keep(leave(RUN, one, epochs=(0, 30), finished=False), tmp_path)
    live = leave(RUN, one, epochs=(0, live_epoch), finished=False)
    shutil.copy(tmp_path / "results" / "yu-tomasi" / "runs" / "depth20" / "id", live.path / "id")
    (run,) = PLAN.found(tmp_path / "runs", tmp_path / "results")
    assert run.epoch == max(30, live_epoch)
    assert run.folder.path.is_relative_to(tmp_path / counts)


def test_of_two_copies_as_far_the_finished_one_counts(leave, tmp_path):
    """Whatever the other has: what is finished is not trained again."""
    keep(leave(RUN, one), tmp_path)
    live = leave(RUN, one, finished=False)
    shutil.copy(tmp_path / "results" / "yu-tomasi" / "runs" / "depth20" / "id", live.path / "id")
    assert PLAN.state(tmp_path / "runs") == "epoch 200 of 200"
    assert PLAN.state(tmp_path / "runs", tmp_path / "results") == "finished"


def test_runs_of_different_seeds_kept_in_folders_of_their_own_all_count(leave, tmp_path):
    for seed in PLAN.seeds:
        keep(leave(RUN, one, seeds=(seed,)), tmp_path)
    runs = PLAN.found(tmp_path / "runs", tmp_path / "results")
    assert [run.folder.label for run in runs] == ["depth20~0-0", "depth20~1-1", "depth20~2-2"]
    assert PLAN.state(tmp_path / "runs", tmp_path / "results") == "finished"


def kept(home: Path) -> dict[str, str | int | None]:
    """Folder -> after how many epochs it finished, as `reproduce` keeps table 3's run."""
    ((paper, artefact),) = find("yu-tomasi/table-3")
    keep_evidence(Reproduction(paper, artefact, PAPER, home / "results"), home / "runs")
    folders = (home / "results" / "yu-tomasi" / "runs").iterdir()
    return {folder.name: RunFolder(folder).finished for folder in folders}


NAMED = Run("depth32", seeds=3)  # table 3's


BEGUN = {"epochs": (0, 12), "finished": False}


@pytest.mark.parametrize(
    ("first", "then", "before", "after"),
    [
        # as where two machines train the same, and the one that is behind takes what the other has committed
        ({}, BEGUN, {"depth32": 200}, {"depth32": 200}),
        # some seeds first, all of them in the end: a checkpoint that nobody goes on from is no evidence
        ({"seeds": (0,), **BEGUN}, {}, {"depth32~0-0": None}, {"depth32": 200}),
        ({"seeds": (0,)}, BEGUN, {"depth32~0-0": 200}, {"depth32~0-0": 200, "depth32": None}),
    ],
)
def test_what_is_kept_of_runs_one_after_the_other(leave, tmp_path, first, then, before, after):
    leave(NAMED, one, **first).identifier()
    assert kept(tmp_path) == before
    shutil.rmtree(tmp_path / "runs")
    leave(NAMED, one, **then).identifier()
    assert kept(tmp_path) == after


def test_of_two_live_runs_of_the_same_seeds_the_further_one_is_kept(leave, tmp_path):
    leave(NAMED, one).identifier()
    leave(NAMED, one, epochs=(0, 12), finished=False, name="depth32~2").identifier()
    assert kept(tmp_path) == {"depth32": 200}
    evidence = contents(tmp_path / "results")
    kept(tmp_path)
    assert contents(tmp_path / "results") == evidence


@pytest.mark.parametrize("copies", [True, False])
def test_a_run_that_lost_its_checkpoint_replaces_none_that_can_go_on(leave, tmp_path, copies):
    """Though it got further: what was kept of it earlier, or another run of these seeds."""
    run = leave(NAMED, one, epochs=(0, 70), finished=False)
    run.identifier()
    assert kept(tmp_path) == {"depth32": None}
    run.append([Row("plain", 71, 710, "train/risk", 0.5)])
    (run.checkpoints / "last.ckpt").unlink()
    if not copies:
        (run.path / "id").unlink()
    job, results = TrainingJob("yu-tomasi", NAMED, PAPER), tmp_path / "results"
    assert job.state(tmp_path / "runs", results) == "epoch 70 of 200"
    evidence = contents(results)
    kept(tmp_path)
    assert contents(results) == evidence


def test_what_finished_is_kept_beside_others_of_the_same_seeds(leave, tmp_path):
    """Also without weights, which the other has."""
    leave(NAMED, one, seeds=(0,)).identifier()
    assert kept(tmp_path) == {"depth32~0-0": 200}
    shutil.rmtree(tmp_path / "runs")
    leave(NAMED, one).identifier()
    kept(tmp_path)
    weights = tmp_path / "results" / "yu-tomasi" / "runs" / "depth32" / WEIGHTS
    weights.parent.mkdir()
    weights.write_bytes(b"weights")
    leave(NAMED, one, seeds=(1,), name="depth32~2").identifier()
    assert kept(tmp_path) == {"depth32~0-0": 200, "depth32~1-1": 200, "depth32": 200}


def test_a_live_run_without_its_checkpoint_does_not_take_the_weights_of_the_evidence_away(leave, tmp_path):
    """Somebody made room in runs/."""
    folder = leave(NAMED, one, epochs=(0, 12), finished=False)
    folder.identifier()
    kept(tmp_path)
    (folder.checkpoints / "last.ckpt").unlink()
    kept(tmp_path)
    assert (tmp_path / "results" / "yu-tomasi" / "runs" / "depth32" / "checkpoints" / "last.ckpt").exists()
