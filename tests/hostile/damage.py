"""Files as this program writes them, what may have become of them on their way, and files that execute something."""

import io
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from lightning_app.common.safe_io import read_npy, read_npz, read_yaml
from lightning_app.runs import LayerRow, Row, RunFolder
from lightning_app.runs.checkpoints import AtomicCheckpointIO

CHECKPOINT = {
    "epoch": 2,
    "global_step": 10,
    "state_dict": {"nets.a.weight": torch.arange(60.0).reshape(3, 20), "nets.a.bias": torch.zeros(3)},
    "members": [{"name": "a", "seed": 0, "network": "Linear", "residual": None}],
    "optimizer_states": [
        {"state": {0: {"momentum_buffer": torch.ones(3)}}, "param_groups": [{"lr": 0.1, "params": [0]}]}
    ],
}
CONFIG = "model:\n  seeds: 0-1\n  net: &net\n    init_args: {depth: 20}\n  twin: *net\nlr: [0.1, .5]\n"
ARRAYS = {"a/samples": np.arange(50.0), "a/mask": np.eye(4, dtype=bool), "a/name": np.array("layer10")}
ROWS = [Row(member, epoch, epoch, "test/error", 0.5 / (1 + epoch)) for epoch in range(4) for member in ("", "a")]


@dataclass(frozen=True)
class Kind:
    """One kind of file of a run folder."""

    name: str  # within the folder
    write: Callable[[RunFolder], Any]
    read: Callable[[RunFolder], Any]
    sealed: bool = False  # does a checksum cover all of its content?


def _load(run: RunFolder) -> dict:
    return AtomicCheckpointIO().load_checkpoint(run.checkpoints / "last.ckpt")


NPZ, CKPT = "measurements/epoch=0001/cushion.npz", "checkpoints/last.ckpt"
LAYERS = [LayerRow("a", "layer01", "conv, 1", "Conv2d", (4, 3, 3, 3), "")] * 3
IMAGES = np.arange(96, dtype=np.uint8).reshape(2, 4, 4, 3)
_KINDS = (
    Kind("images.npy", lambda r: np.save(r.path / "images.npy", IMAGES), lambda r: read_npy(r.path / "images.npy")),
    Kind(NPZ, lambda r: r.save_arrays(1, "cushion", ARRAYS), lambda r: read_npz(r.path / NPZ), True),
    Kind(CKPT, lambda r: AtomicCheckpointIO().save_checkpoint(CHECKPOINT, r.path / CKPT), _load, True),
    Kind("log.csv", lambda r: r.append(ROWS), lambda r: r.log()),
    Kind("layers.csv", lambda r: r.save_layers(LAYERS), lambda r: r.layers()),
    Kind("notes.txt", lambda r: r.add_notes(["no cushion: µ", "no risk"]), lambda r: r.notes()),
    Kind(
        "config.yaml",
        lambda r: (r.path / "config.yaml").write_text(CONFIG),
        lambda r: read_yaml(r.path / "config.yaml"),
    ),
    Kind("finished", lambda r: r.finish(200), lambda r: r.finished),
    Kind("id", lambda r: r.identifier(), lambda r: r.identifier()),
)
KINDS = {kind.name.split("/")[-1]: kind for kind in _KINDS}


def made(kind: Kind, folder: Path) -> tuple[RunFolder, Path]:
    """A run folder with one whole file of the kind."""
    folder.mkdir(exist_ok=True)
    run = RunFolder(folder)
    kind.write(run)
    return run, folder / kind.name


@st.composite
def damage(draw: st.DrawFn) -> Callable[[bytes], bytes]:
    """A piece of a file replaced, which is also cut off, left out, doubled or put in."""
    where, length, new = draw(st.floats(0, 1)), draw(st.integers(0, 20)), draw(st.binary(max_size=20))
    cut, double = draw(st.booleans()), draw(st.booleans())

    def damaged(content: bytes) -> bytes:
        start = int(where * (len(content) - 1))
        piece = content[start : start + length] * 2 if double else new
        return content[:start] + piece + (b"" if cut else content[start + length :])

    return damaged


class Payload:
    """Unpickled, it makes a file."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):
        return Path.touch, (self.mark,)


def _saved(save: Callable[[io.BytesIO], Any]) -> bytes:
    buffer = io.BytesIO()
    save(buffer)
    return buffer.getvalue()


def pickled_npy(mark: Path) -> bytes:
    return _saved(lambda file: np.save(file, np.array([Payload(mark)], dtype=object), allow_pickle=True))


def pickled_npz(mark: Path, name: str = "a") -> bytes:
    return _saved(lambda file: np.savez(file, allow_pickle=True, **{name: np.array([Payload(mark)], dtype=object)}))


def pickled_checkpoint(mark: Path) -> bytes:
    return _saved(lambda file: torch.save({**CHECKPOINT, "callbacks": {"x": Payload(mark)}}, file))


PICKLES = {  # who would read them carelessly -> how they are made
    lambda file: pickle.loads(file.read_bytes()): lambda mark: pickle.dumps(Payload(mark)),
    lambda file: np.load(file, allow_pickle=True): pickled_npy,
    lambda file: np.load(file, allow_pickle=True)["a"]: pickled_npz,
    lambda file: torch.load(file, weights_only=False): pickled_checkpoint,
}
