"""What an artefact needs beside training runs: numbers computed here, such as closed forms and many small descents.

A computation is made piece by piece. Each piece is one file below the root of runs, written atomically, and kept as long as
what decides it stays the same: an interruption loses one piece, a second asking computes nothing.
"""

import io
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lightning_app.errors import UserError
from lightning_app.reproduce.plan import PAPER, Scale, digest_of, group_of
from lightning_app.runs.folder import write_atomically
from lightning_app.runs.lock import claimed
from lightning_app.runs.provenance import made_with
from lightning_app.untrusted import read_npz

__all__ = ["Arrays", "Computation", "Computed", "Source", "Task", "complete", "found", "state"]

Arrays = Mapping[str, np.ndarray]
CAPS = {"epochs": "epochs", "seeds": "seeds", "limit": "train_limit"}  # parameter -> what of a scale caps it
DIGEST, DATA = "digest", "data"  # arrays of every file; of those made of data
MADE = "made"  # array of every file: commit, versions, machine and seconds, as JSON


@dataclass(frozen=True)
class Source:
    """Where data are looked for."""

    root: Path
    stand_in: bool  # may other data stand in for missing ones?


@dataclass(frozen=True)
class Computation:
    """Named arrays as functions of parameters.

    ``compute`` gets the source of data and a piece's parameters as keywords. An array ``data`` of its names the data it
    used. A scale caps the parameters ``epochs``, ``seeds`` and ``limit`` (of samples; None is all), and nothing else.
    """

    name: str  # the folder's
    compute: Callable[..., Arrays]
    pieces: Mapping[str, Mapping[str, Any]]  # file's stem -> parameters, as JSON has them
    version: int = 1  # to be raised when the same parameters give other numbers


@dataclass(frozen=True)
class Task:
    """A computation at a scale: what a run's plan is to a run."""

    paper: str
    computation: Computation
    scale: Scale

    @property
    def name(self) -> str:
        return self.computation.name

    @property
    def group(self) -> str:
        return group_of(self.paper, self.scale)

    def asked(self, piece: str) -> dict[str, Any]:
        """A piece's parameters under the scale's caps."""
        caps = {key: getattr(self.scale, cap) for key, cap in CAPS.items()}
        return {key: _capped(value, caps.get(key)) for key, value in self.computation.pieces[piece].items()}

    def digest(self, piece: str) -> str:
        """16 hex digits of all that decides a piece's numbers but the data below the root, which are what they are called."""
        return digest_of({"name": self.name, "version": self.computation.version, "asked": self.asked(piece)})

    def file(self, piece: str, root: Path) -> Path:
        return root / self.group / self.name / f"{piece}.npz"


@dataclass(frozen=True)
class Computed:
    """What is there of a task: arrays by piece, in the computation's order."""

    task: Task
    pieces: Mapping[str, Arrays]

    @property
    def missing(self) -> str:
        """ "3 of 12 pieces"; "" when all are there."""
        have, want = len(self.pieces), len(self.task.computation.pieces)
        return f"{have} of {want} pieces" if have < want else ""

    @property
    def data(self) -> str:
        """Names of the data that the pieces were made of."""
        return ", ".join(dict.fromkeys(str(arrays[DATA]) for arrays in self.pieces.values() if DATA in arrays))


def found(task: Task, root: Path) -> Computed:
    """The pieces below the root of all runs that were made for this task."""
    there = {piece: _read(task, piece, root) for piece in task.computation.pieces if _is_made(task, piece, root)}
    return Computed(task, there)


def state(task: Task, root: Path) -> str:
    """ "finished", "not run" or "3 of 12 pieces"."""
    have, want = sum(_is_made(task, piece, root) for piece in task.computation.pieces), len(task.computation.pieces)
    return "finished" if have == want else f"{have} of {want} pieces" if have else "not run"


def complete(task: Task, root: Path, data: Path) -> None:
    """Compute whatever pieces are still lacking; nothing if all are there.

    Args:
        root: folder of all runs.
        data: folder of all data.

    Raises:
        UserError: if data are missing, saying how to get them.
    """
    source = Source(data, stand_in=task.scale is not PAPER)
    with claimed(root / task.group, task.name, f"computation {task.name}"):
        for number, piece in enumerate(task.computation.pieces, 1):
            if not _is_made(task, piece, root):
                print(f"compute {task.name}: {piece} ({number} of {len(task.computation.pieces)})", flush=True)
                started = time.perf_counter()
                arrays = task.computation.compute(source, **task.asked(piece))
                _write(task, piece, root, arrays, time.perf_counter() - started)


def _capped(value: Any, cap: int | None) -> Any:
    return value if cap is None else cap if value is None else min(value, cap)


def _is_made(task: Task, piece: str, root: Path) -> bool:
    try:
        return str(read_npz(task.file(piece, root), DIGEST.__eq__)[DIGEST]) == task.digest(piece)
    except (UserError, KeyError):  # not there, or nothing that we wrote
        return False


def _read(task: Task, piece: str, root: Path) -> Arrays:
    return read_npz(task.file(piece, root))


def _write(task: Task, piece: str, root: Path, arrays: Arrays, seconds: float) -> None:
    made = json.dumps(made_with() | {"seconds": round(seconds, 2)})
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **{DIGEST: task.digest(piece), MADE: made}, **arrays)
    target = task.file(piece, root)
    target.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(target, buffer.getvalue())
