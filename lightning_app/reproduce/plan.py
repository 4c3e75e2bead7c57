"""What an artefact needs: training runs at a scale. A scale changes epochs, seeds and the subset of data, nothing else."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from lightning_app.runs.places import PLACES
from lightning_app.seeds import parse_seeds
from lightning_app.shipped import configs

__all__ = ["CONFIGS", "PAPER", "SCALES", "SMOKE", "Plan", "Run", "Scale", "digest_of", "group_of"]

CONFIGS = configs()


@dataclass(frozen=True)
class Scale:
    """Caps on what a run does at full size; None caps nothing."""

    name: str
    epochs: int | None = None
    seeds: int | None = None
    train_limit: int | None = None
    test_limit: int | None = None


SMOKE = Scale("smoke", epochs=2, seeds=2, train_limit=512, test_limit=500)
PAPER = Scale("paper")
SCALES = {scale.name: scale for scale in (SMOKE, PAPER)}


@dataclass(frozen=True)
class Run:
    """One YAML below configs/papers/<paper>/, trained with several seeds."""

    name: str  # the file's stem, and the run folder's name
    seeds: int = 1  # at paper scale: 0 to seeds - 1


@dataclass(frozen=True)
class Plan:
    """A run at a scale: what to ask of ``fit``, and how to recognise a run that did it."""

    paper: str
    run: Run
    scale: Scale

    @property
    def name(self) -> str:
        return self.run.name

    @property
    def group(self) -> str:
        return group_of(self.paper, self.scale)

    @property
    def config(self) -> Path:
        return CONFIGS / "papers" / self.paper / f"{self.name}.yaml"

    @property
    def seeds(self) -> tuple[int, ...]:
        return parse_seeds(min(self.run.seeds, self.scale.seeds or self.run.seeds))

    @cached_property
    def epochs(self) -> int:
        full = self._layers["trainer"]["max_epochs"]
        return min(full, self.scale.epochs or full)

    @cached_property
    def arms(self) -> list[str]:
        """Names of the arms, in the configuration's order."""
        return list(self._layers["model"].get("arms") or ["net"])

    @property
    def options(self) -> dict[str, str]:
        """Options of ``fit`` that make the scale; the seeds are chosen by whoever runs it."""
        return {
            "trainer.max_epochs": str(self.epochs),
            "data.init_args.train_limit": _spelled(self.scale.train_limit),
            "data.init_args.test_limit": _spelled(self.scale.test_limit),
        }

    @cached_property
    def digest(self) -> str:
        """16 hex digits of all that the plan says of a run but its place, speed and seeds. The run keeps it."""
        asked = {**_leaves(self._layers), **self.options}
        science = {key: value for key, value in asked.items() if not key.startswith(PLACES)}
        return digest_of(science)

    def matches(self, config: Mapping[str, Any]) -> bool:
        """Was a run with this configuration trained for this plan? One that a user started, whatever it did, was not."""
        return (config.get("run") or {}).get("plan") == self.digest

    def decides(self, key: str) -> bool:
        """Does the plan's own YAML say what an option of place is to be, like one CPU for equal rounding?"""
        return key in _leaves(yaml.safe_load(self.config.read_text()))

    @cached_property
    def _layers(self) -> dict[str, Any]:
        """base.yaml with the paper's YAML on top, as ``fit`` layers them."""
        return _merged(*(yaml.safe_load(path.read_text()) for path in (CONFIGS / "base.yaml", self.config)))


def group_of(paper: str, scale: Scale) -> str:
    """Folder of a paper's runs and computations below the root of all runs."""
    return paper if scale is PAPER else f"{paper}-{scale.name}"


def digest_of(science: Mapping[str, Any]) -> str:
    """16 hex digits that change with whatever decides a result."""
    return hashlib.sha256(json.dumps(science, sort_keys=True).encode()).hexdigest()[:16]


def _merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Deep merge. A class that replaces another one brings its own arguments, as jsonargparse has it."""
    result = dict(base)
    if over.get("class_path", base.get("class_path")) != base.get("class_path"):
        result.pop("init_args", None)
    for key, value in over.items():
        deep = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = _merged(result[key], value) if deep else value
    return result


def _leaves(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Values by dotted key; lists are values.

    >>> _leaves({"model": {"seeds": 3, "arms": {"plain": {"net": None}}}})
    {'model.seeds': 3, 'model.arms.plain.net': None}
    """
    if not isinstance(tree, Mapping):
        return {prefix.rstrip("."): tree}
    return {key: value for name, branch in tree.items() for key, value in _leaves(branch, f"{prefix}{name}.").items()}


def _spelled(value: int | None) -> str:
    return "null" if value is None else str(value)
