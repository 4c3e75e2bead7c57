"""Figures for paper: legends of what is drawn, and panels that have nothing to draw yet."""

import numpy as np

from lightning_app.plots import figures


def panel():
    figure, grid = figures.canvas()
    return figure, grid[0, 0]


def legend_of(axes):
    figures.legend(axes)
    return [text.get_text() for text in legend.get_texts()] if (legend := axes.get_legend()) else []


def test_a_legend_is_of_what_is_drawn():
    _, axes = panel()
    axes.plot([0, 1], [np.nan, np.nan], label="not yet")
    axes.errorbar([20], [np.nan], [np.nan], label="not yet either")
    axes.errorbar([], [], [], label="nor this")
    assert legend_of(axes) == []
    axes.plot([0, 1], [np.nan, 1.0], label="a line")
    axes.errorbar([20], [0.1], [0.01], label="a mean")
    figures.key(axes, "drawn in another panel", linestyle="--")
    assert legend_of(axes) == ["a line", "drawn in another panel", "a mean"]


def test_a_key_alone_is_no_legend():
    _, axes = panel()
    figures.key(axes, "with skip", linestyle="--")
    assert legend_of(axes) == []


def test_a_panel_without_data_says_so_instead_of_numbering_axes():
    figure, axes = panel()
    axes.semilogy([0, 1], [np.nan, np.nan])
    axes.set_title("training loss")
    figures.mark_empty(figure)
    assert [text.get_text() for text in axes.texts] == ["nothing to draw yet"] and not axes.axison
    assert axes.get_title() == "training loss"


def test_panels_with_data_stay_as_they_are():
    for draw in ("plot", "scatter", "bar", "stairs"):
        figure, axes = panel()
        getattr(axes, draw)(*([[1.0, 2.0]] if draw == "stairs" else [[0, 1], [1.0, 2.0]]))
        figures.mark_empty(figure)
        assert axes.axison and not axes.texts
