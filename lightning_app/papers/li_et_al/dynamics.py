"""Learning dynamics of linear nets: shortcut nets from zero beside orthogonal ones, and how long deep nets need.

A plain net with orthogonal matrices Q_i at the start is the 1-shortcut net that starts at zero, in turned coordinates: with
P_i = Q_i ... Q_1 and W_i = P_i (I + V_i) P_{i-1}^T it computes P_L (I + V_L) ... (I + V_1) x. The coordinates are turned by
orthogonal matrices, so that gradient descent goes the same way, on targets turned by P_L^T. On the targets as they are, the two
differ by where the orthogonal net's product starts, and can only be similar.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from lightning_app.common.late import torch
from lightning_app.papers.li_et_al.data import WHITENING, Whitened, on_whitened
from lightning_app.papers.li_et_al.fig_7_8 import EPOCHS, EXPONENTS
from lightning_app.papers.li_et_al.nets import ORTHOGONAL, SHORTCUT_1, SHORTCUT_2, WIDTH, XAVIER, Net, draw_curve
from lightning_app.papers.parts import Arrays, Artefact, Computation
from lightning_app.papers.predicates import IntervalAbove, Within, at_most, below, noted, tested
from lightning_app.papers.results import Results
from lightning_app.papers.verdicts import Basis, Claim, Sample, Varies
from lightning_app.plots import figures
from lightning_app.statistics.paired import first_reached

NETS = (SHORTCUT_2, SHORTCUT_1, ORTHOGONAL, XAVIER)
DEPTHS, SEEDS = (8, 16, 32, 64), 10
GAP = 0.1  # of the loss to the optimum, of 4 and more at the start
SLOW = 0.01  # a rate at which all descents are smooth
EXACT = 1e-8


@on_whitened
def turned(data: Whitened, depth: int, rate: float, epochs: int, seeds: int) -> Arrays:
    """Losses (seeds, epochs + 1) of orthogonal nets, and ``other`` of 1-shortcut nets from zero on the turned targets."""
    from lightning_app.theory.li_et_al.descent import LinearProblem, descend
    from lightning_app.theory.li_et_al.linear import Moments

    rates = torch.full((1,), rate, dtype=torch.float64)
    zeros = torch.zeros(1, depth, 1, WIDTH, WIDTH, dtype=torch.float64)
    ours, theirs = [], []
    for start in ORTHOGONAL.start(depth, seeds):
        product = torch.linalg.multi_dot([*start.flatten(0, 1).flip(0)])  # P_L
        moments = Moments(data.moments.xx, product.mT @ data.moments.yx, data.moments.yy)
        ours.append(descend(LinearProblem(data.moments, False), start[None], rates, epochs).losses[0])
        theirs.append(descend(LinearProblem(moments, True), zeros, rates, epochs).losses[0])
    return {"losses": torch.stack(ours).numpy(), "other": torch.stack(theirs).numpy()}


@on_whitened
def times(data: Whitened, net: Net, depth: int, gap: float, exponents: list[float], epochs: int, seeds: int) -> Arrays:
    """Epochs until the loss is within the gap of the optimum, (seeds, rates), linear between epochs; NaN if never."""
    from lightning_app.theory.li_et_al.descent import LinearProblem, descend

    rates = 10 ** torch.tensor(exponents, dtype=torch.float64)
    start = net.start(depth, seeds).repeat_interleave(len(rates), dim=0)
    descent = descend(LinearProblem(data.moments, net.shortcut), start, rates.repeat(seeds), epochs)
    curves = descent.losses.numpy() - data.moments.optimum()
    reached = [first_reached(np.arange(epochs + 1), curve, np.array([gap]))[0] for curve in curves]
    return {"rates": rates.numpy(), "epochs": np.array(reached).reshape(seeds, len(rates))}


TURNED = Computation(
    "orthogonal-descents-turned",
    turned,
    {
        f"depth{depth:02d}": {"depth": depth, "rate": SLOW, "epochs": EPOCHS, "seeds": 5, "limit": None}
        for depth in DEPTHS
    },
)
TIMES = Computation(
    "times-to-gap",
    times,
    {
        f"{net.name}-{depth:02d}": {
            "net": net.parameters, "depth": depth, "gap": GAP, "exponents": [*EXPONENTS], "epochs": EPOCHS,
            "seeds": SEEDS, "limit": None,
        }
        for net in NETS
        for depth in DEPTHS
    },
)  # fmt: skip


def at_rate(arrays: Arrays, rate: float = SLOW) -> np.ndarray:
    """Of each seed, epochs at one rate."""
    return arrays["epochs"][:, int(np.argmin(np.abs(arrays["rates"] - rate)))]


def fastest(arrays: Arrays, never: float = math.nan) -> np.ndarray:
    """Of each seed, epochs at the rate at which all seeds come down soonest on average. If at none of them all do, seeds that
    do not take ``never`` epochs.

    >>> fastest({"epochs": np.array([[3.0, math.nan], [5.0, math.nan]])})
    array([3., 5.])
    >>> fastest({"epochs": np.array([[3.0, math.nan], [math.nan, 9.0]])}, never=10)
    array([ 3., 10.])
    """
    epochs = arrays["epochs"]
    if not np.isfinite(epochs).all(axis=0).any():
        epochs = np.where(np.isfinite(epochs), epochs, never)
    means = epochs.mean(axis=0)
    return epochs[:, int(np.nanargmin(means))] if np.isfinite(means).any() else np.full(len(epochs), np.nan)


def dynamics_claims(results: Results) -> list[Claim]:
    """ "The training dynamics of shortcut networks are similar to that of linear networks with orthogonal initialization in our
    experiments." "Higher learning rates can also be applied, resulting in fast learning in deep networks." """
    same = results.each(TURNED, lambda a: np.max(np.abs(a["losses"] - a["other"]) / a["losses"], axis=1))
    turned_by = below(EXACT, each=True, note=f"depths {DEPTHS[0]} to {DEPTHS[-1]}, {EPOCHS} epochs", of="net")
    alike = "orthogonal nets' descent against that of 1-shortcut nets at zero on turned targets, largest relative difference"
    return [
        tested(alike, "", turned_by, same, basis=Basis.OURS),
        *(_similar(results, depth) for depth in DEPTHS),
        *(_faster(results, net) for net in (ORTHOGONAL, XAVIER, SHORTCUT_1)),
        _no_harder(results),
    ]


def _no_harder(results: Results) -> Claim:
    """The abstract: "making training very deep models no more difficult than shallow ones"."""

    def ratio(number: Callable[[Arrays], np.ndarray], shallow: Arrays, deep: Arrays) -> float:
        return number(deep).mean() / number(shallow).mean()

    ends = [f"{SHORTCUT_2.name}-{depth:02d}" for depth in (DEPTHS[0], DEPTHS[-1])]
    numbers = {"at the fastest rate of each depth": fastest, f"at rate {SLOW:g}": at_rate}
    ours = {words: results.of(TIMES, partial(ratio, number), *ends) for words, number in numbers.items()}
    quantity = f"epochs to a gap of {GAP:g}, 2-shortcut, depth {DEPTHS[-1]} / depth {DEPTHS[0]}"
    test = at_most(1, note="means over seeds")
    return tested(quantity, "no more difficult", test, ours, ratio=True, varies=Varies.SETTING)


def _similar(results: Results, depth: int) -> Claim:
    """Which shortcuts are meant the text lost: around one matrix, as by Theorem 2's proof, or two."""
    test = Within(0.0, round(float(np.log10(2)), 3), "a factor 2, mean over seeds")
    readings = {net.name: _log_ratio(results, ORTHOGONAL, net, depth, slow=True) for net in (SHORTCUT_1, SHORTCUT_2)}
    quantity = f"log10 of epochs to a gap of {GAP:g} at rate {SLOW:g}, orthogonal minus shortcut net, depth {depth}"
    return tested(quantity, "similar", test, readings, all_of=SEEDS, ratio=True, varies=Varies.SETTING)


def _faster(results: Results, other: Net) -> Claim:
    quantity = f"log10 of epochs to a gap of {GAP:g} at each net's fastest rate, {other.name} minus 2-shortcut"
    readings = {f"depth {depth}": _log_ratio(results, other, SHORTCUT_2, depth, slow=False) for depth in DEPTHS}
    never = results.of(TIMES, _never, *(f"{other.name}-{depth:02d}" for depth in DEPTHS))
    depths = ", ".join(map(str, DEPTHS))
    words = f"seeds of {other.name} that never reach the gap, at depths {depths}; with any, the difference is larger"
    found = tested(
        quantity,
        "fast learning in deep networks",
        IntervalAbove(),
        readings,
        noted(words, never, ", ".join(f"{count:g}" for count in never.values)),
        all_of=SEEDS,
        ratio=True,
        varies=Varies.SETTING,
    )
    return replace(found, test=f"{found.test}, where seeds that never reach the gap count {EPOCHS} epochs")


def _never(*arrays: Arrays) -> list[int]:
    """How many seeds of each do not reach the gap at the rate that `fastest` takes."""
    return [int((fastest(each, never=EPOCHS) == EPOCHS).sum()) for each in arrays]


def _log_ratio(results: Results, one: Net, other: Net, depth: int, slow: bool) -> Sample:
    """Of seeds of which both nets come down to the gap at one rate. Each at its fastest, the first net's seeds that never do
    count as if they did in the last epoch, which makes the difference too small."""

    def value(ours: Arrays, theirs: Arrays) -> np.ndarray:
        both = (at_rate(ours), at_rate(theirs)) if slow else (fastest(ours, never=EPOCHS), fastest(theirs))
        one, other = map(np.log10, both)
        apart = one - other
        return apart[np.isfinite(apart)]

    return results.of(TIMES, value, *(f"{net.name}-{depth:02d}" for net in (one, other)))


def draw_dynamics(results: Results) -> figures.Figure:
    """Epochs to the gap by depth: at one small rate, and at each net's fastest."""
    figure, (grid,) = figures.canvas(1, 2, sharey=True)
    there = results.computed(TIMES)
    numbers: list[Callable[[Arrays], np.ndarray]] = [at_rate, partial(fastest, never=EPOCHS)]
    titles = f"rate {SLOW:g}", f"each net's fastest rate; never: {EPOCHS}"
    for axes, number, title in zip(grid, numbers, titles):
        for net in NETS:
            found = {depth: there[piece] for depth in DEPTHS if (piece := f"{net.name}-{depth:02d}") in there}
            values = np.stack([number(arrays) for arrays in found.values()], axis=1) if found else np.empty(0)
            if np.isfinite(values).any():
                draw_curve(axes, net.name, [*found], values)
                axes.set_yscale("log")
        axes.set(title=title, xlabel="depth")
    grid[0].set_ylabel(f"epochs to a gap of {GAP:g}")
    figures.legend(grid[1], beside=True)
    return figure


DYNAMICS = Artefact(
    "dynamics",
    "shortcut nets from zero learn like orthogonal ones, and 2-shortcut nets learn fast when they are deep",
    dynamics_claims,
    f"Linear nets, full-batch gradient descent, {EPOCHS} epochs, {SEEDS} seeds, rates from 10^-3 to 10^0.25 as in Fig. 7; the "
    "time is that until the loss is within 0.1 of the optimum, linear between epochs. Shortcut nets start at 0.01 times Xavier "
    "(on the turned targets at exactly zero). The paper gives no time, no gap and no measure of similarity: those are ours, and "
    "a factor 2 is what similar is taken to mean. Where a net has no rate at which all its seeds come down to the gap, those "
    f"that do not count as if they did after {EPOCHS} epochs (before 2026-11-27 such depths, of Xavier nets, were not judged). "
    + WHITENING,
    draw_dynamics,
    computations=(TURNED, TIMES),
)
