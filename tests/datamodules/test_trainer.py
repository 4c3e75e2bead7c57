"""The datamodules under Lightning: what the trainer asks of loaders, and an epoch that stops in the middle."""

from types import SimpleNamespace

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint, OnExceptionCheckpoint

from lightning_app.common.batch_plan import BatchPlan
from lightning_app.common.errors import UserError
from lightning_app.datamodules import EpochLoader
from tests import helpers
from tests.datamodules.synthetic import Synthetic


class Recorder(pl.LightningModule):
    """Notes each training batch as (epoch, {seed: (sum of its pixels, labels)}), and the size of what it evaluates."""

    def __init__(self, seeds=None, raise_at=None):
        super().__init__()
        self.seeds = seeds
        self.raise_at = raise_at
        self.net = torch.nn.Linear(1, 1)
        self.batches = []
        self.evaluated = {}

    def setup(self, stage):
        if self.seeds is not None:
            self.trainer.datamodule.use_plan(BatchPlan(seeds=self.seeds))

    def training_step(self, batch, index):
        if self.raise_at == (self.current_epoch, index):
            raise Interrupted
        parts = batch if isinstance(batch, dict) else {None: batch}
        note = {seed: (images.double().sum().item(), labels.tolist()) for seed, (images, labels) in parts.items()}
        self.batches.append((self.current_epoch, index, note))
        return self.net(torch.ones(1, 1)).sum()

    def validation_step(self, batch, index, dataloader_idx=0):
        self.evaluated[dataloader_idx] = self.evaluated.get(dataloader_idx, 0) + len(batch[1])

    def test_step(self, batch, index):
        self.evaluated["test"] = self.evaluated.get("test", 0) + len(batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Interrupted(Exception):
    pass


def trainer(folder, *callbacks, **options) -> pl.Trainer:
    saving = {"enable_checkpointing": bool(callbacks), "callbacks": list(callbacks), "default_root_dir": folder}
    return helpers.trainer(**({"max_epochs": 3, "devices": 1} | saving | options))


def trained(folder, seeds=None, **options) -> list:
    module = Recorder(seeds)
    trainer(folder, **options).fit(module, datamodule=Synthetic())
    return module.batches


def resumed(folder, checkpoint, seeds=None, **options) -> list:
    module = Recorder(seeds)
    trainer(folder, **options).fit(module, datamodule=Synthetic(), ckpt_path=checkpoint, weights_only=True)
    return module.batches


@pytest.fixture(autouse=True)
def quiet(recwarn):
    """Lightning's advice about workers and intervals is about other loaders."""


def test_batches_are_those_of_the_loader(tmp_path):
    expected, loader = [], Synthetic().train_dataloader()
    for epoch in range(3):
        loader.set_epoch(epoch)
        for index, (images, labels) in enumerate(loader):
            expected.append((epoch, index, {None: (images.double().sum().item(), labels.tolist())}))
    assert trained(tmp_path) == expected


def test_seeds_of_the_plan_make_a_batch_of_independent_streams(tmp_path):
    both, alone = trained(tmp_path, seeds=(4, 7)), trained(tmp_path, seeds=(7,))
    assert [tuple(note) for *_, note in both] == [(4, 7)] * 12
    assert all(note[4] != note[7] for *_, note in both)
    assert [note[7] for *_, note in both] == [note[7] for *_, note in alone]


def test_evaluation_sees_every_split_whole(tmp_path):
    module = Recorder()
    run = trainer(tmp_path)
    run.validate(module, datamodule=Synthetic(val_size=9), verbose=False)
    assert module.evaluated == {0: 51, 1: 9, 2: 23}
    run.test(module, datamodule=Synthetic(), verbose=False)
    assert module.evaluated["test"] == 23


@pytest.mark.parametrize("seeds", [None, (4, 7)])
@pytest.mark.parametrize("steps", [2, 4, 11])
def test_stop_and_resume_sees_the_same_batches(tmp_path, seeds, steps):
    whole = trained(tmp_path, seeds)
    save = ModelCheckpoint(tmp_path, filename="stopped", every_n_train_steps=steps, save_top_k=1)
    module = Recorder(seeds)
    trainer(tmp_path, save, max_steps=steps).fit(module, datamodule=Synthetic())
    assert module.batches == whole[:steps]
    assert resumed(tmp_path, tmp_path / "stopped.ckpt", seeds) == whole[steps:]


@pytest.mark.parametrize("at_train_end", [False, True])
def test_resume_from_the_end_of_an_epoch(tmp_path, at_train_end):
    save = ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1, save_on_train_epoch_end=at_train_end)
    module = Recorder()
    trainer(tmp_path, save).fit(module, datamodule=Synthetic())
    assert resumed(tmp_path, tmp_path / "epoch=0.ckpt") == module.batches[4:]


def test_resume_after_epochs_cut_short(tmp_path):
    save = ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1)
    module = Recorder()
    trainer(tmp_path, save, limit_train_batches=2).fit(module, datamodule=Synthetic())
    assert len(module.batches) == 6
    assert resumed(tmp_path, tmp_path / "epoch=0.ckpt", limit_train_batches=2) == module.batches[2:]


@pytest.mark.parametrize("where", [(0, 1), (1, 3), (2, 0)])
def test_resume_after_an_exception_inside_a_step(tmp_path, where):
    """The batch that was being trained on comes again: none is lost, none is seen twice."""
    whole = trained(tmp_path)
    module = Recorder(raise_at=where)
    save = OnExceptionCheckpoint(tmp_path, "stopped")
    with pytest.raises(Interrupted):
        trainer(tmp_path, save).fit(module, datamodule=Synthetic())
    done = len(module.batches)
    again = Recorder()
    trainer(tmp_path).fit(again, datamodule=Synthetic(), ckpt_path=tmp_path / "stopped.ckpt", weights_only=True)
    assert (module.batches, again.batches) == (whole[:done], whole[done:])
    assert again.evaluated == {0: 60 * (3 - where[0]), 1: 23 * (3 - where[0])}


class FakeStrategy:
    root_device = torch.device("cpu")


class FakeTrainer:
    """A rank of a job, without the job."""

    def __init__(self, rank, world, **strategy):
        self.global_rank, self.world_size = rank, world
        self.strategy = FakeStrategy()
        self.strategy.__dict__.update(strategy)


@pytest.mark.parametrize("world", [1, 2, 3, 7])
def test_ranks_share_each_global_batch(world):
    def loaders(rank, world):
        data = Synthetic(drop_last=True)
        data.trainer = FakeTrainer(rank, world)
        return data.train_dataloader(), data.test_dataloader()

    train, test = loaders(0, 1)
    ranks = [loaders(rank, world) for rank in range(world)]
    for step, (_, labels) in enumerate(train):
        assert [list(rank[0])[step][1].tolist() for rank in ranks] == [labels[r::world].tolist() for r in range(world)]
    assert sum(len(labels) for rank in ranks for _, labels in rank[1]) == sum(len(labels) for _, labels in test) == 23


def test_a_strategy_that_shards_something_else_gives_every_rank_whole_batches():
    data = Synthetic()
    data.trainer = FakeTrainer(2, 3, shards_batches=False)
    loader = data.train_dataloader()
    assert isinstance(loader, EpochLoader)
    assert torch.equal(next(iter(loader))[1], next(iter(Synthetic().train_dataloader()))[1])


def test_the_probe_is_the_same_on_every_rank():
    data = Synthetic()
    data.trainer = FakeTrainer(1, 2)
    assert torch.equal(next(iter(data.probe_loader()))[0], next(iter(Synthetic().probe_loader()))[0])


@pytest.mark.slow
def test_compiled_under_lightning(tmp_path):
    """Also in inference mode, which evaluation uses."""
    module = Recorder()
    trainer(tmp_path).fit(module, datamodule=Synthetic(compile=True, channels_last=True))
    for (*at, note), (*where, expected) in zip(module.batches, trained(tmp_path)):
        assert at == where
        assert note[None][1] == expected[None][1]
        assert note[None][0] == pytest.approx(expected[None][0], rel=1e-6)
    assert module.evaluated == {0: 180, 1: 69}


def test_a_batch_that_the_processes_cannot_share_equally_is_an_error():
    data = Synthetic()
    strategy = SimpleNamespace(root_device=torch.device("cpu"))
    data.trainer = SimpleNamespace(strategy=strategy, global_rank=0, world_size=data.batch_size + 1)
    with pytest.raises(
        UserError, match=rf"batch_size: expected a multiple of {data.batch_size + 1}, .* got {data.batch_size}:"
    ):
        data.setup("fit")
    data.setup("validate")  # what is only evaluated has no training batch to share
    strategy.shards_batches = False
    data.setup("fit")
