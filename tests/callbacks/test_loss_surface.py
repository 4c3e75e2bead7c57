"""The callback: what it logs for which net."""

import pytest
import torch
from torch import nn

from callbacks import LossSurface
from callbacks.context import MeasureContext
from lightning_app.measures import loss_surface
from lightning_app.modules import Arm
from lightning_app.runs import RunFolder
from lightning_app.runs.loggers import RunLogger
from tests.helpers import arm, classifier, fit


class OneNumberAClass(nn.Module):
    """A net without layers: its outputs do not depend on the images."""

    def __init__(self) -> None:
        super().__init__()
        self.outputs = nn.Parameter(torch.zeros(10))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.outputs.expand(len(images), -1)


def test_numbers_arrays_and_both_readings_are_in_the_run_folder(tmp_path):
    bank = classifier({"plain": arm(False), "residual": arm(True), "none": Arm(net=OneNumberAClass)})
    fit(bank, epochs=1, callbacks=[LossSurface(samples=8, radii=[0.1, 1], rays=3)], logger=[RunLogger(tmp_path)])
    run = RunFolder(tmp_path)
    log = run.log().query("epoch == 1").set_index(["member", "name"])["value"]
    arrays = run.arrays(1, "surface")
    for name in ("surface", "surface_transferred"):
        risk = arrays[f"residual/{name}/risk"]
        assert risk.shape == (3, 2) and arrays[f"residual/{name}/radii"].tolist() == [0.1, 1]
        rise = risk.mean(0) - log["residual", f"{name}/centre"]
        assert [log["residual", f"{name}/rise_{r}"] for r in ("0.1", "1")] == pytest.approx(rise.tolist(), rel=1e-6)
        assert 0 <= log["residual", f"{name}/monotone"] <= 1
    assert log["plain", "surface/rise_1"] == log["plain", "surface_transferred/rise_1"]
    assert log["residual", "surface/rise_1"] != log["residual", "surface_transferred/rise_1"]
    assert not any(member == "none" and name.startswith("surface") for member, name in log.index)
    assert "LossSurface logs nothing for 'none'" in (tmp_path / "notes.txt").read_text()


def test_it_measures_on_the_asked_samples_with_the_run_s_loss():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
    images, labels = torch.randn(10, 3, 2, 2), torch.arange(10) % 3
    loss = nn.CrossEntropyLoss(label_smoothing=0.3)
    found = LossSurface(samples=5, radii=[0.5], rays=2, seed=4).measure(MeasureContext(net, [(images, labels)], loss))
    with torch.no_grad():
        expected = loss_surface(net, [(images[::2], labels[::2])], loss, [0.5], 2, seed=4)["written"]
    assert found["surface"].centre == pytest.approx(expected.centre)
    torch.testing.assert_close(found["surface"].risk, expected.risk)


def test_small_steps_of_a_net_in_half_precision_are_not_rounded_away():
    net = nn.Sequential(nn.Flatten(), nn.Linear(12, 3)).bfloat16()
    found = LossSurface(samples=4, radii=[1e-4], rays=2).measure(
        MeasureContext(net, [(torch.randn(4, 3, 2, 2).bfloat16(), torch.arange(4) % 3)])
    )
    assert found["surface/rise_0.0001"] != 0
