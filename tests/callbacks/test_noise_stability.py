"""The callback: what it logs for which net, on which samples, and that its numbers are the measures' own."""

import copy
import math
from dataclasses import asdict

import pytest
import torch
from torch import nn

from callbacks import NoiseStability
from callbacks.context import MeasureContext
from callbacks.measure import isolated
from lightning_app.measures import (
    contraction,
    cushions,
    minimal_cushions,
    noise_bound,
    noise_injection,
    probe_forward,
    smoothness,
)
from lightning_app.measures.core.hooks import in_float32
from lightning_app.modules import Arm
from lightning_app.networks import SimplifiedNet, layers_of, measurable, survey
from lightning_app.runs import RunFolder
from lightning_app.runs.loggers import RunLogger
from tests.helpers import arm, classifier, context, fit


def flat_net() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, 10))


@pytest.fixture(scope="module")
def logged(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    bank = classifier({"plain": arm(False), "residual": arm(True), "flat": Arm(net=flat_net)})
    fit(bank, epochs=1, callbacks=[NoiseStability(samples=8)], logger=[RunLogger(folder)])
    return RunFolder(folder)


def names(run: RunFolder, member: str) -> set[str]:
    log = run.log()
    return set(log[log["member"] == member]["name"])


def test_a_net_without_blocks_has_neither_smoothness_nor_bound(logged):
    found = names(logged, "flat")
    assert "noise/response_0.1" in found and "noise/layer01/response_0.1" in found
    assert not any(name.startswith(("noise/bound", "noise/smoothness")) for name in found)


def test_the_table_has_a_row_for_each_layer(logged):
    arrays = logged.arrays(1, "noise")
    assert arrays["plain/noise/responses"].shape == (5, 4)
    assert arrays["residual/noise/bound/cushions"].shape == (5,)
    log = logged.log().query("member == 'plain' and epoch == 1").set_index("name")["value"]
    table = arrays["plain/noise/responses"]
    assert log["noise/response_0.3"] == pytest.approx(table[:, 3].mean())
    assert log["noise/layer04/response_0.1"] == pytest.approx(table[3, 2])


def test_its_numbers_are_the_measures_own():
    net = arm(True).net()
    of_net = context(net, probe_size=20, eval_batch_size=6)
    found = NoiseStability(samples=10, strengths=[0.1, 0.2], draws=3, tangents=5, seed=3).evaluate(of_net)
    with isolated(net):
        batches = of_net.samples(10)
        injected = noise_injection(net, batches, [0.1, 0.2], draws=3, seed=3)
        interlayer = minimal_cushions(net, batches, 5, 3)
        expected = contraction(net, of_net.batches()), smoothness(net, batches, seed=3)
    assert found["noise_absolute/response_0.2"] == float(injected["absolute"].median[:, 1].mean())
    assert found["noise/layer03/response_0.2"] == float(injected["relative"].median[2, 1])
    assert found["noise/layer03/deviation_0.2"] == float(injected["relative"].deviation[2, 1])
    assert found["noise/contraction"].maximum == expected[0].maximum
    assert found["noise/smoothness"].rho == expected[1].rho
    assert torch.equal(found["noise/bound"].interlayer, interlayer.minimal)
    with isolated(net):
        layers, batches = measurable(survey(net, of_net.example())), list(of_net.batches())
        of_layers = cushions(layers, probe_forward(net, layers, batches).layers)
        logits, labels = (torch.cat(each) for each in zip(*((net(x), y) for x, y in batches)))
        bound = noise_bound(of_layers, interlayer, expected[0].maximum, logits, labels)
    assert found["noise/bound"].count == bound.count == 20 and 0 < bound.margin < math.inf
    for name, value in asdict(bound).items():
        torch.testing.assert_close(getattr(found["noise/bound"], name), value, rtol=0, atol=0, equal_nan=True)


def test_the_bound_needs_the_cushion_of_every_layer(caplog):
    nets = [arm(True).net() for _ in range(2)]
    for net in nets:
        for layer in layers_of(net)[2:4]:
            layer.module.padding_mode = "circular"
    measure = NoiseStability(samples=4, draws=1)
    for net in nets:
        bound = measure.evaluate(context(net, probe_size=20))["noise/bound"]
        assert math.isnan(bound.log10) and math.isnan(bound.sum) and bound.margin > 0
        assert (
            bound.cushions.isnan().tolist() == [False, False, True, True, False] and not bound.interlayer.isnan().any()
        )
        assert bound.depth == len(layers_of(net)) == 5
    said = [record.message for record in caplog.records if "the bound is NaN, because it needs" in record.message]
    assert len(said) == 1 and "pads by 'circular'" in said[0]  # of both layers of both nets once


def test_a_layer_that_is_never_called_is_no_part_of_the_bound():
    net = arm(True).net()
    of_net = context(net, probe_size=20)
    expected = NoiseStability(samples=4, draws=1).evaluate(of_net)["noise/bound"]
    net.unused = nn.Linear(net.fc.in_features, net.fc.out_features)
    net.unused.weight = net.fc.weight
    found = NoiseStability(samples=4, draws=1).evaluate(of_net)["noise/bound"]
    assert found.log10 == expected.log10 and found.depth == expected.depth


def test_embeddings_of_positions_are_as_biases():
    class Blocks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.positions = nn.Embedding(7, 6), nn.Embedding(5, 6)
            self.blocks = nn.Sequential(*(Residual(6) for _ in range(3)))
            self.head = nn.Linear(6, 3)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.head(self.blocks(self.tokens(tokens) + self.positions(torch.arange(5))).mean(1))

    torch.manual_seed(0)
    batch = torch.randint(7, (9, 5)), torch.arange(9) % 3
    bound = NoiseStability(samples=4, draws=1).evaluate(MeasureContext(Blocks().eval(), [batch]))["noise/bound"]
    assert math.isfinite(bound.log10) and bound.depth == 5


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inner(x).relu()


LABELS = {  # that are no classes of three outputs
    "several at once": torch.tensor([[1, 0, 1], [0, 0, 1]] * 4),
    "several at once, bool": torch.tensor([[True, False, True], [False, False, True]] * 4),
    "an order of six": torch.arange(8) % 6,
}


@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS)
def test_labels_that_are_no_classes_have_no_bound_and_all_else(labels):
    def loss(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return (outputs - labels.to(outputs.dtype).reshape(len(labels), -1)).square().mean()

    torch.manual_seed(0)
    net = SimplifiedNet(8, residual=True, width=4, num_classes=3).eval()
    of_net = MeasureContext(net, [(torch.randn(8, 3, 8, 8), labels)], loss)
    found = NoiseStability(draws=1).evaluate(of_net)
    assert "noise/bound" not in found and found["noise/response_0.1"] > 0 and found["noise/smoothness"].rho > 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_noise_in_a_net_of_half_precision_is_added_in_float32(dtype):
    torch.manual_seed(0)
    net = SimplifiedNet(8, residual=True, width=4, num_classes=3).to(dtype).eval()  # weights that both formats know
    images, labels = torch.randn(8, 3, 8, 8).to(dtype), torch.arange(8) % 3
    found = NoiseStability(draws=1).evaluate(MeasureContext(net, [(images, labels)]))
    wide = NoiseStability(draws=1).evaluate(MeasureContext(copy.deepcopy(net).float(), [(images.float(), labels)]))
    assert net.fc.weight.dtype == dtype
    for name in ("response_0.01", "response_0.1", "risk_0.01"):
        assert found[f"noise/{name}"] == pytest.approx(wide[f"noise/{name}"], rel=1e-6), name
    assert found["noise/smoothness"].rho == wide["noise/smoothness"].rho


def test_only_what_is_in_half_precision_is_widened():
    net = nn.Sequential(nn.Linear(2, 2).bfloat16(), nn.BatchNorm1d(2).bfloat16(), nn.Linear(2, 2).float())
    net[0].register_parameter("temperature", nn.Parameter(torch.ones((), dtype=torch.float64)))
    copied, (inputs,) = in_float32(net.eval(), [torch.ones(3, 2, dtype=torch.bfloat16)])
    kept = {name: each.dtype for name, each in copied.state_dict().items() if each.dtype != torch.float32}
    assert kept == {"0.temperature": torch.float64, "1.num_batches_tracked": torch.int64}
    assert inputs.dtype == torch.float32 and net[0].weight.dtype == torch.bfloat16
    assert in_float32(copied, [inputs])[0] is copied  # nothing to widen


def test_a_net_that_casts_to_half_precision_itself_is_measured_as_it_is():
    class Casting(SimplifiedNet):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return super().forward(images.bfloat16())

    net = Casting(8, residual=True, width=4, num_classes=3).bfloat16().eval()
    found = NoiseStability(draws=1).evaluate(MeasureContext(net, [(torch.randn(8, 3, 8, 8), torch.arange(8) % 3)]))
    assert found["noise/response_0.1"] > 0 and found["noise/bound"].depth == 8
