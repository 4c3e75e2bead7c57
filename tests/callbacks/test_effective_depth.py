"""Effective depth as it is logged: keys, silence where it does not apply, statistics before training."""

import logging

import pytest
import torch
from torch import nn

from callbacks import EffectiveDepth
from callbacks.measure import isolated
from lightning_app.measures import effective_depth
from lightning_app.modules import Arm
from lightning_app.networks import CifarResNet
from lightning_app.runs import RunFolder
from lightning_app.runs.loggers import RunLogger
from tests.helpers import arm, classifier, context, digits, fit

KEYS = {"effective", "coherent", "gradient", "longest", "relative", "effective_input", "bias_share", "gate_share"}


def full() -> nn.Module:
    return CifarResNet(8, width=4)


def logged(folder) -> RunFolder:
    return RunFolder(folder)


def test_residual_nets_have_a_depth_and_plain_ones_none(tmp_path, caplog):
    bank = classifier({"plain": arm(False), "residual": arm(True), "full": Arm(net=full)})
    with caplog.at_level(logging.WARNING):
        fit(bank, epochs=2, callbacks=[EffectiveDepth(samples=12)], logger=[RunLogger(tmp_path)])
    log = logged(tmp_path).log()
    of = log[log["name"].str.startswith("depth/")]
    assert set(of["member"]) == {"residual", "full"}
    assert set(of["name"]) == {f"depth/{key}" for key in KEYS}
    assert set(of["epoch"]) == {0, 1, 2}
    longest = of[of["name"] == "depth/longest"].groupby("member")["value"].unique()
    assert longest["residual"] == [4] and longest["full"] == [7]
    assert not [record for record in caplog.records if "EffectiveDepth logs nothing" in record.message]


def test_its_numbers_are_the_measures():
    """Outputs of all 20 samples; the gradient of seven, and of the loss that the module has."""
    net, loss = arm(True).net(), classifier({"net": arm(True)}, loss="squared_error").loss
    found = EffectiveDepth(samples=20, gradient_samples=7).evaluate(context(net, loss))["depth"]
    with isolated(net):
        expected = effective_depth(net, [*digits().probe_loader()], loss, 7)
    assert (found.effective, found.gradient) == pytest.approx((expected.effective, expected.gradient), rel=1e-5)
    assert torch.allclose(found.outputs, expected.outputs, rtol=1e-5)


@pytest.mark.parametrize(
    ("net", "words"),
    [
        (lambda: arm(False).net(), "every path from the input passes 4 weight layers"),
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(3072, 10), nn.Softmax(1)), "through a softmax"),
    ],
)
def test_a_net_that_cannot_be_resolved_has_one_warning_and_is_trained(net, words, tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        fit(classifier({"net": Arm(net=net)}), epochs=2, callbacks=[EffectiveDepth()], logger=[RunLogger(tmp_path)])
    (messages,) = [record.message for record in caplog.records if "EffectiveDepth logs nothing" in record.message]
    assert words in messages and "\n" not in messages
    assert set(logged(tmp_path).log()["epoch"]) == {0, 1, 2}


def test_before_training_statistics_are_those_of_the_probe(tmp_path):
    """Running statistics are still mean 0 and variance 1; with the probe's each channel has mean 0 and variance 1 behind BN."""
    data, seen = digits(probe_size=40), []

    class Look(EffectiveDepth):
        def measure(self, context):
            net, copy = context.net, context.recalibrated()
            images = torch.cat([images for images, _ in data.probe_loader()])
            with torch.no_grad():
                first = copy.bn0(copy.conv0(images))
            norms = [module for module in copy.modules() if isinstance(module, nn.BatchNorm2d)]
            as_before = not any(module.training for module in copy.modules()) and {n.momentum for n in norms} == {0.1}
            seen.append((copy is net, as_before, float(first.mean().abs()), float(first.var())))
            return {}

    fit(classifier({"full": Arm(net=full)}), epochs=1, data=data, callbacks=[Look()], logger=[RunLogger(tmp_path)])
    (same, as_before, mean, variance), (trained, *_) = seen  # looked at here: what a measure raises stops no run
    assert not same and as_before and mean < 1e-5 and variance == pytest.approx(1, rel=1e-2)
    assert trained
