"""What an artefact's runs measured, by run, arm and seed, and what was computed. Missing numbers are absent, not NaN."""

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Protocol

import numpy as np
import pandas as pd

from lightning_app.papers.parts import SMOKE, Computation, Scale, Value
from lightning_app.papers.verdicts import Sample
from lightning_app.runs.reader import Net

ArraysRead = dict[str, set[tuple[str, float]]]  # run -> (family, epoch): what evidence must hold
Arrays = dict[str, np.ndarray]
Pieces = Mapping[str, Mapping[str, np.ndarray]]  # arrays by piece of a computation


class Planned(Protocol):
    """What a run is meant to have."""

    @property
    def arms(self) -> list[str]: ...
    @property
    def seeds(self) -> tuple[int, ...]: ...
    @property
    def epochs(self) -> int: ...


class Results:
    """Read access to the runs and computations of one artefact.

    Args:
        plans: what each run is meant to have, by name.
        trained: the nets that there are of each run.
        scale: of all of them.
        pieces: by computation, those that are there.
    """

    def __init__(
        self,
        plans: Mapping[str, Planned],
        trained: Mapping[str, Sequence[Net]],
        scale: Scale,
        pieces: Mapping[str, Pieces] | None = None,
    ) -> None:
        self.plans = plans
        self.scale = scale
        self._pieces = pieces or {}
        self._trained = trained
        self.arrays_read: ArraysRead = {}

    def nets(self, run: str, arm: str) -> list[Net]:
        """The nets of one arm, by seed.

        Raises:
            ValueError: the run has no such arm; a claim about it would say "no run" for ever.
        """
        if arm not in self.plans[run].arms:
            raise ValueError(f"expected an arm of {run} ({', '.join(self.plans[run].arms)}), got {arm!r}.")
        return [net for net in self._trained[run] if net.arm == arm]

    def seeds(self, run: str, arm: str) -> list[int]:
        return [net.seed for net in self.nets(run, arm) if net.seed is not None]

    def epochs(self, run: str) -> int:
        """How many epochs the run is meant to have."""
        return self.plans[run].epochs

    def final(self, run: str, arm: str, name: str) -> Sample:
        """A number after the final epoch, of the seeds that have it. Of none: after the last that all have, marked as missing."""
        lines = [net.series(name) for net in self.nets(run, arm)]
        done = [line for line in lines if len(line) and line.index[-1] >= self.epochs(run)]
        if 0 < len(done) < len(lines):
            return self._sample([line.iloc[-1] for line in done], self._few_seeds(run, len(done)))
        last = min((line.index[-1] for line in lines if len(line)), default=0)
        missing = "" if last >= self.epochs(run) else f"epoch {int(last)} of {self.epochs(run)}"
        shared = [line[line.index <= last] for line in lines]
        values = [line.iloc[-1] if len(line) else None for line in shared]
        return self._of_seeds(run, arm, values, f"{name} was not measured in {run}", missing)

    def initial(self, run: str, arm: str, name: str) -> Sample:
        """A number before training: complete as soon as the run has begun."""
        return self.at(run, arm, name, 0)

    def at(self, run: str, arm: str, name: str, epoch: int) -> Sample:
        """A number after an epoch: complete as soon as that epoch is over."""
        values = [net.series(name).get(epoch) for net in self.nets(run, arm)]
        return self._of_seeds(run, arm, values, f"{name} was not measured at epoch {epoch} of {run}")

    def first(self, run: str, arm: str, name: str) -> Sample:
        """The first value of a number that is about one moment early in training, not about an epoch."""
        lines = [net.series(name) for net in self.nets(run, arm)]
        values = [line.iloc[0] if len(line) else None for line in lines]
        return self._of_seeds(run, arm, values, f"{name} was not measured in {run}")

    def _of_seeds(self, run: str, arm: str, values: Sequence[float | None], lost: str, missing: str = "") -> Sample:
        """``lost``: what is missing where a seed has no value."""
        known = [value for value in values if value is not None]
        if not values or len(known) < len(values):
            return Sample(missing=lost if values else f"no run of {run}")
        return self._sample(known, missing or self._few_seeds(run, len(values)))

    def known(self, *values: float) -> Sample:
        """Numbers taken from these runs in some other way."""
        return self._sample(values, "")

    def absent(self, why: str) -> Sample:
        return Sample(missing=self._marked(why))

    def history(self, run: str, arm: str, family: str, keys: Sequence[str]) -> list[np.ndarray]:
        """Arrays over steps, saved epoch by epoch, joined over all epochs; of the first seed."""
        nets = self.nets(run, arm)[:1]
        saved = [self._arrays(run, net, family, epoch) for net in nets for epoch in net.run.array_epochs(family)]
        return [np.concatenate([arrays[key] for arrays in saved if key in arrays] or [np.empty(0)]) for key in keys]

    def curves(self, run: str, arm: str, *names: str) -> pd.DataFrame:
        """A number, or the mean of several, by epoch (rows) and seed (columns)."""
        nets = [*zip(self.seeds(run, arm), self.nets(run, arm))]
        tables = [pd.DataFrame({seed: net.series(name) for seed, net in nets}).sort_index() for name in names]
        return tables[0] if len(tables) == 1 else sum(tables) / len(tables)

    def of_curves(self, run: str, arm: str, value: Callable[[pd.Series], float], *names: str) -> Sample:
        """A value of each seed's curve, the mean of some numbers by epoch; none of a run that has not begun."""
        curves = self.curves(run, arm, *names)
        return Sample(tuple(value(curves[seed]) for seed in curves if len(curves)), self.incomplete(run))

    def sample_at_end(self, run: str, arm: str, family: str, value: Callable[..., float]) -> Sample:
        """A value of each seed, computed from its final arrays."""
        found = [self._arrays(run, net, family, self.epochs(run)) for net in self.nets(run, arm)]
        there, seeds = [arrays for arrays in found if arrays], len(self.plans[run].seeds)
        few = f"final {family} arrays of {len(there)} of {seeds} seeds" if len(there) < seeds else ""
        return self._sample([value(arrays) for arrays in there], few if self.has_ended(run) else self.incomplete(run))

    def arrays(self, run: str, arm: str, family: str) -> tuple[list[Arrays], list[Arrays]]:
        """For figures: a family's arrays before training and after the final epoch, of each seed that is done.

        Where none is done, those before training of each seed, and no others.
        """
        both = [
            [self._arrays(run, net, family, epoch) for epoch in (0, self.epochs(run))] for net in self.nets(run, arm)
        ]
        chosen = [of_seed for of_seed in both if of_seed[1]] or both
        start, end = ([of_seed[place] for of_seed in chosen if of_seed[place]] for place in (0, 1))
        return start, end

    def _arrays(self, run: str, net: Net, family: str, epoch: float) -> Arrays:
        """A family's arrays of one net after an epoch; noted, so that they are kept with the results."""
        self.arrays_read.setdefault(run, set()).add((family, epoch))
        return net.arrays(family, epoch)

    def computed(self, computation: Computation) -> Pieces:
        """The pieces of a computation that are there, complete or not."""
        return self._pieces[computation.name]

    def of(self, computation: Computation, value: Value, *pieces: str) -> Sample:
        """A number, or one of each seed, from the arrays of some pieces or of all; missing if one of these is."""
        there, wanted = self.computed(computation), pieces or tuple(computation.pieces)
        if lacking := [piece for piece in wanted if piece not in there]:
            return self.absent(f"{lacking[0]} of {computation.name} was not computed")
        number = itemgetter(value) if isinstance(value, str) else value
        return self.known(*np.atleast_1d(number(*(there[piece] for piece in wanted))))

    def each(self, computation: Computation, value: Value, *pieces: str) -> Sample:
        """A number, or several, of each of some pieces or of all, one piece after the other."""
        number = itemgetter(value) if isinstance(value, str) else value
        return self.of(computation, lambda *all_: np.concatenate([np.atleast_1d(number(a)) for a in all_]), *pieces)

    def epochs_of_seeds(self, run: str) -> dict[int | None, int]:
        """How far each seed is: completed epochs, of its arms the fewest."""
        ends: dict[int | None, int] = {}
        for net in self._trained[run]:
            ends[net.seed] = min(net.epoch, ends.get(net.seed, net.epoch))
        return ends

    def last_epoch(self, run: str) -> int | None:
        """The earliest of the last epochs of the run's nets."""
        return min(self.epochs_of_seeds(run).values(), default=None)

    def has_ended(self, run: str) -> bool:
        """Whether a seed is done; else `final` is of nets that are still training."""
        return max(self.epochs_of_seeds(run).values(), default=-1) >= self.epochs(run)

    def incomplete(self, run: str) -> str:
        """Why the run's final numbers are not final; "" when they are."""
        last = self.last_epoch(run)
        if last is None:
            return f"no run of {run}"
        if last < self.epochs(run):
            return self._marked(f"epoch {last} of {self.epochs(run)}")
        return self._marked(
            next(filter(None, (self._few_seeds(run, len(self.nets(run, arm))) for arm in self.plans[run].arms)), "")
        )

    def _few_seeds(self, run: str, have: int) -> str:
        want = len(self.plans[run].seeds)
        return f"{have} of {want} seeds" if have < want else ""

    def _sample(self, values: Sequence[float], missing: str) -> Sample:
        return Sample(tuple(map(float, values)), self._marked(missing))

    def _marked(self, missing: str) -> str:
        return "smoke scale" if self.scale is SMOKE else missing
