"""What a paper is made of: artefacts, with their claims and figures, and the runs and computations they rest on, at a scale.

A scale changes epochs, seeds and the subset of data, nothing else. Smoke scale shows in minutes that everything runs, and
tests nothing. Paper scale is what the paper did. Reduced scale, in between, has fewer epochs (and the drops of the learning
rate at the same fractions of them) on all data: it judges orderings and dimensionless ratios only, in words of its own.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lightning_app.common.late import torch
from lightning_app.papers.verdicts import Claim, Class

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lightning_app.papers.results import Results

Arrays = Mapping[str, np.ndarray]
Value = str | Callable[..., float | Sequence[float] | np.ndarray]  # an array, or what is made of those of some pieces


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
class Source:
    """Where data are looked for."""

    root: Path
    stand_in: bool  # may other data stand in for missing ones?


@dataclass(frozen=True)
class Computation:
    """Named arrays as functions of parameters: closed forms, or many small descents.

    ``compute`` gets the source of data and a piece's parameters as keywords. An array ``data`` of its names the data it
    used. A scale caps the parameters ``epochs``, ``seeds`` and ``limit`` (of samples; None is all), and nothing else.
    """

    name: str  # the folder's
    compute: Callable[..., Arrays]
    pieces: Mapping[str, Mapping[str, Any]]  # file's stem -> parameters, as JSON has them
    version: int = 1  # to be raised when the same parameters give other numbers
    precision: str = "float64"  # that it computes in, for the record


@dataclass(frozen=True)
class Artefact:
    """A table, figure or statement of a paper.

    ``claims`` and ``draw`` get what was measured and computed, complete or not, and use nothing else.
    """

    key: str  # "table-1"
    title: str
    claims: Callable[["Results"], Sequence[Claim]]
    convention: str  # how the numbers are to be read, in sentences
    draw: Callable[["Results"], "Figure"] | None = None  # in the paper's form; None for a table that says it all
    runs: tuple[Run, ...] = ()
    computations: tuple[Computation, ...] = ()
    about: Class = Class.TRAINED  # what its claims are about, but for those that say so themselves

    def has(self, scale: Scale) -> bool:
        """Can it be made at this scale? Reduced scale is for artefacts all of whose runs have one."""
        return scale is not REDUCED or (bool(self.runs) and all(run.reduced for run in self.runs))

    @property
    def parts(self) -> list[str]:
        """Names of its runs and computations."""
        return [run.name for run in self.runs] + [computation.name for computation in self.computations]


@dataclass(frozen=True)
class Paper:
    """A paper and everything of it that can be reproduced."""

    key: str  # "yu-tomasi"
    title: str
    artefacts: tuple[Artefact, ...]


def columns(rows: Iterable[Any]) -> dict[str, np.ndarray]:
    """Arrays by name with an entry for each row; rows are mappings, or dataclasses with these fields.

    >>> columns([{"a": 1}, {"a": 3}])
    {'a': array([1, 3])}
    """
    found = [row if isinstance(row, Mapping) else asdict(row) for row in rows]
    return {name: np.array([row[name] for row in found]) for name in found[0]}


def seed_by_seed(compute: Callable[..., Mapping[str, Any]]) -> Callable[..., Arrays]:
    """A computation of many seeds, made of one that finds torch's random state set to a seed: arrays (seeds, ...).

    It needs no data but those that are embedded.
    """

    @wraps(compute)
    def computed(source: Source, seeds: int, **asked: Any) -> Arrays:
        rows = []
        for seed in range(seeds):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                rows.append(compute(**asked))
        return columns(rows)

    return computed
