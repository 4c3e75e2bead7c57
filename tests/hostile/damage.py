"""Files as this program writes them, and what may have become of them on their way."""

import io
import pickle
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lightning_app.common.safe_io import read_npy, read_npz, read_yaml
from lightning_app.modules.resume import check_form
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
CONFIG = """\
model:
  seeds: 0-1
  net: &net
    class_path: SimplifiedNet
    init_args: {depth: 20}
  twin: *net
lr: [0.1, .5]
"""


class Payload:
    """Unpickled, it makes a file."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):
        return Path.touch, (self.mark,)


@dataclass(frozen=True)
class Kind:
    """One kind of file of a run folder."""

    name: str  # within the folder
    write: Callable[[RunFolder], Any]
    read: Callable[[RunFolder], Any]
    sealed: bool = False  # does a checksum cover all that it says?


def _arrays() -> dict[str, np.ndarray]:
    return {"a/samples": np.arange(50.0), "a/mask": np.eye(4, dtype=bool), "a/name": np.array("layer10")}


def _save_npy(run: RunFolder) -> None:
    np.save(run.path / "images.npy", np.arange(96, dtype=np.uint8).reshape(2, 4, 4, 3))


def _load(run: RunFolder) -> dict:
    checkpoint = AtomicCheckpointIO().load_checkpoint(run.checkpoints / "last.ckpt")
    check_form(checkpoint)
    return checkpoint


def _rows() -> list[Row]:
    return [
        Row(member, epoch, 5 * epoch, "test/error", 0.5 / (1 + epoch)) for epoch in range(4) for member in ("", "a")
    ]


KINDS = (
    Kind("images.npy", _save_npy, lambda run: read_npy(run.path / "images.npy")),
    Kind(
        "measurements/epoch=0001/cushion.npz",
        lambda run: run.save_arrays(1, "cushion", _arrays()),
        lambda run: read_npz(run.path / "measurements/epoch=0001/cushion.npz"),
        sealed=True,
    ),
    Kind(
        "checkpoints/last.ckpt",
        lambda run: AtomicCheckpointIO().save_checkpoint(CHECKPOINT, run.checkpoints / "last.ckpt"),
        _load,
        sealed=True,
    ),
    Kind("log.csv", lambda run: run.append(_rows()), lambda run: run.log()),
    Kind(
        "layers.csv",
        lambda run: run.save_layers([LayerRow("a", "layer01", "conv, 1", "Conv2d", (4, 3, 3, 3), "")] * 3),
        lambda run: run.layers(),
    ),
    Kind("notes.txt", lambda run: run.add_notes(["no cushion: µ", "no risk"]), lambda run: run.notes()),
    Kind(
        "config.yaml",
        lambda run: (run.path / "config.yaml").write_text(CONFIG),
        lambda run: read_yaml(run.path / "config.yaml"),
    ),
    Kind("finished", lambda run: run.finish(200), lambda run: run.finished),
    Kind("id", lambda run: run.identifier(), lambda run: run.identifier()),
)


def made(kind: Kind, folder: Path) -> tuple[RunFolder, Path]:
    """A run folder with one whole file of the kind."""
    run = RunFolder(folder)
    folder.mkdir(exist_ok=True)
    kind.write(run)
    return run, folder / kind.name


def same(one: Any, other: Any) -> bool:
    """Equal down to every array's dtype and values."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    return type(one) is type(other) and one == other


def damaged(content: bytes, rng: random.Random) -> bytes:
    """Cut off, some bytes changed, some put in, a piece left out or doubled."""
    where, length = rng.randrange(len(content)), rng.randrange(1, 20)
    match rng.randrange(5):
        case 0:
            return content[:where]
        case 1:
            flipped = bytearray(content)
            for _ in range(rng.randrange(1, 4)):
                flipped[rng.randrange(len(content))] ^= rng.randrange(1, 256)
            return bytes(flipped)
        case 2:
            return content[:where] + rng.randbytes(length) + content[where:]
        case 3:
            return content[:where] + content[where + length :]
        case _:
            return content[:where] + content[max(0, where - length) :]


def pickled_npy(mark: Path) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.array([Payload(mark)], dtype=object), allow_pickle=True)
    return buffer.getvalue()


def pickled_npz(mark: Path) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=True, a=np.array([Payload(mark)], dtype=object))
    return buffer.getvalue()


def pickled_checkpoint(mark: Path) -> bytes:
    buffer = io.BytesIO()
    torch.save({**CHECKPOINT, "callbacks": {"x": Payload(mark)}}, buffer)
    return buffer.getvalue()


PICKLES = (lambda mark: pickle.dumps(Payload(mark)), pickled_npy, pickled_npz, pickled_checkpoint)
