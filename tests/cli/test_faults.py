"""Faults as the command line meets them: a disk that fills up, a measure that fails, and ``--strict``."""

from pathlib import Path

import pytest

from lightning_app.runs import RunFolder
from tests.helpers import TINY, checkpoint, command, identical, log_rows

FAILING = '''
from callbacks.measure import Measure

class Failing(Measure):
    """On the plain net, after epoch 1."""

    family = "failing"

    def measure(self, context):
        if context.epoch == 1 and not getattr(context.net, "residual", True):
            raise LookupError("no such layer")
        return {"fine": 1.0}
'''
FEW = ("--trainer.callbacks", "TrainingMetrics", "--trainer.callbacks+=WeightMass", "--trainer.logger", "[]")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_stops_with_a_message_and_the_run_goes_on_bit_for_bit(tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    whole.mkdir()
    parts.mkdir()
    assert command(*TINY, *FEW, cwd=whole).returncode == 0
    assert command(*TINY, *FEW, "--trainer.max_epochs", "1", cwd=parts).returncode == 0
    log = parts / "runs" / "digits" / "quickstart" / "log.csv"
    aside = log.rename(parts / "log.csv")
    log.symlink_to("/dev/full")
    resume = (*TINY, *FEW, "--ckpt_path", "last")
    full = command(*resume, cwd=parts)
    assert full.returncode == 1 and "Traceback" not in full.stderr
    assert "log.csv cannot be written: No space left on device" in full.stderr and "--ckpt_path last" in full.stderr
    log.unlink()
    aside.rename(log)
    assert command(*resume, cwd=parts).returncode == 0
    one, other = (folder / "runs" / "digits" / "quickstart" for folder in (whole, parts))
    assert sorted(log_rows(one)) == sorted(log_rows(other))
    assert identical(checkpoint(one)["state_dict"], checkpoint(other)["state_dict"])


@pytest.mark.slow
def test_a_measure_that_fails_is_said_and_shown_and_strict_stops(tmp_path):
    (tmp_path / "mine.py").write_text(FAILING)
    words = (*TINY, *FEW, "--trainer.callbacks+=mine.Failing")
    path = {"PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2]}"}
    went = command(*words, cwd=tmp_path, env=path, page=True)
    message = "Failing cannot measure 'plain' after epoch 1: LookupError: no such layer"
    assert went.returncode == 0 and went.stderr.count(message) == 1 and "Traceback" not in went.stderr
    run = RunFolder(tmp_path / "runs" / "digits" / "quickstart")
    assert run.notes() == [message]
    failed = run.log().query("name == 'failed/failing'")
    assert failed[["member", "epoch", "value"]].values.tolist() == [["plain", 1, 1.0]]
    page = (run.path / "report.html").read_text()
    assert "&#39;failing&#39; could not be measured at epochs 1." in page and "no such layer" in page
    stopped = command(*words, "--strict", cwd=tmp_path, env=path)
    assert stopped.returncode == 1 and "LookupError: no such layer" in stopped.stderr
