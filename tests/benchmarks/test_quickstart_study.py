"""The scan behind the quickstart: what its settings vary, and what its files say."""

from pathlib import Path

import pandas as pd
import pytest
import torch
import torch.nn.functional as F
import yaml

from benchmarks import quickstart_study as study
from tests.helpers import ROOT

RESULTS = ROOT / "docs" / "results"


@pytest.mark.parametrize("setting", study.SCREEN)
def test_arms_differ_in_their_skips_alone(setting):
    plain, residual = setting.config("0", Path("runs"))["model"]["arms"].values()
    assert (plain["net"]["init_args"].pop("residual"), residual["net"]["init_args"].pop("residual")) == (False, True)
    assert plain == residual
    words = setting.other.split()
    of_plain, of_residual = ([word for word in words if f".{arm}." in word] for arm in study.ARMS)
    assert [word.replace("plain", "residual") for word in of_plain] == of_residual


def test_the_quickstart_is_the_chosen_setting():
    shipped = yaml.safe_load((ROOT / "configs" / "quickstart.yaml").read_text())
    chosen = study.CHOSEN.config("3", Path("runs"))
    assert shipped["model"] == chosen["model"] | {"seeds": 3}
    assert shipped["data"]["init_args"].items() >= chosen["data"]["init_args"].items()
    assert shipped["trainer"]["max_epochs"] == chosen["trainer"]["max_epochs"]


def test_corrected_kernels_make_up_for_the_border():
    """Of inputs 1 with independent weights of variance s^2, the mean power is s^2 times the kernel entries inside the image."""
    torch.manual_seed(0)
    kwi = study.SimplifiedNet(8, residual=False, width=4)
    torch.manual_seed(0)
    corrected = study.Corrected(8, residual=False, depth=8, width=4)
    size = 8
    for before, after in zip(kwi.layers()[1:-1], corrected.layers()[1:-1]):
        inside = F.conv2d(torch.ones(1, 1, size, size), torch.ones(1, 1, 3, 3), stride=before.stride, padding=1)
        factor = (after.weight / before.weight).detach().pow(2).mean()
        assert float(factor * inside.mean()) == pytest.approx(9, rel=1e-5)
        size = inside.shape[-1]


@pytest.mark.parametrize(("stage", "holds"), [("test", False), ("second-test", True)])
def test_the_outcomes_are_those_of_the_page(stage, holds):
    (setting,) = study.STAGES[stage][1]
    table = pd.read_csv(RESULTS / f"2026-11-23-quickstart-{stage}.csv", comment="#")
    assert set(table["lr"]) == {setting.lr}
    ends = table[table["epoch"] == setting.epochs].groupby("arm")["test/error"]
    assert ends.count().to_dict() == {"plain": 13, "residual": 13}
    low, high = ends.min()["plain"], ends.max()["residual"]
    assert (low > study.PLAIN_ABOVE and high < study.RESIDUAL_BELOW) == holds
