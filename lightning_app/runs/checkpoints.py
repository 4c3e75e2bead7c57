"""Checkpoints: written atomically beside their target, loaded weights-only, one `last.ckpt` that a run resumes from."""

import io
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from lightning_fabric.plugins.io.torch_io import TorchCheckpointIO
from pytorch_lightning.callbacks import Checkpoint
from pytorch_lightning.utilities.exceptions import SIGTERMException
from typing_extensions import override

from lightning_app.errors import UserError
from lightning_app.runs.folder import write_atomically
from lightning_app.untrusted import read_torch

__all__ = ["LAST", "AtomicCheckpointIO", "SaveCheckpoint"]

LAST = "last.ckpt"


class AtomicCheckpointIO(TorchCheckpointIO):
    """Lightning's own save goes through $TMPDIR: across file systems it is a copy in place that a reader can see half of."""

    @override
    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None) -> None:
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        buffer = io.BytesIO()
        torch.save(checkpoint, buffer)
        write_atomically(target, buffer.getbuffer())

    @override
    def load_checkpoint(
        self, path: str | Path, map_location: Any | None = None, weights_only: bool | None = None
    ) -> dict:
        checkpoint = read_torch(Path(path))
        if not isinstance(checkpoint, dict) or not isinstance(checkpoint.get("state_dict"), dict):
            raise UserError(f"{path} is not a checkpoint of a training run: it has no state_dict.")
        return checkpoint


class SaveCheckpoint(Checkpoint):
    """Writes ``checkpoints/last.ckpt`` after epochs, keeps some, and saves on SIGTERM.

    Nothing is selected: the last epoch is the result, so there is no "best" checkpoint.

    Args:
        every_n_epochs: write last.ckpt after every so many epochs, and after the final one.
        keep_every_n_epochs: also keep ``epoch=0100.ckpt`` after every so many epochs; 0 keeps none.
    """

    def __init__(self, every_n_epochs: int = 1, keep_every_n_epochs: int = 0) -> None:
        if every_n_epochs < 1 or keep_every_n_epochs < 0:
            raise UserError(
                "save_checkpoint needs every_n_epochs >= 1 and keep_every_n_epochs >= 0, got "
                f"{every_n_epochs} and {keep_every_n_epochs}."
            )
        self.every_n_epochs = every_n_epochs
        self.keep_every_n_epochs = keep_every_n_epochs
        self.folder: Path | None = None  # set by whoever knows the run folder

    @override
    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        epoch = trainer.current_epoch + 1
        final = epoch == trainer.max_epochs
        if epoch % self.every_n_epochs == 0 or final:
            self._save(trainer, LAST)
        if self.keep_every_n_epochs and epoch % self.keep_every_n_epochs == 0:
            self._save(trainer, f"epoch={epoch:04d}.ckpt")

    @override
    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Save between two batches of an epoch. Elsewhere last.ckpt stands: resuming it repeats the epoch bit for bit."""
        progress = trainer.fit_loop.epoch_loop.batch_progress
        between = (
            trainer.training and progress.current.ready == progress.current.completed and not progress.is_last_batch
        )
        if isinstance(exception, SIGTERMException) and between and progress.current.completed:
            self._save(trainer, LAST)

    def _save(self, trainer: pl.Trainer, name: str) -> None:
        if self.folder is not None and not trainer.fast_dev_run:
            trainer.save_checkpoint(self.folder / name)
