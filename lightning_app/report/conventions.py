"""Does a conclusion depend on the convention? Plain against residual nets under each convention of `conventions.yaml`.

A result that holds under one convention only is a result about the convention. So none is chosen: all stand side by side.
"""

import math
import operator
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, reduce
from pathlib import Path

import numpy as np

from lightning_app.common.safe_io import parsed_yaml
from lightning_app.report.page_data import PageNet
from lightning_app.report.pairs import Pair
from lightning_app.statistics.paired import ENOUGH, paired_curve

# Residual nets against plain ones. Unresolved: the interval contains 0, which is no sign that there is no difference.
LARGER, SMALLER, UNRESOLVED, UNKNOWN = "larger", "smaller", "unresolved", "–"
TOO_FEW = "too few seeds"  # to conclude from
# What the choice of a convention does, the most telling first. Without a conclusion under any there is nothing to change.
REVERSES, DECIDES = "yes: larger or smaller", "yes: whether one is resolved"
AGREES, OPEN = "no", "no: none is resolved"
EFFECTS = (REVERSES, DECIDES, AGREES, OPEN, TOO_FEW, UNKNOWN)
# Where the same function is written as another net: see `conventions.yaml`. "" is not known.
INVARIANT, UNDER_T, NOTATION = "invariant", "invariant under T", "notation"
ALIKE = 0.05  # relative: a difference of one seed that is left unresolved, where there is no spread to compare with


@dataclass(frozen=True)
class Convention:
    """One way to take a quantity from the log."""

    label: str
    value: str  # a key, in which * stands for every layer, block or strength; "key - key"; or "10^key"
    meaning: str
    rewritten: str = ""  # INVARIANT, UNDER_T, NOTATION, or not known

    @property
    def keys(self) -> tuple[str, ...]:
        """Names in the log."""
        return tuple(self.value.removeprefix("10^").split(" - "))

    def of(self, *values: float) -> float:
        """The quantity, given the keys' values.

        >>> bound = Convention("a", "10^bound", "")
        >>> bound.of(2.0), bound.of(math.nan), Convention("a", "test - train", "").of(3.0, 1.0)
        (100.0, nan, 2.0)
        """
        if self.value.startswith("10^"):
            return math.inf if values[0] >= sys.float_info.max_10_exp else 10.0 ** values[0]
        return operator.sub(*values) if len(values) == 2 else values[0]


@dataclass(frozen=True)
class Quantity:
    """What several conventions exist for."""

    title: str  # with its unit where they share one
    conventions: tuple[Convention, ...]
    over: str = ""  # what * runs over


@lru_cache(maxsize=1)
def quantities() -> tuple[Quantity, ...]:
    """The content of `conventions.yaml`."""
    file = Path(__file__).with_name("conventions.yaml")
    found = []
    for entry in parsed_yaml(file.read_text(encoding="utf-8"), file.name):
        conventions = tuple(Convention(label, *each) for label, each in entry["conventions"].items())
        found.append(Quantity(entry["quantity"], conventions, entry.get("over", "")))
    return tuple(found)


def values_of(nets: Sequence[PageNet], convention: Convention) -> dict[str, np.ndarray]:
    """The nets' values (n,) by what ``*`` stands for, each at the last epoch that all of them have; empty without any."""
    items = {"": convention.keys}
    if "*" in convention.keys[0]:
        items = {item: (name,) for item, name in _matches(nets[0].names, convention.keys[0])}
    found = {item: _at_last(nets, convention, keys) for item, keys in items.items()}
    return {item: values for item, values in found.items() if len(values)}


def _at_last(nets: Sequence[PageNet], convention: Convention, keys: Sequence[str]) -> np.ndarray:
    """(n,), at the last epoch at which all nets have all keys: nets that trained on are not ahead by that. (0,) without one."""
    points = [[net.points(key) for key in keys] for net in nets]
    common = reduce(np.intersect1d, (epochs for its in points for epochs, _ in its))
    if not len(common):
        return np.empty(0)
    return np.array(
        [convention.of(*(float(x[epochs.searchsorted(common[-1])]) for epochs, x in its)) for its in points]
    )


def _matches(names: Sequence[str], key: str) -> list[tuple[str, str]]:
    """What ``*`` stands for, and the whole name, of each name that fits the key.

    >>> _matches(["cushion/layer02/mean", "cushion/layer02/median", "probe/risk"], "cushion/layer*/median")
    [('02', 'cushion/layer02/median')]
    """
    start, end = key.split("*")
    found = [(name[len(start) : len(name) - len(end)], name) for name in names if name.startswith(start)]
    return [(item, name) for item, name in found if name.endswith(end) and item and "/" not in item]


def typical(values: Mapping[str, np.ndarray]) -> np.ndarray:
    """Each net's median over layers, blocks, strengths or distances, (n,); NaN where one of these is NaN.

    >>> typical({"1": np.array([1.0, 2.0]), "2": np.array([5.0, 4.0])})
    array([3., 3.])
    """
    return np.median([*values.values()], axis=0)


@dataclass(frozen=True, eq=False)
class UnderConvention:
    """One pair of arms under one convention."""

    convention: Convention
    pair: Pair
    plain: np.ndarray  # (S,), of each seed the median over layers, blocks, strengths or distances
    residual: np.ndarray  # (S,)
    ratio: float  # residual / plain, geometric mean over seeds; nan where a value is not positive
    low: float  # of the ratio's 95 % bootstrap interval; nan for one seed
    high: float
    conclusion: str
    above: int  # layers (blocks, strengths) at which the residual nets' mean is the larger one
    items: int  # of so many


@dataclass(frozen=True, eq=False)
class AcrossConventions:
    """One pair of arms under all conventions of one quantity."""

    quantity: Quantity
    pair: Pair
    conventions: list[UnderConvention]

    def count(self, conclusion: str) -> int:
        """How many conventions lead to it."""
        return sum(each.conclusion == conclusion for each in self.conventions)

    @cached_property
    def ratios(self) -> list[float]:
        """Residual / plain, where it is finite."""
        return [each.ratio for each in self.conventions if np.isfinite(each.ratio)]

    @property
    def effect(self) -> str:
        """One of `EFFECTS`."""
        found = {each.conclusion for each in self.conventions} - {UNKNOWN}
        if len(found) > 1:
            return REVERSES if {LARGER, SMALLER} <= found else DECIDES
        return {LARGER: AGREES, SMALLER: AGREES, UNRESOLVED: OPEN, TOO_FEW: TOO_FEW}[found.pop()] if found else UNKNOWN


def across_conventions(pair: Pair, quantities: Sequence[Quantity]) -> list[AcrossConventions]:
    """The quantities that both arms have under two or more conventions."""
    tables = []
    for quantity in quantities:
        values = {each: table for each in quantity.conventions if (table := values_of(pair.nets, each))}
        tables += [(quantity, values)] * (len(values) > 1)
    sides = [np.array(np.split(typical(table), 2)) for _, each in tables for table in each.values()]  # (2, S) each
    # Of logarithms where all are positive. All are resampled together, in a twentieth of the time.
    contrasts = iter(_contrasts([np.log(both) if (both > 0).all() else both for both in sides]))
    return [
        AcrossConventions(quantity, pair, [_compared(pair, *item, next(contrasts)) for item in each.items()])
        for quantity, each in tables
    ]


def _contrasts(sides: Sequence[np.ndarray]) -> list[tuple[float, float, float]]:
    """Residual less plain over seeds, of sides (2, S): mean, low and high."""
    if not sides:
        return []
    plain, residual = np.stack(sides, axis=-1)  # (2, S, E)
    curve = paired_curve(residual, plain)
    return [*zip(curve.mean.tolist(), curve.low.tolist(), curve.high.tolist(), strict=True)]


def _compared(
    pair: Pair, convention: Convention, table: Mapping[str, np.ndarray], contrast: tuple[float, float, float]
) -> UnderConvention:
    """One pair under one convention, from `values_of` its nets, plain ones first, and their contrast.

    The contrast is of logarithms where all values are positive.
    """
    plain, residual = np.split(typical(table), 2)
    positive = bool((plain > 0).all() and (residual > 0).all())
    with np.errstate(over="ignore"):  # infinite where no float is so large
        ratio, low, high = np.exp(contrast).tolist() if positive else [math.nan] * 3
    if len(plain) >= ENOUGH:
        conclusion = _conclusion(*contrast[1:])
    elif len(plain) > 1:
        conclusion = UNKNOWN if math.isnan(contrast[1]) else TOO_FEW
    else:  # of one seed: a difference, or NaN, less what is too small to tell
        (one,), (other,) = plain.tolist(), residual.tolist()
        alike = ALIKE * max(abs(one), abs(other)) if math.isfinite(one) and math.isfinite(other) else math.nan
        conclusion = _conclusion(other - one - alike, other - one + alike)
    sides = [np.split(values, 2) for values in table.values()]
    above = sum(bool(more.mean() > less.mean()) for less, more in sides)
    return UnderConvention(convention, pair, plain, residual, ratio, low, high, conclusion, above, len(table))


def _conclusion(low: float, high: float) -> str:
    """Of the interval of residual against plain.

    >>> _conclusion(0.1, 0.3), _conclusion(-0.1, 0.3), _conclusion(math.nan, math.nan)
    ('larger', 'unresolved', '–')
    """
    if math.isnan(low):
        return UNKNOWN
    return LARGER if low > 0 else SMALLER if high < 0 else UNRESOLVED
