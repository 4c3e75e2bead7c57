"""Signals that end a run: SIGTERM, by which schedulers preempt, SIGUSR1, by which SLURM warns of a time limit, and Ctrl-C.

While a net is trained the signal is deferred: the trainer stops between two batches, where the run can save itself and go on
with the very next batch. It is deferred, too, for the few seconds of importing libraries. Anywhere else (evaluation, measures)
everything is saved already and a resumed run repeats the epoch bit for bit: the signal ends the program at once.

This file imports no torch: the handlers are set before anything slow is imported.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


class Stopped(SystemExit):
    """The run ends because of a signal. Its exit code is the shell's: 128 and the signal's number."""

    def __init__(self, which: signal.Signals) -> None:
        super().__init__(128 + which)


class Stopping:
    """Which signal this process has received, and whether it ends the program now or later."""

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self.forward: Callable[[int], None] = lambda _: None  # to the processes that this one launched
        self._deferred = 0
        self.raised = False  # has an exception of ours begun to end the program?

    def listen(self) -> None:
        """Handle the signals from now on. Only the main thread can do so; in other threads this does nothing to them."""
        self.received, self.forward, self._deferred, self.raised = None, lambda _: None, 0, False
        if threading.current_thread() is threading.main_thread():
            for which in (*SIGNALS, signal.SIGINT):
                if signal.getsignal(which) is not signal.SIG_IGN:  # as a shell sets Ctrl-C for background jobs
                    signal.signal(which, self._receive)

    def defer(self) -> None:
        """Defer signals from here on, until `release`."""
        self._deferred += 1

    def release(self) -> None:
        """Undo one `defer`.

        Raises:
            Stopped: if a signal was received in the meantime.
        """
        self._deferred -= 1
        self._stop_if_received()

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """A block that no signal interrupts."""
        self.defer()
        try:
            yield
        except BaseException:
            self._deferred -= 1  # the exception says more than a signal
            raise
        self.release()

    def _receive(self, number: int, frame: FrameType | None) -> None:
        first = self.received is None
        self.received = self.received or signal.Signals(number)
        if number == signal.SIGINT:  # a terminal sends it to all processes; a second one is obeyed at once
            if not first or not self._deferred:
                self.raised = True
                raise KeyboardInterrupt
            return
        if first:
            self.forward(number)
        self._stop_if_received()

    def _stop_if_received(self) -> None:
        """Once: what runs while the program ends is not stopped again."""
        if self.received is not None and not self._deferred and not self.raised:
            self.raised = True
            raise Stopped(self.received)


stopping = Stopping()  # of this process, as its signals are


def requeue(environment: Mapping[str, str] = os.environ) -> str | None:
    """Put this SLURM job back into its queue; returns what to print, None outside SLURM and on ranks other than zero."""
    words = _requeue_words(environment)
    if words is None:
        return None
    if shutil.which(words[0]) is None:
        return f"{words[0]} was not found: requeue the job yourself"
    done = subprocess.run(words, capture_output=True, text=True)
    output = " ".join((done.stdout + done.stderr).split())
    return f"{' '.join(words)}: {'requeued' if done.returncode == 0 else output or f'exit code {done.returncode}'}"


def _requeue_words(environment: Mapping[str, str]) -> Sequence[str] | None:
    """
    >>> _requeue_words({"SLURM_JOB_ID": "12", "SLURM_ARRAY_JOB_ID": "10", "SLURM_ARRAY_TASK_ID": "2"})
    ['scontrol', 'requeue', '10_2']
    """
    job = environment.get("SLURM_JOB_ID")
    if job is None or environment.get("SLURM_PROCID", "0") != "0" or environment.get("LOCAL_RANK", "0") != "0":
        return None
    if "SLURM_ARRAY_JOB_ID" in environment:
        job = f"{environment['SLURM_ARRAY_JOB_ID']}_{environment['SLURM_ARRAY_TASK_ID']}"
    return ["scontrol", "requeue", job]
