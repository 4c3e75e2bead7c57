"""The nets that claims are about, whoever trained them: ``reproduce`` has those of its runs, the report's page any others.

A claim asks for nets by a recipe: their class, their depths, and the shipped configuration that the paper's are trained by.
What is asked of an arm comes with what it lacks to be the paper's: other data, sizes or rates, fewer epochs or seeds.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

from lightning_app.papers import recipes
from lightning_app.papers.parts import Run
from lightning_app.papers.verdicts import Claim, Sample
from lightning_app.runs.configuration import flatten
from lightning_app.runs.reader import Net

Found = tuple[str, Claim]  # which nets, and what is claimed of them
UNSAID = {  # values of keys that a configuration may leave out
    "data.init_args.train_limit": None,
    "data.init_args.test_limit": None,
    "data.init_args.val_size": 0,
    "data.init_args.augment": True,
    "model.loss": "cross_entropy",
    "model.decays": "all",
    "model.decay_towards": "zero",
    "net.init_args.width": 16,
}


@dataclass(frozen=True)
class Recipe:
    """What the nets of a claim have to be."""

    paper: str
    net: str  # class
    run: Callable[[str, int | None], Run] | None  # by kind and depth: whose YAML trains them; None: trained in any way
    keys: tuple[str, ...] = ()  # of the configuration, those in which nets must not differ from that YAML
    depths: tuple[int, ...] = ()  # those the claim is about; any if empty
    longer: bool = False  # may they be trained longer than the YAML says?


class Arm(ABC):
    """The seeds of one net."""

    label: str
    kind: str  # "plain" or "residual", as it is built; "" if unknown
    depth: int | None

    @abstractmethod
    def final(self, name: str) -> Sample:
        """A number of each seed after the last epoch, and what is missing for it to be the paper's."""


@dataclass(frozen=True)
class Pair:
    """A plain and a residual arm of one depth; seed i of both is the same, where seeds are known."""

    plain: Arm
    residual: Arm

    @property
    def label(self) -> str:
        return f"{self.plain.label} and {self.residual.label}"

    @property
    def depth(self) -> int:
        assert self.plain.depth is not None  # arms of unknown depth are in no pair
        return self.plain.depth

    def final(self, name: str) -> tuple[Sample, Sample]:
        """Of plain and residual."""
        return self.plain.final(name), self.residual.final(name)

    def apart(self, name: str) -> Sample:
        """Plain minus residual, seed by seed."""
        return self.plain.final(name) - self.residual.final(name)


class Nets(Protocol):
    """Some nets, by what claims ask for."""

    def arms(self, recipe: Recipe) -> Sequence[Arm]:
        """Arms of the recipe's class whose kind and depth are known; twins of another arm are none."""

    def pairs(self, recipe: Recipe) -> Sequence[Pair]:
        """Plain and residual arms that belong together, by depth."""


def all_of(*finders: Callable[[Nets], Iterable[Found]]) -> Callable[[Nets], list[Claim]]:
    """The claims that these functions find, one after the other."""
    return lambda nets: [claim for find in finders for _, claim in find(nets)]


def mean_of(samples: Sequence[Sample]) -> Sample:
    """The mean of several numbers, seed by seed."""
    first, *others = samples
    return first.map(lambda *values: sum(values) / len(values), *others)


# -- nets of any runs -----------------------------------------------------------------------------------------------------


def described(spec: Any) -> tuple[str, str, int | None]:
    """Class, kind and depth of a net, of its configuration, whatever that may be.

    >>> described({"class_path": "lightning_app.networks.SimplifiedNet", "init_args": {"depth": 20, "residual": True}})
    ('SimplifiedNet', 'residual', 20)
    """
    spec = spec if isinstance(spec, Mapping) else {}
    arguments = spec.get("init_args") if isinstance(spec.get("init_args"), Mapping) else {}
    residual = arguments.get("residual")
    kind = "" if residual is None else "residual" if residual else "plain"
    return _last(spec.get("class_path")), kind, arguments.get("depth")


@dataclass(frozen=True, eq=False)
class AnyArm(Arm):
    """An arm as its configuration describes it, which need not be the paper's."""

    label: str
    nets: tuple[Net, ...]
    recipe: Recipe
    net: str  # class
    kind: str
    depth: int | None

    @property
    def names(self) -> set[str]:
        """What was measured of any seed."""
        return {name for net in self.nets for name in net.names}

    @cached_property
    def lacks(self) -> str:
        """Why these are not the paper's nets: their class, depth, recipe, epochs or seeds; "" if they are."""
        recipe = self.recipe
        if self.net != recipe.net:
            return f"{self.net or 'an unknown net'}, not {recipe.net}"
        if recipe.depths and self.depth not in recipe.depths:
            return f"depth {self.depth}, not {' or '.join(map(str, recipe.depths))}"
        if recipe.run is None:
            return ""
        run = recipe.run(self.kind, self.depth)
        paper = recipes.recipe(recipe.paper, run.name)
        epochs, last = paper["trainer"]["max_epochs"], min(net.epoch for net in self.nets)
        of_runs = {net.run.label: net for net in self.nets}.values()  # one of each run that trained some of the seeds
        configs = (dict(flatten(net.run.config)) | dict(flatten(net.spec)) for net in of_runs)
        if differs := next(filter(None, (_differs(own, dict(flatten(paper)), recipe) for own in configs)), ""):
            return differs
        if last < epochs or (last > epochs and not recipe.longer):
            return f"epoch {last} of {epochs}"
        return f"{len(self.nets)} of {run.seeds} seeds" if len(self.nets) < run.seeds else ""

    def final(self, name: str) -> Sample:
        return self._sample(name, [net.at(name, net.epoch) for net in self.nets])

    def initial(self, name: str) -> Sample:
        """A number of each seed before training."""
        return self._sample(name, [net.at(name, 0) for net in self.nets])

    def _sample(self, name: str, found: Sequence[float | None]) -> Sample:
        values = tuple(value for value in found if value is not None)
        if len(values) < len(found):
            return Sample(missing=self.lacks or f"{name} was not measured then")
        return Sample(values, self.lacks)


@dataclass(frozen=True)
class AnyNets:
    """The nets of any runs.

    Args:
        groups: the seeds of each arm, by label.
        sides: labels of a plain and a residual arm that belong together.
    """

    groups: Mapping[str, Sequence[Net]]
    sides: Sequence[tuple[str, str]]

    def every(self, recipe: Recipe) -> list[AnyArm]:
        """All arms, of whatever class."""
        groups = self.groups.items()
        return [AnyArm(label, tuple(nets), recipe, *described(nets[0].spec.get("net"))) for label, nets in groups]

    def arms(self, recipe: Recipe) -> list[AnyArm]:
        return [arm for arm in self.every(recipe) if arm.net == recipe.net and arm.kind and arm.depth]

    def pairs(self, recipe: Recipe) -> list[Pair]:
        arms = {arm.label: arm for arm in self.arms(recipe)}
        sides = [(arms[p], arms[r]) for p, r in self.sides if p in arms and r in arms]
        built = [(p, r) for p, r in sides if (p.kind, r.kind) == ("plain", "residual") and p.depth == r.depth]
        return [pair for plain, residual in built if (pair := _of_shared_seeds(plain, residual))]


def _of_shared_seeds(plain: AnyArm, residual: AnyArm) -> Pair | None:
    """None if no seed is in both."""
    one, other = ({net.seed: net for net in arm.nets} for arm in (plain, residual))
    shared = [seed for seed in one if seed in other and seed is not None]
    if len(plain.nets) == len(residual.nets) == 1 and not (shared or None not in {*one, *other}):
        return Pair(plain, residual)  # one net each, and one of unknown seed
    sides = ((plain, one), (residual, other))
    return Pair(*(replace(arm, nets=tuple(nets[seed] for seed in shared)) for arm, nets in sides)) if shared else None


def _differs(config: Mapping[str, Any], paper: Mapping[str, Any], recipe: Recipe) -> str:
    """The first value that is another than the paper's; both by dotted key, those of the net under ``net``."""
    for key in recipe.keys:
        wanted, found = (values.get(key, UNSAID.get(key)) for values in (paper, config))
        if key.endswith("class_path"):
            wanted, found = _last(wanted), _last(found)
        if found != wanted:
            shown, printed = ("not set" if value is None else value for value in (found, wanted))
            word = [part for part in key.removesuffix(".class_path").split(".") if not part.isdigit()][-1]
            return f"{word} is {shown}, the paper’s {printed}"
    return ""


def _last(path: str | None) -> str:
    """A class without its package."""
    return (path or "").rpartition(".")[2]
