"""The callback: what it logs for which net, on which samples, and that its numbers are the measures' own."""

import math

import pytest
import torch

from callbacks import NoiseStability
from callbacks.measure import isolated
from callbacks.protocol import few_samples, probe_batches
from lightning_app.common.errors import UserError
from lightning_app.measures import contraction, minimal_cushions, noise_injection, smoothness
from lightning_app.modules import Arm
from lightning_app.runs import RunFolder
from lightning_app.runs.loggers import RunLogger
from tests.helpers import arm, classifier, digits, fit


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


def test_the_documented_keys_are_logged(logged):
    per_scale = {f"response_{s}" for s in ("0.01", "0.03", "0.1", "0.3")}
    per_scale |= {"risk_0.1", "error_0.1", "layer05/response_0.1", "layer05/deviation_0.1"}
    expected = {f"{scale}/{key}" for scale in ("noise", "noise_transferred", "noise_absolute") for key in per_scale}
    expected |= {"noise/contraction/maximum", "noise/contraction/dead", "noise/smoothness/rho"}
    expected |= {"noise/smoothness/rho_linearisation", "noise/bound/log10", "noise/bound/log10_transferred"}
    expected |= {f"noise/bound/{factor}" for factor in ("contraction", "depth", "output", "sum", "margin", "count")}
    for member in ("plain", "residual"):
        assert expected <= names(logged, member)
        assert not any("layer05/response_0.3" in name for name in names(logged, member))


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
    module = fit(classifier({"residual": arm(True)}), epochs=1, data=digits(probe_size=20, eval_batch_size=6))
    callback = NoiseStability(samples=10, strengths=[0.2], draws=3, tangents=5, seed=3)
    ((_, net),) = module.members
    with isolated(net):
        found = callback.measure(module.trainer, net)
        batches = list(few_samples(module.trainer, net, 10))
        injected = noise_injection(net, batches, [0.2], draws=3, seed=3)
        interlayer = minimal_cushions(net, batches, 5, 3)
        expected = contraction(net, probe_batches(module.trainer, net)), smoothness(net, batches, seed=3)
    assert found["noise_absolute/response_0.2"] == float(injected["absolute"].median.mean())
    assert found["noise/contraction"].maximum == expected[0].maximum
    assert found["noise/smoothness"].rho == expected[1].rho
    assert torch.equal(found["noise/bound"].interlayer, interlayer.minimal)
    assert found["noise/bound"].count == 20
    assert math.isfinite(found["noise/bound"].log10) or math.isnan(found["noise/bound"].margin)


def test_seeds_draw_other_noise():
    module = fit(classifier({"residual": arm(True)}), epochs=1)
    ((_, net),) = module.members
    with isolated(net):
        one, other = (NoiseStability(samples=4, seed=seed).measure(module.trainer, net) for seed in (0, 1))
    assert one["noise/response_0.1"] != other["noise/response_0.1"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"samples": 0}, r"samples of NoiseStability must be at least 1, got 0"),
        ({"draws": 0}, r"draws of NoiseStability must be at least 1, got 0"),
        ({"tangents": 1}, r"tangents of NoiseStability must be at least 2, got 1"),
        ({"strengths": [0.1, -1]}, r"numbers from 0 up, got \[0.1, -1\]"),
        ({"strengths": []}, r"numbers from 0 up, got \[\]"),
    ],
)
def test_wrong_arguments_are_sentences(arguments, said):
    with pytest.raises(UserError, match=said):
        NoiseStability(**arguments)
