"""The loss option, and full-batch descent through Lightning against `descent`."""

import re
from functools import partial

import pytest
import torch
import torch.nn.functional as F

import skipscope
from callbacks import LayerCushion
from lightning_app.common.errors import UserError
from lightning_app.datamodules import WhitenedDigits
from lightning_app.modules import Arm, ImageClassifier
from lightning_app.modules.cost import loss_named, squared_error
from lightning_app.networks import CifarResNet, ShortcutNet
from lightning_app.theory.li_et_al.descent import LinearProblem, SampleProblem, descend
from lightning_app.theory.li_et_al.linear import Moments
from tests.helpers import ROOT, arm, classifier, context, digits, fit, same_weights


def logits_and_labels(outputs: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    return torch.randn(7, outputs, generator=generator, dtype=torch.float64), torch.arange(7) % 5


@pytest.mark.parametrize("outputs", [5, 8])
def test_squared_error_sample_by_sample(outputs):
    logits, labels = logits_and_labels(outputs)
    by_hand = 0.0
    for row, label in zip(logits.tolist(), labels.tolist()):
        by_hand += sum((value - (place == label)) ** 2 for place, value in enumerate(row)) / 2
    assert squared_error(logits, labels).item() == pytest.approx(by_hand / 7, rel=1e-14)


def test_squared_error_is_zero_at_the_targets_and_half_at_zero():
    _, labels = logits_and_labels()
    assert squared_error(F.one_hot(labels, 5).double(), labels) == 0
    assert squared_error(torch.zeros(7, 5), labels) == 0.5


def test_a_squared_error_is_of_one_label_a_sample():
    with pytest.raises(UserError, match=r"one label for each sample, got labels of shape \(2, 4\): use cross_entropy"):
        squared_error(torch.zeros(2, 4, 3), torch.zeros(2, 4, dtype=torch.long))


def test_low_precision_is_summed_in_float32():
    logits, labels = logits_and_labels()
    narrow = logits.bfloat16()
    assert torch.equal(squared_error(narrow, labels), squared_error(narrow.float(), labels))


def test_cross_entropy_is_pytorchs_and_an_unknown_loss_an_error():
    assert torch.equal(loss_named("cross_entropy")(*logits_and_labels()), F.cross_entropy(*logits_and_labels()))
    with pytest.raises(UserError, match="cross_entropy, squared_error, got 'hinge'"):
        classifier(loss="hinge")


def test_saying_the_default_changes_no_bit():
    said, unsaid = (fit(classifier({"net": arm(True)}, **more)) for more in ({"loss": "cross_entropy"}, {}))
    assert same_weights(said, unsaid) and said.metrics() == unsaid.metrics()


def test_risks_are_those_of_the_loss():
    data = digits()
    module = fit(classifier({"net": arm(True)}, loss="squared_error", weight_decay=0.0), data=data)
    net, numbers = module.members[0].net.eval(), module.metrics()["net"]
    for split, loader in zip(data.eval_splits, data.val_dataloader()):
        images, labels = (torch.cat(parts) for parts in zip(*loader))
        with torch.no_grad():
            logits = net(images)
            assert numbers[f"{split}/risk"] == pytest.approx(float(module.loss(logits, labels)), rel=1e-5)
        assert numbers[f"{split}/error"] == pytest.approx(float((logits.argmax(1) != labels).float().mean()), abs=1e-7)
    assert module.loss(*logits_and_labels()) == squared_error(*logits_and_labels())


def test_a_loss_of_ones_own_is_the_example_of_the_docs():
    """Trained with, reported and measured; a ResNet with the loss of all others is trained to other weights."""
    page = (ROOT / "docs" / "training.md").read_text()
    (example,) = [code for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "class Smoothed" in code]
    exec(example, names := {"__name__": "my_nets"})
    data, kinds = digits(), (names["Smoothed"], CifarResNet)
    own, other = (fit(classifier({"net": Arm(net=partial(kind, 8, width=4))}), data=data) for kind in kinds)
    assert not same_weights(own.members[0].net, other.members[0].net)
    net, numbers = own.members[0].net.eval(), own.metrics()["net"]
    for split, loader in zip(data.eval_splits, data.val_dataloader()):
        images, labels = (torch.cat(parts) for parts in zip(*loader))
        with torch.no_grad():
            by_hand = F.cross_entropy(net(images), labels, label_smoothing=0.1)
        assert numbers[f"{split}/risk"] == pytest.approx(float(by_hand), rel=1e-5)
    images, labels = next(iter(data.probe_loader()))
    with torch.no_grad():
        by_hand = F.cross_entropy(net(images), labels, label_smoothing=0.1)
    assert LayerCushion().evaluate(context(net))["probe/risk"] == pytest.approx(float(by_hand), rel=1e-5)


def shortcut_net(**more) -> ImageClassifier:
    return ImageClassifier(
        net=lambda: ShortcutNet(units=3, **more),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        loss="squared_error",
        weight_decay=0.0,
    )


def descended(module: ImageClassifier, data: WhitenedDigits, steps: int, mid: str):
    """The same steps from the module's weights, by hand."""
    net = module.members[0].net
    x, labels = data.vectors()
    y = F.one_hot(labels, 10).double()
    linear = LinearProblem(Moments.of(x, y), net.shortcut)
    problem = linear if mid == "identity" else SampleProblem(x, y, net.shortcut, mid)
    return descend(problem, net.weights().double().unsqueeze(0), torch.tensor([0.1], dtype=torch.float64), steps)


@pytest.mark.parametrize("mid", ["identity", "relu"])
@pytest.mark.parametrize("shortcut", [True, False])
def test_twenty_full_batch_epochs_are_twenty_steps(mid, shortcut):
    module = shortcut_net(mid=mid, shortcut=shortcut, init="zero" if shortcut else "xavier")
    data = WhitenedDigits()
    expected = descended(module, data, 20, mid)
    fit(module, epochs=20, data=data, precision="64-true")
    found = module.members[0].net.weights()
    torch.testing.assert_close(found, expected.weights[0], rtol=0, atol=1e-10)
    numbers = module.metrics()["net"]
    assert numbers["train/risk"] == pytest.approx(float(expected.losses[0, -1]), abs=1e-10)
    assert numbers["train/risk_running"] == pytest.approx(float(expected.losses[0, -2]), abs=1e-10)
    assert numbers["train/cost"] == numbers["train/risk"]


def test_a_width_that_does_not_fit_is_an_error():
    with pytest.raises(
        UserError, match=r"outputs \(12,\) .* 10 classes: set the net's number of outputs to 10 \(num_classes.* width"
    ):
        fit(shortcut_net(width=12), epochs=1, data=WhitenedDigits(components=12))
    with pytest.raises(UserError, match="cannot take samples of shape"):
        fit(shortcut_net(width=12), epochs=1, data=WhitenedDigits())


def test_labels_beyond_the_classes_are_an_error_message():
    with pytest.raises(UserError, match=r"class numbers of the outputs \(2, 3\), or -100 .*, got labels from 0 to 3"):
        skipscope.measure(torch.nn.Linear(4, 3), torch.zeros(2, 4), torch.tensor([0, 3]), LayerCushion())


def test_labels_that_are_true_or_false_are_two_classes():
    net, inputs, labels = torch.nn.Linear(4, 2), torch.randn(3, 4), torch.tensor([True, False, True])
    assert skipscope.measure(net, inputs, labels) == pytest.approx(
        skipscope.measure(net, inputs, labels.long()), nan_ok=True
    )
