"""Readers of files that a stranger may have written, or that a full disk cut short: limited in size, nothing executed.

Each reader checks that the file is a plain file of limited size, that what it unpacks to is small enough before it is
unpacked, and unpickles nothing; whatever is wrong is a `UserError` that names the file. `lightning_app.cli.safety` says what
is trusted and what is not.

torch is imported only to read what torch wrote, so that the report starts fast.
"""

import io
import json
import lzma
import math
import os
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

from lightning_app.common.errors import UserError

TEXT = 4 << 20  # bytes; a full configuration has 20,000, one with the names of 21,841 classes 500,000
TEXT_OF_A_LOG = 1 << 30  # bytes: 15 million rows, and pandas needs several times that
NODES = 200_000  # of a YAML file, every alias counted as what it stands for
DEPTH = 100  # of nested lists and mappings
AT_ONCE = 1 << 20  # bytes of an .npz file below which it is read in one piece
UNPACKED = 1 << 30  # bytes of one .npz file's arrays
KINDS = "biufcU"  # of arrays: numbers and text; no objects (pickles), no records, no dates


# Text


def read_bytes(file: Path, limit: int = TEXT) -> bytes:
    """All of a plain file.

    Raises:
        UserError: for a folder, a pipe or nothing at that place, a file that may not be read, and one beyond the limit.
    """
    size = _size(file)
    if size > limit:
        raise UserError(f"{file} has {size:,} bytes, expected at most {limit:,}: it is not what its name says.")
    with _reported(file, "read", OSError):
        return file.read_bytes()


def read_text(file: Path, limit: int = TEXT) -> str:
    """All of a UTF-8 text file, with line breaks as ``\\n``; raises as `read_bytes`, and for other encodings."""
    content = read_bytes(file, limit)
    with _reported(file, "read as UTF-8 text", UnicodeDecodeError):
        return content.decode().replace("\r\n", "\n")


def read_xz(file: Path, limit: int = TEXT_OF_A_LOG) -> bytes:
    """What ``lzma.compress`` packed into a file; raises as `read_bytes`, and for a damaged or larger one."""
    packed = read_bytes(file, limit)
    with _reported(file, "unpacked", lzma.LZMAError, EOFError):
        reader = lzma.LZMADecompressor()
        content = reader.decompress(packed, max_length=limit + 1)
        if len(content) > limit:
            raise UserError(f"{file} would unpack to more than {limit:,} bytes: it is not what its name says.")
        if not reader.eof:
            raise EOFError("it ends too early")
        return content


def read_json(file: Path) -> Any:
    """Raises as `read_text`, and for what is not JSON or too deep."""
    text = read_text(file)
    with _reported(file, "read as JSON", ValueError, RecursionError):
        return json.loads(text)


def _size(file: Path) -> int:
    """In bytes. A pipe would be waited for and a device has no end: neither is a file here."""
    if not file.is_file():
        there = "a folder" if file.is_dir() else "something else" if os.path.lexists(file) else "none"
        raise UserError(f"expected a file at {file}, found {there}.")
    return file.stat().st_size


@contextmanager
def _reported(file: Path, verb: str, *errors: type[Exception]) -> Iterator[None]:
    """Report what a reader raises for a broken file as an error that names the file."""
    try:
        yield
    except UserError:
        raise
    except errors as error:
        text = error.strerror if isinstance(error, OSError) and error.strerror else str(error) or type(error).__name__
        reason = " ".join(text.split()).rstrip(".")[:300]
        raise UserError(f"{file} cannot be {verb} ({reason}): restore or remove it.") from error


# YAML


def read_yaml(file: Path) -> dict[str, Any]:
    """A configuration: nested mappings, lists and plain values; empty for an empty file.

    Raises:
        UserError: as `read_text` and `check_yaml`, for a tag that would make an object, and for no mapping.
    """
    import yaml

    text = read_text(file)
    check_yaml(text, str(file))
    with _not_yaml(str(file)):
        content = yaml.load(text, _loader())
    if not isinstance(content, dict | None):
        raise UserError(f"{file} is no configuration: expected keys and values, found a {type(content).__name__}.")
    return content or {}


def check_yaml(text: str, name: str) -> None:
    """Refuse what would not fit into memory or stack, before anything is built of it.

    libyaml's loader recurses in C: 200,000 brackets end the process without a word. Nine anchors of nine aliases each make
    a billion nodes. PyYAML takes the last of two equal keys and forgets the first.

    Args:
        text: of any length.
        name: what to call it in an error.

    Raises:
        UserError: for text that is not YAML, deeper than 100 levels or of more than 200,000 nodes with every alias
            counted as what it stands for, for an anchor within itself, and for a mapping with a key twice.

    >>> check_yaml("a: &a [1, 2]\\nb: *a", "it")
    >>> check_yaml("a: 1\\na: 2", "it")
    Traceback (most recent call last):
    lightning_app.common.errors.UserError: it has the key 'a' twice (line 2): one of them would be forgotten.
    """
    import yaml

    nodes, sizes = [_Node()], {}
    with _not_yaml(name):
        for event in yaml.parse(text, _loader()):
            if isinstance(event, yaml.CollectionStartEvent):
                nodes.append(_Node(event.anchor, set() if isinstance(event, yaml.MappingStartEvent) else None))
            elif isinstance(event, yaml.CollectionEndEvent):
                done = nodes.pop()
                sizes[done.anchor] = done.size
                nodes[-1].add(done.size)
            elif isinstance(event, yaml.ScalarEvent):
                sizes[event.anchor] = 1
                if nodes[-1].add(1, event.value):
                    line = event.start_mark.line + 1 if event.start_mark else "?"
                    raise UserError(
                        f"{name} has the key '{event.value}' twice (line {line}): one of them would be forgotten."
                    )
            elif isinstance(event, yaml.AliasEvent):
                nodes[-1].add(sizes.get(event.anchor, NODES))  # of an anchor that is still open: within itself
            if len(nodes) > DEPTH or nodes[-1].size > NODES:
                raise UserError(
                    f"{name} is no configuration: expected at most {DEPTH} levels and {NODES:,} values, every alias counted "
                    "as what it stands for; found more."
                )


@dataclass
class _Node:
    """A list or mapping whose end has not come yet."""

    anchor: str | None = None
    keys: set[str] | None = None  # None for a list
    size: int = 1  # nodes so far, its own included
    children: int = field(default=0)

    def add(self, size: int, text: str | None = None) -> bool:
        """Count a child; true for a key that was there before."""
        twice = False
        if self.keys is not None and text is not None and text != "<<" and self.children % 2 == 0:
            twice = text in self.keys
            self.keys.add(text)
        self.size += size
        self.children += 1
        return twice


@contextmanager
def _not_yaml(name: str) -> Iterator[None]:
    """What PyYAML raises: of syntax its own errors, of ``!!bool maybe`` a KeyError, of other tags others."""
    import yaml

    try:
        yield
    except UserError:
        raise
    except (yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
        raise UserError(f"{name} is not YAML: {' '.join(str(error).split())[:300]}.") from error


def _loader() -> type:
    """Ten times faster, where libyaml is there."""
    import yaml

    return getattr(yaml, "CSafeLoader", yaml.SafeLoader)


# Arrays and tensors


def read_npy(file: Path) -> np.ndarray:
    """One array of numbers or text.

    Raises:
        UserError: for anything but one whole, plain array: also where the header claims more elements than are there.
    """
    size = _size(file)
    with _plain(file), file.open("rb") as stream:
        return _array(stream, size)


def read_npz(file: Path, wanted: Callable[[str], bool] | None = None) -> dict[str, np.ndarray]:
    """Arrays by name, or those whose names are wanted.

    Raises:
        UserError: if the file is damaged, would unpack to more than a GiB, or holds anything but plain arrays.
    """
    small = _size(file) < AT_ONCE  # many short reads of a small file take longer than all of it
    with _plain(file), zipfile.ZipFile(io.BytesIO(file.read_bytes()) if small else file) as archive:
        found = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        chosen = {name: info for name, info in found.items() if wanted is None or wanted(name)}
        if (unpacked := sum(info.file_size for info in chosen.values())) > UNPACKED:
            raise ValueError(f"it would unpack to {unpacked:,} bytes, expected at most {UNPACKED:,}")
        return {name: _member(archive, info) for name, info in chosen.items()}


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray:
    with archive.open(info) as stream:  # which ends after the bytes that the directory says, and checks their sum
        return _array(stream, info.file_size)


def _array(stream: IO[bytes], size: int) -> np.ndarray:
    """From a stream of so many bytes. The header is compared with them: numpy would allocate what it claims."""
    version = np.lib.format.read_magic(stream)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"format {version[0]}.{version[1]}, expected 1.0 or 2.0")
    header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = header(stream)
    if dtype.kind not in KINDS:
        raise ValueError(f"expected numbers or text, got dtype {dtype}, which is not read")
    there, claimed = size - stream.tell(), math.prod(shape) * dtype.itemsize
    if there != claimed or any(length < 0 for length in shape):
        raise ValueError(f"its header says {shape} {dtype}, {claimed:,} bytes, and {there:,} are there")
    stream.seek(0)
    return np.lib.format.read_array(stream, allow_pickle=False)


@contextmanager
def _plain(file: Path) -> Iterator[None]:
    """numpy's and zipfile's readers raise whatever a broken file leads them to: zlib's errors, tokenize's, MemoryError."""
    try:
        yield
    except Exception as error:
        reason = " ".join(str(error).split()).split(". ")[0].rstrip(".")[:300] or type(error).__name__
        kind = file.suffix or ".npy"
        raise UserError(
            f"{file} is not a whole, plain {kind} array ({reason}): write it again with np.save."
        ) from error


def read_torch(file: Path) -> Any:
    """What ``torch.save`` wrote, on the CPU: tensors and plain values. Nothing is executed (``weights_only``).

    torch's reader takes a damaged tensor for a whole one and unpacks whatever it is given, so the archive is looked through
    first: its checksums, and that nothing in it is packed, as ``torch.save`` never does.

    Raises:
        UserError: if the file is damaged, packed, or holds more than tensors and plain values.
    """
    import torch

    size = _size(file)
    try:
        with file.open("rb") as stream:
            if stream.read(4) == b"PK\x03\x04":  # what torch goes by
                _check_archive(file, size)
        return torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # torch's readers raise whatever a broken file leads them to
        reason = " ".join(str(error).split()).split(". ")[0].rstrip(".")[:200] or type(error).__name__
        raise UserError(
            f"{file} cannot be read: it is truncated or damaged, or holds more than tensors and plain values, such as a "
            f"pickled net, which is never executed ({reason}). Of a net, save net.state_dict()."
        ) from error


def _check_archive(file: Path, size: int) -> None:
    with zipfile.ZipFile(file) as archive:
        if sum(info.file_size for info in archive.infolist()) > size:
            raise ValueError(f"it would unpack to more than its {size:,} bytes")
        if (damaged := archive.testzip()) is not None:
            raise ValueError(f"{damaged} in it is damaged")
