"""A run folder and a checkpoint of an older version (tests/data/README.md) open with today's commands."""

import tarfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from lightning_app.common.safe_io import read_torch
from lightning_app.identity import id_entries
from lightning_app.runs import RunFolder
from tests.helpers import ROOT, command

DATA = ROOT / "tests" / "data"
RUN = Path("runs") / "digits" / "run_5294020"
LAST = RUN / "checkpoints" / "last.ckpt"
MEMBERS = [f"{arm}-seed0{seed}" for arm in ("plain", "residual", "twin") for seed in (0, 1)]
RECOMPUTED = ("test/risk", "test/error", "weight_mass/", "cushion/", "depth/", "hessian/top")


@pytest.fixture
def folder(tmp_path) -> Path:
    """A folder with the run where its commands were called."""
    with tarfile.open(DATA / "run_5294020.tar.xz") as archive:
        archive.extractall(tmp_path / RUN.parent, filter="data")
    return tmp_path


def numbers(run: Path, epoch: int) -> pd.Series:
    """Values of one epoch by (member, key)."""
    log = RunFolder(run).log()
    return log[log["epoch"] == epoch].set_index(["member", "name"])["value"]


def works(*words: str | Path, cwd: Path) -> str:
    done = command(*words, cwd=cwd)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout + done.stderr


def test_report_shows_every_net_of_an_older_run(folder):
    works("report", RUN, cwd=folder)
    page = (folder / RUN / "report.html").read_text()
    assert all(name in page for name in ("plain", "residual", "twin", "seed00", "seed01"))
    assert "travel" in page


def test_measure_repeats_the_numbers_in_an_older_log(folder):
    """The Hessians were taken from all entries; here by iteration, in a tenth of the time."""
    own = (DATA / "run_5294020.yaml").read_text().replace("samples: 8, steps: 4", "samples: 8, steps: 60, exact: 0")
    (folder / "own.yaml").write_text(own)
    works("measure", "--ckpt_path", LAST, "--config", "own.yaml", "--out", "out", cwd=folder)
    then, now = numbers(folder / RUN, 2), numbers(folder / "out", 2)
    compared = [key for key in then.index.intersection(now.index) if key[1].startswith(RECOMPUTED)]
    compared = [key for key in compared if not key[1].endswith("_residual")]  # of an iteration
    assert {member for member, _ in compared} == set(MEMBERS)
    assert {key.split("/")[0] + "/" for _, key in compared} >= {prefix.split("/")[0] + "/" for prefix in RECOMPUTED}
    np.testing.assert_allclose(now[compared], then[compared], rtol=2e-3, atol=1e-5)


def test_fit_goes_on_with_an_older_run(folder):
    before = numbers(folder / RUN, 2)
    (folder / "own.yaml").write_text((folder / RUN / "config.yaml").read_text().replace("exact: 1000", "exact: 0"))
    works("fit", "--config", "own.yaml", "--ckpt_path", "last", "--trainer.max_epochs", "3", cwd=folder)
    after = numbers(folder / RUN, 3)
    assert before.equals(numbers(folder / RUN, 2)), "the older part of the log was changed"
    for member in MEMBERS:  # distances from the start, which the checkpoint has: not from where training went on
        assert after[member, "travel/distance"] > 0.5 * before[member, "travel/distance"] > 0
    for seed in (0, 1):  # steps since the start of the older run, 12 an epoch
        assert after[f"twin-seed0{seed}", "twin/divergence"] < 1e-3
    written = (folder / RUN / "config.yaml").read_text()
    assert "max_epochs: 3" in written


def test_transfer_and_extract_take_an_older_checkpoint(folder):
    works("transfer", LAST, "plain.ckpt", "--member", "residual-seed01", cwd=folder)
    works("extract", "plain.ckpt", "one.ckpt", "--member", "residual-seed01", cwd=folder)
    before, after = read_torch(folder / LAST)["state_dict"], read_torch(folder / "one.ckpt")["state_dict"]
    shifted = "blocks.1.conv.weight"
    moved = after[f"nets.net.{shifted}"] - before[f"nets.residual-seed01.{shifted}"]
    assert torch.allclose(moved, id_entries(moved).to(moved.dtype), atol=1e-6)
