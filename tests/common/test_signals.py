"""A signal stops at once, or waits while it is held; it stops once only; a SLURM job goes back into its queue."""

import os
import signal
import stat

import pytest

from lightning_app.common.signals import SIGNALS, Stopped, Stopping, requeue


@pytest.fixture
def stopping():
    earlier = {which: signal.getsignal(which) for which in (*SIGNALS, signal.SIGINT)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    made = Stopping()
    made.listen()
    yield made
    for which, handler in earlier.items():
        signal.signal(which, handler)


@pytest.mark.parametrize(("which", "code"), [(signal.SIGTERM, 143), (signal.SIGUSR1, 138)])
def test_a_signal_ends_the_program_with_the_shells_code(stopping, which, code):
    with pytest.raises(Stopped) as stopped:
        signal.raise_signal(which)
    assert stopped.value.code == code
    assert stopping.received is which


def test_a_held_signal_waits_for_the_last_release(stopping):
    stopping.defer()
    with pytest.raises(Stopped):
        with stopping.deferred():
            signal.raise_signal(signal.SIGTERM)
        assert stopping.received is signal.SIGTERM  # still held from outside
        stopping.release()


def test_ctrl_c_waits_too_and_the_second_does_not(stopping):
    stopping.defer()
    signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_ctrl_c_is_one_where_nothing_is_held(stopping):
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_a_held_ctrl_c_ends_with_the_shells_code(stopping):
    with pytest.raises(Stopped) as stopped, stopping.deferred():
        signal.raise_signal(signal.SIGINT)
    assert stopped.value.code == 130


def test_what_a_shell_has_ignored_stays_ignored(stopping):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    stopping.listen()
    signal.raise_signal(signal.SIGINT)
    assert stopping.received is None


def test_the_end_is_not_ended_again(stopping):
    with pytest.raises(Stopped):
        signal.raise_signal(signal.SIGTERM)
    signal.raise_signal(signal.SIGTERM)
    with stopping.deferred():
        signal.raise_signal(signal.SIGUSR1)
    assert stopping.received is signal.SIGTERM  # the first decides the exit code


def test_what_goes_wrong_in_a_held_block_is_the_news(stopping):
    with pytest.raises(OSError, match="disk"), stopping.deferred():
        signal.raise_signal(signal.SIGTERM)
        raise OSError("disk")


def test_the_first_signal_is_passed_on_once(stopping):
    passed = []
    stopping.forward = passed.append
    stopping.defer()
    signal.raise_signal(signal.SIGUSR1)
    signal.raise_signal(signal.SIGTERM)
    assert passed == [signal.SIGUSR1]


def test_a_job_of_slurm_is_requeued_by_rank_zero_alone(tmp_path, monkeypatch):
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n')
    scontrol.chmod(scontrol.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert requeue({}) is None
    assert requeue({"SLURM_JOB_ID": "7", "SLURM_PROCID": "1"}) is None
    assert not (tmp_path / "asked").exists()
    assert requeue({"SLURM_JOB_ID": "7", "SLURM_PROCID": "0"}) == "scontrol requeue 7: requeued"
    assert (tmp_path / "asked").read_text() == "requeue 7\n"


def test_a_refused_requeue_is_said(tmp_path, monkeypatch):
    scontrol = tmp_path / "scontrol"
    scontrol.write_text("#!/bin/sh\necho Job is not requeueable >&2\nexit 1\n")
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert "Job is not requeueable" in requeue({"SLURM_JOB_ID": "7"})
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert "scontrol was not found" in requeue({"SLURM_JOB_ID": "7"})
