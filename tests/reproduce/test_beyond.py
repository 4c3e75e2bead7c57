"""Predictions of ours: what they are computed from, on nets of depth 8."""

from pathlib import Path

import numpy as np
import pytest

from lightning_app.papers.beyond.signals import FIELDS, KINDS, UNTRAINED, growth, profiles
from lightning_app.papers.parts import Source


@pytest.mark.parametrize("kind", KINDS)
def test_profiles_of_small_nets(kind):
    steps = 0 if kind in UNTRAINED else 1
    asked = {"kind": kind, "depth": 8, "batch": 8, "steps": steps, "points": 4, "seeds": 2}
    one, other = (profiles(Source(Path("none"), stand_in=False), **asked) for _ in range(2))
    assert all(np.array_equal(one[key], other[key], equal_nan=True) for key in one)  # a seed decides everything
    for field in FIELDS:
        assert one[field].shape == (2, 2, 8) and np.isfinite(one[field]).all() and (one[field] > 0).all()
    assert np.array_equal(one["activation"][:, 0], one["activation"][:, 1]) is (steps == 0)
    closed = np.isfinite(one["activation_expected"])[:, :-1]
    assert closed.all() if not kind.startswith("full") else not closed.any()
    assert (np.abs(one["neighbours"]) <= 1 + 1e-9).all()


def test_growth_is_the_slope_within_groups_whatever_lies_between_them():
    layers = np.arange(20)
    rows = np.exp(0.25 * layers)[None] * np.where(layers > 7, 100.0, 1.0)
    assert growth(rows, 20) == pytest.approx([0.5])
