"""Locks: one process at a time makes a thing, and one process at a time writes into a run folder.

The operating system frees a lock on any death of those who hold it, so that nothing stale is ever left to clean up. The
package filelock would not do: it empties the file, in which the holder's name stands, and a process that is started cannot
take its lock along.
"""

import contextlib
import errno
import fcntl
import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import IO
from weakref import WeakSet

from lightning_app.common.errors import UserError

LOCK = ".lock"  # in a run folder
NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EINVAL, errno.ENOSYS)  # what file systems without them say
_held: WeakSet[IO] = WeakSet()  # locks of run folders that this process has taken
log = logging.getLogger(__name__)


def take(folder: Path) -> IO:
    """Take the lock of a run folder; it is held as long as the returned file is open.

    UserError: if another process writes into this folder, saying which.
    """
    lock = _opened(folder / LOCK)
    with contextlib.ExitStack() as refused:
        refused.enter_context(lock)
        if not _lock(lock, folder):
            lock.seek(0)
            holder = " ".join(lock.read(200).split()) or "another process"
            raise UserError(
                f"{holder} is writing into {folder}, and two runs in one folder would mix: wait until it ends, or give this "
                "run a folder of its own (fit does so without --ckpt_path)."
            )
        lock.truncate(0)
        lock.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        lock.flush()
        refused.pop_all()
    _held.add(lock)
    return lock


@contextlib.contextmanager
def claimed(home: Path, name: str, what: str) -> Iterator[IO]:
    """Hold the lock of a name in a folder. Another process that wants it waits, and then finds the thing made.

    Args:
        home: the folder; made if it is not there.
        name: of what is made.
        what: the same in words, for the message of a process that waits: "run depth20".

    Raises:
        UserError: if the folder cannot be written to.
    """
    try:
        home.mkdir(parents=True, exist_ok=True)
        lock = _opened(home / f".{name}.lock")
    except OSError as error:
        raise UserError(f"cannot write into {home}: {error.strerror}. Choose another --runs or --out.") from error
    with lock:
        if not _lock(lock, home):
            print(f"{what}: another process is working on it; waiting.", flush=True)
            _lock(lock, home, wait=True)
        yield lock


def _let_go() -> None:
    """In a process that was forked, such as a loader's worker: it would hold the lock as long as it lives, also after us."""
    for lock in [*_held]:
        lock.close()


os.register_at_fork(after_in_child=_let_go)


def _opened(file: Path) -> IO:
    how = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW  # a folder that somebody sent may have a link there
    return os.fdopen(os.open(file, how, 0o666), "r+", encoding="utf-8")


def _lock(file: IO, where: Path, wait: bool = False) -> bool:
    """Whether the file is ours alone now. Where the file system has no locks a warning says so, and nobody is kept out."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        log.warning("the file system of %s has no locks: two runs in one folder would not be noticed.", where)
    return True
