"""Final weights as they are kept with results: they say what the checkpoint said, and training does not go on from them."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from lightning_app.common.errors import UserError
from lightning_app.runs import RunFolder
from lightning_app.runs.checkpoints import CARRIED_OVER, AtomicCheckpointIO, packed_weights
from lightning_app.runs.folder import WEIGHTS
from tests.helpers import TINY, command

RUN = Path("runs", "digits", "quickstart")
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool)


def loaded(file: Path, content: bytes) -> dict:
    file.write_bytes(content)
    return AtomicCheckpointIO().load_checkpoint(file)


@given(
    shapes=st.dictionaries(
        st.text("abc.0", min_size=1, max_size=8), st.lists(st.integers(0, 3), max_size=3), min_size=1
    ),
    dtype=st.sampled_from(DTYPES),
    epoch=st.integers(0, 10**6),
)
def test_weights_and_progress_come_back_bit_for_bit(tmp_path_factory, shapes, dtype, epoch):
    weights = {name: (100 * torch.randn(shape)).to(dtype) for name, shape in shapes.items()}
    checkpoint = {"state_dict": weights, "epoch": epoch, "global_step": 7, "callbacks": {"some": 1}}
    checkpoint |= {"loops": {"fit_loop": {"completed": [epoch, 1.5, None]}}}
    checkpoint |= {"optimizer_states": [{"state": {0: torch.zeros(3)}}]}
    back = loaded(tmp_path_factory.mktemp("weights") / WEIGHTS, packed_weights(checkpoint))
    assert back["state_dict"].keys() == weights.keys()
    for name, tensor in weights.items():
        assert back["state_dict"][name].dtype == dtype
        assert torch.equal(back["state_dict"][name], tensor)
    assert (back["epoch"], back["global_step"], back["loops"]) == (epoch, 7, checkpoint["loops"])
    assert "optimizer_states" not in back
    assert packed_weights(checkpoint) == packed_weights(checkpoint)


def test_tensors_that_share_memory_and_views_are_packed_too(tmp_path):
    """Safetensors refuses shared memory: an average of weights, or tied ones, may have it."""
    whole = torch.arange(12.0).reshape(3, 4)
    weights = {"whole": whole, "turned": whole.T, "row": whole[1]}
    back = loaded(tmp_path / WEIGHTS, packed_weights({"state_dict": weights}))
    assert all(torch.equal(back["state_dict"][name], tensor) for name, tensor in weights.items())


def test_weights_alone_are_told_apart_and_what_to_do_is_said(tmp_path):
    file = tmp_path / "net.safetensors"
    with pytest.raises(UserError, match="found no such file"):
        AtomicCheckpointIO().load_checkpoint(file)
    save_file({"weight": torch.zeros(3)}, file)
    said = r"has only weights, and does not say how far training had come: measure them with .* --weights"
    with pytest.raises(UserError, match=said):
        AtomicCheckpointIO().load_checkpoint(file)
    save_file({"weight": torch.zeros(3)}, file, {"format": "pt"})
    with pytest.raises(UserError, match=said):
        AtomicCheckpointIO().load_checkpoint(file)


@given(end=st.integers(0, 10_000))
def test_a_truncated_file_is_an_error_message(tmp_path_factory, end):
    content = packed_weights({"state_dict": {"weight": torch.arange(30.0)}, "epoch": 3})
    with pytest.raises(UserError, match=r"weights\.safetensors is not a complete \.safetensors file") as error:
        loaded(tmp_path_factory.mktemp("weights") / WEIGHTS, content[: end % len(content)])
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("said", ["{", "3", "[]", '"words"', "null"])
def test_metadata_that_somebody_wrote_is_an_error_message(tmp_path, said):
    file = tmp_path / WEIGHTS
    save_file({"weight": torch.zeros(3)}, file, {"checkpoint": said})
    with pytest.raises(UserError, match=str(file)):
        AtomicCheckpointIO().load_checkpoint(file)


FEW = ("--trainer.callbacks", "TrainingMetrics", "--trainer.callbacks+", "LayerCushion")


@pytest.fixture(scope="module")
def packed(tmp_path_factory) -> Path:
    """Folder with a run of one epoch, whose final weights lie beside its checkpoint."""
    home = tmp_path_factory.mktemp("packed")
    done = command(*TINY, *FEW, "--trainer.max_epochs", "1", cwd=home)
    assert done.returncode == 0, done.stderr
    checkpoints = home / RUN / "checkpoints"
    content = packed_weights(AtomicCheckpointIO().load_checkpoint(checkpoints / "last.ckpt"))
    (checkpoints / WEIGHTS).write_bytes(content)
    return home


def numbers(output: str) -> list[list[str]]:
    """The table that ends the output."""
    return [line.split() for line in output.splitlines()[-3:]]


@pytest.mark.slow
def test_a_real_checkpoint_keeps_what_it_says_of_itself(packed):
    """All that a checkpoint has besides the optimizer's and the callbacks' state, or it is known not to be needed."""
    folder = packed / RUN / "checkpoints"
    whole, kept = (AtomicCheckpointIO().load_checkpoint(folder / name) for name in ("last.ckpt", WEIGHTS))
    assert all(torch.equal(kept["state_dict"][name], tensor) for name, tensor in whole["state_dict"].items())
    for key in set(CARRIED_OVER) & whole.keys():
        assert kept[key] == json.loads(json.dumps(whole[key])), key
    assert (folder / WEIGHTS).stat().st_size < (folder / "last.ckpt").stat().st_size / 2


@pytest.mark.slow
def test_evaluated_it_gives_the_checkpoints_numbers(packed):
    shown = []
    for name in ("last.ckpt", WEIGHTS):
        done = command("test", *TINY[1:], "--ckpt_path", RUN / "checkpoints" / name, cwd=packed)
        assert done.returncode == 0, done.stderr
        shown.append(numbers(done.stdout))
    assert shown[0] == shown[1]
    assert any("." in word for word in shown[0][-1])


@pytest.mark.slow
def test_measured_it_gives_the_numbers_that_were_logged_in_training(packed, tmp_path):
    """As a stranger has it: the packed folder elsewhere, without its checkpoint."""
    shutil.copytree(packed / RUN, tmp_path / "kept")
    (tmp_path / "kept" / "checkpoints" / "last.ckpt").unlink()
    done = command(
        "measure", "--ckpt_path", tmp_path / "kept" / "checkpoints" / WEIGHTS, *FEW, "--out", "out", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    found, trained = (
        run.log().query("epoch == 1 and name.str.startswith('cushion/')").set_index(["member", "name"])["value"]
        for run in (RunFolder(tmp_path / "out"), RunFolder(packed / RUN))
    )
    assert len(found) and found.to_dict() == pytest.approx(trained.to_dict(), rel=1e-6, nan_ok=True)


@pytest.mark.slow
def test_training_does_not_go_on_from_it(packed):
    before = {path: path.stat().st_mtime_ns for path in packed.rglob("*") if path.is_file()}
    words = (*TINY, *FEW, "--ckpt_path", RUN / "checkpoints" / WEIGHTS)
    done = command(*words, cwd=packed)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "training cannot be resumed from this file: it holds the final weights of a finished run" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert {path: path.stat().st_mtime_ns for path in packed.rglob("*") if path.is_file()} == before
