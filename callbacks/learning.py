"""Risk, error and cost after every epoch, with learning rate and speed."""

import time

import pytorch_lightning as pl
from typing_extensions import override

from callbacks.base import EpochCallback
from callbacks.emit import emit
from lightning_app.errors import UserError

__all__ = ["Learning"]


class Learning(EpochCallback):
    """Logs what ``pl_module.metrics()`` says of every member, and how the epoch went.

    | key | unit | meaning |
    |---|---|---|
    | ``train/risk_running``, ``train/error_running`` | nats, share | means over the epoch's augmented batches, as trained on |
    | ``train/risk``, ``train/error``, ``test/...``, ``val/...`` | nats, share | un-augmented, at the epoch's final weights |
    | ``train/penalty``, ``train/cost``, ``train/cost_paper`` | nats | see `ImageClassifier.metrics` |
    | ``lr`` | 1 | learning rate of the epoch |
    | ``time/epoch`` | seconds | training batches and evaluation, without the measures |
    """

    def __init__(self, every_n_epochs: int = 1, at_start: bool = True) -> None:
        super().__init__(every_n_epochs, at_start)
        self._started = time.perf_counter()

    @override
    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._started = time.perf_counter()

    @override
    def observe(self, trainer: pl.Trainer, pl_module: pl.LightningModule, epoch: int) -> None:
        if not callable(getattr(pl_module, "metrics", None)):
            raise UserError(
                f"Learning logs what pl_module.metrics() says, and {type(pl_module).__name__} has no such method: leave it "
                "out, and log risks and errors with self.log as ever."
            )
        results = pl_module.metrics()  # sums over ranks, so on all of them
        if trainer.is_global_zero:
            whole_run = {}
            if trainer.optimizers:  # else nothing is trained here, only measured
                whole_run = {"lr": trainer.optimizers[0].param_groups[0]["lr"]}
                if epoch:
                    whole_run["time/epoch"] = time.perf_counter() - self._started
            emit(trainer, epoch, "learning", results, whole_run)
