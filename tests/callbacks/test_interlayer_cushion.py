"""The callback logs what the measure says, under the keys of its table, for the nets and blocks it was asked for."""

import numpy as np
import pytest
import torch

from callbacks import InterlayerCushion
from callbacks.interlayer_cushion import NO_BATCH_NORM, NO_BLOCKS
from callbacks.notebook import measure
from lightning_app.common.errors import UserError
from lightning_app.measures import interlayer_cushions
from lightning_app.modules import Arm
from lightning_app.networks import CifarResNet, blocks_of, span_of
from lightning_app.runs import RunFolder
from lightning_app.runs.loggers import RunLogger
from tests.helpers import arm, classifier, digits, fit


def full(residual: bool) -> Arm:
    return Arm(net=lambda: CifarResNet(8, residual, width=2))


def run(tmp_path, arms: dict[str, Arm], **options):
    """The trained module and the final epoch's numbers, by (member, name)."""
    callback = InterlayerCushion(at_start=False, **options)
    module = fit(classifier(arms), epochs=1, callbacks=[callback], logger=[RunLogger(tmp_path / "run")])
    log = RunFolder(tmp_path / "run").log()
    return module, log.set_index(["member", "name"])["value"]


def test_numbers_are_the_measures(tmp_path):
    module, log = run(tmp_path, {"plain": full(False), "residual": full(True)}, bn_modes=["eval", "batch1"])
    images, _ = next(iter(digits().probe_loader()))
    for name, net in module.members:
        net.eval()
        for prefix, mode in (("interlayer", "eval"), ("interlayer_batch1", "batch1")):
            expected = interlayer_cushions(net, blocks_of(net), [images], mode, probes=4)
            assert list(expected) == ["block01", "block02", "block03"]
            for block, numbers in expected.items():
                for field in ("median", "mean", "std", "minimum", "mean_hw", "frobenius", "relative_error", "dead"):
                    assert log[name, f"{prefix}/{block}/{field}"] == pytest.approx(getattr(numbers, field)), field
    arrays = RunFolder(tmp_path / "run").arrays(1, "interlayer")
    assert arrays["plain/interlayer/block02/samples"].shape == (20,)
    assert np.all(arrays["plain/interlayer_batch1/block02/samples"] < 1e-2)  # a plain block, blind to scale


def test_it_measures_the_blocks_and_samples_it_is_asked_for(tmp_path):
    module, log = run(tmp_path, {"net": full(True)}, blocks=["block02", "block02-block03"], samples=7, probes=None)
    images, _ = next(iter(digits().probe_loader()))
    net = module.members[0].net.eval()
    names = ["block02", "block02-block03"]
    spread = images[[number * 20 // 7 for number in range(7)]]  # of the 20 probe images
    expected = interlayer_cushions(net, [span_of(net, name) for name in names], [spread])
    logged = {name.split("/")[1] for _, name in log.index if name.startswith("interlayer/")}
    assert logged == set(names)
    for name in names:
        assert log["net", f"interlayer/{name}/mean"] == pytest.approx(expected[name].mean)
        assert log["net", f"interlayer/{name}/probes"] == 0


def test_a_net_without_blocks_is_left_alone_and_the_reason_said_once(tmp_path, caplog):
    linear = Arm(net=lambda: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, 10)))
    _, log = run(tmp_path, {"linear": linear, "residual": arm(True)})
    members = {member for member, name in log.index if name.startswith("interlayer")}
    assert members == {"residual"}
    said = [text for text in caplog.messages if "interlayer" in text]
    assert said == [f"no interlayer cushions of 'linear': {NO_BLOCKS}"]


def test_one_sample_at_a_time_is_about_the_nets_with_a_batch_norm(tmp_path):
    _, log = run(tmp_path, {"without": arm(True), "with": full(True)}, bn_modes="batch1", probes=1)
    assert {member for member, name in log.index if name.startswith("interlayer_batch1/")} == {"with"}


def test_why_there_is_nothing_on_one_sample_at_a_time_is_said(caplog):
    data = torch.ones(4, 3, 32, 32), [0, 1, 2, 3]
    assert measure(arm(True).net(), *data, [InterlayerCushion(bn_modes=["batch1"])]) == {}
    assert f"no interlayer cushions in 'batch1' of 'net': {NO_BATCH_NORM}" in caplog.messages
    caplog.clear()
    linear = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, 10))
    assert measure(linear, *data, [InterlayerCushion(bn_modes="batch1")]) == {}
    assert f"no interlayer cushions of 'net': {NO_BLOCKS}" in caplog.messages
    caplog.clear()  # beside one in the other mode there is nothing to advise
    assert measure(arm(True).net(), *data, [InterlayerCushion(probes=1), InterlayerCushion(bn_modes="batch1")])
    assert not [said for said in caplog.messages if "no interlayer cushions" in said]


def test_mistakes_are_reported_before_training():
    def starts(arms: dict[str, Arm], **options):
        module = classifier(arms)
        before = [p.clone() for p in module.parameters()]
        with pytest.raises(UserError) as caught:
            fit(module, callbacks=[InterlayerCushion(**options)])
        assert all(torch.equal(one, other) for one, other in zip(before, module.parameters()))
        return str(caught.value)

    assert "and block01 has none" in starts({"net": arm(True)}, bn_modes="batch1")
    assert "and block01 has none" in starts({"net": arm(True)}, bn_modes=["eval", "batch1"])
    assert "Did you mean 'block03'" in starts({"net": full(True)}, blocks=["block3"])
    assert "'eval' or 'batch1', got 'train'" in starts({"net": full(True)}, bn_modes="train")
    assert "probes must be at least 1" in starts({"net": full(True)}, probes=0)
