"""What a scale may change, and how a run that did what a plan asks is recognised."""

import pytest
import yaml

from lightning_app.reproduce.plan import PAPER, SMOKE, Plan, Run
from tests.reproduce.conftest import written_config

DEPTH_20 = Plan("yu-tomasi", Run("depth20", seeds=3), PAPER)
SMOKE_20 = Plan("yu-tomasi", Run("depth20", seeds=3), SMOKE)


def changed(plan: Plan, key: str, value) -> dict:
    config = written_config(plan, plan.seeds)
    place = config
    *path, last = key.split(".")
    for part in path:
        place = place[part]
    place[last] = value
    return config


def test_smoke_changes_only_epochs_seeds_and_subset():
    paper, smoke = written_config(DEPTH_20, DEPTH_20.seeds), written_config(SMOKE_20, SMOKE_20.seeds)
    assert paper["trainer"].pop("max_epochs") == 200
    assert smoke["trainer"].pop("max_epochs") == 2
    for config in (paper, smoke):
        config["model"].pop("seeds")
        config["data"]["init_args"].pop("train_limit")
        config["data"]["init_args"].pop("test_limit")
    assert paper == smoke
    assert (DEPTH_20.group, SMOKE_20.group) == ("yu-tomasi", "yu-tomasi-smoke")


def test_a_run_of_the_plan_is_recognised_wherever_and_on_whatever_it_ran():
    assert DEPTH_20.matches(written_config(DEPTH_20, (0, 1, 2)))
    for key, value in (("run.name", "mine"), ("data.init_args.root", "/data"), ("trainer.devices", 8)):
        assert DEPTH_20.matches(changed(DEPTH_20, key, value)), key


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("trainer.max_epochs", 100),
        ("model.weight_decay", 0.0),
        ("model.optimizer.init_args.lr", 0.1),
        ("data.init_args.train_limit", 512),
        ("data.init_args.batch_size", 64),
        ("data.class_path", "lightning_app.datamodules.Digits"),
        ("model.arms.plain.net.init_args.depth", 32),
    ],
)
def test_a_run_of_something_else_is_not(key, value):
    assert not DEPTH_20.matches(changed(DEPTH_20, key, value))


def test_a_configuration_that_spells_classes_in_full_is_the_same():
    full = "lightning_app.networks.simplified.SimplifiedNet"
    assert DEPTH_20.matches(changed(DEPTH_20, "model.arms.plain.net.class_path", full))


def test_smoke_runs_do_not_pass_for_paper_runs():
    assert not DEPTH_20.matches(written_config(SMOKE_20, (0, 1)))


def test_every_paper_yaml_names_its_own_group_and_run():
    for path in (DEPTH_20.config.parent).glob("*.yaml"):
        run = yaml.safe_load(path.read_text())["run"]
        assert run == {"group": "yu-tomasi", "name": path.stem}
