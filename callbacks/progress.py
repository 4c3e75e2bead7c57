"""What is seen of a running fit: a line an epoch, which logs and pipes keep, and on a terminal a bar below the lines."""

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import RichProgressBar
from pytorch_lightning.utilities import rank_zero_only
from typing_extensions import override

from callbacks.protocol import metrics_of
from lightning_app.runs.members import members_of
from lightning_app.statistics.paired import spread

__all__ = ["EpochBar", "ProgressLines"]

SHOWN = {"risk": "train/risk_running", "test error": "test/error"}


class ProgressLines(pl.Callback):
    """Prints running risk and test error after each epoch: each arm's, over several seeds as mean ± standard deviation."""

    def __init__(self) -> None:
        self._started = time.perf_counter()

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.global_step:
            self._print(f"going on after epoch {trainer.current_epoch}, step {trainer.global_step}")

    @override
    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._started = time.perf_counter()

    @override
    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        seconds = time.perf_counter() - self._started
        arms = defaultdict(list)
        metrics = metrics_of(pl_module)
        for member in members_of(pl_module):
            arms[member.arm].append(metrics[member.name])
        words = " | ".join(_words(arm, seeds) for arm, seeds in arms.items())
        self._print(f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}  {words}  ({seconds:.1f} s)")

    @rank_zero_only
    def _print(self, line: str) -> None:
        print(line, flush=True)


class EpochBar(RichProgressBar):
    """Lightning's Rich bar below `ProgressLines`: batches, time and speed, epochs counted as in the lines.

    Args:
        refresh_rate: redrawings a second. Each costs about a millisecond of Python beside the training loop.
    """

    def __init__(self, refresh_rate: int = 10) -> None:
        super().__init__(refresh_rate=refresh_rate)

    @override
    def get_metrics(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> dict[str, Any]:
        """None: a bank's errors would not fit, and are in the lines above."""
        return {}

    @override
    def _get_train_description(self, current_epoch: int) -> str:
        text = f"epoch {current_epoch + 1}/{self.trainer.max_epochs}"
        return text.ljust(len(self.validation_description))  # else the bars move when the other one comes

    @property
    @override
    def sanity_check_description(self) -> str:
        """What Lightning calls a sanity check is the evaluation before training."""
        return "epoch 0"


def _words(arm: str, seeds: Sequence[Mapping[str, float]]) -> str:
    """One arm's numbers.

    >>> _words("plain", [{"test/error": 0.5}, {"test/error": 0.7}])
    'plain (2 seeds) test error 0.6 ± 0.14'
    """
    several = len(seeds) > 1
    parts = [f"{arm} ({len(seeds)} seeds)" if several else arm]
    for label, key in SHOWN.items():
        if key in seeds[0]:
            over = spread(numbers[key] for numbers in seeds)
            parts.append(f"{label} {over.mean:.4g} ± {over.sd:.2g}" if several else f"{label} {seeds[0][key]:.4g}")
    return " ".join(parts)
