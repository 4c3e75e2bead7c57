"""The manifests are what Kubernetes expects, and their commands really run: two indices, a replaced pod, the report."""

import re
import shutil
import signal

import pytest
import yaml

from lightning_app.common.signals import Stopped
from lightning_app.runs import RunFolder, find_runs
from tests.deploy.support import DEPLOY, DIGITS, arguments, checkout, manifest, pod
from tests.helpers import ROOT, command

FILES = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
JOBS = ("data", "seeds", "report")
OLDEST = "1.33"  # where backoffLimitPerIndex is stable, as seeds.yaml says
FIG_2 = "runs/yu-tomasi/fig2-seed"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_manifest_fits_kubernetes_schema(file):
    validator = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate to check manifests")
    for resource in yaml.safe_load_all(file.read_text()):
        validator.validate(resource, OLDEST, strict=True)


@pytest.mark.parametrize("name", JOBS)
def test_volumes_are_claimed_and_mounted_where_the_image_has_them(name):
    claims = {
        claim["metadata"]["name"] for claim in yaml.safe_load_all((DEPLOY / "kubernetes/storage.yaml").read_text())
    }
    volumes = {
        volume["name"]: volume["persistentVolumeClaim"]["claimName"] for volume in pod(manifest(name))["volumes"]
    }
    (container,) = pod(manifest(name))["containers"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert set(volumes.values()) <= claims
    assert mounts.keys() == volumes.keys()
    assert set(mounts.values()) <= set(re.findall(r"/app/\w+", (ROOT / "Dockerfile").read_text()))


@pytest.mark.parametrize("name", JOBS)
def test_no_container_is_root_or_may_become_it(name):
    (container,) = pod(manifest(name))["containers"]
    assert pod(manifest(name))["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def test_every_seed_of_figure_2_is_an_index():
    spec = manifest("seeds")["spec"]
    config = yaml.safe_load((ROOT / "configs/papers/yu-tomasi/fig2.yaml").read_text())
    assert spec["completionMode"] == "Indexed"
    assert spec["completions"] == config["model"]["seeds"]


def test_what_the_job_does_about_a_pods_end():
    """Exit codes are those of the command line: 143 has saved, 2 would come again."""
    terminated = Stopped(signal.SIGTERM).code
    rules = manifest("seeds")["spec"]["podFailurePolicy"]["rules"]
    by_code = {code: rule["action"] for rule in rules for code in rule.get("onExitCodes", {}).get("values", [])}
    assert by_code == {terminated: "Ignore", 2: "FailIndex"}
    assert rules[0] == {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    assert pod(manifest("seeds"))["restartPolicy"] == "Never"  # the policy needs it


@pytest.mark.slow
def test_each_index_trains_its_seed_in_its_own_folder(pods):
    runs = {index: RunFolder(pods / f"{FIG_2}{index}") for index in (0, 1)}
    assert find_runs([pods / "runs"]) == list(runs.values())
    for index, run in runs.items():
        assert run.config()["model"]["seeds"] == [index]
        assert ([row.name for row in run.members()], run.finished) == (["plain", "residual"], 1)


@pytest.mark.slow
def test_the_report_merges_the_indices(pods):
    done = command(*arguments(manifest("report")), cwd=pods)
    assert done.returncode == 0, done.stderr
    page = (pods / "runs/yu-tomasi/report.html").read_text()
    assert all(f"fig2-seed{index}" in page for index in (0, 1))
    assert re.search(r"2 seeds", page)


@pytest.mark.slow
def test_a_replaced_pod_resumes_in_its_folder(pods, tmp_path):
    app = checkout(tmp_path)
    shutil.copytree(pods / "runs", app / "runs", dirs_exist_ok=True)
    words = arguments(manifest("seeds"), {"JOB_COMPLETION_INDEX": "0"})
    done = command(*words, *DIGITS, "--trainer.max_epochs", "2", cwd=app)
    assert done.returncode == 0, done.stderr
    epochs = [set(run.log()["epoch"]) for run in find_runs([app / "runs"])]
    assert epochs == [{0, 1, 2}, {0, 1}]


@pytest.mark.slow
def test_the_data_job_trains_nothing_and_leaves_no_run(tmp_path):
    app = checkout(tmp_path)
    done = command(*arguments(manifest("data")), "--data", "Digits", cwd=app, env={"WANDB_MODE": "disabled"})
    assert done.returncode == 0, done.stderr
    assert not list((app / "runs").rglob("*.*"))
