"""Two epochs of the real job on real CIFAR-10."""

import math

import pytest

from lightning_app.runs import RunFolder
from tests.helpers import ROOT, command


@pytest.mark.slow
@pytest.mark.cifar10
def test_two_epochs_of_res20_on_real_cifar10(cifar10_root, tmp_path):
    """The paper's configuration, fewer images and measures so that it takes seconds: 640 a training epoch."""
    words = ("fit", "--config", ROOT / "configs" / "res20.yaml", "--data.root", cifar10_root)
    fewer = ("--data.train_limit", "640", "--data.test_limit", "250", "--data.probe_size", "50")
    measures = ("--trainer.callbacks", "[TrainingMetrics,WeightMass,LayerCushion]")
    done = command(*words, *fewer, *measures, "--trainer.max_epochs", "2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    log = RunFolder(tmp_path / "runs" / "cifar10" / "res20").log().pivot(index="epoch", columns="name", values="value")
    assert log.index.tolist() == [0, 1, 2]
    assert log["train/risk"][0] == pytest.approx(math.log(10), abs=0.1)
    assert log["train/risk"][2] < log["train/risk"][0]
    assert log["weight_mass_transferred/id_entries"].between(600, 640).all()  # 624 ID entries near 1
    assert (log["cushion/layer10/median"] > 1.5).all()  # spec: 2.4 to 3 for a residual net
