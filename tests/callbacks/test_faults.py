"""What goes wrong while measuring and logging: training goes on bit for bit as if nothing had."""

import math
import os
import pickle
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pytorch_lightning.loggers import TensorBoardLogger
from pytorch_lightning.loggers.logger import DummyLogger
from torch import nn

import callbacks
from callbacks.context import MeasureContext
from callbacks.log import flatten, is_number
from callbacks.measure import Measure, StatefulMeasure, is_fatal
from lightning_app.common.errors import UserError
from lightning_app.common.isolation import ran_out_of_memory
from lightning_app.measures import recalibrated
from lightning_app.modules import Arm
from lightning_app.networks import CifarResNet
from lightning_app.runs import RunFolder
from lightning_app.runs.loggers import RunLogger, make_best_effort
from tests.forked import Popen
from tests.helpers import CHEAP, ROOT, arm, classifier, context, fit, same_weights, shipped, with_moved_norms

MEASURES = shipped(Measure)
OUT_OF_MEMORY = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
NO_MEMORY_OF_A_CPU = RuntimeError("[enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: can't allocate memory")


def full_net() -> nn.Module:
    return CifarResNet(8, width=4)


def bank(**more):
    return classifier({"plain": arm(False), "full": Arm(net=full_net)}, **more)


def run(folder=None, *watching, module=None, epochs=2, **more):
    loggers = [RunLogger(folder)] if folder else []
    return fit(module or bank(), epochs, callbacks=list(watching), logger=[*loggers, *more.pop("logger", [])], **more)


def logged(folder, name: str) -> dict[tuple[str, int], float]:
    rows = RunFolder(folder).log().query("name == @name")
    return {(row.member, row.epoch): row.value for row in rows.itertuples()}


def breaking(family: type[Measure], error: Exception) -> Measure:
    """Of this family, but on one net after one epoch it raises in the middle of a forward pass of its own."""

    def refuse(*_) -> None:
        raise error

    class Broken(family):
        def measure(self, context):
            if (context.name, context.epoch) != ("full", 1):
                return super().measure(context)
            torch.rand(3)  # what it has drawn by then must not be missed by training
            last = [module for module in context.net.modules() if isinstance(module, nn.Linear)][-1]
            with last.register_forward_pre_hook(refuse):
                super().measure(context)
            raise error  # families that run no net

    Broken.__name__ = family.__name__
    return Broken(every_n_epochs=1, **CHEAP.get(family, {}))


def fingerprint(net: nn.Module) -> list:
    hooks = [(len(m._forward_hooks), len(m._forward_pre_hooks), m.training) for m in net.modules()]
    return [hooks, [(p.requires_grad, p.grad is None) for p in net.parameters()]]


def test_training_goes_on_bit_for_bit_without_measures_that_raised(tmp_path, caplog):
    broken = [breaking(family, KeyError("a foreign net's own")) for family in MEASURES]
    watched, alone = run(tmp_path, *broken, Idle()), run(epochs=2)
    assert same_weights(watched.nets, alone.nets)
    assert [fingerprint(net) for _, net in watched.members] == [fingerprint(net) for _, net in alone.members]
    log, notes = RunFolder(tmp_path).log(), RunFolder(tmp_path).notes()
    for callback in broken:
        assert logged(tmp_path, f"failed/{callback.family}") == {("full", 1): 1.0}
        message = f"{type(callback).__name__} cannot measure 'full' after epoch 1: KeyError: \"a foreign net's own\""
        assert caplog.messages.count(message) == notes.count(message) == 1
        cost = log[log["name"] == f"cost/{callback.family}"]["epoch"].tolist()
        assert cost == [0, 1, 2]  # measured before, on the other net meanwhile, and after
    assert logged(tmp_path, "idle").keys() >= {("full", 1), ("plain", 1)}


class Idle(Measure):
    family = "idle"

    def measure(self, context):
        return {"idle": 0.0}


class Failing(Idle):
    family = "failing"
    error: Exception = RuntimeError("once\nand again")

    def measure(self, context):
        raise self.error


def test_what_fails_again_is_logged_each_time_and_reported_once(tmp_path, caplog):
    run(tmp_path, Failing(), epochs=3)
    assert logged(tmp_path, "failed/failing") == {(name, e): 1.0 for name in ("plain", "full") for e in range(4)}
    messages = [f"Failing cannot measure '{name}' before training: RuntimeError: once" for name in ("plain", "full")]
    assert RunFolder(tmp_path).notes() == messages
    assert [message for message in caplog.messages if "Failing" in message] == messages


@pytest.mark.parametrize(
    ("family", "said"),
    [
        ("idle", "Named and Idle have the same family, 'idle', and would overwrite each other's numbers"),
        ("test/error", "none of train, val, test, .* got 'test/error'"),
        ("lr", "none of train, .* got 'lr'"),
        ("../../outside", "got '../../outside'"),
        (None, "Named.family, with which its keys begin, .* got None"),
    ],
)
def test_a_measure_has_a_family_of_its_own(tmp_path, family, said):
    """Numbers of another one would be replaced, or a file be written anywhere."""

    class Named(Idle):
        pass

    Named.family = family
    with pytest.raises(UserError, match=said):
        run(tmp_path, Named(), Idle())


@pytest.mark.parametrize("result", [None, "much", [1.0, 2.0], np.ones(3)], ids=str)
def test_what_is_neither_a_number_nor_a_tensor_has_failed_and_nothing_stops(tmp_path, result):
    class Odd(Idle):
        family = "odd"

        def measure(self, context):
            return {"odd": result}

    run(tmp_path, Odd(), Idle())
    assert logged(tmp_path, "failed/odd").keys() == {(name, e) for name in ("plain", "full") for e in range(3)}
    assert len(RunFolder(tmp_path).notes()) == 2 and logged(tmp_path, "idle").keys() >= {("full", 2)}


def test_arrays_that_numpy_does_not_have(tmp_path):
    class Arrays(Idle):
        def measure(self, context):
            return {"idle/half": torch.full((2,), 1.5, dtype=torch.bfloat16), "idle/sparse": torch.eye(2).to_sparse()}

    run(tmp_path, Arrays())
    found = RunFolder(tmp_path).arrays(1, "idle")
    assert found["full/idle/half"].tolist() == [1.5, 1.5] and found["full/idle/sparse"].tolist() == [[1, 0], [0, 1]]


def test_the_next_run_of_the_same_objects_has_notes_layers_and_keys_too(tmp_path):
    class Described(Failing):
        def describe(self):
            return {"failing": "nothing"}

    measures = [Described(), callbacks.LayerCushion()]
    for number in range(2):
        run(tmp_path / str(number), *measures)
    first, second = (RunFolder(tmp_path / str(number)) for number in range(2))
    assert first.notes() == second.notes() and len(first.notes()) >= 2
    assert first.layers() == second.layers() and first.layers()
    assert first.described_keys() == second.described_keys() == {"failing": "nothing"}


def test_what_cannot_begin_is_noted_and_stops_only_a_strict_measure(tmp_path):
    class Unready(StatefulMeasure):
        family = "unready"

        def begin(self, context):
            raise KeyError("once")

        def measure(self, context):
            return {"unready": 0.0}

    run(tmp_path, Unready())
    messages = [f"Unready cannot measure '{name}' before training: KeyError: 'once'" for name in ("plain", "full")]
    assert RunFolder(tmp_path).notes() == messages and logged(tmp_path, "unready").keys() >= {("full", 0), ("full", 2)}
    (strict := Unready()).strict = True
    with pytest.raises(KeyError, match="once"):
        run(None, strict)


def test_what_a_measure_leaves_out_is_noted_in_the_run_folder(tmp_path, caplog):
    def circular() -> nn.Module:
        conv = nn.Conv2d(3, 10, 3, padding=1, padding_mode="circular")
        return nn.Sequential(conv, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(10, 10))

    measures = (callbacks.InterlayerCushion(), callbacks.LayerCushion())
    run(tmp_path, *measures, module=classifier({"other": Arm(net=circular)}))
    notes = RunFolder(tmp_path).notes()
    assert notes == [message for message in caplog.messages if "cushion" in message] and len(notes) == 2
    assert notes[0].startswith("no interlayer cushions of") and notes[1].startswith("no cushion of 0: ")


def test_keys_that_cannot_be_described_are_noted_and_stop_only_a_strict_measure(tmp_path):
    class Nameless(Idle):
        def describe(self):
            raise KeyError("idle")

    run(tmp_path, Nameless())
    assert RunFolder(tmp_path).notes() == ["Nameless cannot describe its keys before training: KeyError: 'idle'"]
    assert logged(tmp_path, "idle").keys() >= {("plain", 0), ("plain", 2)}
    strict = Nameless()
    strict.strict = True
    with pytest.raises(KeyError):
        run(None, strict)


def with_layers_scaled(net: nn.Module, factor: float) -> nn.Module:
    for weight in net.parameters():
        weight.data *= factor
    return net


@pytest.mark.parametrize("family", [callbacks.BnLambda, callbacks.DrivingForce])
def test_after_a_failure_the_comparison_is_with_the_last_good_measurement(family):
    """Both keep their numbers in the middle of `measure`: what a failed one kept is not compared with."""

    class FailingLate(family):
        def measure(self, context):
            found = super().measure(context)
            if context.epoch == 1:
                raise ArithmeticError("after it was kept")
            return found

    def last_of(callback: Measure, epochs: list[int]) -> dict[str, float]:
        for epoch in epochs:
            torch.manual_seed(0)
            of_net = context(with_layers_scaled(with_moved_norms(full_net()), (1.0, -2.0, 1.5)[epoch]))
            of_net.epoch = epoch
            try:
                found = callback.evaluate(of_net)
            except ArithmeticError:
                continue
        return {key: value for key, value in flatten(found) if isinstance(value, (int, float))}

    with_failure, without = last_of(FailingLate(), [0, 1, 2]), last_of(family(), [0, 2])
    assert with_failure == without != last_of(family(), [0, 1, 2])


@pytest.mark.parametrize("error", [RuntimeError("no such thing"), ZeroDivisionError(), UserError("not this one")])
def test_strict_stops_at_what_a_measure_raises(error):
    callback = Failing(at_start=False)
    callback.error, callback.strict = error, True
    with pytest.raises(type(error)):
        run(None, callback)


def test_a_users_mistake_stops_before_training_and_not_later(tmp_path):
    callback = Failing()
    callback.error = UserError("give it a loss")
    with pytest.raises(UserError, match="give it a loss"):
        run(None, callback)
    callback.at_start = False
    run(tmp_path, callback)
    assert RunFolder(tmp_path).notes()[0] == "Failing cannot measure 'plain' after epoch 1: give it a loss"


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_an_interruption_is_no_failure_of_the_measure(stop):
    callback = Failing()
    callback.error = stop()
    with pytest.raises(SystemExit):  # Lightning turns the first into the second
        run(None, callback)


def test_a_gpu_that_accepts_no_more_work_stops_the_run():
    callback = Failing()
    callback.error = RuntimeError("CUDA error: an illegal memory access was encountered")
    with pytest.raises(RuntimeError, match="illegal memory access"):
        run(None, callback)
    assert is_fatal(torch.AcceleratorError("CUDA error: unspecified launch failure"))
    assert ran_out_of_memory(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)"))


class Greedy(CifarResNet):
    """A residual net whose forward pass has room for so many samples."""

    def __init__(self) -> None:
        super().__init__(8, width=4)
        with_moved_norms(self)
        self.room = 10**9
        self.most = 0  # samples of a pass

    def forward(self, x):
        if len(x) > self.room:
            raise NO_MEMORY_OF_A_CPU if self.room == 5 else OUT_OF_MEMORY
        self.most = max(self.most, len(x))
        return super().forward(x)


# What pieces may change, relative to the largest of a key's values. Rounding, or another draw of the random vectors.
ROUNDING = 2e-4
ESTIMATED = {
    "noise/bound/log10": 0.5,  # minima over samples of what 4 tangents estimate
    "noise/bound/sum": 0.5,
    "noise/smoothness": 0.9,  # a quantile near the minimum, of one draw of the noise
}


def measured(callback: Measure, net: nn.Module) -> dict[str, float]:
    found = callback.within_memory(context(net))
    return {key: float(value) for key, value in flatten(found) if not hasattr(value, "edges") and _is_number(value)}


def _is_number(value) -> bool:
    return not isinstance(value, torch.Tensor) or value.ndim == 0


def smallest(family: type[Measure]) -> Measure:
    return family(**CHEAP.get(family, {}))


@pytest.fixture(scope="module")
def greedy():
    torch.manual_seed(1)
    return Greedy()


WITHOUT_SAMPLES = (callbacks.WeightMass, callbacks.DistanceFromStart, callbacks.BnLambda)
ALONE = (callbacks.LayerCushion, callbacks.DrivingForce, callbacks.InterlayerCushion)  # one sample at a time will do
HUNGRY = [(family, 5) for family in MEASURES if family not in WITHOUT_SAMPLES]


@pytest.mark.parametrize(("family", "room"), [*HUNGRY, *((family, 1) for family in ALONE)])
def test_out_of_memory_a_measure_takes_fewer_samples_at_a_time(greedy, family, room, capsys):
    """The same numbers, whatever fits, with a line on the console."""
    greedy.room = 10**9
    whole = measured(smallest(family), greedy)
    greedy.room, greedy.most = room, 0
    callback = smallest(family)
    pieces = measured(callback, greedy)
    assert greedy.most <= room and callback._max_batch <= room
    assert f"continuing with {callback._max_batch}." in capsys.readouterr().out
    assert pieces.keys() == whole.keys()
    for key, value in whole.items():
        if key.endswith("gradient_correlation"):  # of other pairs: neighbours within a piece
            assert 0 <= pieces[key] <= 1
            continue
        if key == "hessian/chunk":  # the samples of a product
            assert pieces[key] <= room < value
            continue
        allowed = next((rel for prefix, rel in ESTIMATED.items() if key.startswith(prefix)), ROUNDING)
        assert pieces[key] == pytest.approx(value, rel=allowed, abs=allowed * 1e-2, nan_ok=True), key


def test_estimates_in_pieces_agree_up_to_their_standard_errors(greedy):
    greedy.room = 10**9
    whole = measured(callbacks.InterlayerCushion(samples=20), greedy)
    greedy.room = 2
    pieces = measured(callbacks.InterlayerCushion(samples=20), greedy)
    norms = [key.removesuffix("/frobenius") for key in whole if key.endswith("/frobenius")]
    assert len(norms) == 3
    for block in norms:
        allowed = 5 * math.sqrt(2 / 20) * whole[f"{block}/relative_error"]  # of a mean of 20, five standard errors
        assert pieces[f"{block}/frobenius"] == pytest.approx(whole[f"{block}/frobenius"], rel=allowed)


def test_the_size_that_worked_is_kept(greedy, capsys):
    greedy.room = 5
    callback = callbacks.LayerCushion()
    for _ in range(2):
        measured(callback, greedy)
    assert callback._max_batch == 5 and capsys.readouterr().out.count("ran out of memory") == 1


def test_where_one_sample_does_not_fit_the_measure_has_failed(tmp_path):
    """And where memory is not a matter of samples, nothing is tried again."""
    module = classifier({"greedy": Arm(net=Greedy)})
    tries = []

    class Full(Idle):
        family = "full"

        def measure(self, context):
            tries.append(1)
            raise MemoryError("weights")

    class Starving(callbacks.HessianSpectrum):
        def measure(self, context):
            context.net.room = 0
            try:
                return super().measure(context)
            finally:
                context.net.room = 10**9

    run(tmp_path, starving := Starving(at_start=False), Full(at_start=False), module=module, epochs=1)
    assert logged(tmp_path, "failed/hessian") == logged(tmp_path, "failed/full") == {("greedy", 1): 1.0}
    assert starving._max_batch == 1 and len(tries) == 1
    assert "OutOfMemoryError: CUDA out of memory" in RunFolder(tmp_path).notes()[0]


@pytest.mark.parametrize("at_once", [None, 1])
def test_one_value_of_a_channel_has_no_statistics(at_once):
    net = nn.Sequential(nn.Flatten(), nn.Linear(12, 3), nn.BatchNorm1d(3)).eval()
    with pytest.raises(
        UserError, match=r"get their statistics from samples, but .*use more samples \(data.probe_size\)"
    ):
        recalibrated(net, torch.randn(1, 3, 2, 2), at_once)


@pytest.mark.parametrize("size", [1, 3, 8])
def test_statistics_of_samples_in_pieces_are_those_of_all_of_them(size):
    """Against one pass in training mode, in float64: equal up to rounding, to 1e-12."""
    torch.manual_seed(0)
    images = torch.randn(8, 3, 32, 32, dtype=torch.float64) * 3 + 1
    conv, norm = nn.Conv2d(3, 3, 3), nn.BatchNorm2d(3)
    called_again = nn.Sequential(conv, norm, nn.ReLU(), conv, norm, nn.BatchNorm2d(3))
    perceptron = nn.Sequential(nn.Flatten(), nn.Linear(3072, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    for net in (full_net(), perceptron, called_again):
        net = net.double().eval()
        before = {key: value.clone() for key, value in net.state_dict().items()}
        whole, pieces = recalibrated(net, images).state_dict(), recalibrated(net, images, size).state_dict()
        assert all(torch.equal(net.state_dict()[key], value) for key, value in before.items())
        for key in (key for key in whole if key.endswith(("mean", "var"))):
            assert not torch.equal(whole[key], before[key])
            torch.testing.assert_close(pieces[key], whole[key], rtol=1e-12, atol=1e-12)


class Whitening(nn.Module):
    """A net that may subtract a mean from its input in place."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net, self.in_place = nn.Sequential(nn.Flatten(), nn.Linear(12, 4), nn.ReLU(), nn.Linear(4, 3)), in_place

    def forward(self, x):
        return self.net(x.sub_(0.5) if self.in_place else x - 0.5)


@pytest.mark.parametrize("name", ["LayerCushion", "HessianSpectrum", "NoiseStability"])
def test_a_net_that_changes_its_input_in_place_is_measured_on_the_same_samples_in_each_pass(name):
    images, labels = torch.randn(6, 3, 2, 2), torch.tensor([0, 1, 2, 0, 1, 2])
    before, found = images.clone(), []
    for in_place in (False, True):
        results = getattr(callbacks, name)().evaluate(MeasureContext(Whitening(in_place).eval(), [(images, labels)]))
        found.append({key: float(value) for key, value in flatten(results) if is_number(value)})
    assert found[1] == pytest.approx(found[0], rel=1e-6, nan_ok=True)
    assert torch.equal(images, before)


def test_before_training_pieces_recalibrate_normalisation():
    fresh = full_net().eval()
    whole, pieces = context(fresh), context(fresh)
    pieces.max_batch = 3
    with torch.no_grad():
        for one, other in zip(pieces.recalibrated().buffers(), whole.recalibrated().buffers()):
            if one.is_floating_point():
                torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


CALLS = ("log_metrics", "log_hyperparams", "save", "finalize")


def refusing(what: str, error: Callable[[], Exception] = lambda: ConnectionError("no route\nto host")) -> DummyLogger:
    """As a tracker whose server is gone: it raises in one of its methods, and lists what was called."""

    def method(name: str) -> Callable[..., None]:
        def call(self, *args, **kwargs):
            self.calls.append(name)
            if name == what:
                raise error()

        return call

    return type("Refusing", (DummyLogger,), {"calls": [], **{name: method(name) for name in CALLS}})()


def test_a_logger_that_raises_is_left_out_with_one_warning_and_no_other(tmp_path, caplog):
    module = bank()
    module.training_step = logging_too(module.training_step, module)
    bad, good = [refusing(what) for what in CALLS], refusing("nothing")
    for logger in bad:
        make_best_effort(logger)
    for logger in (*bad, good):
        logger.log_hyperparams({})
    watching = (callbacks.TrainingMetrics(), callbacks.WeightMass())
    run(tmp_path, *watching, module=module, logger=[*bad, good], log_every_n_steps=1)
    assert all(logger.calls == good.calls for logger in bad)
    messages = [message for message in caplog.messages if message.startswith("Refusing failed")]
    assert len(messages) == len(bad) and all("(ConnectionError: no route):" in message for message in messages)
    assert logged(tmp_path, "weight_mass/all").keys() >= {("full", 0), ("full", 2)}
    assert logged(tmp_path, "seen")


def logging_too(step, module):
    def training_step(*args, **kwargs):
        module.log("seen", 1.0)
        return step(*args, **kwargs)

    return training_step


def test_results_are_logged_past_a_logger_that_raises(tmp_path, caplog):
    """Unless strict: then the first callback that logs stops."""
    run(tmp_path, callbacks.WeightMass(), logger=[refusing("log_metrics")])
    assert logged(tmp_path, "weight_mass/all")
    assert [message for message in caplog.messages if "Refusing" in message]
    strict = callbacks.WeightMass()
    strict.strict = True
    with pytest.raises(ConnectionError):
        run(tmp_path / "strict", strict, logger=[refusing("log_metrics")])


def test_a_tensorboard_that_cannot_write_is_left_out(tmp_path, caplog, monkeypatch):
    logger = TensorBoardLogger(tmp_path / "tb")
    monkeypatch.setattr(logger.experiment, "add_histogram_raw", refuse)
    make_best_effort(logger)
    run(tmp_path / "run", callbacks.LayerCushion(), logger=[logger])
    assert "TensorBoardLogger failed (OSError: No space left on device)" in caplog.text
    assert logged(tmp_path / "run", "cushion/layer02/median").keys() >= {("full", 0), ("full", 2)}


def refuse(*args, **kwargs):
    raise OSError("No space left on device")


def test_a_guarded_logger_can_be_sent_to_a_spawned_process(tmp_path):
    make_best_effort(logger := TensorBoardLogger(tmp_path))
    copy = pickle.loads(pickle.dumps(logger))
    copy.log_metrics = None  # its own, not the other's
    assert callable(logger.log_metrics) and logger.save.args[0] is logger and copy.save.args[0] is copy


def test_a_user_error_of_a_logger_is_raised():
    logger = refusing("log_metrics", lambda: UserError("log in"))
    make_best_effort(logger)
    with pytest.raises(UserError, match="log in"):
        logger.log_metrics({})


@pytest.mark.parametrize("family", MEASURES)
@settings(max_examples=12, derandomize=True)
@given(
    full=st.booleans(),
    where=st.sampled_from(["first", "last", "norms", "all"]),
    value=st.sampled_from([math.nan, math.inf, 0.0, 1e30]),
)
def test_nets_that_are_no_good_yield_numbers_or_an_error_message(family, full, where, value):
    """NaN is a number; what is raised is a message for the user, and not an accident inside a library."""
    torch.manual_seed(0)
    net = with_moved_norms(full_net()) if full else arm(False).net()
    tensors = [tensor for tensor in net.state_dict().values() if tensor.is_floating_point()]
    norms = [buffer for buffer in net.buffers() if buffer.is_floating_point()]
    for tensor in {"first": tensors[:1], "last": tensors[-1:], "norms": norms, "all": tensors}[where]:
        tensor.fill_(value)
    try:
        assert isinstance(smallest(family).evaluate(context(net, probe_size=6)), dict)
    except UserError as error:
        assert str(error)


SCARCE = """
import resource
import torch
import callbacks
from tests.helpers import context

class Wide(torch.nn.Module):  # 16 MB a sample, for a moment
    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(3072, 64), torch.nn.Linear(64, 10)

    def forward(self, x):
        wide = self.first(x.flatten(1)).repeat(1, 62500)
        return self.last(wide.view(len(x), 62500, 64).mean(1))

torch.set_num_threads(1)
wide = context(Wide(), probe_size=20, eval_batch_size=20)
whole = callbacks.LayerCushion().within_memory(wide)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 200 * 2**20, resource.RLIM_INFINITY))
callback = callbacks.LayerCushion()
pieces = callback.within_memory(wide)
assert callback._max_batch in (2, 5, 10), callback._max_batch
one, other = (found["cushion/layer01"].samples for found in (whole, pieces))
torch.testing.assert_close(one, other)
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits and /proc as Linux has them")
def test_memory_that_really_runs_out():
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with Popen([sys.executable, "-c", SCARCE], env=environment, **streams) as process:
        said, wrong = process.communicate(timeout=300)
    assert process.returncode == 0, wrong
    assert "LayerCushion ran out of memory on 'net' with 20 samples at a time: continuing with" in said
