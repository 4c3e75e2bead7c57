"""Checkpoints: written atomically beside their target, loaded weights-only, one `last.ckpt` that a run resumes from.

The earlier last.ckpt stands until the new one lies beside it on the disk, has been read back whole and could be loaded.
"""

import io
import json
import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from lightning_fabric.plugins.io.torch_io import TorchCheckpointIO
from pytorch_lightning.callbacks import Checkpoint
from pytorch_lightning.callbacks.early_stopping import EarlyStoppingReason
from pytorch_lightning.trainer.states import TrainerFn
from torch import Tensor
from typing_extensions import override

from lightning_app.common.errors import UserError, at_least, first_line
from lightning_app.common.files import with_folder, write_atomically
from lightning_app.common.safe_io import read_torch
from lightning_app.common.signals import stopping
from lightning_app.runs.folder import LAST, RunFolder

PACKED = ".safetensors"  # what such a file holds of a checkpoint: `packed_weights`
CHECKPOINT = "checkpoint"  # key of its metadata
CARRIED_OVER = (
    "epoch",
    "global_step",
    "pytorch-lightning_version",
    "loops",
    "members",
    "id_weights",
    "centres",
    "parameters",
)


class AtomicCheckpointIO(TorchCheckpointIO):
    """Lightning's own save goes through $TMPDIR: across file systems it is a copy in place that a reader can see half of."""

    @override
    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None) -> None:
        target = with_folder(Path(path))
        packing = holds_weights_alone(target)
        try:
            content = packed_weights(checkpoint) if packing else _saved(checkpoint)
        except (pickle.PicklingError, AttributeError, TypeError) as error:  # what pickle raises, by what it meets
            raise UserError(
                f"the checkpoint cannot be written ({first_line(error)}): expected only tensors and plain Python values in "
                "the state_dict of callbacks and in save_hyperparameters."
            ) from error
        write_atomically(target, content, check=None if packing else _check)

    @override
    def load_checkpoint(
        self, path: str | Path, map_location: Any | None = None, weights_only: bool | None = None
    ) -> dict:
        checkpoint = _read_weights(Path(path)) if holds_weights_alone(Path(path)) else read_torch(Path(path))
        if not isinstance(checkpoint, dict) or not isinstance(checkpoint.get("state_dict"), dict):
            raise UserError(
                f"expected a checkpoint of `fit`, and {path} has no state_dict. Name the checkpoints/last.ckpt of a run, or "
                "measure weights alone with --model.net CLASS --weights FILE."
            )
        return checkpoint


def holds_weights_alone(file: Path) -> bool:
    """Whether a file of that name has no optimizer's state (`packed_weights`)."""
    return file.suffix.lower() == PACKED


def _saved(checkpoint: Mapping[str, Any]) -> memoryview:
    """As `torch.save` writes it."""
    buffer = io.BytesIO()
    torch.save(checkpoint, buffer)
    return buffer.getbuffer()


def packed_weights(checkpoint: Mapping[str, Any]) -> bytes:
    """A checkpoint's weights as a .safetensors file, with what it says of its nets and its progress.

    It can be validated, tested and measured; training cannot be resumed from it, as the optimizer's state is left out.
    """
    from safetensors.torch import save

    said = {key: checkpoint[key] for key in CARRIED_OVER if key in checkpoint}
    for name, tensor in checkpoint["state_dict"].items():
        dense = isinstance(tensor, Tensor) and tensor.layout is torch.strided and not tensor.is_quantized
        if not dense or tensor.dtype is torch.complex128:
            raise UserError(
                f"'{name}' of the net's state cannot be written: {PACKED} files hold only dense tensors, and none of complex128. "
                "Choose a *.ckpt file."
            )
    copied = partial(torch.clone, memory_format=torch.contiguous_format)
    weights = {name: copied(tensor.detach()) for name, tensor in checkpoint["state_dict"].items()}
    return save(weights, {CHECKPOINT: json.dumps(said)})


def _read_weights(file: Path) -> dict[str, Any]:
    """What `packed_weights` packed, as a checkpoint."""
    weights, metadata = read_safetensors(file)
    if CHECKPOINT not in metadata:
        raise UserError(
            f"{file} has only weights, and does not say how far training had come: measure them with --model.net CLASS "
            f"--weights {file}."
        )
    try:
        said = json.loads(metadata[CHECKPOINT])
    except ValueError as error:
        raise UserError(
            f"{file} was not written by SkipScope: its metadata '{CHECKPOINT}' is not JSON: {error}."
        ) from error
    if not isinstance(said, dict):
        raise UserError(
            f"{file} was not written by SkipScope: its metadata '{CHECKPOINT}' should be an object, got {type(said).__name__}."
        )
    return {**said, "state_dict": weights, "callbacks": {}}


def read_safetensors(file: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Tensors of a .safetensors file by name, on the CPU, and its metadata.

    Raises:
        UserError: if there is no such file, or it is not complete.
    """
    from safetensors import SafetensorError, safe_open

    if not file.is_file():
        raise UserError(f"expected weights at {file}, found no such file.")
    try:
        with safe_open(file, "pt") as content:
            return {name: content.get_tensor(name) for name in content.keys()}, content.metadata() or {}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, LookupError) as error:
        raise UserError(f"{file} is not a complete .safetensors file: {error}.") from error


def _check(file: Path) -> None:
    """Can what has just been written be resumed from? UserError: if not, before it replaces a checkpoint that can."""
    try:
        read_torch(file)
    except UserError as error:
        # torch says first what to do at one's own risk, then what it met
        cause = error.__cause__ or error
        lines = [line.strip() for line in str(cause).splitlines()] or [type(cause).__name__]
        reason = next((line for line in lines if line.startswith("WeightsUnpickler")), lines[0]).rstrip(".")
        raise UserError(
            f"the checkpoint just written could not be loaded again ({reason}), and the one before it is kept. Either "
            "the disk loses data, or the state_dict of a callback or save_hyperparameters has something other than tensors and "
            "plain Python values in it."
        ) from error


class SaveCheckpoint(Checkpoint):
    """Writes ``checkpoints/last.ckpt`` after epochs, keeps some, and saves when a signal ends the run.

    Nothing is selected: the last epoch is the result, so there is no "best" checkpoint. If training resumes from last.ckpt, or
    begins again, what was logged of later steps is dropped: they are made again, perhaps with other options or not all of them.
    Where `EarlyStopping` ended training a resume trains nothing, unless it had lost its patience and has more now: Lightning
    would keep the patience of the checkpoint, forget that training had ended, and train an epoch more with each resume.

    Args:
        every_n_epochs: number of epochs after which last.ckpt is written; it is always written after the final one.
        every_n_steps: number of optimizer steps after which it is also written, within an epoch; 0: never.
        keep_every_n_epochs: number of epochs after which ``epoch=0100.ckpt`` is kept, too; 0: never.
    """

    def __init__(self, every_n_epochs: int = 1, every_n_steps: int = 0, keep_every_n_epochs: int = 0) -> None:
        self.every_n_epochs = at_least(1, "save_checkpoint", every_n_epochs=every_n_epochs)
        self.every_n_steps = at_least(0, "save_checkpoint", every_n_steps=every_n_steps)
        self.keep_every_n_epochs = at_least(0, "save_checkpoint", keep_every_n_epochs=keep_every_n_epochs)
        self.folder: Path | None = None  # set by whoever knows the run folder
        self._saved: int | None = None  # optimizer steps of last.ckpt
        self._trained = False  # a batch, since this process began or resumed
        self._patience: list[int] = []  # as configured, of each `EarlyStopping`

    @override
    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        self._patience = [early.patience for early in trainer.early_stopping_callbacks]
        self._trained = False

    @override
    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        for early, patience in zip(trainer.early_stopping_callbacks, self._patience):
            exhausted = early.stopping_reason is EarlyStoppingReason.PATIENCE_EXHAUSTED
            if patience != early.patience and exhausted and early.wait_count < patience:
                early.stopping_reason = EarlyStoppingReason.NOT_STOPPED
            early.patience = patience
        if stopped_early(trainer):  # a run that was killed in its last measures begins, ends at once, and makes them
            finished = self.folder is not None and RunFolder(self.folder.parent).finished is not None
            trainer.should_stop = trainer.strategy.broadcast(finished)

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        trainer.should_stop |= stopped_early(trainer)
        if self.folder is not None and trainer.is_global_zero:
            RunFolder(self.folder.parent).drop_after(trainer.global_step)

    @override
    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        """Not before an evaluation, which a resume would leave out: it is saved after that, or at the end."""
        self._trained = True
        if self._is_due(trainer) and not is_last(trainer) and not _evaluates(trainer):
            self._save(trainer, LAST)

    @override
    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Within an epoch (``trainer.val_check_interval``)."""
        fitting = trainer.state.fn == TrainerFn.FITTING and not trainer.sanity_checking
        if fitting and self._is_due(trainer) and not is_last(trainer):
            self._save(trainer, LAST)

    @override
    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        epoch = trainer.current_epoch + 1
        if self.keep_every_n_epochs and epoch % self.keep_every_n_epochs == 0 and trainer.is_last_batch:
            self._save(trainer, f"epoch={epoch:04d}.ckpt")  # first: a run killed in between resumes before it
        # The last epoch as far as it can be known: by number of epochs or steps, or since somebody asked for the end.
        final = epoch == trainer.max_epochs or 0 < trainer.max_steps <= trainer.global_step or trainer.should_stop
        if epoch % self.every_n_epochs == 0 or self._is_due(trainer) or final:
            with nullcontext() if trainer.is_last_batch else _unfinished(trainer):
                self._save(trainer, LAST)

    @override
    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Save between two batches of an epoch. Elsewhere last.ckpt stands: resuming it repeats the epoch bit for bit.

        It also stands until a resume has trained its first batch: before that the loops may know how far the epoch had come while
        optimizer and loader do not, or the loader may be a batch ahead.
        """
        progress = trainer.fit_loop.epoch_loop.batch_progress
        within = self._trained and 0 < progress.current.completed == progress.current.ready and not is_last(trainer)
        if isinstance(exception, SystemExit) and stopping.received and trainer.training and within:
            self._save(trainer, LAST)

    def _is_due(self, trainer: pl.Trainer) -> bool:
        step = trainer.global_step
        return self.every_n_steps > 0 and step % self.every_n_steps == 0 and step != self._saved

    def _save(self, trainer: pl.Trainer, name: str) -> None:
        if self.folder is None or getattr(trainer, "fast_dev_run", False):  # set by a function, unseen by type checkers
            return
        with stopping.deferred():
            trainer.save_checkpoint(self.folder / name)
            if name == LAST:
                self._saved = trainer.global_step


def is_last(trainer: pl.Trainer) -> bool:
    """Whether the batch that was just trained on is the last one of its epoch, or of training."""
    stops = trainer.should_stop and trainer.fit_loop._can_stop_early  # not before trainer.min_epochs and min_steps
    return trainer.is_last_batch or stops or 0 < trainer.max_steps <= trainer.global_step


def _evaluates(trainer: pl.Trainer) -> bool:
    """Whether nets are evaluated after the batch that was just trained on."""
    loop: Any = trainer.fit_loop  # whose fetcher is there while it trains
    return loop.epoch_loop._should_check_val_fx(loop._data_fetcher)


def stopped_early(trainer: pl.Trainer) -> bool:
    """Whether an `EarlyStopping` has asked for the end of training, here or before a resume."""
    return any(one.stopping_reason is not EarlyStoppingReason.NOT_STOPPED for one in trainer.early_stopping_callbacks)


@contextmanager
def _unfinished(trainer: pl.Trainer) -> Iterator[None]:
    """Within it, the epoch in whose middle training ends is none that Lightning counts as done: a resume goes on in it."""
    progress: Any = trainer.fit_loop.epoch_progress  # whose counts have more than their declared type
    for count in (progress.total, progress.current):
        count.processed -= 1
    try:
        yield
    finally:
        for count in (progress.total, progress.current):
            count.processed += 1


class Stopper(pl.Callback):
    """Lets a signal wait during training, until the trainer can stop between two batches; at other times it stops at once.

    Comes before all other callbacks, so that a signal need not wait while they measure.
    """

    def __init__(self) -> None:
        self.trained = False  # has training begun?
        self._training = False

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.trained = True

    @override
    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._switch(True)

    @override
    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        """An epoch that goes on in its middle does not start: Lightning leaves `on_train_epoch_start` out."""
        self._switch(True)

    @override
    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._switch(False)

    @override
    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._switch(trainer.state.fn == "fit" and not trainer.sanity_checking)

    @override
    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._switch(False)

    def _switch(self, training: bool) -> None:
        was, self._training = self._training, training
        if training and not was:
            stopping.defer()
        if was and not training:
            stopping.release()
