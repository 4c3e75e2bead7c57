"""A step in a graph is the loop's step: weights, momentum, buffers, risks and metrics, whatever happens between two steps."""

import copy
import math
from functools import partial

import pytest
import pytorch_lightning as pl
import torch
from torch import nn
from torch.optim.lr_scheduler import MultiStepLR, OneCycleLR

from callbacks import DrivingForce, HessianSpectrum, Signal, TrainingMetrics, TwinDivergence
from lightning_app.common.errors import DivergedError, UserError
from lightning_app.datamodules import Digits
from lightning_app.datamodules.loaders import Batches
from lightning_app.modules import Arm, ImageClassifier
from lightning_app.modules.cost import add_gradients
from lightning_app.modules.whole_step import DeviceBatches
from lightning_app.networks import CifarResNet
from tests.banks import arm, classifier, digits, identical, sgd, trainer
from tests.gpu.conftest import CUDA
from tests.gpu.stand_in import stand_in

BOTH = {"plain": arm(False), "residual": arm(True)}
TWINS = {"residual": arm(True), "twin": Arm(twin_of="residual")}
GRAPHS = 5  # of training batches of 32 and 4, and of evaluation's: 50 of train, 50 and 10 of test
FULL = {"full": Arm(net=lambda: CifarResNet(8, residual=True, width=4))}


class Risks(pl.Callback):
    """All members' risks of every step."""

    def __init__(self):
        self.steps = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.steps.append([float(risk) for risk in outputs["risks"].values()])


class At(pl.Callback):
    """Calls something with trainer and module at the end of one step."""

    def __init__(self, step, call):
        self.step, self.call = step, call

    def on_train_batch_end(self, trainer, pl_module, *_):
        if trainer.global_step == self.step:
            self.call(trainer, pl_module)


class Small(nn.Sequential):
    """Of gradients a thousandth of those of others."""

    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(3072, 10))

    def forward(self, x):
        return super().forward(0.001 * x)


def linear():
    return nn.Sequential(nn.Flatten(), nn.Linear(3072, 10))


class Look(pl.Callback):
    """Of somebody who looks into steps and does not say into which."""

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        pass


class Hooked(ImageClassifier):
    """Somebody's, who looks into steps."""

    def __init__(self, backend):
        super().__init__(sgd, arms=BOTH, backend=backend, float32="fp32")

    def on_after_backward(self):
        pass


class Darker(Digits):
    """Somebody's, who changes batches on the device."""

    def __init__(self, _):
        super().__init__(batch_size=32, train_limit=100, test_limit=60, eval_batch_size=50)

    def on_after_batch_transfer(self, batch, dataloader_idx):
        if not self.trainer.training:
            return batch
        return {seed: (0.5 * images, labels) for seed, (images, labels) in batch.items()}


def rate_drops(optimizer):
    return MultiStepLR(optimizer, [1])


MODELS = {
    "dropping-rate": {"arms": BOTH, "seeds": 2, "scheduler": rate_drops},
    "twins": {"arms": TWINS, "gradient_clip_val": 0.1, "channels_last": True, "share_batches": False, "seeds": 2},
    "full": {"arms": FULL, "ema_decay": 0.9, "optimizer": partial(torch.optim.SGD, lr=0.05)},
}


def trained(target, name, backend):
    """A model of these and its risks of every step."""
    watch = Risks()
    return target.fit(options={"callbacks": [watch]}, backend=backend, **MODELS[name]), watch.steps


@pytest.fixture(scope="module")
def by_the_loop():
    """by_the_loop(target, name): trained once for all targets."""
    made = {}
    return lambda target, name: made.get(name) or made.setdefault(name, trained(target, name, "loop"))


@pytest.mark.parametrize("name", MODELS)
def test_it_is_the_loops_step_over_epochs_with_a_shorter_last_batch(target, by_the_loop, name):
    (loop, risks), (graph, of_graph) = by_the_loop(target, name), trained(target, name, "graph")
    target.assert_same(graph, loop)
    assert target.graphs and len(risks) == len(of_graph) == 12
    for one, other in zip(risks, of_graph):
        assert one == pytest.approx(other, rel=1e-2 if CUDA else 0)


def test_graphs_are_captured_once_a_batch_size_and_again_when_the_rate_drops(captures):
    captures.fit(epochs=4)
    assert len(captures.graphs) == GRAPHS
    captures.graphs.clear()
    captures.fit(epochs=4, scheduler=lambda optimizer: MultiStepLR(optimizer, [2]))
    assert len(captures.graphs) == GRAPHS + 2


def test_a_run_that_is_resumed_within_an_epoch_and_after_one_ends_at_the_same_bits(target, tmp_path):
    exact = {"deterministic": "warn"} if CUDA else {}
    steps = (4, 6)
    saves = [
        At(step, lambda trainer, _: trainer.save_checkpoint(tmp_path / f"{trainer.global_step}.ckpt")) for step in steps
    ]
    whole = target.fit(options={"callbacks": saves} | exact)
    for step in steps:
        resumed = target.fit(ckpt_path=tmp_path / f"{step}.ckpt", options=exact)
        target.assert_same(resumed, whole, tolerance=1e-6)


def test_a_step_that_is_watched_is_the_loops_and_what_is_seen_is_the_same(captures):
    logs = []
    for backend in ("loop", "graph"):
        signal, seen = Signal(every_n_steps=3), {}
        signal.observe = lambda trainer, module, epoch, signal=signal, seen=seen: seen.update({epoch: signal._seen})
        module = captures.fit(
            2, backend=backend, arms=TWINS, options={"callbacks": [signal, TwinDivergence(every_n_steps=9)]}
        )
        logs.append((module, seen))
    (loop, expected), (graph, seen) = logs
    captures.assert_same(graph, loop)
    assert len(seen) >= 4 and captures.graphs
    assert CUDA or identical(
        *(
            {epoch: {name: [sums, shape] for name, (sums, shape) in by_net.items()} for epoch, by_net in found.items()}
            for found in (seen, expected)
        )
    )


@pytest.mark.parametrize("precision", ["bf16-mixed", "64-true"])
def test_other_precisions(captures, precision):
    loop, graph = (captures.fit(options={"precision": precision}, backend=backend) for backend in ("loop", "graph"))
    captures.assert_same(graph, loop, tolerance=0.05 if precision == "bf16-mixed" else 1e-9)
    assert len(captures.graphs) == GRAPHS


def test_a_net_that_was_measured_before_training_still_goes_into_a_graph(captures, caplog):
    """A gradient accumulator that a measure kept alive would be of the stream that it was first used in."""
    measures = [TrainingMetrics(), HessianSpectrum(), DrivingForce()]
    captures.fit(2, arms={"residual": arm(True)}, options={"callbacks": measures, "num_sanity_val_steps": -1})
    assert len(captures.graphs) == GRAPHS and "loop (" not in caplog.text


def test_training_is_captured_after_an_evaluation_in_inference_mode(captures):
    """As `Trainer.validate` runs, and not `fit`: CUDA's seeds are then made in that mode, and live as long as a graph does."""
    there = trainer(accelerator="gpu" if CUDA else "cpu", devices=1)
    there.validate(classifier(float32="fp32"), datamodule=digits(test_limit=60, eval_batch_size=50), verbose=False)
    assert len(captures.graphs) == 3
    captures.fit(2, arms={"plain": arm(False)})
    assert len(captures.graphs) == 3 + GRAPHS


def test_nothing_waits_for_the_device_within_an_epoch(captures):
    class NoWaiting(pl.Callback):
        def on_train_batch_start(self, trainer, *_):
            if trainer.current_epoch and trainer.global_step % 4:  # an epoch's plan is copied in its first step
                torch.cuda.set_sync_debug_mode("error")

        def on_train_batch_end(self, *_):
            torch.cuda.set_sync_debug_mode("default")

    captures.fit(options={"callbacks": [NoWaiting()]}, ema_decay=0.9)
    assert len(captures.graphs) == GRAPHS


def test_metrics_and_checkpoints_within_an_epoch_count_what_was_trained(target, tmp_path):
    found = []
    for backend in ("loop", "graph"):
        saved = {}

        def look(trainer, module, saved=saved):
            trainer.save_checkpoint(tmp_path / "saved.ckpt")
            running = torch.load(tmp_path / "saved.ckpt", weights_only=True)["running"]
            saved.update(running=running, metrics=module.metrics())

        target.fit(2, options={"callbacks": [At(7, look)]}, backend=backend)
        found.append(saved)
    assert found[1].keys() == found[0].keys()
    assert {int(sums["count"]) for sums in found[1]["running"].values()} == {96}
    assert CUDA or identical(*found)


def test_weights_that_moved_elsewhere_are_captured_anew_with_the_next_step(captures):
    """At the end of an epoch, and within one: then evaluation reads them where they are, too."""

    def move(_, module):
        for parameter in module.parameters():
            parameter.data = parameter.data.clone()

    moves = {"callbacks": [At(5, move), At(8, move)]}
    graph, loop = (captures.fit(backend=each, options=moves) for each in ("graph", "loop"))
    captures.assert_same(graph, loop)
    assert len(captures.graphs) >= 2 * GRAPHS


class Reads(pl.Callback):
    """Batches as a callback sees them, before a step and behind it."""

    def __init__(self):
        self.seen, self.kinds = [], set()

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        pl_module.log("rows", float(len(next(iter(batch.values()))[1])), on_epoch=True)  # Lightning wants its size
        self.kinds.add(type(batch))
        self.seen.append({seed: (images.cpu(), labels.cpu()) for seed, (images, labels) in batch.items()})

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.seen.append({seed: (batch[seed][0].cpu(), batch[seed][1].cpu()) for seed in batch})


def test_callbacks_read_the_batch_that_a_graph_gathers(captures):
    reads = {backend: Reads() for backend in ("loop", "graph")}
    for backend, read in reads.items():
        options = {"callbacks": [read], "precision": "64-true", "limit_val_batches": 0}
        captures.fit(1, backend=backend, arms=None, net=linear, seeds=2, options=options)
    assert reads["loop"].kinds == {dict} and reads["graph"].kinds == {Batches}
    assert len(reads["loop"].seen) == 8 and identical(reads["loop"].seen, reads["graph"].seen)


def test_a_module_with_graphs_can_be_copied_after_training(captures):
    module = captures.fit()
    module.trainer = None
    copied = copy.deepcopy(module)
    assert all(torch.equal(a, b) for a, b in zip(copied.parameters(), module.parameters()))


def test_a_loss_that_diverges_ends_the_run_after_the_epoch_and_names_the_step(captures):
    def spoil(_, module):
        with torch.no_grad():
            next(module.members[1].net.parameters()).fill_(math.inf)

    with pytest.raises(DivergedError, match="'residual' became NaN or infinite in step 7, seen in epoch 2"):
        captures.fit(options={"callbacks": [At(6, spoil)]})


def test_gradients_that_two_parameters_share_are_two(captures):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.unused = (nn.Parameter(torch.full((10,), 0.1 * k)) for k in range(3))

        def forward(self, x):
            return x.flatten(1)[:, :10] + (self.a + self.b)

    loop, graph = (captures.fit(backend=each, arms=None, net=Twice, weight_decay=0.1) for each in ("loop", "graph"))
    captures.assert_same(graph, loop)


# What goes into no graph


class Asking(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3072, 10)

    def forward(self, x):
        out = self.layer(x.flatten(1))
        return out if float(out.detach().sum()) > 1e9 else out + 1


@pytest.mark.parametrize(
    ("net", "why"),
    [(lambda: nn.Sequential(nn.Flatten(), nn.Linear(3072, 10), nn.Dropout()), "random numbers"), (Asking, "")],
)
def test_nets_that_draw_or_ask_the_host_are_trained_by_the_loop_and_said_so(captures, caplog, net, why):
    loop, auto = (captures.fit(backend=each, arms=None, net=net) for each in ("loop", "auto"))
    captures.assert_same(auto, loop)
    assert f"training step: loop ({why}" in caplog.text.replace("a replay would draw the ", "")
    torch.rand(3, device=captures.device)  # a broken capture leaves the generator unusable
    with pytest.raises(UserError, match=r"'graph': training step cannot be captured in a CUDA graph.*Set it to loop"):
        captures.fit(backend="graph", arms=None, net=net)


@pytest.mark.parametrize(
    ("model", "callback", "why"),
    [
        ({"optimizer": partial(torch.optim.Adam, lr=1e-3)}, None, "Adam does part of its step on the host"),
        (
            {"scheduler": partial(OneCycleLR, max_lr=0.1, total_steps=9), "scheduler_interval": "step"},
            None,
            "every step",
        ),
        ({"finite_every": 2}, None, "model.finite_every"),
        ({}, Look, "Look may look into every step's gradients"),
        ({"module": Hooked}, None, "Hooked may look into every step's gradients"),
        ({"data": Darker}, None, "Darker changes batches after they were gathered"),
    ],
)
def test_what_else_needs_the_loop_is_said(captures, caplog, model, callback, why):
    options = {"callbacks": [callback()] if callback else []}

    def fit(epochs, backend):
        made = {name: make(backend) for name, make in model.items() if isinstance(make, type)}
        return captures.fit(epochs, backend=backend, options=options, **model | made)

    loop, auto = (fit(2, each) for each in ("loop", "auto"))
    captures.assert_same(auto, loop)
    assert "training step: loop (" in caplog.text and why in caplog.text
    with pytest.raises(UserError, match="Set it to loop"):
        fit(1, "graph")


class OwnLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3072, 10)

    def forward(self, x, labels=None):
        logits = self.layer(x.flatten(1))
        return logits if labels is None else (nn.functional.cross_entropy(logits, labels), logits)


def test_nets_that_compute_their_loss_are_trained_by_the_loop_and_said_so(captures, caplog):
    captures.fit(1, backend="auto", arms=None, net=OwnLoss)
    assert "back end: loop ('net' computes its loss itself)" in caplog.text and not captures.graphs
    with pytest.raises(UserError, match="graph cannot train 'net', which computes its own loss"):
        captures.fit(1, backend="graph", arms=None, net=OwnLoss)


def test_a_graph_that_trains_otherwise_is_not_taken(captures, caplog, monkeypatch):
    monkeypatch.setattr("lightning_app.modules.whole_step.add_gradients", lambda penalties: None)
    loop, auto = (captures.fit(backend=each, weight_decay=10.0) for each in ("loop", "auto"))
    captures.assert_same(auto, loop)
    assert "training step: loop (it differs from the loop by" in caplog.text


def test_one_net_that_a_graph_trains_otherwise_is_enough(captures, caplog, monkeypatch):
    """Its update is small beside that of the others: a gap relative to all of them would not show it."""
    monkeypatch.setattr(
        "lightning_app.modules.whole_step.add_gradients", lambda penalties: add_gradients([*penalties][1:])
    )
    small = {"arms": {"small": Arm(net=Small), **BOTH}, "weight_decay": 0.001}
    loop, auto = (captures.fit(backend=each, **small) for each in ("loop", "auto"))
    captures.assert_same(auto, loop)
    assert "training step: loop (it differs from the loop by" in caplog.text


def test_a_batch_that_cannot_be_normalised_is_the_loops_error_message(captures):
    net = partial(nn.Sequential, nn.Flatten(), nn.Linear(3072, 10), nn.BatchNorm1d(10))
    data = Digits(batch_size=33, train_limit=100, test_limit=60, eval_batch_size=50)
    with pytest.raises(UserError, match="which has one value per channel"):
        captures.fit(2, data=data, arms={"net": Arm(net=net)})


class Thaws(pl.Callback):
    """Layers are frozen in the first epoch, set free in the second, and normalised by running statistics in the third."""

    def on_train_epoch_start(self, trainer, pl_module):
        for module in pl_module.nets.modules():
            if isinstance(module, nn.Conv2d):
                module.weight.requires_grad_(trainer.current_epoch > 0)
            if isinstance(module, nn.BatchNorm2d) and trainer.current_epoch == 2:
                module.eval()


def test_layers_that_a_callback_freezes_and_sets_free_are_captured_as_they_are(captures):
    normalised = {"arms": {"net": Arm(net=lambda: CifarResNet(8, True, width=2))}, "options": {"callbacks": [Thaws()]}}
    graph, loop = (captures.fit(backend=each, **normalised) for each in ("graph", "loop"))
    captures.assert_same(graph, loop, 0.01)  # kernels on a GPU may add in any order, and a ReLU that flips is 1e-3 here


def test_batches_by_the_counter_are_the_loaders_in_every_epoch_and_from_any_place(captures):
    data = digits(root="")
    module = classifier(seeds=3)
    trainer = pl.Trainer(accelerator="gpu" if CUDA else "cpu", devices=1, logger=False, enable_checkpointing=False)
    data.trainer = trainer
    data.setup()
    data.use_plan(type(data.plan)(seeds=module.data_seeds))
    streams = data.train_dataloader()
    feed = None
    for epoch, first in ((0, 0), (1, 0), (1, 2)):
        streams.set_epoch(epoch)
        streams.gathers = True
        expected = list(streams)[first:]
        streams.gathers = False
        for upcoming, batches in zip(list(streams)[first:], expected, strict=True):
            feed = feed or DeviceBatches(upcoming)
            feed.move_to(upcoming)
            count = len(next(iter(batches.values()))[1])
            for (images, labels), (theirs, of_theirs) in zip(feed.take(count), batches.values(), strict=True):
                assert torch.equal(images, theirs) and torch.equal(labels, of_theirs)
            feed.moved(count)


def test_the_stand_in_refuses_streams_that_are_not_joined_or_forked():
    with stand_in():
        for joined in (False, True):
            other, x = torch.cuda.Stream(), torch.zeros(3)
            why = "not forked" if joined else "unjoined work"
            with pytest.raises(RuntimeError, match=why), torch.cuda.graph(torch.cuda.CUDAGraph()):
                if not joined:
                    other.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(other):
                    x.add_(1)
            assert not x.any()
