"""One process at a time makes a thing; another one waits, then finds it made."""

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from lightning_app.errors import UserError

__all__ = ["claimed"]


@contextlib.contextmanager
def claimed(home: Path, name: str, what: str) -> Iterator[IO]:
    """Hold the lock of a name in a folder; it is freed on any death of those who hold it.

    Args:
        what: for whoever waits, "run depth20".

    Raises:
        UserError: if the folder cannot be written to.
    """
    try:
        home.mkdir(parents=True, exist_ok=True)
        lock = (home / f".{name}.lock").open("w")
    except OSError as error:
        raise UserError(f"cannot write runs into {home}: {error.strerror}. Choose another --runs.") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"{what}: another process is at it; waiting.", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock
