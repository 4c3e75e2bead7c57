"""Computations of an artefact: made piece by piece, each one file below the root of runs, written atomically.

A piece is kept as long as what decides it stays the same: an interruption loses one piece, a second call computes nothing.
"""

import io
import json
import math
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lightning_app.common.errors import UserError
from lightning_app.common.files import with_folder, write_atomically
from lightning_app.common.provenance import made_with
from lightning_app.common.safe_io import read_npz
from lightning_app.papers.parts import PAPER, Arrays, Computation, Scale, Source
from lightning_app.reproduce.job import Job, JobOptions, digest_of
from lightning_app.reproduce.packing import file_digest, home_of_pieces
from lightning_app.runs.lock import claimed

CAPS = {"epochs": "epochs", "seeds": "seeds", "limit": "train_limit"}  # parameter -> what of a scale caps it
DIGEST, DATA = "digest", "data"  # arrays of every file; of those made of data
MADE = "made"  # array of every file: commit, versions, machine and seconds, as JSON


@dataclass(frozen=True)
class ComputationJob(Job):
    """A computation at a scale."""

    paper: str
    computation: Computation
    scale: Scale

    @property
    def name(self) -> str:
        return self.computation.name

    def asked(self, piece: str) -> dict[str, Any]:
        """A piece's parameters under the scale's caps."""
        caps = {key: getattr(self.scale, cap) for key, cap in CAPS.items()}

        def capped(value: Any, cap: int | None) -> Any:
            return value if cap is None else cap if value is None else min(value, cap)

        return {key: capped(value, caps.get(key)) for key, value in self.computation.pieces[piece].items()}

    def digest(self, piece: str) -> str:
        """A digest of everything that decides a piece's numbers, except the data, which are known by their names."""
        return digest_of({"name": self.name, "version": self.computation.version, "asked": self.asked(piece)})

    def file(self, piece: str, root: Path) -> Path:
        return root / self.group / self.name / f"{piece}.npz"

    def home(self, kept: Path) -> Path:
        """Folder of its evidence."""
        return home_of_pieces(kept, self.paper, self.scale) / self.name

    def found(self, root: Path | None, kept: Path | None = None) -> "Computed":
        """The pieces that were made for this job."""
        files = {piece: self._made(piece, root, kept) for piece in self.computation.pieces}
        there = {piece: read_npz(file) for piece, file in files.items() if file is not None}
        made = {piece: json.loads(str(arrays.pop(MADE))) for piece, arrays in there.items() if MADE in arrays}
        return Computed(self, there, made)

    def state(self, root: Path | None, kept: Path | None = None) -> str:
        pieces = self.computation.pieces
        have, want = sum(self._made(piece, root, kept) is not None for piece in pieces), len(pieces)
        return "finished" if have == want else f"{have} of {want} pieces" if have else "not run"

    def complete(self, root: Path, options: JobOptions, kept: Path | None = None) -> None:
        source = Source(options.data, stand_in=self.scale is not PAPER)
        with claimed(root / self.group, self.name, f"computation {self.name}"):
            for number, piece in enumerate(self.computation.pieces, 1):
                if self._made(piece, root, kept) is None:
                    print(f"compute {self.name}: {piece} ({number} of {len(self.computation.pieces)})", flush=True)
                    started = time.perf_counter()
                    arrays = self.computation.compute(source, **self.asked(piece))
                    self._write(piece, root, arrays, time.perf_counter() - started)

    def keep(self, root: Path, kept: Path, arrays: Collection[tuple[str, float]] = ()) -> bool:
        new = False
        for piece in self.computation.pieces:
            file, target = self.file(piece, root), self.home(kept) / f"{piece}.npz"
            if not _is_piece(target, self.digest(piece)) and _is_piece(file, self.digest(piece)):
                write_atomically(with_folder(target), file.read_bytes())
                new = True
        return new

    def _made(self, piece: str, root: Path | None, kept: Path | None) -> Path | None:
        """The file of a piece that was made for this job; None if there is none."""
        files = [] if kept is None else [self.home(kept) / f"{piece}.npz"]
        files += [] if root is None else [self.file(piece, root)]
        return next((file for file in files if _is_piece(file, self.digest(piece))), None)

    def _write(self, piece: str, root: Path, arrays: Arrays, seconds: float) -> None:
        made = json.dumps(made_with() | {"seconds": round(seconds, 2)})
        content: dict[str, Any] = {DIGEST: self.digest(piece), MADE: made, **arrays}
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **content)
        write_atomically(with_folder(self.file(piece, root)), buffer.getvalue())


@dataclass(frozen=True)
class Computed:
    """The pieces of a computation that are there: their arrays, in the computation's order."""

    job: ComputationJob
    pieces: Mapping[str, Arrays]
    made: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by piece: what computed it, and seconds

    @property
    def data(self) -> str:
        """Names of the data that the pieces were made of."""
        return ", ".join(dict.fromkeys(str(arrays[DATA]) for arrays in self.pieces.values() if DATA in arrays))

    @property
    def standing(self) -> str:
        """ "computed on MNIST", "3 of 12 pieces on MNIST"."""
        have, want = len(self.pieces), len(self.job.computation.pieces)
        return f"{f'{have} of {want} pieces' if have < want else 'computed'}{f' on {self.data}' if self.data else ''}"

    def record(self, out: Path) -> dict[str, Any]:
        """What a verdict rests on, for its record."""
        job, home, made = self.job, self.job.home(out), [*self.made.values()]
        files = {piece: home / f"{piece}.npz" for piece in self.pieces}
        kinds = dict.fromkeys(json.dumps({k: value for k, value in each.items() if k != "seconds"}) for each in made)
        return {
            "computation": job.name,
            "folder": home.relative_to(out).as_posix(),
            "files": {file.name: file_digest(file) for file in files.values() if file.exists()},
            "digests": {piece: job.digest(piece) for piece in self.pieces},
            "of_pieces": len(job.computation.pieces),
            "precision": job.computation.precision,
            "data": self.data or None,
            "seconds": round(math.fsum(each["seconds"] for each in made), 1),  # sum() rounds as its Python does
            "made": [json.loads(kind) for kind in kinds],
        }


def _is_piece(file: Path, digest: str) -> bool:
    try:
        return str(read_npz(file, DIGEST.__eq__)[DIGEST]) == digest
    except (UserError, KeyError):  # not there, or nothing that we wrote
        return False
