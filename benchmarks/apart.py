"""Contenders that live in processes of their own.

What a step takes depends on the memory that its process holds already: a PyTorch loop that starts alone spends a tenth of
its time on page faults, the same loop after another contender none, or a fifth. So whole training loops are timed each in
a process of its own, as their users run them, and still take turns.
"""

import atexit
import multiprocessing
import os
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from unittest.mock import patch

import torch

from benchmarks.frame import quiet
from benchmarks.timing import seconds

__all__ = ["AS_IT_COMES", "apart"]

AS_IT_COMES = {"THP_MEM_ALLOC_ENABLE": "0"}  # PyTorch as users have it, without what `skipscope.prepare` asks for

Run = Callable[[], float | None]


def apart(make: Callable[..., Run], *args: object, environment: Mapping[str, str] = {}) -> Callable[[], float]:
    """What ``make(*args)`` makes, in a new process; for `timing.interleave`.

    Args:
        make: a function of a module, called once there; what it returns is called at every turn.
        args: whatever can be pickled.
        environment: variables of that process, besides those of this one.

    Raises:
        RuntimeError: at a turn, if the process has ended. Its traceback is on standard error.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    # No daemon, which could not start a DataLoader's workers: it ends when our side of the pipe is closed, at the latest here.
    process = context.Process(target=_serve, args=(theirs, torch.get_num_threads(), make, args))
    with patch.dict(os.environ, environment):
        process.start()
    theirs.close()
    atexit.register(ours.close)

    def turn() -> float:
        try:
            ours.send(None)
            return ours.recv()
        except (EOFError, OSError) as error:
            process.join(10)
            raise RuntimeError(f"the process of {make.__name__}{args} ended with code {process.exitcode}.") from error

    return turn


def _serve(requests: Connection, threads: int, make: Callable[..., Run], args: tuple[object, ...]) -> None:
    quiet()
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    run = make(*args)
    while True:
        try:
            requests.recv()
        except EOFError:
            return
        wall, value = seconds(run)
        requests.send(wall if value is None else value)
