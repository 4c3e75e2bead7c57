"""`fit` on a DataLoader of one's own, which keeps no state and shuffles by the global random state."""

import random
from types import SimpleNamespace

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, Dataset, IterableDataset

from lightning_app.cli.trainer import Trainer
from lightning_app.cli.training import TrainingCLI
from lightning_app.common.errors import UserError
from lightning_app.runs.checkpoints import AtomicCheckpointIO

STEPS = 5  # an epoch


class Jittered(Dataset):
    """Its samples draw numbers from every global random state, as augmentations do."""

    def __len__(self) -> int:
        return 4 * STEPS

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index, random.random(), np.random.rand(), torch.rand(()).item()])


class Stream(IterableDataset):
    """Of unknown length, for which Lightning fetches a batch ahead."""

    def __iter__(self):
        return (Jittered()[index] for index in range(4 * STEPS))


class Own(pl.LightningDataModule):
    def __init__(self, workers: int = 0, evaluates: bool = True, streams: bool = False) -> None:
        super().__init__()
        self.workers, self.evaluates, self.streams = workers, evaluates, streams

    def train_dataloader(self) -> DataLoader:
        if self.streams:
            return DataLoader(Stream(), 4, num_workers=self.workers)
        return DataLoader(Jittered(), 4, shuffle=True, num_workers=self.workers)

    def val_dataloader(self) -> DataLoader | list:
        return DataLoader(Jittered(), 4, shuffle=True) if self.evaluates else []


class Seeing(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.seen: list = []

    def training_step(self, batch, _):
        self.seen.append(batch.tolist())
        return self.weight * batch.mean()

    def validation_step(self, batch, _):
        torch.rand(3)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def seen(folder, data: Own, ckpt_path: str | None = None, **limits) -> list:
    module, options = Seeing(), {"max_epochs": 4, "logger": False, "enable_progress_bar": False} | limits
    saving = [ModelCheckpoint(folder, filename="{step}", every_n_train_steps=1, save_top_k=-1)]
    trainer = Trainer(
        default_root_dir=folder, callbacks=saving, plugins=[AtomicCheckpointIO()], accelerator="cpu", num_sanity_val_steps=0,
        enable_model_summary=False, **options,
    )  # fmt: skip
    trainer.fit(module, datamodule=data, ckpt_path=ckpt_path)
    return module.seen


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("workers", "streams"), [(0, False), (1, False), (0, True), (1, True)])
@pytest.mark.parametrize("steps", [2 * STEPS, 2 * STEPS + 3, 3])
def test_a_resumed_run_sees_the_batches_of_an_unbroken_one(tmp_path, steps, workers, streams):
    whole = seen(tmp_path / "whole", Own(workers, streams=streams))
    assert len({str(batch) for batch in whole}) == 4 * STEPS  # another order in each epoch
    torch.manual_seed(1)  # the state of another process
    begun = seen(tmp_path, Own(workers, streams=streams), max_steps=steps)
    torch.rand(7)
    went_on = seen(tmp_path, Own(workers, streams=streams), str(tmp_path / f"step={steps}.ckpt"))
    assert whole == begun + went_on


@pytest.mark.filterwarnings("ignore")
def test_evaluation_changes_no_order(tmp_path):
    assert seen(tmp_path / "with", Own()) == seen(tmp_path / "without", Own(evaluates=False))


def test_without_data_to_evaluate_on_there_is_a_message_and_no_empty_table():
    trainer, module = SimpleNamespace(is_global_zero=True), SimpleNamespace(last_metrics={})
    with pytest.raises(UserError, match="test expected data to evaluate on, got none from Own"):
        TrainingCLI.after_test(SimpleNamespace(trainer=trainer, model=module, subcommand="test", datamodule=Own()))
