"""Figures 5 and 6: eigenvalues of the Hessian of linear nets along a descent.

From the closed form of the Hessian, on the second moments of whitened MNIST: exact, whatever the number of samples. Nets are
compared where their losses come down to the same gap, at five depths and two rates, since the text lost the paper's depth and
gives no rate. The figures' courses, epoch by epoch, are of one of these settings.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from lightning_app.common.late import torch
from lightning_app.papers.li_et_al.data import WHITENING, Whitened, on_whitened
from lightning_app.papers.li_et_al.fig_4 import SPECTRUM, Spectrum, cond10
from lightning_app.papers.li_et_al.nets import ORTHOGONAL, SHORTCUT_2, WIDTH, XAVIER, Net, style
from lightning_app.papers.parts import Arrays, Artefact, Computation, columns
from lightning_app.papers.predicates import IntervalAbove, Predicate, Within, judged, noted, shown, tested, too_few
from lightning_app.papers.results import Results
from lightning_app.papers.verdicts import Claim, Reading, Sample, Varies
from lightning_app.plots import figures
from lightning_app.statistics.paired import ENOUGH, first_reached

NETS = (XAVIER, ORTHOGONAL, SHORTCUT_2)
OTHERS, TWO = (XAVIER.name, ORTHOGONAL.name), SHORTCUT_2.name
DEPTHS, RATES, SEEDS = (4, 8, 12, 16, 32), (0.1, 10**-1.5), 10
EPOCHS = 1000  # "We run different networks for 1000 epochs"
GAPS = (1.0, 0.4, 0.2, 0.1)  # of the loss to the optimum, where nets are compared
DEPTH = 8  # of the courses, 800 parameters
COURSES = {XAVIER: 10**-1.5, ORTHOGONAL: 0.1, SHORTCUT_2: 0.1}  # rates; at 0.1 one of Xavier's three seeds diverges
SETTING = f"depth {DEPTH}, rate 0.1"  # of the 2-shortcut net's course
SHOWN = (1e-3, 30.0)  # gaps in figures


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


@on_whitened
def at_gaps(data: Whitened, net: Net, depth: int, rate: float, epochs: int, gaps: list[float], seeds: int) -> Arrays:
    """The Hessian's spectrum where each seed's loss first comes down to each gap: arrays (seeds, gaps) by `Spectrum`'s fields.

    That is between two epochs: at the share of the step where the loss would be there if it fell linearly. NaN where the loss
    starts below the gap or never comes down to it.
    """
    from lightning_app.theory.li_et_al import linear
    from lightning_app.theory.li_et_al.descent import LinearProblem, descend

    rates = torch.full((seeds,), rate, dtype=torch.float64)
    descent = descend(LinearProblem(data.moments, net.shortcut), net.start(depth, seeds), rates, epochs, keep=True)
    assert descent.path is not None  # it was to be kept
    memory = torch.empty(depth * WIDTH**2, depth * WIDTH**2, dtype=torch.float64)
    curves = descent.losses.numpy() - data.moments.optimum()

    def spectrum(path: torch.Tensor, when: float) -> Spectrum:
        if math.isnan(when):
            return Spectrum(*[math.nan] * 5)
        before = math.floor(when)
        weights = torch.lerp(path[before], path[math.ceil(when)], when - before)
        return Spectrum.of(linear.hessian(weights, data.moments, net.shortcut, memory))

    def of_seed(path: torch.Tensor, curve: np.ndarray) -> Arrays:
        reached = first_reached(np.arange(epochs + 1), curve, np.array(gaps))
        return columns(spectrum(path, when if curve[0] >= gap else math.nan) for when, gap in zip(reached, gaps))

    return columns(of_seed(path, curve) for path, curve in zip(descent.path, curves))


def _piece(net: str, depth: int, rate: float) -> str:
    return f"{net}-{depth:02d}-rate{rate:.3f}"


ASKED = {"epochs": EPOCHS, "limit": None}
SPECTRA = Computation(
    "spectra",
    spectra,
    {
        net.name: {"net": net.parameters, "depth": DEPTH, "rate": rate, "seeds": 3, **ASKED}
        for net, rate in COURSES.items()
    },
)
AT_GAPS = Computation(
    "spectra-at-gaps",
    at_gaps,
    {
        _piece(net.name, depth, rate): {
            "net": net.parameters, "depth": depth, "rate": rate, "gaps": [*GAPS], "seeds": SEEDS, **ASKED,
        }
        for depth in DEPTHS
        for rate in RATES
        for net in NETS
    },
)  # fmt: skip


Apart = Callable[[Arrays, Arrays, int], np.ndarray]  # by how much a net has more than a 2-shortcut net of that depth


def log_cond10(other: Arrays, two: Arrays, depth: int) -> np.ndarray:
    """log10 of cond10."""
    return np.log10(cond10(other)) - np.log10(cond10(two))


def index_at_least(other: Arrays, two: Arrays, depth: int) -> np.ndarray:
    """The index, if of the eigenvalues that are zero to rounding those of the 2-shortcut net are negative and no others."""
    return other["index"] - two["index"] - _zeros(two, depth)


def index_at_most(other: Arrays, two: Arrays, depth: int) -> np.ndarray:
    """The index, if all those of the other net are negative and none of the 2-shortcut net."""
    return other["index"] + _zeros(other, depth) - two["index"]


def _zeros(arrays: Arrays, depth: int) -> np.ndarray:
    """The share of eigenvalues whose sign rounding leaves open."""
    return arrays["zeros"] / (depth * WIDTH**2)


def more(
    results: Results, apart: Apart, other: str, large: float, small: float | None = None
) -> dict[tuple[int, float], Sample]:
    """Another net's number at a gap minus the 2-shortcut net's, by depth and rate, seed by seed; or by how much that is more
    than at a small gap. Only of seeds of which both nets reach the gaps."""

    def difference(depth: int, ours: Arrays, two: Arrays) -> np.ndarray:
        found = apart(ours, two, depth)
        at = found[:, GAPS.index(large)] - (found[:, GAPS.index(small)] if small else 0.0)
        return at[np.isfinite(at)]

    settings = [(depth, rate) for depth in DEPTHS for rate in RATES]
    return {
        (depth, rate): results.of(
            AT_GAPS, partial(difference, depth), *(_piece(net, depth, rate) for net in (other, TWO))
        )
        for depth, rate in settings
    }


def _claim(quantity: str, paper: str, test: Predicate, ours: dict[tuple[int, float], Sample], power: str = "") -> Claim:
    """Read under every depth and rate; where fewer seeds than an interval needs reach the gap, they are described."""
    readings = {_words(*setting): sample for setting, sample in ours.items()}
    return tested(quantity, paper, test, readings, all_of=ENOUGH, varies=Varies.SETTING, ratio=True, power=power)


def _words(depth: int, rate: float) -> str:
    return f"depth {depth}, rate {rate:.2g}"


SMALLER = "2-shortcut always smaller"


def _at_each_gap(number: str) -> Iterator[tuple[str, str, float]]:
    for other in OTHERS:
        for gap in GAPS:
            yield f"{number} at gap {gap:g}, {other} minus 2-shortcut", other, gap


def _of_index(results: Results, quantity: str, other: str, gap: float) -> Claim:
    """Judged where both ends of what rounding leaves open say the same."""
    test = IntervalAbove()
    ends = [more(results, end, other, gap) for end in (index_at_least, index_at_most)]

    def reading(setting: tuple[int, float]) -> Reading:
        low, high = (end[setting] for end in ends)
        words = too_few(low, ENOUGH)
        if not words and test(low).held is False and test(high).held:
            share = f"{100 * (high.mean - low.mean):.2g} % of eigenvalues are zero to rounding"
            words = f"not judged: {share}, and if those of {other} are negative the difference is {high.mean:.3g}"
        return noted(_words(*setting), low, words) if words else judged(_words(*setting), low, test)

    readings = tuple(reading(setting) for setting in ends[0])
    both = f"{test}, at both ends of what zeros to rounding leave open"
    return Claim(quantity, SMALLER, both, readings, varies=Varies.SETTING, ratio=True)


def fig_5_claims(results: Results) -> list[Claim]:
    """ "The condition numbers of [2-]shortcut networks at different losses are always smaller, especially when the loss is large.
    Also, [they] roughly evolved to the same value for both orthogonal and [2-]shortcut linear networks." """
    large, small = GAPS[0], GAPS[-1]
    growth = f"that difference at gap {large:g} minus the one at gap {small:g}"
    advantage = {f"{growth}, {other}": more(results, log_cond10, other, large, small) for other in OTHERS}
    where_small = f"log10 cond10 where the loss is small (gap {small:g}), orthogonal minus 2-shortcut"
    change = "a 2-shortcut net that is worse at both gaps passes if it is less so at the larger one"
    equal = Within(0.0, round(math.log10(2), 3), "a factor 2, mean over seeds")
    return [
        *(
            _claim(quantity, SMALLER, IntervalAbove(), more(results, log_cond10, other, gap))
            for quantity, other, gap in _at_each_gap("log10 cond10")
        ),
        *(
            _claim(words, "especially when the loss is large", IntervalAbove(), ours, change)
            for words, ours in advantage.items()
        ),
        _claim(where_small, "roughly the same value", equal, more(results, log_cond10, ORTHOGONAL.name, small)),
    ]


def draw_fig_5(results: Results) -> figures.Figure:
    """Above, as in the paper, the largest |λ| and the 10th percentile against the loss, here its gap to the optimum; right
    cond10. Below, by depth, how many times the 2-shortcut net's cond10 others have at equal gaps."""
    figure, (grid, below) = figures.canvas(2, 3)
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
    grid[0].set_ylabel(f"depth {DEPTH}")
    figures.legend(grid[0])
    _draw_by_depth(below, results)
    return figure


def _draw_by_depth(panels: np.ndarray, results: Results) -> None:
    """Geometric means over seeds, one line a gap and rate; no point where fewer seeds reach the gap than an interval needs."""
    for axes, other in zip(panels, OTHERS):
        for shade, gap in zip(("residual-0", "residual-1", "plain-0", "plain-1"), GAPS):
            found = more(results, log_cond10, other, gap)
            for rate, dash in zip(RATES, ("-", "--")):
                samples = [found[depth, rate] for depth in DEPTHS]
                times = [10**sample.mean if sample.count >= ENOUGH else math.nan for sample in samples]
                colour, label = figures.COLOURS[shade][0], f"gap {gap:g}, rate {rate:.2g}"
                axes.plot(DEPTHS, times, "o", ms=3, linestyle=dash, color=colour, label=label)
        axes.axhline(1, color=figures.INK, linewidth=0.8, linestyle=":")
        axes.set(title=f"cond10, {other} / 2-shortcut", xlabel="depth", yscale="log")
    panels[-1].axis("off")
    panels[-1].legend(*panels[0].get_legend_handles_labels(), loc="center left")


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
    tenth = "a tenth of training is 100 of 1,000 epochs"
    return [
        *(_of_index(results, *named) for named in _at_each_gap("index")),
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


CONVENTION = (
    SPECTRUM
    + f"Linear nets, full-batch gradient descent, {EPOCHS} epochs. The text lost the paper's depth and gives no rate: each of "
    f"five depths and two rates is a reading, with {SEEDS} seeds. Nets are compared at equal gaps of the loss to the optimum, "
    "since at every global minimum of a linear net with L matrices at least 1 - 1/L of the eigenvalues are zero, so that cond10 "
    "diverges as training converges. The net at a gap lies on the segment between two epochs. A reading is judged where "
    f"both nets reach the gap with {ENOUGH} seeds at least; Xavier's nets diverge or stay above it in others. Before 2026-11-27 "
    f"it was all {SEEDS}, which left out most settings of Xavier nets. The differences are of logarithms, and of equal seeds. "
    f"Courses in the figures: depth {DEPTH}, 3 seeds, rate 0.1, Xavier 10^-1.5. Before 2026-11-24 depth {DEPTH} was the only one "
    "tried, with three seeds. "
)
ZEROS = (
    "Eigenvalues that are zero to rounding may be negative, at depth 32 a sixth of Xavier nets': where they decide, a reading is "
    "not judged, and the difference shown is the least one. Before 2026-11-27 they counted as not negative. "
)
FIG_5 = Artefact(
    "fig-5",
    "2-shortcut nets are better conditioned at every loss, most where it is large",
    fig_5_claims,
    CONVENTION + WHITENING,
    draw_fig_5,
    computations=(SPECTRA, AT_GAPS),
)
FIG_6 = Artefact(
    "fig-6",
    "the index of 2-shortcut nets is smaller, and falls where the gradient norm peaks",
    fig_6_claims,
    CONVENTION
    + ZEROS
    + "Steepest fall: the middle of the ten epochs in which the index falls most. "
    + "Changed after a look (2026-11-23): how close it is to the gradient norm's peak, and how much of the fall is early, are "
    "described, no longer judged: whatever is over soon after the start passes. " + WHITENING,
    draw_fig_6,
    computations=(SPECTRA, AT_GAPS),
)
