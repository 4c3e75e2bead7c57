"""Signals that end a run: SIGTERM, by which schedulers preempt, SIGUSR1, by which SLURM warns of a time limit, and Ctrl-C.

While a net is trained the signal is only noted: the trainer stops between two batches, where the run can save itself and
go on with the very next batch. While libraries are imported it is noted, too, for those few seconds. Anywhere else
(evaluation, measures) there is nothing to save that is not saved already, and a resumed run repeats the epoch bit for bit:
the signal ends the program at once, however long the measure.

This file knows no torch: the handlers are set before anything slow is imported.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType

__all__ = ["SIGNALS", "Stopped", "Stopping", "requeue", "stopping"]

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


class Stopped(SystemExit):
    """The run ends because of a signal. Its exit code is the shell's: 128 and the signal's number."""

    def __init__(self, which: signal.Signals) -> None:
        super().__init__(128 + which)


class Stopping:
    """Which signal has asked for the end, and whether it may come at any moment."""

    def __init__(self) -> None:
        self.asked: signal.Signals | None = None
        self.forward: Callable[[int], None] = lambda _: None  # to the processes that we have launched
        self._held = 0
        self._raised = False

    def listen(self) -> None:
        """Answer the signals from now on. A thread that is not the main one cannot, and leaves them as they are."""
        self.__init__()
        if threading.current_thread() is threading.main_thread():
            for which in (*SIGNALS, signal.SIGINT):
                if signal.getsignal(which) is not signal.SIG_IGN:  # a shell starts its background jobs deaf to Ctrl-C
                    signal.signal(which, self._noted)

    def hold(self) -> None:
        """From here on a signal waits."""
        self._held += 1

    def release(self) -> None:
        """Undo one `hold`.

        Raises:
            Stopped: if a signal has waited for this.
        """
        self._held -= 1
        self._stop_if_asked()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """A block that a signal does not cut in two."""
        self.hold()
        try:
            yield
        except BaseException:
            self._held -= 1  # what went wrong is the news
            raise
        self.release()

    def _noted(self, number: int, frame: FrameType | None) -> None:
        first = self.asked is None
        self.asked = self.asked or signal.Signals(number)
        if number == signal.SIGINT:  # which a terminal sends to all processes itself; the second time it is meant now
            if not first or not self._held:
                self._raised = True
                raise KeyboardInterrupt
            return
        if first:
            self.forward(number)
        self._stop_if_asked()

    def _stop_if_asked(self) -> None:
        """Once: what runs while the program ends is not stopped again."""
        if self.asked is not None and not self._held and not self._raised:
            self._raised = True
            raise Stopped(self.asked)


stopping = Stopping()  # of this process, as its signals are


def requeue(environment: Mapping[str, str] = os.environ) -> str | None:
    """Put this SLURM job back into its queue, once a job: what to say of it, None outside SLURM or on other ranks than zero."""
    words = _requeue_words(environment)
    if words is None:
        return None
    if shutil.which(words[0]) is None:
        return f"there is no {words[0]} here: put the job back into the queue yourself"
    done = subprocess.run(words, capture_output=True, text=True)
    said = " ".join((done.stdout + done.stderr).split())
    return f"{' '.join(words)}: {'requeued' if done.returncode == 0 else said or f'exit code {done.returncode}'}"


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
