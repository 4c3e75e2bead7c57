"""Commands of ours in processes of their own, which get the signals that end us."""

import contextlib
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import IO

from lightning_app.common.signals import SIGNALS, Stopped

MAIN = Path(__file__).resolve().parents[2] / "skipscope" / "__main__.py"


def to_its_end(words: Sequence[str], lock: IO | None = None) -> int:
    """Exit code of one of our commands in a process that gets the signals that end us: it saves, then so do we.

    Args:
        words: of the command line, without the program.
        lock: an open file that the process holds too, should we be killed.

    Raises:
        Stopped: if a signal came when the process had nothing left to do: what would follow is not begun.
    """
    asked: list[int] = []
    process: subprocess.Popen | None = None

    def forward(number: int, _: FrameType | None) -> None:
        asked.append(number)
        if process is not None:
            process.send_signal(number)

    earlier = {which: signal.signal(which, forward) for which in SIGNALS}
    try:
        passed = () if lock is None else (lock.fileno(),)
        process = subprocess.Popen([sys.executable, str(MAIN), *words], pass_fds=passed)
        for number in asked:  # before the process was known
            process.send_signal(number)
        code = _wait(process)
    finally:
        for which, handler in earlier.items():
            signal.signal(which, handler)
    if asked and code == 0:
        raise Stopped(signal.Signals(asked[0]))
    return code


def _wait(process: subprocess.Popen) -> int:
    while True:
        with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C has reached the process too
            return process.wait()
