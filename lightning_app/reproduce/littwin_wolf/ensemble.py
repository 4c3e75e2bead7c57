"""The paper's main claim: the ensemble of paths is shallow at first and becomes deeper as training goes on (sections 1 and 4).

Measured instead of modelled: outputs and gradients of trained nets, resolved exactly by the length of the paths.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lightning_app.reproduce import figures
from lightning_app.reproduce.artefact import Artefact
from lightning_app.reproduce.checks import excludes_zero, if_measured
from lightning_app.reproduce.computation import Arrays, Computation, Source
from lightning_app.reproduce.littwin_wolf.training import NORMALISED, UNNORMALISED, Setting, claim, mean_of, runs_of
from lightning_app.reproduce.results import Results
from lightning_app.reproduce.verdicts import Claim, Outcome, Sample, described, holds
from lightning_app.statistics import ENOUGH

__all__ = ["ENSEMBLE", "STARTS"]

MEASURES = {
    "effective": "mean path length weighted by E‖f_r‖² (d_eff)",
    "effective_input": "the same of the paths that start at the input, not at a mean or shift of BatchNorm",
    "coherent": "mean path length weighted by ⟨f_r, f⟩ / ‖f‖² (d_coh)",
    "gradient": "mean path length weighted by ‖g_r‖² (d_grad)",
}
GROUPS = {"with normalisation": NORMALISED, "without normalisation": UNNORMALISED}


# -- before training ------------------------------------------------------------------------------------------------------


def starts(source: Source, net: Mapping[str, Any], separation: float, seeds: int) -> Arrays:
    """Depths at initialisation of the nets that the runs train, on the samples that their callback takes.

    In evaluation mode a BatchNorm that has seen nothing is the identity. Here it has the statistics of the training samples.
    Arrays (seeds,) by `MEASURES` and ``longest``; ``lengths`` (R,) and ``outputs`` (seeds, R).
    """
    import torch

    from lightning_app.datamodules import GaussianMixture

    data = GaussianMixture(separation=separation)
    data.setup()
    ((images, labels),) = data.probe_loader()
    few = torch.arange(SAMPLES) * len(labels) // SAMPLES
    ((everything, _),) = data.val_dataloader()[data.eval_splits.index("train")]
    found = [_depth(_started(net, seed, everything), images[few], labels[few]) for seed in range(seeds)]
    numbers = {name: np.array([getattr(depth, name) for depth in found]) for name in (*MEASURES, "longest")}
    lengths, outputs = found[0].lengths.numpy(), np.stack([depth.outputs.numpy() for depth in found])
    return numbers | {"lengths": lengths, "outputs": outputs}


SAMPLES, GRADIENT_SAMPLES = 64, 16  # the callback's defaults


def _started(net: Mapping[str, Any], seed: int, images):
    import torch

    from lightning_app.networks import ResidualMLP

    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        made = ResidualMLP(**net)
        for block in made.blocks:
            if block.norm is not None:
                block.norm.momentum = 1.0  # remember these samples' statistics only
        made(images)
    return made.eval()


def _depth(net, images, labels):
    import torch.nn.functional as F

    from lightning_app.measures import effective_depth

    return effective_depth(net, [(images, labels)], F.cross_entropy, GRADIENT_SAMPLES)


def piece_of(setting: Setting) -> str:
    """The learning rate does not matter before training."""
    return f"{setting.arm}-{setting.separation:g}"


STARTS = Computation(
    "initial-depth",
    starts,
    {
        piece_of(setting): {"net": setting.arguments, "separation": setting.separation, "seeds": ENOUGH}
        for setting in (*NORMALISED, *UNNORMALISED)
    },
)


# -- claims ---------------------------------------------------------------------------------------------------------------


def ensemble_claims(results: Results) -> list[Claim]:
    return [
        each
        for name, words in MEASURES.items()
        for group, settings in GROUPS.items()
        for each in _claims(results, name, f"{words} / p, {group}", settings)
    ]


def _claims(results: Results, name: str, quantity: str, settings: Sequence[Setting]) -> Iterator[Claim]:
    def start(setting: Setting) -> Sample:
        return results.of_pieces(STARTS.name, [piece_of(setting)], lambda arrays: arrays[name] / arrays["longest"])

    def deeper(setting: Setting) -> Sample:
        run = setting.run.name
        depth, longest = (results.final(run, setting.arm, f"depth/{key}") for key in (name, "longest"))
        return depth.map(lambda d, p, before: d / p - before, longest, start(setting))

    def least(setting: Setting) -> Sample:
        curves = _by_epoch(results, setting, name)
        return Sample(tuple(curves.min()) if len(curves) else (), results.incomplete(setting.run.name))

    yield claim(f"{quantity}: at initialisation", "< 0.5", "below 0.5 in every seed", settings, start, _below_half)
    test = "95 % bootstrap interval over seeds above 0"
    yield claim(f"{quantity}: end minus start", "> 0", test, settings, deeper, excludes_zero)
    yield claim(f"{quantity}: least while training", "", "none: does it fall first?", settings, least, _told)


def _by_epoch(results: Results, setting: Setting, name: str) -> pd.DataFrame:
    """By epoch (rows) and seed (columns), from the first measurement after training has begun."""
    depths = mean_of(results, setting, f"depth/{name}") / mean_of(results, setting, "depth/longest")
    return depths.loc[depths.index > 0]


def _below_half(ours: Sample) -> Outcome:
    return if_measured(ours, lambda: holds(max(ours.values) < 0.5, f"up to {max(ours.values):.3g}"))


def _told(ours: Sample) -> Outcome:
    return described(ours.range)


# -- figure ---------------------------------------------------------------------------------------------------------------


def draw_ensemble(results: Results) -> Figure:
    """Four measures of depth by epoch, means over seeds; below, whose weights they are: E||f_r||^2 at start and end."""
    figure, grid = figures.canvas(3, len(MEASURES))
    for row, (group, settings) in zip(grid, GROUPS.items()):
        for axes, name in zip(row, MEASURES):
            for setting in settings:
                curve = _with_start(results, setting, name)
                axes.plot(curve.index, curve, color=setting.colour, linestyle=setting.dash, label=setting.words)
            axes.axhline(0.5, color=figures.INK, linewidth=0.8, linestyle=":")
            axes.set(title=f"{name.replace('_', ', ')} depth / p, {group}", xlabel="epoch")
        figures.legend(row[-1], beside=True)
    for axes, setting in zip(grid[2], SHOWN):
        _draw_lengths(axes, results, setting)
    figures.legend(grid[2][-1], beside=True)
    return figure


SHOWN = (*NORMALISED[:3], UNNORMALISED[0])


def _with_start(results: Results, setting: Setting, name: str) -> pd.Series:
    """Means over seeds by epoch."""
    curve = _by_epoch(results, setting, name).mean(axis=1)
    arrays = results.computed(STARTS.name).get(piece_of(setting))
    return curve if arrays is None else pd.concat([pd.Series({0: (arrays[name] / arrays["longest"]).mean()}), curve])


def _draw_lengths(axes: Axes, results: Results, setting: Setting) -> None:
    first = results.computed(STARTS.name).get(piece_of(setting))
    last = results.arrays(setting.run.name, setting.arm, "depth")
    parts = {
        "start": ([] if first is None else first["outputs"], "other-0"),
        "end": ([arrays["depth/outputs"] for arrays in last], "residual-0"),
    }
    for label, (outputs, shade) in parts.items():
        shares = [values / values.sum() for values in outputs]
        if shares:
            lengths, colour = np.arange(1, len(shares[0]) + 1), figures.COLOURS[shade][0]
            axes.plot(lengths, np.mean(shares, axis=0), "o-", ms=3, color=colour, label=label)
    axes.set(title=setting.words, xlabel="path length r", ylabel="share of Σ E‖f_r‖²")


ENSEMBLE = Artefact(
    "ensemble",
    "the ensemble of paths is shallower than half the depth at initialisation, and becomes deeper as training goes on",
    runs_of((*NORMALISED, *UNNORMALISED)),
    ensemble_claims,
    "The nets of Figs. 1d and 1e. ReLU gates and normalisation are frozen at the sample, so that the net is a sum over paths of "
    "f_r, those of r matrices (the readout not counted); logits centred over classes, 0 < r ≤ p = 10. Gradients are those of "
    "the cross-entropy with its slope in the logits frozen. Normalisation has its running statistics, at initialisation the "
    "training samples' (untrained running statistics would make it the identity).",
    draw_ensemble,
    (STARTS,),
)
