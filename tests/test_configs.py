"""Every YAML parses, builds what it says, and survives --print_config."""

import functools
import re
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
import torch
import yaml

from callbacks import InterlayerCushion
from lightning_app.cli.run_folders import SaveRunConfig
from lightning_app.cli.training import TrainingCLI, run_training
from lightning_app.datamodules import WhitenedDigits, WhitenedMNIST
from lightning_app.modules.cost import squared_error
from lightning_app.modules.members import SeedSharding
from lightning_app.networks import CifarResNet, PreactResNet
from tests.helpers import ROOT, built, callbacks_in

CONFIGS = sorted((ROOT / "configs").rglob("*.yaml"))
OVERLAYS = ("base.yaml", "gpus.yaml", "curvature.yaml", "measure.yaml")
RUNS = [path for path in CONFIGS if path.name not in OVERLAYS]
FIG_2 = ROOT / "configs" / "papers" / "yu-tomasi" / "fig2.yaml"
WATCHED = callbacks_in()  # where a configuration does not replace the callbacks


@pytest.fixture(scope="module")
def build(tmp_path_factory) -> Callable[..., TrainingCLI]:
    """build("configs/a.yaml", ...): everything up to the point where training would start, once for the same words."""

    @functools.cache
    def once(config: Path, *words: str) -> TrainingCLI:
        return built("fit", "--config", config, *words, cwd=tmp_path_factory.mktemp("build"))

    return lambda config, *words: once(ROOT / config, *words)


def but_for_integers(config: Path) -> str:
    """Its content without comments, names and whole numbers, which no parser spells otherwise."""
    content = "\n".join(re.sub(r"(^| )#.*", "", line).rstrip() for line in config.read_text().splitlines())
    return re.sub(r"(?<![\w.])\d+(?![\w.])", "N", re.sub(r"\b(name|group): .*", "", content))


@pytest.mark.parametrize("config", {but_for_integers(path): path for path in RUNS}.values(), ids=lambda path: path.stem)
def test_what_a_run_saves_is_what_is_printed_of_it(config, build, capsys, tmp_path):
    """Parsed again, a configuration is the same to the letter. One of each that differ in their whole numbers alone."""
    (save,) = (each for each in build(config).trainer.callbacks if isinstance(each, SaveRunConfig))
    (tmp_path / "saved.yaml").write_text(save.parser.dump(save.config, skip_none=False, format="yaml"))
    with pytest.raises(SystemExit) as stop:
        run_training(["fit", "--config", str(tmp_path / "saved.yaml"), "--print_config"])
    assert stop.value.code == 0 and capsys.readouterr().out == (tmp_path / "saved.yaml").read_text()


def test_words_of_an_enum_are_saved_as_their_values(build):
    """Timer's interval is one by default."""
    cli = build(
        "configs/quickstart.yaml", "--trainer.callbacks", "Timer", "--trainer.callbacks.duration", "00:01:00:00"
    )
    (save,) = (each for each in cli.trainer.callbacks if isinstance(each, SaveRunConfig))
    (timer,) = yaml.safe_load(save.parser.dump(save.config, format="yaml"))["trainer"]["callbacks"]
    assert timer["init_args"]["interval"] == "step"


@pytest.mark.parametrize("config", RUNS, ids=lambda path: path.stem)
def test_a_configuration_builds_and_names_its_own_run(config, build):
    cli = build(config)
    assert cli.folder.label == config.stem, (
        f"{config}: run.name must be the file's name, expected '{config.stem}', got '{cli.folder.label}'"
    )
    assert [type(logger).__name__ for logger in cli.trainer.loggers] == ["RunLogger", "AutoWandbLogger"]
    watched = {"TrainingMetrics"} if "callbacks" in yaml.safe_load(config.read_text()).get("trainer", {}) else WATCHED
    missing = (watched | {"SaveCheckpoint"}) - {type(callback).__name__ for callback in cli.trainer.callbacks}
    assert not missing, (
        f"{config}: expected also {missing} among the callbacks: use callbacks+:, which keeps base.yaml's"
    )


# Yu & Tomasi (2019), SM A and the caption of Table 1
@pytest.mark.parametrize("depth", [20, 32, 44])
@pytest.mark.parametrize("kind", ["pln", "res"])
def test_the_papers_recipe(kind, depth, build):
    cli = build(f"configs/{kind}{depth}.yaml")
    ((_, net),) = cli.model.members
    assert (net.residual, len(net.layers())) == (kind == "res", depth)
    made = cli.model.configure_optimizers()
    group = made["optimizer"].param_groups[0]
    assert group["lr"] == (1e-3 if (kind, depth) == ("pln", 44) else 1e-2)
    assert group["momentum"] == 0.9
    assert sorted(made["lr_scheduler"]["scheduler"].milestones) == [120, 160]
    assert made["lr_scheduler"]["scheduler"].gamma == 0.1
    assert (cli.model.weight_decay, cli.model.decays, cli.trainer.max_epochs) == (1e-4, "all", 200)
    data = cli.datamodule
    assert (type(data).__name__, data.batch_size) == ("CIFAR10", 128)
    assert (data.augment, data.flip, data.padding) == (True, True, 4)
    assert (data.val_size, data.drop_last) == (0, False)


# fb.resnet.torch: 164 epochs, lr 0.1, a tenth of it from epoch 81 and again from 122, counted from 1
def check_recipe_of_fb_resnet_torch(cli: TrainingCLI) -> None:
    made = cli.model.configure_optimizers()
    group = made["optimizer"].param_groups[0]
    assert (type(made["optimizer"]), group["momentum"], group["nesterov"]) == (torch.optim.SGD, 0.9, True)
    rates = []
    for _ in range(cli.trainer.max_epochs):
        rates.append(group["lr"])
        made["optimizer"].step()
        made["lr_scheduler"]["scheduler"].step()
    assert rates == pytest.approx([0.1] * 80 + [0.01] * 41 + [0.001] * 43)
    assert (cli.model.weight_decay, cli.model.decays, cli.model.penalty_scale) == (1e-4, "all", "one")
    assert (cli.datamodule.batch_size, cli.datamodule.drop_last) == (128, False)


@pytest.mark.parametrize("depth", [20, 32, 44, 56, 110])
@pytest.mark.parametrize("kind", ["pln", "res"])
def test_the_full_nets_recipe(kind, depth, build):
    cli = build(f"configs/full_{kind}{depth}.yaml")
    ((_, net),) = cli.model.members
    assert (type(net), net.residual, len(net.layers())) == (CifarResNet, kind == "res", depth)
    check_recipe_of_fb_resnet_torch(cli)
    (interlayer,) = (callback for callback in cli.trainer.callbacks if isinstance(callback, InterlayerCushion))
    assert interlayer.bn_modes == ["eval", "batch1"]


# Li et al. (2016), section 5.3.2: "The default stopping criteria are used"
@pytest.mark.parametrize("depth", [20, 38, 56, 110])
def test_figure_9_moves_shortcuts_and_nothing_else(depth, build):
    cli = build(f"configs/papers/li-et-al/fig9_{depth}.yaml")
    nets = dict(cli.model.members)
    assert {name: net.n for name, net in nets.items() if net.residual} == {f"shortcut{n}": n for n in (1, 2, 3)}
    assert [name for name, net in nets.items() if not net.residual] == ["plain"]
    assert {len(net.layers()) for net in nets.values()} == {depth}
    assert len({sum(p.numel() for p in net.parameters()) for net in nets.values()}) == 1
    check_recipe_of_fb_resnet_torch(cli)


def test_the_preactivation_net(build):
    cli = build("configs/preact_n2.yaml", "--model.net.n", "3")
    ((_, net),) = cli.model.members
    assert (type(net), net.n, net.residual, len(net.layers())) == (PreactResNet, 3, True, 20)
    check_recipe_of_fb_resnet_torch(cli)


# Li et al. (2016), appendix B: gradient descent, 1,000 epochs, whitened MNIST, one-hot targets
def test_full_batch_descent_of_the_2_shortcut_net(build):
    cli = build("configs/shortcut2.yaml")
    ((_, net),) = cli.model.members
    assert (net.shortcut, net.weights().shape) == (True, (4, 2, 10, 10))
    assert all(isinstance(unit.mid, torch.nn.Identity) for unit in net.units)
    made = cli.model.configure_optimizers()
    group = made["optimizer"].param_groups[0]
    assert (group["lr"], group["momentum"], "lr_scheduler" in made) == (0.1, 0, False)
    assert (cli.model.loss, cli.model.weight_decay, cli.trainer.max_epochs) == (squared_error, 0, 1000)
    assert (cli.trainer.precision, type(cli.datamodule)) == ("64-true", WhitenedMNIST)


def test_vectors_named_over_images_keep_their_own_facts(build):
    data = build("configs/shortcut2.yaml", "--data", "WhitenedDigits").datamodule
    assert (type(data), data.batch_size, data.eval_batch_size) == (WhitenedDigits, 1437, 10_000)


def test_a_dataset_named_over_another_keeps_its_own_facts(build):
    data = build("configs/res20.yaml", "--data", "Digits").datamodule
    assert (data.flip, data.mean) == (False, (0.3051,))


def test_callbacks_are_appended_with_plus_and_replaced_without(build, tmp_path):
    def names(*words: str) -> list[str]:
        cli = build("configs/res20.yaml", *words)
        return [type(callback).__name__ for callback in cli.trainer.callbacks]

    more, instead = tmp_path / "more.yaml", tmp_path / "instead.yaml"
    more.write_text(yaml.safe_dump({"trainer": {"callbacks+": [{"class_path": "LearningRateMonitor"}]}}))
    assert {"TrainingMetrics", "LearningRateMonitor"} <= set(names("--config", str(more)))
    instead.write_text(yaml.safe_dump({"trainer": {"callbacks": [{"class_path": "LearningRateMonitor"}]}}))
    assert "TrainingMetrics" not in names("--config", str(instead))


def test_figure_2_on_all_gpus_is_figure_2_with_its_nets_shared_out(build):
    cli = build(FIG_2, "--config", str(ROOT / "configs" / "gpus.yaml"))
    assert (cli.folder.label, len(cli.model.members), cli.datamodule.batch_size) == ("fig2", 26, 128)
    assert isinstance(cli.trainer.strategy, SeedSharding)


def test_seeds_and_twins_can_be_asked_for(build, tmp_path):
    config = tmp_path / "twins.yaml"
    net = {"class_path": "SimplifiedNet", "init_args": {"depth": 8}}
    arms = {"residual": {"net": net}, "plain": {"twin_of": "residual"}}
    config.write_text(yaml.safe_dump({"model": {"arms": arms, "seeds": "3-4"}}, sort_keys=False))
    cli = build(config)
    names = [member.name for member in cli.model.members]
    assert names == ["residual-seed03", "residual-seed04", "plain-seed03", "plain-seed04"]
    assert cli.model.data_seeds == (3, 4)


def test_configurations_are_short_diffs():
    base = (ROOT / "configs" / "base.yaml").read_text()
    for config in RUNS:
        lines, most = len(config.read_text().splitlines()), len(base.splitlines()) - 1
        assert lines <= most, f"{config}: expected at most {most} lines, fewer than base.yaml has, got {lines}"
        repeated = set(_leaves(yaml.safe_load(config.read_text()))) & set(_leaves(yaml.safe_load(base))) - REPEATED
        assert not repeated, f"{config} repeats base.yaml: leave out {sorted(key for key, _ in repeated)}"


def test_another_optimizer_keeps_what_is_not_given(build, tmp_path):
    page = (ROOT / "docs" / "training.md").read_text()
    (given,) = [block for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL) if "RMSprop" in block]
    (tmp_path / "given.yaml").write_text(given)
    (tmp_path / "named.yaml").write_text("model: {optimizer: {class_path: torch.optim.RMSprop}}")
    for config, expected in (("given", (0.001, 0)), ("named", (0.01, 0.9))):
        cli = build("configs/res20.yaml", "--config", str(tmp_path / f"{config}.yaml"))
        made = cli.model.configure_optimizers()["optimizer"]
        assert isinstance(made, torch.optim.RMSprop)
        assert (made.param_groups[0]["lr"], made.param_groups[0]["momentum"]) == expected, config


OF_A_USER = """
import pytorch_lightning as pl
import torch

class Data(pl.LightningDataModule):
    def __init__(self, root: str = "mine", val_size: int = 7):
        super().__init__()

class Nesterov(torch.optim.SGD):
    def __init__(self, weights, lr: float = 1.0, momentum: float = 0.5, nesterov: bool = True):
        super().__init__(weights, lr, momentum, nesterov=nesterov)
"""


def test_what_base_yaml_does_not_say_is_each_class_s_own(tmp_path, monkeypatch, capsys):
    """Not CIFAR10's val_size or SGD's nesterov."""
    (tmp_path / "of_a_user.py").write_text(OF_A_USER)
    monkeypatch.syspath_prepend(tmp_path)
    words = ("--data", "of_a_user.Data", "--model.optimizer", "of_a_user.Nesterov", "--model.net", "CifarResNet")
    with pytest.raises(SystemExit):
        run_training(["fit", *words, "--print_config"])
    found = yaml.safe_load(capsys.readouterr().out)
    assert found["data"]["init_args"] == {"root": "data", "val_size": 7}
    assert found["model"]["optimizer"]["init_args"] == {"lr": 0.01, "momentum": 0.9, "nesterov": True}


def test_the_penalty_is_the_module_s_whatever_the_optimizer(capsys):
    """AdamW's own default would be refused."""
    with pytest.raises(SystemExit):
        run_training(
            [
                "fit",
                "--config",
                str(ROOT / "configs" / "res20.yaml"),
                "--model.optimizer",
                "torch.optim.AdamW",
                "--print_config",
            ]
        )
    assert yaml.safe_load(capsys.readouterr().out)["model"]["optimizer"]["init_args"]["weight_decay"] == 0


# Kept where they are left out, also by an optimizer of another class: repeated for readers only.
REPEATED = {("model.optimizer.class_path", "torch.optim.SGD"), ("model.optimizer.init_args.momentum", 0.9)}


def _leaves(tree: dict, prefix: str = "") -> list[tuple[str, object]]:
    found = []
    for key, value in tree.items():
        if isinstance(value, dict):
            found += _leaves(value, f"{prefix}{key}.")
        elif not isinstance(value, list):
            found.append((prefix + key, value))
    return found


@pytest.mark.parametrize(
    ("stage", "held"),
    [("11-23-quickstart-test", False), ("11-23-quickstart-second-test", True), ("11-29-quickstart-third-test", True)],
)
def test_the_quickstart_is_the_setting_whose_prediction_held(stage, held):
    table = pd.read_csv(ROOT / "docs" / "results" / f"2026-{stage}.csv", comment="#")
    ends = table[table["epoch"] == table["epochs"]].groupby("arm")["test/error"]
    assert ends.count().to_dict() == {"plain": 13, "residual": 13}
    assert (ends.min()["plain"] > 0.5 and ends.max()["residual"] < 0.25) == held
    shipped, (of_all,) = yaml.safe_load((ROOT / "configs/quickstart.yaml").read_text()), table["other"].isna().unique()
    names = ["net", "depth", "width", "optimizer", "lr", "image_size", "batch_size", "epochs"]
    (setting,) = table[names].drop_duplicates().itertuples(index=False)
    model, data, trainer = (shipped[part] for part in ("model", "data", "trainer"))
    of_run = [model["optimizer"]["class_path"].removeprefix("torch.optim."), model["optimizer"]["init_args"]["lr"]]
    of_run += [data["init_args"]["image_size"], data["init_args"]["batch_size"], trainer["max_epochs"]]
    for arm, spec in model["arms"].items():
        net = spec["net"]["init_args"]
        found = [spec["net"]["class_path"], net["depth"], net["width"], *of_run] == [*setting]
        assert of_all and found == held and net["residual"] == (arm == "residual")


def test_every_configuration_starts_with_what_it_serves():
    for config in CONFIGS:
        assert config.read_text().startswith("# "), (
            f"{config}: expected a comment first that says what it serves, got none"
        )
    assert Path(CONFIGS[0]).parent.name == "configs"
