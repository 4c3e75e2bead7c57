"""What an artefact needs beside training runs: numbers computed here, such as closed forms and many small descents.

A computation is made piece by piece. Each piece is one file below the root of runs, written atomically, and kept as long as
what decides it stays the same: an interruption loses one piece, a second asking computes nothing.
"""

import io
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lightning_app.common.errors import UserError
from lightning_app.common.files import write_atomically, writing
from lightning_app.common.provenance import made_with
from lightning_app.common.safe_io import read_npz
from lightning_app.reproduce.packing import home_of_pieces
from lightning_app.reproduce.plan import PAPER, Scale, digest_of, group_of
from lightning_app.runs.lock import claimed

__all__ = ["Arrays", "Computation", "Computed", "Source", "Task", "complete", "found", "keep", "state"]

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
    precision: str = "float64"  # that it computes in, for the record


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
    made: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by piece: what computed it, and seconds

    @property
    def missing(self) -> str:
        """ "3 of 12 pieces"; "" when all are there."""
        have, want = len(self.pieces), len(self.task.computation.pieces)
        return f"{have} of {want} pieces" if have < want else ""

    @property
    def data(self) -> str:
        """Names of the data that the pieces were made of."""
        return ", ".join(dict.fromkeys(str(arrays[DATA]) for arrays in self.pieces.values() if DATA in arrays))


def found(task: Task, root: Path, kept: Path | None = None) -> Computed:
    """The pieces that were made for this task.

    Args:
        root: folder of all runs.
        kept: folder of all results, whose pieces come first; None: only those below the root count.
    """
    files = {piece: _made(task, piece, root, kept) for piece in task.computation.pieces}
    there = {piece: read_npz(file) for piece, file in files.items() if file is not None}
    made = {piece: json.loads(str(arrays.pop(MADE))) for piece, arrays in there.items() if MADE in arrays}
    return Computed(task, there, made)


def state(task: Task, root: Path, kept: Path | None = None) -> str:
    """ "finished", "not run" or "3 of 12 pieces"."""
    pieces = task.computation.pieces
    have, want = sum(_made(task, piece, root, kept) is not None for piece in pieces), len(pieces)
    return "finished" if have == want else f"{have} of {want} pieces" if have else "not run"


def complete(task: Task, root: Path, data: Path, kept: Path | None = None) -> None:
    """Compute whatever pieces are still lacking; nothing if all are there.

    Args:
        root: folder of all runs.
        data: folder of all data.
        kept: folder of all results: what is kept there is not computed again.

    Raises:
        UserError: if data are missing, saying how to get them.
    """
    source = Source(data, stand_in=task.scale is not PAPER)
    with claimed(root / task.group, task.name, f"computation {task.name}"):
        for number, piece in enumerate(task.computation.pieces, 1):
            if _made(task, piece, root, kept) is None:
                print(f"compute {task.name}: {piece} ({number} of {len(task.computation.pieces)})", flush=True)
                started = time.perf_counter()
                arrays = task.computation.compute(source, **task.asked(piece))
                _write(task, piece, root, arrays, time.perf_counter() - started)


def _capped(value: Any, cap: int | None) -> Any:
    return value if cap is None else cap if value is None else min(value, cap)


def keep(task: Task, root: Path, kept: Path) -> bool:
    """Copy the pieces below the root to the results, as evidence; a piece that is kept already stays.

    Returns:
        Whether there is one more.
    """
    home = home_of_pieces(kept, task.paper, task.scale) / task.name
    new = False
    for piece in task.computation.pieces:
        file = task.file(piece, root)
        if not _is_piece(home / file.name, task.digest(piece)) and _is_piece(file, task.digest(piece)):
            with writing(home):
                home.mkdir(parents=True, exist_ok=True)
            write_atomically(home / file.name, file.read_bytes())
            new = True
    return new


def _made(task: Task, piece: str, root: Path, kept: Path | None) -> Path | None:
    """The file of a piece that was made for this task; None if there is none."""
    file = task.file(piece, root)
    evidence = [] if kept is None else [home_of_pieces(kept, task.paper, task.scale) / task.name / file.name]
    return next((each for each in [*evidence, file] if _is_piece(each, task.digest(piece))), None)


def _is_piece(file: Path, digest: str) -> bool:
    try:
        return str(read_npz(file, DIGEST.__eq__)[DIGEST]) == digest
    except (UserError, KeyError):  # not there, or nothing that we wrote
        return False


def _write(task: Task, piece: str, root: Path, arrays: Arrays, seconds: float) -> None:
    made = json.dumps(made_with() | {"seconds": round(seconds, 2)})
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **{DIGEST: task.digest(piece), MADE: made}, **arrays)
    target = task.file(piece, root)
    target.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(target, buffer.getvalue())
