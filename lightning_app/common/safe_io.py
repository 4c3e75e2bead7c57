"""Readers of files that a stranger may have written, or that a full disk cut short: nothing in them is executed.

Each reader checks that the file is a plain file and unpickles nothing; anything wrong raises a `UserError` that names the file.
There is no protection against files made to exhaust memory. `lightning_app.cli.safety` says what is trusted and what is not.

torch is imported only to read what torch wrote, so that the report starts fast.
"""

import io
import json
import lzma
import os
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from lightning_app.common.errors import UserError, first_sentence

# Text


def read_bytes(file: Path) -> bytes:
    """All of a plain file.

    Raises:
        UserError: for a folder, a pipe or nothing at that place, and for a file that may not be read.
    """
    _check_plain(file)
    with _reported(file, "read", OSError):
        return file.read_bytes()


def read_text(file: Path) -> str:
    """All of a UTF-8 text file, with line breaks as ``\\n``; raises as `read_bytes`, and for other encodings."""
    content = read_bytes(file)
    with _reported(file, "read as UTF-8 text", UnicodeDecodeError):
        return content.decode().replace("\r\n", "\n")


def read_xz(file: Path) -> bytes:
    """What ``lzma.compress`` packed into a file; raises as `read_bytes`, and for a damaged one."""
    packed = read_bytes(file)
    with _reported(file, "unpacked", lzma.LZMAError):
        return lzma.decompress(packed)


def read_json(file: Path) -> Any:
    """Raises as `read_text`, and for text that is not JSON, is nested too deeply, or has a name twice in one object."""
    text = read_text(file)
    with _reported(file, "read as JSON", ValueError, RecursionError):
        return json.loads(text, object_pairs_hook=_each_once)


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Of two values of one name programs take the last, and people may see the first."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise ValueError(f"'{twice}' is there twice")
    return found


def _check_plain(file: Path) -> None:
    """A pipe would be waited for and a device has no end: neither is a file here."""
    if not file.is_file():
        there = "a folder" if file.is_dir() else "something else" if os.path.lexists(file) else "none"
        raise UserError(f"expected a file at {file}, found {there}.")


@contextmanager
def _reported(file: Path, verb: str, *errors: type[Exception]) -> Iterator[None]:
    """Report what a reader raises for a broken file as an error that names the file."""
    try:
        yield
    except errors as error:
        text = error.strerror if isinstance(error, OSError) and error.strerror else str(error) or type(error).__name__
        reason = " ".join(text.split()).rstrip(".")[:300]
        raise UserError(f"{file} cannot be {verb} ({reason}): restore or remove it.") from error


# YAML


def read_yaml(file: Path) -> dict[str, Any]:
    """A configuration: nested mappings, lists and plain values; an empty file gives an empty one.

    Raises:
        UserError: as `read_text` and `parsed_yaml`, and if it is not a mapping.
    """
    content = parsed_yaml(read_text(file), str(file))
    if not isinstance(content, dict | None):
        raise UserError(f"{file} is not a configuration: expected keys and values, found a {type(content).__name__}.")
    return content or {}


def parsed_yaml(text: str, name: str) -> Any:
    """What a YAML text says.

    Args:
        text: one document.
        name: what to call it in an error.

    Raises:
        UserError: for text that is not YAML, a tag that would create an object, and a mapping with the same key twice, of which
            PyYAML would silently keep the last.

    >>> parsed_yaml("a: &a [1, 2]\\nb: *a", "it")
    {'a': [1, 2], 'b': [1, 2]}
    >>> parsed_yaml("a: 1\\na: 2", "it")
    Traceback (most recent call last):
    lightning_app.common.errors.UserError: it is not YAML: the key 'a' appears a second time in line 2.
    """
    import yaml

    try:
        return yaml.load(text, _loader())
    # of syntax its own errors, of ``!!bool maybe`` a KeyError, of other tags others
    except (yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise UserError(f"{name} is not YAML: {' '.join(str(error).split())[:300]}.") from error


@cache
def _loader() -> type:
    """Of plain values, with each key once. libyaml's is ten times faster, where it is there."""
    import yaml

    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # one of two, by what there is
        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            seen: set[str] = set()
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode) and key.value != "<<":
                    if key.value in seen:
                        raise ValueError(
                            f"the key '{key.value}' appears a second time in line {key.start_mark.line + 1}"
                        )
                    seen.add(key.value)
            return super().construct_mapping(node, deep)

        def get_single_data(self) -> Any:
            """Deep at once: this refuses what contains itself."""
            node = self.get_single_node()
            return None if node is None else self.construct_object(node, deep=True)

    return Loader


# Arrays and tensors


def read_npy(file: Path) -> np.ndarray:
    """One array without Python objects.

    Raises:
        UserError: for anything else, and for an array that is cut short.
    """
    _check_plain(file)
    with _plain(file, "write it again with np.save"), file.open("rb") as stream:
        return np.lib.format.read_array(stream, allow_pickle=False)


def read_npz(file: Path, wanted: Callable[[str], bool] | None = None) -> dict[str, np.ndarray]:
    """Arrays by name, or those whose names are wanted.

    Raises:
        UserError: if the file is damaged or holds anything but arrays without Python objects.
    """
    _check_plain(file)
    with _plain(file, "restore or remove it"), zipfile.ZipFile(io.BytesIO(file.read_bytes())) as archive:
        names = {name.removesuffix(".npy"): name for name in archive.namelist()}
        return {
            name: np.lib.format.read_array(io.BytesIO(archive.read(member)), allow_pickle=False)
            for name, member in names.items()
            if wanted is None or wanted(name)
        }


@contextmanager
def _plain(file: Path, cure: str) -> Iterator[None]:
    """numpy's and zipfile's readers raise whatever a broken file leads them to: zlib's errors, tokenize's, MemoryError."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror or error}.") from error
    except Exception as error:
        kind = file.suffix or ".npy"
        raise UserError(f"{file} is not a whole, plain {kind} array ({first_sentence(error)}): {cure}.") from error


def read_torch(file: Path) -> Any:
    """What ``torch.save`` wrote, on the CPU: tensors and plain values. Nothing is executed (``weights_only``).

    torch's reader does not notice a damaged tensor, so the archive's checksums are verified first.

    Raises:
        UserError: if the file is damaged, or holds more than tensors and plain values.
    """
    import torch

    _check_plain(file)
    try:
        if zipfile.is_zipfile(file):  # torch's older format is none
            with zipfile.ZipFile(file) as archive:
                if (damaged := archive.testzip()) is not None:
                    raise ValueError(f"{damaged} in it is damaged")
        return torch.load(file, map_location="cpu", weights_only=True)
    except PermissionError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}.") from error
    except Exception as error:  # torch's readers raise whatever a broken file leads them to
        raise UserError(
            f"{file} cannot be read: it is truncated or damaged, or holds more than tensors and plain values, such as a "
            f"pickled net, which is never executed ({first_sentence(error)}). Save net.state_dict() instead of the net."
        ) from error
