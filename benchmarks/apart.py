"""Contenders that live in processes of their own.

What a step takes depends on the memory that its process holds already: an eager PyTorch loop that starts alone spends a tenth
of its time on page faults, the same loop after another contender none, or a fifth. So whole training loops are timed each
in a process of its own, as their users run them, and still take turns.
"""

import atexit
import multiprocessing
import weakref
from collections.abc import Callable
from multiprocessing.connection import Connection

import torch

from benchmarks.frame import quiet
from benchmarks.timing import seconds
from lightning_app.common.errors import UserError

__all__ = ["apart"]

Run = Callable[[], float | None]


def apart(make: Callable[..., Run], *args: object) -> Callable[[], float]:
    """What ``make(*args)`` makes, in a new process; for `timing.interleave`.

    Args:
        make: a function of a module, called once there; what it returns is called at every turn.
        args: whatever can be pickled.

    Raises:
        UserError: at a turn, if making or running it raised one there.
        RuntimeError: at a turn, if the process has ended. Its traceback is on standard error.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    # No daemon, which could not start a DataLoader's workers. It ends when our side of the pipe is closed.
    process = context.Process(target=_serve, args=(theirs, torch.get_num_threads(), make, args))

    def turn() -> float:
        if process.pid is None:  # not earlier: where another contender's first turn fails, none is started for nothing
            process.start()
            theirs.close()
        try:
            ours.send(None)
            said = ours.recv()
        except (EOFError, OSError) as error:
            process.join(10)
            raise RuntimeError(f"the process of {make.__name__}{args} ended with code {process.exitcode}.") from error
        if isinstance(said, UserError):
            raise said
        return said

    weakref.finalize(turn, ours.close)
    atexit.register(ours.close)  # before multiprocessing's own, which waits for processes
    return turn


def _serve(requests: Connection, threads: int, make: Callable[..., Run], args: tuple[object, ...]) -> None:
    quiet()
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    run = None
    while True:
        try:
            requests.recv()
        except EOFError:
            return
        try:
            run = run or make(*args)
            wall, value = seconds(run)
        except UserError as error:
            requests.send(error)
        else:
            requests.send(wall if value is None else value)
