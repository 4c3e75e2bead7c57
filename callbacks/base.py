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

from callbacks.emit import emit
from callbacks.protocol import members_of
from lightning_app.errors import UserError

__all__ = ["EpochCallback", "Measure", "isolated"]

# What a foreign net may raise when a measure copies, differentiates or follows it.
FAILURES = (ValueError, TypeError, RuntimeError, AttributeError, LookupError, AssertionError)
log = logging.getLogger(__name__)


class EpochCallback(pl.Callback, ABC):
    """Runs `observe` before training (epoch 0) and after epochs, on every rank.

    Args:
        every_n_epochs: after every so many epochs, and always after the final one.
        at_start: also before the first training step. Not repeated after a resume.
    """

    forgiving = False  # what cannot be measured is named with the reason, and does not stop the rest

    def __init__(self, every_n_epochs: int = 1, at_start: bool = True) -> None:
        if every_n_epochs < 1:
            raise UserError(f"every_n_epochs of {type(self).__name__} must be at least 1, got {every_n_epochs}.")
        self.every_n_epochs = every_n_epochs
        self.at_start = at_start

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
    """

    family: ClassVar[str]

    @abstractmethod
    def measure(self, trainer: pl.Trainer, net: nn.Module) -> Mapping[str, Any]:
        """Results of one net by prefix, e.g. ``{"cushion/layer10": CushionStatistics(...)}``."""

    @override
    @rank_zero_only
    def observe(self, trainer: pl.Trainer, pl_module: pl.LightningModule, epoch: int) -> None:
        start = time.perf_counter()
        results = {name: self._results(trainer, name, net) for name, net in members_of(pl_module)}
        cost = {f"cost/{self.family}": time.perf_counter() - start}
        emit(trainer, epoch, self.family, results, cost)

    def _results(self, trainer: pl.Trainer, name: str, net: nn.Module) -> dict[str, Any]:
        try:
            with isolated(net):
                return dict(self.measure(trainer, net))
        except FAILURES as error:
            if not self.forgiving:
                raise
            said = " ".join(str(error).split()) or type(error).__name__
            log.warning("%s cannot measure '%s': %s", type(self).__name__, name, said)
            return {}


@contextmanager
def isolated(net: nn.Module) -> Iterator[None]:
    """Evaluation mode, no gradients, no autocast, attention written out; modes and random state are put back as they were.

    Training with a measure is then bit-identical to training without it: BatchNorm's buffers do not move in
    evaluation mode, and what the measure draws is not drawn from training's stream.
    """
    modes = {module: module.training for module in net.modules()}
    device = next((parameter.device for parameter in net.parameters()), torch.device("cpu"))
    devices = [device] if device.type == "cuda" else []
    net.eval()
    try:
        with torch.random.fork_rng(devices), torch.no_grad(), torch.autocast(device.type, enabled=False), _attention():
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode


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
