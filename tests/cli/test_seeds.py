"""Thirteen seeds end to end: one command, 26 nets, their statistics in W&B and on the report's page."""

import numpy as np
import pytest

from lightning_app.cli import main
from lightning_app.runs import RunFolder
from tests.deploy.support import recorded
from tests.helpers import OFFLINE, TINY, command

SEEDS = range(13)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> RunFolder:
    folder = tmp_path_factory.mktemp("thirteen")
    done = command(*TINY, "--model.seeds", "13", "--trainer.callbacks", "TrainingMetrics", cwd=folder, env=OFFLINE)
    assert done.returncode == 0, done.stderr
    return RunFolder(folder / "runs/digits/quickstart")


def values(run: RunFolder, name: str, epoch: int) -> dict[str, np.ndarray]:
    """A number of all seeds of an arm, by arm."""
    log = run.log().query("name == @name and epoch == @epoch").set_index("member")["value"]
    return {arm: np.array([log[f"{arm}-seed{seed:02d}"] for seed in SEEDS]) for arm in ("plain", "residual")}


@pytest.mark.slow
def test_every_seed_is_logged_and_no_two_are_alike(run):
    assert len(run.log()["member"].unique()) == 27  # and the run as a whole
    for epoch in (0, 1, 2):
        for risks in values(run, "train/risk", epoch).values():
            assert np.isfinite(risks).all() and len(set(risks)) == len(SEEDS)


@pytest.mark.slow
def test_trackers_have_the_statistics_over_seeds(run):
    """Found again from W&B's own file, with numpy from the log."""
    row = {}
    for record in recorded(run.path):
        row |= record["history"]["item"] if record["type"] == "history" else {}
    for arm, errors in values(run, "test/error", 2).items():
        expected = {"mean": errors.mean(), "sd": errors.std(ddof=1), "min": errors.min(), "max": errors.max()}
        for name, value in expected.items():
            assert float(row[f"test/error/{arm}/{name}"]) == pytest.approx(value, rel=1e-12)
        assert float(row[f"seed/07/test/error/{arm}"]) == errors[7]


@pytest.mark.slow
def test_the_report_compares_them_seed_by_seed(run, tmp_path):
    page = tmp_path / "page.html"
    assert main(["report", str(run.path), "--out", str(page)]) == 0
    text = page.read_text()
    assert "Over seeds" in text and "13 pairs" in text
    found = values(run, "test/error", 2)
    difference = (found["plain"] - found["residual"]).mean()
    assert f"{difference:.4g}".lstrip("-") in text
