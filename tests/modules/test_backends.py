"""Back ends: the loop's gradients are those of nets alone; a graph only where there can be one."""

import contextlib

import pytest
import torch
import torch.nn.functional as F
from pytorch_lightning.plugins import MixedPrecision

from lightning_app.common.errors import UserError
from lightning_app.modules import backends
from lightning_app.modules.backends import Graph, Loop, Pass, backend_for
from lightning_app.networks import CifarResNet, SimplifiedNet
from tests.helpers import arm, classifier, digits, fit, same_weights, trainer

CPU = torch.device("cpu")
gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="a CUDA graph needs a GPU")


def passes(*nets: torch.nn.Module, device: str = "cpu", batch: int = 6) -> list[Pass]:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(batch, 3, 32, 32, generator=generator).to(device)
    labels = torch.randint(10, (batch,), generator=generator).to(device)
    return [Pass(net.to(device), images, labels, seed) for seed, net in enumerate(nets)]


def nets(count: int = 3) -> list[torch.nn.Module]:
    torch.manual_seed(0)
    return [CifarResNet(8, residual=bool(i % 2)) for i in range(count)]


def gradients(backend, given: list[Pass], weight: float = 1.0):
    for each in given:
        each.net.zero_grad()
    answers = backend(given, weight)
    return answers, [[w.grad.clone() for w in each.net.parameters()] for each in given]


@pytest.mark.parametrize("at_once", [False, True])
def test_the_loop_leaves_each_nets_own_gradient(at_once):
    given = passes(*nets())
    answers, found = gradients(Loop(torch.Tensor.backward, at_once), given, weight=0.5)
    for each, (risk, logits), grads in zip(given, answers, found):
        expected = F.cross_entropy(each.net(each.images), each.labels)
        own = torch.autograd.grad(0.5 * expected, list(each.net.parameters()))
        assert torch.equal(risk, expected.detach()) and logits.shape == (6, 10) and not logits.requires_grad
        assert all(torch.equal(a, b) for a, b in zip(own, grads))


def test_only_one_nets_activations_are_alive_at_a_time():
    alive, most = set(), []

    class Watched(torch.nn.Linear):
        def forward(self, x):
            out = super().forward(x.flatten(1))
            alive.add(id(self))
            out.register_hook(lambda gradient: alive.discard(id(self)))
            most.append(len(alive))
            return out

    three = [Watched(3 * 32 * 32, 10) for _ in range(3)]
    Loop(torch.Tensor.backward)(passes(*three), 1.0)
    assert most == [1, 1, 1]


def test_auto_is_the_loop_on_a_cpu():
    loop = Loop(torch.Tensor.backward)
    assert backend_for("auto", CPU, loop) is loop and backend_for("loop", CPU, loop) is loop


@pytest.mark.parametrize(
    ("device", "at_once", "why"), [("cpu", False, "needs a GPU; here is cpu"), ("cuda", True, "averaged")]
)
def test_a_graph_where_there_can_be_none_is_an_error(device, at_once, why):
    with pytest.raises(UserError, match=why):
        backend_for("graph", torch.device(device), Loop(torch.Tensor.backward, at_once))


def test_the_refusal_comes_before_training():
    with pytest.raises(UserError, match="needs a GPU"):
        fit(classifier(backend="graph"), epochs=1)


def test_auto_takes_what_measured_faster_and_says_so(monkeypatch, capsys):
    """The choice itself, without a GPU: stand-ins of known speed."""
    chosen = _choose(monkeypatch, graph_seconds=0.1, loop_seconds=0.4)
    assert isinstance(chosen._chosen, Graph) and "back end: graph" in capsys.readouterr().out
    chosen = _choose(monkeypatch, graph_seconds=0.5, loop_seconds=0.4)
    assert isinstance(chosen._chosen, Loop) and "back end: loop" in capsys.readouterr().out


def test_auto_leaves_nets_that_go_into_no_graph_to_the_loop(monkeypatch, caplog):
    chosen = _choose(monkeypatch, graph_seconds=UserError("these nets draw numbers"), loop_seconds=0.4)
    assert isinstance(chosen._chosen, Loop) and "draw numbers" in caplog.text


def test_auto_leaves_nets_to_the_loop_whose_gradients_the_graph_does_not_have(monkeypatch, caplog):
    chosen = _choose(monkeypatch, graph_seconds=0.1, loop_seconds=0.4, gradient=1.1)
    assert isinstance(chosen._chosen, Loop) and "gradients differ from its by 0.1 of" in caplog.text


def _choose(monkeypatch, graph_seconds, loop_seconds, gradient=1.0):
    """What auto chose for its first step, which must be the only one that leaves traces."""

    def seconds(backend, passes, weight):
        if isinstance(backend, Graph) and isinstance(graph_seconds, Exception):
            raise graph_seconds
        backend(passes, weight)
        return graph_seconds if isinstance(backend, Graph) else loop_seconds

    loop = Loop(torch.Tensor.backward)
    monkeypatch.setattr(backends, "_seconds", seconds)
    monkeypatch.setattr(Graph, "__call__", lambda self, passes, weight: loop(passes, gradient * weight))
    (ours,), (theirs,) = nets(1), nets(1)
    fastest = backend_for("auto", torch.device("cuda"), loop)
    fastest(passes(ours), 1.0)
    loop(passes(theirs), 1.0)
    assert same_weights(ours, theirs)  # buffers of BatchNorm, too
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(ours.parameters(), theirs.parameters()))
    return fastest


def test_scaled_losses_are_refused_because_the_penalty_would_not_be_scaled():
    with pytest.raises(UserError, match="bf16-mixed"):
        fit(classifier(), epochs=1, plugins=[MixedPrecision("16-mixed", "cpu")])


@pytest.mark.slow
def test_seeds_of_one_architecture_share_one_compiled_graph():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    module = classifier({"residual": arm(True)}, seeds=4, compile=True)
    fit(module, epochs=1, limit_val_batches=0, limit_train_batches=2, data=digits(train_limit=64))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    alone = classifier({"residual": arm(True)}, seeds=[3], compile=True)
    fit(alone, epochs=1, limit_val_batches=0, limit_train_batches=2, data=digits(train_limit=64))
    assert same_weights(module.members[3].net, alone.members[0].net)


class Stand:
    """For a CUDA stream or graph on a CPU: streams do nothing, a replay computes again into the captured tensors."""

    def __init__(self, *args):
        self.again = lambda: None

    def wait_stream(self, other):
        pass

    def replay(self):
        self.again()


@pytest.fixture
def stand_in(monkeypatch):
    """A CUDA graph's bookkeeping without CUDA: inputs copied, captured once a shape, gradients handed over. Counts captures."""
    captures, run = [], backends._Capture._run

    def captured(self):
        if not hasattr(self, "_graph"):  # warming up
            return run(self)
        with backends._untouched(each.net for each in self._passes):  # a capture computes nothing
            found = run(self)
        captures.append(self)

        def again():
            answers, gradients = run(self)
            for old, new in zip((*found[0], *found[1]), (*answers, *gradients)):
                for a, b in zip(old, new):
                    if a is not None:
                        a.copy_(b)

        self._graph.again = again
        return found

    monkeypatch.setattr(backends._Capture, "_run", captured)
    nothing = {"stream": lambda stream: contextlib.nullcontext(), "graph_pool_handle": lambda: (0, 0)}
    nothing |= {"Stream": Stand, "CUDAGraph": Stand, "current_stream": Stand, "get_rng_state": torch.get_rng_state}
    nothing |= {"graph": lambda graph, **options: contextlib.nullcontext()}
    for name, value in nothing.items():
        monkeypatch.setattr(torch.cuda, name, value)
    return captures


def test_a_graph_is_captured_once_a_shape_and_follows_weights_batches_and_buffers(stand_in):
    """All but CUDA itself: the loop's numbers bit by bit over steps, through a smaller batch and back."""
    ours, theirs = nets(), nets()
    graph, loop = Graph(), Loop(torch.Tensor.backward)
    optimizers = [torch.optim.SGD([w for net in many for w in net.parameters()], 0.1) for many in (ours, theirs)]
    for step, batch in enumerate((6, 6, 4, 6)):
        results = []
        for many, backend, optimizer in zip((ours, theirs), (graph, loop), optimizers):
            optimizer.zero_grad()
            given = [Pass(p.net, p.images + step, p.labels, p.seed) for p in passes(*many, batch=batch)]
            results.append([tuple(t.clone() for t in answer) for answer in backend(given, 1.0)])
            optimizer.step()
        for one, other in zip(*results):
            assert all(torch.equal(a, b) for a, b in zip(one, other))
    assert len(stand_in) == 2
    assert all(same_weights(one, other) for one, other in zip(ours, theirs))


def test_members_of_one_seed_keep_sharing_their_batch_in_a_graph(stand_in):
    given = passes(*nets(2))
    Graph()(given, 1.0)
    one, other = stand_in[0]._passes
    assert one.images is other.images is not given[0].images


def test_a_gradient_that_two_parameters_share_is_two_in_a_graph(stand_in):
    """Else what is added to the one in place, as the penalty does, would be added to the other as well."""

    class Twice(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.unused = (torch.nn.Parameter(torch.zeros(10)) for _ in range(3))

        def forward(self, x):
            return x.flatten(1)[:, :10] + self.a + self.b

    net = Twice()
    Graph()(passes(net), 1.0)
    before = net.b.grad.clone()
    net.a.grad.add_(1)
    assert torch.equal(net.b.grad, before) and net.unused.grad is None


def test_a_net_that_fits_no_graph_is_an_error(stand_in, monkeypatch):
    def refuse(self):
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nand so on")

    monkeypatch.setattr(backends._Capture, "_run", refuse)
    with pytest.raises(UserError, match=r"when stream is capturing\): set it to loop"):
        Graph()(passes(*nets(1)), 1.0)


def test_nets_that_draw_are_refused(stand_in):
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Dropout(), torch.nn.Linear(3 * 32 * 32, 10))
    with pytest.raises(UserError, match="draw"):
        Graph()(passes(net), 1.0)


def test_evaluation_asks_for_no_back_end(tmp_path):
    trainer(1).validate(classifier(backend="graph"), datamodule=digits(), verbose=False)


@gpu
@pytest.mark.parametrize("make", [lambda: SimplifiedNet(20, residual=True), lambda: CifarResNet(20, residual=True)])
def test_a_graph_leaves_the_loops_gradients_batch_after_batch(make):
    torch.manual_seed(0)
    many = [make() for _ in range(3)]
    graph, loop = Graph(), Loop(torch.Tensor.backward)
    for batch in (16, 16, 5, 16):  # a shape of its own, and back
        given = passes(*many, device="cuda", batch=batch)
        expected, theirs = gradients(loop, given)
        answers, ours = gradients(graph, given)
        for (risk, logits), (other, others) in zip(answers, expected):
            assert torch.allclose(risk, other, rtol=1e-5) and torch.allclose(logits, others, rtol=1e-3, atol=1e-4)
        for one, other in zip(ours, theirs):
            for a, b in zip(one, other):
                assert (a - b).norm() <= 1e-4 * b.norm() + 1e-8


@gpu
def test_a_bank_in_a_graph_trains_as_in_the_loop():
    trained = [classifier(seeds=2, backend=backend) for backend in ("loop", "graph")]
    for module in trained:
        trainer(1, accelerator="gpu", devices=1).fit(module, datamodule=digits())
    for one, other in zip(*(module.members for module in trained)):
        for a, b in zip(one.net.parameters(), other.net.parameters()):
            assert torch.allclose(a, b, rtol=1e-3, atol=1e-4)
