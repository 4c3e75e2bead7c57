"""Axes that reach to both sides of zero: linear where one decade holds everything, else with readable ticks."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from lightning_app.plots.drawing import rescale, symmetric_log, with_zero


def drawn(values):
    axes = Figure().add_subplot()
    axes.plot(values)
    symmetric_log(axes.yaxis, values)
    return axes


@pytest.mark.parametrize("values", [[], [0.0, 0.0], [-3.0, 2.0, 9.0], [np.nan, np.inf, 1.0]])
def test_within_a_decade_it_is_linear(values):
    assert drawn(values).get_yscale() == "linear"


@pytest.mark.parametrize("values", [[-39.0, 284.0, 1.3], [1e-12, 1e3], [1.0, 10.0], [-99.9, 9.9, 0.0], [5e-4, 0.9992]])
def test_over_decades_all_is_within_and_ticks_stand_apart(values):
    axes = drawn(values)
    low, high = axes.get_ylim()
    assert low < min(values) < max(values) < high
    assert axes.get_yscale() == ("log" if min(values) > 0 else "symlog")
    ticks = axes.get_yticks()
    assert (0 in ticks) == (min(values) <= 0)
    seen = ticks[(ticks > low) & (ticks < high)]
    assert 2 <= len(seen) <= 9
    apart = np.diff(axes.yaxis.get_transform().transform(seen))
    assert apart.min() > 0.5 * apart.max()


@pytest.mark.parametrize(
    "values",
    [
        [0, 2e13],
        [3e-9, 7e-9],
        [0.30001, 0.30002],
        [0, 250_000],
        [-0.5, 0.5],
        [0, 5e-4],
        [0, 999_990],
        [1_000_001, 1_000_002],
    ],
)
def test_a_linear_axis_has_its_power_of_ten_at_each_tick(values):
    """One for the whole axis would stand above it, on the title."""
    figure = Figure()
    axes = figure.add_subplot()
    axes.plot(values)
    rescale(axes.yaxis, log=False)
    figure.draw_without_rendering()
    assert axes.yaxis.get_offset_text().get_text() == ""
    labels = [tick.get_text() for tick in axes.get_yticklabels()]
    assert len({*labels}) == len(labels) and max(map(len, labels)) <= 9


@pytest.mark.parametrize("values", [[2.302585, 2.30259], [123_456.7, 123_458.2], [2.3, 2.4], [2e-9, 3e-9], [1e-4, 1e3]])
def test_ticks_of_a_logarithmic_axis_can_be_told_apart(values):
    """Of a net that stays at chance, ln 10, each was "2.30259"."""
    axes = Figure().add_subplot()
    axes.plot(values)
    rescale(axes.yaxis, log=True)
    labels = [tick.get_text() for tick in axes.get_yticklabels()]
    assert len({*labels}) == len(labels) > 1 and max(map(len, labels)) <= 9


def test_zero_is_on_the_axis_and_rounding_errors_of_it_too():
    axes = Figure().add_subplot()
    axes.plot([1, 2, 3], [1e-12, 1e-3, 1.0])
    with_zero(axes)
    symmetric_log(axes.yaxis, [1e-12, 1e-3, 1.0])
    assert axes.get_yscale() == "symlog"
    assert axes.get_ylim()[0] <= 0
    assert axes.get_xlim()[0] > 0.5
    drawn_at = axes.yaxis.get_transform().transform([0, 1e-12, 1.0])
    assert drawn_at[1] - drawn_at[0] < 1e-3 * (drawn_at[2] - drawn_at[0])
