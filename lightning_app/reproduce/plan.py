"""What an artefact needs: training runs at a scale. A scale changes epochs, seeds and the subset of data, nothing else.

Smoke scale shows in minutes that everything runs, and tests nothing. Paper scale is what the paper did. Reduced scale, in
between, has fewer epochs (and the drops of the learning rate at the same fractions of them) on all data: it judges
orderings and dimensionless ratios only, in words of its own.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from lightning_app.common.packaged import configs
from lightning_app.common.seeds import parse_seeds
from lightning_app.runs.configuration import NOT_COMPARED

__all__ = ["CONFIGS", "PAPER", "REDUCED", "SCALES", "SMOKE", "Plan", "Reduced", "Run", "Scale", "digest_of", "group_of"]

CONFIGS = configs()
# Beginnings of keys that decide what is looked at, and when, not what is trained. That a claim's measures are there is
# checked where the claim reads them.
OBSERVING = ("trainer.callbacks", "trainer.num_sanity_val_steps", "trainer.check_val_every_n_epoch")
# Digest -> the one under which commit 5294020 and those before it trained the same: they hashed what is looked at, too.
EARLIER = {
    "363f52347e6362d4": "a3abc04591b02f37",  # yu-tomasi/depth20
    "896ce67d03ca3ba1": "ba3793286f3f8a3b",  # yu-tomasi/depth32
    "6a9aec4ed7afb424": "468159c8b4f998a2",  # yu-tomasi/plain44
    "9df1a317691ec120": "c90783f5be069ab0",  # yu-tomasi/residual44
    "acfdc14bdb0d61f9": "f7f9b825ca76017d",  # yu-tomasi/equivalent20
    "840ba2c9414e08cf": "b49185f569b9b919",  # yu-tomasi/equivalent32
    "d08d5745b8d8b393": "65c3dccedbbde472",  # yu-tomasi/equivalent44
    "4107b53f01c405f8": "0972dc73487f19d6",  # yu-tomasi/fig2
    "1bd16eb3854eff9e": "fe3daea6af6adf92",  # yu-tomasi/full20
    "571720c3c1155e25": "8dfbfb7a988d813a",  # li-et-al/fig9_20
    "d8b5ea84451ccf81": "801ffd57dc6175e2",  # li-et-al/fig9_38
    "6fb6b4a739f80958": "fa9aec4f1cf60f06",  # li-et-al/fig9_56
    "512f1a0ba9b4ebe8": "60d8717019b73df7",  # li-et-al/fig9_110
    "6f3843daefde68c0": "690fc22abd8b3c34",  # littwin-wolf/separable
    "8679661a4ee64b56": "0d850b2ed7325778",  # littwin-wolf/fast
    "b5c29f18015e83fa": "e21f8374954f9948",  # littwin-wolf/unnormalised_separable
    "d490cf8474e06649": "cd785f6cb590266a",  # littwin-wolf/unnormalised_overlapping
    "e13248a1bb0d3f87": "3aaabf27d4470a53",  # littwin-wolf/cifar10
    "0ee186eb6877cdcb": "24bebde4d10a4940",  # littwin-wolf/cifar100
    "ba7342932a04b60b": "c7c8b10fd63627d2",  # littwin-wolf/overlapping
}


@dataclass(frozen=True)
class Scale:
    """Caps on what a run does at full size; None caps nothing."""

    name: str
    epochs: int | None = None
    seeds: int | None = None
    train_limit: int | None = None
    test_limit: int | None = None


SMOKE = Scale("smoke", epochs=2, seeds=2, train_limit=512, test_limit=500)
REDUCED = Scale("reduced")
PAPER = Scale("paper")
SCALES = {scale.name: scale for scale in (SMOKE, REDUCED, PAPER)}


@dataclass(frozen=True)
class Reduced:
    """What a run does at reduced scale."""

    epochs: int
    milestones: tuple[int, ...]  # epochs after which the learning rate drops
    seeds: int


@dataclass(frozen=True)
class Run:
    """One YAML below configs/papers/<paper>/, trained with several seeds."""

    name: str  # the file's stem, and the run folder's name
    seeds: int = 1  # at paper scale: 0 to seeds - 1
    reduced: Reduced | None = None  # None: there is no reduced scale of it


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
        if self.reduced:
            return parse_seeds(self.reduced.seeds)
        return parse_seeds(min(self.run.seeds, self.scale.seeds or self.run.seeds))

    @property
    def reduced(self) -> Reduced | None:
        """What is asked for at reduced scale; None at the others."""
        return self.run.reduced if self.scale is REDUCED else None

    @property
    def epochs_of_the_paper(self) -> int:
        return self._layers["trainer"]["max_epochs"]

    @property
    def out_of(self) -> str:
        """ " (the paper: 200)" where that is more than is asked for at reduced scale."""
        return f" (the paper: {self.epochs_of_the_paper})" if self.reduced else ""

    @cached_property
    def epochs(self) -> int:
        if self.reduced:
            return self.reduced.epochs
        return min(self.epochs_of_the_paper, self.scale.epochs or self.epochs_of_the_paper)

    @cached_property
    def arms(self) -> list[str]:
        """Names of the arms, in the configuration's order."""
        return list(self._layers["model"].get("arms") or ["net"])

    @property
    def options(self) -> dict[str, str]:
        """Options of ``fit`` that make the scale; the seeds are chosen by whoever runs it."""
        asked = {
            "trainer.max_epochs": str(self.epochs),
            "data.init_args.train_limit": _spelled(self.scale.train_limit),
            "data.init_args.test_limit": _spelled(self.scale.test_limit),
        }
        if self.reduced:
            asked["model.scheduler.init_args.milestones"] = str([*self.reduced.milestones])
            asked["trainer.check_val_every_n_epoch"] = "2"  # levels of risk are passed sooner
        # A few epochs are all evaluated: the YAML's rhythm might miss them.
        return asked | ({"trainer.check_val_every_n_epoch": "1"} if self.scale.epochs else {})

    @cached_property
    def digest(self) -> str:
        """16 hex digits of what is trained: data, model, optimizer, penalty, schedule and epochs. The run keeps it.

        Not of where and how fast, of the seeds, nor of what is looked at meanwhile.
        """
        asked = {**_leaves(self._layers), **self.options}
        return digest_of(
            {key: value for key, value in asked.items() if not key.startswith((*NOT_COMPARED, *OBSERVING))}
        )

    def matches(self, config: Mapping[str, Any]) -> bool:
        """Was a run with this configuration trained for this plan? One that a user started, whatever it did, was not."""
        return (config.get("run") or {}).get("plan") in (self.digest, EARLIER.get(self.digest, self.digest))

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
