"""Forces as they are logged: compared with what happens next, and remembered over a resume."""

import math
from dataclasses import asdict

import pytest
import torch
import torch.nn.functional as F

from callbacks import DrivingForce
from lightning_app.measures import Force, driving_force, normalisations_of, scale_change
from lightning_app.modules import Arm
from lightning_app.networks import CifarResNet, layers_of
from lightning_app.runs import RunFolder
from lightning_app.runs.loggers import RunLogger
from tests.helpers import arm, classifier, context, fit, with_moved_norms, with_statistics_of

FULL = Arm(net=lambda: CifarResNet(8, width=4))
NAMES = [f"layer{number:02d}" for number in range(1, 8)]


def logged(path) -> dict[tuple[str, int, str], float]:
    log = RunFolder(path).log().query("name.str.startswith('drive')")
    return {(row.member, row.epoch, row.name): row.value for row in log.itertuples()}


def test_each_epoch_is_compared_with_what_the_last_one_predicted(tmp_path):
    fit(classifier({"full": FULL}), epochs=3, callbacks=[DrivingForce()], logger=[RunLogger(tmp_path)])
    found = logged(tmp_path)

    def of(epoch: int, name: str, fields=("size", "first_order", "second_order")) -> tuple[float, ...]:
        return tuple(found["full", epoch, f"drive/{name}/{field}"] for field in fields)

    for epoch in (1, 2, 3):
        compared = [scale_change(Force(*of(epoch - 1, name)), Force(*of(epoch, name))) for name in [*NAMES, "scale"]]
        for name, one in zip([*NAMES, "scale"], compared):
            assert of(epoch, name, ("observed", "agrees", "agrees_first")) == (
                one.observed,
                one.agrees,
                one.agrees_first,
            )
        assert found["full", epoch, "drive/agrees"] == pytest.approx(sum(one.agrees for one in compared[:-1]) / 7)
        assert found["full", epoch, "drive/agrees_first"] == pytest.approx(
            sum(one.agrees_first for one in compared[:-1]) / 7
        )
        for place, key in ((2, "drive/positive"), (1, "drive/positive_first")):
            positive = sum(of(epoch, name)[place] > 0 for name in NAMES) / 7
            assert found["full", epoch, key] == pytest.approx(positive)
    assert ("full", 0, "drive/layer01/observed") not in found and ("full", 0, "drive/agrees") not in found


@pytest.mark.parametrize(("moved", "double"), [(True, False), (True, True), (False, False)])
def test_they_are_the_forces_of_the_modules_own_loss_on_the_probe(moved, double):
    """Before training with the probe's statistics, which a pass in training mode leaves in place of those of no data."""
    module = classifier({"full": FULL}, loss="squared_error")
    net = with_moved_norms(module.members[0].net) if moved else module.members[0].net
    of_net = context(net, module.loss)
    found = DrivingForce(samples=12, double=double).evaluate(of_net)
    measured = net.eval() if moved else with_statistics_of(torch.cat([inputs for inputs, _ in of_net.batches()]), net)
    few = of_net.samples(12)

    def forces(of, loss, double):
        return driving_force(of, few, layers_of(of), normalisations_of(of, few[0][0][:1]), loss, double)

    expected = forces(measured, module.loss, double)
    others = [forces(measured, F.cross_entropy, double), forces(measured, module.loss, not double)]
    others += [forces(net.eval(), module.loss, double)] if not moved else []
    for name in [*NAMES, "scale"]:
        assert asdict(found[f"drive/{name}"]) == asdict(expected[name])
        assert all(asdict(other[name]) != asdict(expected[name]) for other in others)


def test_a_net_without_normalisation_has_the_scale_only(tmp_path):
    fit(classifier({"free": arm(True)}), epochs=1, callbacks=[DrivingForce()], logger=[RunLogger(tmp_path)])
    fields = {"size", "first_order", "second_order", "observed", "agrees", "agrees_first"}
    assert {name for _, epoch, name in logged(tmp_path) if epoch == 1} == {f"drive/scale/{field}" for field in fields}


def test_a_diverged_net_is_logged_as_it_is():
    net, callback = with_moved_norms(FULL.net()), DrivingForce()
    torch.nn.init.constant_(net.conv0.weight, math.nan)
    one, other = (callback.evaluate(context(net)) for _ in range(2))
    assert math.isnan(one["drive/scale"].second_order) and math.isnan(other["drive/scale/agrees"])
    assert math.isnan(one["drive/positive"]) and math.isnan(one["drive/positive_first"])


def test_a_net_of_which_normalisation_alone_is_trained_has_none(tmp_path):
    def frozen():
        net = CifarResNet(8, width=4)
        for layer in net.layers():
            layer.module.requires_grad_(False)
        return net

    fit(classifier({"frozen": Arm(net=frozen)}), epochs=1, callbacks=[DrivingForce()], logger=[RunLogger(tmp_path)])
    assert not logged(tmp_path)
