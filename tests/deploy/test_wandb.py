"""Sweeps ask for what the command line has; the dashboard names keys that runs record. Saving either needs an account."""

import itertools
import math
import re
import warnings
from pathlib import Path

import pytest
import yaml

from lightning_app.common.seeds import parse_seeds
from lightning_app.runs import RunFolder
from tests.deploy.support import DEPLOY, DIGITS, checkout, configuration, recorded
from tests.helpers import OFFLINE, ROOT, built, command

SWEEPS = sorted((DEPLOY / "wandb").glob("*.yaml"))
AXES = {"model.net.init_args.depth", "model.net.init_args.residual", "model.seeds"}


def trials(sweep: dict) -> list[dict]:
    """Every cell of the grid, as an agent gets it."""
    names, values = zip(*((name, parameter["values"]) for name, parameter in sweep["parameters"].items()))
    return [{name: {"value": value} for name, value in zip(names, cell)} for cell in itertools.product(*values)]


def words(sweep: dict, trial: dict) -> list[str]:
    """The trial's command line, its macros filled by W&B's own code."""
    from wandb.sdk.launch.sweeps.utils import create_sweep_command, create_sweep_command_args

    macros = create_sweep_command_args({"args": trial})
    macros |= {"env": ["/usr/bin/env"], "interpreter": ["python"], "program": [sweep["program"]]}
    filled = [macros[word[2:-1]] if re.fullmatch(r"\$\{\w+\}", word) else [word] for word in sweep["command"]]
    return create_sweep_command(list(itertools.chain.from_iterable(filled)))


@pytest.mark.parametrize("file", SWEEPS, ids=lambda file: file.stem)
def test_a_sweep_is_a_grid_of_depth_residual_and_seed(file):
    sweep = yaml.safe_load(file.read_text())
    assert (sweep["method"], set(sweep["parameters"])) == ("grid", AXES)
    (size,) = re.findall(r"(\d+) x (\d+) x (\d+) runs", file.read_text())
    assert len(trials(sweep)) == int(size[0]) * int(size[1]) * int(size[2])


@pytest.mark.parametrize("file", SWEEPS, ids=lambda file: file.stem)
def test_the_corners_of_a_sweep_build_what_they_say(file, tmp_path):
    sweep, app = yaml.safe_load(file.read_text()), checkout(tmp_path)
    for trial in (trials(sweep)[0], trials(sweep)[-1]):
        call = words(sweep, trial)
        assert call[:3] == ["/usr/bin/env", "python", "main.py"]
        model = built(*call[3:], cwd=app).model
        depth, residual, seeds = (trial[name]["value"] for name in sorted(AXES))
        ((_, net),) = model.members
        assert (len(net.layers()), net.residual) == (depth, residual)
        assert model.data_seeds == parse_seeds(seeds)


def test_the_sweeps_learning_rates_are_those_of_the_depths():
    """A sweep takes its recipe from one configuration: it must hold for both kinds at every depth of the grid."""
    for file in SWEEPS:
        sweep = yaml.safe_load(file.read_text())
        own = sweep["command"][sweep["command"].index("--config") + 1]
        prefix = Path(own).stem.removesuffix("res20")
        depths = sweep["parameters"]["model.net.init_args.depth"]["values"]
        named = [f"configs/{prefix}{kind}{depth}.yaml" for kind in ("pln", "res") for depth in depths]
        models = [yaml.safe_load((ROOT / name).read_text())["model"] for name in (own, *named)]
        optimizers = [model.get("optimizer", {}).get("init_args", {}) for model in models]
        assert [each.get("lr") for each in optimizers] == [optimizers[0].get("lr")] * len(models), file.name


@pytest.mark.slow
def test_a_trial_is_recorded_under_the_sweeps_name(tmp_path):
    sweep = yaml.safe_load((DEPLOY / "wandb/simplified.yaml").read_text())
    call = words(sweep, trials(sweep)[-1])[3:]
    agent = {"WANDB_SWEEP_ID": "sweep7", "WANDB_RUN_ID": "trial42"}
    small = (*DIGITS, "--trainer.callbacks", "TrainingMetrics")
    done = command(*call, *small, cwd=checkout(tmp_path), env=OFFLINE | agent)
    assert done.returncode == 0, done.stderr
    (run,) = [record["run"] for record in recorded(tmp_path / "runs/sweep/simplified") if record["type"] == "run"][:1]
    assert (run["sweep_id"], run["run_id"], run["run_group"]) == ("sweep7", "trial42", "sweep")


@pytest.fixture
def dashboard(monkeypatch):
    monkeypatch.syspath_prepend(DEPLOY / "wandb")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the library's own, of pydantic
        pytest.importorskip("wandb_workspaces.workspaces", reason="pip install wandb-workspaces to build the dashboard")
        import workspace

    return workspace.workspace("somebody", "skipscope")


def test_without_an_account_the_dashboard_says_so_in_a_sentence(dashboard, monkeypatch, capsys):
    import workspace
    from wandb.errors import UsageError

    def refuse(_):
        raise UsageError("No API key configured. Use `wandb login` to log in.")

    monkeypatch.setattr(workspace.ws.Workspace, "save", refuse)
    monkeypatch.setattr("sys.argv", ["workspace.py", "somebody"])
    with pytest.raises(SystemExit) as ended:
        workspace.main()
    assert ended.value.code == 2
    assert (
        capsys.readouterr().err
        == "error: the dashboard cannot be saved: No API key configured. Use `wandb login` to log in.\n"
    )


def panels(dashboard) -> list[dict]:
    """The configurations of all panels, as they would be saved."""
    spec = dashboard._to_model().model_dump(by_alias=True, exclude_none=True)["spec"]  # the library has no public way
    return [
        panel["config"] for section in spec["section"]["panelBankConfig"]["sections"] for panel in section["panels"]
    ]


def named(panel: dict) -> set[str]:
    return {*panel["metrics"], *([panel["xAxis"]] if "xAxis" in panel else [])}


def patterns(dashboard) -> list[str]:
    """Of panels that draw whatever matches."""
    return [panel["metricRegex"] for panel in panels(dashboard) if panel.get("useMetricRegex")]


def test_every_panel_shows_the_spread_over_runs(dashboard):
    assert len(panels(dashboard)) > 20
    for panel in panels(dashboard):
        assert (panel["groupAgg"], panel["groupArea"]) == ("mean", "stddev"), panel["chartTitle"]


def test_titles_are_unique_within_a_section(dashboard):
    for section in dashboard.sections:
        titles = [panel.title for panel in section.panels]
        assert len(set(titles)) == len(titles)


SMALL = (*DIGITS, "--data.train_limit", "32", "--data.batch_size", "16")
NETS = [f"--model.{net}.init_args.width=4" for net in ("net", "arms.plain.net", "arms.residual.net")]
FEW = {  # of what takes most time
    "EffectiveDepth": {"samples": 4, "gradient_samples": 2},
    "HessianSpectrum": {"samples": 4, "steps": 4, "probe_steps": 4},
    "DrivingForce": {"samples": 4},
}


def trained(app: Path, config: str, name: str, *more: str) -> Path:
    """A run of narrow nets, with base.yaml's callbacks on few samples below the configuration."""
    listed = yaml.safe_load((ROOT / "configs/base.yaml").read_text())["trainer"]["callbacks"]
    few = [each | {"init_args": each.get("init_args", {}) | FEW.get(each["class_path"], {})} for each in listed]
    (app / "few.yaml").write_text(yaml.safe_dump({"trainer": {"callbacks": few}}))
    nets = NETS[1:] if config.startswith("pair") else NETS[:1]
    words = ("--config", app / "few.yaml", "--config", f"configs/{config}.yaml", "--run.name", name)
    done = command("fit", *words, *SMALL, *nets, *more, cwd=app, env=OFFLINE)
    assert done.returncode == 0, done.stderr
    return app / "runs" / "cifar10" / name


@pytest.fixture(scope="module")
def banks(tmp_path_factory) -> Path:
    """Runs of two seeds: of one arm, with BatchNorm and without, and of two."""
    app = checkout(tmp_path_factory.mktemp("banks"))
    scales = ("--trainer.callbacks", "BnLambda", "--trainer.callbacks+", "DrivingForce")
    for config, name, more in (("res20", "arm", ()), ("full_res20", "full", scales), ("pair20", "job", ())):
        trained(app, config, name, "--model.seeds", "3-4", *more)
    return app / "runs" / "cifar10"


@pytest.mark.slow
def test_every_key_of_the_dashboard_is_recorded_by_a_real_run(dashboard, pods, banks, tmp_path):
    app = checkout(tmp_path)
    singles = (
        trained(app, "full_res20", "full"),
        trained(app, "res20", "res20", "--trainer.callbacks", "HessianSpectrum"),  # of a net with ID entries
    )
    runs = (*singles, pods / "runs/yu-tomasi/fig2-seed0", *(banks / name for name in ("arm", "full", "job")))
    found = set().union(*(keys(recorded(run)) for run in runs))
    assert not set().union(*map(named, panels(dashboard))) - found
    assert patterns(dashboard)
    for pattern in patterns(dashboard):
        drawn = {key for key in found if re.search(pattern, key)}
        assert {key.split("/")[1] for key in drawn} == {"03", "04"}
        assert {re.split(r"/(?=plain$|residual$)", key)[-1] for key in drawn} >= {"plain", "residual"}


@pytest.mark.slow
def test_infinite_upper_ends_are_words_and_not_in_the_dashboard(dashboard, banks):
    """W&B records a string there, and its panels draw numbers; a mean over seeds has none to take."""
    upper = "hessian/condition10_high"
    log = RunFolder(banks / "arm").log().query("name == @upper and epoch == 1")["value"]
    assert log.tolist() == [math.inf, math.inf]
    rows = [record["history"]["item"] for record in recorded(banks / "arm") if record["type"] == "history"]
    (last,) = [row for row in rows if row["epoch"] == 1 and f"seed/03/{upper}" in row]
    assert (last[f"seed/03/{upper}"], last[f"{upper}/mean"]) == ("Infinity", "NaN")
    assert not any(upper in key for panel in panels(dashboard) for key in named(panel))
    assert {f"{upper.removesuffix('high')}low"} < set().union(*map(named, panels(dashboard)))


@pytest.mark.slow
def test_a_run_is_found_by_what_it_is_and_holds_its_whole_configuration(banks):
    records = recorded(banks / "job")
    run = next(record["run"] for record in records if record["type"] == "run")
    assert (run["run_group"], run["job_type"]) == ("cifar10", "fit")
    assert run["tags"] == ["Digits", "SimplifiedNet", "depth 20", "plain", "residual"]
    assert configuration(records) == RunFolder(banks / "job").config()
    assert configuration(records)["model"]["seeds"] == "3-4"


def test_runs_are_grouped_by_keys_of_the_configuration(dashboard):
    """`model.value.net...` in W&B's spelling; each exists in the configuration of a single net or of a bank."""
    spec = dashboard._to_model().model_dump(by_alias=True, exclude_none=True)["spec"]
    (runs,) = spec["section"]["runSets"]
    configs = [yaml.safe_load((ROOT / f"configs/{name}.yaml").read_text()) for name in ("base", "res20", "pair20")]
    names = {key["name"].replace(".value", "", 1) for key in runs["grouping"]}
    assert {"model.optimizer.init_args.lr", "run.group"} <= names
    assert not names & {"run.name", "model.seeds"}, "in which the tasks of a job array differ"
    for key in runs["grouping"]:
        assert key["section"] == "config"
        first, value, *rest = key["name"].split(".")
        assert value == "value"
        assert any(_reach(config, [first, *rest]) is not None for config in configs), key


def _reach(tree, path: list[str]):
    for name in path:
        tree = tree.get(name) if isinstance(tree, dict) else None
    return tree


def keys(records: list[dict]) -> set[str]:
    """Every key of the history rows."""
    return {key for record in records if record["type"] == "history" for key in record["history"]["item"]}
