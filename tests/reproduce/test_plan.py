"""What a scale may change, and how a run that did what a plan asks is recognised."""

import pytest
import yaml

from lightning_app.papers import PAPERS, find
from lightning_app.papers.parts import PAPER, REDUCED, SMOKE, Reduced, Run
from lightning_app.papers.recipes import CONFIGS
from lightning_app.reproduce.training import TrainingJob
from tests.reproduce.conftest import written_config

DEPTH_20 = TrainingJob("yu-tomasi", Run("depth20", seeds=3), PAPER)
SMOKE_20 = TrainingJob("yu-tomasi", Run("depth20", seeds=3), SMOKE)


def changed(plan: TrainingJob, key: str, value) -> dict:
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
    # which changes nothing that is trained: only when it is looked at
    assert paper["trainer"].pop("check_val_every_n_epoch") == 5
    assert smoke["trainer"].pop("check_val_every_n_epoch") == 1
    limits = {"train_limit": SMOKE.train_limit, "test_limit": SMOKE.test_limit}
    for config, capped in ((paper, dict.fromkeys(limits)), (smoke, limits)):
        config["run"].pop("plan")
        config["model"].pop("seeds")
        assert {key: config["data"]["init_args"].pop(key) for key in limits} == capped
    assert paper == smoke
    assert (DEPTH_20.group, SMOKE_20.group) == ("yu-tomasi", "yu-tomasi-smoke")


def test_reduced_scale_changes_only_epochs_drops_and_seeds():
    reduced = TrainingJob("yu-tomasi", Run("depth20", seeds=3, reduced=Reduced(30, (15, 22), seeds=2)), REDUCED)
    assert (reduced.seeds, reduced.epochs, reduced.epochs_of_the_paper) == ((0, 1), 30, 200)
    configs = [written_config(plan, (0, 1)) for plan in (DEPTH_20, reduced)]
    drops = [config["model"]["scheduler"]["init_args"].pop("milestones") for config in configs]
    assert drops[1] == [15, 22] != drops[0] and len(drops[0]) == 2
    assert [config["trainer"].pop("max_epochs") for config in configs] == [200, 30]
    for config in configs:
        config["run"].pop("plan")
        config["trainer"].pop("check_val_every_n_epoch")  # only when it is looked at
    assert configs[0] == configs[1]
    assert reduced.digest != DEPTH_20.digest and reduced.group == "yu-tomasi-reduced"


def test_a_run_of_the_plan_is_recognised_wherever_and_on_whatever_it_ran():
    assert DEPTH_20.matches(written_config(DEPTH_20, (0, 1, 2)))
    for key, value in (("run.name", "mine"), ("data.init_args.root", "/data"), ("trainer.devices", 8)):
        assert DEPTH_20.matches(changed(DEPTH_20, key, value)), key


def test_a_run_that_a_user_started_is_not_taken_for_the_plan_s():
    """It may have any option on top, which no comparison of configurations would see for sure."""
    assert not DEPTH_20.matches(changed(DEPTH_20, "run.plan", None))
    assert not DEPTH_20.matches({})


def test_the_digest_hangs_on_the_experiment_and_on_nothing_else(monkeypatch, tmp_path):
    def digest(text: str, over: str = "") -> str:
        monkeypatch.setattr("lightning_app.papers.recipes.CONFIGS", tmp_path)
        (tmp_path / "papers" / "yu-tomasi").mkdir(parents=True, exist_ok=True)
        (tmp_path / "base.yaml").write_text(text)
        (tmp_path / "papers" / "yu-tomasi" / "depth20.yaml").write_text(f"run: {{name: depth20}}\n{over}")
        return TrainingJob("yu-tomasi", Run("depth20"), PAPER).digest

    base = "model: {weight_decay: 0.1}\ntrainer: {max_epochs: 3, callbacks: [{class_path: TrainingMetrics}]}\n"
    assert digest(base) == digest(base + "run: {group: elsewhere}\n") == digest(base + "data: {init_args: {root: x}}\n")
    assert digest(base) != digest(base.replace("0.1", "0.2"))
    assert digest(base) != digest(base + "data: {init_args: {batch_size: 64}}\n")
    less_often = base.replace("callbacks:", "check_val_every_n_epoch: 2, callbacks:")
    looked_at = less_often.replace("TrainingMetrics", "WeightMass")
    assert digest(base) == digest(looked_at), "measuring less often must not orphan a run"
    assert digest(base) != digest(base, "data: {init_args: {train_limit: 5, augment: false}}\n")
    assert SMOKE_20.digest != DEPTH_20.digest


def test_a_run_does_not_match_once_the_experiment_is_another_one(monkeypatch, tmp_path):
    (tmp_path / "papers" / "yu-tomasi").mkdir(parents=True)
    (tmp_path / "base.yaml").write_text((CONFIGS / "base.yaml").read_text())
    theirs = (CONFIGS / "papers" / "yu-tomasi" / "plain44.yaml").read_text()
    (tmp_path / "papers" / "yu-tomasi" / "plain44.yaml").write_text(theirs.replace("lr: 0.001", "lr: 0.5"))
    old = {"run": {"plan": TrainingJob("yu-tomasi", Run("plain44"), PAPER).digest}}
    assert TrainingJob("yu-tomasi", Run("plain44"), PAPER).matches(old)
    monkeypatch.setattr("lightning_app.papers.recipes.CONFIGS", tmp_path)
    assert not TrainingJob("yu-tomasi", Run("plain44"), PAPER).matches(old)


def test_what_the_plan_s_own_yaml_decides():
    twins = TrainingJob("yu-tomasi", Run("equivalent20"), PAPER)
    assert twins.decides("trainer.accelerator")
    assert not DEPTH_20.decides("trainer.accelerator")


def test_smoke_runs_do_not_pass_for_paper_runs():
    assert not DEPTH_20.matches(written_config(SMOKE_20, (0, 1)))


@pytest.mark.parametrize("paper", PAPERS)
def test_every_paper_yaml_names_its_own_group_and_run(paper):
    found = list((CONFIGS / "papers" / paper).glob("*.yaml"))
    assert bool(found) == any(artefact.runs for _, artefact in find(paper))
    for path in found:
        assert yaml.safe_load(path.read_text())["run"] == {"group": paper, "name": path.stem}
