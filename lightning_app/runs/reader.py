"""One run folder as a reader sees it: its log read once, its nets with what the run recorded of them.

What a net is (arm, seed, class, plain or residual, twin of which) stands in members.csv. Runs older than that file, and nets
of which it does not say whether they are residual, are read by their configuration, and where that does not say it, by names;
such a net is marked as ``guessed``.
"""

import itertools
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pandas as pd

from lightning_app.common.errors import UserError
from lightning_app.common.numbers import whole
from lightning_app.runs.configuration import LIMITS, ROOT, changed, compared, flatten
from lightning_app.runs.folder import LayerRow, MemberRow, RunFolder
from lightning_app.runs.naming import KINDS, run_labels, seed_of, without_seed

T = TypeVar("T")
Points = tuple[np.ndarray, np.ndarray]  # epochs, ascending, and values

# Whole words only: "stress", "explained" and "preset-a" name neither kind.
KIND = re.compile(r"(?<![a-z])(?:(plain|pln)|residual|res)(?:net)?(?![a-z])", re.IGNORECASE)


@dataclass(frozen=True)
class Final:
    """The last measurement of a number, and when it was made."""

    value: float
    epoch: float  # completed epochs, within one with a fraction


class Run:
    """One run, its log read once.

    Args:
        folder: of the run.
        label: what it is called among others; its folder's name if not given.

    Raises:
        UserError: from the run folder, if there is no log or it is not one that SkipScope wrote.
    """

    def __init__(self, folder: RunFolder, label: str | None = None) -> None:
        self.folder = folder
        self.label = folder.label if label is None else label
        self.log = folder.log(categories=True)
        self.damage: list[str] = []  # a message for each file that could not be read
        self._rows = self.log.groupby(["member", "name"], sort=False, observed=True).indices
        self._points: dict[tuple[str, str], Points] = {}
        self._epochs: dict[str, list[float]] = {}
        self._arrays: dict[tuple[str, float, frozenset[str] | None], dict[str, np.ndarray]] = {}

    @cached_property
    def config(self) -> dict[str, Any]:
        """config.yaml; empty if there is none."""
        return self.folder.config()

    @cached_property
    def options(self) -> dict[str, Any]:
        """What the run computes (`compared`); for `ImageFolder` also its pictures, by fingerprint or else by their folder."""
        found = compared(self.config)
        parts: list[dict[str, Any]] = self._undamaged(self.folder.made, [])
        on_cpu = {part.get("device") == "cpu" for part in parts} == {True}
        computed = {"fp32"} if on_cpu else {part.get("float32") for part in parts}
        if "model.float32" in found and len(computed) == 1 and None not in computed:
            found["model.float32"] = computed.pop()  # a CPU rounds nothing, whatever is set
        if str(found.get("data.class_path")).endswith("ImageFolder"):
            made = [part["data"] for part in parts if part.get("data")]
            found["data.samples"] = made[-1] if made else dict(flatten(self.config)).get(ROOT)
        return found

    @cached_property
    def planned(self) -> dict[str, Any]:
        """Its options, but of the limits those that it began with: a resume may have raised them."""
        first = compared(next(iter(self.earlier_configs), {}))
        return self.options | {key: first[key] for key in LIMITS if key in first}

    @cached_property
    def nets(self) -> list["Net"]:
        """The nets that have numbers in the log, in its order."""
        return [self.net(name) for name in self.last_epochs if name]

    def net(self, name: str) -> "Net":
        """One of its nets; for "" the run as a whole as if it were one."""
        return _net(self, name, self._recorded.get(name))

    @cached_property
    def _recorded(self) -> dict[str, MemberRow]:
        rows: list[MemberRow] = self._undamaged(self.folder.members, [])
        return {row.name: row for row in rows}

    def names(self, member: str = "") -> list[str]:
        """What was measured of a member, in the order of the log; of the whole run for ''."""
        return [name for owner, name in self._rows if owner == member]

    def series(self, name: str, member: str = "") -> pd.Series:
        """Values by epoch, ascending. Not measured is absent; NaN means that NaN was measured."""
        epochs, values = self.points(name, member)
        return pd.Series(values, pd.Index(epochs, name="epoch"), name="value")

    def points(self, name: str, member: str = "") -> Points:
        """What `series` is made of, for those who need thousands: a Series takes as long as all the rest."""
        if (member, name) not in self._points:
            rows = self._rows.get((member, name), np.empty(0, int))
            epochs, values = (self._columns[column][rows] for column in ("epoch", "value"))
            order = epochs.argsort(kind="stable")
            self._points[member, name] = (epochs[order], values[order])
        return self._points[member, name]

    @cached_property
    def _columns(self) -> dict[str, np.ndarray]:
        return {column: self.log[column].to_numpy() for column in ("epoch", "value")}

    def last(self, name: str, member: str = "") -> Final | None:
        """The measurement of the latest epoch; None when never measured."""
        epochs, values = self.points(name, member)
        return Final(float(values[-1]), whole(float(epochs[-1]))) if len(epochs) else None

    @cached_property
    def last_rows(self) -> pd.DataFrame:
        """The log's last row of every number of every member, in the order of epochs."""
        return self.log.sort_values("epoch", kind="stable").drop_duplicates(["member", "name"], keep="last")

    @cached_property
    def last_epochs(self) -> dict[str, int]:
        """Completed epochs of each member ("": the whole run), in the order of the log; one under way does not count."""
        last = self.log.groupby("member", sort=False, observed=True)["epoch"].max()
        return {str(member): int(epoch) for member, epoch in last.items()}

    @cached_property
    def last_step(self) -> int:
        """Optimizer steps at the end of the log; 0 without any row."""
        return int(self.log["step"].max()) if len(self.log) else 0

    def array_epochs(self, family: str) -> list[float]:
        """Epochs at which a family's arrays were saved, ascending; looked up once."""
        if family not in self._epochs:
            self._epochs[family] = self.folder.array_epochs(family)
        return self._epochs[family]

    def arrays(self, family: str, epoch: float, names: frozenset[str] | None = None) -> dict[str, np.ndarray]:
        """One family's arrays of one epoch, or some of them, kept; none of a damaged file, which `damage` then names."""
        key = (family, epoch, names)
        if key not in self._arrays:
            wanted = None if names is None else names.__contains__
            self._arrays[key] = self._undamaged(lambda: self.folder.arrays(epoch, family, wanted), {})
        return self._arrays[key]

    # Each of these is empty for a damaged file, and `damage` then names it.

    @cached_property
    def earlier_configs(self) -> list[dict[str, Any]]:
        """Configurations before each resume that changed them, oldest first."""
        return self._undamaged(self.folder.earlier_configs, [])

    @cached_property
    def changed_options(self) -> list[dict[str, tuple[Any, Any]]]:
        """Of each resume with other options than before, these by dotted key (`configuration.changed`), oldest first."""
        configs = [*self.earlier_configs, self.config]
        return [found for before, after in itertools.pairwise(configs) if (found := changed(before, after))]

    @cached_property
    def layers(self) -> list[LayerRow]:
        """Of each net, in forward order."""
        return self._undamaged(self.folder.layers, [])

    @cached_property
    def described(self) -> dict[str, str]:
        """The meaning of the numbers of a user's own measures."""
        return self._undamaged(self.folder.described_keys, {})

    @cached_property
    def finished(self) -> int | None:
        """After how many epochs training came to its end; None where the folder does not say that it did."""
        return self._undamaged(lambda: self.folder.finished, None)

    @cached_property
    def notes(self) -> list[str]:
        """Messages on what could not be measured."""
        return self._undamaged(self.folder.notes, [])

    @cached_property
    def diverged(self) -> tuple[str, int] | None:
        """The net whose divergence ended training, and in which epoch; None if training has continued since."""
        found = self._undamaged(self.folder.divergence, None)
        # Runs from before 2026-11-28 did not note that they went on.
        gone_on = found is not None and max(self.last_epochs.values(), default=0) > found[1]
        return None if gone_on or self.finished is not None else found

    def check(self) -> None:
        """Raise a UserError for the first file that could not be read, where going on without it would mislead."""
        if self.damage:
            raise UserError(self.damage[0])

    def _undamaged(self, read: Callable[[], T], otherwise: T) -> T:
        """What a reader returns: one damaged file must not hide the others."""
        try:
            return read()
        except UserError as error:
            if str(error) not in self.damage:
                self.damage.append(str(error))
            return otherwise


@dataclass(frozen=True)
class Net:
    """One trained net: a member of a run. Of what the run recorded, "" and None are unknown (see `MemberRow`)."""

    run: Run
    name: str
    arm: str  # as recorded, else the name without its seed
    seed: int | None
    class_path: str
    residual: bool | None
    twin_of: str  # name of another net of the run
    depth: int | None
    parameters: int | None
    guessed: bool  # is ``residual`` read off a name, as nothing recorded it?

    @property
    def kind(self) -> str:
        """'plain', 'residual' or, where that is unknown, 'other'."""
        return KINDS[self.residual]

    @property
    def spec(self) -> Mapping[str, Any]:
        """What the run's configuration says of its arm, ``net`` or ``twin_of``; an empty net of other people's modules."""
        return _spec(self.run.config, self.arm)

    @cached_property
    def names(self) -> list[str]:
        """What was measured of it, in the order of the log."""
        return self.run.names(self.name)

    @cached_property
    def epoch(self) -> int:
        """Completed epochs of the last row of this net."""
        return self.run.last_epochs[self.name]

    def _member(self, name: str) -> str:
        """Under which member of the log a number of this net stands."""
        return self.name

    def series(self, name: str) -> pd.Series:
        """Values by epoch, as `Run.series`."""
        return self.run.series(name, self._member(name))

    def points(self, name: str) -> Points:
        """Epochs and values, as `Run.points`."""
        return self.run.points(name, self._member(name))

    def final(self, name: str) -> Final | None:
        """The last value, never the best one; None when never measured."""
        return self.run.last(name, self._member(name))

    def at(self, name: str, epoch: float | None) -> float | None:
        """The value after so many epochs; None where it was not measured."""
        found = self.series(name).get(epoch)
        return None if found is None else float(found)

    def arrays(self, family: str, epoch: float | None) -> dict[str, np.ndarray]:
        """This net's arrays, its name cut off the keys; empty if there are none at that epoch."""
        if epoch is None or epoch not in self.run.array_epochs(family):
            return {}
        prefix = f"{self.name}/"
        arrays = self.run.arrays(family, epoch)
        return {key.removeprefix(prefix): array for key, array in arrays.items() if key.startswith(prefix)}


class HeldOut(NamedTuple):
    """Data that nets are not trained on."""

    key: str  # "test" or "val": what the names of its numbers begin with
    words: str

    @property
    def error(self) -> str:
        """The name of the error on it."""
        return f"{self.key}/error"

    @property
    def risk(self) -> str:
        """The name of the risk on it."""
        return f"{self.key}/risk"


TEST, VALIDATION = HeldOut("test", "test"), HeldOut("val", "validation")


def held_out(measured: Collection[str]) -> HeldOut:
    """The data of which an error was measured, else a risk, the test data first; the test data also where nothing was."""
    splits = (TEST, VALIDATION)
    by_name = {split.error: split for split in splits} | {split.risk: split for split in splits}
    return next((split for name, split in by_name.items() if name in measured), TEST)


def read_runs(folders: Sequence[RunFolder]) -> list[Run]:
    """Several runs, each under a label of its own (see `naming.run_labels`)."""
    labels = run_labels([folder.path for folder in folders])
    return [Run(folder, label) for folder, label in zip(folders, labels, strict=True)]


def _net(run: Run, name: str, recorded: MemberRow | None) -> Net:
    row, guessed = (recorded, False) if recorded else _reconstructed(run, name)
    if recorded and recorded.residual is None:  # its class has no attribute `residual`
        other, guessed = _reconstructed(run, name)
        row = row._replace(residual=other.residual, depth=other.depth if row.depth is None else row.depth)
    seed = row.seed if row.seed is not None else seed_of(name, run.config, run.label)
    return Net(run, **row._replace(arm=row.arm or without_seed(name) or "nets", seed=seed)._asdict(), guessed=guessed)


def _reconstructed(run: Run, name: str) -> tuple[MemberRow, bool]:
    """A net of a run that recorded none, and whether its kind is a guess: from its configuration, else from names."""
    arm = without_seed(name) or "nets"
    spec = _spec(run.config, arm)
    original = spec.get("twin_of") or ""
    net = _spec(run.config, original).get("net") if original else spec.get("net")
    arguments = _mapping(_mapping(net).get("init_args"))
    residual, depth = arguments.get("residual"), arguments.get("depth")
    known = isinstance(residual, bool)
    row = MemberRow(
        name=name,
        arm=arm,
        seed=None,
        class_path=str(net if isinstance(net, str) else _mapping(net).get("class_path") or ""),
        residual=residual is not bool(original) if known else _kind_in(name, run.label),
        twin_of=name.replace(arm, original, 1) if original else "",
        depth=depth if type(depth) is int else None,  # of other people's classes it may be a list, or a word
        parameters=None,
    )
    return row, not known and row.residual is not None


def _spec(config: Mapping[str, Any], arm: str) -> Mapping[str, Any]:
    model = _mapping(config.get("model"))
    return _mapping(_mapping(model.get("arms")).get(arm)) or {"net": model.get("net")}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _kind_in(*names: str) -> bool | None:
    """Is a net of such names residual? The first name that tells, and in it the first word; None: none does.

    >>> [_kind_in(name) for name in ("residual-from-plain", "pln32", "compressed-plain", "stress", "explained")]
    [True, False, False, None, None]
    """
    found = next(filter(None, map(KIND.search, names)), None)
    return None if found is None else not found[1]
