"""Every kind of file of a run folder, damaged in every way: the right answer or an error message; nothing is executed."""

import os
import random
import struct

import pandas as pd
import pytest
import torch
from hypothesis import given, settings

from lightning_app.common.errors import UserError
from lightning_app.common.safe_io import parsed_yaml, read_npy, read_npz, read_torch, read_yaml
from lightning_app.runs.checkpoints import AtomicCheckpointIO
from tests.helpers import identical
from tests.hostile.damage import CHECKPOINT, KINDS, PICKLES, damage, made

kinds = pytest.mark.parametrize("name", KINDS)
refused = pytest.raises(UserError)


@kinds
def test_damage_is_noticed_or_harmless(name, tmp_path):
    kind = KINDS[name]
    run, file = made(kind, tmp_path)
    whole, right = file.read_bytes(), kind.read(run)
    assert right is not None

    @settings(max_examples=150, derandomize=True, database=None)
    @given(damage())
    def check(damaged) -> None:
        file.write_bytes(damaged(whole))
        try:
            found = kind.read(run)
        except UserError as error:
            assert str(file) in str(error) or "checkpoint" in str(error)
        else:
            assert type(found) is type(right)
            assert not kind.sealed or identical(found, right)

    check()


@kinds
def test_something_else_in_its_place(name, tmp_path):
    run, file = made(KINDS[name], tmp_path / "run")
    mark = tmp_path / "executed"
    others = [b"", b"\0" * 1000, b"\x89PNG\r\n\x1a\n" + bytes(range(256)), random.Random(0).randbytes(3000)]
    for other in [*others, *(pickled(mark) for pickled in PICKLES.values())]:
        file.write_bytes(other)
        try:
            found = KINDS[name].read(run)
        except UserError as error:
            assert len(str(error)) < 1000 and "\n" not in str(error)
        else:
            assert name in ("notes.txt", "config.yaml") and not any(found if isinstance(found, dict) else [])
    assert not mark.exists()


@kinds
def test_a_folder_a_pipe_or_a_circle_in_its_place(name, tmp_path):
    run, file = made(KINDS[name], tmp_path)
    file.unlink()
    file.mkdir()
    with refused:
        KINDS[name].read(run)
    file.rmdir()
    os.mkfifo(file)  # which a reader would wait for
    with refused:
        KINDS[name].read(run)
    file.unlink()
    file.symlink_to(file)
    if name in ("images.npy", "last.ckpt", "log.csv", "cushion.npz"):
        with refused:
            KINDS[name].read(run)


def test_each_payload_would_run_where_pickles_are_loaded(tmp_path):
    """The witness of the tests above: the same bytes, read carelessly."""
    for number, (load, pickled) in enumerate(PICKLES.items()):
        mark, file = tmp_path / f"mark{number}", tmp_path / f"file{number}"
        file.write_bytes(pickled(mark))
        load(file)
        assert mark.exists()


def test_a_renamed_file_is_refused(tmp_path):
    arrays, checkpoint, image = (made(KINDS[name], tmp_path)[1] for name in ("cushion.npz", "last.ckpt", "images.npy"))
    for reader, files in {
        read_npy: (arrays, checkpoint),
        read_npz: (checkpoint, image),
        read_torch: (arrays, image),
        read_yaml: (image,),
    }.items():
        for file in files:
            with pytest.raises(UserError) as error:
                reader(file)
            assert ("np.save" in str(error.value)) == (reader is read_npy)  # which makes no .npz


def test_a_flipped_byte_in_a_weight_is_noticed(tmp_path):
    AtomicCheckpointIO().save_checkpoint(CHECKPOINT, tmp_path / "a.ckpt")
    content = bytearray((tmp_path / "a.ckpt").read_bytes())
    place = content.find(struct.pack("<3f", 1, 2, 3))
    content[place] ^= 1
    (tmp_path / "a.ckpt").write_bytes(content)
    assert (
        torch.load(tmp_path / "a.ckpt", weights_only=True)["state_dict"]["nets.a.weight"][0, 1] != 1
    )  # torch does not
    with pytest.raises(UserError, match="is damaged"):
        AtomicCheckpointIO().load_checkpoint(tmp_path / "a.ckpt")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a: 1\nb:\n  c: 1\n  c: 2\n", "the key 'c' appears a second time in line 4"),
        ("a: !!python/object/apply:os.system ['touch executed']", "is not YAML"),
        ("a: !!python/name:os.system", "is not YAML"),
        ("a: !!bool maybe", "is not YAML"),
        ("a: !!timestamp soon", "is not YAML"),
        ("a: 2024-99-99", "is not YAML"),
        (f"a: {'9' * 5000}", "is not YAML"),
        ("- 1\n", "found a list"),
        ("a: [b\n", "is not YAML"),
        ("a: 1\n---\nb: 2\n", "is not YAML"),
        ("a: &a {b: *a}", "is not YAML"),
        ("&a\nb: [*a]", "is not YAML"),
    ],
    ids=range(12),
)
def test_yaml_that_is_no_configuration(tmp_path, monkeypatch, text, reason):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(UserError, match=reason):
        read_yaml(tmp_path / "config.yaml")
    assert [*tmp_path.iterdir()] == [tmp_path / "config.yaml"]


def test_yaml_that_is_one():
    text = "a: &a {b: 1}\nc: *a\nd: {<<: *a, e: 2}\nf: {<<: *a, b: 3}\n"
    assert parsed_yaml(text, "it") == {"a": {"b": 1}, "c": {"b": 1}, "d": {"b": 1, "e": 2}, "f": {"b": 3}}


ROWS = ("a,-1,0,x,1.0", "a,1.5.2,0,x,1.0", "a,1e400,0,x,1.0", "a,99999999999999999999,0,x,1.0", "a,9999999999,0,x,1.0")
ROWS += ("a,1,-3,x,1.0", "a,1,0,x", "a,1,0,x,1.0,2.0", "a,1,0,x,one", '"a,1,0,x,1.0', "a,1,0,x,0x10")


@pytest.mark.parametrize("row", ROWS)
def test_rows_that_are_none(tmp_path, row):
    run, log = made(KINDS["log.csv"], tmp_path)
    log.write_text(f"{log.read_text()}{row}\n")
    with pytest.raises(UserError, match=r"log\.csv has a row that is not"):
        run.log()


@pytest.mark.parametrize("more", ["more", '"m,ore"'])
def test_columns_of_more_in_every_row(tmp_path, more):
    """pandas would take the first column for an index, and each name for a member."""
    run, log = made(KINDS["log.csv"], tmp_path)
    head, *rows = log.read_text().splitlines()
    log.write_text("\n".join([head, *(f"{more},{row}" for row in rows), ""]))
    with refused:
        run.log()


@pytest.mark.skipif(int(pd.__version__.split(".")[0]) < 3, reason="pandas 2 does not read 1e400; Python writes inf")
def test_an_infinite_number_is_one(tmp_path):
    run, log = made(KINDS["log.csv"], tmp_path)
    log.write_text(log.read_text() + "a,9,0,x,1e400\n")
    assert run.log()["value"].iloc[-1] == float("inf")


def test_only_folders_of_epochs_are_epochs(tmp_path):
    run, file = made(KINDS["cushion.npz"], tmp_path)
    for name in ("epoch=abc", "epoch=1", "epoch=-001", "epoch=00001", "epoch=0001 (copy)", "epoch=99999999999"):
        (file.parent.parent / name).mkdir()
        (file.parent.parent / name / file.name).write_bytes(file.read_bytes())
    assert run.array_epochs("cushion") == [1]


@pytest.mark.parametrize("text", ["../../x", "a\nb", "", "a" * 65, "a/b", "é"])
def test_ids_that_are_none(tmp_path, text):
    (tmp_path / "id").write_text(text)
    with pytest.raises(UserError, match="should hold an id"):
        made(KINDS["id"], tmp_path)


def test_a_long_field_of_layers(tmp_path):
    run, file = made(KINDS["layers.csv"], tmp_path)
    file.write_text(file.read_text() + f"a,{'x' * 200_000},p,k,1,\n")
    with pytest.raises(UserError, match="not a list of layers"):
        run.layers()
