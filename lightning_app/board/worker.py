"""The process that draws, as the server sees it: requests are answered while it reads and draws."""

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["PAGES", "PageRequest", "PageUpdate", "WorkerEnded", "Stamp", "Worker", "stamp_of"]

NICE = 10  # training comes first
PAGES = 8  # kept by the process that draws, with what it has read: those asked for last
Stamp = tuple[Any, ...]


class PageRequest(NamedTuple):
    """What is to be drawn."""

    runs: dict[Path, Stamp]  # in the order of the page; a run is read again when its stamp is another
    since: int = 0  # number of the last step that was received
    looking: Sequence[str] = ()  # keys of sections on the screen: these come first


class PageUpdate(NamedTuple):
    """One step towards the page."""

    step: int  # rises with every section drawn, over all pages
    shell: tuple[str, str]  # the page before its sections, and after them
    sections: list[str]  # keys of those there are, in order
    new: dict[str, str]  # key -> HTML of what was drawn later than the step that was received
    problems: list[str]  # why runs are left out
    left: int  # sections still to be drawn


class WorkerEnded(Exception):
    """The process that draws is gone."""


class Worker:
    """Starts the process that draws when it is needed, and again when it has ended."""

    def __init__(self) -> None:
        self._step = 0
        self._process: multiprocessing.process.BaseProcess | None = None
        self._connection: Connection | None = None
        self._starting = threading.Lock()  # a process cannot be ended while it is being started

    def draw(self, asked: PageRequest) -> PageUpdate:
        """The next step.

        Raises:
            WorkerEnded: if the process was killed, or could not be started.
        """
        try:
            if self._connection is None:
                self._connection = self._started()
            self._connection.send(asked)
            drawn: PageUpdate = self._connection.recv()
        except (EOFError, OSError) as error:
            self.end()
            if self._connection is not None:
                self._connection.close()
                self._connection = None
            code = self._process.exitcode if self._process else None
            raise WorkerEnded(f"exit code {code}" if code is not None else str(error)) from error
        self._step = max(self._step, drawn.step)
        return drawn

    def end(self) -> None:
        """End the process; another thread that waits for it in `draw` is told so."""
        with self._starting:
            if self._process is not None:
                self._process.terminate()
                self._process.join()

    def _started(self) -> Connection:
        """Spawned, because this process has threads."""
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_work, args=(theirs, self._step + 1), daemon=True)
        with self._starting, theirs, contextlib.ExitStack() as failed:
            failed.push(ours)
            self._process = None  # the one before, which has ended
            with _no_ctrl_c():
                process.start()
            self._process = process
            failed.pop_all()
        return ours


@contextlib.contextmanager
def _no_ctrl_c() -> Iterator[None]:
    """A process started here is sent no SIGINT, from its first moment: Ctrl-C is for the server, which closes the connection.

    Blocked rather than ignored: only the main thread can ignore a signal, and then for the server too.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    resource_tracker.ensure_running()  # some Pythons unblock SIGINT where they start it, which would be in `start`
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(connection: Connection, step: int) -> None:
    """Draw what is asked for until nobody asks any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # where `_no_ctrl_c` does nothing
    _give_way()
    from lightning_app.board.drawing import Drawer

    drawer = Drawer(step)
    with contextlib.suppress(EOFError, OSError):  # the server has ended
        while True:
            connection.send(drawer.draw(connection.recv()))


def _give_way() -> None:
    """Let training go first, in other terminals too: Linux shares processor time among sessions, then within each."""
    if hasattr(os, "nice"):
        os.nice(NICE)
    if (session := Path("/proc/self/autogroup")).exists():
        os.setsid()
        with contextlib.suppress(OSError):  # another process has changed its own a moment ago
            session.write_text(str(NICE), encoding="utf-8")


def stamp_of(file: Path) -> Stamp:
    """Size and time of a file; empty without one."""
    try:
        found = file.stat()
    except OSError:
        return ()
    return found.st_size, found.st_mtime_ns
