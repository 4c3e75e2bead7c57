"""Figures 2 and 3: the deeper a 2-shortcut net, the smaller its weights, during training and after it.

The paper's Fig. 2 shows residual nets on CIFAR-10, as far as the text we have tells; here the nets of Fig. 3, on MNIST, are
watched.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from lightning_app.papers.artefact import Artefact
from lightning_app.papers.li_et_al.data import SUBSET, WHITENING, whitened
from lightning_app.papers.li_et_al.fig_7_8 import EPOCHS, LINEAR, best_of, piece_of
from lightning_app.papers.li_et_al.nets import SHORTCUT_2, Net
from lightning_app.papers.parts import Arrays, Computation, Source
from lightning_app.papers.predicates import Predicate, at_least, below, tested
from lightning_app.papers.results import Results
from lightning_app.papers.verdicts import Claim, Class, Reading, Sample, Varies
from lightning_app.plots import figures
from lightning_app.statistics.fitting import power

__all__ = ["FIG_2", "FIG_3", "NORMS"]

RATE = 0.1
DEPTHS = (2, 4, 8, 16, 32, 64)
SAID = "the deeper, the smaller"  # "the deeper a residual network is, the small[er] its average Frobenius norm"
ACTIVATIONS = {"identity": "linear", "relu": "ReLU at mid"}


def norms(
    source: Source,
    net: Mapping[str, Any],
    depth: int,
    mid: Literal["identity", "relu"],
    rate: float,
    epochs: int,
    seeds: int,
    limit: int | None,
) -> Arrays:
    """Mean Frobenius norm of a matrix and the loss at every epoch: arrays (seeds, epochs + 1)."""
    import torch

    from lightning_app.theory.li_et_al.descent import descend

    data, kind = whitened(source, limit), Net.asked(net)
    rates = torch.full((seeds,), rate, dtype=torch.float64)
    descent = descend(data.problem(kind.shortcut, mid), kind.start(depth, seeds), rates, epochs)
    return {"norms": descent.norms.numpy(), "losses": descent.losses.numpy(), "data": np.array(data.name)}


NORMS = Computation(
    "norms",
    norms,
    {
        f"{mid}-{depth:02d}": {
            "net": SHORTCUT_2.parameters,
            "depth": depth,
            "mid": mid,
            "rate": RATE,
            "epochs": EPOCHS,
            "seeds": 3,
            "limit": None if mid == "identity" else SUBSET,
        }
        for mid in ACTIVATIONS
        for depth in DEPTHS
    },
    precision="float64, nets with ReLU in float32",
)


def _norms(results: Results, mid: str) -> dict[int, np.ndarray]:
    """Norms by depth, (seeds, epochs + 1)."""
    computed = results.computed(NORMS.name)
    return {depth: computed[piece]["norms"] for depth in DEPTHS if (piece := f"{mid}-{depth:02d}") in computed}


# -- Fig. 2: during training ----------------------------------------------------------------------------------------------

FROM = 0.1  # share of training after which all have left the zero they start from
ALWAYS = at_least(1, each=True, note=f"all epochs after the first {FROM:.0%} of training")


def fig_2_claims(results: Results) -> list[Claim]:
    """ "The deeper a residual network is, the small its average Frobenius norm of weight matrices is, both during the training
    process and when the training ends": during it."""
    return [*(_during(results, shallow, deep) for shallow, deep in pairwise(DEPTHS)), _on_cifar10(results)]


def _during(results: Results, shallow: int, deep: int) -> Claim:
    """ "... both during the training process and when the training ends." """
    ours = {
        words: results.of_pieces(NORMS.name, [f"{mid}-{shallow:02d}", f"{mid}-{deep:02d}"], _share_smaller)
        for mid, words in ACTIVATIONS.items()
    }
    quantity = f"share of epochs at which depth {deep} has smaller norms than depth {shallow}, MNIST"
    return tested(quantity, SAID, ALWAYS, ours, varies=Varies.SETTING, ratio=True)


def _on_cifar10(results: Results) -> Claim:
    """What the figure seems to show."""
    ours = results.absent("needs trained CIFAR-10 nets; not run")
    return tested("share of epochs at which a deeper net has smaller norms, CIFAR-10", SAID, ALWAYS, ours, ratio=True)


def _share_smaller(shallow: Arrays, deep: Arrays) -> np.ndarray:
    first = int(FROM * (shallow["norms"].shape[1] - 1))
    return (deep["norms"] < shallow["norms"])[:, first:].mean(axis=1)


def draw_fig_2(results: Results) -> Figure:
    """Mean over seeds by epoch, one line a depth, darker the deeper."""
    figure, (grid,) = figures.canvas(1, len(ACTIVATIONS), sharey=True)
    shades = dict(zip(DEPTHS, mpl.colormaps["viridis_r"](np.linspace(0.15, 1, len(DEPTHS)))))
    for axes, (mid, words) in zip(grid, ACTIVATIONS.items()):
        for depth, values in _norms(results, mid).items():
            axes.plot(values.mean(axis=0), color=shades[depth], label=f"depth {depth}")
        axes.set(title=f"2-shortcut, {words}", xlabel="epoch")
    grid[0].set_ylabel("mean Frobenius norm of a matrix")
    figures.legend(grid[1], beside=True)
    return figure


# -- Fig. 3: after training -----------------------------------------------------------------------------------------------


def fig_3_claims(results: Results) -> list[Claim]:
    """ "The deeper a residual network is, the small its average Frobenius norm of weight matrices is [...] when the training
    ends." """
    found = _final_norms(results)
    return [_falls(found), _exponent(found)]


def _final_norms(results: Results) -> dict[str, dict[int, Sample]]:
    """Mean norm of each seed after training, by reading and depth."""

    def of_norms(mid: str, depth: int) -> Sample:
        return results.of_pieces(NORMS.name, [f"{mid}-{depth:02d}"], lambda arrays: arrays["norms"][:, -1])

    def at_best(depth: int) -> Sample:
        return results.of_pieces(
            LINEAR.name, [piece_of(SHORTCUT_2, depth)], lambda arrays: best_of(arrays, arrays["norms"])
        )

    return {
        f"linear, rate {RATE:g}": {depth: of_norms("identity", depth) for depth in DEPTHS},
        "linear, the rate of least loss": {depth: at_best(depth) for depth in DEPTHS},
        f"ReLU at mid, rate {RATE:g}": {depth: of_norms("relu", depth) for depth in DEPTHS},
    }


def _falls(found: Mapping[str, Mapping[int, Sample]]) -> Claim:
    ours = {
        convention: _of_depths(by_depth, lambda *norms: max(deep / shallow for shallow, deep in pairwise(norms)))
        for convention, by_depth in found.items()
    }
    quantity = "largest ratio of final norms from one depth to the next"
    test = below(1, each=True, note=f"falls from {DEPTHS[0]} to {DEPTHS[-1]}")
    return tested(quantity, SAID, test, ours, varies=Varies.SETTING, ratio=True)


def _exponent(found: Mapping[str, Mapping[int, Sample]]) -> Claim:
    """Theorem 1 has norms of order L^-1/2 for one good solution; the figure shows what descent finds."""
    test = below(0, note="upper end of the 95 % interval of the log-log slope of the means over seeds")
    readings = tuple(_slope(convention, by_depth, test) for convention, by_depth in found.items())
    quantity = "exponent of the final norm in the depth"
    return Claim(quantity, SAID, str(test), readings, varies=Varies.SETTING, ratio=True)


def _slope(convention: str, by_depth: Mapping[int, Sample], test: Predicate) -> Reading:
    """Shows the exponent of each seed; what is tested is the interval of the means' one."""
    ours = _of_depths(by_depth, lambda *norms: power(DEPTHS, norms).slope)
    if not ours.count:
        return Reading(convention, ours, test(ours))
    line = power(DEPTHS, [sample.mean for sample in by_depth.values()])
    outcome = test(Sample((line.high,), ours.missing))
    return Reading(convention, ours, replace(outcome, why=str(line), finding=f"{convention}: {line}"))


def _of_depths(by_depth: Mapping[int, Sample], value: Callable[..., float]) -> Sample:
    """A number of each seed, from its numbers at all depths."""
    first, *others = by_depth.values()
    return first.map(value, *others)


def draw_fig_3(results: Results) -> Figure:
    """Left linear nets, right with ReLU at mid: means over seeds with their range, both axes logarithmic."""
    figure, (grid,) = figures.canvas(1, 2, sharey=True)
    found = _final_norms(results)
    looks = dict(zip(found, (("o-", "residual-0"), ("s--", "residual-2"), ("o-", "residual-0"))))
    for reading, by_depth in found.items():
        axes = grid[0] if reading.startswith("linear") else grid[1]
        there = {depth: sample.values for depth, sample in by_depth.items() if sample.count}
        if not there:
            continue
        values = np.array(list(there.values())).T
        form, shade = looks[reading]
        colour = figures.COLOURS[shade][0]
        axes.plot(list(there), values.mean(axis=0), form, ms=4, color=colour, label=reading)
        axes.fill_between(list(there), values.min(axis=0), values.max(axis=0), color=colour, alpha=0.2, linewidth=0)
    for axes, title in zip(grid, ("2-shortcut, linear", "2-shortcut, ReLU at mid")):
        axes.set(title=title, xlabel="depth L", xscale="log", yscale="log")
        axes.set_xticks(DEPTHS, DEPTHS)
        axes.set_yticks((1, 2, 3), (1, 2, 3))
        axes.minorticks_off()
        figures.legend(axes)
    grid[0].set_ylabel("mean Frobenius norm of a matrix")
    return figure


TRAINING = (
    f"2-shortcut nets from 0.01 times Xavier, full-batch gradient descent at rate {RATE:g}, {EPOCHS} epochs, 3 seeds; norms are "
    f"means over the weight matrices. With ReLU at mid: {SUBSET:,} images, stratified by class. "
)

FIG_2 = Artefact(
    "fig-2",
    "the deeper the net, the smaller its average Frobenius norm during training",
    (),
    fig_2_claims,
    TRAINING
    + "The text does not say which nets the figure shows; they may be the CIFAR-10 ones of Fig. 9, which are not run: what is "
    "judged here is about MNIST. " + WHITENING,
    draw_fig_2,
    (NORMS,),
    about=Class.TRAINED,
)
FIG_3 = Artefact(
    "fig-3",
    "the deeper the net, the smaller its average Frobenius norm after training",
    (),
    fig_3_claims,
    TRAINING + "The rate of least loss: of Fig. 7's grid, at each depth. " + WHITENING,
    draw_fig_3,
    (NORMS, LINEAR),
    about=Class.TRAINED,
)
