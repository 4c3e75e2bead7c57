"""`import skipscope`: its names are documented, few, imported late, and do what the page docs/api.md says."""

import copy
import logging
import math
import os
import pickle
import re
import subprocess
import sys
import threading
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
import torch.nn.functional as F
import yaml
from torch import nn
from torch.utils.checkpoint import checkpoint

import callbacks
import lightning_app
import skipscope
from lightning_app import networks
from lightning_app.measures import probe_forward
from lightning_app.networks import layers_of
from lightning_app.runs import RunFolder
from lightning_app.runs.lock import take
from skipscope.callbacks import (
    DistanceFromStart,
    DrivingForce,
    EffectiveDepth,
    HessianSpectrum,
    LayerCushion,
    NoiseStability,
    Signal,
    TrainingMetrics,
    WeightMass,
)
from tests.helpers import ROOT

PAGE = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
SLOW = {"torch", "pytorch_lightning", "pandas", "numpy", "lightning_app", "callbacks"}


def python(code: str, *path: Path, cwd: Path) -> subprocess.CompletedProcess:
    variables = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, [*path, ROOT])), "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, "-c", code], cwd=cwd, env=variables, capture_output=True, text=True)


def small_net(channels: int = 2) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, channels, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * channels, 3))


def samples(count: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(count, 1, 4, 4, generator=torch.Generator().manual_seed(1)), torch.arange(count) % 3


def test_at_most_15_names_and_all_are_on_the_page():
    assert len(skipscope.__all__) == len({*skipscope.__all__}) <= 15
    table = PAGE.partition("## The names")[2].partition("##")[0]
    named = {
        name
        for row in table.splitlines()
        for name in re.findall(r"`(\w+)[`(]", row.split("|")[1] if "|" in row else "")
    }
    assert named == {*skipscope.__all__}
    assert dir(skipscope) == sorted(skipscope.__all__)


def test_importing_it_imports_nothing_that_is_slow(tmp_path):
    done = python(f"import sys, skipscope; print({SLOW} & sys.modules.keys())", cwd=tmp_path)
    assert done.stdout == "set()\n", done.stderr


def test_a_name_imports_no_more_than_it_needs(tmp_path):
    code = "import sys, skipscope; skipscope.open_run, skipscope.UserError; print('torch' in sys.modules)"
    assert python(code, cwd=tmp_path).stdout == "False\n"


def test_submodules_have_the_names_of_what_they_stand_for():
    assert skipscope.callbacks.__all__ == callbacks.__all__ and skipscope.nets.__all__ == networks.__all__
    assert all(getattr(skipscope.callbacks, name) is getattr(callbacks, name) for name in callbacks.__all__)
    assert all(getattr(skipscope.nets, name) is getattr(networks, name) for name in networks.__all__)
    assert find_spec("skipscope.callbacks") and "LayerCushion" in dir(skipscope.callbacks)
    assert skipscope.__version__ == lightning_app.__version__


def test_an_unknown_name_says_which_there_are():
    with pytest.raises(AttributeError, match="no attribute 'mesure'; it has measure, watch, callbacks"):
        _ = skipscope.mesure
    with pytest.raises(AttributeError, match="Cushions"):
        _ = skipscope.callbacks.Cushions


@pytest.mark.parametrize("use", ["skipscope.Measure", "skipscope.callbacks", "from skipscope.callbacks import Scalar"])
def test_a_package_of_the_user_s_that_hides_ours_is_named_and_not_run(use, tmp_path):
    (tmp_path / "callbacks.py").write_text("raise SystemExit('somebody else ran')\n")
    done = python(f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import skipscope; {use}", cwd=tmp_path)
    last = done.stderr.splitlines()[-2:]
    assert (
        last[0]
        == f"ImportError: expected SkipScope's own package `callbacks` in {ROOT}, found {tmp_path / 'callbacks.py'}."
    )
    assert "Rename it" in last[1]


def test_measure_says_what_a_run_logs_of_the_same_samples():
    net, (images, labels) = small_net(), samples()
    found = skipscope.measure(net, images, labels, measures=[LayerCushion(), WeightMass()])
    context = skipscope.MeasureContext(net, [(images, labels)])
    alone = LayerCushion().evaluate(context)["cushion/layer01"]
    assert found["cushion/layer01/median"] == alone.median
    assert {type(value) for value in found.values()} == {float}
    assert found["weight_mass/all"] == pytest.approx(float(net[0].weight.detach().abs().double().sum()))


def test_measure_takes_arrays_one_measure_and_more_than_a_batch_and_leaves_the_net_as_it_was():
    net, (images, labels) = small_net().train(), samples(300)
    whole = skipscope.measure(net, images, labels, LayerCushion())
    with pytest.raises(skipscope.UserError, match=r"such as LayerCushion\(\), got the class LayerCushion"):
        skipscope.measure(net, images, labels, LayerCushion)
    assert whole == skipscope.measure(net, images.double().numpy(), labels.tolist(), iter([LayerCushion()]))
    one = LayerCushion().evaluate(skipscope.MeasureContext(net, [(images, labels)]))["cushion/layer01"]
    assert whole["cushion/layer01/median"] == pytest.approx(one.median, rel=1e-6)
    assert net.training and all(weight.grad is None for weight in net.parameters())


def test_measure_takes_several_arrays_and_none_as_inputs():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 3)

        def forward(self, x, y, scale=None):
            return self.fc(x - y if scale is None else scale * x)

    (x, y), labels, net = torch.randn(2, 6, 4), torch.arange(6) % 3, Two()
    expected = skipscope.measure(net, (x, y), labels, LayerCushion())
    assert skipscope.measure(net, (x.numpy(), y.numpy()), labels, LayerCushion()) == expected
    assert skipscope.measure(net, (x, y.numpy(), None), labels, LayerCushion()) == expected
    assert skipscope.measure(net, {"x": x.numpy(), "y": y, "scale": None}, labels, LayerCushion()) == expected
    images = [*torch.randn(6, 1, 4, 4).numpy()]  # of samples, one a row
    assert skipscope.measure(small_net(), images, labels, WeightMass())["weight_mass/all"] > 0


@pytest.mark.parametrize("one", [DrivingForce, HessianSpectrum, NoiseStability, Signal])
def test_measure_finds_in_a_compiled_net_what_it_finds_in_the_net(one):
    net, (images, labels) = small_net(), samples()
    assert skipscope.measure(torch.compile(net, backend="eager"), images, labels, one()) == pytest.approx(
        skipscope.measure(net, images, labels, one()), nan_ok=True
    )


@pytest.mark.parametrize("kind", [torch.int32, torch.int8, torch.uint8])
def test_measure_takes_labels_of_any_whole_numbers(kind):
    net, (images, labels) = small_net(), samples()
    for one in (DrivingForce, HessianSpectrum, LayerCushion, NoiseStability, Signal):
        first, other = (skipscope.measure(net, images, each, one()) for each in (labels, labels.to(kind)))
        assert first == pytest.approx(other, nan_ok=True)


def test_measure_leaves_labels_that_are_no_numbers_to_the_loss():
    net, (images, labels) = small_net(), samples()

    def loss(out, y):
        return ((~y if y.dtype == torch.bool else 1 - y).float() - out[:, 0]).abs().mean()

    first = labels == 0
    found = [skipscope.measure(net, images, each, LayerCushion(), loss) for each in (first, first.float())]
    assert found[0]["probe/risk"] == pytest.approx(found[1]["probe/risk"])


@pytest.mark.parametrize(
    "loss",
    [
        lambda out, y: (out[:, None] - out[None]).square().mean() + out[1].sum(),  # of pairs
        lambda out, y: out.unflatten(0, (-1, 3)).square().mean(),  # of triplets
        lambda out, y: nn.functional.batch_norm(out, None, None, training=True).square().mean(),
    ],
)
def test_a_loss_that_takes_no_single_sample_is_measured_as_it_is(loss):
    net, (images, labels) = small_net(), samples()
    found = skipscope.measure(net, images, labels, LayerCushion(), loss)
    assert found["probe/risk"] == pytest.approx(float(loss(net(images), labels)), rel=1e-5)


def test_a_mean_over_the_labels_that_count_has_a_risk_wherever_these_are():
    def masked(out, y):
        kept = y != -100
        losses = nn.functional.cross_entropy(out, y, reduction="none")
        return (losses * kept).sum() / kept.sum().clamp(min=1)

    net, (images, labels) = small_net(), samples(64)
    labels[::2] = -100
    expected = float(nn.functional.cross_entropy(net(images), labels))
    assert skipscope.measure(net, images, labels, LayerCushion(), masked)["probe/risk"] == pytest.approx(expected)


@pytest.mark.parametrize("one", [LayerCushion, HessianSpectrum, DrivingForce, Signal])
def test_a_loss_of_single_samples_is_refused(one):
    loss = nn.CrossEntropyLoss(reduction="none")
    with pytest.raises(skipscope.UserError, match="expected the loss of a batch as a tensor with one number"):
        skipscope.measure(small_net(), *samples(), one(), loss)
    with pytest.raises(skipscope.UserError, match="got a tuple of 2: return the mean"):
        skipscope.measure(small_net(), *samples(), one(), lambda out, y: (nn.functional.cross_entropy(out, y), out))


@pytest.mark.parametrize("one", [HessianSpectrum(samples=8), DrivingForce()])
def test_a_loss_of_shape_1_is_one_number(one):
    net, given = small_net(), samples(8)
    whole = skipscope.measure(net, *given, one)
    found = skipscope.measure(net, *given, one, lambda out, y: nn.functional.cross_entropy(out, y).reshape(1))
    assert {key: each for key, each in found.items() if key in whole} == pytest.approx(whole, nan_ok=True)


def test_a_distance_is_from_the_net_as_it_was_when_first_given():
    one, net, (images, labels) = DistanceFromStart(), small_net(), samples()
    assert skipscope.measure(net, images, labels, one) == {"travel/distance": 0.0}
    with torch.no_grad():
        net[0].weight += 1
    assert skipscope.measure(net, images, labels, one)["travel/distance"] == pytest.approx(net[0].weight.numel() ** 0.5)
    assert skipscope.measure(small_net(), images, labels, one) == {"travel/distance": 0.0}


class Recommender(nn.Module):
    def __init__(self, sparse: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.items, self.branch, self.last = nn.Embedding(20, 8, sparse=sparse), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, items):
        x = self.items(items).mean(1)
        return self.last(x + self.branch(x).relu())


def test_sparse_gradients_of_embeddings_change_no_number():
    items, labels = torch.arange(24).view(8, 3) % 20, torch.arange(8) % 3
    measures = [HessianSpectrum(), HessianSpectrum(exact=10, prefix="lanczos"), EffectiveDepth(), DrivingForce()]
    nets = [Recommender(sparse) for sparse in (False, True)]
    dense, sparse = (skipscope.measure(net, items, labels, measures) for net in nets)
    assert sparse == pytest.approx(dense, rel=1e-5) and dense["hessian/top1"] > 0 and dense["depth/gradient"] > 0
    assert nets[1].items.sparse  # as training goes on


def test_measure_compares_a_net_with_itself_alone():
    measures, (images, labels) = [DrivingForce()], samples()
    net, other = small_net(), small_net(channels=3)
    first = skipscope.measure(net, images, labels, measures)
    again = skipscope.measure(net, images, labels, measures)
    assert "drive/scale/agrees" in again.keys() - first.keys()
    compiled = torch.compile(net, backend="eager")
    assert "drive/scale/agrees" in skipscope.measure(compiled, images, labels, measures)
    assert "drive/scale/agrees" not in skipscope.measure(other, images, labels, measures)
    pickle.dumps(measures)


@pytest.mark.parametrize(
    "loss", [nn.CrossEntropyLoss(torch.tensor([1.0, 9.0, 3.0])), nn.CrossEntropyLoss(reduction="sum")]
)
def test_a_loss_that_is_no_mean_over_samples_has_no_risk(loss):
    net, (images, labels) = small_net(), samples()
    found = skipscope.measure(net, images, labels, LayerCushion(), loss)
    plain = skipscope.measure(net, images, labels, LayerCushion(), nn.CrossEntropyLoss(label_smoothing=0.1))
    assert math.isnan(found.pop("probe/risk")) and plain.pop("probe/risk") > 0
    assert found == pytest.approx(plain)


def test_weights_of_classes_show_where_all_samples_of_a_batch_are_of_one_class():
    """As in data sorted by class: there the weight cancels, and batches of one class seem to have a mean each."""
    net, (images, _), loss = small_net(), samples(), nn.CrossEntropyLoss(torch.tensor([1.0, 9.0, 3.0]))
    labels = torch.ones(len(images), dtype=torch.long)
    assert math.isnan(skipscope.measure(net, images, labels, LayerCushion(), loss)["probe/risk"])
    with pytest.raises(skipscope.UserError, match="a Hessian needs a loss that is an unweighted mean"):
        skipscope.measure(net, images, labels, HessianSpectrum(), loss)


class Flattening(nn.CrossEntropyLoss):
    def forward(self, outputs, labels):
        return super().forward(outputs.movedim(1, -1).reshape(-1, 3), labels.view(-1))


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss, Flattening])
def test_weights_of_classes_show_where_each_map_has_the_same_share_of_each_class(loss):
    """As in a segmentation: the weights of a map have the same sum, so that maps seem to have a mean each."""
    torch.manual_seed(0)
    (images, _), net = samples(), nn.Conv2d(1, 3, 1)
    labels = torch.stack([(torch.arange(16) % 3)[torch.randperm(16)] for _ in images]).unflatten(1, (4, 4))
    for weights, refused in ((torch.tensor([1.0, 9.0, 3.0]), True), (torch.full((3,), 2.0), False)):
        found = skipscope.measure(net, images, labels, LayerCushion(), loss(weights))
        assert math.isnan(found["probe/risk"]) == refused


@pytest.mark.parametrize(
    "loss",
    [
        lambda outputs, labels: (outputs - torch.eye(3)[:2][labels]).square().sum(1).mean(),
        lambda outputs, labels: F.binary_cross_entropy_with_logits(outputs[:, :2], F.one_hot(labels, 2).float()),
    ],
)
def test_a_loss_of_fewer_classes_than_outputs_is_a_mean(loss):
    net, (images, labels) = small_net(), samples()
    found = skipscope.measure(net, images, labels % 2, [LayerCushion(), HessianSpectrum()], loss)
    assert found["probe/risk"] > 0 and "hessian/top1" in found


def test_weights_of_classes_in_a_function_show_once_a_second_class_comes():
    net, (images, _) = small_net().eval(), samples(12)
    batches = [*zip(images.split(4), torch.arange(3).repeat_interleave(4).split(4))]
    weights = torch.tensor([1.0, 9.0, 3.0])
    found = [
        probe_forward(net, layers_of(net), given, loss=lambda x, y: F.cross_entropy(x, y, weights)).loss
        for given in (batches[:1], batches)
    ]
    assert math.isfinite(found[0]) and math.isnan(found[1])


def test_layers_in_a_reentrant_checkpoint_have_no_gradients_of_what_they_put_out():
    class Checkpointed(nn.Sequential):
        def forward(self, x):
            first, second = self
            return second(checkpoint(lambda x: first(x).relu(), x.requires_grad_(), use_reentrant=True))

    net = Checkpointed(nn.Linear(4, 4), nn.Linear(4, 3))
    found = skipscope.measure(net, torch.randn(6, 4), torch.arange(6) % 3, [Signal()])
    assert "signal/layer02/gradient" in found and "signal/layer01/gradient" not in found
    assert found["signal/layer01/weight_gradient"] > 0


def test_measuring_takes_no_step_of_an_optimizer_that_steps_in_the_backward_pass():
    net, (images, labels) = small_net(), samples()
    expected = skipscope.measure(net, images, labels, [Signal()])
    before = copy.deepcopy(net.state_dict())
    for weight in net.parameters():
        weight.register_post_accumulate_grad_hook(lambda weight: weight.data.sub_(weight.grad))
    assert skipscope.measure(net, images, labels, [Signal()]) == expected
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_hooks_of_weights_do_not_run_and_are_there_afterwards():
    net, (images, labels) = small_net(), samples()
    context = skipscope.MeasureContext(net, [(images, labels)])
    measures = [Signal, DrivingForce, HessianSpectrum]
    expected = [skipscope.measure(net, images, labels, [one()]) for one in measures]
    gradient, ran = context.gradient(), []
    for weight in net.parameters():
        weight.register_hook(lambda gradient: ran.append(1) or gradient.clamp(-1e-3, 1e-3))
    for one, found in zip(measures, expected):
        assert skipscope.measure(net, images, labels, [one()]) == pytest.approx(found, nan_ok=True)
    assert all(torch.equal(each, gradient[name]) for name, each in context.gradient().items()) and not ran
    nn.functional.cross_entropy(net(images), labels).backward()
    assert len(ran) == len(gradient) and all(weight.grad.abs().max() <= 1e-3 for weight in net.parameters())


@pytest.mark.parametrize("measure", [Signal, HessianSpectrum, DrivingForce])
def test_in_inference_mode_it_measures_what_it_measures_outside(measure):
    net, (images, labels) = small_net().append(nn.BatchNorm1d(3)), samples()
    expected = skipscope.measure(net, images, labels, [measure()])
    with torch.inference_mode():
        assert skipscope.measure(net, images, labels, [measure()]) == pytest.approx(expected, nan_ok=True)
        made_here = images * 1, labels * 1
        assert skipscope.measure(net, *made_here, [measure()]) == pytest.approx(expected, nan_ok=True)


def test_a_net_that_cannot_be_copied_is_named():
    net, (images, labels) = small_net(), samples()
    net.lock = threading.Lock()
    with pytest.raises(skipscope.UserError, match=r"Sequential .* cannot be copied \(cannot pickle '_thread.lock'"):
        skipscope.measure(net, images, labels, LayerCushion())


def test_measure_without_a_list_leaves_out_with_a_reason_what_cannot_be_measured(caplog):
    net, (images, labels) = small_net(), samples()

    def families(labels):
        return {key.split("/")[0] for key in skipscope.measure(net, images, labels)}

    assert {"cushion", "weight_mass", "weight_norm", "hessian"} <= families(labels)
    regression = labels.float()  # which the cross-entropy does not take
    with caplog.at_level(logging.WARNING):
        assert "hessian" not in families(regression) >= {"weight_norm", "weight_mass"}
    assert "HessianSpectrum cannot measure this net: without a loss of its own" in caplog.text
    with pytest.raises(skipscope.UserError, match="without a loss of its own"):
        skipscope.measure(net, images, regression, [HessianSpectrum()])


@pytest.mark.parametrize(
    ("inputs", "labels", "measures", "message"),
    [
        (torch.ones(3, 1, 4, 4), torch.eye(3, dtype=torch.long), LayerCushion(), r"take labels.argmax\(1\)"),
        (
            torch.ones(3, 1, 4, 4),
            [0, 1],
            None,
            r"as many labels \(n, ...\), n at least 1, got shapes \(3, 1, 4, 4\) and \(2,\)",
        ),
        (torch.ones(0, 1, 4, 4), [], None, "n at least 1"),
        (1.0, 1, None, r"got shapes \(\) and \(\)"),
        (
            [torch.ones(1, 4, 4), torch.ones(1, 3, 4)],
            [0, 1],
            None,
            r"a row for each of its 2 labels, got a tensor \(1, 4, 4\)",
        ),
        (torch.ones(1, 1, 4, 4), [0], [LayerCushion], r"such as LayerCushion\(\), got the class LayerCushion"),
        (torch.ones(1, 1, 4, 4), [0], [TrainingMetrics()], "got a TrainingMetrics"),
        (torch.ones(1, 1, 4, 4), [0], ["cushion"], "expected measures"),
    ],
)
def test_a_mistake_says_what_was_expected_and_what_came(inputs, labels, measures, message):
    with pytest.raises(skipscope.UserError, match=message):
        skipscope.measure(small_net(), inputs, labels, measures)


def test_a_loss_of_ones_own():
    def half_square(outputs, labels):
        return (outputs - labels).square().mean() / 2

    norm = skipscope.Scalar("norm", lambda context: sum(one.abs().sum() for one in context.gradient().values()))
    net = nn.Linear(1, 1, bias=False)
    nn.init.constant_(net.weight, 3.0)
    assert skipscope.measure(net, np.ones((2, 1)), torch.ones(2, 1), norm, half_square) == {"norm": 2.0}


def test_a_run_is_logged_reported_and_opened(tmp_path):
    from lightning_app.runs import Row

    logger = skipscope.RunLogger(tmp_path / "mine")
    logger.folder.append([Row("net", 0, 0, "test/error", 0.5), Row("net", 1, 9, "test/error", 0.25)])
    assert skipscope.open_run(tmp_path / "mine").table()["test/error"].tolist() == [0.5, 0.25]
    assert list(skipscope.frames(tmp_path)["value"]) == [0.5, 0.25]
    assert skipscope.report(str(tmp_path / "mine")) == tmp_path / "mine" / "report.html"
    assert skipscope.report([tmp_path], out=str(tmp_path / "all.html")).read_text().startswith("<!DOCTYPE html>")
    with pytest.raises(skipscope.UserError, match="expected a run folder"):
        skipscope.report(tmp_path / "nowhere")


def test_a_run_is_written_below_the_home_folder_where_it_is_read(tmp_path, monkeypatch):
    (there := tmp_path / "elsewhere").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path)), monkeypatch.chdir(there)
    probe, mass = [(torch.ones(1, 2), torch.zeros(1).long())], skipscope.callbacks.WeightMass()
    with skipscope.watch(nn.Linear(2, 2), probe, folder="~/watched", measures=mass):
        pass
    assert len(skipscope.open_run("~/watched").log())
    assert skipscope.RunLogger("~/mine").folder.path == tmp_path / "mine"
    assert not [*there.iterdir()]


class Mine(pl.LightningModule):
    """Of another project, with hyperparameters of its own."""

    def __init__(self, lr: float = 0.1, widths: tuple[int, ...] = (4, 3)) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = small_net()

    def training_step(self, batch):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.net.parameters(), lr=self.hparams["lr"])


class Failing(Mine):
    def training_step(self, batch):
        raise RuntimeError("in the first batch")


def test_a_run_of_a_trainer_of_ones_own_is_whole_and_never_mixed_with_another(tmp_path, caplog):
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*samples()), batch_size=2)

    def fit(epochs, name="mine", logger=None, max_steps=-1, module=None, callbacks=None, **how):
        quiet = {"enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
        quiet |= {"max_steps": max_steps}
        logger = logger or skipscope.RunLogger(tmp_path / name)
        callbacks = [LayerCushion()] if callbacks is None else callbacks
        trainer = pl.Trainer(max_epochs=epochs, callbacks=callbacks, logger=logger, default_root_dir=tmp_path, **quiet)
        trainer.fit(module or Mine(), data, **how)
        return trainer

    trainer = fit(2)
    trainer.save_checkpoint(tmp_path / "two.ckpt")
    folder = RunFolder(tmp_path / "mine")
    assert folder.config() == {"hyperparameters": {"lr": 0.1, "widths": [4, 3]}}
    assert folder.finished == 2 and [made["after_epoch"] for made in folder.made()] == [0]
    rows = len(folder.log())
    with pytest.raises(skipscope.UserError, match="mine has the numbers of a run already, and two would mix"):
        fit(2)
    assert len(folder.log()) == rows
    fit(3, ckpt_path=tmp_path / "two.ckpt")
    for limit in (3, 2):  # nothing is left to train
        fit(limit, ckpt_path=folder.path / "checkpoints" / "epoch=2-step=9.ckpt")
    assert folder.finished == 3 and sorted({*folder.log()["epoch"]}) == [0, 1, 2, 3]
    trainer.fit_loop.max_epochs = 4  # the same logger goes on
    trainer.fit(Mine(), data)
    trainer.fit(Mine(), data)  # and has nothing left
    assert folder.finished == 4 and [made["after_epoch"] for made in folder.made()] == [0, 2, 2]
    with pytest.raises(skipscope.UserError, match="mine has the numbers of a run already, and two would mix"):
        fit(2, logger=trainer.logger)  # of another trainer
    torch.save(torch.load(tmp_path / "two.ckpt") | {"state_dict": {}}, tmp_path / "other.ckpt")
    with pytest.raises(RuntimeError, match="Missing key"):
        fit(6, ckpt_path=tmp_path / "other.ckpt")
    assert folder.finished == 4 and len(folder.made()) == 3
    fit(3, ckpt_path=tmp_path / "two.ckpt")  # from before what is there: what came after it is of another training
    assert folder.finished == 3 and sorted({*folder.log()["epoch"]}) == [0, 1, 2, 3]
    with take(tmp_path / "mine"), pytest.raises(skipscope.UserError, match="two runs in one folder would mix"):
        fit(4, ckpt_path=tmp_path / "two.ckpt")
    mended = skipscope.RunLogger(tmp_path / "mended")
    with pytest.raises(RuntimeError, match="in the first batch"):
        fit(1, logger=mended, module=Failing(), callbacks=[])
    fit(1, logger=mended)
    assert mended.folder.finished == 1
    early = skipscope.RunLogger(tmp_path / "early")
    early.log_metrics({"mine": 1.0})
    early.log_hyperparams({"data": "mnist", (1, 2): 3})
    with caplog.at_level(logging.WARNING):
        for _ in range(2):  # a limit within an epoch, and then nothing that is left to train
            steps = early.folder.checkpoints / "epoch=0-step=2.ckpt"
            fit(1, logger=early, max_steps=2, ckpt_path=steps if steps.exists() else None)
            assert early.folder.finished == 0
    assert "hyperparameters cannot be kept in config.yaml" in caplog.text


def test_transfer_and_back():
    residual = skipscope.nets.SimplifiedNet(5, residual=True, width=2)
    plain = skipscope.transfer(residual)
    images = torch.randn(2, 3, 8, 8)
    torch.testing.assert_close(plain(images), residual(images), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(skipscope.untransfer(plain).state_dict(), residual.state_dict())
    assert skipscope.id_entries(torch.zeros(2, 3, 3, 3)).sum() == 2


def test_a_measure_of_ones_own():
    class Count(skipscope.Measure):
        family = "count"

        def measure(self, context):
            return {"count/weights": sum(weight.numel() for weight in context.net.parameters())}

    assert skipscope.measure(small_net(), *samples(), measures=[Count()]) == {"count/weights": 47.0}


def test_the_command_is_a_module_and_a_file(tmp_path):
    for words in (["-m", "skipscope"], [str(ROOT / "skipscope" / "__main__.py")], [str(ROOT / "main.py")]):
        variables = os.environ | ({"PYTHONPATH": str(ROOT)} if "-m" in words else {})
        call = [sys.executable, *words, "--help"]
        done = subprocess.run(call, cwd=tmp_path, env=variables, capture_output=True, text=True)
        name = "python main.py" if words[0].endswith("main.py") and "__" not in words[0] else "skipscope"
        assert done.returncode == 0 and f"  {name} fit --config" in done.stdout, done.stderr


def test_the_citation_names_this_version_its_authors_and_the_three_papers():
    """The form of the file is checked by its fields: the format's own schema lies elsewhere."""
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "type"} <= citation.keys()
    assert (citation["version"], citation["license"]) == (lightning_app.__version__, "Apache-2.0")
    assert citation["authors"] == [{"name": "The SkipScope authors"}]
    cited = [f"{each['authors'][0]['family-names']} {each['year']}" for each in citation["references"]]
    assert cited == ["Yu 2019", "Li 2016", "Littwin 2016"]
    assert all(each["url"].startswith("https://arxiv.org/abs/") for each in citation["references"])


def test_contributing_is_short_and_the_changelog_dated():
    assert len((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").splitlines()) <= 70
    dates = re.findall(r"^## (\S+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert dates == sorted(dates, reverse=True) and all(re.fullmatch(r"\d{4}-\d\d-\d\d", date) for date in dates)


class OwnSteps(Mine):
    """Steps after every other batch, by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch)
        self.manual_backward(loss)
        if batch_idx % 2:
            self.optimizers().step()
            self.optimizers().zero_grad()
        self.log("mine", loss, on_step=False, on_epoch=True)


def test_a_run_of_a_module_that_makes_its_own_steps_keeps_its_numbers_when_it_goes_on(tmp_path):
    """Lightning logs by batches, of which there are twice as many as steps."""
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*samples()), batch_size=2)
    for epochs, ckpt_path in ((2, None), (3, tmp_path / "two.ckpt")):
        quiet = {"enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
        trainer = pl.Trainer(max_epochs=epochs, logger=skipscope.RunLogger(tmp_path / "run"), **quiet)
        trainer.fit(OwnSteps(), data, ckpt_path=ckpt_path)
        trainer.save_checkpoint(tmp_path / "two.ckpt")
    log = RunFolder(tmp_path / "run").log()
    assert log[log["name"] == "mine"]["epoch"].tolist() == [1, 2, 3]


def test_what_is_no_net_and_no_run_is_said():
    with pytest.raises(skipscope.UserError, match=r"expected a net, a torch\.nn\.Module, got a NoneType"):
        skipscope.measure(None, *samples())
    with pytest.raises(skipscope.UserError, match="expected at least one run folder"):
        skipscope.frames([])
