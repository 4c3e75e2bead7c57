"""Figure 4: condition numbers of the Hessian before training, by depth, and what figures say of its eigenvalues.

From the closed form of the Hessian, on the second moments of whitened MNIST: exact, whatever the number of samples.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np

from lightning_app.common.late import Tensor, torch
from lightning_app.papers.li_et_al.data import WHITENING, Whitened, on_whitened
from lightning_app.papers.li_et_al.nets import ORTHOGONAL, SHORTCUT_2, XAVIER, Net, draw_curve
from lightning_app.papers.parts import Arrays, Artefact, Computation, columns
from lightning_app.papers.predicates import Factor, above, below, noted, shown, tested
from lightning_app.papers.results import Results
from lightning_app.papers.verdicts import Basis, Claim, Class, Sample
from lightning_app.plots import figures
from lightning_app.statistics.fitting import exponential, power

ROUNDING = 1e-10  # of the largest: eigenvalues below are zero
CUT = 1e16  # of max |λ| / min |λ|: what float64 resolves

SPECTRUM = (
    "cond10 = max |λ| / 10th percentile of |λ| (linear between order statistics), the paper's substitute for the condition "
    "number; index: share of λ < -1e-10 max |λ|. Loss 1/(2m) Σ‖x^L - y‖²: another factor changes no condition number. "
    "All entries of all weight matrices, in the order of Def. 5. M = I - Σ_YX, and with it the spectrum, depends on sign "
    "and order of the principal components. "
)


@dataclass(frozen=True)
class Spectrum:
    """What the figures say of a Hessian."""

    largest: float  # of |λ|
    percentile10: float  # of |λ|
    smallest: float  # of |λ|
    zeros: float  # how many |λ| <= 1e-10 of the largest
    index: float  # share of negative eigenvalues

    @classmethod
    def of(cls, hessian: Tensor) -> "Spectrum":
        """
        >>> import torch
        >>> Spectrum.of(torch.diag(torch.tensor([40.0, -20.0, 0.0, 10.0, 30.0])))
        Spectrum(largest=40.0, percentile10=4.0, smallest=0.0, zeros=1, index=0.2)
        """
        if not hessian.isfinite().all():  # of a descent that has diverged
            return cls(*[math.nan] * 5)
        values = torch.linalg.eigvalsh(hessian).numpy()
        sizes = np.abs(values)
        largest, zero = float(sizes.max()), ROUNDING * float(sizes.max())
        ends = largest, float(np.percentile(sizes, 10)), float(sizes.min())
        return cls(*ends, int((sizes <= zero).sum()), float((values < -zero).mean()))


def cond10(arrays: Arrays) -> np.ndarray:
    """max |λ| / 10th percentile of |λ|; inf where a tenth of the eigenvalues is zero."""
    with np.errstate(divide="ignore"):
        return arrays["largest"] / arrays["percentile10"]


def cond(arrays: Arrays) -> np.ndarray:
    """max |λ| / min |λ|, cut at 1e16: beyond it the smallest eigenvalue is nothing but rounding.

    >>> cond({"largest": np.array([4.0, 4.0, 4.0]), "smallest": np.array([2.0, 1e-19, 0.0])})
    array([2.e+00, 1.e+16, 1.e+16])
    """
    with np.errstate(divide="ignore"):
        return np.minimum(arrays["largest"] / arrays["smallest"], CUT)


NUMBERS = {"cond10": cond10, "all eigenvalues: max |λ| / min |λ|": cond}
DEPTHS = (2, 4, 8, 12, 16, 20, 24, 32)
AT_ZERO = Net("1-shortcut", 1, True, "zero", 0.0)  # exactly at zero, where Theorem 2 is about
STARTS = {net.name: net for net in (XAVIER, ORTHOGONAL, SHORTCUT_2, AT_ZERO)}


@on_whitened
def initial(data: Whitened, net: Net, depth: int, seeds: int) -> Arrays:
    """The spectrum of each seed's Hessian before training: arrays (seeds,) by the fields of `Spectrum`."""
    from lightning_app.theory.li_et_al import linear

    starts = net.start(depth, seeds)
    return columns(Spectrum.of(linear.hessian(weights, data.moments, net.shortcut)) for weights in starts)


def _starts(net: str, *depths: int) -> list[str]:
    return [f"{net}-{depth:02d}" for depth in depths]


PIECES = {
    piece: {"net": net.parameters, "depth": depth, "seeds": 1 if net is AT_ZERO else 5, "limit": None}
    for name, net in STARTS.items()
    for depth, piece in zip(DEPTHS, _starts(name, *DEPTHS))
}
INITIAL = Computation("initial-hessian", initial, PIECES)


def fig_4_claims(results: Results) -> list[Claim]:
    """ "[2-]shortcut linear networks have constant condition numbers as expected. [...] When using Xavier or orthogonal
    initialization in linear networks, the initial condition numbers will go to infinity as the depths become infinity",
    and that of orthogonal initialisation "grows slower than the Xavier initialization"."""
    ends = DEPTHS[0], DEPTHS[-1]
    slower = f"growth of cond10 from depth {ends[0]} to {ends[1]}, Xavier / orthogonal"
    xavier, orthogonal = (
        results.of(INITIAL, lambda first, last: cond10(last) / cond10(first), *_starts(net.name, *ends))
        for net in (XAVIER, ORTHOGONAL)
    )
    return [
        _constant(results),
        *(_grows(results, net.name) for net in (XAVIER, ORTHOGONAL)),
        tested(slower, "orthogonal grows slower", above(1, each=True), xavier / orthogonal, ratio=True),
        _law(results, XAVIER.name, "exponential"),
        _law(results, ORTHOGONAL.name, "power"),
        _like_1_shortcut(results),
        *(_at_start(results, name, depth) for name in STARTS for depth in (2, 8, 20)),
    ]


def _constant(results: Results) -> Claim:
    def spread(number: Callable[[Arrays], np.ndarray], *pieces: Arrays) -> np.ndarray:
        table = np.stack([number(arrays) for arrays in pieces])
        return table.max(axis=0) / table.min(axis=0)

    starts = _starts(SHORTCUT_2.name, *DEPTHS)
    ours = {words: results.of(INITIAL, partial(spread, number), *starts) for words, number in NUMBERS.items()}
    quantity = f"largest / smallest condition number over depths {DEPTHS[0]} to {DEPTHS[-1]}, 2-shortcut"
    return tested(quantity, "constant", below(1.05, each=True), ours, ratio=True)


def _grows(results: Results, net: str) -> Claim:
    """From every depth to the next, on the geometric mean over seeds."""

    def least(*pieces: Arrays) -> float:
        means = [np.exp(np.log(cond10(arrays)).mean()) for arrays in pieces]
        return min(later / earlier for earlier, later in pairwise(means))

    ours = results.of(INITIAL, least, *_starts(net, *DEPTHS))
    test = above(1, note="geometric means over seeds rise from every depth to the next")
    power = f"a rise up to depth {DEPTHS[-1]} passes, also one that stays bounded beyond"
    quantity = f"least growth of cond10 from one depth to the next, {net}"
    return tested(quantity, "go to infinity", test, ours, ratio=True, power=power)


def _law(results: Results, net: str, law: str) -> Claim:
    """Which of two laws leaves the smaller residuals of log cond10, seed by seed."""
    other = {"exponential": "power", "power": "exponential"}[law]
    fits = {"exponential": exponential, "power": power}

    def residuals(*pieces: Arrays) -> list[float]:
        rows = zip(*map(cond10, pieces))
        return [fits[other](DEPTHS, row).rms / fits[law](DEPTHS, row).rms for row in rows]

    def exponents(*pieces: Arrays) -> list[float]:
        return [fits[law](DEPTHS, row).slope for row in zip(*map(cond10, pieces))]

    ours, exponent = (results.of(INITIAL, value, *_starts(net, *DEPTHS)) for value in (residuals, exponents))
    words = "cond10 ~ exp(s L), s" if law == "exponential" else "cond10 ~ L^s, s"
    quantity = f"residuals of log cond10, {other} / {law} law, {net}"
    why = f"the paper states no law; above 1 the {law} one is better"
    return shown(quantity, "", why, ours, noted(words, exponent), basis=Basis.OURS)


def _like_1_shortcut(results: Results) -> Claim:
    """The abstract says it of shortcuts of depth 1: "essentially equivalent to no shortcuts"."""

    def worst(number: Callable[[Arrays], np.ndarray], *arrays: Arrays) -> float:
        means = [number(each).mean() for each in arrays]
        ratios = [one / other for one, other in zip(means[: len(DEPTHS)], means[len(DEPTHS) :])]
        return max(max(ratio, 1 / ratio) for ratio in ratios)

    starts = [*_starts(ORTHOGONAL.name, *DEPTHS), *_starts(AT_ZERO.name, *DEPTHS)]
    ours = {words: results.of(INITIAL, partial(worst, number), *starts) for words, number in NUMBERS.items()}
    quantity = "condition number, orthogonal against 1-shortcut at zero, at the depth where they differ most"
    return tested(quantity, "essentially equivalent", Factor(1, 1.15), ours, ratio=True)


def _at_start(results: Results, net: str, depth: int) -> Claim:
    """The paper shows these in its figure only."""
    numbers = {"cond10": cond10, f"max |λ| / min |λ|, cut at {CUT:g}": cond}
    ours = {convention: results.of(INITIAL, number, *_starts(net, depth)) for convention, number in numbers.items()}
    readings = tuple(noted(convention, sample, _range(sample)) for convention, sample in ours.items())
    quantity = f"condition number at the start, {net}, depth {depth}"
    return Claim(quantity, "", "none: shown in the figure", readings, basis=Basis.OURS)


def _range(ours: Sample) -> str:
    """
    >>> _range(Sample((1e16, 1e16))), _range(Sample((2.0, 1e16))), _range(Sample((2.0, 3.0)))
    ('> 1e+16', '2 to 1e+16; > 1e+16 in 1 of 2 seeds', '2 to 3')
    """
    beyond = sum(value >= CUT for value in ours.values)
    if beyond and beyond == ours.count:
        return f"> {CUT:g}"
    return f"{ours.range}; > {CUT:g} in {beyond} of {ours.count} seeds" if beyond else ours.range


def draw_fig_4(results: Results) -> figures.Figure:
    """cond10 by depth as in the paper, logarithmic; beside it the two that grow slowly, on linear axes."""
    figure, ((left, right),) = figures.canvas(1, 2)
    computed = results.computed(INITIAL)
    for name in STARTS:
        there = {depth: computed[piece] for depth in DEPTHS for piece in _starts(name, depth) if piece in computed}
        if there:
            values = np.stack([cond10(arrays) for arrays in there.values()], axis=1)
            draw_curve(left, name, [*there], values, label=f"{name} at zero" if name == AT_ZERO.name else name)
            if name != XAVIER.name:
                draw_curve(right, name, [*there], values)
    left.set(title="initial cond10", xlabel="depth L", yscale="log")
    right.set(title="the same without Xavier, linear", xlabel="depth L")
    right.set_ylim(bottom=0)
    figures.legend(left)
    return figure


FIG_4 = Artefact(
    "fig-4",
    "initial condition numbers: constant for 2-shortcut nets, growing without bound for Xavier and orthogonal ones",
    fig_4_claims,
    SPECTRUM
    + "L counts weight matrices. Xavier N(0, 1/d); orthogonal: QR with the signs of R's diagonal; 2-shortcut: 0.01 "
    "times Xavier; 1-shortcut: exactly zero, one draw. Five seeds. "
    f"max |λ| / min |λ| is cut at {CUT:g}: beyond it the smallest eigenvalue is nothing but rounding. "
    "Changed after a look (2026-11-23): the fitted laws of growth are described, no longer judged; the paper states none. "
    "And on 2026-11-27: that shortcuts of depth 1 are like none is judged by all eigenvalues too, where it was cond10 alone. "
    + WHITENING,
    draw_fig_4,
    computations=(INITIAL,),
    about=Class.INITIALISATION,
)
