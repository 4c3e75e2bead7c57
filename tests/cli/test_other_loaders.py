"""`fit` on a DataLoader of one's own, which keeps no state and shuffles by the global random state."""

import functools
import random
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler

from lightning_app.cli.trainer import Trainer
from lightning_app.cli.training import TrainingCLI, _quiet
from lightning_app.common.errors import UserError
from lightning_app.modules import ImageClassifier
from lightning_app.runs.checkpoints import AtomicCheckpointIO
from tests.banks import sgd

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


class Stateful(DataLoader):
    """Goes on from a state that was loaded once, in the first iteration after it, as torchdata's StatefulDataLoader does."""

    first, done = 0, 0

    def __iter__(self):
        first, self.first = self.first, 0
        return self._from(first)

    def _from(self, first):
        for index, batch in enumerate(super().__iter__()):
            self.done = index + 1
            if index >= first:
                yield batch

    def state_dict(self) -> dict:
        return {"done": self.done}

    def load_state_dict(self, state: dict) -> None:
        self.first = state["done"] % STEPS


class OwnStateful(Own):
    def train_dataloader(self) -> DataLoader:
        return Stateful(Jittered(), 4)


class OwnStatefulDraws(Own):
    """Its loader keeps the state of its generator, too."""

    def train_dataloader(self) -> DataLoader:
        return StatefulDraws(Jittered(), 4, shuffle=True, generator=torch.Generator().manual_seed(7))


class StatefulDraws(Stateful):
    def __iter__(self):
        self.began = self.generator.get_state()
        return super().__iter__()

    def state_dict(self) -> dict:
        return {"began": self.began, "ended": self.generator.get_state()} | super().state_dict()

    def load_state_dict(self, state: dict) -> None:
        super().load_state_dict(state)
        self.generator.set_state(state["began" if self.first else "ended"])


class OwnDraws(Own):
    """Its loader has what would go on from one epoch to the next: a generator, that of a sampler, or workers."""

    def __init__(self, what: str, seed: int = 7) -> None:
        super().__init__()
        own = torch.Generator().manual_seed(seed)
        self.options = {
            "generator": {"shuffle": True, "generator": own},
            "sampler": {"sampler": RandomSampler(Jittered(), generator=own)},
            "workers": {"shuffle": True, "num_workers": 1, "persistent_workers": True},
        }[what]

    def train_dataloader(self) -> DataLoader:
        return DataLoader(Jittered(), 4, **self.options)


class Labelled(Jittered):
    """The four numbers with a label."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return super().__getitem__(index), index % 2


class OwnLabelled(Own):
    def train_dataloader(self) -> DataLoader:
        return DataLoader(Labelled(), 4, shuffle=True)

    def val_dataloader(self) -> list:
        return []


class SeeingBank(ImageClassifier):
    """Its nets draw numbers of their own."""

    def __init__(self, **more) -> None:
        super().__init__(sgd, net=lambda: torch.nn.Sequential(torch.nn.Dropout(), torch.nn.Linear(4, 2)), **more)
        self.seen: list = []

    def training_step(self, batch, batch_idx):
        self.seen.append(batch[0].tolist())
        return super().training_step(batch, batch_idx)


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


def seen(folder, data: Own, ckpt_path: str | None = None, module=None, **limits) -> list:
    module = module or Seeing()
    options = {"max_epochs": 4, "logger": False, "enable_progress_bar": False} | limits
    saving = [ModelCheckpoint(folder, filename="{step}", every_n_train_steps=1, save_top_k=-1)]
    trainer = Trainer(
        default_root_dir=folder, callbacks=saving, plugins=[AtomicCheckpointIO()], accelerator="cpu", num_sanity_val_steps=0,
        enable_model_summary=False, **options,
    )  # fmt: skip
    trainer.fit(module, datamodule=data, ckpt_path=ckpt_path)
    return module.seen


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory) -> Callable[[int, bool], list]:
    """The batches of all epochs, by what loads them; drawn once."""
    return functools.cache(lambda workers, streams: seen(tmp_path_factory.mktemp("w"), Own(workers, streams=streams)))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("workers", "streams"), [(0, False), (1, False), (0, True), (1, True)])
@pytest.mark.parametrize("steps", [2 * STEPS, 2 * STEPS + 3, 3])
def test_a_resumed_run_sees_the_batches_of_an_unbroken_one(tmp_path, unbroken, steps, workers, streams):
    whole = unbroken(workers, streams)
    assert len({str(batch) for batch in whole}) == 4 * STEPS  # another order in each epoch
    torch.manual_seed(1)  # the state of another process
    begun = seen(tmp_path, Own(workers, streams=streams), max_steps=steps)
    torch.rand(7)
    went_on = seen(tmp_path, Own(workers, streams=streams), str(tmp_path / f"step={steps}.ckpt"))
    assert whole == begun + went_on


class Held(DataLoader):
    """Something holds its iterators, as a cycle of references does."""

    def __iter__(self):
        self.iterators = [*getattr(self, "iterators", ()), super().__iter__()]
        return self.iterators[-1]


class OwnHeld(OwnDraws):
    def train_dataloader(self) -> DataLoader:
        self.loader = Held(Jittered(), 4, **self.options)
        return self.loader


@pytest.mark.filterwarnings("ignore")
def test_workers_that_are_kept_end_when_others_take_their_place(tmp_path):
    data = OwnHeld("workers")
    seen(tmp_path, data, max_epochs=2)
    workers = {worker for iterator in data.loader.iterators for worker in iterator._workers}
    assert len(workers) > 1 and not any(worker.is_alive() for worker in workers)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("what", ["generator", "sampler", "workers"])
def test_what_a_loader_draws_from_its_own_depends_on_the_epoch_alone(tmp_path, what):
    whole = seen(tmp_path / "whole", OwnDraws(what))
    assert len({str(batch) for batch in whole}) == 4 * STEPS  # another order in each epoch
    for steps in (2 * STEPS, 3):
        begun = seen(tmp_path, OwnDraws(what), max_steps=steps)
        assert whole == begun + seen(tmp_path, OwnDraws(what), str(tmp_path / f"step={steps}.ckpt"))


def test_that_a_loader_keeps_no_state_is_no_reason_to_warn(tmp_path, recwarn):
    _quiet()
    seen(tmp_path, Own(), max_steps=3)
    seen(tmp_path, Own(), str(tmp_path / "step=3.ckpt"))
    assert not [each for each in recwarn if "resumable" in str(each.message)]


@pytest.mark.filterwarnings("ignore")
def test_the_seed_of_a_loader_s_generator_counts(tmp_path):
    orders = [seen(tmp_path / str(seed), OwnDraws("generator", seed), max_epochs=1) for seed in (7, 8)]
    assert orders[0] != orders[1]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("steps", [2 * STEPS, 2 * STEPS + 3, 3])
def test_a_loader_that_keeps_its_state_goes_on_from_it(tmp_path, steps):
    begun = seen(tmp_path, OwnStateful(), max_steps=steps)
    batches = begun + seen(tmp_path, OwnStateful(), str(tmp_path / f"step={steps}.ckpt"))
    order = torch.arange(4.0 * STEPS).view(STEPS, 4).tolist()
    assert [[sample[0] for sample in batch] for batch in batches] == order * 4


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("steps", [2 * STEPS, 2 * STEPS + 3, 3])
def test_a_generator_is_left_to_a_loader_that_keeps_its_state(tmp_path, steps):
    def orders(folder, **options):
        return [[sample[0] for sample in batch] for batch in seen(folder, OwnStatefulDraws(), **options)]

    begun = orders(tmp_path, max_steps=steps)
    went_on = orders(tmp_path, ckpt_path=str(tmp_path / f"step={steps}.ckpt"))
    assert begun + went_on == orders(tmp_path / "whole")


@pytest.mark.filterwarnings("ignore")
def test_a_seed_that_is_given_for_each_epoch_counts_in_it(tmp_path):
    class Seeded(OwnDraws):
        def train_dataloader(self) -> DataLoader:
            self.options["generator"].manual_seed(self.trainer.current_epoch)
            return super().train_dataloader()

    def batches(folder, **options):
        return seen(folder, Seeded("generator"), reload_dataloaders_every_n_epochs=1, **options)

    begun = batches(tmp_path, max_steps=2 * STEPS)
    went_on = batches(tmp_path, ckpt_path=str(tmp_path / f"step={2 * STEPS}.ckpt"))
    assert begun + went_on == batches(tmp_path / "whole")


@pytest.mark.filterwarnings("ignore")
def test_processes_that_share_out_what_a_sampler_chooses_draw_the_same_order(tmp_path, monkeypatch):
    orders = []
    for rank in (0, 1):
        monkeypatch.setattr(Trainer, "global_rank", rank)
        batches = seen(tmp_path / str(rank), OwnDraws("sampler"), max_epochs=2)
        orders.append([sample[0] for batch in batches for sample in batch])
    assert orders[0] == orders[1]


@pytest.mark.filterwarnings("ignore")
def test_what_nets_draw_changes_no_batch(tmp_path):
    whole = seen(tmp_path / "one", OwnLabelled(), module=SeeingBank())
    assert whole == seen(tmp_path / "three", OwnLabelled(), module=SeeingBank(seeds=3))
    begun = seen(tmp_path, OwnLabelled(), module=SeeingBank(), max_steps=3)
    assert whole == begun + seen(tmp_path, OwnLabelled(), str(tmp_path / "step=3.ckpt"), module=SeeingBank())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("steps", "every", "evaluated"), [(3, 1, [3]), (STEPS, 1, [5]), (STEPS + 1, 1, [5, 6]), (STEPS, 2, [5])]
)
def test_nets_are_evaluated_where_max_steps_ends_training(tmp_path, steps, every, evaluated):
    module, found = Seeing(), []
    module.on_validation_epoch_end = lambda: found.append(module.trainer.global_step)
    seen(tmp_path, Own(), module=module, max_steps=steps, check_val_every_n_epoch=every)
    assert found == evaluated


@pytest.mark.parametrize(
    ("net", "labels", "said"),
    [
        (
            torch.nn.Linear(3, 2),
            torch.zeros(4, dtype=torch.int64),
            r"\(4, 4\) torch.float32, \(4,\) torch.int64\): (addmm: )?mat1 and mat2",
        ),
        (torch.nn.Conv2d(4, 2, 1), torch.zeros(4, dtype=torch.int64), r"Expected 3D \(unbatched\) or 4D"),
        (torch.nn.BatchNorm2d(4), torch.zeros(4, dtype=torch.int64), "expected 4D input"),
        (torch.nn.BatchNorm1d(5), torch.zeros(4, dtype=torch.int64), "running_mean should contain"),
        (torch.nn.Linear(4, 2).double(), torch.zeros(4, dtype=torch.int64), "must have the same dtype"),
        (torch.nn.Embedding(4, 2), torch.zeros(4, dtype=torch.int64), "one of the following scalar types"),
        (
            torch.nn.Linear(4, 2),
            torch.zeros(4, dtype=torch.int32),
            r"torch.int32\): expected (target dtype|scalar type)",
        ),
        (torch.nn.Linear(4, 2), torch.zeros(4, 1, dtype=torch.int64), r"\(4, 1\) torch.int64\): 0D or 1D target"),
        (
            torch.nn.Sequential(torch.nn.Linear(4, 1), torch.nn.Flatten(0)),
            torch.zeros(4, dtype=torch.int64),
            "Expected floating",
        ),
    ],
)
@pytest.mark.parametrize("command", ["fit", "validate"])
def test_batches_that_nets_do_not_take_are_a_message(net, labels, said, command):
    data = DataLoader([*zip(torch.ones(4, 4), labels)], 4)
    with pytest.raises(UserError, match=f"a net cannot .*{said}.* Expected samples that fit its first layer"):
        getattr(Trainer(accelerator="cpu", logger=False, enable_checkpointing=False), command)(
            ImageClassifier(sgd, net=lambda: net), data
        )


def test_what_is_not_finite_in_an_evaluation_is_said():
    samples = torch.ones(4, 4)
    good, bad = (
        DataLoader([*zip(each, torch.zeros(4, dtype=torch.int64))], 4) for each in (samples, samples * torch.nan)
    )
    trainer = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, max_epochs=2, num_sanity_val_steps=0)
    with pytest.warns(UserWarning, match="val/risk of member 'net' is NaN or infinite"):
        trainer.fit(ImageClassifier(sgd, net=lambda: torch.nn.Linear(4, 2)), good, bad)


@pytest.mark.filterwarnings("ignore")
def test_evaluation_changes_no_order(tmp_path):
    assert seen(tmp_path / "with", Own()) == seen(tmp_path / "without", Own(evaluates=False))


def test_without_data_to_evaluate_on_there_is_a_message_and_no_empty_table():
    trainer, module = SimpleNamespace(is_global_zero=True), SimpleNamespace(last_metrics={})
    with pytest.raises(UserError, match="test expected data to evaluate on, got none from Own"):
        TrainingCLI.after_test(SimpleNamespace(trainer=trainer, model=module, subcommand="test", datamodule=Own()))
