"""Back ends: the loop's gradients are those of nets alone; a graph only where there can be one. Graphs are in tests/gpu."""

import pytest
import torch
import torch.nn.functional as F
from pytorch_lightning.plugins import MixedPrecision

from lightning_app.common.errors import UserError
from lightning_app.modules.backends import Pass, one_by_one, possible
from lightning_app.networks import CifarResNet
from tests.helpers import arm, classifier, digits, fit, same_weights


def passes(*nets: torch.nn.Module, batch: int = 6, weight: float = 1.0) -> list[Pass]:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(batch, 3, 32, 32, generator=generator)
    labels = torch.randint(10, (batch,), generator=generator)
    return [Pass(net, images, labels, seed, weight=weight) for seed, net in enumerate(nets)]


def nets(count: int = 3) -> list[torch.nn.Module]:
    torch.manual_seed(0)
    return [CifarResNet(8, residual=bool(i % 2)) for i in range(count)]


def gradients(given: list[Pass], at_once: bool):
    for each in given:
        each.net.zero_grad()
    answers = one_by_one(given, torch.Tensor.backward, at_once)
    return answers, [[w.grad.clone() for w in each.net.parameters()] for each in given]


@pytest.mark.parametrize("at_once", [False, True])
def test_the_loop_leaves_each_nets_own_gradient(at_once):
    given = passes(*nets(), weight=0.5)
    answers, found = gradients(given, at_once)
    for each, (risk, logits), grads in zip(given, answers, found):
        expected = F.cross_entropy(each.net(each.images), each.labels)
        own = torch.autograd.grad(0.5 * expected, list(each.net.parameters()))
        assert torch.equal(risk, expected.detach()) and logits.shape == (6, 10) and not logits.requires_grad
        assert all(torch.equal(a, b) for a, b in zip(own, grads))


def test_another_kind_of_output_in_training_is_a_message():
    """As GoogLeNet's, with the outputs of its auxiliary heads."""

    class Auxiliary(torch.nn.Linear):
        def forward(self, x):
            out = super().forward(x.flatten(1))
            return (out, out) if self.training else out

    with pytest.raises(UserError, match="Auxiliary returns a tuple of 2 in training mode and a tensor in evaluation"):
        fit(classifier(net=lambda: Auxiliary(3 * 32 * 32, 10)))


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
    one_by_one(passes(*three), torch.Tensor.backward)
    assert most == [1, 1, 1]


@pytest.mark.parametrize(
    ("device", "processes", "why"),
    [("cpu", 1, "needs a CUDA GPU, got cpu"), ("cuda", 2, "needs one process, got 2")],
)
def test_a_graph_where_there_can_be_none_is_an_error_and_auto_the_loop(device, processes, why):
    assert not possible("auto", torch.device(device), processes) and not possible("loop", torch.device("cuda"), 1)
    with pytest.raises(UserError, match=why):
        possible("graph", torch.device(device), processes)
    assert possible("graph", torch.device("cuda"), 1) and possible("auto", torch.device("cuda"), 1)


def test_the_refusal_comes_before_training():
    with pytest.raises(UserError, match="needs a CUDA GPU, got cpu"):
        fit(classifier(backend="graph"), epochs=1)


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
