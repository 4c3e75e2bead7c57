"""Processes: the memory of this one, commands of ours in others, and a job of several processes of which one dies.

A process of a job that waits for a lost one in a collective operation gets an error from the process group, which it
reports. One that is doing something else does not notice. Lightning's launcher looks every five seconds and kills the first
process with SIGKILL: by chance before that process has reported anything, closed its loggers, or saved itself after a
signal. Here it gets time for that; only then is it ended, with the same message and exit code 1.

This file imports torch only where it is loaded already.
"""

import ctypes
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import IO

from lightning_app.common.signals import SIGNALS, Stopped, stopping

MAIN = Path(__file__).resolve().parents[2] / "skipscope" / "__main__.py"
LOST = 1  # exit code
GRACE = 30.0  # s; closing a tracker's run takes several
SIGNS = r"connection (closed|reset)|broken pipe|timed out waiting|remote process exited|ncclRemoteError"
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h
FROM_THE_HEAP = 32 << 20  # bytes at most; larger pieces are mapped one by one. What glibc itself goes up to
KEPT_FREE = 2**31 - 1  # bytes at most, at the top of the heap


def keep_freed_memory() -> bool:
    """Ask glibc to keep freed memory, 2 GB at most, for the next training step. Returns whether it does.

    By glibc's defaults the free top of the heap goes back to the system after every backward pass on a CPU, and the next
    step faults every page of it in anew: 20,000 to 35,000 pages a step of depth 20 and 128 images, a seventh of an eager
    step's time.

    False where there is another C library, and where the user's environment says how to allocate (``MALLOC_...``,
    ``GLIBC_TUNABLES``).
    """
    if sys.platform != "linux" or any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    # In this order: who sets the second only, fixes the first at its 128 KB.
    return mallopt is not None and bool(
        mallopt(M_MMAP_THRESHOLD, FROM_THE_HEAP) and mallopt(M_TRIM_THRESHOLD, KEPT_FREE)
    )


def to_its_end(words: Sequence[str], locks: Sequence[IO] = ()) -> int:
    """Exit code of one of our commands in a process that gets the signals that end us: it saves, then so do we.

    128 + its number where a signal killed it, as in a shell.

    Args:
        words: of the command line, without the program.
        locks: open files that the process holds too, should we be killed.

    Raises:
        Stopped: if a signal came when the process had nothing left to do: what would follow is not begun.
    """
    asked: list[int] = []
    early: list[int] = []  # before the process was known
    process: subprocess.Popen | None = None

    def forward(number: int, _: FrameType | None) -> None:
        asked.append(number)
        if process is None:
            early.append(number)
        else:
            process.send_signal(number)

    earlier = {which: signal.signal(which, forward) for which in SIGNALS}
    try:
        passed = [lock.fileno() for lock in locks]
        code = None
        while code is None:
            try:
                process = process or subprocess.Popen([sys.executable, str(MAIN), *words], pass_fds=passed)
                while early:
                    process.send_signal(early.pop())
                code = process.wait()
            except KeyboardInterrupt:  # Ctrl-C has reached the process too, a signal to this one alone has not
                if process is None:
                    raise
                process.terminate()
    finally:
        for which, handler in earlier.items():
            signal.signal(which, handler)
    if asked and code == 0:
        raise Stopped(signal.Signals(asked[0]))
    return code if code >= 0 else 128 - code


def is_lost_rank(error: RuntimeError) -> bool:
    """Did a process group notice that one of its processes died? gloo and NCCL have no error class for it."""
    import torch.distributed as dist

    return dist.is_available() and dist.is_initialized() and bool(re.search(SIGNS, str(error), re.IGNORECASE))


def lost_rank(reason: str) -> str:
    """The error message of the processes that are left."""
    return (
        f"error: another process of this job died ({reason}): see its output above. What was logged is kept; resume "
        "from the last finished epoch with --ckpt_path last."
    )


def observe(processes: Sequence[subprocess.Popen], grace: float = GRACE, period: float = 1.0) -> threading.Thread:
    """End this process and those that it launched, some time after one of them has failed.

    In place of Lightning's ``_launch_process_observer``. Returns the thread that looks, which ends when all processes have ended
    as they should.

    Args:
        processes: launched by this one.
        grace: seconds that this process has to end by itself.
        period: seconds between two looks.
    """
    looking = threading.Thread(target=_look, args=(processes, grace, period), daemon=True, name="rank-observer")
    looking.start()  # gone when the process ends by itself
    return looking


def _look(processes: Sequence[subprocess.Popen], grace: float, period: float) -> None:
    while not (failed := [process for process in processes if _has_failed(process)]):
        if all(process.returncode is not None for process in processes):
            return
        time.sleep(period)
    time.sleep(grace)
    print(lost_rank(f"process {failed[0].pid}, exit code {failed[0].returncode}"), file=sys.stderr, flush=True)
    for process in processes:
        process.kill()  # does nothing to one that has ended
    os._exit(LOST)  # the main thread may wait in a collective operation, which nothing else interrupts


def _has_failed(process: subprocess.Popen) -> bool:
    """Whether it has ended, and neither well nor by the signal that this process has received as well."""
    stopped = 0 if stopping.received is None else 128 + stopping.received
    return process.poll() not in (None, 0, stopped)
