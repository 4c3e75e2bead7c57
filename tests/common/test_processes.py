"""A process of several dies: the observer lets the first one report it, and ends it with the same message if it does not."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lightning_app.common.processes import observe
from tests.helpers import ROOT

STOPPED = """
import signal, subprocess, sys, time
from lightning_app.common.processes import observe
from lightning_app.common.signals import stopping
stopping.received = signal.SIGTERM
child = subprocess.Popen([sys.executable, "-c", "import sys; sys.exit(143)"])
observe([child], grace=0.1, period=0.02)
child.wait()
time.sleep(1)
sys.exit(143)
"""
MAIN = """
import subprocess, sys, time
from lightning_app.common.processes import observe
child = subprocess.Popen([sys.executable, "-c", "import sys; sys.exit(3)"])
sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
observe([child, sleeper], grace=float(sys.argv[1]), period=0.02)
print(sleeper.pid, flush=True)
time.sleep(float(sys.argv[2]))
print("ended by itself", flush=True)
sleeper.kill()
"""


@pytest.mark.parametrize(("grace", "needs", "code"), [(0.2, 300, 1), (300, 1.0, 0)])
def test_a_failed_process_ends_the_job_with_a_message_after_a_grace_period(grace, needs, code):
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", MAIN, str(grace), str(needs)], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, "ended by itself" in done.stdout) == (code, code == 0)
    assert ("another process of this job died" in done.stderr) == (code == 1)
    assert ("exit code 3" in done.stderr) == (code == 1)
    assert time.monotonic() - began < 60
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it is gone
        while Path("/proc", done.stdout.split()[0], "stat").read_text().split()[2] != "Z":  # killed, and not gone yet
            assert time.monotonic() - began < 60, "a process is left running"
            time.sleep(0.05)


def test_processes_that_succeed_are_observed_no_longer():
    process = subprocess.Popen([sys.executable, "-c", ""])
    observer = observe([process], period=0.01)
    observer.join(60)
    assert not observer.is_alive() and process.returncode == 0


def test_a_process_that_the_same_signal_has_ended_did_not_fail():
    done = subprocess.run([sys.executable, "-c", STOPPED], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (143, "")


WAITING = """
import signal, sys
from lightning_app.common import processes
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have had it ignored
processes.MAIN = sys.argv[1]
sys.exit(processes.to_its_end([]))
"""
TRAINING = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
time.sleep(1)  # in which the parent comes to know it
print(os.getpid(), flush=True)
time.sleep(300)
"""


def test_an_interrupt_of_the_parent_alone_reaches_what_it_waits_for(tmp_path):
    (tmp_path / "train.py").write_text(TRAINING)
    parent = subprocess.Popen(
        [sys.executable, "-c", WAITING, str(tmp_path / "train.py")], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    pid = int(parent.stdout.readline())
    try:
        parent.send_signal(signal.SIGINT)
        assert parent.wait(120) == 143
    finally:
        parent.kill()
        parent.stdout.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_what_is_killed_has_the_exit_code_of_a_shell(tmp_path):
    (tmp_path / "train.py").write_text("import os; os.kill(os.getpid(), 9)")
    done = subprocess.run([sys.executable, "-c", WAITING, str(tmp_path / "train.py")], cwd=ROOT, timeout=120)
    assert done.returncode == 137
