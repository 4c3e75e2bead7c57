"""Figures 5 and 6: eigenvalues of the Hessian of linear nets along a descent, epoch by epoch.

From the closed form of the Hessian, on the second moments of whitened MNIST: exact, whatever the number of samples.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from lightning_app.common.late import torch
from lightning_app.papers.li_et_al.data import WHITENING, Whitened, on_whitened
from lightning_app.papers.li_et_al.fig_4 import SPECTRUM, Spectrum, cond10
from lightning_app.papers.li_et_al.nets import ORTHOGONAL, SHORTCUT_2, WIDTH, XAVIER, Net, style
from lightning_app.papers.nets import Found, Nets, Recipe
from lightning_app.papers.parts import Arrays, Artefact, Computation, columns
from lightning_app.papers.predicates import Factor, Predicate, above, noted, shown
from lightning_app.papers.results import Results
from lightning_app.papers.verdicts import Claim, Class, Reading, Sample, Varies
from lightning_app.plots import figures
from lightning_app.statistics.paired import value_where_reached

DEPTH = 8  # 800 parameters
RATES = {XAVIER: 10**-1.5, ORTHOGONAL: 0.1, SHORTCUT_2: 0.1}  # at 0.1 one of Xavier's three seeds diverges
EPOCHS = 1000  # "We run different networks for 1000 epochs"
GAPS = (1.0, 0.4, 0.2, 0.1)  # of the loss to the optimum, where nets are compared
SHOWN = (1e-3, 30.0)  # gaps in figures
OTHERS = (XAVIER.name, ORTHOGONAL.name)
TWO = SHORTCUT_2.name
# The text lost the paper's depth, and gives no rate. One was run; another depth would be a second reading.
SETTING = f"depth {DEPTH}, rate 0.1 (Xavier 10^-1.5)"
ONLY = f"at depth {DEPTH}, the only one tried"
LOST = f"at depth {DEPTH} (the text lost the paper's depth)"


@on_whitened
def spectra(data: Whitened, net: Net, depth: int, rate: float, epochs: int, seeds: int) -> Arrays:
    """Losses, gradient norms and the Hessian's spectrum at every epoch of a full-batch descent: arrays (seeds, epochs + 1)."""
    from lightning_app.theory.li_et_al import linear
    from lightning_app.theory.li_et_al.descent import LinearProblem, descend

    rates = torch.full((seeds,), rate, dtype=torch.float64)
    descent = descend(LinearProblem(data.moments, net.shortcut), net.start(depth, seeds), rates, epochs, keep=True)
    assert descent.path is not None  # it was to be kept
    memory = torch.empty(depth * WIDTH**2, depth * WIDTH**2, dtype=torch.float64)

    def along(path: torch.Tensor) -> Arrays:
        return columns(Spectrum.of(linear.hessian(weights, data.moments, net.shortcut, memory)) for weights in path)

    return {
        **columns(along(path) for path in descent.path),
        "losses": descent.losses.numpy(),
        "gradient_norms": descent.gradient_norms.numpy(),
        "optimum": np.array(data.moments.optimum()),
    }


PIECES = {
    net.name: {"net": net.parameters, "depth": DEPTH, "rate": rate, "epochs": EPOCHS, "seeds": 3, "limit": None}
    for net, rate in RATES.items()
}
SPECTRA = Computation("spectra", spectra, PIECES)


def at_gap(arrays: Arrays, values: np.ndarray, gap: float) -> np.ndarray:
    """Each seed's value where its loss first comes down to the gap, linear between epochs; nan if it starts below or never
    does."""
    gaps = arrays["losses"] - arrays["optimum"]
    epochs = np.arange(gaps.shape[1])
    found = [value_where_reached(epochs, v, g, np.array([gap]))[0] for v, g in zip(values, gaps)]
    return np.where(gaps[:, 0] >= gap, found, np.nan)


def fig_5_claims(results: Results) -> list[Claim]:
    """ "The condition numbers of [2-]shortcut networks at different losses are always smaller, especially when the loss is large.
    Also, [they] roughly evolved to the same value for both orthogonal and [2-]shortcut linear networks." """

    def times(other: str, gap: float) -> Sample:
        """cond10 of another net over that of the 2-shortcut net at equal gaps, seed by seed."""
        one, two = (results.of(SPECTRA, lambda a: at_gap(a, cond10(a), gap), net) for net in (other, TWO))
        return one / two

    large, small = GAPS[0], GAPS[-1]
    smaller = above(1, each=True, note=ONLY)
    most = above(1, each=True, note=f"the advantage is largest where the loss is; {ONLY}")
    always, at_large = "2-shortcut always smaller", "especially when the loss is large"
    rows: list[tuple[str, str, Predicate, Sample]] = []
    for other in OTHERS:
        rows += [(f"cond10 at gap {g:g}, {other} / 2-shortcut", always, smaller, times(other, g)) for g in GAPS]
    for other in OTHERS:
        growth = f"that ratio at gap {large:g} over the one at gap {small:g}, {other}"
        rows.append((growth, at_large, most, times(other, large) / times(other, small)))
    where_small = f"cond10 where the loss is small (gap {small:g}), orthogonal / 2-shortcut"
    rows.append((where_small, "roughly the same value", Factor(1, 2), times(ORTHOGONAL.name, small)))
    return [_at_setting(f"{quantity}, {LOST}", paper, test, ours) for quantity, paper, test, ours in rows]


def _at_setting(quantity: str, paper: str, test: Predicate, ours: Sample) -> Claim:
    """Of one setting; whether it held or not, the reason says that no other was tried."""
    outcome = test(ours)
    if outcome.held is not None:
        outcome = replace(outcome, why=f"{outcome.why}, {ONLY}", finding=ONLY)
    readings = (Reading(SETTING, ours, outcome),)
    return Claim(quantity, paper, str(test), readings, varies=Varies.SETTING, ratio=True)


def draw_fig_5(results: Results) -> figures.Figure:
    """As in the paper the largest |λ| and the 10th percentile against the loss, here its gap to the optimum; right cond10."""
    figure, (grid,) = figures.canvas(1, 3)
    panels = {
        "max |λ|": lambda arrays: arrays["largest"],
        "10th percentile of |λ|": lambda arrays: arrays["percentile10"],
        "cond10": cond10,
    }
    for axes, (title, number) in zip(grid, panels.items()):
        for name, arrays in results.computed(SPECTRA).items():
            _against_gap(axes, name, arrays, number(arrays))
        axes.set(title=title, xlabel="loss - optimum", xscale="log", yscale="log")
        axes.invert_xaxis()
    figures.legend(grid[0])
    return figure


def _against_gap(axes: figures.Axes, name: str, arrays: Arrays, values: np.ndarray) -> None:
    """One line a seed, the way training goes."""
    look = style(name)
    for seed, (gaps, line) in enumerate(zip(arrays["losses"] - arrays["optimum"], values)):
        there = (gaps > SHOWN[0]) & (gaps < SHOWN[1]) & np.isfinite(line)
        label = name if seed == 0 else None
        axes.plot(gaps[there], line[there], color=look.colour, linestyle=look.dash, linewidth=1, label=label)


def fig_6_claims(results: Results) -> list[Claim]:
    """ "The index of a [2-]shortcut network is always smaller, and drops dramatically at the beginning"; "the gradient reaches
    its maximum when the index drops dramatically"."""
    smaller = above(0, each=True, note=ONLY)

    def less(other: str, gap: float) -> Claim:
        one, two = (results.of(SPECTRA, lambda a: at_gap(a, a["index"], gap), net) for net in (other, TWO))
        quantity = f"index at gap {gap:g}, {other} minus 2-shortcut"
        return _at_setting(quantity, "2-shortcut always smaller", smaller, one - two)

    tenth = "a tenth of training is 100 of 1,000 epochs"
    return [
        *(less(other, gap) for other in OTHERS for gap in GAPS),
        shown(
            "from the gradient norm's peak to the index's steepest fall, share of training, 2-shortcut",
            "the gradient reaches its maximum when the index drops dramatically",
            f"{tenth}, and any two things that happen in the first epochs are closer than that",
            {SETTING: results.of(SPECTRA, lambda a: np.abs(_peak_to_fall(a)) / (a["index"].shape[1] - 1), TWO)},
            noted("epochs, fall minus peak", results.of(SPECTRA, _peak_to_fall, TWO)),
            varies=Varies.SETTING,
        ),
        shown(
            "share of the index's fall that happens in the first tenth of training, 2-shortcut",
            "drops dramatically at the beginning",
            f"{tenth}, in which most of the loss's own fall happens",
            {SETTING: results.of(SPECTRA, _early_share, TWO)},
            varies=Varies.SETTING,
        ),
    ]


def _peak_to_fall(arrays: Arrays) -> list[float]:
    """Of each seed, epochs from the gradient norm's peak to the steepest fall of the index."""
    peaks = np.nanargmax(arrays["gradient_norms"], axis=1)
    return [steepest_fall(index) - peak for index, peak in zip(arrays["index"], peaks)]


def steepest_fall(index: np.ndarray, over: int = 10) -> int:
    """The middle of the ``over`` epochs in which an index falls most.

    >>> steepest_fall(np.array([0.5] * 30 + [0.4] * 30), over=10)
    30
    """
    over = min(over, len(index) - 1)
    falls = index[:-over] - index[over:]
    most = np.flatnonzero(falls >= falls.max() - 1e-12)
    return round(float(most.mean()) + over / 2)


def _early_share(arrays: Arrays) -> np.ndarray:
    """Of its whole fall, how much is in the first tenth of training?"""
    index = arrays["index"]
    tenth = max(1, (index.shape[1] - 1) // 10)
    fall = index[:, 0] - index.min(axis=1)
    return np.divide(index[:, 0] - index[:, tenth], fall, out=np.full(len(fall), np.nan), where=fall > 0)


def draw_fig_6(results: Results) -> figures.Figure:
    """Left the index against the loss; right the 2-shortcut net's index and gradient norm over the first epochs."""
    figure, ((left, right),) = figures.canvas(1, 2)
    computed = results.computed(SPECTRA)
    for name, arrays in computed.items():
        _against_gap(left, name, arrays, arrays["index"])
    left.set(title="share of negative eigenvalues", xlabel="loss - optimum", xscale="log")
    left.invert_xaxis()
    figures.legend(left)
    if TWO in computed:
        _draw_dynamics(right, computed[TWO])
    return figure


def _draw_dynamics(axes: figures.Axes, arrays: Arrays, until: int = 150) -> None:
    """First seed; the gradient norm has its own axis."""
    index, gradient = arrays["index"][0, : until + 1], arrays["gradient_norms"][0, : until + 1]
    axes.plot(index, color=style(TWO).colour, label="index")
    axes.set(title="2-shortcut, first seed", xlabel="epoch", ylabel="index")
    other = axes.twinx()
    other.plot(gradient, color=figures.INK, linestyle="--", label="gradient norm")
    other.set_ylabel("gradient norm")
    other.grid(False)
    lines = [*axes.lines, *other.lines]
    axes.legend(lines, [str(line.get_label()) for line in lines])


def index_of_trained_nets(nets: Nets) -> Iterator[Found]:
    """The Hessian's index of plain and residual nets of any runs: Fig. 6 is of linear nets, so these are described only."""
    ends = {"low": "lower ends of the intervals", "high": "upper ends of the intervals"}
    why = "Li et al. compute the whole spectrum of linear nets with shortcuts of depth 2, not of these"
    for net in ("SimplifiedNet", "CifarResNet", "ResidualMLP"):
        for pair in nets.pairs(Recipe("li-et-al", net, None)):
            readings = [noted(words, pair.apart(f"hessian/index_{end}"), why) for end, words in ends.items()]
            quantity = "share of negative eigenvalues of plain - residual"
            yield pair.label, Claim(quantity, "", "none here", tuple(readings), about=Class.TRAINED)


CONVENTION = (
    SPECTRUM
    + f"Linear nets of depth {DEPTH}, full-batch gradient descent, {EPOCHS} epochs, 3 seeds, at rate 0.1; Xavier at 10^-1.5, the "
    "largest of Fig. 7's rates at which none of its seeds diverges (first it was run at 0.1 as well, where one does). The text "
    "lost the paper's depth and gives no rate: all rows are about this depth, and the order of the nets may be another at "
    "another one: not reproduced means, at this depth. "
    "Nets are compared at equal gaps of the loss to the optimum, linear between epochs: at every global minimum of a linear "
    "net with L matrices at least 1 - 1/L of the eigenvalues are zero, so that cond10 diverges as training converges. "
)
FIG_5 = Artefact(
    "fig-5",
    "2-shortcut nets are better conditioned at every loss, most where it is large",
    fig_5_claims,
    CONVENTION + WHITENING,
    draw_fig_5,
    computations=(SPECTRA,),
)
FIG_6 = Artefact(
    "fig-6",
    "the index of 2-shortcut nets is smaller, and falls where the gradient norm peaks",
    fig_6_claims,
    CONVENTION + "Steepest fall: the middle of the ten epochs in which the index falls most. " + WHITENING,
    draw_fig_6,
    computations=(SPECTRA,),
)
