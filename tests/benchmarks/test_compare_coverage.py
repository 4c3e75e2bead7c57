"""What is committed of `compare`'s simulation is what the simulation gives, and keeps the promise."""

import pandas as pd
import pytest

from benchmarks import compare_coverage as study
from tests.helpers import ROOT

COMMITTED = pd.read_csv(ROOT / "docs" / "results" / "2026-11-29-compare-coverage.csv", comment="#")


def test_wrong_verdicts_are_rarer_than_promised_where_its_assumption_holds():
    assert tuple(COMMITTED.columns) == study.HEAD
    assumed = COMMITTED[COMMITTED["errors"].isin(study.DISTRIBUTIONS)]
    shares = assumed.iloc[:, 2].dropna()
    assert len(shares) == 3 * len(study.DISTRIBUTIONS) and shares.max() <= 0.05


def test_fewer_draws_give_what_is_committed():
    """Shares within four standard deviations of 500 draws, and two of them."""
    again = pd.DataFrame(study.rows(draws=500), columns=study.HEAD).replace("", float("nan"))
    assert again["planned pairs"].dropna().tolist() == pytest.approx(
        COMMITTED["planned pairs"].dropna().tolist(), abs=1
    )
    shares, found = COMMITTED.iloc[:, 2].dropna(), again.iloc[:, 2].astype(float).dropna()
    assert len(found) == len(shares)
    assert (abs(found - shares) <= 4 * (shares * (1 - shares) / 500) ** 0.5 + 2 / 500).all()
