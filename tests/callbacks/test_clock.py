"""The clock of steps: when is measured within an epoch, and that nothing else changes by it."""

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from pytorch_lightning.callbacks import Checkpoint, EarlyStopping, LearningRateMonitor, ModelCheckpoint
from pytorch_lightning.loggers import TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.data import DataLoader, IterableDataset

import callbacks
from callbacks.clock import EpochCallback
from callbacks.measure import Measure
from lightning_app.common.errors import UserError
from lightning_app.modules import Arm
from lightning_app.report import write_report
from lightning_app.runs import Row, RunFolder
from lightning_app.runs.checkpoints import SaveCheckpoint
from lightning_app.runs.loggers import RunLogger
from lightning_app.runs.reader import Run
from tests.callbacks.test_protocol import Foreign, images
from tests.helpers import CHEAP, arm, classifier, digits, fit, log_rows, refused, same_weights, shipped, trainer

PARTS = {"train_limit": 100, "batch_size": 32}  # four batches an epoch


class Idle(Measure):
    family = "idle"

    def measure(self, context):
        return {"idle": context.epoch}


def places(folder) -> list[tuple[float, int]]:
    """Epoch and step of each measurement of `Idle`, which measures its epoch; in the order in which they were made."""
    rows = RunFolder(folder).log().query("name == 'idle' and member == 'plain'")
    assert (rows["value"] == rows["epoch"]).all()
    return [*rows[["epoch", "step"]].itertuples(index=False, name=None)]


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({"every_n_steps": 3}, [0, 3, 4, 6, 8, 9, 12]),
        ({"every_n_steps": 3, "every_n_epochs": 2, "at_start": False}, [3, 6, 8, 9, 12]),
        ({"every_n_steps": "powers_of_2", "every_n_epochs": 9}, [0, 1, 2, 4, 8, 12]),
        ({"every_n_steps": 4, "every_n_epochs": 9}, [0, 4, 8, 12]),
        ({}, [0, 4, 8, 12]),
    ],
)
def test_measurements_lie_where_the_clocks_say(tmp_path, options, steps):
    fit(classifier(), 3, callbacks=[Idle(**options)], logger=[RunLogger(tmp_path)], data=digits(**PARTS))
    assert places(tmp_path) == [(step / 4, step) for step in steps]


@pytest.mark.parametrize("every", [1, 3, 5, "powers_of_2"])
def test_of_several_steps_in_a_batch_each_is_asked_for(every):
    due = {1, 2, 4, 8, 16, 32} if every == "powers_of_2" else {*range(every, 40, every)}
    clock = Idle(every_n_steps=every)
    for before in range(39):
        assert clock.due_after(before + 1) is (before + 1 in due)
        for steps in range(before, 40):
            assert clock.due_after(steps, before) is any(step in due for step in range(before + 1, steps + 1))


class Noting(Idle):
    """It keeps the steps at which it measures."""

    def __init__(self, **clock):
        super().__init__(**clock)
        self.measured = []

    def observe(self, trainer, pl_module, epoch):
        self.measured.append(trainer.global_step)


@pytest.mark.parametrize(("every", "steps"), [(3, [0, 3]), (2, [0, 2, 3])])
def test_a_step_is_measured_once_although_training_ends_with_it(every, steps):
    class Ends(pl.Callback):  # after the measure, as a Timer and validation within an epoch do
        def on_train_batch_end(self, trainer, *_):
            trainer.should_stop = trainer.global_step == 3

    noting = Noting(every_n_steps=every)
    fit(classifier(), 3, callbacks=[noting, Ends()], data=digits(**PARTS))
    assert noting.measured == steps


def test_who_asks_for_the_end_before_it_may_come_changes_no_places():
    """As EarlyStopping, whose wish waits for ``min_epochs``."""

    class Ends(pl.Callback):
        def on_train_epoch_end(self, trainer, pl_module):
            trainer.should_stop = True

    noting = Noting(every_n_steps=3)
    fit(classifier(), 9, callbacks=[noting, Ends()], min_epochs=3, data=digits(**PARTS))
    assert noting.measured == [0, 3, 4, 6, 8, 9, 12]


def test_a_second_fit_is_measured_at_the_same_steps():
    noting = Noting(every_n_steps=3)
    for _ in range(2):
        fit(classifier(), 1, callbacks=[noting], data=digits(**PARTS))
    assert noting.measured == [0, 3, 4] * 2


@pytest.mark.parametrize(("every", "factors"), [(1, {0: 1, 1: 1, 2: 0.1, 3: 0.01}), (9, {0: 1, 3: 0.01})])
def test_the_learning_rate_is_that_of_the_epoch_and_not_of_the_next(tmp_path, every, factors):
    """Also of an epoch that is logged only when training has ended, as nobody knew that it is the last one."""

    class Ends(pl.Callback):
        def on_train_epoch_end(self, trainer, *_):
            trainer.should_stop = trainer.current_epoch == 2

    module = classifier(scheduler=lambda optimizer: torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 2, 3], 0.1))
    watching = [callbacks.TrainingMetrics(every_n_epochs=every), Ends()]
    fit(module, 9, callbacks=watching, logger=[RunLogger(tmp_path)], data=digits(**PARTS))
    rates = RunFolder(tmp_path).log().query("name == 'lr'")
    expected = {epoch: 0.05 * factor for epoch, factor in factors.items()}
    assert dict(zip(rates["epoch"], rates["value"], strict=True)) == pytest.approx(expected)


def test_training_is_bit_identical_with_every_measure_within_its_epochs(tmp_path):
    watching = [callback(every_n_steps=3, **CHEAP.get(callback, {})) for callback in shipped(EpochCallback)]
    bank = {"residual": arm(True)}
    watched = fit(classifier(bank), 1, callbacks=watching, logger=[RunLogger(tmp_path)], num_sanity_val_steps=-1)
    assert same_weights(watched.nets, fit(classifier(bank), 1).nets)
    log = RunFolder(tmp_path).log()
    within = log[log["epoch"] == 0.75]
    assert set(within["step"]) == {3}
    assert {f"cost/{callback.family}" for callback in watching if isinstance(callback, Measure)} <= set(within["name"])
    assert "train/risk_running" in set(within["name"]) and "test/error" not in set(within["name"])


class SaveAt(Checkpoint):
    """After so many steps; Lightning calls it after all measures."""

    def __init__(self, file, step: int) -> None:
        self.file, self.step = file, step

    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == self.step and not trainer.is_last_batch:
            trainer.save_checkpoint(self.file)

    def on_train_epoch_end(self, trainer, pl_module):
        if trainer.global_step == self.step:
            trainer.save_checkpoint(self.file)


@pytest.mark.parametrize("at", [2, 5, 8])
def test_a_run_stopped_and_resumed_is_the_unbroken_one(tmp_path, at):
    """Also of a measure that compares itself with its last measurement."""

    def run(name: str, *more, resume=None) -> list[tuple[str, ...]]:
        watching = [callbacks.DrivingForce(samples=4, every_n_steps=2), Idle(every_n_steps="powers_of_2"), *more]
        made = trainer(3, callbacks=watching, logger=[RunLogger(tmp_path / name)], enable_checkpointing=bool(more))
        made.fit(classifier(), datamodule=digits(**PARTS), ckpt_path=resume, weights_only=True)
        return log_rows(tmp_path / name)[1:]

    checkpoint = tmp_path / "stopped.ckpt"
    whole = run("whole", SaveAt(checkpoint, at))
    assert run("resumed", resume=checkpoint) == [row for row in whole if int(row[2]) > at] != []


def test_training_of_less_than_an_epoch_is_measured_to_its_end_and_once(tmp_path):
    watching = [Idle(every_n_epochs=5, every_n_steps=1), callbacks.TrainingMetrics(every_n_steps=2)]
    made = trainer(-1, max_steps=3, callbacks=watching, logger=[RunLogger(tmp_path)])
    made.fit(classifier(), datamodule=digits(**PARTS))
    assert places(tmp_path) == [(0, 0), (0.25, 1), (0.5, 2), (0.75, 3)]
    log = RunFolder(tmp_path).log()
    assert log[log["name"] == "lr"]["step"].tolist() == [0, 2, 3]
    assert RunFolder(tmp_path).last_epoch == 0 == Run(RunFolder(tmp_path)).last_epochs["plain"]


@pytest.mark.parametrize("validated", [True, False])
def test_the_last_epoch_is_measured_also_where_early_stopping_ends_training(tmp_path, validated):
    """It decides before the epoch's end, or, of what training logs, after all measures."""

    class Logging(Foreign):
        def training_step(self, batch, batch_idx):
            self.log("loss", 1.0)
            return F.cross_entropy(self(batch[0]), batch[1])

        def validation_step(self, batch, batch_idx):
            self.log("loss", 1.0)

    loader = DataLoader(images(8), batch_size=4)
    stopping = EarlyStopping("loss", patience=2, check_on_train_epoch_end=not validated)
    watching = [Idle(every_n_epochs=5), callbacks.Signal(every_n_epochs=5)]
    options = {"callbacks": [*watching, stopping], "logger": [RunLogger(tmp_path)]}
    trainer(9, **options).fit(Logging(), loader, loader if validated else None)
    log = RunFolder(tmp_path).log()
    assert log.query("name == 'idle'")["epoch"].tolist() == [0, 3]
    assert log.query("name == 'cost/signal'")["epoch"].tolist() == [
        0
    ]  # of a step that was not watched it knows nothing


@pytest.mark.parametrize(("epochs", "ended", "steps"), [(3, 1, [0, 3, 6, 8, 9, 12]), (2, 2, [0, 3, 6, 8])])
def test_an_epoch_that_a_resume_ends_without_a_batch_is_measured_if_it_is_due_and_as_itself(
    tmp_path, epochs, ended, steps
):
    """Lightning's `ModelCheckpoint` saves when the last batch has been evaluated, before the epoch's end."""

    class Dies(pl.Callback):
        def on_train_epoch_end(self, trainer, module):
            if trainer.current_epoch + 1 == ended:
                raise KeyError("power cut")

    def parts(*more: pl.Callback) -> pl.Trainer:
        saving = ModelCheckpoint(tmp_path / "saved", save_on_train_epoch_end=False)
        measuring = Idle(every_n_steps=3, every_n_epochs=2)
        own = {"callbacks": [*more, measuring, saving], "logger": [RunLogger(tmp_path)], "enable_checkpointing": True}
        return trainer(epochs, **own)

    with pytest.raises(KeyError):
        parts(Dies()).fit(classifier(), datamodule=digits(**PARTS))
    (saved,) = (tmp_path / "saved").iterdir()
    parts().fit(classifier(), datamodule=digits(**PARTS), ckpt_path=saved)
    assert places(tmp_path) == [(step / 4, step) for step in steps]


def test_what_watches_a_step_does_not_see_what_others_measure_after_it(tmp_path):
    """Hooks on the nets (signals, signs of twins) are off when measures run their own passes, whatever the order."""
    bank = {"residual": arm(True), "plain": Arm(twin_of="residual")}
    for order in (1, -1):
        watching = [
            callbacks.LayerCushion(every_n_steps=1),
            callbacks.TwinDivergence(),
            callbacks.Signal(every_n_steps=1),
        ]
        fit(classifier(bank), 1, callbacks=watching[::order], logger=[RunLogger(tmp_path / str(order))])
    first, last = (sorted(log_rows(tmp_path / order)) for order in ("1", "-1"))
    assert first == last and not any(row[3].startswith("failed/") for row in first)
    assert any(row[3] == "signal/layer02/branch_ratio" for row in first)


def test_gradients_gathered_over_batches_are_one_step(tmp_path):
    class Gathering(Foreign):
        def training_step(self, batch, batch_idx):
            return F.cross_entropy(self(batch[0]), batch[1])

    options = {"accumulate_grad_batches": 2, "callbacks": [Idle(every_n_steps=1)], "logger": [RunLogger(tmp_path)]}
    trainer(1, **options).fit(Gathering(), DataLoader(images(), batch_size=10))  # nine batches, five steps
    rows = RunFolder(tmp_path).log().query("name == 'idle'")
    assert rows["step"].tolist() == [0, 1, 2, 3, 4, 5]
    assert rows["epoch"].tolist() == pytest.approx([0, 2 / 9, 4 / 9, 6 / 9, 8 / 9, 1])


def test_an_epoch_without_length_has_no_places_within(tmp_path):
    class Stream(IterableDataset):
        def __iter__(self):
            yield from images(8)

    with pytest.raises(UserError, match=r"every_n_steps of Idle .* set trainer.limit_train_batches"):
        trainer(1, callbacks=[Idle(every_n_steps=2)]).fit(Foreign(), DataLoader(Stream(), batch_size=4))
    watched = trainer(1, limit_train_batches=2, callbacks=[Idle(every_n_steps=1)], logger=[RunLogger(tmp_path)])
    watched.fit(Foreign(), DataLoader(Stream(), batch_size=2))
    assert RunFolder(tmp_path).log().query("name == 'idle'")["epoch"].tolist() == [0, 0.5, 1]


def test_evaluations_within_an_epoch_without_length_have_no_places_either():
    class Stream(IterableDataset):
        def __iter__(self):
            yield from [(torch.ones(5), 0)] * 40

    evaluated = DataLoader([(torch.ones(5), 0)] * 4)
    for limits, places in (
        ({}, None),
        ({"limit_train_batches": 8}, [0, 0.5, 1]),
        ({"val_check_interval": 1.0}, [0, 1]),
    ):
        noting = NotingMetrics()
        made = trainer(1, **{"val_check_interval": 4, "callbacks": [noting]} | limits)
        bank = classifier(net=lambda: torch.nn.Linear(5, 3))
        if places is None:
            with pytest.raises(UserError, match=r"val_check_interval .* set trainer\.limit_train"):
                made.fit(bank, DataLoader(Stream(), 4), evaluated)
        else:
            made.fit(bank, DataLoader(Stream(), 4), evaluated)
            assert noting.measured == places


class NotingMetrics(callbacks.TrainingMetrics):
    def __init__(self):
        super().__init__()
        self.measured = []

    def observe(self, trainer, pl_module, epoch):
        self.measured.append(epoch)


def test_a_number_of_steps_may_be_numpys():
    assert Idle(every_n_steps=np.int64(3)).due_after(6)


@pytest.mark.parametrize("wrong", [0, -3, 1.5, "log"])
def test_another_spelling_is_refused(wrong):
    with pytest.raises(
        UserError, match=r"must be a whole number of at least 1, or powers_of_2 for 1, 2, 4, 8, \.\.\., got"
    ):
        Idle(every_n_steps=wrong)


def test_the_command_line_says_what_it_takes(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ("fit", "--data", "Digits", "--model.net", "SimplifiedNet", "--trainer.callbacks", "WeightMass")
    said = refused(*words, "--trainer.callbacks.every_n_steps", "log", capsys=capsys, monkeypatch=monkeypatch)
    assert "every_n_steps" in said and "powers_of_2" in said


def test_tensorboard_counts_steps_of_what_is_measured_within_epochs(tmp_path):
    logger = TensorBoardLogger(tmp_path)
    fit(classifier(), 1, callbacks=[Idle(every_n_steps=2), callbacks.WeightMass()], logger=[logger])
    logger.experiment.flush()
    events = EventAccumulator(logger.log_dir).Reload()
    assert [event.step for event in events.Scalars("idle/plain")] == [0, 2, 4]
    assert [event.step for event in events.Scalars("weight_mass/all/plain")] == [0, 1]


def test_the_run_folder_keeps_places_within_epochs_and_whole_ones_stay_integers(tmp_path):
    folder = RunFolder(tmp_path)
    folder.append([Row("net", 0, 0, "a", 1.0), Row("net", 1, 391, "a", 2.0)])
    assert folder.log()["epoch"].dtype == "int64"
    folder.append([Row("net", 1 + 1 / 391, 392, "a", 3.0)])
    assert folder.log()["epoch"].tolist() == [0, 1, 1 + 1 / 391] and folder.last_epoch == 1
    for epoch in (0, 12, 1.002557545, 2):
        folder.save_arrays(epoch, "a", {"net/a": torch.full((2,), epoch).numpy()})
    assert folder.array_epochs("a") == [0, 1.002557545, 2, 12]
    assert folder.arrays(1.002557545, "a")["net/a"][0] == pytest.approx(1.002557545)
    assert Run(folder).last("a", "net").epoch == 1 + 1 / 391


def test_the_page_draws_the_first_steps_apart(tmp_path):
    folder = RunFolder(tmp_path)
    steps = [0, *(2**power for power in range(9)), 391, 782]
    folder.append(Row("net", round(step / 391, 9), step, "idle", 1.0 + step) for step in steps)
    page = write_report([folder]).read_text()
    ticks = [text for text in ("0.01", "0.1", "1") if f">{text}</text>" in page]
    assert len(ticks) >= 2 and "idle" in page


@pytest.mark.parametrize("steps", [None, 1])
@pytest.mark.parametrize(("every", "evaluated"), [(2, [0.5, 1]), (3, [0.75]), (1.0, [1])])
def test_evaluations_lie_where_they_were_made(tmp_path, every, evaluated, steps):
    """Lightning evaluates after every so many of an epoch's four batches, which need not be at its end."""
    watching, options = [callbacks.TrainingMetrics(every_n_steps=steps)], {"val_check_interval": every}
    module = fit(classifier(), 1, callbacks=watching, logger=[RunLogger(tmp_path)], data=digits(**PARTS), **options)
    log = RunFolder(tmp_path).log().query("member in ('', 'plain')")
    assert log[log["name"] == "test/error"]["epoch"].tolist() == evaluated
    assert ("test/error" in module.metrics()["plain"]) == (evaluated[-1] == 1)
    assert log[log["name"] == "time/epoch"]["epoch"].tolist() == [1]


def test_what_lightning_logs_lies_at_completed_epochs(tmp_path):
    """Also what has no epoch of its own (after steps, by LearningRateMonitor), and a test after training."""

    class Logging(Foreign):
        def validation_step(self, batch, batch_idx):
            self.log("each_step", float(batch_idx), on_step=True)

        def test_step(self, batch, batch_idx):
            self.log("tested", 1.0)

    module, loader = Logging(), DataLoader(images(8), batch_size=4)
    options = {"callbacks": [LearningRateMonitor("step")], "logger": [RunLogger(tmp_path)], "log_every_n_steps": 1}
    made = trainer(3, **options)
    made.fit(module, loader, loader)
    made.test(module, loader, verbose=False)
    made.loggers[0].log_metrics({"mine": 1.0})
    other = RunLogger(tmp_path)
    trainer(1, logger=[other]).test(module, loader, verbose=False)  # of another day
    log = RunFolder(tmp_path).log()
    assert log[log["name"].str.startswith("lr-")]["epoch"].tolist() == [1, 2, 3]
    assert log[log["name"].str.startswith("each_step")]["epoch"].drop_duplicates().tolist() == [1, 2, 3]
    assert log[log["name"] == "mine"]["epoch"].tolist() == [3]
    assert log[log["name"] == "tested"]["epoch"].tolist() == [3] and RunFolder(tmp_path).last_epoch == 3


@pytest.mark.parametrize("within", [0, 2])
def test_a_resume_drops_what_was_logged_after_its_checkpoint(tmp_path, within):
    """Nothing of the epochs before it, and not the end of an abandoned run."""
    folder = RunFolder(tmp_path)

    def run(epochs: int, resume=None) -> None:
        saving = SaveCheckpoint()
        saving.folder = folder.checkpoints
        copying = SaveAt(tmp_path / "early.ckpt", 8 + within)
        watching = [callbacks.TrainingMetrics(), Idle(every_n_steps=3), saving, *([] if resume else [copying])]
        logger = [RunLogger(tmp_path, claimed=True)]
        made = trainer(epochs, callbacks=watching, logger=logger, enable_checkpointing=True)
        made.fit(classifier(), datamodule=digits(**PARTS), ckpt_path=resume, weights_only=True)

    run(4)
    before = log_rows(tmp_path)
    run(3, tmp_path / "early.ckpt")
    after = log_rows(tmp_path)
    assert {row for row in before[1:] if int(row[2]) <= 8} <= {*after}
    assert max(int(row[2]) for row in after[1:]) == 12 < max(int(row[2]) for row in before[1:])
