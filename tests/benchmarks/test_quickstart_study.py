"""The scan behind the quickstart: what its settings vary, and what its files say."""

import pytest
import torch
import torch.nn.functional as F
import yaml

from benchmarks import quickstart_study as study
from tests.helpers import ROOT, built

QUICKSTART = ROOT / "configs" / "quickstart.yaml"


def settings(stage: str) -> list:
    return [*study.committed(stage)[study.SETTING].drop_duplicates().itertuples(index=False)]


def test_arms_differ_in_their_skips_alone(tmp_path):
    """In all 23 settings; two of them, of other nets, are built."""
    assert len(settings("screen")) == 23
    for setting in settings("screen"):
        words = [word for word in study.words_of(setting) if word not in ("True", "False")]
        plain, residual = ([word for word in words if f".{arm}." in word] for arm in study.ARMS)
        assert [word.replace("plain", "residual") for word in plain] == residual != []
    for setting in (
        each for each in settings("screen") if each.depth == 56 or (each.lr == 0.0001 and each.epochs == 4)
    ):
        config = built("fit", "--config", QUICKSTART, *study.words_of(setting), cwd=tmp_path).config.fit
        plain, residual = (arm.net for arm in config.model.arms.values())
        assert plain.class_path.endswith(setting.net.rpartition(".")[2]) and plain.init_args.depth == setting.depth
        assert (plain.init_args.pop("residual"), residual.init_args.pop("residual")) == (False, True)
        assert plain == residual


def test_the_quickstart_is_the_second_setting():
    (chosen,), shipped = settings("second-test"), yaml.safe_load(QUICKSTART.read_text())
    net = {"class_path": chosen.net, "init_args": {"depth": chosen.depth, "width": chosen.width}}
    for arm, residual in study.ARMS.items():
        assert shipped["model"]["arms"][arm]["net"] == net | {"init_args": net["init_args"] | {"residual": residual}}
    optimizer = {"class_path": f"torch.optim.{chosen.optimizer}", "init_args": {"lr": chosen.lr}}
    assert (shipped["model"]["optimizer"], shipped["model"]["scheduler"]) == (optimizer, None)
    data = {"image_size": chosen.image_size, "batch_size": chosen.batch_size, "augment": False}
    assert shipped["data"]["init_args"].items() >= data.items()
    assert shipped["trainer"]["max_epochs"] == chosen.epochs and not chosen.other


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


@pytest.mark.parametrize(("stage", "holds", "rate"), [("test", False, 0.001), ("second-test", True, 0.0003)])
def test_the_outcomes_are_those_of_the_page(stage, holds, rate):
    table = study.committed(stage)
    assert set(table["lr"]) == {rate} and study.holds(table) == holds
    assert table.groupby("arm")["seed"].nunique().to_dict() == {"plain": 13, "residual": 13}
