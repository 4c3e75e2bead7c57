"""What is logged about twins; watching leaves no trace, and a resumed run logs the same."""

import logging
import math

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
import torch.nn.functional as F

from callbacks import TrainingMetrics, TwinDivergence
from lightning_app.modules import Arm, ImageClassifier
from lightning_app.runs import RunFolder
from lightning_app.runs.checkpoints import AtomicCheckpointIO, SaveCheckpoint
from lightning_app.runs.loggers import RunLogger
from tests.helpers import arm, classifier, digits, fit, log_rows, same_weights, trainer

FIELDS = {"number", "divergence", "divergence_id", "risk_original", "risk_twin", "risk_difference"}
STEPS = 4  # an epoch of the embedded digits: 100 images in batches of 32


def twins(**more) -> ImageClassifier:
    return classifier({"r": arm(True), "p": Arm(twin_of="r")}, **more)


def watch(folder, *more: pl.Callback, epochs: int = 2, module: ImageClassifier | None = None, **options) -> RunFolder:
    """Train twins in float64 with the callback on; what the run folder says."""
    callbacks = [options.pop("callback", TwinDivergence()), *more]
    settings = {"callbacks": callbacks, "logger": [RunLogger(folder)], "precision": "64-true", "limit_val_batches": 0}
    fit(module or twins(), epochs, **settings | options)
    return RunFolder(folder)


def numbers(run: RunFolder, epoch: int, member: str = "p") -> dict[str, float]:
    log = run.log().query("member == @member and epoch == @epoch")
    return dict(zip(log["name"], log["value"]))


def arrays(run: RunFolder, epoch: int) -> dict[str, np.ndarray]:
    return {key.removeprefix("p/twin/steps/"): values for key, values in run.arrays(epoch, "twin").items()}


def test_steps_of_an_epoch_are_arrays_and_its_end_is_a_row_of_the_twin(tmp_path):
    own = TwinDivergence()
    run = watch(tmp_path, TrainingMetrics(), epochs=3, limit_val_batches=1.0, callback=own)
    costs = run.log().query("name == 'cost/twin'")["value"]
    assert len(costs) == 4 and costs.sum() == pytest.approx(own.spent)
    for epoch in (1, 2, 3):
        steps, end = arrays(run, epoch), numbers(run, epoch)
        assert steps.keys() == FIELDS
        assert steps["number"].tolist() == list(range(STEPS * epoch - 3, STEPS * epoch + 1))
        assert end["twin/divergence"] == steps["divergence"][-1]
        assert end["twin/divergence_id"] == steps["divergence_id"][-1]
        assert end["twin/divergence"] == max(end["twin/divergence_id"], end["twin/divergence_other"])
        assert np.array_equal(steps["risk_difference"], steps["risk_twin"] - steps["risk_original"])
        risks = [numbers(run, epoch, member)["train/risk"] for member in "pr"]
        assert end["twin/risk_difference"] == abs(risks[0] - risks[1])
    assert not any(name.startswith("twin/") for name in numbers(run, 3, "r"))


def test_training_that_ends_within_an_epoch_is_a_part_of_it(tmp_path):
    run = watch(tmp_path, epochs=3, max_steps=STEPS + 1)
    assert arrays(run, 1)["number"].tolist() == list(range(1, STEPS + 1))
    assert arrays(run, 1 + 1 / STEPS)["number"].tolist() == [STEPS + 1]
    log = run.log().query("name == 'twin/divergence'")
    assert log["epoch"].tolist() == [0, 1, 1 + 1 / STEPS]


@pytest.fixture(scope="module")
def one_epoch(tmp_path_factory) -> RunFolder:
    return watch(tmp_path_factory.mktemp("one"), TrainingMetrics(), epochs=1)


def test_risks_of_the_steps_are_those_that_were_trained_on(one_epoch):
    sizes = [32, 32, 32, 4]
    for risk, member in (("risk_original", "r"), ("risk_twin", "p")):
        mean = np.average(arrays(one_epoch, 1)[risk], weights=sizes)
        assert mean == pytest.approx(numbers(one_epoch, 1, member)["train/risk_running"], rel=1e-12)


def test_the_start_is_the_rounding_of_the_map(one_epoch):
    start = numbers(one_epoch, 0)
    assert 0 <= start["twin/divergence"] <= 1.3 * 2.0**-53
    assert start["twin/divergence_other"] == 0


def test_one_step_parts_the_second_layer_by_about_one_rounding(one_epoch):
    end = numbers(one_epoch, 1)
    for batch in ("at_start", "after_one_step"):
        assert 0 < end[f"twin/layer02_{batch}_mean"] < end[f"twin/layer02_{batch}"] < 1e-14


class SecondBatch(pl.Callback):
    """Differences of the inputs of layer 2's ReLU in the second batch, before its step."""

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        if trainer.global_step == 1:
            ((images, _),) = batch.values()
            with torch.no_grad():
                before = (F.relu(net.conv0(module.as_trained(images))) for net in module.nets.values())
                one, other = (net.blocks[0].before_relu(x) for net, x in zip(module.nets.values(), before))
            self.apart = (one - other).abs()


def test_after_one_step_means_in_the_second_batch(tmp_path):
    """On which Table 2 of Yu & Tomasi is judged."""
    second = SecondBatch()
    found = numbers(watch(tmp_path / "two", second, epochs=1, max_steps=2), 0.5)
    key = "twin/layer02_after_one_step"
    assert found[key] == float(second.apart.max())
    assert found[f"{key}_mean"] == pytest.approx(float(second.apart.mean()), rel=1e-6, abs=0)
    ended = set(watch(tmp_path / "one", epochs=1, max_steps=1).log()["name"])
    assert "twin/layer02_at_start" in ended and key not in ended


def test_without_evaluation_the_difference_is_that_of_the_running_risk(one_epoch):
    risks = [numbers(one_epoch, 1, member)["train/risk_running"] for member in "pr"]
    assert numbers(one_epoch, 1)["twin/risk_difference"] == abs(risks[0] - risks[1])


def test_every_n_steps_keeps_the_first(tmp_path):
    run = watch(tmp_path, callback=TwinDivergence(every_n_steps=3))
    assert arrays(run, 1)["number"].tolist() == [1, 3]
    assert arrays(run, 2)["number"].tolist() == [6]
    rare = watch(tmp_path / "rare", callback=TwinDivergence(every_n_steps=99))
    assert rare.array_epochs("twin") == [1]
    assert "twin/divergence" in numbers(rare, 2)


def test_a_twin_may_be_the_residual_one_and_each_seed_has_its_own(tmp_path):
    plain = arm(False)
    plain.decay_towards = "identity"
    module = classifier({"p": plain, "r": Arm(twin_of="p")}, seeds=2)
    log = watch(tmp_path, module=module, epochs=1).log().query("name == 'twin/divergence' and epoch == 1")
    assert log["member"].tolist() == ["r-seed00", "r-seed01"]
    assert (log["value"].between(1e-17, 1e-12)).all()


def test_the_wrong_centre_parts_the_id_entries_by_the_rate_times_lambda_in_one_step(tmp_path):
    module = classifier({"r": arm(True), "p": Arm(twin_of="r", decay_towards="zero")}, weight_decay=1e-4)
    steps = arrays(watch(tmp_path, module=module, epochs=1), 1)
    assert steps["divergence_id"][0] == pytest.approx(0.05 * 1e-4, rel=1e-9)
    assert numbers(RunFolder(tmp_path), 0)["twin/divergence"] < 1e-15


def test_a_bank_without_twins_logs_nothing(tmp_path):
    fit(classifier(), 1, callbacks=[TwinDivergence()], logger=[RunLogger(tmp_path / "run")])
    assert not (tmp_path / "run" / "log.csv").exists()


def test_a_second_fit_starts_anew(tmp_path):
    callback = TwinDivergence()
    watch(tmp_path / "one", callback=callback, epochs=1)
    again = watch(tmp_path / "two", callback=callback, epochs=1)
    assert numbers(again, 1)["twin/growth/power_steps"] == STEPS
    assert arrays(again, 1)["number"].tolist() == [1, 2, 3, 4]


class Witness(pl.Callback):
    """Passes each batch through both nets, block by block, before it is trained on."""

    def __init__(self) -> None:
        self.flips: list[list[int]] = []  # by step and layer

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        (images, _), (r, p) = batch[0], (member.net for member in pl_module.members)
        xs, found = (r.conv0(images), p.conv0(images)), []
        for block, other in zip(r.blocks, p.blocks):
            found.append(int(((xs[0] > 0) != (xs[1] > 0)).sum()))
            xs = block.before_relu(xs[0].relu()), other.before_relu(xs[1].relu())
        self.flips.append([*found, int(((xs[0] > 0) != (xs[1] > 0)).sum())])


def test_the_first_flip_is_the_one_an_independent_pass_finds(tmp_path):
    witness = Witness()
    module = classifier({"r": arm(True), "p": Arm(twin_of="r", decay_towards="zero")}, weight_decay=3e-5)
    run = watch(tmp_path, witness, module=module, epochs=3)
    step, layers = next((step, layers) for step, layers in enumerate(witness.flips, start=1) if any(layers))
    end = numbers(run, 3)
    layer = next(layer for layer, units in enumerate(layers, start=1) if units)
    assert 1 < step < 3 * STEPS
    assert [end[f"twin/first_flip_{name}"] for name in ("step", "layer", "units")] == [step, layer, layers[layer - 1]]
    assert (end["twin/first_flip_original"] > 0) != (end["twin/first_flip_twin"] > 0)
    assert end["twin/growth/power_steps"] == step - 1
    assert end["twin/growth/exponential_steps"] == 3 * STEPS - step + 1


def test_without_a_flip_its_step_is_nan(tmp_path):
    end = numbers(watch(tmp_path), 2)
    assert math.isnan(end["twin/first_flip_step"])
    assert "twin/first_flip_layer" not in end
    assert (end["twin/growth/power_steps"], end["twin/growth/exponential_steps"]) == (2 * STEPS, 0)


def test_signs_need_not_be_watched(tmp_path):
    assert "twin/layer02_at_start" not in numbers(watch(tmp_path, callback=TwinDivergence(watch_signs=False)), 2)


def hooks(module: ImageClassifier) -> int:
    return sum(len(part._forward_hooks) for part in module.nets.modules())


def test_watched_training_is_bit_identical_and_leaves_no_hook(tmp_path):
    watched, alone = twins(), twins()
    watch(tmp_path, module=watched)
    fit(alone, precision="64-true")
    assert same_weights(watched.nets, alone.nets)
    assert hooks(watched) == 0


class Interruption(pl.Callback):
    def on_before_backward(self, trainer, pl_module, loss):
        assert hooks(pl_module) > 0
        raise KeyError("stop here")


def test_an_interrupted_step_leaves_no_hook(tmp_path):
    module = twins()
    with pytest.raises(KeyError, match="stop here"):
        watch(tmp_path, Interruption(), module=module)
    assert hooks(module) == 0


def test_compiled_nets_are_not_watched_with_a_warning(tmp_path, caplog):
    module = twins()
    for _, net in module.members:
        net.compile(backend="eager")  # traced like any other, but no code to generate
    with caplog.at_level(logging.WARNING):
        run = watch(tmp_path, module=module)
    assert "not watched: compiled nets run no hooks" in caplog.text
    assert math.isnan(numbers(run, 2)["twin/first_flip_step"])
    assert numbers(run, 2)["twin/divergence"] < 1e-13


class SaveAt(pl.Callback):
    """Saves after a step in the middle of an epoch."""

    def __init__(self, step: int, path) -> None:
        self.step, self.path = step, path

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.global_step == self.step:
            trainer.save_checkpoint(self.path)


def drifting() -> ImageClassifier:
    """Twins that flip in the second epoch: in float64 and with the right centre they would not for long."""
    return classifier({"r": arm(True), "p": Arm(twin_of="r", decay_towards="zero")}, weight_decay=3e-5)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> RunFolder:
    """Three epochs without interruption, with checkpoints after steps 1 and 6 and after epochs."""
    folder = tmp_path_factory.mktemp("whole")
    saving = SaveCheckpoint(keep_every_n_epochs=1)
    saving.folder = folder
    savers = [SaveAt(step, folder / f"step={step}.ckpt") for step in (1, 6)]
    return watch(folder, TrainingMetrics(), *savers, saving, module=drifting(), epochs=3, enable_checkpointing=True)


@pytest.mark.parametrize(("checkpoint", "first"), [("step=1", 1), ("step=6", 2), ("epoch=0002", 3)])
def test_a_resumed_run_logs_the_same_as_an_uninterrupted_one(whole, tmp_path, checkpoint, first):
    assert STEPS < numbers(whole, 3)["twin/first_flip_step"] <= 2 * STEPS  # so every checkpoint keeps another state
    settings = {"precision": "64-true", "plugins": [AtomicCheckpointIO()], "limit_val_batches": 0}
    runner = trainer(3, callbacks=[TwinDivergence(), TrainingMetrics()], logger=[RunLogger(tmp_path)], **settings)
    runner.fit(drifting(), datamodule=digits(), ckpt_path=str(whole.path / f"{checkpoint}.ckpt"))
    rows = [row for row in log_rows(whole.path)[1:] if int(row[1]) >= first]
    assert [row for row in rows if row[3].startswith("twin/")]
    assert log_rows(tmp_path)[1:] == rows
    for epoch in range(first, 4):
        ours, theirs = arrays(RunFolder(tmp_path), epoch), arrays(whole, epoch)
        assert ours.keys() == theirs.keys()
        assert all(np.array_equal(ours[key], theirs[key]) for key in ours)


def test_a_resumed_run_that_was_not_watched_has_a_warning(tmp_path, caplog):
    fit(twins(), 2, callbacks=[SaveAt(STEPS, tmp_path / "stop.ckpt")])
    runner = trainer(2, callbacks=[TwinDivergence()], logger=[RunLogger(tmp_path)], plugins=[AtomicCheckpointIO()])
    with caplog.at_level(logging.WARNING):
        runner.fit(twins(), datamodule=digits(), ckpt_path=str(tmp_path / "stop.ckpt"))
    assert "starts at step 4 of a resumed run" in caplog.text
    assert arrays(RunFolder(tmp_path), 2)["number"].tolist() == [5, 6, 7, 8]
