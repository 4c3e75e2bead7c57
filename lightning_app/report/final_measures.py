"""All nets' final measures as one table: what a net was measured to be at the epoch of which its generalisation gap is taken.

A measure of layers is there layer by layer, and once more as its median over layers: nets of different depth share that,
and of some measures, such as the cushions, nothing else tells of the whole net.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from lightning_app.report.evidence import Evidence, Final, Net

__all__ = ["GAPS", "LAYER", "FinalMeasures", "final_measures"]

GAPS = {"error": ("test/error", "train/error"), "risk": ("test/risk", "train/risk")}
# What the gap is made of, what training was told to do, and what it cost; of twins their distance is rounding.
NOT_MEASURES = re.compile(r"(train|test|val|probe|time|cost|twin)/|lr$")
LAYER = re.compile(r"(?<=/)(layer|block)\d+\w*(?:-block\d+)?(?=/)")  # the name of a layer within a measure's
WEIGHTS, TRANSFERRED = "weight_mass/", "weight_mass_transferred/"
DIGITS = 12  # of a difference of shares: below is the rounding of a subtraction, which would untie what is tied


@dataclass(frozen=True)
class FinalMeasures:
    """Columns of both tables are places in ``nets``; NaN: not measured at that epoch, or measured to be NaN."""

    nets: list[Net]  # that have the gap in error
    gaps: dict[str, np.ndarray]  # as in `GAPS`, (n,)
    values: pd.DataFrame  # a row a measure
    left_out: list[str]  # sentences

    @property
    def groups(self) -> list[str]:
        return [net.group for net in self.nets]


def final_measures(evidence: Evidence) -> FinalMeasures:
    """Of each seed once, less twins and nets that diverged or have no gap; measures that differ and that half of them have."""
    every = [net for nets in evidence.groups.values() for net in nets]
    twins = [net for net in every if net.twin_of]
    lost = [net for net in every if net not in twins and net.diverged is not None]
    nets = [net for net in every if net not in twins + lost and _gap(net, "error") is not None]
    without = [net for net in every if net not in twins + lost + nets]
    gaps = {kind: np.array([_value(_gap(net, kind)) for net in nets]) for kind in GAPS}
    said = _left_out(twins, "twins of other nets, the same functions once more")
    said += _left_out(lost, "diverged") + _left_out(without, "without test and training error of its last epoch")
    return FinalMeasures(nets, gaps, _comparable(_values(nets)), said)


def _gap(net: Net, kind: str) -> Final | None:
    """Test less training, both of the last epoch at which either was measured."""
    test, train = (net.final(name) for name in GAPS[kind])
    if test is None or train is None or test.epoch != train.epoch or not np.isfinite(test.value - train.value):
        return None
    return Final(round(test.value - train.value, DIGITS), test.epoch)


def _value(last: Final | None) -> float:
    return np.nan if last is None else last.value


def _values(nets: Sequence[Net]) -> pd.DataFrame:
    columns = {place: _of_net(net) for place, net in enumerate(nets)}
    layers = pd.DataFrame(columns)
    names = layers.index.to_series().map(lambda name: LAYER.sub(r"\1*", name))
    medians = layers[(names != layers.index).to_numpy()].groupby(names, sort=False).median()
    return pd.concat([medians, layers])


def _of_net(net: Net) -> dict[str, float]:
    """What was measured at the epoch of its gap."""
    gap = _gap(net, "error")
    finals = {name: net.final(name) for name in net.names if not NOT_MEASURES.match(name)}
    found = {name: last.value for name, last in finals.items() if gap and last and last.epoch == gap.epoch}
    return _with_transferred(found)


def _with_transferred(found: dict[str, float]) -> dict[str, float]:
    """Also t = T(w) of the layers in which T changes nothing, such as all of a plain net: there t is w and not logged again.

    >>> _with_transferred({"weight_mass/layer01/all": 5.0, "weight_mass_transferred/all": 7.0})[
    ...     "weight_mass_transferred/layer01/all"
    ... ]
    5.0
    """
    if not any(name.startswith(TRANSFERRED) for name in found):
        return found
    return {name.replace(WEIGHTS, TRANSFERRED, 1): found[name] for name in found if name.startswith(WEIGHTS)} | found


def _comparable(values: pd.DataFrame) -> pd.DataFrame:
    known = values.notna().sum(axis=1) * 2 >= values.shape[1]
    return values[known & (values.max(axis=1) > values.min(axis=1))]


def _left_out(nets: Sequence[Net], why: str) -> list[str]:
    return [f"Left out, {why}: {', '.join(net.label for net in nets)}."] if nets else []
