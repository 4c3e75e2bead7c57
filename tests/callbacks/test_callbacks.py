"""One battery for all callbacks: they leave no trace, keep their schedule, and say what they cost."""

import contextlib
import copy
import gc
import pickle
import weakref
from types import SimpleNamespace

import pytest
import torch
from pytorch_lightning.strategies import FSDPStrategy, ModelParallelStrategy

import callbacks
from callbacks.clock import EpochCallback
from callbacks.measure import Measure, isolated
from callbacks.notebook import measure
from lightning_app.common.errors import UserError
from lightning_app.common.isolation import evaluating
from lightning_app.measures import normalisations_of, path_gradients
from lightning_app.modules import Arm
from lightning_app.runs import RunFolder
from lightning_app.runs.loggers import RunLogger
from tests.helpers import CHEAP, arm, classifier, context, fit, same_weights, shipped

ALL = shipped()
MEASURES = shipped(Measure)


def normalised_net() -> torch.nn.Module:
    """BatchNorm and dropout: what a careless measure disturbs."""
    conv = torch.nn.Conv2d(3, 4, 3, stride=4)
    head = (torch.nn.ReLU(), torch.nn.Dropout(), torch.nn.Flatten(), torch.nn.Linear(4 * 64, 10))
    return torch.nn.Sequential(conv, torch.nn.BatchNorm2d(4), *head)


def bank(**more):
    return classifier({"plain": arm(False), "residual": arm(True), "normalised": Arm(net=normalised_net)}, **more)


def test_measures_of_one_call_do_not_hold_each_other():
    """One that keeps weights is freed with its last name, and one beside a function without a name can be pickled."""
    net, data = torch.nn.Linear(4, 2), (torch.ones(3, 4), [0, 1, 0])
    mass, kept = callbacks.WeightMass(), callbacks.DistanceFromStart()
    measure(net, *data, [mass, kept, callbacks.Scalar("one", lambda context: 1.0)])
    gone = weakref.ref(kept)
    gc.disable()
    try:
        del kept
        assert gone() is None
    finally:
        gc.enable()
    pickle.loads(pickle.dumps(mass))


@pytest.mark.parametrize("kind", [FSDPStrategy, ModelParallelStrategy])
def test_nets_in_parts_are_refused(kind):
    """The one process that measures would wait for the others, or get what they send for a step."""
    trainer = SimpleNamespace(strategy=kind(), callbacks=[])
    with pytest.raises(UserError, match=f"WeightMass needs whole nets in a process, but {kind.__name__} splits"):
        callbacks.WeightMass().setup(trainer, torch.nn.Identity(), "fit")


def test_training_with_all_callbacks_is_bit_identical_to_training_with_none(tmp_path):
    logger = RunLogger(tmp_path / "run")
    options = {"callbacks": [callback() for callback in ALL], "logger": [logger]}
    watched = fit(bank(), epochs=2, num_sanity_val_steps=-1, enable_progress_bar=True, **options)
    alone = fit(bank(), epochs=2)
    assert same_weights(watched.nets, alone.nets)  # weights and BatchNorm's buffers
    assert set(logger.folder.log()["epoch"]) == {0, 1, 2}


def test_measures_keep_their_schedule_and_always_see_the_final_epoch(tmp_path):
    watching = [callback(every_n_epochs=2, at_start=False, **CHEAP.get(callback, {})) for callback in MEASURES]
    fit(classifier({"residual": arm(True)}), epochs=5, callbacks=watching, logger=[RunLogger(tmp_path)])
    log = RunFolder(tmp_path).log()
    for callback in watching:
        cost = log[log["name"] == f"cost/{callback.family}"]
        assert cost["epoch"].tolist() == [2, 4, 5]
        assert (cost["value"] > 0).all()
    assert set(log["epoch"]) == {2, 4, 5}


@pytest.mark.parametrize("callback", MEASURES)
def test_a_measure_gives_the_same_numbers_when_asked_again(callback):
    for net in (arm(True).net(), normalised_net()):
        one, other = (callback().evaluate(context(net)) for _ in range(2))
        assert repr(one) == repr(other)


@pytest.mark.parametrize("error", [None, RuntimeError])
def test_isolation_restores_modes_gradients_and_random_state_also_after_an_error(error):
    net = normalised_net()
    net[1].eval()
    net[0].weight.grad = gradient = torch.ones_like(net[0].weight)
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    with contextlib.suppress(RuntimeError), isolated(net):
        assert not any(module.training for module in net.modules())
        assert not torch.is_grad_enabled()
        with torch.enable_grad():
            net(torch.rand(2, 3, 32, 32)).sum().backward()
        if error:
            raise error
    assert [module.training for module in net] == [True, False, True, True, True, True]
    assert net[0].weight.grad is gradient and bool((gradient == 1).all()) and net[5].weight.grad is None
    assert torch.equal(torch.rand(2), expected) and torch.is_grad_enabled()


def test_an_epoch_without_evaluation_does_not_repeat_the_last_ones_numbers(tmp_path):
    options = {"callbacks": [callbacks.TrainingMetrics()], "logger": [RunLogger(tmp_path)]}
    fit(bank(), epochs=3, check_val_every_n_epoch=2, **options)
    log = RunFolder(tmp_path).log().query("member == 'plain'")
    assert set(log[log["name"] == "test/error"]["epoch"]) == {2}
    assert set(log[log["name"] == "train/risk_running"]["epoch"]) == {1, 2, 3}
    assert set(log[log["name"] == "train/cost"]["epoch"]) == {2}


@pytest.mark.parametrize(
    ("callback", "arguments", "message"),
    [
        *((callback, {"every_n_epochs": 0}, "at least 1, got 0") for callback in shipped(EpochCallback)),
        (callbacks.TwinDivergence, {"every_n_steps": 0}, "every_n_steps of TwinDivergence must be at least 1, got 0"),
        (callbacks.BnLambda, {"norm": "max"}, "one of frobenius, rms, filter, got 'max'"),
        (callbacks.DrivingForce, {"samples": 0}, "samples of DrivingForce must be at least 1, got 0"),
        (callbacks.EffectiveDepth, {"samples": 0}, "at least 1, got 0"),
        (callbacks.HessianSpectrum, {"k": 0}, "k of HessianSpectrum must be at least 1, got 0"),
        (callbacks.HessianSpectrum, {"steps": 0}, "steps of HessianSpectrum must be at least 3, got 0"),
        (callbacks.HessianSpectrum, {"probe_steps": 0}, "probe_steps of HessianSpectrum must be at least 3, got 0"),
        (callbacks.HessianSpectrum, {"samples": 0}, "samples of HessianSpectrum must be at least 1"),
        (callbacks.InterlayerCushion, {"samples": 0}, "samples of InterlayerCushion must be at least 1"),
        (callbacks.LossSurface, {"rays": 0}, "rays of LossSurface must be at least 1, got 0"),
        (callbacks.LossSurface, {"radii": [0.2, 0.1]}, r"ascending numbers above 0, got \[0.2, 0.1\]"),
        (callbacks.LossSurface, {"radii": [1, float("inf")]}, r"ascending numbers above 0, got \[1, inf\]"),
        (callbacks.LossSurface, {"radii": [0, 1]}, r"ascending numbers above 0, got \[0, 1\]"),
        (callbacks.NoiseStability, {"samples": 0}, "samples of NoiseStability must be at least 1, got 0"),
        (callbacks.NoiseStability, {"draws": 0}, "draws of NoiseStability must be at least 1, got 0"),
        (callbacks.NoiseStability, {"tangents": 1}, "tangents of NoiseStability must be at least 2, got 1"),
        (callbacks.NoiseStability, {"strengths": [0.1, -1]}, r"one or more numbers of at least 0, got \[0.1, -1\]"),
        (callbacks.NoiseStability, {"strengths": []}, r"one or more numbers of at least 0, got \[\]"),
    ],
)
def test_wrong_arguments_are_refused_with_what_is_expected(callback, arguments, message):
    with pytest.raises(UserError, match=message):
        callback(**arguments)


class Adapted(torch.nn.Linear):
    """A LoRA layer as in loralib: what it has learnt is added to its weight in evaluation mode, and taken off for training."""

    def __init__(self):
        super().__init__(6, 6)
        self.weight.requires_grad_(False)
        self.down, self.up = (torch.nn.Parameter(torch.randn(shape)) for shape in ((2, 6), (6, 2)))
        self.merged = False

    def train(self, mode=True):
        super().train(mode)
        if mode == self.merged:
            self.weight.data += (-1 if mode else 1) * self.up @ self.down
            self.merged = not mode
        return self

    def forward(self, x):
        return super().forward(x) + (0 if self.merged else x @ self.down.T @ self.up.T)


@pytest.mark.parametrize(
    "look", [lambda net: isolated(net), lambda net: evaluating(net)], ids=["isolated", "evaluating"]
)
def test_layers_that_merge_weights_in_evaluation_mode_train_on_as_if_nobody_had_looked(look):
    torch.manual_seed(0)
    x, net = torch.randn(8, 6), torch.nn.Sequential(Adapted(), torch.nn.BatchNorm1d(6), torch.nn.ReLU(), Adapted())
    alone, first = copy.deepcopy(net), net[0].down.detach().clone()
    for each in (alone, net):
        optimizer = torch.optim.SGD(each.parameters(), lr=0.1)
        for _ in range(3):
            if each is net:
                with look(net):
                    assert all(layer.merged for layer in (net[0], net[3])) and not net[0].training
                normalisations_of(net, x[:2])
            optimizer.zero_grad()
            each(x).square().mean().backward()
            optimizer.step()
    assert not net[0].merged and net[0].training
    assert same_weights(net, alone) and not torch.equal(net[0].down, first)


@pytest.mark.parametrize("trained", [True, False])
def test_weights_that_are_merged_have_no_gradient_and_that_is_said(trained):
    """Also before training, when what is added is 0."""
    torch.manual_seed(0)
    net, x, y = torch.nn.Sequential(Adapted(), torch.nn.Linear(6, 3)), torch.randn(8, 6), torch.arange(8) % 3
    if not trained:
        torch.nn.init.zeros_(net[0].up)
    of_net = callbacks.MeasureContext(net, [(x, y)])
    for asked in (
        lambda: callbacks.HessianSpectrum().evaluate(of_net),
        of_net.gradient,
        lambda: path_gradients(net.eval(), x, y),
    ):
        with pytest.raises(
            UserError, match=r"'0\.down' has no gradient in evaluation mode, in which Adapted adds it to"
        ):
            asked()
    assert callbacks.LayerCushion().evaluate(of_net)["cushion/layer01"].median > 0
    net.train()[0].train = lambda mode=True: net[0]  # as with merge_weights=False
    assert of_net.gradient()["0.up"].norm() > 0


class Squeezing(torch.nn.Linear):
    """Has a ``train`` of its own, which changes no weight, and cannot take one sample alone."""

    def __init__(self, dtype):
        super().__init__(6, 3, dtype=dtype)
        self.unused = torch.nn.Parameter(torch.tensor(torch.nan))

    def train(self, mode=True):
        return super().train(mode)

    def forward(self, x):
        return super().forward(x.to(self.weight.dtype)).squeeze()[:, :3]


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_nets_with_a_train_of_their_own_that_merges_nothing_have_a_gradient(dtype):
    x = torch.randn(8, 6)
    of_net = callbacks.MeasureContext(Squeezing(dtype), [(x, x[:, :3])], lambda a, b: (a - b).abs().square().mean())
    assert of_net.gradient()["weight"].norm() > 0


def test_isolation_of_modules_that_switch_modes_themselves_with_what_cannot_be_kept():
    class Switching(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.frozen, self.rest = torch.nn.BatchNorm1d(2), torch.nn.LazyLinear(2)
            self.register_buffer("graph", torch.eye(2).to_sparse())

        def train(self, mode):
            super().train(mode)
            self.frozen.eval()
            return self

    net = Switching()
    net.train(True)
    with isolated(net):
        assert not any(module.training for module in net.modules())
    assert [module.training for module in (net, net.frozen, net.rest)] == [True, False, True]


def test_isolation_puts_back_the_rows_that_an_embedding_shortens():
    net = torch.nn.Embedding(4, 3, max_norm=0.1)
    before = net.weight.detach().clone()
    with isolated(net):
        assert not torch.equal(net(torch.arange(4)), before)
    assert torch.equal(net.weight, before)


class Writing(torch.nn.Module):
    """Its passes write in any mode: into buffers, by assignment, of another size and type, new ones, and counters beside them."""

    def __init__(self):
        super().__init__()
        self.linear, self.calls, self.made = torch.nn.Linear(3, 3), 0, None
        for name, value in {"queue": torch.zeros(4, 3), "count": torch.tensor(0), "grown": torch.ones(0)}.items():
            self.register_buffer(name, value)
        self.register_buffer("typed", torch.ones(2))
        self.register_buffer("gone", torch.ones(2))
        self.register_buffer("graph", torch.eye(2).to_sparse())
        self.register_buffer("places", torch.zeros(1).expand(5))  # nobody can write into it

    def forward(self, x):
        self.queue[self.calls % 4] = x[0].detach()
        self.count = self.count + 1
        self.calls += 1
        self.grown.resize_(self.calls).fill_(7)
        self.typed.data = torch.zeros(3, dtype=torch.half)
        self._buffers.pop("gone", None)
        self.graph.mul_(2)
        self.register_buffer(f"cache{self.calls}", torch.ones(self.calls))
        self.last = self.made = x
        return self.linear(x) + self.places.sum()


def contents(net: torch.nn.Module) -> dict:
    return {name: (id(each), each.dtype, each.shape, each.to_dense().tolist()) for name, each in net.named_buffers()}


@pytest.mark.parametrize("error", [None, RuntimeError])
@pytest.mark.parametrize("look", [isolated, evaluating])
def test_what_a_pass_writes_is_put_back_in_place(look, error):
    net, x = Writing(), torch.rand(2, 3)
    queue, row = net.queue, net.queue[0]
    before, attributes = contents(net), dict(vars(net))
    with contextlib.suppress(RuntimeError), look(net):
        net(x)
        with evaluating(net):
            net(x)
            assert net.calls == 2 and net.count == 2 and len(net.grown) == 2
        assert net.calls == 1 and net.count == 1 and len(net.grown) == 1 and "cache2" not in dict(net.named_buffers())
        if error:
            raise error
    assert contents(net) == before and vars(net) == attributes
    assert net.queue is queue and not row.any()
    net(x)
    assert row.tolist() == x[0].tolist()  # it is still a view of it


def test_what_a_net_makes_in_its_first_pass_it_keeps():
    class Making(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.lazy, self.norm, self.head = torch.nn.LazyLinear(4), torch.nn.LazyBatchNorm1d(), None

        def forward(self, x):
            x = self.norm(self.lazy(x))
            self.head = self.head or torch.nn.Linear(4, 2)
            return self.head(x)

    net = Making()
    with evaluating(net):
        net(torch.rand(2, 3))
    made = list(net.parameters())
    assert net.lazy.in_features == 3 and net.norm.num_features == 4 and net.training and net.norm.training
    net(torch.rand(2, 3)).sum().backward()
    assert all(one is other and one.grad is not None for one, other in zip(net.parameters(), made, strict=True))


def test_a_measurement_between_a_pass_and_its_gradients_changes_none():
    net, x = (
        torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2)),
        torch.rand(4, 3),
    )
    loss = net(x).square().sum()
    with isolated(net):
        net(x)
    loss.backward()
    assert all(weight.grad is not None for weight in net.parameters())


@pytest.mark.parametrize("within", [contextlib.nullcontext, torch.inference_mode])
@pytest.mark.parametrize("made_in", [contextlib.nullcontext, torch.inference_mode])
def test_buffers_of_inference_mode_are_put_back_within_it_and_outside(made_in, within):
    with made_in():
        net = torch.nn.Sequential(Writing())
    before = contents(net)
    with within(), evaluating(net), torch.inference_mode():
        net(torch.rand(2, 3))
    assert contents(net) == before
    assert net[0].queue.is_inference() == (made_in is torch.inference_mode)


def test_a_scripted_net_s_buffers_are_put_back():
    class Counting(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(1))

        def forward(self, x):
            self.count += 1
            return x * self.count

    net = torch.jit.script(torch.nn.Sequential(Counting(), torch.nn.Linear(3, 2)))
    with evaluating(net):
        net(torch.rand(2, 3))
        assert net[0].count == 1
    assert net[0].count == 0 and net.training and net[0].training
