"""What another device could change: batches, numbers of a CPU's net, measures, memory and compiled nets."""

import gc
import re
import time
from functools import partial

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from torch import nn

import callbacks
from callbacks.context import MeasureContext
from callbacks.log import flatten, is_number
from lightning_app.common.isolation import use_float32
from lightning_app.datamodules import KHop
from lightning_app.modules import Arm
from lightning_app.modules.classifier import FINITE_EVERY
from lightning_app.networks import GPT, CifarResNet, SimplifiedNet
from tests.banks import arm, classifier, digits, trainer
from tests.gpu.conftest import CUDA, Target
from tests.gpu.pretended import pretended_gpu, strategy
from tests.gpu.stand_in import stand_in

NETS = {
    "simplified": arm(True),
    "full": Arm(net=lambda: CifarResNet(8, residual=True, width=4)),
    "twin": Arm(twin_of="simplified"),
}
MEASURES = {
    "LayerCushion": {},
    "EffectiveDepth": {"samples": 4, "gradient_samples": 2},
    "DrivingForce": {},
    "HessianSpectrum": {},
    "InterlayerCushion": {"probes": None},  # else a device draws numbers of its own
    "WeightMass": {},
    "BnLambda": {},
    "DistanceFromStart": {},
    "LossSurface": {"samples": 4, "radii": [0.1, 1.0], "rays": 2},
    "NoiseStability": {"samples": 4, "strengths": [0.1], "draws": 1},
    "Signal": {},
}


two_devices = pytest.mark.skipif(not CUDA, reason="compares a GPU with a CPU")


@pytest.mark.parametrize("backend", [pytest.param("loop", marks=two_devices), "graph"])
def test_in_float64_it_trains_a_cpus_nets(captures, backend):
    """Without rounding that could flip a ReLU, two devices differ by the order of sums only."""
    options = {"precision": "64-true", "limit_val_batches": 0}
    cpu = Target("cpu", []).fit(1, backend="loop", arms=NETS, options=options)
    there = captures.fit(1, backend=backend, arms=NETS, options=options)
    for ours, theirs in zip(there.cpu().parameters(), cpu.parameters(), strict=True):
        assert (ours - theirs).norm() <= 1e-9 * theirs.norm() + 1e-12


class NoWaiting(pl.Callback):
    """From the second step of an epoch to its last: an epoch's plan is copied to the device before the first."""

    def __init__(self):
        self.steps = 0

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if batch_idx:
            self.steps += 1
            torch.cuda.set_sync_debug_mode("error")

    def on_train_batch_end(self, trainer, *_):
        if trainer.is_last_batch:
            torch.cuda.set_sync_debug_mode("default")

    def on_exception(self, *_):
        torch.cuda.set_sync_debug_mode("default")


STEPS = {
    "bank": {"arms": NETS, "gradient_clip_val": 0.1, "weight_decay": 0.1, "ema_decay": 0.9},
    "tokens": {"net": lambda: GPT(4, 24, 8, 1, 2), "optimizer": partial(torch.optim.Adam, lr=1e-3)},
    "draws": {"net": lambda: nn.Sequential(nn.Flatten(), nn.Linear(3072, 10), nn.Dropout()), "seeds": 2},
}


@pytest.mark.parametrize("name", STEPS)
def test_a_step_of_the_loop_has_one_device_and_waits_for_nothing(gpu, name):
    """Neither its own kernels nor Lightning's loop around them."""
    made, data = [], partial(KHop, samples=100, test_samples=60, batch_size=32, probe_size=20)
    options = {"precision": "64-true", "limit_val_batches": 0}
    model = {"arms": None, "backend": "loop", "channels_last": False, "finite_every": FINITE_EVERY} | STEPS[name]
    for there in ({}, gpu):
        watch = NoWaiting()
        module = classifier(**{key: value for key, value in model.items() if value is not None})
        more = {"callbacks": [watch]} if there else {}
        trainer(2, **options | there | more).fit(module, datamodule=data() if name == "tokens" else digits())
        made.append(module.cpu())
    assert watch.steps == 6
    if name != "draws" or not CUDA:  # each device draws numbers of its own
        for ours, theirs in zip(made[1].parameters(), made[0].parameters(), strict=True):
            assert (ours - theirs).norm() <= (1e-9 * theirs.norm() + 1e-12 if CUDA else 0)


class Extra(nn.Sequential):
    """Its extra state lies on a CPU wherever its weights lie, as that of layers in eight bits."""

    def get_extra_state(self):
        return torch.ones(3)

    def set_extra_state(self, state):
        pass


def test_extra_state_may_lie_on_a_cpu(gpu):
    module = classifier(net=lambda: Extra(nn.Flatten(), nn.Linear(3072, 10)), backend="loop")
    trainer(1, limit_val_batches=0, **gpu).fit(module, datamodule=digits())
    assert module.trainer.global_step == 4


@pytest.mark.skipif(CUDA, reason="there is a GPU")
def test_a_graph_is_of_one_device():
    """With the stand-in for graphs on the pretended GPU: other tests capture on a CPU, which is one device."""
    model = {"arms": NETS, "gradient_clip_val": 0.1, "weight_decay": 0.1, "ema_decay": 0.9, "channels_last": False}
    loop = Target("cpu", []).fit(1, backend="loop", **model)
    with pretended_gpu(), stand_in() as graphs:
        graph = Target("cpu", graphs).fit(1, options={"accelerator": "auto", "strategy": strategy()}, **model)
    assert graphs and all(map(torch.equal, graph.cpu().parameters(), loop.parameters()))


def test_batches_are_a_cpus(gpu):
    found = []
    for options in ({"accelerator": "cpu"}, gpu):
        data = digits()
        data.trainer = pl.Trainer(logger=False, **options)
        data.setup()
        found.append([*data.train_dataloader(), *data.probe_loader()])
    for (images, labels), (theirs, of_theirs) in zip(*found, strict=True):
        assert theirs.is_cuda and of_theirs.is_cuda
        assert torch.allclose(theirs.cpu(), images, rtol=1e-6, atol=1e-6) and torch.equal(of_theirs.cpu(), labels)


@pytest.mark.parametrize("kind", ["simplified", "full"])
@pytest.mark.parametrize("name", MEASURES)
def test_a_measure_is_a_cpus(gpu, name, kind):
    """Samples lie on a CPU, as those of other projects do."""
    use_float32("fp32")
    torch.manual_seed(0)
    net = SimplifiedNet(5, residual=True, width=4) if kind == "simplified" else CifarResNet(8, residual=True, width=4)
    numbers = []
    for device in ("cpu", "cuda"):
        context = MeasureContext(net.to(device).eval(), digits(probe_size=12).probe_loader())
        measure = getattr(callbacks, name)(**MEASURES[name])
        if isinstance(measure, callbacks.StatefulMeasure):
            measure.begin_with(context)
        numbers.append({k: v for k, v in _flat(measure.evaluate(context)) if k.split("/")[0] != "cost"})
    assert numbers[0].keys() == numbers[1].keys() and numbers[0]
    rel = 1e-6 if not CUDA else 1e-3 if kind == "simplified" else 0.05
    for key, value in numbers[0].items():
        if not (CUDA and re.search("smoothness|residual", key)):  # of which rounding is all that is left
            assert numbers[1][key] == pytest.approx(value, rel=rel, abs=1e-4 if CUDA else 1e-9, nan_ok=True), key


def _flat(found):
    for key, value in flatten(found):
        if is_number(value):
            yield key, float(value)


class Queues(pl.Callback):
    """After each step of a device so much is left to do: whoever asks it for a number waits so long."""

    left = passed = 0.0

    def finish(self, *_):
        self.passed, self.left = self.passed + self.left, 0.0

    def on_train_batch_end(self, *_):
        self.left = 100.0


@pytest.mark.skipif(CUDA, reason="there is a GPU")
@pytest.mark.parametrize("make", [callbacks.WeightMass, callbacks.TwinDivergence])
def test_what_training_has_left_to_do_is_no_cost_of_a_measure(monkeypatch, make):
    queue, measure, clock = Queues(), make(every_n_steps=3), time.perf_counter
    monkeypatch.setattr(time, "perf_counter", lambda: clock() + queue.passed)
    with pretended_gpu() as gpu, monkeypatch.context() as there:
        there.setattr(torch.cuda, "synchronize", queue.finish)
        there.setattr(gpu, "wait", queue.finish)
        bank = classifier({"residual": arm(True), "twin": Arm(twin_of="residual")}, backend="loop")
        options = {"accelerator": "auto", "strategy": strategy(), "limit_val_batches": 0}
        trainer(1, callbacks=[queue, measure], **options).fit(bank, datamodule=digits())
    assert queue.passed >= 200 and 0 < measure.spent < 50


@pytest.mark.skipif(CUDA, reason="there is a GPU")
def test_the_pretended_gpu_refuses_what_a_gpu_refuses():
    here = torch.ones(2, 3)
    with pretended_gpu():
        there = torch.ones(2, 3, device="cuda")
        views = there[0], there.T, (there * torch.tensor(2.0)).relu(), here.to(there), nn.Linear(3, 1).cuda().weight
        assert all(each.is_cuda and each.device.type == "cuda" for each in views) and not there.cpu().is_cuda
        mixed = [
            lambda: there + here,
            lambda: torch.cat([here, there]),
            lambda: here[there.long()],
            lambda: nn.Linear(3, 1)(there),
        ]
        for mix in (*mixed, lambda: torch.vmap(lambda row: row * torch.ones(3))(there)):
            with pytest.raises(RuntimeError, match="same device"):
                mix()
        with pytest.raises(TypeError, match="numpy"):
            np.quantile(there, 0.5)
        with pytest.raises(RuntimeError, match="generator"):
            torch.rand(2, device="cuda", generator=torch.Generator())
        torch.cuda.set_sync_debug_mode("error")
        reads = [
            lambda: float(there.sum()),
            there.cpu,
            lambda: here.to("cuda"),
            lambda: there[there > 0],
            there.tolist,
            there.nonzero,
        ]
        for read in (*reads, lambda: torch.tensor(1, device="cuda"), lambda: there.copy_(here)):
            with pytest.raises(RuntimeError, match="waits"):
                read()
        assert there.add_(1).mul(2).is_cuda


@pytest.mark.skipif(not CUDA, reason="a CPU's memory is not counted")
def test_memory_is_flat_over_epochs(captures):
    used = []

    class Note(pl.Callback):
        def on_train_epoch_end(self, trainer, pl_module):
            gc.collect()
            used.append(torch.cuda.memory_allocated())

    captures.fit(12, options={"callbacks": [Note()]})
    assert used[-1] <= used[3]


@pytest.mark.skipif(not CUDA, reason="compiled nets run past the stand-in")
def test_a_compiled_bank_in_a_graph_is_the_loops(captures):
    loop, graph = (captures.fit(backend=each, compile=True, channels_last=True) for each in ("loop", "graph"))
    captures.assert_same(graph, loop)
    assert captures.graphs
