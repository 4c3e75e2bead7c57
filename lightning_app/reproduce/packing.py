"""Evidence: what of a finished or interrupted run is kept with the results, small enough to commit.

    results/<paper>/runs/<run>/     config.yaml, made.jsonl, members.csv, layers.csv, notes.txt, id, finished,
                                    config.before-resume-*.yaml     as the run wrote them
                                    log.csv.xz                      every number
                                    measurements/...                the arrays that claims and figures read
                                    checkpoints/weights.safetensors the final weights of a finished run
                                    checkpoints/last.ckpt           of an interrupted run, to go on from
                                    packed.json                     SHA-256 of each file, and what was left out
    results/<paper>/pieces/<computation>/<piece>.npz                the arrays of a computation, as they were computed

A packed run is a run folder: everything that reads run folders reads it. What is at reduced scale lies in
results/<paper>/reduced/. Packing replaces a folder as a whole, so that an interruption leaves the old one or the new one.
"""

import hashlib
import json
import lzma
import os
import shutil
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from lightning_app.common.errors import UserError
from lightning_app.common.files import with_folder, write_atomically, writing
from lightning_app.common.safe_io import read_bytes, read_json, read_xz
from lightning_app.papers.parts import PAPER, Scale
from lightning_app.runs import RunFolder
from lightning_app.runs.configuration import flatten
from lightning_app.runs.folder import (
    ARRAYS,
    CHECKPOINTS,
    EARLIER_CONFIG,
    LAST,
    LOG,
    LOG_PACKED,
    SMALL_FILES,
    WEIGHTS,
    epoch_folder,
)

MANIFEST = "packed.json"
PACKED_WEIGHTS = f"{CHECKPOINTS}/{WEIGHTS}"


def home_of_runs(out: Path, paper: str, scale: Scale) -> Path:
    """Folder of a paper's packed runs below the folder of all results."""
    return out / paper / ("" if scale is PAPER else scale.name) / "runs"


def home_of_pieces(out: Path, paper: str, scale: Scale) -> Path:
    """Folder of a paper's packed computations."""
    return home_of_runs(out, paper, scale).with_name("pieces")


def _packed(folder: Path) -> dict[str, str]:
    """What a run's manifest says: SHA-256 by path."""
    content = read_json(folder / MANIFEST)
    files, left_out = (content.get("files"), content.get("left_out")) if isinstance(content, dict) else (None, None)
    if not isinstance(files, dict) or not isinstance(left_out, list):
        raise UserError(f"{folder / MANIFEST} is not a list of packed files: restore it, or pack the run again.")
    return files


def damage(folder: Path) -> list[str]:
    """The differences of a packed run's files from what was packed, one message per file; empty if there are none."""
    try:
        files = _packed(folder)
    except UserError as error:
        return [str(error)]
    # What a reader of run folders takes for a part of the run: a report that somebody made there is none.
    read = (*SMALL_FILES, LOG, LOG_PACKED, LAST, WEIGHTS)
    earlier = EARLIER_CONFIG.format("*")
    parts = (p for p in folder.rglob("*") if p.name in read or p.suffix in (".npz", ".ckpt") or p.match(earlier))
    there = {path.relative_to(folder).as_posix() for path in parts if path.is_file()}
    return [
        *(f"{folder / name} is missing" for name in sorted(files.keys() - there)),
        *(f"{folder / name} was not packed with the run" for name in sorted(there - files.keys())),
        *(
            f"{folder / name} is not the file that was packed: its SHA-256 differs"
            for name in sorted(files.keys() & there)
            if _sha(read_bytes(folder / name)) != files[name]
        ),
    ]


def pack(run: RunFolder, target: Path, finished: bool, arrays: Collection[tuple[str, float]]) -> bool:
    """Keep a run as evidence; nothing happens where the same is kept already.

    Args:
        run: as it was trained.
        target: its folder among the results.
        finished: True: keep its final weights; False: keep its checkpoint.
        arrays: (family, epoch) of the arrays that claims and figures read.

    Returns:
        Whether anything was written.

    Raises:
        UserError: if a file of the run cannot be read.
        MachineError: if the evidence cannot be written; an earlier one stays.
    """
    restore(target)
    contents = dict(_contents(run, finished, arrays))
    files = {name: _sha(content) for name, content in contents.items()}
    manifest = {"files": files, "left_out": _left_out(run, contents)}
    text = json.dumps(manifest, indent=1).encode() + b"\n"
    if (target / MANIFEST).is_file() and read_bytes(target / MANIFEST) == text and not damage(target):
        return False
    _replace(target, {**contents, MANIFEST: text})
    return True


def _contents(run: RunFolder, finished: bool, arrays: Collection[tuple[str, float]]) -> Iterator[tuple[str, bytes]]:
    """(path, bytes) of everything that is kept.

    Of a run that goes on meanwhile the checkpoint is read first: a log may be ahead of it, which a resume cuts, and not behind.
    """
    last = run.checkpoints / LAST
    to_go_on_from = read_bytes(last) if last.is_file() and not finished else None
    config = run.config()
    for name in (*SMALL_FILES, *sorted(path.name for path in run.path.glob(EARLIER_CONFIG.format("*")))):
        if (run.path / name).is_file():
            yield name, _without_machine_paths(read_bytes(run.path / name), config)
    yield LOG_PACKED, lzma.compress(read_bytes(run.path / LOG), preset=6)
    for family, epoch in sorted(arrays):
        name = f"{ARRAYS}/{epoch_folder(epoch)}/{family}.npz"
        if (run.path / name).is_file():
            yield name, read_bytes(run.path / name)
    if last.is_file() and finished:
        from lightning_app.runs.checkpoints import AtomicCheckpointIO, packed_weights

        yield PACKED_WEIGHTS, packed_weights(AtomicCheckpointIO().load_checkpoint(last))
    elif to_go_on_from is not None:
        yield f"{CHECKPOINTS}/{LAST}", to_go_on_from


def _without_machine_paths(content: bytes, config: Mapping[str, Any]) -> bytes:
    """Texts of a run without the folders of the machine that it ran on."""
    leaves = dict(flatten(config))
    places = {leaves.get("data.init_args.root"): "data", leaves.get("run.root"): "runs"}
    places |= {f"{Path.cwd()}/": "./", f"{Path.home()}/": "~/"}
    for place, word in places.items():
        if isinstance(place, str) and Path(place).is_absolute() and len(Path(place).parts) > 1:
            content = content.replace(place.encode(), word.encode())
    return content


def _left_out(run: RunFolder, contents: Mapping[str, bytes]) -> list[str]:
    """Which arrays and checkpoints the evidence lacks, in words."""
    there = (path.relative_to(run.path).as_posix() for path in run.path.rglob("*.npz"))
    lost = Counter(Path(name).stem for name in there if name not in contents)
    said = [f"{count} arrays of {family}, which no claim and no figure reads" for family, count in sorted(lost.items())]
    if PACKED_WEIGHTS in contents:
        said.append("the optimizer's state: training is finished")
    elif f"{CHECKPOINTS}/{LAST}" not in contents:
        said.append("weights: the run has no checkpoint")
    if len(run.made()) > 1:  # this machine may have only what evidence of the parts before had kept
        said.append("what earlier evidence had left out, if the run went on from that")
    return said


def unpack(folder: Path, target: Path) -> RunFolder:
    """Unpack an interrupted run into a new folder, so that training can be resumed.

    UserError: if the evidence is damaged, or has no checkpoint.
    """
    if found := damage(folder):
        raise UserError(
            f"training cannot be resumed from {folder}: {found[0]}. Restore it, for example with git checkout."
        )
    new = _new(target)
    shutil.rmtree(new, ignore_errors=True)
    for name in _packed(folder):
        content = read_xz(folder / name) if name == LOG_PACKED else read_bytes(folder / name)
        write_atomically(with_folder(new / (LOG if name == LOG_PACKED else name)), content)
    with writing(target):
        os.replace(new, target)  # all of it or nothing: a log without its checkpoint would be a lost run
    return RunFolder(target)


def restore(target: Path) -> None:
    """Put the old evidence back if an interruption left neither it nor the new one in its place."""
    aside = _aside(target)
    if aside.is_dir() and not target.exists():
        aside.rename(target)
    shutil.rmtree(aside, ignore_errors=True)
    shutil.rmtree(_new(target), ignore_errors=True)


def _replace(target: Path, contents: Mapping[str, bytes]) -> None:
    """A folder with these files instead of the one there is."""
    new = _new(target)
    for name, content in contents.items():
        write_atomically(with_folder(new / name), content)
    with writing(target):
        if target.exists():
            os.replace(target, _aside(target))
        os.replace(new, target)
    shutil.rmtree(_aside(target), ignore_errors=True)


def _new(target: Path) -> Path:
    return target.with_name(f".{target.name}.new")


def _aside(target: Path) -> Path:
    return target.with_name(f".{target.name}.old")


def file_digest(file: Path) -> str:
    """SHA-256 of a file, in hex."""
    return _sha(read_bytes(file))


def _sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
