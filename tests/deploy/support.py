"""What the tests of deploy/ share: the manifests, their commands as Kubernetes would run them, and sizes of seconds."""

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import yaml

from tests.helpers import ROOT

DEPLOY = ROOT / "deploy"
# Options that turn any configuration into seconds on the embedded digits.
DIGITS = (
    *("--data", "Digits", "--data.train_limit", "64", "--data.test_limit", "20", "--data.probe_size", "10"),
    *("--data.image_size", "8"),
    *("--data.batch_size", "32", "--trainer.max_epochs", "1", "--trainer.accelerator", "cpu"),
)


def manifest(name: str) -> dict:
    """The one resource of deploy/kubernetes/<name>.yaml."""
    return yaml.safe_load((DEPLOY / "kubernetes" / f"{name}.yaml").read_text())


def pod(job: Mapping) -> dict:
    return job["spec"]["template"]["spec"]


def arguments(job: Mapping, variables: Mapping[str, str] = {}) -> list[str]:
    """What the job's container passes to the image's entry point, ``$(NAME)`` replaced as the kubelet does."""
    (container,) = pod(job)["containers"]
    return [re.sub(r"\$\((\w+)\)", lambda name: variables[name[1]], word) for word in container["args"]]


def checkout(folder: Path) -> Path:
    """A folder in which relative paths mean what they mean in a checkout, and runs land in the folder."""
    for name in ("configs", "deploy", "main.py"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "runs").mkdir()
    return folder


def recorded(run: Path) -> list[dict]:
    """The records of a run's one offline W&B log."""
    (records,) = records_of(run).values()
    return records


def records_of(run: Path) -> dict[str, list[dict]]:
    """The records of a run's offline W&B logs by their folders' names, as W&B's own reader prints them."""
    reader = [str(Path(sys.executable).with_name("wandb")), "leet", "inspect", "--json"]
    logs = sorted(run.glob("wandb/offline-run-*"))
    shown = [subprocess.run([*reader, str(log)], capture_output=True, text=True, check=True).stdout for log in logs]
    return {log.name: [json.loads(line) for line in lines.splitlines()] for log, lines in zip(logs, shown)}


def configuration(records: list[dict]) -> dict:
    """The run's configuration as it is in the end, without W&B's own entries."""
    updates = [record[record["type"]] for record in records if record["type"] in ("run", "config")]
    parts = [update.get("config", update).get("update", {}) for update in updates]
    return {name: value for part in parts for name, value in part.items() if not name.startswith("_")}
