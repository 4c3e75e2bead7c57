"""lambda and weight norms as they are logged, remembered over a resume, and left out where they do not apply."""

import numpy as np
import pytest
import torch
from torch import nn

from callbacks import BnLambda
from lightning_app.modules import Arm
from lightning_app.networks import CifarResNet
from lightning_app.runs import RunFolder
from lightning_app.runs.loggers import RunLogger
from tests.helpers import arm, classifier, context, fit

FULL = Arm(net=lambda: CifarResNet(8, width=4))


def logged(path) -> dict[tuple[str, int, str], float]:
    log = RunFolder(path).log().query("name.str.startswith('bn_lambda') or name.str.startswith('weight_norm')")
    return {(row.member, row.epoch, row.name): row.value for row in log.itertuples()}


def test_keys_and_values(tmp_path):
    """The docstring's table, and each number from the weights themselves."""
    module = fit(
        classifier({"full": FULL, "free": arm(True)}),
        epochs=1,
        callbacks=[BnLambda()],
        logger=[RunLogger(tmp_path)],
    )
    found = {(member, name): value for (member, epoch, name), value in logged(tmp_path).items() if epoch == 1}
    net = module.members[0].net
    lambdas = [norm.weight for norm in net.modules() if isinstance(norm, nn.BatchNorm2d)]
    assert found["full", "bn_lambda/layer02/l2"] == pytest.approx(net.blocks[0].bn1.weight.norm().item())
    assert found["full", "bn_lambda/l2"] == pytest.approx(np.mean([w.norm().item() for w in lambdas]))
    assert found["full", "bn_lambda/mean_abs"] == pytest.approx(np.mean([w.abs().mean().item() for w in lambdas]))
    scale = net.bn0.weight / (net.bn0.running_var + net.bn0.eps).sqrt()
    assert found["full", "bn_lambda/layer01/scale"] == pytest.approx(scale.abs().mean().item(), rel=1e-5)
    merged = net.conv0.weight * scale[:, None, None, None]
    assert found["full", "weight_norm/layer01/absorbed"] == pytest.approx(merged.norm().item(), rel=1e-5)
    assert found["full", "weight_norm/layer01/own"] == pytest.approx(net.conv0.weight.norm().item(), rel=1e-5)
    assert found["full", "bn_lambda/absorbable"] == found["full", "bn_lambda/layers"] == 7
    expected = {"l2", "mean_abs", "negative", "sign_changes", "scale", "absorbable"}
    assert {name.rpartition("/")[2] for _, name in found if name.startswith("bn_lambda/layer03/")} == expected
    free = {name for member, name in found if member == "free"}
    layers = {f"weight_norm/layer0{number}/own" for number in range(1, 6)}
    assert free == layers | {"weight_norm/own", "weight_norm/total"}
    saved = RunFolder(tmp_path).arrays(1, "bn_lambda")
    assert np.allclose(saved["full/bn_lambda/layer02/values"], net.blocks[0].bn1.weight.detach())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sign_changes_are_counted_from_measurement_to_measurement(dtype):
    net, callback = FULL.net().to(dtype), BnLambda()
    counts = []
    for factor in (1, -1, 1, -1):
        net.bn0.weight.data *= factor
        found = callback.evaluate(context(net))
        counts.append((found["bn_lambda/layer01"].sign_changes, found["bn_lambda"].sign_changes))
    assert counts == [(0, 0), (4, 4), (0, 0), (4, 4)]


def test_a_batchnorm_without_running_statistics_costs_its_keys_and_one_warning(caplog):
    def net() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(3, 4, 3, stride=4),
            nn.BatchNorm2d(4, track_running_stats=False),
            nn.ReLU(),
            nn.Conv2d(4, 4, 1),
            nn.BatchNorm2d(4, affine=False),
            nn.Conv2d(4, 4, 1),
            nn.GroupNorm(2, 4),
            nn.Flatten(),
            nn.Linear(4 * 64, 10),
        )

    callback, one = BnLambda(), net()
    found = [callback.evaluate(context(one)) for _ in range(2)][-1]
    assert {"bn_lambda/layer01", "bn_lambda/layer03", "bn_lambda"} <= set(found)
    assert not {"bn_lambda/layer02", "bn_lambda/layer01/scale", "bn_lambda/layer03/scale", "bn_lambda/scale"} & set(
        found
    )
    assert "weight_norm/layer01/absorbed" not in found and "weight_norm/layer02/absorbed" in found
    warnings = [record.getMessage() for record in caplog.records if "running statistics" in record.getMessage()]
    assert len(warnings) == 1 and warnings[0].startswith("'1' keeps no running statistics")


def test_the_mean_scale_is_that_of_the_layers_that_have_one():
    """A GroupNorm has a lambda, and no statistics."""
    layers = (nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(3600, 10))
    found = BnLambda().evaluate(context(nn.Sequential(*layers)))
    assert found["bn_lambda"].layers == 2 and found["bn_lambda/scale"] == found["bn_lambda/layer01/scale"]


def test_other_norms_have_keys_of_their_own(tmp_path):
    norms = [BnLambda(norm=norm) for norm in ("frobenius", "rms", "filter")]
    fit(classifier({"full": FULL}), epochs=1, callbacks=norms, logger=[RunLogger(tmp_path)])
    found = {name: value for (_, epoch, name), value in logged(tmp_path).items() if epoch == 1}
    assert found["weight_norm/layer01/own"] == pytest.approx(found["weight_norm_rms/layer01/own"] * (4 * 27) ** 0.5)
    assert 0 < found["weight_norm_filter/absorbed"] < found["weight_norm/absorbed"]
    names = set(RunFolder(tmp_path).log()["name"])
    assert {"cost/bn_lambda", "cost/bn_lambda_rms", "cost/bn_lambda_filter"} <= names
    assert len({callback.state_key for callback in norms}) == 3
