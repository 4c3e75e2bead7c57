"""What the runs hold, read once: numbers by net and name, arrays by epoch, and how each net is called and drawn."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import numpy as np
import pandas as pd

from lightning_app.common.errors import UserError
from lightning_app.plots.style import Style, kind, styles
from lightning_app.runs import RunFolder
from lightning_app.runs.folder import LayerRow
from lightning_app.runs.naming import name_nets, parent_of, run_labels, seed_of

__all__ = ["Evidence", "Final", "Net", "Record", "common_parent", "gather"]


T = TypeVar("T")


@dataclass(frozen=True)
class Final:
    """The last measurement of a number, and when it was made."""

    value: float
    epoch: int  # completed epochs


class Record:
    """One run, its log read once.

    Raises:
        ValueError: from the run folder, if there is no log or it is not one of ours.
    """

    def __init__(self, folder: RunFolder, label: str) -> None:
        self.folder = folder
        self.label = label
        self.log = folder.log(categories=True)
        self._rows = self.log.groupby(["member", "name"], sort=False, observed=True).indices
        self._series: dict[tuple[str, str], pd.Series] = {}
        self._epochs: dict[str, list[int]] = {}
        self._arrays: dict[tuple[str, int], dict[str, np.ndarray]] = {}
        self.damage: list[str] = []  # what could not be read, in sentences

    @cached_property
    def config(self) -> dict:
        """config.yaml; empty if there is none."""
        return self.folder.config()

    def names(self, member: str = "") -> list[str]:
        """What was measured of a member, in the order of the log; of the whole run for ''."""
        return [name for owner, name in self._rows if owner == member]

    def series(self, name: str, member: str = "") -> pd.Series:
        """Values by epoch, ascending. Not measured is absent; NaN means that NaN was measured."""
        if (member, name) not in self._series:
            self._series[member, name] = self._read_series(self._rows.get((member, name), np.empty(0, int)))
        return self._series[member, name]

    def _read_series(self, rows: np.ndarray) -> pd.Series:
        epochs, values = (self._columns[column][rows] for column in ("epoch", "value"))
        order = epochs.argsort(kind="stable")
        return pd.Series(values[order], pd.Index(epochs[order], name="epoch"), name="value")

    @cached_property
    def _columns(self) -> dict[str, np.ndarray]:
        return {column: self.log[column].to_numpy() for column in ("epoch", "value")}

    def last(self, name: str, member: str = "") -> Final | None:
        """The measurement of the latest epoch; None when never measured."""
        rows = self._rows.get((member, name))
        if rows is None:
            return None
        epochs, values = (self._columns[column][rows] for column in ("epoch", "value"))
        latest = epochs.argmax()
        return Final(float(values[latest]), int(epochs[latest]))

    def members(self) -> list[str]:
        return [member for member in self.last_epochs if member]

    @cached_property
    def last_epochs(self) -> dict[str, int]:
        """Of each member, in the order of the log."""
        last = self.log.groupby("member", sort=False, observed=True)["epoch"].max()
        return {member: int(epoch) for member, epoch in last.items()}

    def array_epochs(self, family: str) -> list[int]:
        """Epochs at which a family's arrays were saved, ascending; looked up once."""
        if family not in self._epochs:
            self._epochs[family] = self.folder.array_epochs(family)
        return self._epochs[family]

    def arrays(self, family: str, epoch: int) -> dict[str, np.ndarray]:
        """One family's arrays of one epoch, kept; none of a damaged file, which `damage` then names."""
        key = (family, epoch)
        if key not in self._arrays:
            self._arrays[key] = self._undamaged(lambda: self.folder.arrays(epoch, family), {})
        return self._arrays[key]

    @cached_property
    def layers(self) -> list[LayerRow]:
        """Of each net, in forward order; none of a damaged file, which `damage` then names."""
        return self._undamaged(self.folder.layers, [])

    @cached_property
    def notes(self) -> list[str]:
        """What could not be measured, in sentences; none of a damaged file, which `damage` then names."""
        return self._undamaged(self.folder.notes, [])

    def _undamaged(self, read: Callable[[], T], otherwise: T) -> T:
        """What a reader returns: one damaged file must not hide what all others say."""
        try:
            return read()
        except UserError as error:
            self.damage.append(str(error))
            return otherwise


@dataclass(frozen=True)
class Net:
    """One trained net: a member of a run."""

    record: Record
    member: str
    label: str  # unique on the page
    group: str  # the label without its seed: nets of one group share a style and a mean
    kind: str  # plain, residual, other
    style: Style

    @cached_property
    def seed(self) -> int | None:
        """None: unknown."""
        return seed_of(self.member, self.record.config, self.record.label)

    @cached_property
    def names(self) -> list[str]:
        return self.record.names(self.member)

    @cached_property
    def epoch(self) -> int:
        """Completed epochs of the last row of this net."""
        return self.record.last_epochs[self.member]

    def series(self, name: str) -> pd.Series:
        return self.record.series(name, self.member)

    def final(self, name: str) -> Final | None:
        """The last value, never the best one; None when never measured."""
        return self.record.last(name, self.member)

    def at(self, name: str, epoch: int | None) -> float | None:
        """The value after so many epochs; None where it was not measured."""
        found = self.series(name).get(epoch)
        return None if found is None else float(found)

    def arrays(self, family: str, epoch: int) -> dict[str, np.ndarray]:
        """This net's arrays, the member's name cut off the keys; empty if there are none at that epoch."""
        if epoch not in self.record.array_epochs(family):
            return {}
        prefix = f"{self.member}/"
        arrays = self.record.arrays(family, epoch)
        return {key.removeprefix(prefix): array for key, array in arrays.items() if key.startswith(prefix)}


@dataclass(frozen=True)
class Evidence:
    """All that a page is made of."""

    records: list[Record]
    nets: list[Net]
    layer: str | None = None  # the layer asked for, if any
    made: tuple[Path, ...] = ()  # folders of artefacts that `reproduce` has judged

    def having(self, *names: str) -> "Evidence":
        """Only the nets of which one of these was measured."""
        return replace(self, nets=[net for net in self.nets if any(name in net.names for name in names)])

    def rows(self, names: Iterable[str]) -> list[tuple[str, str, int, float]]:
        """(net, name, epoch, value) of the named numbers: what is behind a figure of curves."""
        return [
            (net.label, name, epoch, value)
            for name in names
            for net in self.nets
            for epoch, value in net.series(name).items()
        ]

    def spreads(self, names: Iterable[str]) -> list[tuple[int, str, str, float, float, float, float, int]]:
        """(epoch, group, name, mean, sd, min, max, count) over the seeds of each group that has several."""
        return [
            (epoch, group, name, *numbers)
            for name in names
            for group, nets in self.groups.items()
            if len(nets) > 1
            for epoch, *numbers in _spreads([net.series(name) for net in nets])
        ]

    def firsts(self) -> list[Net]:
        """The first net of each group: what is shown where several seeds would hide each other."""
        return [nets[0] for nets in self.groups.values()]

    @cached_property
    def groups(self) -> dict[str, list[Net]]:
        """The nets by group, in order: seeds of the same arm together, each seed once.

        Of several runs of one seed the one that trained longest is there, the others are `repeats`.
        """
        return {group: _each_seed_once(nets) for group, nets in self._by_group().items()}

    @cached_property
    def repeats(self) -> list[Net]:
        """The nets left out of `groups`."""
        counted = [net for nets in self.groups.values() for net in nets]
        return [net for net in self.nets if net not in counted]

    def _by_group(self) -> dict[str, list[Net]]:
        found: dict[str, list[Net]] = {}
        for net in self.nets:
            found.setdefault(net.group, []).append(net)
        return found


def _spreads(lines: Sequence[pd.Series]) -> Iterable[tuple[int, float, float, float, float, int]]:
    """`statistics.spread` of all epochs at once."""
    table = pd.concat(lines, axis=1).sort_index()
    values = np.ma.masked_invalid(table.to_numpy(float))
    numbers = (values.mean(axis=1), values.std(axis=1, ddof=1), values.min(axis=1), values.max(axis=1))
    filled = (np.ma.filled(np.ma.asarray(each, dtype=float), np.nan).tolist() for each in numbers)
    return zip(table.index.tolist(), *filled, values.count(axis=1).tolist(), strict=True)


def _each_seed_once(nets: Sequence[Net]) -> list[Net]:
    if len(nets) == 1:
        return [*nets]
    best: dict[object, Net] = {}
    for net in nets:
        key = net.label if net.seed is None else net.seed
        if key not in best or net.epoch > best[key].epoch:
            best[key] = net
    return [*best.values()]


def gather(runs: Sequence[RunFolder], layer: str | None = None, made: Sequence[Path] = ()) -> Evidence:
    """Read the runs and name their nets.

    See `lightning_app.runs.naming` for how they are called.
    """
    labels = run_labels([run.path for run in runs])
    records = {label: Record(run, label) for run, label in zip(runs, labels, strict=True)}
    configs = {label: record.config for label, record in records.items()} if len(runs) > 1 else {}
    names = name_nets({label: record.members() for label, record in records.items()}, configs)
    kinds = {name.group: kind(name.member, name.group, name.run) for name in names}
    looks = dict(zip(kinds, styles(kinds.values()), strict=True))
    nets = [
        Net(records[name.run], name.member, name.label, name.group, kinds[name.group], looks[name.group])
        for name in names
    ]
    return Evidence([*records.values()], nets, layer, tuple(made))


def common_parent(runs: Sequence[RunFolder]) -> Path:
    """The deepest folder that holds all runs; the run itself when there is one."""
    return parent_of([run.path for run in runs])
