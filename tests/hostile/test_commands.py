"""The real command line on hostile files: exit code 2, one message, nothing made, nothing executed."""

from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from lightning_app.cli import main
from lightning_app.runs import LayerRow, Row, RunFolder
from lightning_app.runs.checkpoints import AtomicCheckpointIO
from tests.helpers import refused
from tests.hostile.damage import CHECKPOINT, pickled_checkpoint, pickled_npz

NUMBERS = ("test/error", "test/risk", "cushion/layer01/median")
SENTENCE = 700  # characters are enough for any


def refusal(capsys: pytest.CaptureFixture, *words: str | Path) -> str:
    assert main([*map(str, words)]) == 2
    out, error = capsys.readouterr()
    assert out == "" and error.startswith("error: ") and "Traceback" not in error and len(error) < SENTENCE
    return error


def broken_checkpoints(mark: Path) -> dict[str, bytes]:
    return {
        "empty": b"",
        "text": b"state_dict: {}\n",
        "pickle": pickled_checkpoint(mark),
        "arrays": pickled_npz(mark),
        "zip of nothing": b"PK\x05\x06" + bytes(18),
    }


@pytest.mark.parametrize("words", [("transfer",), ("extract", "--member", "a")], ids=lambda words: words[0])
def test_checkpoints_for_rewriting(tmp_path, capsys, words):
    source, target, mark = tmp_path / "in.ckpt", tmp_path / "out.ckpt", tmp_path / "executed"
    for content in broken_checkpoints(mark).values():
        source.write_bytes(content)
        assert "in.ckpt" in refusal(capsys, *words, source, target)
    for change in (
        {"members": [{"name": "a"}]},
        {"id_weights": {"a": ["nowhere"]}, "members": [{"name": "a", "seed": 0, "network": "n", "residual": True}]},
        {"id_weights": {}, "parameters": {"b": 1}},
        {"members": {"a": 1}, "id_weights": {"a": ["nets.a.weight"]}, "parameters": {"a": 1}},
        {"members": ["a"], "id_weights": {"a": ["nets.a.weight"]}, "parameters": {"a": 1}},
        {"optimizer_states": [{"state": [], "param_groups": []}], "id_weights": {"a": []}, "parameters": {"a": 1}},
        {"state_dict": []},
    ):
        torch.save(CHECKPOINT | change, source)
        refusal(capsys, *words, source, target)
    assert {path.name for path in tmp_path.iterdir()} == {"in.ckpt"}


@pytest.fixture
def run(tmp_path) -> RunFolder:
    run = RunFolder(tmp_path / "run")
    run.append(Row("a", epoch, epoch, name, 0.5) for epoch in range(3) for name in NUMBERS)
    run.save_layers([LayerRow("a", "layer01", "conv1", "Conv2d", (4, 3, 3, 3), "")])
    run.save_arrays(2, "cushion", {"a/cushion/layer01/samples": np.arange(5.0)})
    (run.path / "config.yaml").write_text("model: {seeds: 1}\n")
    return run


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("log.csv", b"member,epoch,step,name,value\na,-1,0,x,1\n"),
        ("log.csv", b"\xff\xfe" * 100),
        ("log.csv", b"member,epoch,step,name,value\n\xff,1,0,x,1\n"),
        ("config.yaml", b"a: !!python/object/apply:os.system ['touch executed']"),
    ],
    ids=range(4),
)
def test_a_report_that_cannot_be(run, capsys, name, content):
    (run.path / name).write_bytes(content)
    assert name in refusal(capsys, "report", run.path)
    assert not (run.path / "report.html").exists()


def test_a_report_without_what_is_damaged(run, capsys, tmp_path):
    array = run.path / "measurements" / "epoch=0002" / "cushion.npz"
    array.write_bytes(pickled_npz(tmp_path / "executed", "a/cushion/layer01/samples"))  # others are not read
    (run.path / "layers.csv").write_bytes(b"\xff")
    (run.path / "notes.txt").mkdir()
    assert main(["report", str(run.path)]) == 0
    page = (run.path / "report.html").read_text().replace("<wbr>", "")
    assert all(
        f"Left out, {file}" in page or f"expected a file at {file}" in page for file in (array, run.path / "layers.csv")
    )
    assert "test/error" in page and not (tmp_path / "executed").exists()


def test_fit_with_a_hostile_configuration(tmp_path, monkeypatch, capsys):
    (tmp_path / "hostile.yaml").write_text("model: !!python/object/apply:os.system ['touch executed']")
    monkeypatch.chdir(tmp_path)
    words = ("fit", "--config", "hostile.yaml", "--data", "Digits", "--model.net", "SimplifiedNet")
    assert "hostile.yaml" in refused(*words, capsys=capsys, monkeypatch=monkeypatch)
    assert {path.name for path in tmp_path.iterdir()} == {"hostile.yaml"}


@pytest.mark.parametrize("command", ["validate", "test", "measure"])
def test_a_run_folder_that_somebody_sent(tmp_path, monkeypatch, capsys, command):
    """Its config.yaml would execute a program, its checkpoint is as good as any."""
    run = RunFolder(tmp_path / "sent")
    AtomicCheckpointIO().save_checkpoint(CHECKPOINT, run.checkpoints / "last.ckpt")
    call = {"class_path": "subprocess.call", "dict_kwargs": {"args": ["touch", str(tmp_path / "executed")]}}
    (run.path / "config.yaml").write_text(yaml.safe_dump({"model": {"net": call}, "data": {"class_path": "Digits"}}))
    monkeypatch.chdir(tmp_path)
    words = (command, "--ckpt_path", run.checkpoints / "last.ckpt")
    said = refused(*words, capsys=capsys, monkeypatch=monkeypatch)
    assert "names subprocess.call, which could do anything: expected only classes of nets" in said
    assert {path.name for path in tmp_path.iterdir()} == {"sent"}
