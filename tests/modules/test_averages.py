"""Moving averages of weights: what they are, that they change nothing, and that they go wherever their net goes."""

import pytest
import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from pytorch_lightning.callbacks import ModelCheckpoint
from torch.optim.swa_utils import AveragedModel

from lightning_app.cli.checkpoints import extract_member, transfer_checkpoint
from lightning_app.common.errors import UserError
from lightning_app.identity import transfer
from lightning_app.modules import Arm
from lightning_app.modules.optimizing import Averages
from lightning_app.networks import CifarResNet
from tests.helpers import arm, classifier, digits, fit, same_weights, trainer

DECAY = 0.8
NORMALISED = {"net": Arm(net=lambda: CifarResNet(8, width=4))}


class History(pl.Callback):
    """The weights and buffers after each step, in float64."""

    def __init__(self):
        self.states = []

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        state = module.members[0].net.state_dict()
        self.states.append({name: value.double().clone() for name, value in state.items()})


def average_of(module):
    return module.averages[module.members[-1].name].module


def test_it_is_the_exponential_average_of_weights_and_buffers():
    module = classifier(NORMALISED, ema_decay=DECAY)
    fit(module, callbacks=[history := History()])
    assert len(history.states) == 8
    for name, value in average_of(module).state_dict().items():
        if not value.is_floating_point():  # BatchNorm's count of batches, which nothing here reads
            continue
        expected = history.states[0][name]  # the first step's own
        for state in history.states[1:]:
            expected = DECAY * expected + (1 - DECAY) * state[name]
        torch.testing.assert_close(value.double(), expected, rtol=1e-5, atol=1e-7)
        assert not torch.equal(value, module.members[0].net.state_dict()[name])


class Masked(CifarResNet):
    """With a buffer that is infinite and never changes, as the mask of attention in many nets."""

    def __init__(self):
        super().__init__(8, width=4)
        self.register_buffer("mask", torch.full((2, 2), -torch.inf).triu(1))


def test_a_mask_of_infinities_is_neither_averaged_nor_taken_for_a_divergence(tmp_path):
    module = fit(classifier({"net": Arm(net=Masked)}, ema_decay=DECAY))
    module.trainer.save_checkpoint(tmp_path / "masked.ckpt")
    assert average_of(module).mask.equal(module.members[0].net.mask) and average_of(module).mask[0, 1] == -torch.inf
    norm = next(each for each in module.members[0].net.modules() if isinstance(each, torch.nn.BatchNorm2d))
    norm.running_var[0] = torch.inf  # what a step makes infinite has diverged
    with pytest.raises(UserError, match="running_var of member 'net' has NaN or infinite values"):
        module.trainer.save_checkpoint(tmp_path / "masked.ckpt")


def test_weights_that_are_too_short_for_an_average_are_refused():
    with pytest.raises(UserError, match=r"precision bf16-true rounds away .* use bf16-mixed"):
        fit(classifier(NORMALISED, ema_decay=DECAY), precision="bf16-true")


def test_integers_are_no_numbers_to_be_averaged():
    """3 * 0.9 + 3 * (1 - 0.9) is a little less than 3, and an index of 2."""
    net = torch.nn.Linear(1, 1)
    net.register_buffer("positions", torch.arange(100))
    average = AveragedModel(net, use_buffers=True)
    averages = Averages([(average, net)], 0.9, begun=False)
    for _ in range(3):
        averages.update()
        assert average.module.positions.equal(net.positions)
    net.positions += 1
    averages.update()
    assert average.module.positions.equal(net.positions)
    net.positions = net.positions + 1  # another tensor
    averages.update()
    assert average.module.positions.equal(net.positions)


def test_training_is_the_same_and_both_are_evaluated():
    with_average, without = (fit(classifier(NORMALISED, ema_decay=decay), data=digits()) for decay in (DECAY, None))
    assert same_weights(with_average.members[0].net, without.members[0].net)
    both, one = with_average.metrics()["net"], without.metrics()["net"]
    assert {name: both[name] for name in one} == one
    assert both.keys() - one.keys() == {
        f"{split}/{key}_ema" for split in ("train", "test") for key in ("risk", "error")
    }
    data = with_average.trainer.datamodule
    loader = dict(zip(data.eval_splits, data.val_dataloader()))["test"]
    images, labels = (torch.cat(parts) for parts in zip(*loader))
    with torch.no_grad():
        logits = average_of(with_average).eval()(images)
    assert both["test/risk_ema"] == pytest.approx(float(F.cross_entropy(logits, labels)), rel=1e-5)
    assert both["test/risk_ema"] != both["test/risk"]


@pytest.mark.parametrize("precision", ["32-true", "64-true"])
def test_before_training_it_is_the_net(precision):
    """Twins too, which are transferred again in float64."""
    module = classifier({"residual": arm(True), "twin": Arm(twin_of="residual")}, ema_decay=DECAY)
    run = trainer(precision=precision)
    run.validate(module, datamodule=digits(), verbose=False)
    for numbers in module.metrics().values():
        assert numbers["test/risk_ema"] == numbers["test/risk"] and numbers["test/error_ema"] == numbers["test/error"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Checkpoints within and at the end of an epoch, and the bank that went on."""
    folder = tmp_path_factory.mktemp("saved")
    save = ModelCheckpoint(folder, filename="{step}", every_n_train_steps=2, save_top_k=-1)
    return folder, fit(classifier(seeds=2, ema_decay=DECAY), enable_checkpointing=True, callbacks=[save])


@pytest.mark.parametrize("step", [2, 4])
def test_a_resumed_average_is_the_one_that_went_on(saved, step):
    folder, whole = saved
    resumed = classifier(seeds=2, ema_decay=DECAY)
    trainer(2).fit(resumed, datamodule=digits(), ckpt_path=folder / f"step={step}.ckpt")
    assert same_weights(resumed.averages, whole.averages) and same_weights(resumed.nets, whole.nets)


def test_the_average_of_a_member_is_that_of_the_net_alone(saved, tmp_path):
    """Trained alone, and taken out of the bank half-way."""
    folder, bank = saved
    alone = fit(classifier({"net": arm(True)}, seeds=[1], ema_decay=DECAY))
    assert same_weights(average_of(alone), average_of(bank))
    bank_there = torch.load(folder / "step=4.ckpt", weights_only=True)
    torch.save(extract_member(bank_there, "residual-seed01"), tmp_path / "one.ckpt")
    went_on = classifier({"net": arm(True)}, seeds=[1], ema_decay=DECAY)
    trainer(2).fit(went_on, datamodule=digits(), ckpt_path=tmp_path / "one.ckpt")
    assert same_weights(average_of(went_on), average_of(bank))


def test_the_average_of_what_was_transferred_is_the_transferred_average(saved):
    """T is a translation, and the weights of an average sum to 1."""
    folder, _ = saved
    before = torch.load(folder / "step=4.ckpt", weights_only=True)
    after, _ = transfer_checkpoint(before, member="residual-seed01")
    root = "averages.residual-seed01.module."
    own = classifier(seeds=2).members[3].net.id_weights()
    expected = transfer(before["state_dict"], [root + name for name in own])
    for name in (root + name for name in own):
        assert torch.equal(after["state_dict"][name], expected[name])
        assert not torch.equal(after["state_dict"][name], before["state_dict"][name])


@pytest.mark.parametrize("decay", [1.0, -0.1])
def test_a_decay_that_makes_no_sense_is_an_error_message(decay):
    with pytest.raises(UserError, match=r"ema_decay: expected a number in \[0, 1\)"):
        classifier(ema_decay=decay)


def test_averages_that_begin_with_a_resume_are_an_error_message(tmp_path):
    without = fit(classifier(), epochs=1)
    without.trainer.save_checkpoint(tmp_path / "without.ckpt")
    with pytest.raises(
        UserError, match=r"has no averages of weights, this configuration keeps some: set model.ema_decay as it was"
    ):
        trainer(2).fit(classifier(ema_decay=DECAY), datamodule=digits(), ckpt_path=tmp_path / "without.ckpt")
