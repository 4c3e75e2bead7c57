"""Figures for paper: the papers' form and colours, as PDF, SVG and PNG, the same bytes for the same numbers."""

import textwrap
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lightning_app.plots.style import AXES, COLOURS, INK, kind

__all__ = ["FORMATS", "INK", "band", "canvas", "colour", "legend", "note", "outlines", "save", "stairs", "styled"]

FORMATS = ("pdf", "svg", "png")
PANEL = (3.6, 2.9)  # inches
RC = AXES | {
    "font.size": 9,
    "axes.titlesize": 9,
    "lines.linewidth": 1.5,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "pdf.fonttype": 42,  # text stays text
    "svg.hashsalt": "skipscope",
    "savefig.dpi": 150,
}
UNDATED = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}


def styled() -> AbstractContextManager:
    """The style of all figures: draw and save inside it."""
    return mpl.rc_context(RC)


def canvas(rows: int = 1, columns: int = 1, **more) -> tuple[Figure, np.ndarray]:
    """A figure with a grid of axes, (rows, columns)."""
    figure = Figure(figsize=(PANEL[0] * columns, PANEL[1] * rows + 0.3), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **more)


def colour(arm: str) -> str:
    """Blue for plain and red for residual nets, as in Yu & Tomasi."""
    return COLOURS[f"{kind(arm)}-0"][0]


def band(axes: Axes, curves: pd.DataFrame, arm: str, label: str) -> None:
    """Mean over seeds by epoch, plus and minus one standard deviation, thin the extremes; epochs that all seeds have.

    The band ends where the seeds end: no mean less a deviation below zero of what cannot be negative.
    """
    curves = curves.dropna()
    mean, sd, low, high = curves.mean(axis=1), curves.std(axis=1), curves.min(axis=1), curves.max(axis=1)
    axes.plot(mean.index, mean, color=colour(arm), label=label)
    if curves.shape[1] > 1:
        ends = (mean - sd).clip(lower=low), (mean + sd).clip(upper=high)
        axes.fill_between(mean.index, *ends, color=colour(arm), alpha=0.2, linewidth=0)
        axes.plot(mean.index, np.column_stack([low, high]), color=colour(arm), linewidth=0.6, alpha=0.6)


def outlines(axes: Axes, samples: Mapping[str, np.ndarray], bins: int = 120) -> None:
    """Histograms of positive samples by arm over common bins, means in the legend; NaN and infinity are left out.

    From zero on, or logarithmic where the samples lie more than two decades apart.
    """
    finite = {arm: values[np.isfinite(values) & (values > 0)] for arm, values in samples.items()}
    finite = {arm: values for arm, values in finite.items() if len(values)}
    if not finite:
        return
    low, high = (function([function(values) for values in finite.values()]) for function in (np.min, np.max))
    log = high > 100 * low
    edges = np.geomspace(low / 1.1, high * 1.1, bins + 1) if log else np.linspace(0, high * 1.02, bins + 1)
    for arm, values in finite.items():
        stairs(axes, np.histogram(values, edges)[0], edges, arm, f"{arm}, mean {values.mean():.3g}")
    axes.legend()
    if log:
        axes.set_xscale("log")


def stairs(axes: Axes, counts: np.ndarray, edges: np.ndarray, arm: str, label: str | None = None) -> None:
    axes.stairs(counts, edges, color=colour(arm), fill=True, alpha=0.25)
    axes.stairs(counts, edges, color=colour(arm), linewidth=1.1, label=label)


def legend(axes: Axes, beside: bool = False) -> None:
    """A legend, where there is something to explain; beside the axes where it would hide what they show."""
    if axes.get_legend_handles_labels()[0]:
        axes.legend(**({"loc": "center left", "bbox_to_anchor": (1.02, 0.5)} if beside else {}))


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
