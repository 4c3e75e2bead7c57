"""The trained nets that Figs. 1d and 1e, the ensemble and Theorems 3 and 4 look into: residual MLPs on mixtures of Gaussians.

The paper says neither where its BatchNorm stands, nor how far apart its Gaussians are, nor at what rate and for how long it
learned. It speaks of lambda = 1 and of weights N(0, 1/n) at the start, but not under its figures; Torch7's own start is tried,
too. Each such setting is a reading of a claim here: true under some only, the claim depends on it. How long is not among
them: `DURATION` says so beside every number.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lightning_app.papers.parts import Run
from lightning_app.papers.predicates import Predicate, shown, tested
from lightning_app.papers.results import Results
from lightning_app.papers.verdicts import Basis, Claim, Class, Sample, Varies
from lightning_app.plots import figures
from lightning_app.statistics.paired import ENOUGH

BLOCKS = 10
EPOCHS, EARLY = 100, 20
DURATION = (
    f"{EPOCHS} epochs, a duration of ours: the paper does not give its own, and the sign of end minus start may depend on it. "
    f"Growth from epoch {EARLY} on, an epoch of ours chosen after a look, is tested beside it, since a fall in "
    "the first epochs may hide it. "
)
LATER = f"end minus epoch {EARLY}"
FAST = 0.1
SKIPPED = range(2, BLOCKS + 1)  # layers with an identity around them: all but the first


NETS: dict[str, tuple[str, dict[str, Any]]] = {  # arm -> words, and what its YAML gives the net
    "before_relu": ("BN before ReLU", {"norm": "before_relu"}),
    "after_relu": ("BN after ReLU", {"norm": "after_relu"}),
    "eq22": ("Eq. 22", {"norm": "eq22"}),
    "before_relu_torch7": ("BN before ReLU, Torch7's start", {"norm": "before_relu", "start": "torch7"}),
    "after_relu_torch7": ("BN after ReLU, Torch7's start", {"norm": "after_relu", "start": "torch7"}),
    "eq22_torch7": ("Eq. 22, Torch7's start", {"norm": "eq22", "start": "torch7"}),
    "gain1": ("weights N(0, 1/n)", {"norm": "none", "gain": 1.0}),
    "gain_half": ("weights N(0, 1/4n)", {"norm": "none", "gain": 0.5}),
    "gain_sqrt2": ("weights N(0, 2/n)", {"norm": "none", "gain": 1.4142135623730951}),
}


@dataclass(frozen=True)
class Setting:
    """One arm of one run."""

    run: Run
    arm: str
    separation: float
    rate: float

    @property
    def words(self) -> str:
        return f"{NETS[self.arm][0]}, separation {self.separation:g}, rate {self.rate:g}"

    @property
    def arguments(self) -> dict[str, Any]:
        """Of the net."""
        return NETS[self.arm][1]

    @property
    def colour(self) -> str:
        """One an arm."""
        return figures.COLOURS[f"residual-{list(NETS).index(self.arm) % 3}"][0]

    @property
    def dash(self) -> str | tuple[int, tuple[int, ...]]:
        """One a run, and another one for Torch7's start."""
        if self.arm.endswith("torch7"):
            return "-." if self.separation == 1 else (0, (6, 1, 1, 1, 1, 1))
        return "-" if self.separation == 1 else ":" if self.rate > FAST else "--"


def _settings(run: str, separation: float, rate: float, *arms: str) -> tuple[Setting, ...]:
    return tuple(Setting(Run(run, seeds=ENOUGH), arm, separation, rate) for arm in arms)


PLACES = ("before_relu", "after_relu", "eq22")
STARTS = (*PLACES, *(f"{place}_torch7" for place in PLACES))
SIZES = ("gain1", "gain_half", "gain_sqrt2")
NORMALISED = (
    *_settings("separable", 1.0, 0.1, *STARTS),
    *_settings("overlapping", 0.5, 0.1, *STARTS),
    *_settings("fast", 0.5, 0.5, *PLACES[:2]),
)
UNNORMALISED = _settings("unnormalised_separable", 1.0, 0.01, *SIZES)
UNNORMALISED += _settings("unnormalised_overlapping", 0.5, 0.01, *SIZES)


def runs_of(settings: Sequence[Setting]) -> tuple[Run, ...]:
    return tuple(dict.fromkeys(setting.run for setting in settings))


def layer(number: int) -> str:
    """ "layer07": block 7's matrix, or the normalisation after it."""
    return f"layer{number:02d}"


def by_setting(settings: Sequence[Setting], ours: Callable[[Setting], Sample]) -> dict[str, Sample]:
    """A number under every setting, as readings of a claim."""
    return {setting.words: ours(setting) for setting in settings}


def claim(quantity: str, paper: str, test: Predicate, ours: Mapping[str, Sample], **more: Any) -> Claim:
    """One claim, read under every setting; ``more`` are further fields of `Claim`."""
    return tested(quantity, paper, test, ours, varies=Varies.SETTING, **more)


def seen(quantity: str, why: str, ours: Mapping[str, Sample]) -> Claim:
    """A number under every setting, of no test: why there is none."""
    return shown(quantity, "", why, ours, basis=Basis.OURS, varies=Varies.SETTING, about=Class.TRAINED)


def grown(results: Results, setting: Setting, *names: str, since: int = 0) -> Sample:
    """The mean of some numbers at the end minus the one after an epoch; 0 is the start."""
    ends = [results.final(setting.run.name, setting.arm, name) for name in names]
    starts = [results.at(setting.run.name, setting.arm, name, since) for name in names]
    return _mean_of(ends) - _mean_of(starts)


def _mean_of(samples: Sequence[Sample]) -> Sample:
    """The mean of several numbers, seed by seed."""
    first, *others = samples
    return first.map(lambda *values: sum(values) / len(values), *others)


def above_least(results: Results, setting: Setting, *names: str) -> Sample:
    """The mean of some numbers at the end minus its least, seed by seed; it cannot be negative."""
    curves = results.curves(setting.run.name, setting.arm, *names)
    return Sample(tuple(curves.iloc[-1] - curves.min()) if len(curves) else (), results.incomplete(setting.run.name))


def rising(results: Results, setting: Setting, *names: str) -> Sample:
    """The share of measurements at which a mean is larger than at the one before; NaN of a seed that has diverged."""
    steps = results.curves(setting.run.name, setting.arm, *names).diff().iloc[1:]
    rises = (steps > 0).astype(float).where(steps.notna())
    return Sample(tuple(rises.mean(skipna=False)) if len(rises) else (), results.incomplete(setting.run.name))
