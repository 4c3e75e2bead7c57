"""Figures 2 and 3: the deeper a 2-shortcut net, the smaller its weights, during training and after it.

The paper's Fig. 2 shows residual nets on CIFAR-10, as far as the text we have tells; here the nets of Fig. 3, on MNIST, are
watched.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise

import matplotlib as mpl
import numpy as np

from lightning_app.common.late import torch
from lightning_app.papers.li_et_al.data import SUBSET, WHITENING, Whitened, on_whitened
from lightning_app.papers.li_et_al.fig_7_8 import EPOCHS, LINEAR, best_of, piece_of
from lightning_app.papers.li_et_al.nets import SHORTCUT_2, Mid, Net
from lightning_app.papers.parts import Arrays, Artefact, Computation
from lightning_app.papers.predicates import Predicate, at_least, below, tested
from lightning_app.papers.results import Results
from lightning_app.papers.verdicts import Claim, Reading, Sample, Varies
from lightning_app.plots import figures
from lightning_app.statistics.fitting import power

RATE = 0.1
DEPTHS = (2, 4, 8, 16, 32, 64)
SAID = "the deeper, the smaller"  # "the deeper a residual network is, the small[er] its average Frobenius norm"
ACTIVATIONS = {"identity": "linear", "relu": "ReLU at mid"}


@on_whitened
def norms(data: Whitened, net: Net, depth: int, mid: Mid, rate: float, epochs: int, seeds: int) -> Arrays:
    """Mean Frobenius norm of a matrix and the loss at every epoch: arrays (seeds, epochs + 1)."""
    from lightning_app.theory.li_et_al.descent import descend

    rates = torch.full((seeds,), rate, dtype=torch.float64)
    descent = descend(data.problem(net.shortcut, mid), net.start(depth, seeds), rates, epochs)
    return {"norms": descent.norms.numpy(), "losses": descent.losses.numpy()}


FIXED = {"net": SHORTCUT_2.parameters, "rate": RATE, "epochs": EPOCHS, "seeds": 3}
PIECES = {
    f"{mid}-{depth:02d}": {**FIXED, "depth": depth, "mid": mid, "limit": None if mid == "identity" else SUBSET}
    for mid in ACTIVATIONS
    for depth in DEPTHS
}
NORMS = Computation("norms", norms, PIECES, precision="float64, nets with ReLU in float32")

FROM = 0.1  # share of training after which all have left the zero they start from


def fig_2_claims(results: Results) -> list[Claim]:
    """ "The deeper a residual network is, the small its average Frobenius norm of weight matrices is, both during the training
    process and when the training ends": during it."""

    def share_smaller(shallow: Arrays, deep: Arrays) -> np.ndarray:
        first = int(FROM * (shallow["norms"].shape[1] - 1))
        return (deep["norms"] < shallow["norms"])[:, first:].mean(axis=1)

    test = at_least(1, each=True, note=f"all epochs after the first {FROM:.0%} of training")
    ours = {}
    for one, two in pairwise(DEPTHS):
        both = {words: (f"{mid}-{one:02d}", f"{mid}-{two:02d}") for mid, words in ACTIVATIONS.items()}
        quantity = f"share of epochs at which depth {two} has smaller norms than depth {one}, MNIST"
        ours[quantity] = {words: results.of(NORMS, share_smaller, *pieces) for words, pieces in both.items()}
    absent = results.absent("needs trained CIFAR-10 nets; not run")  # what the figure seems to show
    quantity = "share of epochs at which a deeper net has smaller norms, CIFAR-10"
    return [
        *(tested(words, SAID, test, found, varies=Varies.SETTING, ratio=True) for words, found in ours.items()),
        tested(quantity, SAID, test, absent, ratio=True),
    ]


def draw_fig_2(results: Results) -> figures.Figure:
    """Mean over seeds by epoch, one line a depth, darker the deeper."""
    figure, (grid,) = figures.canvas(1, len(ACTIVATIONS), sharey=True)
    computed = results.computed(NORMS)
    for axes, (mid, words) in zip(grid, ACTIVATIONS.items()):
        for depth, shade in zip(DEPTHS, mpl.colormaps["viridis_r"](np.linspace(0.15, 1, len(DEPTHS)))):
            if (piece := f"{mid}-{depth:02d}") in computed:
                axes.plot(computed[piece]["norms"].mean(axis=0), color=shade, label=f"depth {depth}")
        axes.set(title=f"2-shortcut, {words}", xlabel="epoch")
    grid[0].set_ylabel("mean Frobenius norm of a matrix")
    figures.legend(grid[1], beside=True)
    return figure


def fig_3_claims(results: Results) -> list[Claim]:
    """ "The deeper a residual network is, the small its average Frobenius norm of weight matrices is [...] when the training
    ends." Theorem 1 has norms of order L^-1/2 for one good solution; the figure shows what descent finds."""
    found = _final_norms(results)
    ratios = {
        convention: _of_depths(by_depth, lambda *norms: max(deep / shallow for shallow, deep in pairwise(norms)))
        for convention, by_depth in found.items()
    }
    largest = "largest ratio of final norms from one depth to the next"
    falls = below(1, each=True, note=f"falls from {DEPTHS[0]} to {DEPTHS[-1]}")
    test = below(0, note="upper end of the 95 % interval of the log-log slope of the means over seeds")
    slopes = tuple(_slope(convention, by_depth, test) for convention, by_depth in found.items())
    exponent = "exponent of the final norm in the depth"
    return [
        tested(largest, SAID, falls, ratios, varies=Varies.SETTING, ratio=True),
        Claim(exponent, SAID, str(test), slopes, varies=Varies.SETTING, ratio=True),
    ]


def _final_norms(results: Results) -> dict[str, dict[int, Sample]]:
    """Mean norm of each seed after training, by reading and depth."""

    def of_norms(mid: str, depth: int) -> Sample:
        return results.of(NORMS, lambda arrays: arrays["norms"][:, -1], f"{mid}-{depth:02d}")

    def at_best(depth: int) -> Sample:
        return results.of(LINEAR, lambda arrays: best_of(arrays, "norms"), piece_of(SHORTCUT_2, depth))

    return {
        f"linear, rate {RATE:g}": {depth: of_norms("identity", depth) for depth in DEPTHS},
        "linear, the rate of least loss": {depth: at_best(depth) for depth in DEPTHS},
        f"ReLU at mid, rate {RATE:g}": {depth: of_norms("relu", depth) for depth in DEPTHS},
    }


def _of_depths(by_depth: Mapping[int, Sample], value: Callable[..., float]) -> Sample:
    """A number of each seed, from its numbers at all depths."""
    first, *others = by_depth.values()
    return first.map(value, *others)


def _slope(convention: str, by_depth: Mapping[int, Sample], test: Predicate) -> Reading:
    """Shows the exponent of each seed; what is tested is the interval of the means' one."""
    ours = _of_depths(by_depth, lambda *norms: power(DEPTHS, norms).slope)
    if not ours.count:
        return Reading(convention, ours, test(ours))
    line = power(DEPTHS, [sample.mean for sample in by_depth.values()])
    outcome = test(Sample((line.high,), ours.missing))
    return Reading(convention, ours, replace(outcome, why=str(line), finding=f"{convention}: {line}"))


def draw_fig_3(results: Results) -> figures.Figure:
    """Left linear nets, right with ReLU at mid: means over seeds with their range, both axes logarithmic."""
    figure, (grid,) = figures.canvas(1, 2, sharey=True)
    looks = (("o-", "residual-0"), ("s--", "residual-2"), ("o-", "residual-0"))
    for (reading, by_depth), (form, shade) in zip(_final_norms(results).items(), looks):
        axes = grid[0] if reading.startswith("linear") else grid[1]
        if there := {depth: sample.values for depth, sample in by_depth.items() if sample.count}:
            values, colour = np.array([*there.values()]).T, figures.COLOURS[shade][0]
            axes.plot([*there], values.mean(axis=0), form, ms=4, color=colour, label=reading)
            axes.fill_between([*there], values.min(axis=0), values.max(axis=0), color=colour, alpha=0.2, linewidth=0)
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
    fig_2_claims,
    TRAINING
    + "The text does not say which nets the figure shows; they may be the CIFAR-10 ones of Fig. 9, which are not run: what is "
    "judged here is about MNIST. " + WHITENING,
    draw_fig_2,
    computations=(NORMS,),
)
FIG_3 = Artefact(
    "fig-3",
    "the deeper the net, the smaller its average Frobenius norm after training",
    fig_3_claims,
    TRAINING + "The rate of least loss: of Fig. 7's grid, at each depth. " + WHITENING,
    draw_fig_3,
    computations=(NORMS, LINEAR),
)
