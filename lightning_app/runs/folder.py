"""The run folder: everything a figure needs, in plain files.

    runs/<group>/<name>/
        config.yaml                         the full configuration
        log.csv                             one number a row: member,epoch,step,name,value; rows are added, and those of
                                            steps after its checkpoint are removed by a resume. Of a run packed as
                                            evidence: log.csv.xz
        measurements/epoch=0012/<family>.npz   the arrays behind the numbers: samples, histograms; epoch=0012.250000000
        members.csv                         the nets of the run: arm, seed, class, plain or residual, twin of which
        layers.csv                          which layers each net has, and why one cannot be measured
        keys.csv                            what the numbers of a user's own measures mean
        notes.txt                           what a measurement could not measure, one message a line
        made.jsonl                          a line for each start and resume: commit, versions, machine, command, data
        checkpoints/  wandb/  report.html  id
        finished                            the number of epochs, once training came to its end

``epoch`` counts completed epochs: 0 is before training, 200 after the 200th, 199.25 when a quarter of the batches of the 200th
has been trained on. ``step`` is the optimizer steps so far.
After a resume the same key may be written again: the later row wins and readers see each key once. ``member`` is the
name of one net of the run's bank, or empty for what belongs to the whole run.

This file knows no torch and no Lightning, so that the report starts fast.
"""

import csv
import io
import itertools
import json
import os
import re
import shutil
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from lightning_app.common.errors import UserError
from lightning_app.common.files import with_folder, with_home, write_atomically, writing
from lightning_app.common.numbers import whole
from lightning_app.common.safe_io import read_bytes, read_npz, read_text, read_xz, read_yaml

if TYPE_CHECKING:
    import pandas as pd

CONFIG = "config.yaml"
EARLIER_CONFIG = "config.before-resume-{}.yaml"  # 1, 2, ...
LOG = "log.csv"
LOG_PACKED = "log.csv.xz"  # of a run that is kept as evidence and not written to any more
LOGS = {LOG, LOG_PACKED}
ARRAYS = "measurements"
CHECKPOINTS = "checkpoints"
LAST = "last.ckpt"
WEIGHTS = "weights.safetensors"  # of a run packed as evidence: the final weights, without the optimizer's state
ID = "id"
MEMBERS = "members.csv"
LAYERS = "layers.csv"
KEYS = "keys.csv"
NOTES = "notes.txt"
MADE = "made.jsonl"
FINISHED = "finished"
SMALL_FILES = (CONFIG, MADE, MEMBERS, LAYERS, KEYS, NOTES, ID, FINISHED)
BOOLEANS = {"true": True, "false": False, "": None}
COLUMNS = ("member", "epoch", "step", "name", "value")
KEY_COLUMNS = ("name", "meaning")
EPOCH = re.compile(r"epoch=((?:[0-9]{4}|[1-9][0-9]{4,8})(?:\.[0-9]{9})?)")  # as `epoch_folder` spells them
COUNTED = re.compile(r"[0-9]{1,9}(\.[0-9]*)?")  # an epoch in the log
STOPPED = re.compile(r"stopped in epoch (\d{1,9})(: .*?\bmember '([^']+)')")  # the note of `add_divergence`
WENT_ON = r"stopped in epoch \1, and went on later\2"
T = TypeVar("T")
LATEST = 10**9  # epochs and steps: more is damage, and no axis could show it


class Row(NamedTuple):
    """One logged number."""

    member: str  # "" for the whole run
    epoch: float  # completed epochs, within one with a fraction
    step: int  # optimizer steps so far
    name: str  # "test/error", "cushion/layer10/median", ...
    value: float


class MemberRow(NamedTuple):
    """One net of the run, so that nothing need be guessed from its name. "" and None: unknown."""

    name: str  # as in the log, "residual-seed03"
    arm: str  # "residual"
    seed: int | None
    class_path: str  # "lightning_app.networks.simplified.SimplifiedNet"
    residual: bool | None  # has it identity connections? None also of nets that exist in one form only
    twin_of: str  # name of the member that it was transferred from; "" for a net with weights of its own
    depth: int | None  # None also of nets whose size is called otherwise, as `blocks` of a ResidualMLP
    parameters: int | None  # how many numbers it has


class LayerRow(NamedTuple):
    """One layer of one net."""

    member: str
    layer: str  # its name in the keys, "layer07"; "" for what measures do not know
    path: str  # of the module or parameter in the net, "layer1.0.conv1"
    kind: str  # "Conv2d"
    shape: tuple[int, ...]  # of its weight
    reason: str  # why it has no cushion; "" where it has one


@dataclass(frozen=True)
class RunFolder:
    """One run's files: appended to while it trains, read back as pandas frames and numpy arrays."""

    path: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", Path(self.path))

    def append(self, rows: Iterable[Row]) -> None:
        """Add rows to log.csv in one write, starting the file (and mending a torn last line) when needed.

        MachineError: if it cannot be written. Half a line may then stand at its end, which no reader takes.
        """
        log = with_folder(self.path / LOG)
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        with writing(log):
            if log.exists() and log.stat().st_size:
                _drop_torn_line(log)
            if not log.exists() or not log.stat().st_size:
                writer.writerow(COLUMNS)
            writer.writerows((row.member, row.epoch, row.step, row.name, repr(float(row.value))) for row in rows)
            with log.open("a", encoding="utf-8", newline="") as file:
                file.write(text.getvalue())
                file.flush()
                os.fsync(file.fileno())  # a checkpoint on the disk must not know of epochs that the log there does not

    def save_arrays(self, epoch: float, family: str, arrays: Mapping[str, np.ndarray]) -> Path:
        """Write one family's arrays of one epoch; a repeated epoch replaces them."""
        target = with_folder(self._arrays_path(epoch, family))
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **dict[str, Any](arrays))  # numpy types an option of its own among them
        write_atomically(target, buffer.getvalue())
        return target

    def save_members(self, rows: Iterable[MemberRow]) -> None:
        """Write which nets the run has; those of an earlier part of the run stay."""
        known = {row.name: row for row in [*(self._undamaged(MEMBERS, self.members) or []), *rows]}
        _save_rows(self.path / MEMBERS, MemberRow._fields, known.values())

    def save_layers(self, rows: Iterable[LayerRow]) -> None:
        """Write which layers the nets have."""
        _save_rows(self.path / LAYERS, LayerRow._fields, rows)

    def describe_keys(self, meanings: Mapping[str, str]) -> None:
        """Write what numbers mean, by their name; names that are described already get the new meaning."""
        known = self._undamaged(KEYS, self.described_keys) or {}
        _save_rows(self.path / KEYS, KEY_COLUMNS, {**known, **meanings}.items())

    def add_notes(self, notes: Iterable[str]) -> None:
        """Write down what could not be measured; what is noted already is not repeated."""
        new = [" ".join(note.split()) for note in notes]
        known = dict.fromkeys([*(self._undamaged(NOTES, self.notes) or []), *new])
        write_atomically(with_folder(self.path / NOTES), "".join(f"{note}\n" for note in known).encode())

    def add_divergence(self, epoch: int, why: str) -> None:
        """Note that training stopped in this epoch, with the message that names the net that diverged."""
        self.add_notes([f"stopped in epoch {epoch}: {why}"])

    def divergence(self) -> tuple[str, int] | None:
        """The net whose divergence ended training, and in which epoch; None if none is noted, or training has continued since.

        UserError: if the notes are not text.
        """
        found = [match for note in self.notes() if (match := STOPPED.match(note))]
        return (found[-1][3], int(found[-1][1])) if found else None

    def _undamaged(self, name: str, read: Callable[[], T]) -> T | None:
        """What a file says so far; None for a damaged one, which is renamed to ``damaged-...`` and does not stop the run."""
        try:
            return read()
        except UserError:
            with writing(self.path / name):
                os.replace(self.path / name, self.path / f"damaged-{name}")
            return None

    def add_made(self, facts: Mapping[str, Any]) -> None:
        """Record what trains from here on: one JSON object per line, one line for each start and resume."""
        earlier = "".join(f"{json.dumps(part)}\n" for part in self.made())
        write_atomically(with_folder(self.path / MADE), f"{earlier}{json.dumps(dict(facts))}\n".encode())

    def identifier(self) -> str:
        """The run's own id, drawn once and kept in the folder: the same after a resume, different from all others.

        UserError: if the file does not hold an id, which becomes a part of W&B's paths.
        """
        file = self.path / ID
        if not file.exists():
            write_atomically(with_folder(file), f"{uuid.uuid4().hex[:12]}\n".encode())
        found = read_text(file).strip()
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", found):
            said = f"an id of letters, digits, - and _, got {found[:40]!r}"
            raise UserError(f"{file} should hold {said}: remove the file.")
        return found

    def reopen(self) -> None:
        """Mark the run as not finished, as training begins or continues; a noted divergence is marked as passed."""
        (self.path / FINISHED).unlink(missing_ok=True)
        noted = self._undamaged(NOTES, self.notes) or []
        if any(map(STOPPED.match, noted)):
            text = "".join(f"{STOPPED.sub(WENT_ON, note)}\n" for note in noted)
            write_atomically(self.path / NOTES, text.encode())

    def finish(self, epochs: int) -> None:
        """Note that training came to its end after so many epochs."""
        write_atomically(self.path / FINISHED, f"{epochs}\n".encode())

    def begin(self) -> None:
        """Remove the half-written files that a killed process left. To be called before anything else is written here."""
        for folder in (self.path, self.checkpoints, *(self.path / ARRAYS).glob("*")):  # not of runs in folders below
            for file in folder.glob(".*.tmp"):
                file.unlink(missing_ok=True)

    def drop_after(self, step: int) -> None:
        """Remove log rows of later optimizer steps, and arrays of epochs that have no row left.

        MachineError: if the folder cannot be written.
        """
        log = self.path / LOG
        with writing(log):
            if not log.exists() or not log.stat().st_size:
                return
            _drop_torn_line(log)
            with log.open(encoding="utf-8", newline="") as file:
                rows = [*csv.reader(file)]
            later = [len(row) == len(COLUMNS) and row[2].isdecimal() and int(row[2]) > step for row in rows]
            if not any(later):
                return
            kept, gone = ([row for row, is_later in zip(rows, later) if is_later == of] for of in (False, True))
            csv.writer(text := io.StringIO(), lineterminator="\n").writerows(kept)
            write_atomically(log, text.getvalue().encode())
            for epoch in {row[1] for row in gone} - {row[1] for row in kept if len(row) > 1}:
                shutil.rmtree(self.path / ARRAYS / epoch_folder(float(epoch)), ignore_errors=True)

    @property
    def label(self) -> str:
        return os.path.basename(os.path.abspath(self.path))  # of "." too

    @property
    def checkpoints(self) -> Path:
        return self.path / CHECKPOINTS

    @property
    def finished(self) -> int | None:
        """After how many epochs training came to its end; None while it runs, or when it was interrupted."""
        file = self.path / FINISHED
        if not file.exists():
            return None
        text = read_text(file).strip()
        if not re.fullmatch(r"[0-9]{1,9}", text):
            said = f"a number of epochs, got {text[:40]!r}"
            raise UserError(f"{file} should hold {said}: remove it if the run is not finished.")
        return int(text)

    @property
    def has_log(self) -> bool:
        return any((self.path / name).exists() for name in (LOG, LOG_PACKED))

    @property
    def last_epoch(self) -> int | None:
        """Completed epochs as of the last whole row of the log, read from its end; None without any."""
        log = self.path / LOG
        if log.exists():
            with log.open("rb") as file:
                file.seek(max(0, log.stat().st_size - 4096))
                tail = file.read(4096)  # no more: a device has no end
        else:
            tail = read_xz(packed)[-4096:] if (packed := self.path / LOG_PACKED).exists() else b""
        lines = tail.decode(errors="replace").split("\n")[1:-1]  # less the head or a part of a line, and a torn one
        found = [row[1] for row in csv.reader(lines) if len(row) == len(COLUMNS)]
        return int(float(found[-1])) if found and COUNTED.fullmatch(found[-1]) else None

    def config(self) -> dict:
        """config.yaml as nested dicts; empty when the run has none. A UserError if it is not YAML, or no mapping."""
        file = self.path / CONFIG
        return read_yaml(file) if file.exists() else {}

    def earlier_configs(self) -> list[dict]:
        """config.yaml as it was before each resume that changed it, oldest first."""
        files = (self.path / EARLIER_CONFIG.format(number) for number in itertools.count(1))
        return [read_yaml(file) for file in itertools.takewhile(Path.exists, files)]

    def log(self, categories: bool = False) -> "pd.DataFrame":
        """log.csv as a tidy pandas frame (member, epoch, step, name, value), each (member, epoch, name) once.

        Args:
            categories: members and names as pandas categories, which are grouped several times faster than text.

        Raises:
            UserError: if the file is missing or is not a log, saying which.
        """
        import pandas as pd

        if not self.has_log:
            raise UserError(f"expected a run folder with a {LOG}, found none in {self.path}.")
        log, packed = self.path / LOG, self.path / LOG_PACKED
        log, text = (log, read_bytes(log)) if log.exists() else (packed, read_xz(packed))
        text = text[: text.rfind(b"\n") + 1]  # a killed process may leave half a line: its number would be wrong
        if not text.startswith(",".join(COLUMNS).encode() + b"\n"):
            raise UserError(
                f"{log} must begin with the line {','.join(COLUMNS)}, got {text[:60].decode(errors='replace')!r}: it is "
                "damaged, or was written by another program. Restore it, or name another run."
            )
        words, counts = dict.fromkeys(("member", "name"), "category"), {"epoch": "float64", "step": "int64"}
        # What repr() wrote has to be read exactly: from pandas 3.1 on it always is, before it had to be asked for.
        exact = {} if tuple(map(int, pd.__version__.split(".")[:2])) >= (3, 1) else {"float_precision": "round_trip"}
        nan = {"keep_default_na": False, "na_values": {"value": ["nan"]}}
        try:
            frame = pd.read_csv(io.BytesIO(text), dtype={**words, **counts, "value": "float64"}, **nan, **exact)
            _check_counts(frame)
        except (ValueError, OverflowError) as error:
            raise UserError(
                f"{log} has a row that is not member,epoch,step,name,value: {error}. Restore the file."
            ) from error
        if (frame["epoch"] % 1 == 0).all():  # nothing was measured within an epoch
            frame["epoch"] = frame["epoch"].astype("int64")
        frame = frame.drop_duplicates(["member", "epoch", "name"], keep="last").reset_index(drop=True)
        return frame if categories else frame.astype(dict.fromkeys(words, str))

    # Each of these raises a UserError for a file that cannot be read, and is empty if there is none.

    def members(self) -> list[MemberRow]:
        """The nets of the run; empty for runs from before members.csv was written."""
        return _read_rows(self.path / MEMBERS, MemberRow._fields, _member_row)

    def layers(self) -> list[LayerRow]:
        """The layers of each net in forward order."""
        return _read_rows(self.path / LAYERS, LayerRow._fields, _layer_row)

    def described_keys(self) -> dict[str, str]:
        """The meaning of numbers, by their name, for measures that describe them."""
        return dict(_read_rows(self.path / KEYS, KEY_COLUMNS, lambda name, meaning: (name, meaning)))

    def notes(self) -> list[str]:
        """What could not be measured, one message each."""
        file = self.path / NOTES
        return read_text(file).splitlines() if file.exists() else []

    def made(self) -> list[dict[str, Any]]:
        """What trained this run, a part for each start and resume."""
        file = self.path / MADE
        lines = read_text(file).splitlines() if file.exists() else []
        wrong, without = (
            f"{file} should hold one JSON object per line",
            "restore it, or remove it to continue without it.",
        )
        try:
            parts = [json.loads(line) for line in lines]
        except ValueError as error:
            raise UserError(f"{wrong} ({error}): {without}") from error
        if not all(isinstance(part, dict) for part in parts):
            raise UserError(f"{wrong}: {without}")
        return parts

    def array_epochs(self, family: str) -> list[float]:
        """Epochs at which a family's arrays were saved, ascending."""
        folders = (file.parent.name for file in (self.path / ARRAYS).glob(f"epoch=*/{family}.npz"))
        return sorted(whole(float(found[1])) for found in map(EPOCH.fullmatch, folders) if found)

    def arrays(self, epoch: float, family: str, wanted: Callable[[str], bool] | None = None) -> dict[str, np.ndarray]:
        """One family's arrays of one epoch, by ``<member>/<key>``, or those whose keys are wanted (`safe_io.read_npz`)."""
        return read_npz(self._arrays_path(epoch, family), wanted)

    def _arrays_path(self, epoch: float, family: str) -> Path:
        return self.path / ARRAYS / epoch_folder(epoch) / f"{family}.npz"


def epoch_folder(epoch: float) -> str:
    """The name of what was measured then, which text sorts like numbers up to epoch 9999.

    >>> epoch_folder(12), epoch_folder(12.25)
    ('epoch=0012', 'epoch=0012.250000000')
    """
    return f"epoch={int(epoch):04d}" if epoch % 1 == 0 else f"epoch={epoch:014.9f}"


def _check_counts(frame: "pd.DataFrame") -> None:
    """Of rows with more fields than columns pandas makes an index, in silence."""
    if frame.index.nlevels > 1 or frame.index.dtype != "int64":
        raise ValueError(f"expected {len(COLUMNS)} fields in each row")
    for column in ("epoch", "step"):
        if not frame[column].between(0, LATEST).all():
            raise ValueError(f"{column} counts from 0, got {frame[column].min()} to {frame[column].max()}")


def _save_rows(file: Path, columns: Sequence[str], rows: Iterable[tuple]) -> None:
    """As CSV: None is empty, True is true, a shape is 4x3x3."""

    def cell(value: object) -> str:
        if isinstance(value, bool):
            return str(value).lower()
        return "x".join(map(str, value)) if isinstance(value, tuple) else "" if value is None else str(value)

    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([columns, *(map(cell, row) for row in rows)])
    write_atomically(with_folder(file), text.getvalue().encode())


def _read_rows(file: Path, columns: tuple[str, ...], row: Callable[..., T]) -> list[T]:
    """The rows of a small CSV file, each made from its cells; none if there is no such file."""
    if not file.exists():
        return []
    text = read_text(file)
    try:
        head, *rows = [*csv.reader(io.StringIO(text, newline=""))] or [[]]
        if tuple(head) != columns:
            raise ValueError(f"its first line should be {','.join(columns)}")
        return [row(*cells) for cells in rows]
    except (ValueError, TypeError, KeyError, csv.Error) as error:
        raise UserError(
            f"{file} is not a list of {file.stem} as a run writes it ({error}): restore it, or remove it to continue without it."
        ) from error


def _member_row(
    name: str, arm: str, seed: str, class_path: str, residual: str, twin_of: str, depth: str, parameters: str
) -> MemberRow:
    numbers = [int(cell) if cell else None for cell in (seed, depth, parameters)]
    return MemberRow(name, arm, numbers[0], class_path, BOOLEANS[residual], twin_of, *numbers[1:])


def _layer_row(member: str, layer: str, path: str, kind: str, shape: str, reason: str) -> LayerRow:
    return LayerRow(member, layer, path, kind, tuple(map(int, shape.split("x"))), reason)


def find_runs(paths: Iterable[Path | str]) -> list[RunFolder]:
    """The run folders at or below each of the paths, each folder once. UserError: if a path holds no run, naming the path."""
    found: list[Path] = []
    for path in map(with_home, paths):
        folders = sorted(run_folders(path), key=by_number)
        if path.is_file():
            raise UserError(
                f"expected a run folder, or a folder of them, got the file {path}: name the folder that it is in."
            )
        if not folders:
            raise UserError(f"expected a run folder, or a folder of them, found no {LOG} in or below {path}.")
        found += folders
    return [RunFolder(folder) for folder in each_once(found)]


def by_number(path: Path) -> tuple[list[list[str | int]], Path]:
    """To sort paths by: a number in a name by its size, so that added runs come last.

    >>> " ".join(path.name for path in sorted(map(Path, ("a~10", "a~2", "a", "depth8-seed3")), key=by_number))
    'a a~2 a~10 depth8-seed3'
    """
    names = [[int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)] for name in path.parts]
    return names, path  # "a01" and "a1" are of one number


def each_once(folders: Iterable[Path]) -> list[Path]:
    """The folders in their order, each once, even if it appears again under another name, such as a link."""
    found: dict[Path, Path] = {}
    for folder in folders:
        found.setdefault(folder.resolve(), folder)
    return [*found.values()]


def run_folders(folder: Path) -> Iterator[Path]:
    """The run folders at or below a folder; within a run there is no other."""
    return (path for path, names in searched(folder) if names & LOGS)


def searched(folder: Path) -> Iterator[tuple[Path, set[str]]]:
    """Folders at or below a folder, with the names in them; none below a run folder, which may have thousands.

    Of links only those to a run are followed (one to / would have the disk searched), after all folders: a run is found once,
    by a link where nothing else leads there.
    """
    waiting, seen = deque([folder]), set()
    while waiting:
        path = waiting.popleft()
        if (place := os.path.realpath(path)) in seen:
            continue
        seen.add(place)
        try:
            below = [*os.scandir(path)]
        except OSError:  # not there yet, gone, or not ours to read
            continue
        names = {entry.name for entry in below}
        yield path, names
        for entry in below if not names & LOGS else ():
            if entry.is_dir(follow_symlinks=False):
                waiting.appendleft(Path(entry.path))
            elif entry.is_symlink() and any(os.path.isfile(os.path.join(entry.path, log)) for log in LOGS):
                waiting.append(Path(entry.path))


def _drop_torn_line(log: Path) -> None:
    """Cut what a killed process left behind the last line break.

    UserError: for a link to another file, which is not ours to change: a folder that somebody sent may have one.
    """
    if log.is_symlink() and log.is_file():
        raise UserError(f"{log} is a link to another file, expected the run's own log: remove the link.")
    with log.open("r+b") as file:
        file.seek(0, os.SEEK_END)
        size = file.tell()
        file.seek(max(0, size - 4096))
        tail = file.read()
        if not tail.endswith(b"\n"):
            file.truncate(size - len(tail) + tail.rfind(b"\n") + 1)
