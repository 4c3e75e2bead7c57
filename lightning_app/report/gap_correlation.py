"""Rank correlation of all final measures with the generalisation gap: over all nets, within and across architectures.

A net's final measures are those of the epoch of which its gap is taken. A measure of layers is there layer by layer, and once
more as its median over layers: nets of different depth share that, and of some measures, such as the cushions, nothing else
is of the whole net.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import pandas as pd

from lightning_app.report.page_data import PageData, PageNet
from lightning_app.runs.naming import OF_LAYER
from lightning_app.runs.reader import Final
from lightning_app.statistics.rank_correlation import adjusted, kendall, largest_by_chance

# What the gap is made of, what training was configured to do, and what it cost; of twins their distance is rounding.
NOT_MEASURES = re.compile(r"(train|test|val|probe|time|cost|twin)/|lr$")
WEIGHTS, TRANSFERRED = "weight_mass/", "weight_mass_transferred/"
WAYS = {"all": "all nets", "within": "within architectures", "across": "across architectures"}
LEVEL = 0.05  # share of findings that may be chance, and of shuffles that pass the limit
DIGITS = 12  # of a difference of shares: below is the rounding of a subtraction, which would untie what is tied


@dataclass(frozen=True)
class FinalMeasures:
    """Columns of both tables are positions in ``nets``; NaN: not measured at that epoch, or measured to be NaN."""

    nets: list[PageNet]  # that have the gap in error
    gaps: dict[str, np.ndarray]  # "error" and "risk" on held-out data less the one on training data, (n,)
    epochs: list[float]  # of each net's gap in error, and of its measures
    values: pd.DataFrame  # a row a measure
    left_out: list[str]  # messages on which nets, and why
    unseen: str  # what the held-out data are called

    @property
    def groups(self) -> list[str]:
        """The architecture of each net."""
        return [net.group for net in self.nets]


def final_measures(page: PageData) -> FinalMeasures:
    """The nets that have a gap, each seed once, and the measures that half of them have and in which they differ.

    Twins, and nets that diverged, are left out.
    """
    unseen = page.held_out
    every = [net for nets in page.groups.values() for net in nets]
    twins, others = [net for net in every if net.twin_of], [net for net in every if not net.twin_of]
    found = {net: _gap(net, unseen.error) for net in others if net.diverged is None}
    errors = {net: gap for net, gap in found.items() if gap}
    gaps = {
        "error": np.array([gap.value for gap in errors.values()]),
        "risk": np.array([gap.value if (gap := _gap(net, unseen.risk)) else np.nan for net in errors]),
    }
    left_out = [
        *_left_out(twins, "twins, which are the functions of other nets once more"),
        *_left_out([net for net in others if net not in found], "diverged"),
        *_left_out(
            [net for net in found if net not in errors], f"with no {unseen.words} and training error of the last epoch"
        ),
    ]
    epochs = [gap.epoch for gap in errors.values()]
    return FinalMeasures([*errors], gaps, epochs, _values(errors), left_out, unseen.words)


def _gap(net: PageNet, name: str) -> Final | None:
    """A number on held-out data less the one on training data, both of the last epoch at which either was measured."""
    test, train = net.final(name), net.final(f"train/{name.split('/')[1]}")
    if test is None or train is None or test.epoch != train.epoch or not np.isfinite(test.value - train.value):
        return None
    return Final(round(test.value - train.value, DIGITS), test.epoch)


def _values(gaps: Mapping[PageNet, Final]) -> pd.DataFrame:
    """Measures of each net at the epoch of its gap, and medians over layers: what half of the nets have, if they differ in it."""
    columns = {}
    for position, (net, gap) in enumerate(gaps.items()):
        finals = {name: net.final(name) for name in net.names if not NOT_MEASURES.match(name)}
        found = {name: last.value for name, last in finals.items() if last and last.epoch == gap.epoch}
        columns[position] = _with_transferred(found)
    layers = pd.DataFrame(columns)
    names = layers.index.to_series().map(lambda name: OF_LAYER.sub(r"\g<family>/\g<part>*/\g<field>", name))
    medians = layers[(names != layers.index).to_numpy()].groupby(names, sort=False).median()
    values = pd.concat([medians, layers])
    known = values.notna().sum(axis=1) * 2 >= values.shape[1]
    return values[known & (values.max(axis=1) > values.min(axis=1))]


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


def _left_out(nets: Sequence[PageNet], why: str) -> list[str]:
    return [f"Left out, {why}: {', '.join(net.label for net in nets)}."] if nets else []


@dataclass(frozen=True)
class Prediction:
    """Of each kind of gap and way of comparing nets a table: a row a measure; tau, low, high, p, q, nets, pairs."""

    measures: FinalMeasures
    taus: dict[tuple[str, str], pd.DataFrame]  # those without any tau are absent

    @property
    def ways(self) -> list[str]:
        """Those of `WAYS` for which there is any tau with the gap in error."""
        return [way for way in WAYS if ("error", way) in self.taus]

    def strongest(self, way: str = "all") -> list[str]:
        """Measures of whole nets by |tau| with the gap in error, the largest first; those without tau are left out."""
        return [name for name in self._ranked(way) if not OF_LAYER.fullmatch(name)]

    def strongest_layers(self) -> list[str]:
        """Of each measure of single layers the layer with the largest |tau| over all nets, the largest first."""
        first: dict[tuple[str, str], str] = {}
        for name in self._ranked("all"):
            if found := OF_LAYER.fullmatch(name):
                first.setdefault((found["family"], found["field"]), name)
        return [*first.values()]

    def _ranked(self, way: str) -> list[str]:
        return [*self.taus["error", way]["tau"].dropna().sort_values(key=lambda tau: -tau.abs(), kind="stable").index]

    def findings(self, way: str) -> int:
        """How many measures go with the gap at q <= `LEVEL`."""
        return int((self.taus["error", way]["q"] <= LEVEL).sum())

    def limit(self, way: str) -> float:
        """The |tau| that the strongest of all measures has in `LEVEL` of the cases when the gap is shuffled among the nets."""
        measures = self.measures
        strata = _strata(measures) if way == "within" else None
        by_chance = largest_by_chance(measures.values.to_numpy(), measures.gaps["error"], strata)
        return float(np.quantile(by_chance, 1 - LEVEL))


def predict(measures: FinalMeasures) -> Prediction:
    """Kendall's tau of each measure with both gaps, in all three ways."""
    values, strata = measures.values.to_numpy(), _strata(measures)
    taus = {}
    for kind, gap in measures.gaps.items():
        taus[kind, "all"] = kendall(values, gap)
        taus[kind, "within"] = kendall(values, gap, strata)
        if max(strata) > 1:  # two architectures are one pair: tau is 1 or -1 whatever they are
            taus[kind, "across"] = kendall(_means(values, strata), _means(gap[None], strata))
    tables: dict[tuple[str, str], pd.DataFrame] = {}
    for key, found in taus.items():
        table = pd.DataFrame(asdict(found), index=measures.values.index)
        table.insert(4, "q", adjusted(found.p))
        tables |= {key: table} if table["tau"].notna().any() else {}
    return Prediction(measures, tables)


def _strata(measures: FinalMeasures) -> list[int]:
    return np.unique(measures.groups, return_inverse=True)[1].tolist()


def _means(values: np.ndarray, strata: Sequence[int]) -> np.ndarray:
    """Means over the nets of each stratum that have the number, (M, strata); NaN where none has.

    >>> _means(np.array([[1.0, 3.0, 5.0, np.nan], [1.0, 3.0, 5.0, np.inf]]), [0, 0, 1, 1])
    array([[ 2.,  5.],
           [ 2., inf]])
    """
    own = [values[:, np.equal(strata, stratum)] for stratum in range(max(strata) + 1)]
    with np.errstate(invalid="ignore"):  # the mean of none, or of infinities of both signs
        return np.stack([np.nansum(each, axis=1) / (~np.isnan(each)).sum(axis=1) for each in own], axis=1)
