"""A run that dies at any moment and is resumed ends at the bits of one that was never disturbed; a bad save replaces nothing."""

import math
import signal
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import EarlyStopping, LearningRateMonitor
from pytorch_lightning.loops.progress import _BatchProgress

from callbacks import (
    BnLambda,
    DistanceFromStart,
    LayerCushion,
    ProgressLines,
    TrainingMetrics,
    TwinDivergence,
    WeightMass,
)
from lightning_app.cli.trainer import Trainer
from lightning_app.common.errors import DivergedError, UserError
from lightning_app.common.signals import Stopped, Stopping, stopping
from lightning_app.datamodules import ResidentData
from lightning_app.modules import Arm
from lightning_app.networks import CifarResNet, SimplifiedNet
from lightning_app.runs import Row, RunFolder
from lightning_app.runs.checkpoints import LAST, AtomicCheckpointIO, SaveCheckpoint, Stopper
from lightning_app.runs.loggers import RunLogger
from tests.helpers import TIMING, arm, classifier, digits, fit, trainer

STEPS = 4  # in an epoch: 100 images in batches of 32
EPOCHS = 3


class Dies(pl.Callback):
    """Ends the process, as far as training can tell, at a moment of a step."""

    def __init__(self, hook: str, step: int) -> None:
        setattr(self, hook, lambda trainer, *_: self._die(trainer, step))

    def _die(self, trainer: pl.Trainer, step: int) -> None:
        if trainer.global_step >= step:
            raise KeyError("power cut")


def arms() -> dict[str, Arm]:
    normalised = Arm(net=lambda: CifarResNet(8, True, width=2))
    return {"plain": arm(False), "twin": Arm(twin_of="plain"), "normalised": normalised}


def callbacks(run: Path, saving: dict[str, int]) -> list[pl.Callback]:
    save = SaveCheckpoint(**saving)
    save.folder = run / "checkpoints"
    return [TrainingMetrics(), WeightMass(), BnLambda(), DistanceFromStart(), TwinDivergence(), save]


def train(run: Path, saving: dict[str, int] | None = None, *more: pl.Callback, seeds: int = 1, **options):
    """The module after training into a run folder, from its last checkpoint if it has one."""
    last = run / "checkpoints" / LAST
    options |= {"max_epochs": EPOCHS, "accelerator": "cpu", "num_sanity_val_steps": -1}
    options |= {"enable_progress_bar": False, "enable_model_summary": False, "plugins": [AtomicCheckpointIO()]}
    trainer = Trainer(
        logger=[RunLogger(run, claimed=True)], callbacks=[*callbacks(run, saving or {}), *more], **options
    )
    module = classifier(arms(), seeds=seeds, scheduler=lambda o: torch.optim.lr_scheduler.StepLR(o, 1, 0.5))
    trainer.fit(
        module,
        datamodule=digits(augment=True, image_size=8, test_limit=40),
        ckpt_path=str(last) if last.exists() else None,
    )
    return module


def left(run: Path) -> tuple[dict, list, dict]:
    """Last checkpoint, log without times, arrays."""
    log = RunFolder(run).log()
    rows = log[~log["name"].str.startswith(TIMING)].values.tolist()
    arrays = {str(file.relative_to(run)): file.read_bytes() for file in sorted(run.rglob("*.npz"))}
    return torch.load(run / "checkpoints" / LAST, weights_only=True), sorted(map(repr, rows)), arrays


def assert_same(one: Path, other: Path) -> None:
    (ours, rows, arrays), (theirs, other_rows, other_arrays) = left(one), left(other)
    assert rows == other_rows
    assert arrays == other_arrays
    for key in ("state_dict", "optimizer_states", "lr_schedulers", "callbacks", "running", "loops"):
        assert_equal(ours[key], theirs[key], key)


def assert_equal(one, other, where: str) -> None:
    assert type(one) is type(other), where
    if isinstance(one, dict):
        assert list(one) == list(other), where
        for key in one:
            assert_equal(one[key], other[key], f"{where}/{key}")
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other), where
        for place, (first, second) in enumerate(zip(one, other)):
            assert_equal(first, second, f"{where}/{place}")
    else:
        assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other, where


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory) -> Path:
    train(run := tmp_path_factory.mktemp("unbroken") / "run")
    return run


@pytest.fixture(scope="module")
def unbroken_bank(tmp_path_factory) -> Path:
    """Of two seeds."""
    train(run := tmp_path_factory.mktemp("bank") / "run", seeds=2)
    return run


@pytest.fixture(scope="module")
def limited(tmp_path_factory) -> Path:
    """Ended by max_steps after the first step of the second epoch."""
    train(run := tmp_path_factory.mktemp("limited") / "run", None, Stopper(), max_steps=STEPS + 1)
    return run


HALVES = {"val_check_interval": 0.5, "log_every_n_steps": 1}


def watched(*more: pl.Callback) -> tuple[pl.Callback, ...]:
    return Stopper(), *more, LearningRateMonitor("step")


@pytest.fixture(scope="module")
def evaluated_within(tmp_path_factory) -> Path:
    """Evaluated twice an epoch, with Lightning's own numbers of each step."""
    train(run := tmp_path_factory.mktemp("halves") / "run", None, *watched(), **HALVES)
    return run


@pytest.mark.parametrize(
    ("hook", "step", "every"),  # saved after every so many steps
    [
        *[("on_train_batch_start", 6, 1), ("on_train_batch_end", 1, 3), ("on_train_batch_end", 4, 1)],
        *[("on_validation_start", 8, 3), ("on_validation_end", 4, 1), ("on_train_epoch_end", 12, 1)],
        ("on_train_batch_end", 7, 0),  # not after steps: the epoch is repeated
    ],
)
def test_a_run_that_dies_at_any_moment_ends_where_an_unbroken_one_does(tmp_path, unbroken_bank, hook, step, every):
    run = tmp_path / "run"
    with pytest.raises(KeyError):
        train(run, {"every_n_steps": every}, Dies(hook, step), seeds=2)
    train(run, {"every_n_steps": every}, seeds=2)
    assert_same(unbroken_bank, run)


@pytest.mark.parametrize(
    ("owner", "method"),
    [
        (torch.optim.Optimizer, "load_state_dict"),
        (ResidentData, "train_dataloader"),
        (SaveCheckpoint, "on_train_start"),
        (_BatchProgress, "increment_ready"),
    ],
)
def test_a_signal_while_a_resume_begins_leaves_the_checkpoint_as_it_is(tmp_path, unbroken, monkeypatch, owner, method):
    """Lightning's loops know by then that they are within an epoch; optimizer and loader do not, or it is a batch ahead."""
    run, last = tmp_path / "run", tmp_path / "run" / "checkpoints" / LAST

    class Signalled(pl.Callback):
        def on_train_batch_end(self, trainer, *_):
            if trainer.global_step == STEPS + 2:
                stopping.received = signal.SIGTERM

    def stop(*_, **__):
        stopping.received = signal.SIGTERM
        raise Stopped(signal.SIGTERM)

    with monkeypatch.context() as patched:
        patched.setattr(stopping, "received", None)
        with pytest.raises(SystemExit):
            train(run, None, Signalled())
        before = last.read_bytes()
        assert torch.load(last, weights_only=True)["global_step"] == STEPS + 2
        patched.setattr(stopping, "received", None)
        patched.setattr(owner, method, stop)
        with pytest.raises(Stopped):
            train(run)
    assert last.read_bytes() == before
    train(run)
    assert_same(unbroken, run)


def test_a_kept_checkpoint_is_not_skipped_by_a_run_that_dies_between_two_saves(tmp_path, monkeypatch):
    run, save = tmp_path / "run", SaveCheckpoint._save

    def die(self, trainer, name):
        if name == LAST and trainer.current_epoch == 1:
            raise KeyError("power cut")
        save(self, trainer, name)

    monkeypatch.setattr(SaveCheckpoint, "_save", die)
    with pytest.raises(KeyError):
        train(run, {"keep_every_n_epochs": 2})
    monkeypatch.setattr(SaveCheckpoint, "_save", save)
    (run / "checkpoints" / "epoch=0002.ckpt").unlink()
    train(run, {"keep_every_n_epochs": 2})
    assert (run / "checkpoints" / "epoch=0002.ckpt").exists()


def test_an_end_that_somebody_asks_for_is_saved(tmp_path):
    class Enough(pl.Callback):
        def on_validation_end(self, trainer, module):
            trainer.should_stop = not trainer.sanity_checking

    train(tmp_path / "run", {"every_n_epochs": 5}, Enough())
    assert torch.load(tmp_path / "run" / "checkpoints" / LAST, weights_only=True)["global_step"] == STEPS


def test_a_part_of_an_epoch_is_not_kept_as_the_epoch(tmp_path):
    train(tmp_path / "run", {"keep_every_n_epochs": 1}, max_steps=STEPS + 1)
    kept = {file.name for file in (tmp_path / "run" / "checkpoints").iterdir()}
    assert kept == {"epoch=0001.ckpt", LAST}


@pytest.mark.parametrize("limit", ["max_steps", "should_stop"])
def test_training_that_a_limit_ended_within_an_epoch_goes_on_in_it(limit, tmp_path, unbroken):
    class Enough(pl.Callback):  # what trainer.max_time does
        def on_train_batch_end(self, trainer, *_):
            trainer.should_stop = trainer.global_step >= STEPS + 1

    if limit == "max_steps":
        train(tmp_path / "run", max_steps=STEPS + 1)
    else:
        train(tmp_path / "run", None, Enough(), min_epochs=0)
    checkpoint = torch.load(tmp_path / "run" / "checkpoints" / LAST, weights_only=True)
    assert (checkpoint["epoch"], checkpoint["global_step"]) == (1, STEPS + 1)
    train(tmp_path / "run")
    ours, theirs = left(tmp_path / "run")[0], left(unbroken)[0]
    for key in ("state_dict", "optimizer_states", "lr_schedulers", "running", "loops"):
        assert_equal(ours[key], theirs[key], key)
    logs = [RunFolder(path).log().query("epoch == 2 or epoch == 3") for path in (tmp_path / "run", unbroken)]
    logs = [
        log[log["name"].str.match("train/|test/|weight_mass")].set_index(["member", "epoch", "name"]) for log in logs
    ]
    assert logs[0]["value"].dropna().to_dict() == logs[1]["value"].dropna().to_dict() and len(logs[0])


def test_a_resume_at_an_epochs_end_trains_what_is_left_also_with_max_steps(tmp_path, unbroken):
    """Lightning ends that epoch again then, and counts one that it does not train."""
    with pytest.raises(KeyError):
        train(tmp_path / "run", None, Dies("on_train_batch_start", STEPS))
    train(tmp_path / "run", max_steps=1000)
    (ours, log), (theirs, other) = left(tmp_path / "run")[:2], left(unbroken)[:2]
    for key in ("state_dict", "optimizer_states", "lr_schedulers", "running", "epoch", "global_step"):
        assert_equal(ours[key], theirs[key], key)
    assert log == other


def test_steps_that_are_due_at_an_epochs_end_are_saved_there(tmp_path):
    run = tmp_path / "run"
    with pytest.raises(KeyError):
        train(run, {"every_n_epochs": 5, "every_n_steps": STEPS}, Dies("on_train_batch_end", STEPS + 1))
    assert torch.load(run / "checkpoints" / LAST, weights_only=True)["global_step"] == STEPS


def test_a_step_that_ends_training_is_saved_when_it_has_been_evaluated_and_measured(tmp_path, limited):
    """A resume of an earlier save would train nothing, and have no numbers of the end."""
    saving, limit = {"every_n_steps": STEPS + 1}, STEPS + 1
    with pytest.raises(KeyError):
        train(tmp_path / "run", saving, Dies("on_validation_start", limit), max_steps=limit)
    train(tmp_path / "run", saving, max_steps=limit)
    assert_same(limited, tmp_path / "run")


def test_an_evaluation_within_an_epoch_is_not_left_out_by_a_resume(tmp_path):
    saving, half, run = {"every_n_steps": 2}, {"val_check_interval": 0.5}, tmp_path / "run"
    train(tmp_path / "whole", saving, **half)
    for hook, step, saved in (("on_validation_start", STEPS + 2, STEPS), ("on_train_batch_end", STEPS + 3, STEPS + 2)):
        with pytest.raises(KeyError):
            train(run, saving, Dies(hook, step), **half)
        assert torch.load(run / "checkpoints" / LAST, weights_only=True)["global_step"] == saved
    train(run, saving, **half)
    assert_same(tmp_path / "whole", run)


def test_a_signal_after_an_evaluation_within_an_epoch_moves_no_later_step(tmp_path, evaluated_within, monkeypatch):
    """Lightning's own numbers, as those of `LearningRateMonitor`, were logged a step late after the resume."""

    class Signalled(pl.Callback):
        def on_validation_end(self, trainer, module):
            if trainer.global_step == 2:
                waiting._receive(signal.SIGTERM, None)

    waiting = Stopping()
    for place in ("runs.checkpoints", "cli.trainer"):
        monkeypatch.setattr(f"lightning_app.{place}.stopping", waiting)
    with pytest.raises(SystemExit):
        train(tmp_path / "run", None, *watched(Signalled()), **HALVES)
    waiting.received = None
    train(tmp_path / "run", None, *watched(), **HALVES)
    assert_same(evaluated_within, tmp_path / "run")


def test_a_run_that_max_steps_ended_at_an_evaluation_moves_no_later_step(tmp_path, evaluated_within):
    for limit in (STEPS + 2, -1):
        train(tmp_path / "run", None, *watched(), max_steps=limit, **HALVES)
    whole, run = (RunFolder(path).log().query("name == 'lr-SGD'") for path in (evaluated_within, tmp_path / "run"))
    assert run.values.tolist() == whole.values.tolist() != []


@pytest.mark.parametrize("hook", ["on_train_epoch_end", "on_train_end"])
def test_a_signal_where_max_steps_has_ended_training_leaves_the_end_as_it_is(tmp_path, limited, monkeypatch, hook):
    """It was saved again as between two batches: without the measures to come, or as an epoch that is complete."""

    class Signalled(pl.Callback):
        pass

    setattr(
        Signalled,
        hook,
        lambda self, trainer, module: trainer.global_step < limit or waiting._receive(signal.SIGTERM, None),
    )
    limit, waiting = STEPS + 1, Stopping()
    for place in ("runs.checkpoints", "cli.trainer"):
        monkeypatch.setattr(f"lightning_app.{place}.stopping", waiting)
    with pytest.raises(SystemExit):
        train(tmp_path / "run", None, Signalled(), Stopper(), max_steps=limit)
    waiting.received, waiting.raised = None, False
    train(tmp_path / "run", None, Stopper(), max_steps=limit)
    assert_same(limited, tmp_path / "run")


def impatient(patience: int = 1) -> list[pl.Callback]:
    """Training ends after so many epochs more than one, and a measure then makes what it has left out."""
    monitor = "train/risk/plain"
    return [LayerCushion(every_n_epochs=7), EarlyStopping(monitor, mode="max", patience=patience)]


def test_early_stopping_ends_a_resumed_run_where_it_ends_an_unbroken_one(tmp_path):
    """Lightning forgets that training has ended, and trains an epoch more."""
    train(tmp_path / "whole", None, *impatient())
    with pytest.raises(KeyError):
        train(tmp_path / "run", None, Dies("on_train_end", 0), *impatient())
    train(tmp_path / "run", None, *impatient())
    assert_same(tmp_path / "whole", tmp_path / "run")
    assert set(RunFolder(tmp_path / "run").log().query("name == 'cost/cushion'")["epoch"]) == {0, 2}


def test_a_run_that_early_stopping_has_finished_goes_on_with_more_patience_only(tmp_path, unbroken, capsys):
    run = RunFolder(tmp_path)
    train(tmp_path, None, *impatient())
    run.finish(2)
    before = (tmp_path / "log.csv").read_bytes()
    train(tmp_path, None, ProgressLines(), *impatient())
    assert (tmp_path / "log.csv").read_bytes() == before
    said = (
        "nothing is left to train after 2 epochs: leave EarlyStopping out, or give it more patience if that was used up"
    )
    assert said in capsys.readouterr().out
    train(tmp_path, None, *impatient(patience=2))
    ours, theirs = left(tmp_path)[0], left(unbroken)[0]
    for key in ("state_dict", "optimizer_states", "global_step"):
        assert_equal(ours[key], theirs[key], key)


def damaged(checkpoint: dict, place: str, value) -> dict:
    """With something else at a dotted place; None: with nothing."""
    *above, last = place.split("/")
    inner = checkpoint
    for key in above:
        inner = inner[int(key) if isinstance(inner, list) else key]
    inner.pop(last) if value is None else inner.__setitem__(last, value)
    return checkpoint


@pytest.mark.parametrize(
    ("place", "value"),
    [
        *[("running", None), ("running", {"net": {}}), ("loops", {}), ("loops/fit_loop/state_dict", [])],
        *[("optimizer_states", [{"state": {}, "param_groups": []}]), ("trained_on/splits/train", {"size": 3})],
        *[("pytorch-lightning_version", 2), ("members", None), ("lr_schedulers", [7])],
    ],
)
def test_a_checkpoint_that_contradicts_itself_is_an_error_message(tmp_path, unbroken, place, value):
    content = damaged(torch.load(unbroken / "checkpoints" / LAST, weights_only=True), place, value)
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    torch.save(content, tmp_path / "run" / "checkpoints" / LAST)
    with pytest.raises(UserError):
        train(tmp_path / "run")


def test_a_checkpoint_that_could_not_be_loaded_again_replaces_nothing(tmp_path):
    target = tmp_path / LAST
    AtomicCheckpointIO().save_checkpoint({"state_dict": {}, "step": 1}, target)
    before = target.read_bytes()
    with pytest.raises(UserError, match=r"could not be loaded again.*numpy"):
        AtomicCheckpointIO().save_checkpoint({"state_dict": {}, "step": np.float64(2)}, target)
    assert target.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == [LAST]


def test_memory_that_runs_out_while_a_checkpoint_is_checked_is_said(tmp_path, monkeypatch):
    def none(*_, **__):
        raise MemoryError

    monkeypatch.setattr("torch.load", none)
    with pytest.raises(UserError, match=r"could not be loaded again \(.*MemoryError"):
        AtomicCheckpointIO().save_checkpoint({"state_dict": {}}, tmp_path / LAST)


def test_a_state_that_nothing_can_write_is_an_error_message(tmp_path):
    with pytest.raises(UserError, match=r"cannot be written.*in the state_dict of callbacks"):
        AtomicCheckpointIO().save_checkpoint({"state_dict": {}, "made": lambda: 0}, tmp_path / LAST)
    assert not [*tmp_path.iterdir()]


def test_a_disk_that_does_not_keep_what_was_written_replaces_nothing(tmp_path, monkeypatch):
    target, weights = tmp_path / LAST, torch.arange(1000.0)
    AtomicCheckpointIO().save_checkpoint({"state_dict": {"w": weights}}, target)
    before = target.read_bytes()
    whole = zipfile.ZipFile.__init__

    def rotten(self, file, *more):
        content = bytearray(Path(file).read_bytes())
        content[content.index(weights.numpy().tobytes()) + 400] ^= 1
        Path(file).write_bytes(content)
        whole(self, file, *more)

    monkeypatch.setattr(zipfile.ZipFile, "__init__", rotten)
    with pytest.raises(UserError, match=r"damaged.*before it is kept"):
        AtomicCheckpointIO().save_checkpoint({"state_dict": {"w": weights}}, target)
    assert target.read_bytes() == before


def test_a_run_that_begins_again_has_no_later_rows_of_its_first_attempt(tmp_path):
    """As one that was killed before its first checkpoint: its page said that it is after epoch 3 while it was in its first."""
    run, save = RunFolder(tmp_path), SaveCheckpoint(every_n_epochs=5)
    run.append(Row("net", epoch, STEPS * epoch, "test/error", 0.5) for epoch in range(4))
    save.folder = run.checkpoints
    start = SimpleNamespace(global_step=0, should_stop=False, early_stopping_callbacks=[], is_global_zero=True)
    save.on_train_start(start, None)
    assert run.log()["epoch"].tolist() == [0]


def test_weights_that_are_no_numbers_replace_no_checkpoint(tmp_path):
    class Poison(pl.Callback):
        def on_train_epoch_end(self, trainer, module):
            if trainer.current_epoch == 1:
                next(module.parameters()).data[0] = math.nan

    save = SaveCheckpoint()
    save.folder = tmp_path
    with pytest.raises(DivergedError, match=r"NaN or infinite values after step 8.*are kept"):
        fit(classifier(), callbacks=[Poison(), save], enable_checkpointing=True)
    assert torch.load(tmp_path / LAST, weights_only=True)["global_step"] == STEPS


class Noting(SimplifiedNet):
    """Keeps more than tensors with its weights."""

    version: int | None = 1

    def get_extra_state(self) -> int | None:
        return self.version

    def set_extra_state(self, state: int | None) -> None:
        self.version = state


def test_what_a_net_keeps_beside_tensors_is_saved_and_comes_back(tmp_path):
    save = SaveCheckpoint()
    save.folder = tmp_path
    arms = {"net": Arm(net=lambda: Noting(5, residual=True, width=4))}
    fit(classifier(arms), epochs=1, callbacks=[save], enable_checkpointing=True)
    resumed = classifier(arms)
    resumed.members[0].net.version = None  # what it keeps may be of another type
    trainer(2).fit(resumed, datamodule=digits(), ckpt_path=tmp_path / LAST)
    assert resumed.members[0].net.version == 1


@pytest.mark.parametrize("options", [{"every_n_epochs": 0}, {"every_n_steps": -1}, {"keep_every_n_epochs": -1}])
def test_schedules_that_make_no_sense_are_an_error_message(options):
    with pytest.raises(UserError, match="of save_checkpoint must be at least"):
        SaveCheckpoint(**options)


def test_an_epoch_that_goes_on_in_its_middle_is_stopped_between_two_batches(monkeypatch):
    """Lightning does not call on_train_epoch_start there: a signal would end the program within a batch, and save nothing."""
    waiting = Stopping()
    monkeypatch.setattr("lightning_app.runs.checkpoints.stopping", waiting)
    stopper = Stopper()
    stopper.on_train_batch_start(None, None, None, 7)
    stopper.on_train_batch_start(None, None, None, 8)
    waiting._receive(signal.SIGTERM, None)  # waits
    with pytest.raises(Stopped):
        stopper.on_train_epoch_end(None, None)
