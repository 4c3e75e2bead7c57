"""`skipscope.watch` around a loop of one's own: Lightning's numbers, training unchanged, and nothing that stops it."""

import copy
import gc
import logging
import re
import subprocess
import sys
from contextlib import nullcontext
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
import pytorch_lightning as pl
import torch
import torch.distributed as dist
import torch.nn.functional as F
from lightning_fabric import Fabric
from pytorch_lightning.loggers import CSVLogger
from torch import nn
from torch.ao.quantization import FakeQuantize, MovingAverageMinMaxObserver
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

import skipscope
from callbacks import (
    BnLambda,
    DistanceFromStart,
    DrivingForce,
    HessianSpectrum,
    LayerCushion,
    NoiseStability,
    Scalar,
    Signal,
    WeightMass,
)
from lightning_app.common.errors import UserError
from lightning_app.runs import RunFolder
from tests.forked import Popen
from tests.helpers import COMPILES, ROOT

EPOCH = 6  # steps


def data() -> DataLoader:
    images = torch.randn(24, 1, 6, 6, generator=torch.Generator().manual_seed(3))
    return DataLoader(TensorDataset(images, torch.arange(24) % 3), batch_size=4)


def probe() -> list:
    return [(images, labels) for images, labels in data()][:3]


def small_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)
    )


def measures() -> list:
    return [LayerCushion(), WeightMass(), Signal(), DistanceFromStart(), HessianSpectrum(samples=12, steps=4)]


def train(net: nn.Module, optimizer: torch.optim.Optimizer, epochs: int = 2) -> nn.Module:
    for _ in range(epochs):
        for images, labels in data():
            optimizer.zero_grad()
            F.cross_entropy(net(images), labels).backward()
            optimizer.step()
    return net


def watched(folder, **more) -> nn.Module:
    net = small_net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    options = {
        "every": "powers_of_2",
        "measures": measures(),
        "steps_per_epoch": EPOCH,
        "total_steps": 2 * EPOCH,
    } | more
    with skipscope.watch(net, probe(), optimizer, folder=folder, **options):
        train(net, optimizer)
    return net


@pytest.fixture(scope="module")
def bare() -> nn.Module:
    net = small_net()
    return train(net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))


def same_weights(one: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True))


class Module(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = small_net()

    def loss(self, outputs, labels):
        return F.cross_entropy(outputs, labels)

    def forward(self, images):
        return self.net(images)

    def training_step(self, batch, _):
        return self.loss(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9)

    def probe_loader(self):
        return probe()


def test_numbers_and_arrays_are_those_of_lightnings_callbacks_bit_for_bit(tmp_path, bare):
    net = watched(tmp_path / "ours")
    own = measures()
    for one in own:
        one.every_n_epochs, one.every_n_steps = 10**9, "powers_of_2"
    trainer = pl.Trainer(
        max_epochs=2, callbacks=own, logger=skipscope.RunLogger(tmp_path / "theirs"), enable_progress_bar=False,
        enable_checkpointing=False, enable_model_summary=False, accelerator="cpu", log_every_n_steps=1,
    )  # fmt: skip
    trainer.fit(module := Module(), data())
    assert same_weights(net, module.net) and same_weights(net, bare)
    ours, theirs = (skipscope.open_run(tmp_path / name).log() for name in ("ours", "theirs"))
    ours, theirs = (log[~log["name"].str.startswith("cost/")].reset_index(drop=True) for log in (ours, theirs))
    order = ["epoch", "name"]
    pairs = [
        log.sort_values(order, ignore_index=True)[["member", "epoch", "step", "name", "value"]]
        for log in (ours, theirs)
    ]
    assert sorted(pairs[0]["step"].unique()) == [0, 1, 2, 4, 8, 12]
    assert pairs[0].equals(pairs[1])
    files = [
        sorted(path.relative_to(tmp_path / run) for path in (tmp_path / run).rglob("*.npz"))
        for run in ("ours", "theirs")
    ]
    assert files[0] == files[1] != []
    for file in files[0]:
        assert (tmp_path / "ours" / file).read_bytes() == (tmp_path / "theirs" / file).read_bytes()


def test_it_is_a_run_like_any_other(tmp_path):
    watched(tmp_path / "run")
    run = skipscope.open_run(tmp_path / "run")
    assert "finished" in repr(run)
    assert skipscope.report(tmp_path / "run").stat().st_size > 10_000
    assert run.nets().loc["net", "epoch"] == 2
    (made,) = run.folder.made()
    assert (made["after_epoch"], made["device"]) == (0, "cpu") and "torch" in made["libraries"] and made["commit"]


def test_several_nets_and_numbers_of_ones_own_without_an_optimizer(tmp_path):
    nets = {"plain": small_net(), "residual": small_net()}
    with skipscope.watch(nets, probe(), every=2, folder=tmp_path / "run", measures=[WeightMass()]) as scope:
        for step in range(4):
            scope.step()
            scope.log({"test/error": 0.5 - 0.1 * step}, "plain")
    log = skipscope.open_run(scope.folder).log()
    assert sorted(log.query("name == 'weight_mass/all'")["step"].unique()) == [0, 2, 4]
    assert log.query("name == 'test/error' and step == 4")["value"].item() == pytest.approx(0.2)


def test_batches_of_any_form(tmp_path):
    batches = [{"pixels": images, "labels": labels} for images, labels in probe()]
    with skipscope.watch(
        small_net(), batches, folder=tmp_path, measures=[LayerCushion()], pair_of=lambda b: (b["pixels"], b["labels"])
    ):
        pass
    assert "cushion/layer02/median" in set(skipscope.open_run(tmp_path).log()["name"])


def test_batches_without_labels_where_no_measure_looks_at_samples(tmp_path):
    """Of an autoencoder, with its loader as the probe."""
    net, measures = small_net(), [WeightMass(), DistanceFromStart(), Signal(), Scalar("norm", weight_norm)]
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    images = [(batch,) for batch, _ in probe()]
    with skipscope.watch(net, images, optimizer, every=1, folder=tmp_path, measures=measures):
        train(net, optimizer, epochs=1)
    names = set(skipscope.open_run(tmp_path).log()["name"])
    assert {"weight_mass/all", "travel/distance", "signal/layer01/activation", "norm"} <= names
    assert not any(name.startswith("failed/") for name in names)


def test_the_optimizer_may_be_wrapped_and_a_part_of_training_goes_on(tmp_path, bare):
    class Wrapper(torch.optim.Optimizer):  # as Accelerate's
        def __init__(self, optimizer):
            self.optimizer = optimizer

    net = small_net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for part in range(2):
        with skipscope.watch(
            net, probe(), Wrapper(optimizer), every=EPOCH, folder=tmp_path, measures=[WeightMass()],
            steps_per_epoch=EPOCH, steps_done=part * EPOCH,
        ):  # fmt: skip
            train(net, optimizer, epochs=1)
    assert same_weights(net, bare)

    def measured() -> list:
        log = skipscope.open_run(tmp_path).log().query("name == 'weight_mass/all'")
        return log[["epoch", "step"]].to_numpy().tolist()

    assert measured() == [[0, 0], [1, 6], [2, 12]]
    again = {"measures": [WeightMass()], "steps_per_epoch": EPOCH, "steps_done": EPOCH}
    with skipscope.watch(net, probe(), optimizer, every=EPOCH, folder=tmp_path, **again):
        assert measured() == [[0, 0], [1, 6]]  # what is to be trained again


def signals(folder) -> list:
    log = skipscope.open_run(folder).log()
    return log[log["name"].str.startswith("signal/")][["step", "name", "value"]].to_numpy().tolist()


def test_in_a_loop_of_accelerate_it_sees_what_it_sees_without(tmp_path, bare):
    accelerate = pytest.importorskip("accelerate", reason="pip install -e '.[transformers]'")
    accelerator, net = accelerate.Accelerator(cpu=True), small_net()
    net, optimizer, loader = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9), data())
    sizes = {"steps_per_epoch": EPOCH, "total_steps": 2 * EPOCH}
    with skipscope.watch(
        net, probe(), optimizer, folder=tmp_path / "in", every="powers_of_2", measures=measures(), **sizes
    ):
        for _ in range(2):
            for images, labels in loader:
                optimizer.zero_grad()
                accelerator.backward(F.cross_entropy(net(images), labels))
                optimizer.step()
    assert same_weights(accelerator.unwrap_model(net), bare)
    watched(tmp_path / "out")
    assert len(signals(tmp_path / "in")) > 50 and signals(tmp_path / "in") == signals(tmp_path / "out")


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_in_a_loop_of_fabric_it_sees_the_net_and_not_its_wrapper(tmp_path, precision):
    fabric, net = Fabric(accelerator="cpu", devices=1, precision=precision), small_net()
    options = {"every": 1, "measures": [*measures(), NoiseStability(samples=4, draws=1)]}
    wrapped, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))
    with skipscope.watch(wrapped, probe(), optimizer, folder=tmp_path / "in", **options):
        for images, labels in data():
            optimizer.zero_grad()
            fabric.backward(F.cross_entropy(wrapped(images), labels))
            optimizer.step()
    net = small_net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with skipscope.watch(net, probe(), optimizer, folder=tmp_path / "out", **options):
        for images, labels in data():
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16-mixed"):
                loss = F.cross_entropy(net(images).float(), labels)
            loss.backward()
            optimizer.step()
    inside, outside = (skipscope.open_run(tmp_path / each).log() for each in ("in", "out"))
    same = ~inside["name"].str.startswith("cost/")
    assert inside[same].equals(outside[same]) and same.sum() > 1000
    assert (
        not inside["name"].str.startswith("failed/").any() and skipscope.open_run(tmp_path / "in").folder.notes() == []
    )


class Quantised(nn.Module):
    """Quantisation-aware training: its observers move in evaluation mode, too, and so do a queue and a counter."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)
        self.quantised = FakeQuantize(MovingAverageMinMaxObserver, quant_min=0, quant_max=255)
        self.register_buffer("queue", torch.zeros(16, 8))
        self.register_buffer("count", torch.tensor(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.quantised(F.relu(self.first(x)))
        out = self.last(hidden) + (hidden @ self.queue.clone().T).mean(1, keepdim=True) / (1 + self.count)
        self.queue[(int(self.count) + torch.arange(len(x))) % 16] = hidden.detach()
        self.count = self.count + len(x)
        return out


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_nets_whose_passes_write_buffers_are_trained_as_ever(tmp_path, compiled):
    def run(watching: bool) -> nn.Module:
        torch.manual_seed(0)
        net, images, labels = Quantised(), torch.randn(48, 6), torch.arange(48) % 3
        optimizer, others = torch.optim.SGD(net.parameters(), lr=0.1), [(3 * torch.randn(12, 6), labels[:12])]
        called = torch.compile(net, backend="eager") if compiled else net
        options = {"every": 2, "folder": tmp_path, "measures": [LayerCushion(), Signal()]}
        with skipscope.watch(called, others, optimizer, **options) if watching else nullcontext():
            for rows in torch.arange(48).split(8):
                optimizer.zero_grad()
                F.cross_entropy(called(images[rows]), labels[rows]).backward()
                optimizer.step()
        return net

    net = run(True)
    assert same_weights(net, run(False)) and net.count == 48
    before = {name: value.clone() for name, value in net.state_dict().items()}
    skipscope.measure(net, 9 * torch.randn(5, 6), torch.arange(5) % 3, LayerCushion())
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


@pytest.mark.parametrize("how", ["announced", "closure", "evaluating"])
def test_signals_are_of_the_training_step_alone(tmp_path, how):
    """Whatever else passes through the net: other measures, closures of the optimizer, an evaluation between steps."""

    def run(folder, how: str) -> list:
        net = small_net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        given = None if how == "announced" else optimizer
        with skipscope.watch(net, probe(), given, every=1, folder=folder, measures=[LayerCushion(), Signal()]) as scope:
            for images, labels in data():

                def closure(images=images, labels=labels):
                    optimizer.zero_grad()
                    loss = F.cross_entropy(net(images), labels)
                    loss.backward()
                    return loss

                if how == "evaluating":
                    with torch.no_grad():
                        net.eval()(images)
                    net.train()
                if how == "closure":
                    optimizer.step(closure)
                else:
                    closure()
                    optimizer.step()
                if how == "announced":
                    scope.step()
        return signals(folder)

    assert run(tmp_path / how, how) == run(tmp_path / "plain", "plain") != []


def test_a_block_without_a_step_is_measured_once(tmp_path):
    calls = []
    one = Scalar("calls", lambda context: calls.append(1) or 0.0)
    with skipscope.watch(small_net(), probe(), folder=tmp_path / "run", measures=[one]):
        pass
    assert len(calls) == 1
    late = Scalar("late", lambda context: 1.0, at_start=False)
    with skipscope.watch(small_net(), probe(), folder=tmp_path / "late", measures=[late]):
        pass
    assert skipscope.open_run(tmp_path / "late").log().query("name == 'late'")["step"].tolist() == [0]


@pytest.mark.parametrize("counted", ["by the optimizer", "by hand", "of another optimizer", "by nobody"])
def test_a_block_in_which_no_step_is_counted_says_so(tmp_path, caplog, counted):
    net = small_net()
    one, other = (torch.optim.SGD(net.parameters(), lr=0.1) for _ in range(2))
    given = {"by the optimizer": one, "of another optimizer": other}.get(counted)
    with skipscope.watch(net, probe(), given, folder=tmp_path, measures=[WeightMass()]) as scope:
        train(net, one, epochs=1)
        if counted == "by hand":
            scope.step()
    assert ("no optimizer step was counted" in caplog.text) == (counted in ("of another optimizer", "by nobody"))


def test_own_numbers_are_at_the_step_that_was_made(tmp_path):
    with skipscope.watch(
        small_net(), probe(), every=1, folder=tmp_path, measures=[WeightMass()], steps_per_epoch=4
    ) as scope:
        scope.log({"mine": 0.0})
        for _ in range(5):
            scope.step()
            scope.log({"mine": 0.0})
    log = skipscope.open_run(tmp_path).log()
    mine, theirs = (
        log.query(f"name == '{name}'")[["epoch", "step"]].to_numpy().tolist() for name in ("mine", "weight_mass/all")
    )
    assert mine == theirs == [[0, 0], [0.25, 1], [0.5, 2], [0.75, 3], [1, 4], [1.25, 5]]


def test_names_that_cannot_be_keys_are_refused_before_training(tmp_path):
    with pytest.raises(UserError, match="without '/'"):
        skipscope.watch({"a/b": small_net()}, probe(), folder=tmp_path)


def broken(context) -> float:
    raise RuntimeError("a fault of the measure")


def full(*_) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize(
    ("where", "what"),
    [
        ("callbacks.measure.log_results", full),
        ("lightning_app.runs.RunFolder.append", full),
        ("lightning_app.runs.RunFolder.begin", full),
        ("lightning_app.runs.RunFolder.finish", full),
        ("lightning_app.runs.RunFolder.save_members", full),
        ("callbacks.measure.contexts_of", broken),
        ("callbacks.signal.SignalWatch.close", broken),
        ("callbacks.signal.SignalWatch.stop", broken),
        ("callbacks.WeightMass.on_train_batch_end", broken),
        ("callbacks.WeightMass.on_train_batch_start", broken),
    ],
)
def test_no_fault_of_ours_stops_or_changes_training(tmp_path, bare, monkeypatch, where, what):
    monkeypatch.setattr(where, what)
    assert same_weights(watched(tmp_path / "run"), bare)


def test_what_ends_the_watching_is_said_once(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("callbacks.measure.log_results", full)
    with caplog.at_level(logging.WARNING):
        watched(tmp_path / "run")
    said = [record.message for record in caplog.records if "watching ends" in record.message]
    assert said == ["watching ends after step 0, training continues: OSError: [Errno 28] No space left on device"]


def test_what_ends_the_watching_leaves_hooks_of_others_alone(tmp_path, monkeypatch):
    net, steps = small_net(), []
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with skipscope.watch(net, probe(), optimizer, every=1, folder=tmp_path, measures=[WeightMass()]):
        optimizer.register_step_post_hook(lambda *_: steps.append(len(steps)))
        monkeypatch.setattr("callbacks.measure.log_results", full)
        for _ in range(2):
            optimizer.step()
    assert steps == [0, 1] and len(optimizer._optimizer_step_post_hooks) == 1


def test_numbers_of_no_watched_net_are_left_out_with_a_warning(tmp_path, caplog):
    nets = {"one": small_net(), "other": small_net()}
    with skipscope.watch(nets, probe(), folder=tmp_path, every=1, measures=[WeightMass()]) as scope:
        for step in range(2):
            scope.step()
            scope.log({"my/number": step})
            scope.log({"my/number": step}, net="one")
    assert "net of log() must be the name of a watched net (one, other), got None: left out" in caplog.text
    log = skipscope.open_run(tmp_path).log()
    assert log[log["name"] == "my/number"]["member"].tolist() == ["one", "one"]
    assert set(log[log["name"] == "weight_mass/all"]["step"]) == {0, 1, 2}


def test_what_is_no_number_is_left_out_with_a_warning(tmp_path, caplog):
    with skipscope.watch(small_net(), probe(), folder=tmp_path, every=1, measures=[WeightMass()]) as scope:
        scope.step()
        scope.log({"my/word": "x", "my/none": None, "my/number": torch.tensor([3.0]), "my/digits": "3"})
        scope.log({"my/complex": torch.tensor(1j), "my/long": 10**400, "my/several": torch.ones(2)})
        scope.log(3)
        scope.step()
    assert "log() needs a number for 'my/word', got a str: left out" in caplog.text
    assert "for 'my/none', got a NoneType" in caplog.text and "numbers by name" in caplog.text
    log = skipscope.open_run(tmp_path).log()
    assert log[log["name"].str.startswith("my/")]["value"].tolist() == [3.0]
    assert set(log[log["name"] == "weight_mass/all"]["step"]) == {0, 1, 2}


def test_a_measure_that_fails_costs_its_own_numbers(tmp_path, bare):
    net = watched(tmp_path / "run", measures=[Scalar("odd", broken), WeightMass()])
    assert same_weights(net, bare)
    names = set(skipscope.open_run(tmp_path / "run").log()["name"])
    assert {"failed/odd", "weight_mass/all"} <= names


def test_a_measure_of_two_watches_says_in_both_folders_what_failed(tmp_path):
    measures = [Scalar("odd", broken), LayerCushion()]
    for name in ("one", "two"):
        watched(tmp_path / name, measures=measures)
    one, two = (RunFolder(tmp_path / name) for name in ("one", "two"))
    assert one.notes() == two.notes() and len(one.notes()) == 1
    assert one.layers() == two.layers() and one.layers()


def test_an_error_of_the_loop_is_the_loops_own_and_leaves_no_hooks(tmp_path):
    net = small_net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with (
        pytest.raises(ZeroDivisionError),
        skipscope.watch(net, probe(), optimizer, every=1, folder=tmp_path, measures=[Signal()]),
    ):
        net(torch.randn(2, 1, 6, 6))
        raise ZeroDivisionError
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in net.modules())
    assert not optimizer._optimizer_step_post_hooks


def test_a_second_run_in_a_folder_needs_to_be_told_what_came_before(tmp_path):
    with skipscope.watch(net := small_net(), probe(), folder=tmp_path, measures=[WeightMass()]):
        pass
    with pytest.raises(UserError, match="already has the numbers of a run"):
        skipscope.watch(net, probe(), folder=tmp_path, measures=[WeightMass()])


def test_a_part_that_goes_on_counts_epochs_as_the_part_before(tmp_path):
    """Otherwise the first part's last numbers, of later epochs, stayed the last."""
    with skipscope.watch(small_net(), probe(), folder=tmp_path, measures=[WeightMass()], steps_per_epoch=7) as scope:
        for _ in range(3):
            scope.step()
    options = {"folder": tmp_path, "measures": [WeightMass()], "steps_done": 3}
    with pytest.raises(UserError, match=r"steps_per_epoch must be that .* where step 3 was epoch 0.428571, got 1000\."):
        skipscope.watch(small_net(), probe(), **options)
    skipscope.watch(small_net(), probe(), steps_per_epoch=7, **options)


def test_the_log_s_digits_of_an_epoch_are_enough_to_go_on_soon_after_the_start(tmp_path):
    """Epoch 0.000061714 of 48,611 steps is step 3: the same number of steps was refused."""
    options = {"folder": tmp_path, "measures": [WeightMass()], "steps_per_epoch": 48_611}
    with skipscope.watch(small_net(), probe(), **options) as scope:
        for _ in range(3):
            scope.step()
    skipscope.watch(small_net(), probe(), steps_done=3, **options)
    with pytest.raises(UserError, match="got 48600"):
        skipscope.watch(small_net(), probe(), steps_done=3, **options | {"steps_per_epoch": 48_600})


def test_a_damaged_record_of_what_trained_is_told_before_training(tmp_path):
    """Watching ended in the first step, and the numbers of all others were missing."""
    with skipscope.watch(small_net(), probe(), folder=tmp_path, measures=[WeightMass()]) as scope:
        scope.step()
    (tmp_path / "made.jsonl").write_text('{"commit": "a')
    with pytest.raises(UserError, match=r"made\.jsonl should hold one JSON object .* or remove it to continue"):
        skipscope.watch(small_net(), probe(), folder=tmp_path, measures=[WeightMass()], steps_done=1)


def test_a_watch_that_was_made_before_another_used_its_folder_does_not_begin(tmp_path, caplog):
    """It dropped the other's numbers of all steps but the first."""
    first, second = (skipscope.watch(small_net(), probe(), folder=tmp_path, measures=[WeightMass()]) for _ in range(2))
    for scope in (first, second):
        with scope:
            scope.step()
            scope.log({"mine": float(scope is second)})
    assert "training continues" in caplog.text and "already has the numbers of a run" in caplog.text
    assert skipscope.open_run(tmp_path).log().query("name == 'mine' and step == 1")["value"].tolist() == [0.0]


@pytest.mark.parametrize("kept", [True, False])
def test_what_measures_keep_is_given_to_those_of_another_process_or_missed(tmp_path, caplog, kept):
    with skipscope.watch(small_net(), probe(), folder=tmp_path, every=1, measures=[DistanceFromStart()]) as part:
        part.step()
    states, measures = [one.state_dict() for one in part.measures], [DistanceFromStart()]
    for measure, state in zip(measures, states) if kept else ():
        measure.load_state_dict(state)
    net = small_net()
    with torch.no_grad():
        net[0].weight.add_(1)
    with skipscope.watch(net, probe(), folder=tmp_path, every=1, measures=measures, steps_done=1) as scope:
        scope.step()
    far = skipscope.open_run(tmp_path).log().query("name == 'travel/distance' and step == 2")["value"].tolist()
    assert far == ([pytest.approx(6)] if kept else [])
    assert ("DistanceFromStart: what was kept in the earlier part" in caplog.text) is not kept


def test_measures_that_find_nothing_to_keep_miss_nothing(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(sys, "argv", [Path("train.py"), 1])  # of a notebook
    net = small_net().requires_grad_(False)
    with skipscope.watch(net, probe(), every=1, folder=tmp_path, measures=[DrivingForce()]) as part:
        part.step()
    with skipscope.watch(net, probe(), every=1, folder=tmp_path, measures=part.measures, steps_done=1) as scope:
        scope.step()
    assert "is missing" not in caplog.text and "watching ends" not in caplog.text


def test_a_part_goes_on_while_a_loader_s_workers_live_on(tmp_path, caplog):
    """Forked, they have the lock's file, too: with persistent_workers the second part was not measured."""
    options = {"num_workers": 1, "persistent_workers": True, "multiprocessing_context": "fork"}
    loaders = [DataLoader(range(2), **options) for _ in range(2)]
    for done, loader in enumerate(loaders):
        with skipscope.watch(
            small_net(), probe(), every=1, folder=tmp_path, measures=[WeightMass()], steps_done=done
        ) as scope:
            scope.step()
            list(loader)
    assert caplog.text == ""
    assert sorted(set(skipscope.open_run(tmp_path).log()["step"])) == [0, 1, 2]


def test_a_measure_may_be_used_again_and_keeps_the_clock_that_it_had(tmp_path):
    one = WeightMass()
    for every in (1, 2):
        with skipscope.watch(small_net(), probe(), every=every, folder=tmp_path / str(every), measures=[one]) as scope:
            for _ in range(4):
                scope.step()
        steps = skipscope.open_run(scope.folder).log().query("name == 'weight_mass/all'")["step"]
        assert sorted(steps) == [*range(0, 5, every)]
    assert (one.every_n_epochs, one.every_n_steps, one.lenient) == (1, None, False)


def test_the_same_measures_see_each_net_one_after_the_other_and_at_once(tmp_path):
    measures, nets = [Signal()], {name: small_net() for name in ("first", "second", "third")}
    with torch.no_grad():
        nets["second"][0].weight *= 10
        nets["third"][0].weight *= 100

    def scope(name: str):
        return skipscope.watch({name: nets[name]}, probe(), every=1, folder=tmp_path / name, measures=measures)

    with scope("first") as one:
        one.step()
    with scope("second") as one, scope("third") as other:
        one.step()
        other.step()
    logs = [skipscope.open_run(tmp_path / name).log() for name in nets]
    found = [log.query("name == 'signal/layer01/weight' and step == 1")["value"].item() for log in logs]
    assert found == pytest.approx([found[0], 10 * found[0], 100 * found[0]])


def test_two_that_go_on_from_one_part_compare_with_that_part_each(tmp_path):
    earlier, options = small_net(), {"every": 1, "steps_per_epoch": 1}
    with skipscope.watch(earlier, probe(), folder=tmp_path / "earlier", measures=[BnLambda()], **options) as part:
        part.step()
    for name in ("one", "two"):
        net = small_net()
        with torch.no_grad():
            net[1].weight.neg_()
        with skipscope.watch(
            net, probe(), folder=tmp_path / name, measures=part.measures, steps_done=1, **options
        ) as more:
            more.step()
        changes = skipscope.open_run(more.folder).log().query("name == 'bn_lambda/sign_changes'")["value"]
        assert changes.tolist() == [4]


@pytest.mark.parametrize("fails", [True, False])
def test_further_loggers_are_closed_whether_or_not_the_loop_fails(tmp_path, fails):
    logger = CSVLogger(tmp_path)
    logger.finalize = (said := []).append
    with (
        nullcontext() if not fails else pytest.raises(ZeroDivisionError),
        skipscope.watch(small_net(), probe(), folder=tmp_path / "run", measures=[], loggers=[logger]) as scope,
    ):
        scope.step()
        if fails:
            raise ZeroDivisionError
    assert said == ["failed" if fails else "success"]


def test_a_net_has_one_watch_at_a_time(tmp_path):
    """The signals of one would be of the other's measurements too."""
    net, other = small_net(), small_net()
    one, two = (
        skipscope.watch(each, probe(), folder=tmp_path / name, measures=[WeightMass()])
        for name, each in (("one", net), ("two", {"its": net, "other": other}))
    )
    with one, pytest.raises(UserError, match=r"these nets are watched already, with the folder .*one:"):
        two.__enter__()
    with skipscope.watch(net, probe(), folder=tmp_path / "three", measures=[WeightMass()]):
        pass


def test_a_watch_is_for_one_block(tmp_path):
    scope = skipscope.watch(small_net(), probe(), folder=tmp_path, measures=[WeightMass()])
    with pytest.raises(UserError, match=r"log\(\) was called outside the `with` block"):
        scope.log({"mine": 1.0})
    with scope, pytest.raises(UserError, match="a watch can be used for one `with` block only"):
        scope.__enter__()
    for late in (scope.step, lambda: scope.log({"mine": 1.0})):
        with pytest.raises(UserError, match="outside the `with` block"):
            late()
    assert "mine" not in set(skipscope.open_run(tmp_path).log()["name"])


@pytest.mark.parametrize("of", ["loader", "sampler"])
def test_the_loader_of_training_may_be_the_probe(tmp_path, of):
    """What it would draw next is what it would have drawn."""

    def orders(watching: bool) -> list:
        generator = torch.Generator().manual_seed(7)
        sampler = RandomSampler(range(24), generator=generator)
        options = {"sampler": sampler} if of == "sampler" else {"shuffle": True, "generator": generator}
        loader = DataLoader(data().dataset, batch_size=4, **options)
        if watching:
            with skipscope.watch(small_net(), loader, folder=tmp_path, measures=[WeightMass()]):
                return [labels.tolist() for _, labels in loader]
        return [labels.tolist() for _, labels in loader]

    assert orders(watching=True) == orders(watching=False)


def test_a_net_may_be_copied_and_saved_while_it_is_watched(tmp_path, bare):
    net, kept = small_net(), []
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    with skipscope.watch(net, probe(), optimizer, every=1, folder=tmp_path / "run", measures=[Signal()]):
        for _ in range(2):
            train(net, optimizer, epochs=1)
            kept.append(copy.deepcopy(net))
            torch.save(net, tmp_path / "net.pt")
    loaded = torch.load(tmp_path / "net.pt", weights_only=False)
    assert same_weights(loaded, bare) and same_weights(kept[-1], bare)
    hooks = [hook for each in (loaded, kept[0]) for module in each.modules() for hook in module._forward_hooks.values()]
    assert {hook._look.__name__ for hook in hooks} == {"_nothing"}


def test_training_that_goes_on_after_its_end_is_measured_by_the_clock(tmp_path, caplog):
    with skipscope.watch(
        small_net(), probe(), every=3, folder=tmp_path, measures=[WeightMass()], total_steps=4
    ) as scope:
        for _ in range(8):
            scope.step()
    steps = skipscope.open_run(tmp_path).log().query("name == 'weight_mass/all'")["step"]
    assert sorted(steps) == [0, 3, 4, 6, 8]
    assert caplog.text.count("training continues after total_steps=4") == 1


def test_a_scaled_loss_has_the_gradients_of_the_loss(tmp_path):
    """Scales that are powers of two are exact."""

    def run(folder, scaler: torch.amp.GradScaler) -> list:
        net = small_net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        with skipscope.watch(
            net, probe(), optimizer, every=1, folder=folder, measures=[Signal()], scaler=scaler, total_steps=EPOCH
        ):
            for images, labels in data():
                optimizer.zero_grad()
                scaler.scale(F.cross_entropy(net(images), labels)).backward()
                scaler.step(optimizer)
                scaler.update()
        return signals(folder)

    off, on = (torch.amp.GradScaler("cpu", enabled=enabled, growth_interval=1) for enabled in (False, True))
    scaled = run(tmp_path / "on", on)
    assert on.get_scale() > 2**20  # it grows in each step, behind what is watched
    assert scaled == run(tmp_path / "off", off) != []


def test_a_step_that_a_scaler_skips_is_none_also_of_an_optimizer_that_skips_it_itself(tmp_path):
    steps = []
    for fused in (False, True):
        net, folder = small_net(), tmp_path / f"fused-{fused}"
        optimizer, scaler = torch.optim.SGD(net.parameters(), lr=0.1, fused=fused), torch.amp.GradScaler("cpu")
        with skipscope.watch(net, probe(), optimizer, every=1, folder=folder, measures=[Signal()], scaler=scaler):
            for number in range(4):
                images, labels = next(iter(data()))
                optimizer.zero_grad()
                loss = F.cross_entropy(net(images), labels) * (float("inf") if number == 1 else 1.0)
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
        steps.append(sorted(set(skipscope.open_run(folder).log()["step"])))
    assert steps[0] == steps[1] == [0, 1, 2, 3]


def ddp(rank: int, folder: Path) -> nn.Module:
    """One of two processes; the net is wrapped, and each process trains on its half of a batch."""
    store = dist.FileStore(str(folder / "store"), 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=300))
    try:
        net = nn.parallel.DistributedDataParallel(small_net())
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        options = {"every": 2, "folder": folder / "run", "measures": measures(), "steps_per_epoch": EPOCH}
        with skipscope.watch(net, probe(), optimizer, **options) as scope:
            for images, labels in data():
                optimizer.zero_grad()
                F.cross_entropy(net(images[rank::2]), labels[rank::2]).backward()
                optimizer.step()
            scope.log({"rank": rank})
        if not rank:  # a pass of the wrapper would send buffers to the other process
            cushions = skipscope.measure(net, *probe()[0], LayerCushion())
            assert cushions == skipscope.measure(net.module, *probe()[0], LayerCushion())
        return net.module
    finally:
        dist.destroy_process_group()


@pytest.mark.slow  # a second process
def test_of_two_processes_the_first_measures_and_neither_waits(tmp_path):
    code = f"from pathlib import Path\nfrom tests.callbacks.test_watch import ddp\nddp(1, Path({str(tmp_path)!r}))"
    with Popen([sys.executable, "-c", code], cwd=ROOT, stderr=subprocess.PIPE, text=True) as other:
        try:
            net = ddp(0, tmp_path)
        finally:
            print(other.communicate(timeout=300)[1])
    assert other.returncode == 0
    log = skipscope.open_run(tmp_path / "run").log()
    assert not log.duplicated(["step", "name", "member"]).any() and not log["name"].str.startswith("failed/").any()
    assert log.query("name == 'rank'")["value"].tolist() == [0]
    assert sorted(log.query("name == 'signal/layer01/gradient'")["step"]) == [0, 2, 4, 6]
    mass = log.query("name == 'weight_mass/all' and step == 6")["value"].item()
    assert mass == skipscope.measure(net, *probe()[0], WeightMass())["weight_mass/all"]


@pytest.mark.slow  # compiles
@pytest.mark.skipif(not COMPILES, reason="torch.compile needs a C++ compiler and Python's headers")
@pytest.mark.parametrize(
    ("given", "said"),
    [("the compiled net", "compiled nets run no hooks"), ("its inside", "no training pass of this module")],
)
def test_a_compiled_net_has_weights_and_a_warning_and_trains_as_ever(tmp_path, caplog, given, said):
    def run(watching: bool) -> nn.Module:
        torch._dynamo.reset()
        net = small_net()
        compiled = torch.compile(net)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        options = {"every": 2, "folder": tmp_path, "measures": [Signal(), LayerCushion()]}
        seen = net if given == "its inside" else compiled
        with skipscope.watch(seen, probe(), optimizer, **options) if watching else nullcontext():
            train(compiled, optimizer, epochs=1)
        return net

    assert same_weights(run(True), run(False))
    fields = {name.split("/")[2] for _, name, _ in signals(tmp_path)}
    assert fields == {"weight", "weight_gradient", "update"}
    assert caplog.text.count(said) == 1
    assert "cushion/layer02/median" in set(skipscope.open_run(tmp_path).log()["name"])


def test_the_optimizer_of_another_net_gets_a_warning(tmp_path, caplog):
    other, net = small_net(), small_net()
    for folder, of in ((tmp_path / "one", (net,)), (tmp_path / "other", (other,)), (tmp_path / "both", (net, other))):
        optimizer = torch.optim.SGD([weight for each in of for weight in each.parameters()], lr=0.1)
        skipscope.watch(
            {"net": net, "average": small_net()}, probe(), optimizer, folder=folder, measures=[WeightMass()]
        )
        assert ("has none of the watched weights" in caplog.text) == (of == (other,))
        caplog.clear()


def test_what_is_kept_does_not_grow_with_the_steps(tmp_path):
    net = small_net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    batches, counts = [*data()], []
    with skipscope.watch(net, probe(), optimizer, every=10, folder=tmp_path, measures=[Signal(), WeightMass()]):
        for step in range(300):
            images, labels = batches[step % len(batches)]
            optimizer.zero_grad()
            F.cross_entropy(net(images), labels).backward()
            optimizer.step()
            if step % 100 == 99:
                gc.collect()
                found = gc.get_objects()
                counts.append((sum(issubclass(type(each), torch.Tensor) for each in found), len(found)))
                del found
    tensors, objects = zip(*counts)
    assert tensors[-1] == tensors[0]
    assert (
        min(after - before for before, after in pairwise(objects)) < 100
    )  # a leak of one a step is in all hundreds of steps


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"every": 0}, "every must be a whole number of at least 1, or powers_of_2 for 1, 2, 4, 8, ..., got 0"),
        ({"measures": [LayerCushion]}, "expected measures such as LayerCushion()"),
        ({"steps_per_epoch": 0}, "steps_per_epoch must be at least 1"),
        ({"total_steps": 3, "steps_done": 4}, "must be at least 1 and at least steps_done"),
        ({"net": {}}, "net must be a torch.nn.Module, or several by name"),
        ({"net": None}, "got a NoneType"),
        ({"optimizer": "sgd"}, "optimizer must be a torch.optim.Optimizer, whose steps are counted, got a str"),
        ({"optimizer": torch.optim.SGD}, "got the class SGD. Without one, call step()"),
        ({"probe": []}, "probe needs at least one batch"),
        ({"probe": probe()[0]}, "got a tensor (4, 1, 6, 6) as the first batch: write [(inputs, labels)]"),
        (
            {"probe": [{"image": torch.ones(2, 1, 6, 6), "target": torch.ones(2)}], "measures": None},
            "a dict with image, target",
        ),
        (
            {"pair_of": lambda batch: {"x": batch[0]}, "measures": [WeightMass(), LayerCushion()]},
            "one row per sample, got a NoneType in a dict with x",
        ),
        ({"folder": __file__}, "test_watch.py is a file: name another"),
        ({"folder": Path(__file__) / "run"}, "test_watch.py is a file: name another"),
    ],
)
def test_mistakes_are_said_before_training(tmp_path, options, said):
    given = {"net": small_net(), "probe": probe(), "folder": tmp_path, "measures": [WeightMass()]} | options
    with pytest.raises(UserError, match=re.escape(said)):
        skipscope.watch(**given)


@pytest.mark.slow
def test_in_a_trainer_of_transformers_with_batches_and_outputs_of_its_own(tmp_path):
    import transformers

    tokens = torch.randint(0, 50, (16, 12), generator=torch.Generator().manual_seed(0))
    samples = [{"input_ids": row, "labels": row} for row in tokens]
    sizes = {"vocab_size": 50, "n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2}

    def untrained() -> nn.Module:
        torch.manual_seed(0)
        return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))

    def trained(*callbacks) -> nn.Module:
        model = untrained()
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path / "theirs"), max_steps=6, per_device_train_batch_size=4, report_to=[], use_cpu=True,
            save_strategy="no", disable_tqdm=True, logging_strategy="no",
        )  # fmt: skip
        transformers.Trainer(model, arguments, train_dataset=samples, callbacks=[*callbacks]).train()
        return model

    callback = skipscope.watch.in_transformers(
        [{"input_ids": tokens, "labels": tokens}], every="powers_of_2", folder=tmp_path / "run",
        measures=[Signal(), LayerCushion(), Scalar("norm", weight_norm)],
    )  # fmt: skip
    assert same_weights(trained(callback), trained())
    log = skipscope.open_run(tmp_path / "run").log()
    assert sorted(log.query("name == 'norm'")["step"]) == [0, 1, 2, 4, 6]
    assert sorted(log.query("name == 'signal/layer01/weight'")["step"]) == [0, 1, 2, 4, 6]
    fresh = untrained().eval()
    risk = fresh(input_ids=tokens, labels=tokens).loss.item()
    assert list(log.query("name == 'probe/risk' and step == 0")["value"]) == pytest.approx([risk], rel=1e-6)


def test_training_of_transformers_that_raised_is_watched_when_it_goes_on(tmp_path, caplog):
    """With another net, as in a cell of a notebook that is run again: the first watch had the folder still."""
    pytest.importorskip("transformers", reason="pip install -e '.[transformers]'")
    for done in range(2):
        net = small_net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        callback = skipscope.watch.in_transformers(probe(), every=1, folder=tmp_path, measures=[WeightMass()])
        state = SimpleNamespace(global_step=done, max_steps=5)
        callback.on_train_begin(None, state, None, model=net, optimizer=optimizer)
        optimizer.step()  # and here training raises
    assert "watching ends" not in caplog.text
    callback.on_train_end(None, state, None)
    steps = skipscope.open_run(tmp_path).log().query("name == 'weight_mass/all'")["step"]
    assert sorted(steps) == [0, 1, 2]


def weight_norm(context) -> float:
    """Norm of all weights."""
    return float(sum(weight.square().sum() for weight in context.net.parameters()).sqrt())
