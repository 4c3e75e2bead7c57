"""Rank correlation of all final measures with the generalisation gap: over all nets, within and across architectures."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import pandas as pd

from lightning_app.report.final_measures import LAYER, FinalMeasures
from lightning_app.statistics.rank_correlation import Kendall, adjusted, kendall, largest_by_chance

__all__ = ["LEVEL", "WAYS", "Prediction", "predict"]

WAYS = {"all": "all nets", "within": "within architectures", "across": "across architectures"}
LEVEL = 0.05  # share of findings that may be chance, and of shuffles that pass the limit


@dataclass(frozen=True)
class Prediction:
    """Of each kind of gap and way of comparing nets a table: a row a measure; tau, low, high, p, q, nets, pairs."""

    measures: FinalMeasures
    taus: dict[tuple[str, str], pd.DataFrame]  # those without any tau are absent

    @property
    def ways(self) -> list[str]:
        return [way for way in WAYS if ("error", way) in self.taus]

    def strongest(self, way: str = "all") -> list[str]:
        """Measures of whole nets by |tau| with the gap in error, the largest first; those without tau are left out."""
        return [name for name in self._ranked(way) if not LAYER.search(name)]

    def strongest_layers(self) -> list[str]:
        """Of each measure of single layers the layer with the largest |tau| over all nets, the largest first."""
        first: dict[str, str] = {}
        for name in self._ranked("all"):
            if LAYER.search(name):
                first.setdefault(LAYER.sub("", name), name)
        return [*first.values()]

    def _ranked(self, way: str) -> list[str]:
        return [*self.taus["error", way]["tau"].dropna().sort_values(key=lambda tau: -tau.abs(), kind="stable").index]

    def findings(self, way: str) -> int:
        return int((self.taus["error", way]["q"] <= LEVEL).sum())

    def limit(self, way: str) -> float:
        """The |tau| that the strongest of all measures has in `LEVEL` of the cases when the gap is shuffled among the nets."""
        measures = self.measures
        strata = _strata(measures) if way == "within" else None
        by_chance = largest_by_chance(measures.values.to_numpy(), measures.gaps["error"], strata)
        return float(np.quantile(by_chance, 1 - LEVEL))


def predict(measures: FinalMeasures) -> Prediction:
    values, strata = measures.values.to_numpy(), _strata(measures)
    taus = {}
    for kind, gap in measures.gaps.items():
        taus[kind, "all"] = kendall(values, gap)
        taus[kind, "within"] = kendall(values, gap, strata)
        if max(strata) > 1:  # two architectures are one pair: tau is 1 or -1 whatever they are
            taus[kind, "across"] = kendall(_means(values, strata), _means(gap[None], strata))
    tables = {key: _table(found, measures.values.index) for key, found in taus.items()}
    return Prediction(measures, {key: table for key, table in tables.items() if table["tau"].notna().any()})


def _table(found: Kendall, names: Sequence[str]) -> pd.DataFrame:
    table = pd.DataFrame(asdict(found), index=names)
    table.insert(4, "q", adjusted(found.p))
    return table


def _strata(measures: FinalMeasures) -> list[int]:
    return np.unique(measures.groups, return_inverse=True)[1].tolist()


def _means(values: np.ndarray, strata: Sequence[int]) -> np.ndarray:
    """Means over the nets of each stratum that have the number, (M, strata); NaN where none has.

    >>> _means(np.array([[1.0, 3.0, 5.0, np.nan]]), [0, 0, 1, 1])
    array([[2., 5.]])
    """
    known = ~np.isnan(values)
    members = np.eye(max(strata) + 1)[[*strata]]  # (n, strata)
    counts = known @ members
    with np.errstate(invalid="ignore"):  # the mean of infinities of both signs
        return np.where(known, values, 0) @ members / np.where(counts > 0, counts, np.nan)
