"""A job of several processes of which one dies: the others report it and end with exit code 1.

A process that waits for the lost one in a collective operation gets an error from the process group, which it reports. One that
is doing something else does not notice. Lightning's launcher looks every five seconds and kills the first process with SIGKILL:
by chance before that process has reported anything, closed its loggers, or saved itself after a signal. Here it gets time for
that; only then is it ended, with the same message.

This file imports torch only where it is loaded already.
"""

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

from lightning_app.common.signals import stopping

LOST = 1  # exit code
GRACE = 30.0  # s; closing a tracker's run takes several
SIGNS = r"connection (closed|reset)|broken pipe|timed out waiting|remote process exited|ncclRemoteError"


def is_lost_rank(error: RuntimeError) -> bool:
    """Did a process group notice that one of its processes died? gloo and NCCL have no error class for it."""
    import torch.distributed as dist

    return dist.is_available() and dist.is_initialized() and bool(re.search(SIGNS, str(error), re.IGNORECASE))


def lost_rank(reason: str) -> str:
    """The error message of the processes that are left."""
    return (
        f"error: another process of this job is gone ({reason}): see what it said before. What was logged is kept; go on "
        "from the last finished epoch with --ckpt_path last."
    )


class Observer(threading.Thread):
    """Ends this process and those that it launched, some time after one of them has failed.

    Args:
        processes: launched by this one.
        grace: seconds that this process has to end by itself.
        period: seconds between two looks.
    """

    def __init__(self, processes: Sequence[subprocess.Popen], grace: float = GRACE, period: float = 1.0) -> None:
        super().__init__(daemon=True, name="rank-observer")  # gone when the process ends by itself
        self.processes, self.grace, self.period = processes, grace, period

    def run(self) -> None:
        """Return when all processes have ended as they should; do not return when one has failed."""
        while not (failed := [process for process in self.processes if self._has_failed(process)]):
            if all(process.returncode is not None for process in self.processes):
                return
            time.sleep(self.period)
        time.sleep(self.grace)
        print(lost_rank(f"process {failed[0].pid}, exit code {failed[0].returncode}"), file=sys.stderr, flush=True)
        for process in self.processes:
            process.kill()  # does nothing to one that has ended
        os._exit(LOST)  # the main thread may wait in a collective operation, which nothing else interrupts

    def _has_failed(self, process: subprocess.Popen) -> bool:
        """Whether it has ended, and neither well nor by the signal that this process has received as well."""
        stopped = 0 if stopping.received is None else 128 + stopping.received
        return process.poll() not in (None, 0, stopped)


def observe(processes: Sequence[subprocess.Popen]) -> None:
    """In place of Lightning's ``_launch_process_observer``."""
    Observer(processes).start()
