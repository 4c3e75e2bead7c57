"""One line an epoch, for logs and pipes where a progress bar would be a mess."""

import time

import pytorch_lightning as pl
from pytorch_lightning.utilities import rank_zero_only
from typing_extensions import override

__all__ = ["ProgressLines"]


class ProgressLines(pl.Callback):
    """Prints every member's running risk and test error after each epoch."""

    def __init__(self) -> None:
        self._started = time.perf_counter()

    @override
    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._started = time.perf_counter()

    @override
    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        seconds = time.perf_counter() - self._started
        shown = {
            "risk": "train/risk_running",
            "test error": "test/error",
        }
        said = [
            " ".join([name, *(f"{label} {numbers[key]:.4g}" for label, key in shown.items() if key in numbers)])
            for name, numbers in pl_module.metrics().items()
        ]
        self._print(f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}  {' | '.join(said)}  ({seconds:.1f} s)")

    @rank_zero_only
    def _print(self, line: str) -> None:
        print(line, flush=True)
