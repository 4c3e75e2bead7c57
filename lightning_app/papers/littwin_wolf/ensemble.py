"""The paper's main claim: the ensemble of paths is shallow at first and becomes deeper as training goes on (sections 1 and 4).

Measured instead of modelled: outputs and gradients of trained nets, resolved exactly by the length of the paths.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np
import pandas as pd

from lightning_app.papers.littwin_wolf import training
from lightning_app.papers.littwin_wolf.training import (
    EARLY,
    LATER,
    NORMALISED,
    UNNORMALISED,
    Setting,
    by_setting,
    claim,
    seen,
)
from lightning_app.papers.parts import Artefact
from lightning_app.papers.predicates import IntervalAbove, below
from lightning_app.papers.results import Results
from lightning_app.papers.verdicts import Claim, Class, Sample
from lightning_app.plots import figures

MEASURES = {
    "effective": "mean path length weighted by E‖f_r‖² (d_eff)",
    "effective_input": "the same of the paths that start at the input, not at a mean or shift of BatchNorm",
    "coherent": "mean path length weighted by ⟨f_r, f⟩ / ‖f‖² (d_coh)",
    "gradient": "mean path length weighted by ‖g_r‖² (d_grad)",
}
GROUPS = {"with normalisation": NORMALISED, "without normalisation": UNNORMALISED}
SAME = "effective_input", "without normalisation"  # as "effective": there all paths start at the input


def ensemble_claims(results: Results) -> list[Claim]:
    """ "While initially the virtual ensemble is mostly at depths lower than half the network's depth, as training progresses,
    it becomes deeper and deeper." """
    return [
        each
        for name, words in MEASURES.items()
        for group, settings in GROUPS.items()
        if (name, group) != SAME
        for each in _claims(results, name, f"{words} / p, {group}", settings)
    ]


def _claims(results: Results, name: str, quantity: str, settings: Sequence[Setting]) -> list[Claim]:
    def least(setting: Setting) -> Sample:
        curves = _by_epoch(results, setting, name)
        return Sample(tuple(curves.min()) if len(curves) else (), results.incomplete(setting.run.name))

    start, early, end = (
        by_setting(settings, partial(_of_longest, results, name=name, epoch=epoch)) for epoch in (0, EARLY, None)
    )
    half, deeper, at_first = "lower than half the network's depth", "becomes deeper and deeper", Class.INITIALISATION
    said = f"{quantity}: at initialisation"
    return [
        claim(said, half, below(0.5, each=True), start, about=at_first, ratio=True),
        claim(f"{quantity}: end minus start", deeper, IntervalAbove(), {one: end[one] - start[one] for one in end}),
        claim(f"{quantity}: {LATER}", deeper, IntervalAbove(), {one: end[one] - early[one] for one in end}),
        seen(f"{quantity}: least while training", "does it fall first?", by_setting(settings, least)),
    ]


def _of_longest(results: Results, setting: Setting, name: str, epoch: int | None = None) -> Sample:
    """A depth as a share of the longest path's, after an epoch or at the end."""

    def number(key: str) -> Sample:
        of = setting.run.name, setting.arm, f"depth/{key}"
        return results.final(*of) if epoch is None else results.at(*of, epoch)

    return number(name) / number("longest")


def _by_epoch(results: Results, setting: Setting, name: str) -> pd.DataFrame:
    """The same by epoch (rows) and seed (columns)."""
    depth, longest = (results.curves(setting.run.name, setting.arm, f"depth/{key}") for key in (name, "longest"))
    return depth / longest


def draw_ensemble(results: Results) -> figures.Figure:
    """Four measures of depth by epoch, means over seeds; below, whose weights they are: E||f_r||^2 at start and end."""
    figure, grid = figures.canvas(3, len(MEASURES))
    for row, (group, settings) in zip(grid, GROUPS.items()):
        for axes, name in zip(row, MEASURES):
            for setting in settings:
                curve = _by_epoch(results, setting, name).mean(axis=1)
                axes.plot(curve.index, curve, color=setting.colour, linestyle=setting.dash, label=setting.words)
            axes.axhline(0.5, color=figures.INK, linewidth=0.8, linestyle=":")
            axes.set(title=name.replace("effective_input", "effective, from the input"), xlabel="epoch")
        row[0].set_ylabel(f"depth / p, {group}")
        figures.legend(row[-1], beside=True)
    for axes, setting in zip(grid[2], SHOWN):
        _draw_lengths(axes, results, setting)
    grid[2][0].set_ylabel("share of Σ E‖f_r‖²")
    figures.legend(grid[2][-1], beside=True)
    return figure


SHOWN = (*NORMALISED[:3], UNNORMALISED[0])


def _draw_lengths(axes: figures.Axes, results: Results, setting: Setting) -> None:
    found = results.arrays(setting.run.name, setting.arm, "depth")
    for saved, label, shade in zip(found, ("start", "end"), ("other-0", "residual-0")):
        shares = [arrays["depth/outputs"] / arrays["depth/outputs"].sum() for arrays in saved]
        if shares:
            colour = figures.COLOURS[shade][0]
            axes.plot(saved[0]["depth/lengths"], np.mean(shares, axis=0), "o-", ms=3, color=colour, label=label)
    axes.set(title=setting.words, xlabel="path length r")


ENSEMBLE = Artefact(
    "ensemble",
    "the ensemble of paths is shallower than half the depth at initialisation, and becomes deeper as training goes on",
    ensemble_claims,
    "The nets of Figs. 1d and 1e. ReLU gates and normalisation are frozen at the sample, so that the net is a sum over paths of "
    "f_r, those of r matrices (the readout not counted); logits centred over classes, 0 < r ≤ p = 10. Gradients are those of "
    "the cross-entropy with its slope in the logits frozen. Normalisation has its running statistics, at initialisation "
    "those of 256 training samples (untrained running statistics would make it the identity). "
    "Changed after a look (2026-11-29): without normalisation all paths start at the input, and rows of these, which repeated "
    "those of all paths, are left out. " + training.DURATION,
    draw_ensemble,
    runs=training.runs_of((*NORMALISED, *UNNORMALISED)),
)
