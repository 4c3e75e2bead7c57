"""Recipes: how a paper's nets are trained, as the shipped configurations below configs/papers/ say it."""

from pathlib import Path
from typing import Any

import yaml

from lightning_app.common.provenance import configs
from lightning_app.runs.configuration import layered

CONFIGS = configs()


def path_of(paper: str, run: str) -> Path:
    return CONFIGS / "papers" / paper / f"{run}.yaml"


def own(paper: str, run: str) -> dict[str, Any]:
    """What the run's YAML says itself."""
    return yaml.safe_load(path_of(paper, run).read_text(encoding="utf-8"))


def recipe(paper: str, run: str) -> dict[str, Any]:
    """base.yaml with the run's YAML on top, as ``fit`` layers them."""
    return layered(yaml.safe_load((CONFIGS / "base.yaml").read_text(encoding="utf-8")), own(paper, run))
