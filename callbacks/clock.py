"""When something is done in a run: before training, after epochs and, if requested, after optimizer steps."""

import math
from abc import ABC, abstractmethod
from numbers import Integral
from typing import Any, Literal

import pytorch_lightning as pl
from typing_extensions import override

from callbacks.log import LoggingCallback
from callbacks.protocol import gather_members
from lightning_app.common.errors import UserError, at_least
from lightning_app.common.numbers import whole
from lightning_app.runs.checkpoints import is_last

POWERS: Literal["powers_of_2"] = "powers_of_2"
Steps = int | Literal["powers_of_2"]  # a distance between measurements in optimizer steps, or 1, 2, 4, 8, ...


def check_steps(what: str, steps: Steps | None) -> None:
    """UserError, which names the option ``what``, for anything but a distance between measurements in steps, or None."""
    if steps not in (None, POWERS) and (not isinstance(steps, Integral) or steps < 1):
        raise UserError(f"{what} must be a whole number of at least 1, or {POWERS} for 1, 2, 4, 8, ..., got {steps}.")


class EpochCallback(LoggingCallback, ABC):
    """Runs `observe` before training (epoch 0), after epochs and, if requested, after optimizer steps; on every rank.

    Args:
        every_n_epochs: number of epochs between measurements; the end of training is always measured.
        at_start: also measure before the first training step (not again after a resume).
        every_n_steps: also measure within epochs: number of optimizer steps between measurements, or "powers_of_2": 1, 2, 4,
            ...
    """

    def __init__(self, every_n_epochs: int = 1, at_start: bool = True, every_n_steps: Steps | None = None) -> None:
        self.set_clock(every_n_epochs, every_n_steps)
        self.at_start = at_start
        self._before = 0  # optimizer steps when the present batch began
        self._left_out: int | None = None  # the epoch that has just ended, if it was not due
        self._within = 0  # optimizer steps when it was measured within an epoch
        self.forget_run()

    def forget_run(self) -> None:
        """Forget what was said in the run before."""
        self._warned: set[str] = set()

    @override
    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        self.forget_run()

    def set_clock(self, every_n_epochs: int, every_n_steps: Steps | None) -> None:
        """Set when to measure; arguments as in the constructor. UserError: for a number below 1."""
        check_steps(f"every_n_steps of {type(self).__name__}", every_n_steps)
        self.every_n_epochs = at_least(1, type(self).__name__, every_n_epochs=every_n_epochs)
        self.every_n_steps = every_n_steps

    @abstractmethod
    def observe(self, trainer: pl.Trainer, pl_module: pl.LightningModule, epoch: float) -> None:
        """Measure and log; called when the clock says. ``epoch`` counts completed epochs; within one it has a fraction, see
        `epochs_done`."""

    def due_after(self, steps: int, before: int | None = None) -> bool:
        """Whether the clock asks for a measurement after one of the steps before + 1, ..., steps.

        With several optimizers a batch makes several steps. The answer depends only on the numbers of steps, so that a resume
        changes nothing.

        Args:
            steps: total number of steps.
            before: number of steps when the last batch began; by default one fewer.
        """
        before = steps - 1 if before is None else before
        if self.every_n_steps is None or not steps:
            return False
        if self.every_n_steps == POWERS:
            return steps.bit_length() > before.bit_length()
        return steps // int(self.every_n_steps) > before // int(self.every_n_steps)

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self.every_n_steps is not None and math.isinf(trainer.num_training_batches):
            raise UserError(
                f"every_n_steps of {type(self).__name__} places measurements within an epoch, but the training data do not say "
                "how many batches an epoch has: set trainer.limit_train_batches."
            )
        steps, ended = trainer.global_step, trainer.current_epoch
        self._within, self._before = 0, max(0, steps - 1)  # of a resume, which may end an epoch before its first batch
        # A resume of training that had ended trains no batch, and makes the measurements that its end may have left out.
        left_out = steps and trainer.is_last_batch and not self._epoch_is_due(trainer, steps, ended)
        self._left_out = ended if left_out else None
        if self.at_start and not (trainer.global_step or trainer.current_epoch):
            self.observe(trainer, pl_module, 0)

    @override
    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        self._before, self._left_out = trainer.global_step, None

    @override
    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        """Within epochs. What ends an epoch, or training, is measured after its evaluation, and once."""
        # not where gradients are accumulated over batches
        if not is_last(trainer) and self.due_after(trainer.global_step, self._before):
            self._observe_within(trainer, pl_module)

    @override
    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._left_out = None  # what a resume takes for left out, before it ends an epoch without a batch
        if not trainer.is_last_batch:  # training ends here
            self._observe_within(trainer, pl_module)
        elif self._epoch_is_due(trainer, trainer.global_step, trainer.current_epoch + 1):
            self.observe(trainer, pl_module, trainer.current_epoch + 1)
        else:
            self._left_out = trainer.current_epoch + 1

    @override
    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Measure the last epoch if it was not due: `EarlyStopping` ends training only after all other callbacks ran."""
        if self._left_out is not None:
            self.observe(trainer, pl_module, self._left_out)

    def _epoch_is_due(self, trainer: pl.Trainer, steps: int, epoch: int) -> bool:
        """Whether the end of this epoch, counted from 1, is measured, after so many steps in all."""
        last = epoch == trainer.max_epochs or 0 < trainer.max_steps <= steps
        return last or epoch % self.every_n_epochs == 0 or self.due_after(steps, self._before)

    def _observe_within(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Once a step: training may end with one that was just measured, as with a Timer."""
        if self._within == trainer.global_step:
            return
        self._within = trainer.global_step
        gather_members(pl_module)
        self.observe(trainer, pl_module, epochs_done(trainer))


def epochs_done(trainer: pl.Trainer) -> float:
    """Completed epochs, at the end of a batch: within an epoch with the share of its batches that is done, to 9 digits."""
    total = trainer.num_training_batches
    if trainer.is_last_batch or math.isinf(total):
        return trainer.current_epoch + 1
    return whole(round(trainer.current_epoch + (trainer.fit_loop.epoch_loop.batch_idx + 1) / total, 9))
