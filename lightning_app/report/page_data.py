"""What a page is made of: the nets of some runs, and how each of them is called, grouped and drawn."""

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from lightning_app.common.numbers import whole
from lightning_app.plots.style import Style, styles
from lightning_app.runs import RunFolder, reader
from lightning_app.runs.naming import name_nets
from lightning_app.runs.reader import Final, HeldOut, Run, held_out, read_runs

MOST_MOVING = 6
Arrays = dict[str, np.ndarray]  # by key


@dataclass(frozen=True)
class PageNet(reader.Net):
    """One trained net as the page shows it."""

    label: str  # unique on the page
    group: str  # the label without its seed: nets of one group share a style and a mean
    style: Style

    @cached_property
    def diverged(self) -> int | None:
        """The first epoch at which a risk on training samples or a weight was not finite, or ended training; None if never."""
        risks = [self.series(name) for name in ("train/risk", "train/risk_running", "weight_mass/all")]
        epochs = [math.ceil(epoch) for risk in risks for epoch in risk.index[~np.isfinite(risk)]]
        epochs += [epoch for name, epoch in [self.run.diverged or ("", 0)] if name == self.name]
        return min(epochs, default=None)

    def end(self, name: str) -> Final | None:
        """The last value as `final`; NaN if the net has diverged since."""
        last = self.final(name)
        gone = last is not None and self.diverged is not None and last.epoch < self.diverged
        return replace(last, value=math.nan) if last and gone else last


@dataclass(frozen=True)
class PageData:
    """All that a page is made of."""

    runs: list[Run]
    nets: list[PageNet]
    layer: str | None = None  # the requested layer, if any
    verdicts: tuple[Path, ...] = ()  # folders of artefacts that `reproduce` has judged

    @cached_property
    def held_out(self) -> HeldOut:
        """The data that its nets are not trained on."""
        return held_out({name for net in self.nets for name in net.names})

    def having(self, *names: str) -> "PageData":
        """Only the nets for which at least one of these was measured."""
        return replace(self, nets=[net for net in self.nets if any(name in net.names for name in names)])

    def rows(self, names: Iterable[str]) -> list[tuple[str, str, float, float]]:
        """(net, name, epoch, value) of the named numbers: what is behind a figure of curves."""
        return [
            (net.label, name, whole(epoch), value)
            for name in names
            for net in self.nets
            for epoch, value in net.series(name).items()
        ]

    def spreads(self, names: Iterable[str]) -> list[tuple[object, ...]]:
        """(epoch, group, name, mean, sd, min, max, count) over the seeds of each group that has several."""
        return [
            (whole(epoch), group, name, *numbers)
            for name in names
            for group, nets in self.groups.items()
            if len(nets) > 1
            for epoch, *numbers in _spreads([net.series(name) for net in nets])
        ]

    def with_means(self) -> list[tuple[str, list[PageNet]]]:
        """Rows of a table, as (label, nets): one for each net and, after several seeds of a group, one for all of them."""
        found = []
        for group, nets in self.groups.items():
            found += [(net.label, [net]) for net in nets]
            found += [(f"{group}: mean ± sd of {len(nets)}", nets)] * (len(nets) > 1)
        return found

    def firsts(self, having: Callable[[PageNet], object] = lambda net: True) -> list[PageNet]:
        """The first net of each group that has what is asked for: what is shown where several seeds would hide each other."""
        found = (next(filter(having, nets), None) for nets in self.groups.values())
        return [net for net in found if net is not None]

    def moving(self, family: str) -> list[PageNet]:
        """The nets shown while epochs pass: all, or where they are many, the first of each group that has arrays."""
        few = len(self.nets) <= MOST_MOVING
        return self.nets if few else self.firsts(lambda net: net.run.array_epochs(family))

    def saved(self, family: str, keys: Collection[str], ends: bool = True) -> dict[PageNet, dict[float, Arrays]]:
        """Arrays of a family by net and epoch, those there are: of the moving nets, and with ``ends`` of others at the first
        and the last epoch. A file is read once for all its nets."""
        moving, shown = self.moving(family), [net for nets in self.groups.values() for net in nets]
        found: dict[PageNet, dict[float, Arrays]] = {net: {} for net in shown if ends or net in moving}
        for run in self.runs:
            epochs = run.array_epochs(family)
            for epoch in epochs:
                at_end = epoch in (epochs[0], epochs[-1])
                nets = [net for net in found if net.run is run and (at_end or net in moving)]
                names = frozenset(f"{net.name}/{key}" for net in nets for key in keys)
                arrays = run.arrays(family, epoch, names) if nets else {}
                for net in nets:
                    if mine := {key: arrays[name] for key in keys if (name := f"{net.name}/{key}") in arrays}:
                        found[net][epoch] = mine
        return found

    @cached_property
    def groups(self) -> dict[str, list[PageNet]]:
        """The nets by group, in order: seeds of the same arm together, each seed once.

        Of several runs of one seed the one that trained longest is there, the others are `repeats`.
        """
        found: dict[str, list[PageNet]] = {}
        for net in self.nets:
            found.setdefault(net.group, []).append(net)
        return {group: _each_seed_once(nets) for group, nets in found.items()}

    @cached_property
    def repeats(self) -> list[PageNet]:
        """The nets left out of `groups`."""
        counted = [net for nets in self.groups.values() for net in nets]
        return [net for net in self.nets if net not in counted]


def _spreads(lines: Sequence[pd.Series]) -> Iterable[tuple[float, float, float, float, float, int]]:
    """`statistics.spread` of all epochs at once."""
    table = pd.concat(lines, axis=1).sort_index()
    finite = table.where(np.isfinite(table))
    numbers = (finite.mean(axis=1), finite.std(axis=1), finite.min(axis=1), finite.max(axis=1), finite.count(axis=1))
    return zip(table.index.tolist(), *(each.tolist() for each in numbers), strict=True)


def _each_seed_once(nets: Sequence[PageNet]) -> list[PageNet]:
    """Of nets of one seed the one that trained longest; a net whose seed is unknown counts as a seed of its own."""
    best: dict[object, PageNet] = {}
    for net in nets:
        key = net.label if net.seed is None else net.seed
        if key not in best or net.epoch > best[key].epoch:
            best[key] = net
    return [*best.values()]


class Loss(NamedTuple):
    """The loss whose mean is the risk."""

    name: str
    unit: str = ""

    def measured(self, what: str) -> str:
        """A quantity of this loss with its unit, if it has one."""
        return f"{what} ({self.unit})" if self.unit else what


LOSSES = {"cross_entropy": Loss("cross-entropy", "nats"), "squared_error": Loss("squared error ½‖f(x) − e_y‖²")}


def loss_of(nets: Iterable[PageNet]) -> Loss:
    """The loss that the configurations of their runs name; if they name none or several, one without a unit."""
    found = {str(run.options.get("model.loss")) for run in {net.run for net in nets}}
    return LOSSES.get(found.pop(), Loss("loss")) if len(found) == 1 else Loss("loss")


def gather(runs: Sequence[RunFolder], layer: str | None = None, verdicts: Sequence[Path] = ()) -> PageData:
    """Read the runs and name their nets; see `lightning_app.runs.naming` for how they are called."""
    return page_of(read_runs(runs), layer, verdicts)


def page_of(read: list[Run], layer: str | None = None, verdicts: Sequence[Path] = ()) -> PageData:
    """`gather` of runs that are read already."""
    names = name_nets(read)
    kinds = {name.group: name.net.kind for name in names}
    looks = {
        group: replace(style, arm=f"arm-{number}")
        for number, (group, style) in enumerate(zip(kinds, styles(kinds.values()), strict=True))
    }
    nets = []
    for net, label, group in names:
        facts: dict[str, Any] = {field.name: getattr(net, field.name) for field in fields(reader.Net)}
        nets.append(PageNet(**facts, label=label, group=group, style=looks[group]))
    return PageData(read, nets, layer, tuple(verdicts))
