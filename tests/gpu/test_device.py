"""What another device could change: batches, numbers of a CPU's net, measures, memory and compiled nets."""

import gc

import pytest
import pytorch_lightning as pl
import torch

import callbacks
from callbacks.context import MeasureContext
from lightning_app.common.isolation import use_float32
from lightning_app.modules import Arm
from lightning_app.networks import CifarResNet, SimplifiedNet
from tests.banks import arm, digits
from tests.gpu.conftest import CUDA, Target

NETS = {
    "simplified": arm(True),
    "full": Arm(net=lambda: CifarResNet(8, residual=True, width=4)),
    "twin": Arm(twin_of="simplified"),
}
MEASURES = [
    "LayerCushion",
    "EffectiveDepth",
    "DrivingForce",
    "HessianSpectrum",
    "InterlayerCushion",
    "WeightMass",
    "BnLambda",
]


two_devices = pytest.mark.skipif(not CUDA, reason="compares a GPU with a CPU")


@pytest.mark.parametrize("backend", [pytest.param("loop", marks=two_devices), "graph"])
def test_in_float64_it_trains_a_cpus_nets(captures, backend):
    """Without rounding that could flip a ReLU, two devices differ by the order of sums only."""
    options = {"precision": "64-true", "limit_val_batches": 0}
    cpu = Target("cpu", []).fit(1, backend="loop", arms=NETS, options=options)
    there = captures.fit(1, backend=backend, arms=NETS, options=options)
    for ours, theirs in zip(there.cpu().parameters(), cpu.parameters(), strict=True):
        assert (ours - theirs).norm() <= 1e-9 * theirs.norm() + 1e-12


@two_devices
def test_batches_are_a_cpus(captures):
    found = []
    for device in ("cpu", captures.device):
        data = digits()
        data.trainer = pl.Trainer(accelerator="gpu" if device == "cuda" else "cpu", devices=1, logger=False)
        data.setup()
        found.append([*data.train_dataloader(), *data.probe_loader()])
    for (images, labels), (theirs, of_theirs) in zip(*found, strict=True):
        assert torch.allclose(theirs.cpu(), images, rtol=1e-6, atol=1e-6) and torch.equal(of_theirs.cpu(), labels)


@two_devices
@pytest.mark.parametrize("name", MEASURES)
def test_a_measure_is_a_cpus(captures, name):
    use_float32("fp32")
    torch.manual_seed(0)
    net = SimplifiedNet(5, residual=True, width=4)
    numbers = []
    for device in ("cpu", captures.device):
        batches = [(images.to(device), labels.to(device)) for images, labels in digits().probe_loader()]
        context = MeasureContext(net.to(device).eval(), batches)
        context.state = {}
        options = {"probes": None} if name == "InterlayerCushion" else {}  # else a device draws numbers of its own
        numbers.append(
            {k: v for k, v in _flat(getattr(callbacks, name)(**options).measure(context)) if k.split("/")[0] != "cost"}
        )
    assert numbers[0].keys() == numbers[1].keys() and numbers[0]
    for key, value in numbers[0].items():
        assert numbers[1][key] == pytest.approx(value, rel=1e-3, abs=1e-4, nan_ok=True), key


def _flat(found):
    for key, value in dict(found).items():
        values = vars(value) if hasattr(value, "__dict__") else {"": value}
        for field, number in values.items():
            if isinstance(number, int | float):
                yield f"{key}/{field}", float(number)


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
