"""A moment of a run in which a test can do something to it, however fast or slow the machine is."""

import subprocess
import time
from pathlib import Path

import pytorch_lightning as pl

STEPS_AN_EPOCH = 32  # of what is stopped like this: 64 samples in batches of 2


def wait_at(step: int) -> None:
    """Let training in this process, before its next batch, make a file `here` in its folder and wait for one `go`."""

    def wait(module: pl.LightningModule, *_) -> None:
        if module.trainer.global_step == step:
            Path("here").touch()
            while not Path("go").exists():
                time.sleep(0.01)

    pl.LightningModule.on_train_batch_start = wait


def until_it_waits(process: subprocess.Popen, cwd: Path, within: float = 240) -> None:
    deadline = time.monotonic() + within
    while not (cwd / "here").exists():
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            raise AssertionError(process.communicate())
        time.sleep(0.02)


def go_on(cwd: Path) -> None:
    (cwd / "go").touch()
