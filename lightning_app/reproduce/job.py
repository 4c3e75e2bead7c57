"""A job: a training run or a computation that an artefact rests on, at a scale.

It is recognised by a digest of everything that decides its numbers: a finished job is not made again, an interrupted one is
resumed. It is made under a lock, so that a second process waits and then uses it, and kept with the results as evidence.
"""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_app.papers.parts import PAPER, Scale


@dataclass(frozen=True)
class JobOptions:
    """What to train and compute now, and how."""

    data: Path = Path("data")  # folder of all data, for computations; ``fit`` names it for runs
    fit: Sequence[str] = ()  # its options: folders and speed (``--data.root``, ``--trainer.accelerator``)
    only: Collection[str] | None = None  # names of jobs; None: all that the artefact needs
    seeds: Collection[int] | None = None  # of the runs, the others are left to other machines; None: all


class Job(ABC):
    """A run or computation at a scale.

    ``root`` is the folder of all runs, ``kept`` that of all results, whose evidence is looked at first; None: no such folder.
    """

    paper: str
    scale: Scale

    @property
    @abstractmethod
    def name(self) -> str:
        """Unique within a paper."""

    @property
    def group(self) -> str:
        """Folder of the paper's runs and computations below the root."""
        return self.paper if self.scale is PAPER else f"{self.paper}-{self.scale.name}"

    @abstractmethod
    def state(self, root: Path | None, kept: Path | None = None) -> str:
        """How far it is: "finished", "not run", "epoch 12 of 200", "3 of 13 seeds, another at epoch 12 of 200",
        "3 of 12 pieces".
        """

    @abstractmethod
    def complete(self, root: Path, options: JobOptions, kept: Path | None = None) -> None:
        """Make what is missing.

        Raises:
            UserError: if data are missing; the message says how to get them.
            RunFailed: if a training process ends with an exit code other than 0, or before its last epoch.
        """

    @abstractmethod
    def keep(self, root: Path, kept: Path, arrays: Collection[tuple[str, float]]) -> bool:
        """Copy what is below the root to the results.

        Args:
            arrays: (family, epoch) of a run's arrays that claims and figures read.

        Returns:
            Whether anything is kept that was not kept before.
        """


def digest_of(science: Mapping[str, Any]) -> str:
    """16 hex digits that change with whatever decides a result."""
    return hashlib.sha256(json.dumps(science, sort_keys=True).encode()).hexdigest()[:16]
