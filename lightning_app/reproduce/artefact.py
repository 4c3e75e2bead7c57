"""What a paper's file is made of: artefacts, each with the runs and computations it needs, its claims, and its figure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from matplotlib.figure import Figure

from lightning_app.reproduce.computation import Computation, Task
from lightning_app.reproduce.plan import REDUCED, Plan, Run, Scale
from lightning_app.reproduce.results import Results
from lightning_app.verdicts import Claim, Class

__all__ = ["Artefact", "Paper"]


@dataclass(frozen=True)
class Artefact:
    """A table, figure or statement of a paper.

    ``claims`` and ``draw`` get what was measured and computed, complete or not, and say or draw only that.
    """

    key: str  # "table-1"
    title: str
    runs: tuple[Run, ...]
    claims: Callable[[Results], Sequence[Claim]]
    convention: str  # how the numbers are to be read, in sentences
    draw: Callable[[Results], Figure] | None = None  # in the paper's form; None for a table that says it all
    computations: tuple[Computation, ...] = ()
    about: Class = field(kw_only=True)  # what its claims are about, but for those that say so themselves

    def has(self, scale: Scale) -> bool:
        """Can it be made at this scale? Reduced scale is for artefacts all of whose runs say how far they are reduced."""
        return scale is not REDUCED or (bool(self.runs) and all(run.reduced for run in self.runs))

    def plans(self, paper: str, scale: Scale) -> dict[str, Plan]:
        return {run.name: Plan(paper, run, scale) for run in self.runs}

    def tasks(self, paper: str, scale: Scale) -> dict[str, Task]:
        return {computation.name: Task(paper, computation, scale) for computation in self.computations}


@dataclass(frozen=True)
class Paper:
    """A paper and everything of it that can be reproduced."""

    key: str  # "yu-tomasi"
    title: str
    artefacts: tuple[Artefact, ...]
