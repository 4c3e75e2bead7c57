"""Figures for paper: the papers' form and colours, as PDF, SVG and PNG, the same bytes for the same numbers."""

import textwrap
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from lightning_app.plots.drawing import histogram, over_seeds
from lightning_app.plots.style import AXES, COLOURS, UNDATED, Style
from lightning_app.plots.style import INK as INK

FORMATS = ("pdf", "svg", "png")
PANEL = (3.6, 2.9)  # inches
BINS = 120  # of `outlines`
RC: Any = AXES | {
    "font.size": 9,
    "axes.titlesize": 9,
    "lines.linewidth": 1.5,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "pdf.fonttype": 42,  # text stays text
    "svg.hashsalt": "skipscope",
    "savefig.dpi": 150,
}


def styled() -> AbstractContextManager:
    """The style of all figures: draw and save inside it."""
    return mpl.rc_context(RC)


def canvas(rows: int = 1, columns: int = 1, **more: Any) -> tuple[Figure, np.ndarray]:
    """A figure with a grid of axes, (rows, columns)."""
    figure = Figure(figsize=(PANEL[0] * columns, PANEL[1] * rows + 0.3), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **more)


def colour(arm: str) -> str:
    """Blue for the arm "plain" and red for "residual", as in Yu & Tomasi; green for any other."""
    return COLOURS[f"{arm if arm in ('plain', 'residual') else 'other'}-0"][0]


def band(axes: Axes, curves: pd.DataFrame, arm: str, label: str) -> None:
    """Draw the mean over seeds by epoch with its band and extremes (`drawing.spread_of`), at epochs that all seeds have.

    Args:
        curves: (epochs, seeds).
    """
    seeds = curves.dropna()
    over_seeds(axes, [seeds[seed] for seed in seeds], _plain_line(arm), label=label)


def outlines(axes: Axes, samples: Mapping[str, np.ndarray], before: Mapping[str, np.ndarray] = {}) -> None:
    """Draw histograms of positive samples by arm over common bins, with means in the legend; NaN and infinity are left out.

    The axis starts at zero, or is logarithmic if samples span more than two decades.

    Args:
        before: samples before training, which are dotted.
    """
    finite, first = _positive(samples), _positive(before)
    if not finite:
        return
    every = [*finite.values(), *first.values()]
    low, high = (function([function(values) for values in every]) for function in (np.min, np.max))
    log = high > 100 * low
    edges = np.geomspace(low / 1.1, high * 1.1, BINS + 1) if log else np.linspace(0, high * 1.02, BINS + 1)
    for arm, values in first.items():
        look = Style(colour(arm), ":", "")
        histogram(axes, np.histogram(values, edges)[0], edges, look, label=f"{arm}, before training")
    for arm, values in finite.items():
        stairs(axes, np.histogram(values, edges)[0], edges, arm, f"{arm}, mean {values.mean():.3g}")
    # Four entries would hide lines.
    axes.legend(**({"loc": "upper center", "bbox_to_anchor": (0.5, -0.2), "ncols": 2} if first else {}))
    if log:
        axes.set_xscale("log")


def _positive(samples: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The finite positive ones of each arm that has some."""
    positive = {arm: values[np.isfinite(values) & (values > 0)] for arm, values in samples.items()}
    return {arm: values for arm, values in positive.items() if len(values)}


def stairs(axes: Axes, counts: np.ndarray, edges: np.ndarray, arm: str, label: str | None = None) -> None:
    """A histogram in the arm's colour."""
    histogram(axes, counts, edges, _plain_line(arm), label=label)


def _plain_line(arm: str) -> Style:
    return Style(colour(arm), "-", "")


def legend(*panels: Axes, beside: bool = False) -> None:
    """Give each panel a legend of what is drawn, if anything is; ``beside`` puts it next to the axes, where it hides nothing."""
    for axes in panels:
        named = zip(*axes.get_legend_handles_labels(), strict=True)
        drawn = [(handle, label) for handle, label in named if _is_drawn(handle)]
        if drawn and not all(map(_is_empty, axes.figure.axes)):
            axes.legend(*zip(*drawn), **({"loc": "center left", "bbox_to_anchor": (1.02, 0.5)} if beside else {}))


def key(axes: Axes, label: str, **look: Any) -> None:
    """Add an entry to the legend without drawing a line: for what several lines have in common, or what other panels draw."""
    axes.plot([], [], **{"color": INK, "label": label} | look)


def _is_drawn(handle: Any) -> bool:
    """Whether a line has a finite point. One without any points is there for its label, of what another panel draws."""
    if isinstance(handle, ErrorbarContainer):
        return _has_point(handle[0])
    return not isinstance(handle, Line2D) or not _points(handle).size or _has_point(handle)


def _is_empty(axes: Axes) -> bool:
    others = [*axes.collections, *axes.patches, *axes.images, *axes.texts]
    return not others and not any(map(_has_point, axes.lines))


def _has_point(line: Line2D) -> bool:
    return bool(np.isfinite(_points(line)).all(axis=1).any())


def _points(line: Line2D) -> np.ndarray:
    return np.asarray(line.get_xydata(), dtype=float)  # (points, 2)


def mark_empty(figure: Figure) -> None:
    """Write into panels without a point to draw that there is nothing, instead of showing empty axes."""
    for axes in figure.axes:
        if axes.axison and _is_empty(axes):
            axes.set_axis_off()
            axes.text(0.5, 0.5, "nothing to draw yet", transform=axes.transAxes, ha="center", color=INK)


def note(figure: Figure, words: str) -> None:
    """What a reader must know to read the figure, below it."""
    width = int(figure.get_figwidth() * 17)  # characters of this size
    figure.supxlabel(textwrap.fill(words, width), fontsize=7, x=0.01, ha="left")


def save(figure: Figure, folder: Path, stem: str) -> list[Path]:
    """Write the figure in every format."""
    files = [folder / f"{stem}.{format}" for format in FORMATS]
    for file, format in zip(files, FORMATS):
        figure.savefig(file, metadata=UNDATED[format])
    return files
