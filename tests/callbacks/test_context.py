"""What a measure is given, without a trainer: its samples in order and within memory, its gradient, what it keeps."""

import copy

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from callbacks import (
    BnLambda,
    InterlayerCushion,
    LayerCushion,
    Measure,
    MeasureContext,
    NoiseStability,
    Signal,
    StatefulMeasure,
)
from lightning_app.common.errors import UserError
from lightning_app.measures.core.losses import counted
from tests.helpers import arm, context

BATCHES = st.lists(st.tuples(st.integers(1, 9), st.sampled_from([3, 4])), min_size=1, max_size=6)


def probe(sizes) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Batches of so many samples of so many numbers each, every sample with its own label."""
    batches, start = [], 0
    for count, width in sizes:
        labels = torch.arange(start, start + count)
        batches.append((labels[:, None].double().expand(count, width), labels))
        start += count
    return batches


@settings(max_examples=60)
@given(sizes=BATCHES, count=st.integers(1, 40), limit=st.none() | st.integers(1, 5))
def test_samples_are_spread_evenly_in_order_and_no_more_at_a_time_than_memory_allows(sizes, count, limit):
    of_net = MeasureContext(nn.Linear(3, 2), probe(sizes))
    of_net.max_batch = limit
    total = sum(size for size, _ in sizes)
    few = min(count, total)
    assert torch.cat([labels for _, labels in of_net.batches()]).tolist() == list(range(total))
    samples = of_net.samples(count)
    assert torch.cat([labels for _, labels in samples]).tolist() == [number * total // few for number in range(few)]
    for inputs, labels in (*of_net.batches(), *samples):
        assert len(labels) <= min(limit or 9, max(size for size, _ in sizes))
        assert inputs.dtype == torch.float32 and inputs[:, 0].tolist() == labels.tolist()
    assert of_net.largest == max(len(labels) for _, labels in of_net.batches())


def test_normalisations_get_the_statistics_of_sequences_of_one_length():
    """Those of the largest batch, where lengths differ."""
    net = nn.Sequential(nn.BatchNorm1d(1, momentum=1.0))
    short, long = torch.arange(4.0).view(2, 1, 2), torch.arange(9.0).view(3, 1, 3)
    batches = [(short, torch.zeros(2, dtype=torch.long)), (long, torch.zeros(3, dtype=torch.long))]
    found = MeasureContext(net, batches).recalibrated()[0]
    assert found.running_mean.item() == pytest.approx(4.0) and found.running_var.item() == pytest.approx(7.5)


def test_few_samples_of_each_batch_are_joined_where_their_shapes_allow():
    """As large as the probe's batches of 7, 7 and 6, which hold 4, 3 and 3 of ten samples; texts may be padded apart."""
    of_net = MeasureContext(nn.Linear(3, 2), probe([(7, 3), (7, 3), (6, 3)]))
    sizes = {count: [len(labels) for _, labels in of_net.samples(count)] for count in (1, 3, 10, 20, 50)}
    assert sizes == {1: [1], 3: [3], 10: [7, 3], 20: [7, 7, 6], 50: [7, 7, 6]}
    padded = MeasureContext(nn.Linear(3, 2), probe([(2, 3), (1, 3), (2, 4), (3, 4)]))
    assert [tuple(inputs.shape) for inputs, _ in padded.samples(8)] == [(3, 3), (2, 4), (3, 4)]


def test_no_graph_is_kept_once_memory_ran_out():
    of_net = MeasureContext(nn.Linear(3, 2), probe([(2, 3)]))
    assert of_net.graph_memory > 0
    of_net.max_batch = 1
    assert of_net.graph_memory == 0


def test_a_net_without_parameters_and_a_probe_without_samples_are_refused():
    with pytest.raises(UserError, match="nothing to measure in a ReLU without parameters"):
        MeasureContext(nn.ReLU(), probe([(1, 3)])).samples(1)
    empty = torch.empty(0, 4), torch.empty(0, dtype=torch.long)
    filled = torch.randn(2, 4), torch.tensor([0, 1])
    assert len([*MeasureContext(nn.Linear(4, 2), [empty, filled]).batches()]) == 1
    with pytest.raises(UserError, match="there are no samples to measure 'net' on"):
        MeasureContext(nn.Linear(1, 1)).gradient()


@pytest.mark.parametrize("limit", [None, 3])
def test_the_gradient_is_that_of_the_mean_loss_of_all_samples(limit):
    net, of_net = (made := arm(True).net().eval()), context(made, eval_batch_size=7)
    of_net.max_batch = limit
    with torch.no_grad():
        found = of_net.gradient()
    images, labels = map(torch.cat, zip(*of_net.batches()))
    F.cross_entropy(net(images), labels).backward()
    assert found.keys() == dict(net.named_parameters()).keys()
    for name, weight in net.named_parameters():
        torch.testing.assert_close(found[name], weight.grad, rtol=1e-4, atol=1e-6)


def test_a_net_of_which_nothing_is_trained_has_an_empty_gradient():
    assert context(arm(True).net().requires_grad_(False)).gradient() == {}


class Change(StatefulMeasure):
    family = "change"

    def measure(self, context):
        before = context.kept("bias", 0.0)
        context.keep("bias", float(context.net.bias))
        if context.epoch == 2:
            raise ArithmeticError("after it was kept")
        return {"change": float(context.net.bias) - before}


def test_what_is_kept_is_of_the_last_measurement_that_worked_and_of_its_net():
    measure, found = Change(), []
    for epoch, bias in enumerate([1.0, 4.0, 6.0, 10.0]):
        of_nets = [MeasureContext(nn.Linear(1, 1), name=name, epoch=epoch) for name in ("a", "b")]
        for of_net, sign in zip(of_nets, (1, -1)):
            nn.init.constant_(of_net.net.bias, sign * bias)
            try:
                found.append(measure.evaluate(of_net)["change"])
            except ArithmeticError:
                found.append(None)
    assert found == [1, -1, 3, -3, None, None, 6, -6]
    assert measure.state_dict() == {"bias": {"a": 10.0, "b": -10.0}}


def test_a_measure_without_state_that_keeps_something_is_refused():
    class Forgetful(Measure):
        family = "forgetful"
        measure = Change.measure

    with pytest.raises(TypeError, match="only a StatefulMeasure can keep"):
        Forgetful().evaluate(MeasureContext(nn.Linear(1, 1)))


def test_a_context_by_hand_leaves_a_net_in_training_mode_as_it_was():
    net = nn.Sequential(nn.Conv1d(1, 4, 3), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Flatten(), nn.Linear(4, 2))
    before, state = {name: value.clone() for name, value in net.state_dict().items()}, torch.get_rng_state()
    by_hand = MeasureContext(
        net, [(torch.randn(5, 1, 3, generator=torch.Generator().manual_seed(0)), torch.arange(5) % 2)]
    )
    gradient = by_hand.gradient()
    assert by_hand.samples(3) and all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert net.training and torch.equal(torch.get_rng_state(), state)
    again = by_hand.gradient()
    assert all(torch.equal(gradient[name], again[name]) for name in gradient)


def test_complex_labels_are_numbers_as_real_ones():
    """Of Fourier coefficients, say: none is a class, to which a whole number is converted."""
    torch.manual_seed(0)
    net, x, labels = nn.Linear(4, 4), torch.randn(6, 4), torch.randn(6, 4, dtype=torch.complex64)

    def loss(outputs, labels):
        return (outputs - labels).abs().square().mean()

    of_net = MeasureContext(net, [(x, labels)], loss)
    found = LayerCushion().evaluate(of_net)
    assert found["probe/risk"] == pytest.approx(loss(net(x), labels).item(), rel=1e-6)
    assert "probe/error" not in found and counted(labels, loss) == 6
    with pytest.raises(UserError, match=r"needs class numbers as labels, got torch.complex64"):
        LayerCushion().evaluate(MeasureContext(net, [(x, labels)]))


class Float32Norm(nn.LayerNorm):
    """As nets in half precision have them: in float32, between layers that are not."""

    def forward(self, x):
        return super().forward(x.float()).to(x.dtype)


def test_a_net_whose_first_weight_is_in_float32_and_others_are_not_takes_samples_in_half_precision():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.linear = Float32Norm(4), nn.Linear(4, 4).bfloat16()

        def forward(self, x):
            return x + self.linear(self.norm(x)).relu()

    torch.manual_seed(0)
    net = nn.Sequential(Float32Norm(4), nn.Sequential(Block(), Block()), nn.Linear(4, 3).bfloat16())
    of_net = MeasureContext(net, [(torch.randn(6, 4).bfloat16(), torch.arange(6) % 3)])
    assert {inputs.dtype for inputs, _ in of_net.batches()} == {torch.bfloat16}
    for one in (LayerCushion(), InterlayerCushion(), NoiseStability(samples=4), BnLambda(), Signal()):
        assert one.evaluate(of_net)
    samples = [(inputs.float(), labels) for inputs, labels in of_net.batches()]
    in_float32 = LayerCushion().evaluate(MeasureContext(copy.deepcopy(net).float(), samples))
    found = LayerCushion().evaluate(of_net)
    cushions = [key for key in found if key.startswith("cushion/")]
    assert len(cushions) == 3
    assert all(found[key].median == pytest.approx(in_float32[key].median, rel=0.02) for key in cushions)
    whole = MeasureContext(net[2], [(torch.randn(6, 4), torch.arange(6) % 3)])
    assert {inputs.dtype for inputs, _ in whole.batches()} == {torch.bfloat16}
