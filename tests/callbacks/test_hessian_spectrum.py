"""The spectrum as it is logged: against all eigenvalues of a small net, by part, in any batches, with its own loss."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from callbacks import HessianSpectrum, MeasureContext
from lightning_app.measures import Hessian, Spectrum, dense
from lightning_app.networks import SimplifiedNet
from lightning_app.runs import RunFolder
from lightning_app.runs.loggers import RunLogger
from tests.helpers import arm, classifier, context, digits, fit

SAMPLES = 20
PATHS = ["conv0", *(f"blocks.{number}.conv" for number in range(3)), "fc"]  # of the layers of `SimplifiedNet(5)`


def tiny_net() -> torch.nn.Module:
    """446 parameters."""
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3, stride=4), torch.nn.Tanh(), torch.nn.Flatten(), torch.nn.Linear(4 * 64, 1), Tile()
    )


class Tile(torch.nn.Module):
    def forward(self, x):
        return torch.cat([x * (place / 5 - 1) for place in range(10)], 1)


def measured(make, callback: HessianSpectrum, **data):
    """The callback's results of a net, and the net with its samples."""
    torch.manual_seed(0)
    net = make()
    return callback.evaluate(context(net, **data)), net, next(iter(digits(**data).probe_loader()))


def test_a_small_net_gets_all_its_eigenvalues():
    found, net, (x, y) = measured(tiny_net, HessianSpectrum(samples=SAMPLES, k=3))
    x, y = x[:SAMPLES].double(), y[:SAMPLES]  # all of the probe
    net.double()
    names, weights = zip(*((name, w.detach()) for name, w in net.named_parameters()))
    sizes = [w.numel() for w in weights]

    def risk(flat):
        parts = {name: p.view_as(w) for name, p, w in zip(names, flat.split(sizes), weights)}
        return F.cross_entropy(torch.func.functional_call(net, parts, (x,)), y)

    values = np.linalg.eigvalsh(torch.func.hessian(risk)(torch.cat([w.flatten() for w in weights])).numpy())
    assert found["hessian/top1"] == pytest.approx(values[-1], rel=1e-9)
    assert found["hessian/bottom1"] == pytest.approx(values[0], rel=1e-9)
    whole = found["hessian"]
    largest = np.abs(values).max()
    assert whole.index_low == whole.index_high == (values < -1e-10 * largest).mean()
    assert whole.trace == pytest.approx(values.sum(), rel=1e-9) and whole.trace_error == 0


def test_a_small_net_that_casts_to_float32_gets_the_ends_of_its_spectrum():
    """As nets do that take images in bytes: no float64 copy of them can be computed."""

    class Cast(torch.nn.Module):
        def forward(self, x):
            return x.float()

    found, *_ = measured(lambda: torch.nn.Sequential(Cast(), *tiny_net()), HessianSpectrum(samples=SAMPLES, steps=25))
    every, *_ = measured(tiny_net, HessianSpectrum(samples=SAMPLES))
    assert found["hessian/top1"] == pytest.approx(every["hessian/top1"], rel=1e-3)
    assert found["hessian/top1_residual"] > 0 and every["hessian/top1_residual"] == 0


def test_a_small_net_whose_loss_uses_its_weights_has_them_in_its_spectrum():
    """As with a penalty: a copy in float64 does not have it."""
    torch.manual_seed(0)
    net = tiny_net()
    batches = [*digits().probe_loader()]

    def penalised(outputs, labels):
        return F.cross_entropy(outputs, labels) + 5 * sum(w.square().sum() for w in net.parameters())

    with_it, without = (
        HessianSpectrum(samples=SAMPLES, steps=25).evaluate(MeasureContext(net, batches, loss))
        for loss in (penalised, F.cross_entropy)
    )
    assert with_it["hessian/top1"] == pytest.approx(without["hessian/top1"] + 10, rel=1e-3)


@pytest.mark.parametrize("exact", [0, 10_000])
def test_parts_are_diagonal_blocks(exact):
    callback = HessianSpectrum(samples=SAMPLES, k=1, steps=25, parts=True, exact=exact)
    found, net, (x, y) = measured(lambda: SimplifiedNet(5, width=1), callback)
    parts = {name.removeprefix("hessian/"): value for name, value in found.items() if isinstance(value, Spectrum)}
    assert set(parts) == {"hessian", "id", "rest", "layer01", "layer02", "layer03", "layer04", "layer05"}
    net.eval().double()
    hessian = Hessian(net, [(x[:SAMPLES].double(), y[:SAMPLES])])
    matrix, slices = dense(hessian).detach(), hessian.slices()
    conv = np.r_[slices["blocks.0.conv.weight"], slices["blocks.0.conv.bias"]]
    assert found["hessian/layer02/top1"] == pytest.approx(
        float(torch.linalg.eigvalsh(matrix[conv][:, conv])[-1]), rel=1e-3
    )
    assert parts["id"].dimension == sum(int(layer.id_mask().sum()) for layer in net.layers() if layer.has_id)
    assert parts["id"].dimension + parts["rest"].dimension == parts["hessian"].dimension == hessian.size
    for name, part in parts.items():  # Cauchy: a diagonal block's eigenvalues lie between those of the whole
        assert part.top[0] <= parts["hessian"].top[0] * (1 + 1e-3), name
        assert part.bottom[0] >= parts["hessian"].bottom[0] - 1e-3 * abs(float(parts["hessian"].bottom[0])), name
    values, vectors = torch.linalg.eigh(matrix)
    square = vectors[:, values.abs().argmax()].square()
    shares = [sum(square[slices[f"{path}.{kind}"]].sum() for kind in ("weight", "bias")) for path in PATHS]
    torch.testing.assert_close(found["hessian/leading"].double(), torch.stack(shares), rtol=0, atol=1e-3)
    at_id = torch.cat([square[slices[layer.weight_name]][layer.id_mask().flatten()] for layer in net.layers()[1:-1]])
    assert found["hessian/id/leading"] == pytest.approx(float(at_id.sum()), abs=1e-3)
    assert 2e-3 < found["hessian/id/leading"] < 0.4  # not the share of the others


def test_a_light_and_a_full_one_side_by_side(tmp_path):
    light = HessianSpectrum(samples=SAMPLES, steps=4)
    full = HessianSpectrum(every_n_epochs=2, at_start=False, samples=SAMPLES, steps=8, probes=1, prefix="hessian_full")
    bank = classifier({"plain": arm(False), "residual": arm(True)})
    fit(bank, epochs=2, callbacks=[light, full], logger=[RunLogger(tmp_path)])
    log = RunFolder(tmp_path).log()
    epochs = {name: sorted(set(log[log["name"] == name]["epoch"])) for name in ("hessian/top1", "hessian_full/top1")}
    assert epochs == {"hessian/top1": [0, 1, 2], "hessian_full/top1": [2]}
    assert {"cost/hessian", "cost/hessian_full", "hessian/top1_residual", "hessian/unconverged"} <= set(log["name"])
    saved = RunFolder(tmp_path).arrays(2, "hessian")
    assert {"plain/hessian/nodes", "plain/hessian/density/counts", "residual/hessian/leading"} <= set(saved)


def test_a_diverged_net_has_no_spectrum_and_a_warning(caplog):
    net = arm(False).net()
    torch.nn.init.constant_(net.conv0.weight, torch.nan)
    assert HessianSpectrum(samples=5, steps=3).evaluate(context(net)) == {}
    assert "logs nothing under hessian/" in caplog.text and "diverged" in caplog.text
