"""What a paper is made of: artefacts, each with the runs and computations it rests on, its claims, and its figure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from matplotlib.figure import Figure

from lightning_app.papers.parts import REDUCED, Computation, Run, Scale
from lightning_app.papers.results import Results
from lightning_app.papers.verdicts import Claim, Class

__all__ = ["Artefact", "Paper"]


@dataclass(frozen=True)
class Artefact:
    """A table, figure or statement of a paper.

    ``claims`` and ``draw`` get what was measured and computed, complete or not, and use nothing else.
    """

    key: str  # "table-1"
    title: str
    claims: Callable[[Results], Sequence[Claim]]
    convention: str  # how the numbers are to be read, in sentences
    draw: Callable[[Results], Figure] | None = None  # in the paper's form; None for a table that says it all
    runs: tuple[Run, ...] = ()
    computations: tuple[Computation, ...] = ()
    about: Class = field(kw_only=True)  # what its claims are about, but for those that say so themselves

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
