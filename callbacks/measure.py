"""What every measuring callback shares: when to measure, without leaving a trace, at what cost, and one log call.

A callback decides *when*, *on which data* and *under which name*; the mathematics is in `lightning_app.measures`, and
how it meets a model and its data in `protocol`.
"""

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities import rank_zero_only
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from typing_extensions import override

from callbacks.faults import free_memory, is_fatal, ran_out_of_memory, reason
from callbacks.log import emit, note
from callbacks.protocol import Pieces, handing_out, members_of
from lightning_app.common.errors import UserError
from lightning_app.common.isolation import evaluating

__all__ = ["EpochCallback", "Measure", "isolated"]

log = logging.getLogger(__name__)


class EpochCallback(pl.Callback, ABC):
    """Runs `observe` before training (epoch 0) and after epochs, on every rank.

    Args:
        every_n_epochs: after every so many epochs, and always after the final one.
        at_start: also before the first training step. Not repeated after a resume.

    Attributes:
        strict: stop at whatever cannot be measured or logged. Otherwise it is left out, and said.
        forgiving: leave out what cannot be measured even where that is a mistake of the user that shows before training.
    """

    strict = False
    forgiving = False

    def __init__(self, every_n_epochs: int = 1, at_start: bool = True) -> None:
        if every_n_epochs < 1:
            raise UserError(f"every_n_epochs of {type(self).__name__} must be at least 1, got {every_n_epochs}.")
        self.every_n_epochs = every_n_epochs
        self.at_start = at_start
        self._said: set[Any] = set()  # what need not be said again

    @abstractmethod
    def observe(self, trainer: pl.Trainer, pl_module: pl.LightningModule, epoch: int) -> None:
        """Look and emit. ``epoch`` counts completed epochs."""

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self.at_start and trainer.global_step == 0 and trainer.current_epoch == 0:
            self.observe(trainer, pl_module, 0)

    @override
    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        epoch = trainer.current_epoch + 1
        if epoch % self.every_n_epochs == 0 or epoch == trainer.max_epochs:
            self.observe(trainer, pl_module, epoch)


class Measure(EpochCallback):
    """Measures every member on rank zero, isolated from training, and logs the results and their cost in seconds.

    A subclass names its ``family`` and returns, for one net, named dataclasses; `emit` logs their fields.

    Faults: a net that cannot be measured gets the number ``failed/<family>`` = 1 for that epoch, and its reason is said
    once and noted in the run folder; training and the other nets and measures go on. A mistake of the user that shows
    before training stops it, and so does everything where ``strict``. Out of memory, the measure is tried again on half as
    many samples at a time, down to one. Its numbers are then the same up to rounding, those that are estimated from random
    vectors up to their standard errors.
    """

    family: ClassVar[str]
    _at_once: int | None = None  # so many samples at a time, since more ran out of memory

    @abstractmethod
    def measure(self, trainer: pl.Trainer, net: nn.Module) -> Mapping[str, Any]:
        """Results of one net by prefix, e.g. ``{"cushion/layer10": CushionStatistics(...)}``."""

    def attempt(self, trainer: pl.Trainer, net: nn.Module) -> dict[str, Any]:
        """Measure, or raise and leave this callback as it was."""
        with isolated(net):
            return dict(self.measure(trainer, net))

    @override
    @rank_zero_only
    def observe(self, trainer: pl.Trainer, pl_module: pl.LightningModule, epoch: int) -> None:
        start = time.perf_counter()
        results = {name: self._results(trainer, name, net, epoch) for name, net in members_of(pl_module)}
        cost = {f"cost/{self.family}": time.perf_counter() - start}
        emit(trainer, epoch, self.family, results, cost, self.strict)

    def _results(self, trainer: pl.Trainer, name: str, net: nn.Module, epoch: int) -> dict[str, Any]:
        try:
            return self._in_memory(trainer, name, net)
        except Exception as error:  # a foreign net raises what it likes
            mistake = isinstance(error, UserError) and epoch == 0 and not self.forgiving
            if self.strict or mistake or is_fatal(error):
                raise
            self._note(trainer, name, epoch, error)
            return {f"failed/{self.family}": 1.0}

    def _in_memory(self, trainer: pl.Trainer, name: str, net: nn.Module) -> dict[str, Any]:
        """As many samples at a time as fit."""
        ran_out = 0
        while True:
            pieces = Pieces(self._at_once)
            try:
                with handing_out(pieces):
                    found = self.attempt(trainer, net)
                break
            except Exception as error:
                if pieces.largest < 2 or not ran_out_of_memory(error):
                    raise
            ran_out = ran_out or pieces.largest
            self._at_once = pieces.largest // 2
            free_memory()  # not before: the exception holds what it failed on
        if ran_out:
            what = f"{type(self).__name__} ran out of memory on '{name}' with {ran_out} samples at a time"
            print(f"{what}: it goes on with {self._at_once}.", flush=True)
        return found

    def _note(self, trainer: pl.Trainer, name: str, epoch: int, error: Exception) -> None:
        what, why = f"{type(self).__name__} cannot measure '{name}'", reason(error)
        when = "" if self.forgiving else f" after epoch {epoch}" if epoch else " before training"
        if (what, why) not in self._said:
            self._said.add((what, why))
            log.warning(sentence := f"{what}{when}: {why}")
            note(trainer, sentence)


@contextmanager
def isolated(net: nn.Module) -> Iterator[None]:
    """Evaluation mode, no gradients, no autocast, attention written out; modes and random state are put back as they were.

    Training with a measure is then bit-identical to training without it: BatchNorm's buffers do not move in
    evaluation mode, and what the measure draws is not drawn from training's stream.
    """
    device = next((parameter.device for parameter in net.parameters()), torch.device("cpu"))
    with evaluating(net), torch.autocast(device.type, enabled=False), _attention():
        yield


@contextmanager
def _attention() -> Iterator[None]:
    """Attention written out: its fused kernels have neither forward-mode nor second derivatives."""
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)
