"""One battery for all callbacks: they leave no trace, keep their schedule, and say what they cost."""

import pytest
import pytorch_lightning as pl
import torch

import callbacks
from callbacks.measure import EpochCallback, Measure, isolated
from lightning_app.common.errors import UserError
from lightning_app.modules import Arm
from lightning_app.runs import RunFolder
from lightning_app.runs.loggers import RunLogger
from tests.helpers import arm, classifier, digits, fit, same_weights

ALL = [getattr(callbacks, name) for name in callbacks.__all__]
MEASURES = [callback for callback in ALL if issubclass(callback, Measure)]


def normalised_net() -> torch.nn.Module:
    """BatchNorm and dropout: what a careless measure disturbs."""
    conv = torch.nn.Conv2d(3, 4, 3, stride=4)
    return torch.nn.Sequential(
        conv,
        torch.nn.BatchNorm2d(4),
        torch.nn.ReLU(),
        torch.nn.Dropout(),
        torch.nn.Flatten(),
        torch.nn.Linear(4 * 64, 10),
    )


def bank(**more):
    return classifier({"plain": arm(False), "residual": arm(True), "normalised": Arm(net=normalised_net)}, **more)


def test_training_with_all_callbacks_is_bit_identical_to_training_with_none(tmp_path):
    logger = RunLogger(tmp_path / "run")
    watched = fit(
        bank(),
        epochs=3,
        callbacks=[callback() for callback in ALL],
        logger=[logger],
        num_sanity_val_steps=-1,
        enable_progress_bar=True,
    )
    alone = fit(bank(), epochs=3)
    assert same_weights(watched.nets, alone.nets)  # weights and BatchNorm's buffers
    assert set(logger.folder.log()["epoch"]) == {0, 1, 2, 3}


@pytest.mark.parametrize("callback", MEASURES)
def test_a_measure_keeps_its_schedule_and_always_sees_the_final_epoch(tmp_path, callback):
    fit(bank(), epochs=5, callbacks=[callback(every_n_epochs=2, at_start=False)], logger=[RunLogger(tmp_path)])
    log = RunFolder(tmp_path).log()
    assert sorted(set(log["epoch"])) == [2, 4, 5]
    cost = log[log["name"] == f"cost/{callback.family}"]
    assert cost["epoch"].tolist() == [2, 4, 5]
    assert (cost["value"] > 0).all()


@pytest.mark.parametrize("callback", MEASURES)
def test_a_measure_gives_the_same_numbers_when_asked_again(callback):
    runner = fit(bank(), epochs=1).trainer
    for _, net in runner.lightning_module.members:
        with isolated(net):
            one, other = (dict(callback().measure(runner, net)) for _ in range(2))
        assert repr(one) == repr(other)


@pytest.mark.parametrize("callback", [callback for callback in ALL if issubclass(callback, EpochCallback)])
def test_a_wrong_schedule_is_a_sentence(callback):
    with pytest.raises(UserError, match=r"at least 1, got 0"):
        callback(every_n_epochs=0)


def test_isolation_restores_modes_one_by_one_and_the_random_state():
    net = normalised_net()
    net[1].eval()
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    with isolated(net):
        assert not any(module.training for module in net.modules())
        assert not torch.is_grad_enabled()
        torch.rand(100)
    assert [module.training for module in net] == [True, False, True, True, True, True]
    assert torch.equal(torch.rand(2), expected)


def test_isolation_survives_an_error():
    net = normalised_net()
    with pytest.raises(RuntimeError), isolated(net):
        raise RuntimeError
    assert all(module.training for module in net.modules())


def test_documented_keys_are_logged(tmp_path):
    """The key tables in the docstrings, compared with what was logged."""
    fit(
        bank(),
        epochs=1,
        callbacks=[callback() for callback in ALL],
        logger=[RunLogger(tmp_path)],
        enable_progress_bar=True,
    )
    names = set(RunFolder(tmp_path).log()["name"])
    documented = {
        "train/risk_running",
        "train/error_running",
        "train/risk",
        "test/error",
        "train/cost",
        "train/cost_paper",
    }
    documented |= {"lr", "time/epoch", "probe/risk", "probe/error", "cushion/layer01/median", "cushion/layer02/minimum"}
    documented |= {"weight_mass/id_entries", "weight_mass_transferred/layer02/std", "cost/cushion", "cost/weight_mass"}
    assert documented <= names


def test_an_epoch_without_evaluation_does_not_repeat_the_last_ones_numbers(tmp_path):
    fit(
        bank(),
        epochs=3,
        callbacks=[callbacks.TrainingMetrics()],
        logger=[RunLogger(tmp_path)],
        check_val_every_n_epoch=2,
    )
    log = RunFolder(tmp_path).log().query("member == 'plain'")
    assert set(log[log["name"] == "test/error"]["epoch"]) == {2}
    assert set(log[log["name"] == "train/risk_running"]["epoch"]) == {1, 2, 3}
    assert set(log[log["name"] == "train/cost"]["epoch"]) == {2}


def test_probe_risk_is_the_risk_of_the_probe_samples(tmp_path):
    data = digits()
    module = fit(bank(), epochs=1, data=data, callbacks=[callbacks.LayerCushion()], logger=[RunLogger(tmp_path)])
    log = RunFolder(tmp_path).log().query("epoch == 1 and name == 'probe/risk'").set_index("member")["value"]
    images, labels = next(iter(data.probe_loader()))
    for name, net in module.members:
        with torch.no_grad():
            risk = torch.nn.functional.cross_entropy(net.eval()(images), labels)
        assert log[name] == pytest.approx(float(risk), rel=1e-6)


def test_a_module_that_knows_nothing_of_ours_is_measured_as_the_only_member(tmp_path):
    class Foreign(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = arm(True).net()

        def forward(self, x):
            return self.net(x)

        def training_step(self, batch, _):
            return torch.nn.functional.cross_entropy(self(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.01)

    fit(Foreign(), epochs=1, callbacks=[callbacks.WeightMass(), callbacks.LayerCushion()], logger=[RunLogger(tmp_path)])
    log = RunFolder(tmp_path).log()
    assert "cushion/layer01/median" in set(log[log["member"] == "net"]["name"])
