"""Which measures are of the function, and which are of how it is written?

A residual net r and the plain net T(r) compute the same function (Yu & Tomasi 2019, section 3), and so do a net with BatchNorm in
evaluation mode and the net that has it absorbed. A number that differs between the two is one of the notation: where it
differs between a plain and a residual net, it may say nothing about what these compute or how they train.

Predicted before any run, measure by measure: what looks at outputs, at whole blocks, or at derivatives by activations stays; so
do, under T, derivatives by weights, since T is a translation of them; what is relative to the size of the weights, and what
counts the layers that a signal passes, changes.
"""

import copy
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from lightning_app.common.late import nn
from lightning_app.papers.findings.nets import digits, train
from lightning_app.papers.parts import Artefact, Computation, seed_by_seed
from lightning_app.papers.predicates import at_least, at_most, predicted
from lightning_app.papers.results import Results
from lightning_app.papers.verdicts import Claim, Sample
from lightning_app.plots import figures

T, FOLDED = "twins", "folded"  # the two ways of writing a function differently
FLOOR = 1e-17  # of the figure
SAME, CHANGED = 1e-4, 1e-2  # relative: what rounding can do after a measure's iterations; what nobody overlooks
PAIRS = {  # piece -> net, way
    "twins": ("residual, and its twin T(r)", T),
    "folded-plain": ("full plain net, and with BatchNorm absorbed", FOLDED),
    "folded-residual": ("full residual net, and with BatchNorm absorbed", FOLDED),
}
MEASURES = {  # words -> key, and the ways under which it is predicted to stay
    "risk": ("probe/risk", {T, FOLDED}),
    "RMS of a layer's output": ("signal/*/activation", set()),
    "RMS of the gradient by a layer's output": ("signal/*/gradient", {T}),
    "RMS of the gradient by a layer's weights": ("signal/*/weight_gradient", {T}),
    "mass of the weights": ("weight_mass/all", set()),
    "mass of T(w)": ("weight_mass_transferred/all", {T}),
    "norm of the weights": ("weight_norm/total", set()),
    "layer cushion, kernel norm": ("cushion/*/median", set()),
    "layer cushion, operator norm": ("cushion/*/median_operator", set()),
    "layer cushion of T(w), kernel norm": ("cushion/*/median_transferred", {T}),
    "layer cushion of the branch": ("cushion/*/median_branch", set()),
    "interlayer cushion of a block": ("interlayer/*/median", {T, FOLDED}),
    "activation contraction": ("noise/contraction/median", {T, FOLDED}),
    "interlayer smoothness": ("noise/smoothness/rho", {T}),
    "Arora's bound, log10": ("noise/bound/log10", set()),
    "Arora's bound of T(w), log10": ("noise/bound/log10_transferred", {T}),
    "response to noise, relative to the weights": ("noise/response_0.1", set()),
    "response to noise, relative to T(w)": ("noise_transferred/response_0.1", {T}),
    "response to noise of one size": ("noise_absolute/response_0.1", {T}),
    "effective depth of the outputs": ("depth/effective", {FOLDED}),
    "effective depth of the gradient": ("depth/gradient", {FOLDED}),
    "driving force of the scale": ("drive/scale/first_order", set()),
    "trace of the Hessian": ("hessian/trace", {T}),
    "largest eigenvalue of the Hessian": ("hessian/top1", {T}),
    "smallest eigenvalue of the Hessian": ("hessian/bottom1", {T}),
}


@seed_by_seed
def changes(piece: str, depth: int, epochs: int, samples: int, limit: int | None) -> dict[str, list[float]]:
    """Of a net and the same function written differently, by seed: the relative change of each measure, (seeds, 2).

    Columns are nets before and after training. Of a measure by layer the largest change. NaN where no number is to be
    compared.
    """
    from lightning_app.networks import CifarResNet, SimplifiedNet

    residual = piece != "folded-plain"
    net = SimplifiedNet(depth, residual) if piece == T else CifarResNet(depth, residual)
    images, labels = digits(limit)
    found = []
    for passes in (0, epochs):
        train(net, images, labels, passes, rate=0.01)
        found.append(dict(_of_two(net, piece, images[:samples].double(), labels[:samples])))
    return {words: [at[words] for at in found] for words in MEASURES}


def _of_two(net: "nn.Module", piece: str, images: Any, labels: Any) -> Iterator[tuple[str, float]]:
    from lightning_app.identity import transfer
    from lightning_app.measures.weights.absorption import absorb

    net = copy.deepcopy(net).double()
    other = transfer(net) if piece == T else absorb(net, images[:1])
    one, two = (_measured(each, images, labels) for each in (net, other))
    for words, (key, _) in MEASURES.items():
        pattern = re.compile(re.escape(key).replace(r"\*", "[^/]+"))
        both = [(one[name], two[name]) for name in one.keys() & two.keys() if pattern.fullmatch(name)]
        yield words, max((_change(*pair) for pair in both if not all(map(math.isnan, pair))), default=math.nan)


def _change(one: float, other: float) -> float:
    """|a - b| / max(|a|, |b|): 1 where only one of them is a number.

    >>> _change(2.0, -2.0), _change(0.0, 0.0), _change(3.0, math.nan)
    (2.0, 0.0, 1.0)
    """
    if math.isnan(one + other):
        return 1.0
    size = max(abs(one), abs(other))
    return abs(one - other) / size if size else 0.0


def _measured(net: Any, images: Any, labels: Any) -> Mapping[str, float]:
    import callbacks
    from callbacks.notebook import measure
    from lightning_app.networks import layers_of

    few, half = len(images) // 4, len(images) // 2
    found = measure(
        net,
        images,
        labels,
        [
            callbacks.Signal(),
            callbacks.WeightMass(),
            callbacks.LayerCushion(),
            callbacks.BnLambda(),
            callbacks.DrivingForce(samples=half),
            callbacks.HessianSpectrum(samples=half),
            callbacks.InterlayerCushion(samples=half),
            callbacks.NoiseStability(samples=few, draws=1),
        ],
    )
    if not net.residual:  # the measure refuses it: every path from the input passes all layers
        return found | dict.fromkeys(("depth/effective", "depth/gradient"), float(len(layers_of(net))))
    depths = callbacks.EffectiveDepth(samples=half, gradient_samples=few)
    return found | measure(net, images, labels, depths)


ASKED = {"depth": 20, "epochs": 5, "samples": 32, "limit": None, "seeds": 3}
CHANGES = Computation("changes", changes, {piece: {"piece": piece, **ASKED} for piece in PAIRS})


def notation_claims(results: Results) -> list[Claim]:
    """No sentence of a paper; see the module's docstring for where the predictions come from."""
    return [_claim(results, words, way) for way in (T, FOLDED) for words in MEASURES]


def _claim(results: Results, words: str, way: str) -> Claim:
    stays = way in MEASURES[words][1]
    note = "the same function has the same number" if stays else "the same function has another number"
    times = enumerate(("before training", "after training"))
    samples: dict[str, Sample] = {
        f"{net}, {time}": results.of(CHANGES, lambda arrays, column=column: arrays[words][:, column], piece)
        for column, time in times
        for piece, (net, of_piece) in PAIRS.items()
        if of_piece == way and not (piece == "folded-plain" and "depth" in words)  # there it is the number of layers
    }
    test = at_most(SAME, each=True, note=note) if stays else at_least(CHANGED, each=True, note=note)
    by = "T" if way == T else "absorbing BatchNorm"
    return predicted(f"{words}: relative change by {by}", test, samples)


def draw_notation(results: Results) -> Figure:
    """The change of every measure, a column each way of writing; filled where it was predicted to stay."""
    figure, (axes,) = figures.canvas(1, 2, sharey=True)
    figure.set_size_inches(11, 6.5)
    for ax, way in zip(axes, (T, FOLDED)):
        for row, (words, (_, stays)) in enumerate(MEASURES.items()):
            found = [
                arrays[words].ravel() for piece, arrays in results.computed(CHANGES).items() if PAIRS[piece][1] == way
            ]
            values = np.clip(np.concatenate(found), FLOOR, None) if found else np.empty(0)
            colour = figures.colour("residual" if way in stays else "plain")
            ax.plot(values, np.full(len(values), row), ".", color=colour)
        ax.axvline(SAME, color=figures.INK, linewidth=0.8, linestyle="--", label=f"stays: at most {SAME:g}")
        ax.axvline(CHANGED, color=figures.INK, linewidth=0.8, label=f"changes: at least {CHANGED:g}")
        ax.set(xscale="log", xlim=(FLOOR / 2, 2), xlabel="relative change")
        ax.set_title("r and T(r)" if way == T else "BatchNorm absorbed")
    axes[0].set_yticks(range(len(MEASURES)), [*MEASURES])
    axes[0].invert_yaxis()
    for words, arm in (("predicted to stay", "residual"), ("predicted to change", "plain")):
        figures.key(axes[1], words, marker=".", linestyle="none", color=figures.colour(arm))
    figures.legend(axes[1], beside=True)
    return figure


NOTATION = Artefact(
    "notation",
    "which measures are of the function, and which of how it is written: residual nets and T(r), BatchNorm and absorbed",
    notation_claims,
    "Nets of depth 20 on the embedded digits, enlarged to 32 x 32, before and after five passes of SGD with learning rate "
    "0.01, momentum 0.9 and batches of 64; measured in float64 on 32 of the images. Relative change: |a - b| / max(|a|, |b|), "
    "of a measure by layer in the layer where it is largest. The twin is `transfer` of the residual net, BatchNorm is absorbed "
    "as it is in evaluation. For path lengths outputs are centred over the classes. "
    f"Predicted to stay: at most {SAME:g}, red in the figure; to change: at least {CHANGED:g}, blue. "
    f"In the figure changes below {FLOOR:g} stand at it.",
    draw_notation,
    computations=(CHANGES,),
)
