"""Which of the page's nets a claim is about, and what they lack to be what the paper trained."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from lightning_app.report.evidence import Evidence, Net
from lightning_app.report.pairs import counterparts
from lightning_app.runs.configuration import flatten
from lightning_app.verdicts import Sample

__all__ = ["Arm", "Duo", "Recipe", "arms_of", "duos_of", "mean_of"]


@dataclass(frozen=True)
class Recipe:
    """What a claim's nets have to be."""

    net: str  # class
    epochs: int
    seeds: int
    asked: Mapping[str, Any] = field(default_factory=dict)  # dotted key of the configuration -> value; classes by name
    depths: tuple[int, ...] = ()  # those the claim is about; any if empty
    usual: Mapping[str, Any] = field(default_factory=dict)  # as ``asked``, of what a configuration may leave unsaid
    longer: bool = False  # may they be trained longer than that?


@dataclass(frozen=True)
class Arm:
    """The seeds of one net, and what the configuration says of it."""

    label: str
    nets: tuple[Net, ...]

    @cached_property
    def configs(self) -> list[dict[str, Any]]:
        """Values by dotted key, those of the net under ``net``, of each run that trained some of the seeds."""
        ran = {net.run.label: net for net in self.nets}
        return [dict(flatten(net.run.config)) | dict(flatten(net.spec)) for net in ran.values()]

    @cached_property
    def _net(self) -> Mapping[str, Any]:
        return _mapping(self.nets[0].spec.get("net"))

    @cached_property
    def net(self) -> str:
        """Its class."""
        return _last(self._net.get("class_path"))

    @property
    def arguments(self) -> dict[str, Any]:
        return _mapping(self._net.get("init_args"))

    @property
    def depth(self) -> int | None:
        return self.arguments.get("depth")

    @property
    def kind(self) -> str:
        """'plain' or 'residual', as it is built and not as it is called; '' if neither is said."""
        residual = self.arguments.get("residual")
        return "" if residual is None else "residual" if residual else "plain"

    @property
    def epoch(self) -> int:
        """The earliest of the last epochs of its seeds."""
        return min(net.epoch for net in self.nets)

    def has(self, name: str) -> bool:
        return any(name in net.names for net in self.nets)

    def lacks(self, recipe: Recipe) -> str:
        """Why these are not the paper's nets: their data, size, recipe, epochs or seeds; "" if they are."""
        if self.net != recipe.net:
            return f"{self.net or 'an unknown net'}, not {recipe.net}"
        if recipe.depths and self.depth not in recipe.depths:
            return f"depth {self.depth}, not {' or '.join(map(str, recipe.depths))}"
        if differs := next(filter(None, (_differs(config, recipe) for config in self.configs)), ""):
            return differs
        if self.epoch < recipe.epochs or (self.epoch > recipe.epochs and not recipe.longer):
            return f"epoch {self.epoch} of {recipe.epochs}"
        few = len(self.nets) < recipe.seeds
        return f"{len(self.nets)} of {recipe.seeds} seeds" if few else ""

    # -- numbers ----------------------------------------------------------------------------------------------------------

    def final(self, name: str, recipe: Recipe) -> Sample:
        """A number of each seed after its last epoch, and what is missing for it to be the paper's."""
        return self._sample(name, recipe, lambda net: net.at(name, net.epoch))

    def initial(self, name: str, recipe: Recipe) -> Sample:
        """A number of each seed before training."""
        return self._sample(name, recipe, lambda net: net.at(name, 0))

    def _sample(self, name: str, recipe: Recipe, value: Callable[[Net], float | None]) -> Sample:
        found = [value(net) for net in self.nets]
        if any(x is None for x in found):
            return Sample(missing=self.lacks(recipe) or f"{name} was not measured then")
        return Sample(tuple(found), self.lacks(recipe))


@dataclass(frozen=True)
class Duo:
    """A plain and a residual arm of one depth; seed i of both is the same, where seeds are known."""

    plain: Arm
    residual: Arm

    @property
    def arms(self) -> tuple[Arm, Arm]:
        return self.plain, self.residual

    def has(self, name: str) -> bool:
        return all(arm.has(name) for arm in self.arms)

    def final(self, name: str, recipe: Recipe) -> tuple[Sample, Sample]:
        """Of plain and residual."""
        plain, residual = (arm.final(name, recipe) for arm in self.arms)
        return plain, residual


def arms_of(evidence: Evidence, net: str) -> list[Arm]:
    """The arms that are nets of this class; twins of another arm are not, as they start from its weights.

    An arm whose configuration does not say its depth, or whether it is residual, is left out.
    """
    found = [Arm(label, tuple(nets)) for label, nets in evidence.groups.items()]
    return [arm for arm in found if arm.net == net and arm.kind and arm.depth]


def duos_of(evidence: Evidence, net: str) -> list[Duo]:
    """Plain and residual arms of one depth that go by one name but for that word; none where names leave two readings."""
    arms = {arm.label: arm for arm in arms_of(evidence, net)}
    sides = [(plain, residual) for plain, residual in counterparts(evidence) if len(plain) == len(residual) == 1]
    pairs = [(arms[p], arms[r]) for (p,), (r,) in sides if p in arms and r in arms]
    built = [(p, r) for p, r in pairs if (p.kind, r.kind) == ("plain", "residual") and p.depth == r.depth]
    return [duo for plain, residual in built if (duo := _of_shared_seeds(plain, residual))]


def _of_shared_seeds(plain: Arm, residual: Arm) -> Duo | None:
    """None if no seed is in both."""
    sides = [{net.seed: net for net in arm.nets} for arm in (plain, residual)]
    shared = [seed for seed in sides[0] if seed in sides[1] and seed is not None]
    if len(plain.nets) == len(residual.nets) == 1 and not (shared or None not in sides[0] | sides[1]):
        return Duo(plain, residual)  # one net each, and one does not say its seed
    nets = [tuple(side[seed] for seed in shared) for side in sides]
    return Duo(Arm(plain.label, nets[0]), Arm(residual.label, nets[1])) if shared else None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _differs(config: Mapping[str, Any], recipe: Recipe) -> str:
    """The first value that is another than the paper's."""
    for key, wanted in (recipe.asked | recipe.usual).items():
        found = config.get(key, recipe.usual.get(key))
        found = _last(found) if key.endswith("class_path") else found
        if found != wanted:
            return f"{_word(key)} is {_said(found)}, the paper’s {_said(wanted)}"
    return ""


def _word(key: str) -> str:
    """What a key is about.

    >>> [_word(f"model.{key}") for key in ("optimizer.class_path", "optimizer.init_args.lr", "init_args.milestones.0")]
    ['optimizer', 'lr', 'milestones']
    """
    return [part for part in key.removesuffix(".class_path").split(".") if not part.isdigit()][-1]


def _said(value: Any) -> str:
    return "not set" if value is None else str(value)


def _last(path: str | None) -> str:
    """A class without its package.

    >>> _last("lightning_app.networks.SimplifiedNet"), _last(None)
    ('SimplifiedNet', '')
    """
    return (path or "").rpartition(".")[2]


def mean_of(samples: Sequence[Sample]) -> Sample:
    """The mean of several numbers, seed by seed."""
    first, *others = samples
    return first.map(lambda *values: sum(values) / len(values), *others)
