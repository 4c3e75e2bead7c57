"""`measure`: what all callbacks say of a net, without training it; of a run's own checkpoint what its log said."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import torchvision
import yaml
from pytorch_lightning import LightningModule
from torch import nn

from lightning_app.cli import training
from lightning_app.cli.parser import prescan
from lightning_app.cli.run_folders import check_names
from lightning_app.cli.trainer import Trainer
from lightning_app.common.errors import UserError
from lightning_app.modules import Arm
from lightning_app.modules.members import build_members
from lightning_app.runs import RunFolder
from lightning_app.runs.lock import take
from tests.helpers import ROOT, command, refused

OF_TRAINING = ("time/", "cost/", "lr", "signal/", "drive/scale/observed", "drive/scale/agrees")  # these need steps
FEW = ("--data", "Digits", "--data.train_limit", "40", "--data.test_limit", "20", "--data.probe_size", "12")
SPECTRUM = {
    "class_path": "HessianSpectrum",
    "init_args": {"samples": 8, "steps": 4, "probe_steps": 4, "k": 1, "exact": 0},
}
SMALL = ("--model.net", "SimplifiedNet", "--model.net.depth", "5", "--model.net.width", "4", "--trainer.callbacks")
NAMES = ("TrainingMetrics", "WeightMass", "LayerCushion", "BnLambda")
LIGHT = {"trainer": {"callbacks": [{"class_path": name} for name in NAMES]}}
NOISE = {"class_path": "NoiseStability", "init_args": {"samples": 4, "draws": 1, "strengths": [0.1]}}
TINY = {"trainer": {"callbacks": [*LIGHT["trainer"]["callbacks"], SPECTRUM, NOISE]}}
MORE = [
    {"class_path": "Signal"},
    {"class_path": "EffectiveDepth", "init_args": {"samples": 4, "gradient_samples": 2}},
    {"class_path": "DrivingForce", "init_args": {"samples": 4}},
]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """Two arms, two epochs, the light callbacks above."""
    folder = tmp_path_factory.mktemp("fit")
    nets = {}
    for name in ("plain", "residual"):
        arguments = {"depth": 5, "width": 4, "residual": name == "residual"}
        nets[name] = {"net": {"class_path": "SimplifiedNet", "init_args": arguments}}
    config = {"model": {"arms": nets}, "trainer": TINY["trainer"] | {"max_epochs": 2, "logger": []}}
    (folder / "tiny.yaml").write_text(yaml.safe_dump(config))
    done = command("fit", "--config", "tiny.yaml", *FEW, "--run.name", "tiny", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "runs" / "cifar10" / "tiny"


@pytest.mark.slow
def test_a_runs_checkpoint_says_what_its_log_said(run, tmp_path):
    """Every number of the last epoch that needs no training: measures take the options that they had in the run."""
    done = command("measure", "--ckpt_path", run / "checkpoints" / "last.ckpt", cwd=tmp_path, page=True)
    assert done.returncode == 0, done.stderr
    measured = RunFolder(tmp_path / "runs" / "measured" / "tiny-last")
    ours, theirs = (
        folder.log().set_index(["member", "name", "epoch"])["value"] for folder in (measured, RunFolder(run))
    )
    assert set(ours.index.get_level_values("epoch")) == {2}
    assert set(measured.log()["step"]) == {RunFolder(run).log()["step"].max()}
    compared = [
        key for key in theirs.index if key[2] == 2 and not key[1].startswith(OF_TRAINING) and "running" not in key[1]
    ]
    assert len(compared) > 200 and {"hessian", "noise"} <= {key[1].split("/")[0] for key in compared}
    pd.testing.assert_series_equal(ours[compared], theirs[compared], check_exact=True)
    for family in ("cushion", "weight_mass", "hessian"):
        one, other = (folder.arrays(2, family) for folder in (measured, RunFolder(run)))
        assert one.keys() == other.keys() and all(np.array_equal(one[key], other[key], equal_nan=True) for key in one)
    assert "report.html" in done.stdout and (measured.path / "report.html").exists()


@pytest.mark.slow
def test_everything_is_measured_by_default_and_shown(run, tmp_path, monkeypatch, capsys):
    done = command(
        "measure", "--ckpt_path", run / "checkpoints" / "last.ckpt", "--out", "here", cwd=tmp_path, page=True
    )
    assert done.returncode == 0, done.stderr
    names = RunFolder(tmp_path / "here").log()["name"]
    families = {"weight_mass", "cushion", "bn_lambda", "weight_norm", "depth", "drive", "hessian"}
    families |= {"interlayer", "noise"}
    assert families - {name.split("/")[0] for name in names} == {"bn_lambda"}  # a net without normalisation
    for words in ("blocks.0.conv", "4x3x3x3", "weight_mass/id_entries", "residual: interlayer cushions", "block01"):
        assert words in done.stdout
    page = (tmp_path / "here" / "report.html").read_text().replace("<wbr>", "")
    assert 'id="layers"' in page and "blocks.0.conv" in page
    monkeypatch.chdir(tmp_path)
    again = ("measure", "--ckpt_path", run / "checkpoints" / "last.ckpt", "--out", "here")
    assert "--out: expected a new or empty folder" in refused(*again, capsys=capsys, monkeypatch=monkeypatch)


@pytest.mark.slow
def test_torchvisions_resnet18_with_weights_from_a_file(tmp_path):
    torch.manual_seed(7)
    net = torchvision.models.resnet18(num_classes=10)
    torch.save(
        {"state_dict": {f"module.{name}": value for name, value in net.state_dict().items()}}, tmp_path / "rn.pth"
    )
    (tmp_path / "light.yaml").write_text(yaml.safe_dump(LIGHT))
    words = ("measure", "--config", "light.yaml", "--model.net", "torchvision.models.resnet18", "--weights", "rn.pth")
    done = command(*words, "--model.net.num_classes", "10", *FEW, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    measured = RunFolder(tmp_path / "runs" / "measured" / "resnet18")
    log = measured.log().set_index("name")["value"]
    mass = sum(
        float(w.abs().double().sum()) for name, w in net.named_parameters() if "conv" in name or "downsample.0" in name
    )
    assert log["weight_mass/all"] == pytest.approx(mass, rel=1e-6)
    assert [row.path for row in measured.layers()][:2] == ["conv1", "layer1.0.conv1"]
    assert sum(log.index.str.fullmatch(r"cushion/layer\d+/median")) == 21
    assert "layer2.0.downsample.0" in done.stdout
    assert yaml.safe_load((measured.path / "config.yaml").read_text())["weights"] == "rn.pth"


@pytest.mark.slow
def test_timms_nets_with_safetensors(tmp_path):
    timm = pytest.importorskip("timm")
    from safetensors.torch import save_file

    torch.manual_seed(7)
    net = timm.create_model("resnet10t", num_classes=10)
    save_file(net.state_dict(), tmp_path / "net.safetensors")
    (tmp_path / "light.yaml").write_text(yaml.safe_dump(LIGHT))
    words = ("--model.net", "timm.create_model", "--model.net.model_name", "resnet10t")
    words += ("--model.net.dict_kwargs.num_classes", "10")
    done = command("measure", "--config", "light.yaml", *words, "--weights", "net.safetensors", *FEW, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    measured = RunFolder(tmp_path / "runs" / "measured" / "create_model")
    log = measured.log().set_index("name")["value"]
    assert log["cushion/layer01/kernel_norm"] == pytest.approx(float(net.conv1[0].weight.double().norm()), rel=1e-6)
    assert not [row for row in measured.layers() if row.reason]


@pytest.mark.slow
def test_what_cannot_be_measured_is_listed_with_the_reason(tmp_path):
    (tmp_path / "odd.py").write_text(
        "import torch\n"
        "from torch import nn\n"
        "class Odd(nn.Module):\n"
        "    def __init__(self, classes: int = 10):\n"
        "        super().__init__()\n"
        "        self.stem = nn.Conv2d(3, 4, 3, padding=1, padding_mode='circular')\n"
        "        self.twice, self.fc = nn.Conv2d(4, 4, 3, padding=1), nn.Linear(4, classes)\n"
        "        self.scale = nn.Parameter(torch.ones(4, 4))\n"
        "    def forward(self, x):\n"
        "        x = torch.sin(self.stem(x))\n"
        "        x = self.twice(self.twice(x)).mean((2, 3)) @ self.scale\n"
        "        return self.fc(x)\n"
    )
    path = {"PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2]}"}
    done = command("measure", "--model.net", "odd.Odd", *FEW, cwd=tmp_path, env=path)
    assert done.returncode == 0, done.stderr
    rows = RunFolder(tmp_path / "runs" / "measured" / "odd").layers()
    reasons = {row.path: row.reason for row in rows}
    assert reasons["fc"] == reasons["twice"] == "" and reasons["stem"] and reasons["scale"]
    assert sum(row.path == "twice" for row in rows) == 2 and "pads by 'circular'" in done.stdout  # a row for each call
    assert (
        "EffectiveDepth logs nothing" in done.stdout and "passes 4 weight layers: measure a residual net" in done.stdout
    )
    log = RunFolder(tmp_path / "runs" / "measured" / "odd").log()["name"]
    assert log.str.startswith("cushion/layer03").any() and log.str.startswith("hessian/top1").any()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "message", "taken"),
    [
        (("--ckpt_path", "none.ckpt"), "found no file none.ckpt", 0),
        (("--model.net", "SimplifiedNet", "--weights", "a.pth", "--ckpt_path", __file__), "give only one of them", 1),
        (("--model.net", "SimplifiedNet", "--weights", "none.pth"), "expected weights at none.pth", 1),
        (
            ("--model.net", "torchvision.models.resnet18"),
            "has outputs (1000,) for a sample, but the data have 10 classes",
            1,
        ),
        (("--model.net", "torchvision.models.resnot18"), "there is no class 'resnot18'", 0),
        (
            ("--model.net", "torchvision.models.resnet18", "--model.net.classes", "10"),
            "there is no option 'model.net.classes'",
            0,
        ),
        (
            ("--model.net", "SimplifiedNet", "--run.name=m1"),
            "--run.name has an effect in measure only with --ckpt_path last, got no --ckpt_path: leave it out. To choose the "
            "folder of the results, give --out DIR.",
            0,
        ),
        (
            (*SMALL, "[{class_path: InterlayerCushion, init_args: {blocks: [block77]}}]"),
            "nothing could be measured: InterlayerCushion cannot measure 'net': there is no block 'block77' in this net.",
            1,
        ),
        (
            (*SMALL, "[{class_path: InterlayerCushion, init_args: {bn_modes: batch1}}]"),
            "needs a block with BatchNorm, and it has none",
            1,
        ),
        ((*SMALL, "[]"), "nothing could be measured: trainer.callbacks has no measure.", 1),
    ],
)
def test_mistakes_are_error_messages(tmp_path, monkeypatch, capsys, words, message, taken):
    monkeypatch.chdir(tmp_path)
    locks = []
    monkeypatch.setattr(training, "take", lambda folder: locks.append(take(folder)) or locks[-1])
    assert message in refused("measure", *words, *FEW, capsys=capsys, monkeypatch=monkeypatch)
    assert not list(tmp_path.rglob("log.csv"))
    assert [lock.closed for lock in locks] == [True] * taken


def test_the_run_s_options_stand_where_they_have_an_effect_or_out_says_where_the_results_go():
    words = ["--data", "Digits", "--run.group", "digits", "--run.name", "pair"]
    check_names(words, None, "last")
    check_names(words, "here", None)
    check_names(["--run.root", "elsewhere"], None, None)
    with pytest.raises(UserError, match=r"--run.group .* measure .* got runs/a.ckpt: leave it out"):
        check_names(words, None, "runs/a.ckpt")


def test_a_checkpoint_brings_its_runs_net_and_data(tmp_path):
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    config = {"model": {"arms": {"residual": {}, "plain": {"twin_of": "residual"}}}, "data": {"class_path": "Digits"}}
    theirs = [
        {"class_path": "elsewhere.Anything", "init_args": {"file": "x"}},
        {"class_path": "callbacks.HessianSpectrum", "init_args": {"samples": 7, "seed": {"class_path": "os.system"}}},
        *({"class_path": "InterlayerCushion", "init_args": {"samples": n}} for n in (1, 2, 3)),
        "no callback",
    ]
    config["trainer"] = {"precision": "64-true", "devices": 4, "callbacks": theirs}
    (tmp_path / "run" / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    checkpoint = str(tmp_path / "run" / "checkpoints" / "last.ckpt")
    Path(checkpoint).touch()
    (command, option, own, *rest), from_run = prescan(["measure", "--ckpt_path", checkpoint])
    own_of_measure = own
    assert from_run
    assert (command, option, rest) == ("measure", "--config", ["--ckpt_path", checkpoint])
    found = yaml.safe_load(own)
    callbacks = found["trainer"].pop("callbacks")
    assert found == {**config, "trainer": {"precision": "64-true"}}
    listed = yaml.safe_load((ROOT / "configs" / "measure.yaml").read_text())["trainer"]["callbacks"]
    assert {one["class_path"] for one in callbacks} == {one["class_path"] for one in listed}
    options = [(one["class_path"], one.get("init_args")) for one in callbacks]
    assert ("HessianSpectrum", {"samples": 7}) in options
    assert [given["samples"] for name, given in options if name == "InterlayerCushion"] == [1, 2, 3]
    assert ("NoiseStability", {"samples": 8, "draws": 1}) in options
    assert list(yaml.safe_load(own)["model"]["arms"]) == ["residual", "plain"]  # the checkpoint's order of members
    for looking in ("validate", "test"):  # which measure nothing
        (_, _, own, *_), from_run = prescan([looking, "--ckpt_path", checkpoint])
        assert from_run
        assert yaml.safe_load(own) == {**config, "trainer": {"precision": "64-true", "callbacks": []}}
    assert prescan(["fit", "--ckpt_path", checkpoint]) == (["fit", "--ckpt_path", checkpoint], False)
    for option in ("--model.compile", "--model.weight_decay"):  # of the nets that the run has
        words = ["measure", "--ckpt_path", checkpoint, option, "0"]
        assert prescan(words) == (["measure", "--config", own_of_measure, *words[1:]], True)
    named = ["measure", "--ckpt_path", checkpoint, "--model.net", "SimplifiedNet"]
    assert prescan(named) == (named, False)
    (tmp_path / "net.yaml").write_text("model: {seeds: 1}\n")
    assert not prescan(["measure", "--ckpt_path", checkpoint, f"--config={tmp_path / 'net.yaml'}"])[1]
    (tmp_path / "elsewhere.ckpt").touch()
    with pytest.raises(
        UserError, match=r"cannot tell which net is in .*elsewhere\.ckpt: expected the run's config.yaml"
    ):
        prescan(["measure", f"--ckpt_path={tmp_path / 'elsewhere.ckpt'}"])


def test_a_checkpoint_may_be_named_below_the_home_folder(monkeypatch, tmp_path, capsys):
    """Behind `=`, and in a YAML, no shell puts the folder there."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "run" / "checkpoints" / "last.ckpt").touch()
    (tmp_path / "run" / "config.yaml").write_text("model: {net: SimplifiedNet}\n")
    assert prescan(["validate", "--ckpt_path=~/run/checkpoints/last.ckpt"])[1]
    with pytest.raises(UserError, match="there is no such home folder"):
        prescan(["validate", "--ckpt_path=~nobody-of-this-name/last.ckpt"])
    (tmp_path / "home.yaml").write_text("model: {net: SimplifiedNet}\nckpt_path: ~/run\n")
    named = ["validate", "--config=~/home.yaml", "--ckpt_path=~/run/checkpoints/last.ckpt"]  # whose net it is
    assert prescan(named) == ([named[0], f"--config={tmp_path}/home.yaml", named[2]], False)
    said = refused("validate", "--config", tmp_path / "home.yaml", capsys=capsys, monkeypatch=monkeypatch)
    assert f"found no file {tmp_path}/run. Did you mean {tmp_path}/run/checkpoints/last.ckpt?" in said
    weights = ("measure", "--model.net=SimplifiedNet", "--model.net.depth=5", "--data=Digits", "--weights=~/none.pth")
    monkeypatch.chdir(tmp_path)
    assert f"expected weights at {tmp_path}/none.pth" in refused(*weights, capsys=capsys, monkeypatch=monkeypatch)


@pytest.mark.parametrize("option", ["--ckpt_path", "--weights", "--out", "--run.root", "--data.root"])
def test_an_unset_variable_of_the_shell_is_no_path(monkeypatch, tmp_path, capsys, option):
    monkeypatch.chdir(tmp_path)
    words = ("measure", "--model.net=SimplifiedNet", "--model.net.depth=5", "--data=Digits", f"{option}=")
    said = refused(*words, capsys=capsys, monkeypatch=monkeypatch)
    assert "root: expected a path, got an empty text" in said or f"{option[2:]}: expected a path, got an empty" in said
    assert not [*tmp_path.iterdir()]


def test_functions_become_class_paths_where_their_arguments_follow():
    function, built = "torchvision.models.resnet18", "lightning_app.networks.SimplifiedNet"
    for words in (["--model.net", function], ["--model.net", built, "--model.net.depth", "5"], ["--data", "Digits"]):
        assert prescan(["fit", *words])[0][1:] == words
    joined = prescan(["fit", f"--model.arms.big.net={function}", "--model.arms.big.net.num_classes=3"])[0][1:]
    assert joined == [f"--model.arms.big.net.class_path={function}", "--model.arms.big.net.num_classes=3"]


def test_what_begins_with_a_dot_is_no_function():
    words = ["--model.net", "./net.Net", "--model.net.depth", "5"]
    assert prescan(["fit", *words])[0][1:] == words
    assert prescan(["fit", "--model.net", ".Net", *words[2:]])[0][1:][1] == ".Net"


def test_a_checkpoint_of_another_program_is_an_error_message(tmp_path):
    torch.save({"state_dict": nn.Linear(2, 2).state_dict()}, tmp_path / "other.ckpt")
    with pytest.raises(UserError, match=r"other\.ckpt is not a checkpoint of `fit`: .* --weights FILE"):
        Trainer(logger=False).measure(LightningModule(), ckpt_path=str(tmp_path / "other.ckpt"))


def test_a_net_made_by_a_function_is_drawn_anew_for_every_seed():
    from functools import partial

    arms = {"net": Arm(net=partial(torchvision.models.resnet18, num_classes=2))}
    one, two = build_members(arms, (0, 1))
    again, _ = build_members(arms, (0, 1))
    assert torch.equal(one.net.conv1.weight, again.net.conv1.weight)
    assert not torch.equal(one.net.conv1.weight, two.net.conv1.weight)


@pytest.mark.slow
def test_fit_trains_a_function_of_torchvision_with_two_seeds(tmp_path):
    words = ("--model.net", "torchvision.models.squeezenet1_1", "--model.net.num_classes", "10", "--model.seeds", "2")
    quick = ("--trainer.max_epochs", "1", "--trainer.callbacks", "[WeightMass]", "--trainer.logger", "[]")
    done = command("fit", *words, *quick, *FEW, "--run.name", "squeeze", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    log = RunFolder(tmp_path / "runs" / "cifar10" / "squeeze").log()
    mass: pd.Series = log[(log["epoch"] == 0) & (log["name"] == "weight_mass/all")].set_index("member")["value"]
    assert len(mass) == 2 and mass.nunique() == 2


@pytest.mark.slow
def test_a_folder_of_pictures_of_any_size(tmp_path):
    from PIL import Image

    draw = np.random.default_rng(0)
    for split, count in (("train", 6), ("val", 3)):
        for name in ("cats", "dogs"):
            folder = tmp_path / "photos" / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                picture = draw.integers(0, 256, (40 + number, 50, 3), dtype=np.uint8)
                Image.fromarray(picture).save(folder / f"{number}.png")
    (tmp_path / "classes.txt").write_text("birds\ncats\ndogs\n")
    (tmp_path / "light.yaml").write_text(yaml.safe_dump(LIGHT))
    pictures = ("--data", "ImageFolder", "--data.root", "photos", "--data.image_size", "32")
    pictures += ("--data.class_names", "classes.txt")
    words = ("--model.net", "SimplifiedNet", "--model.net.depth", "5", "--model.net.num_classes", "3")
    done = command("measure", "--config", "light.yaml", *words, *pictures, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    log = RunFolder(tmp_path / "runs" / "measured" / "simplifiednet").log().set_index("name")["value"]
    assert log["train/error"] in np.arange(13) / 12 and log["test/error"] in np.arange(7) / 6
    assert log["cushion/layer05/median"] > 0


@pytest.mark.slow
def test_a_net_of_transformers_on_dict_batches_of_a_datamodule_of_ones_own(tmp_path):
    """The example of the docs: `fit` logs everything that is measured, and `measure` the same numbers of its checkpoint."""
    (example,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "measuring.md").read_text(), re.DOTALL)
    (tmp_path / "texts.yaml").write_text(example)
    few = {"callbacks": [*TINY["trainer"]["callbacks"], *MORE], "max_epochs": 1, "logger": []}
    (tmp_path / "few.yaml").write_text(yaml.safe_dump({"trainer": few}))
    path = {"PYTHONPATH": f"{ROOT / 'tests' / 'data'}:{ROOT}"}
    words = ("--config", "texts.yaml", "--config", "few.yaml", "--run.name", "texts")
    fitted = command("fit", *words, cwd=tmp_path, env=path)
    assert fitted.returncode == 0, fitted.stderr
    run = RunFolder(tmp_path / "runs" / "cifar10" / "texts")
    measured = command(
        "measure", *words, "--ckpt_path", run.checkpoints / "last.ckpt", "--out", "here", cwd=tmp_path, env=path
    )
    assert measured.returncode == 0, measured.stderr
    assert "not measured" not in measured.stdout
    ours, theirs = (
        folder.log().query("epoch == 1 and member == 'net'").set_index("name")["value"]
        for folder in (RunFolder(tmp_path / "here"), run)
    )
    families = {"weight_mass", "cushion", "weight_norm", "depth", "drive", "hessian", "noise", "signal", "val"}
    assert families <= {name.split("/")[0] for name in ours.index}
    of_training = ("signal/", "drive/")  # they also look at training's passes and at the epoch before
    shared = [name for name in ours.index if name in theirs.index and not name.startswith(of_training)]
    assert len(shared) > 100
    assert {n: (ours[n], theirs[n]) for n in shared if repr(ours[n]) != repr(theirs[n])} == {}
