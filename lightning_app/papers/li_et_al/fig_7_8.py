"""Figures 7 and 8: the best final loss over a grid of learning rates, by depth, of linear nets and of nets with ReLU."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.ticker import FixedLocator

from lightning_app.common.late import torch
from lightning_app.papers.li_et_al.data import SUBSET, WHITENING, Whitened, on_whitened
from lightning_app.papers.li_et_al.nets import NETS, Mid, Net, draw_curve
from lightning_app.papers.parts import Arrays, Artefact, Computation
from lightning_app.papers.predicates import above, at_most, noted, shown, tested
from lightning_app.papers.results import Results
from lightning_app.papers.verdicts import Basis, Claim, Sample
from lightning_app.plots import figures

SHORTCUT_2, XAVIER, ORTHOGONAL, SHORTCUT_1, SHORTCUT_3, SHORTCUT_4 = NETS
EPOCHS = 1000  # "We run different networks for 1000 epochs using different learning rates at log scale"
EXPONENTS = tuple(np.arange(-3, 0.5, 0.25).tolist())  # -3, -2.75, ..., 0.25: the paper does not print its grid


@on_whitened
def final_losses(
    data: Whitened, net: Net, depth: int, mid: Mid, exponents: Sequence[float], epochs: int, seeds: int
) -> Arrays:
    """Final losses and mean norms of every seed and rate, (seeds, rates); inf where a run diverged. Initial losses (seeds,)."""
    from lightning_app.theory.li_et_al.descent import descend

    rates = 10 ** torch.tensor(exponents, dtype=torch.float64)
    start = net.start(depth, seeds).repeat_interleave(len(rates), dim=0)
    descent = descend(data.problem(net.shortcut, mid), start, rates.repeat(seeds), epochs)
    shape = (seeds, len(rates))
    return {
        "rates": rates.numpy(),
        "losses": descent.losses[:, -1].reshape(shape).numpy(),
        "norms": descent.norms[:, -1].reshape(shape).numpy(),
        "initial": descent.losses[:: len(rates), 0].numpy(),
        "optimum": np.array(data.moments.optimum()),  # of linear nets
    }


def piece_of(net: Net, depth: int) -> str:
    return f"{net.name}-{depth:02d}"


Depths = Mapping[Net, Sequence[int]]


def _pieces(depths: Depths, mid: str, limit: int | None) -> dict[str, dict[str, Any]]:
    shared = {"mid": mid, "exponents": EXPONENTS, "epochs": EPOCHS, "seeds": 3, "limit": limit}
    nets = [(net, depth) for net, at in depths.items() for depth in at]
    return {piece_of(net, depth): {"net": net.parameters, "depth": depth, **shared} for net, depth in nets}


def best_of(arrays: Arrays, number: str = "losses") -> np.ndarray:
    """Each seed's number, (seeds,), at the rate of the least final loss on average over seeds: "the average final losses
    corresponding to the optimal learning rates". A rate at which a seed diverges has none."""
    return arrays[number][:, int(np.argmin(arrays["losses"].mean(axis=0)))]


def largest_usable(arrays: Arrays) -> float:
    """The largest rate at which every seed ends below its initial loss; nan if none.

    >>> largest_usable({"rates": np.array([0.1, 1.0]), "losses": np.array([[0.4, np.inf]]), "initial": np.array([5.0])})
    0.1
    """
    usable = (arrays["losses"] < arrays["initial"][:, None]).all(axis=0)
    return float(arrays["rates"][usable].max(initial=-np.inf)) if usable.any() else float("nan")


BY_TWO = (2, 4, 8, 16, 32, 64)
LINEAR_DEPTHS = {
    **dict.fromkeys((XAVIER, ORTHOGONAL, SHORTCUT_2, SHORTCUT_1), BY_TWO),
    SHORTCUT_3: (3, 6, 12, 24, 48),
    SHORTCUT_4: (4, 8, 16, 32, 64),
}
NEAR = 0.01  # of the optimum: what "close to optimal" is taken to mean
DEEP = 8  # depth from which nets are compared, in both figures: "as the networks become deeper"
EVERY_DEPTH = "at every depth, where it is least"
LINEAR = Computation("losses-linear", final_losses, _pieces(LINEAR_DEPTHS, "identity", None))
RIVALS = (XAVIER, ORTHOGONAL, SHORTCUT_1)
SMALL_GAPS = f"gaps are compared also where both are below {NEAR:.0%} of the optimum"
AHEAD = above(1, note=f"means over seeds, from depth {DEEP} on")  # in both figures


def fig_7_claims(results: Results) -> list[Claim]:
    """ "The final losses of [2-]shortcut linear networks stay close to optimal as the networks become deeper. Higher learning
    rates can also be applied, resulting in fast learning in deep networks." The abstract: "significantly better results than
    random Gaussian (Xavier) initialization, orthogonal initialization, and shortcuts of deeper depth"."""
    pieces = [piece_of(SHORTCUT_2, depth) for depth in BY_TWO]
    worst = results.of(LINEAR, lambda *all_: np.max([_relative_gap(each) for each in all_], axis=0), *pieces)
    quantity = "gap to the optimum / optimum at the depth where it is largest, 2-shortcut"
    better = "significantly better results"
    why, distances = "the paper says how close of 2-shortcut nets only", []
    for net, (*_, deepest) in LINEAR_DEPTHS.items():
        if net is not SHORTCUT_2:
            far, ours = f"gap to the optimum / optimum at depth {deepest}, {net.name}", piece_of(net, deepest)
            distances.append(shown(far, "", why, results.of(LINEAR, _relative_gap, ours), basis=Basis.OURS))
    return [
        tested(quantity, "close to optimal", at_most(NEAR, note="mean over seeds"), worst),
        *distances,
        *(
            tested(_of_gaps(net), better, AHEAD, _least_gap(results, net), ratio=True, power=SMALL_GAPS)
            for net in (XAVIER, ORTHOGONAL)
        ),
        _against_shortcuts_of_one(results),
        _against_deeper_shortcuts(results),
        *(_higher_rates(results, net) for net in RIVALS),
    ]


def _relative_gap(arrays: Arrays) -> np.ndarray:
    """Each seed's gap to the optimum at the best rate, as a share of the optimum."""
    return best_of(arrays) / arrays["optimum"] - 1


Number = Callable[[Arrays], Any]  # of one net at one depth: (seeds,) or a single one


def _against_2(results: Results, computation: Computation, net: Net, number: Number) -> dict[int, Sample]:
    """By depth, from 4 on: the mean over seeds of a number of another net over that of the 2-shortcut net."""

    def ratio(other: Arrays, two: Arrays) -> float:
        return number(other).mean() / number(two).mean()

    pairs = {depth: (piece_of(net, depth), piece_of(SHORTCUT_2, depth)) for depth in BY_TWO[1:]}
    both = {depth: pair for depth, pair in pairs.items() if {*pair} <= {*computation.pieces}}
    return {depth: results.of(computation, ratio, *pair) for depth, pair in both.items()}


def _least(by_depth: Mapping[int, Sample]) -> Sample:
    """From depth 8 on."""
    first, *others = (sample for depth, sample in by_depth.items() if depth >= DEEP)
    return first.map(min, *others)


def _least_gap(results: Results, net: Net) -> Sample:
    return _least(_against_2(results, LINEAR, net, _relative_gap))


def _of_gaps(net: Net) -> str:
    return f"least ratio of gaps over depths {DEEP} to {BY_TWO[-1]}, {net.name} / 2-shortcut"


def _against_shortcuts_of_one(results: Results) -> Claim:
    why = f"both end within {NEAR:.0%} of the optimum, which is close to optimal here: shortcuts of depth 1 do the job"
    return shown(
        _of_gaps(SHORTCUT_1),
        "shortcuts of other depths may not do the job",
        f"{why}, and how their gaps compare says nothing of that",
        _least_gap(results, SHORTCUT_1),
    )


def _against_deeper_shortcuts(results: Results) -> Claim:
    """The only one about a deeper shortcut at equal depths."""
    pieces = [piece_of(SHORTCUT_4, depth) for depth in LINEAR_DEPTHS[SHORTCUT_4]]
    left = results.of(LINEAR, lambda *all_: min((best_of(a) / a["initial"]).min() for a in all_), *pieces)
    return shown(
        _of_gaps(SHORTCUT_4),
        "significantly better results than shortcuts of deeper depth",
        "nets with shortcuts of depth 4 never left their start, and any net that does not train would pass",
        _least_gap(results, SHORTCUT_4),
        noted("final loss of 4-shortcut / initial loss, at the depth and seed where it is least", left),
    )


def _rates(results: Results, computation: Computation, net: Net, depths: Sequence[int]) -> tuple[Sample, Sample]:
    """Largest usable rate of the 2-shortcut net over that of another: at the deepest, and at the depth where it is least."""
    pieces = [piece_of(each, depth) for depth in depths for each in (net, SHORTCUT_2)]

    def least(*arrays: Arrays) -> float:
        rates = [largest_usable(each) for each in arrays]
        return min(ours / other for other, ours in zip(rates[::2], rates[1::2]))

    return results.of(computation, least, *pieces[-2:]), results.of(computation, least, *pieces)


def _higher_rates(results: Results, net: Net) -> Claim:
    deepest, least = _rates(results, LINEAR, net, BY_TWO)
    return tested(
        f"largest usable rate, 2-shortcut / {net.name}",
        "higher",
        above(1),
        {f"in deep networks, depth {BY_TWO[-1]}": deepest},
        noted(EVERY_DEPTH, least),
        power="rates are a factor 1.78 apart: a single step of the grid passes",
        ratio=True,
    )


def draw_fig_7(results: Results) -> figures.Figure:
    """Best final loss, its gap to the optimum, and the largest usable rate, against depth."""
    figure, ((left, middle, right),) = figures.canvas(1, 3)
    _draw(results, LINEAR, LINEAR_DEPTHS, {left: best_of, middle: _relative_gap, right: largest_usable})
    optimum = next((float(arrays["optimum"]) for arrays in results.computed(LINEAR).values()), None)
    if optimum is not None:
        left.axhline(optimum, color=figures.INK, linewidth=0.8)
        left.set_ylim(0.97 * optimum, 1.6 * optimum)  # what is far off stands in the middle
    left.set(title="final loss at the best rate; line: optimum")
    middle.set(title="its gap to the optimum / optimum, cut at 1e-8", yscale="log")
    middle.set_ylim(bottom=1e-8)
    figures.legend(right, beside=True)
    return figure


def _draw(results: Results, of: Computation, depths: Depths, panels: Mapping[figures.Axes, Number]) -> None:
    """Numbers of each net against depth; the first panel shows final losses, the last usable rates."""
    computed = results.computed(of)
    for net, at in depths.items():
        if there := {depth: computed[piece] for depth in at if (piece := piece_of(net, depth)) in computed}:
            for axes, number in panels.items():
                values = np.stack([np.atleast_1d(number(arrays)) for arrays in there.values()], axis=1)
                draw_curve(axes, net.name, np.array([*there]), values)
    first, *_, last = panels
    first.set(title="final loss at the best rate")
    last.set(title="largest usable learning rate", yscale="log")
    last.yaxis.set_major_locator(FixedLocator([0.01, 0.03, 0.1, 0.3, 1]))
    last.yaxis.set_major_formatter("{x:g}")
    for axes in panels:
        axes.set(xlabel="depth L", xscale="log")
        axes.set_xticks(depths[SHORTCUT_2], [*map(str, depths[SHORTCUT_2])])
        axes.minorticks_off()


RELU_DEPTHS = {net: (2, 4, 8, 16, 32) for net in (XAVIER, ORTHOGONAL, SHORTCUT_2)}
RELU = Computation("losses-relu", final_losses, _pieces(RELU_DEPTHS, "relu", SUBSET), precision="float32")


def fig_8_claims(results: Results) -> list[Claim]:
    """ "[...] networks with Xavier or orthogonal initialization have difficulties finding these optimal points, while
    [2-]shortcut networks find these optimal points easily as they did without nonlinear units." """
    rises = above(1 + NEAR, each=True, note=f"more than {NEAR:.0%} above the least")
    words = "final loss at the deepest / least over depths"
    hard, plain = "have difficulties finding these optimal points", (XAVIER, ORTHOGONAL)
    why = "with ReLU the optimum is not known, and any net whose loss falls with depth would pass"
    return [
        *(_losses_against_2(results, net) for net in plain),
        *(tested(f"{words}, {net.name}", hard, rises, _losses_at(results, net), ratio=True) for net in plain),
        shown(f"{words}, 2-shortcut", "find these optimal points easily", why, _losses_at(results, SHORTCUT_2)),
        *(_rates_of_relu(results, net) for net in plain),
    ]


def _losses_at(results: Results, net: Net) -> Sample:
    """Of each seed, its final loss at the deepest over the least over depths, all at their best rates."""

    def ratio(*arrays: Arrays) -> np.ndarray:
        losses = np.stack([best_of(each) for each in arrays])
        return losses[-1] / losses.min(axis=0)

    return results.of(RELU, ratio, *(piece_of(net, depth) for depth in RELU_DEPTHS[net]))


def _losses_against_2(results: Results, net: Net) -> Claim:
    at = _against_2(results, RELU, net, best_of)
    quantity = f"least ratio of final losses over depths {DEEP} to {max(at)}, {net.name} / 2-shortcut"
    each = (noted(f"depth {depth}", sample, "") for depth, sample in at.items())
    return tested(quantity, "2-shortcut finds the optimum easily", AHEAD, _least(at), *each, ratio=True)


def _rates_of_relu(results: Results, net: Net) -> Claim:
    deepest, least = _rates(results, RELU, net, RELU_DEPTHS[net])
    ours = {f"depth {RELU_DEPTHS[net][-1]}": deepest, EVERY_DEPTH: least}
    quantity = f"largest usable rate, 2-shortcut / {net.name}"
    return shown(quantity, "", "the paper says it of linear nets", ours, basis=Basis.OURS)


def draw_fig_8(results: Results) -> figures.Figure:
    figure, ((left, right),) = figures.canvas(1, 2)
    _draw(results, RELU, RELU_DEPTHS, {left: best_of, right: largest_usable})
    figures.legend(left)
    return figure


GRID = (
    "Full-batch gradient descent, 1,000 epochs, rates 10^-3, 10^-2.75, ..., 10^0.25; at each depth the rate with the least "
    "final loss on average over 3 seeds. A rate is usable if every seed ends below its initial loss. Loss 1/(2m) Σ‖x^L - y‖². "
    "Shortcut nets start from 0.01 times Xavier: results of shortcuts of depth 3 and 4 depend on that factor. "
)
FIG_7 = Artefact(
    "fig-7",
    "linear nets: final losses stay close to optimal with depth for 2-shortcut nets, which stand higher learning rates",
    fig_7_claims,
    GRID + f"Close to optimal: within {NEAR:.0%}. "
    "Changed after a look (2026-11-23): how far the other nets are from the optimum at the deepest is described, where more "
    f"than {NEAR:.0%}, a threshold of ours, was judged; usable rates are judged at the deepest only, as the sentence is about "
    "deep networks, where at every depth was judged too. The ratio of 4-shortcut nets was added, and described then: with these "
    "starts and rates they lose less than a millionth of their loss. And on 2026-11-27: the ratio of gaps of 1-shortcut nets is "
    "described, where above 1 was judged. " + WHITENING,
    draw_fig_7,
    computations=(LINEAR,),
)
FIG_8 = Artefact(
    "fig-8",
    "the same with ReLU: only 2-shortcut nets find the optimum as depth grows",
    fig_8_claims,
    GRID + "ReLU between the two matrices of a unit, in plain nets after odd layers: as many of them at equal depth. "
    f"{SUBSET:,} training images, stratified by class. Changed after a look (2026-11-23): nets are compared from depth {DEEP} "
    "on, as in Fig. 7, where depth 4 was judged too and stands beside it now; usable rates are described, as the paper speaks "
    "of them under Fig. 7 only, and so is whether the final loss of 2-shortcut nets rises with depth. " + WHITENING,
    draw_fig_8,
    computations=(RELU,),
)
