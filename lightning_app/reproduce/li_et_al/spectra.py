"""Figures 4 to 6: eigenvalues of the Hessian of linear nets, at the start by depth and along the descent by epoch.

Both come from the closed form of the Hessian, on the second moments of whitened MNIST: exact, whatever the samples.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lightning_app.reproduce import figures
from lightning_app.reproduce.artefact import Artefact
from lightning_app.reproduce.checks import if_measured
from lightning_app.reproduce.computation import Arrays, Computation, Source
from lightning_app.reproduce.li_et_al.data import WHITENING, whitened
from lightning_app.reproduce.li_et_al.fitting import exponential, power
from lightning_app.reproduce.li_et_al.nets import (
    ORTHOGONAL,
    SHORTCUT_2,
    WIDTH,
    XAVIER,
    Net,
    draw_curve,
    style,
)
from lightning_app.reproduce.results import Results
from lightning_app.reproduce.verdicts import Claim, Reading, Sample, described, holds, one
from lightning_app.statistics import value_where_reached

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["FIG_4", "FIG_5", "FIG_6", "INITIAL", "SPECTRA", "Spectrum"]

ROUNDING = 1e-10  # of the largest: eigenvalues below are zero

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
    def of(cls, hessian: "Tensor") -> "Spectrum":
        """
        >>> import torch
        >>> Spectrum.of(torch.diag(torch.tensor([40.0, -20.0, 0.0, 10.0, 30.0])))
        Spectrum(largest=40.0, percentile10=4.0, smallest=0.0, zeros=1, index=0.2)
        """
        import torch

        if not hessian.isfinite().all():  # of a descent that has diverged
            return cls(*[math.nan] * 5)
        values = torch.linalg.eigvalsh(hessian).numpy()
        sizes = np.abs(values)
        largest, zero = float(sizes.max()), ROUNDING * float(sizes.max())
        ends = largest, float(np.percentile(sizes, 10)), float(sizes.min())
        return cls(*ends, int((sizes <= zero).sum()), float((values < -zero).mean()))


# -- Fig. 4: condition numbers at the start ---------------------------------------------------------------------------------

DEPTHS = (2, 4, 8, 12, 16, 20, 24, 32)
AT_ZERO = Net("1-shortcut", 1, True, "zero", 0.0)  # exactly at zero, where Theorem 2 is about
STARTS = {net.name: net for net in (XAVIER, ORTHOGONAL, SHORTCUT_2, AT_ZERO)}


def initial(source: Source, net: Mapping[str, Any], depth: int, seeds: int, limit: int | None) -> Arrays:
    """The spectrum of each seed's Hessian before training: arrays (seeds,) by the fields of `Spectrum`."""
    from lightning_app.theory import linear

    data = whitened(source, limit)
    kind = Net.asked(net)
    spectra = [
        Spectrum.of(linear.hessian(weights, data.moments, kind.shortcut)) for weights in kind.start(depth, seeds)
    ]
    return _columns(spectra) | {"data": np.array(data.name)}


def _columns(spectra: list[Spectrum]) -> dict[str, np.ndarray]:
    rows = [asdict(spectrum) for spectrum in spectra]
    return {field: np.array([row[field] for row in rows]) for field in rows[0]}


def _start(net: str, depth: int) -> str:
    return f"{net}-{depth:02d}"


INITIAL = Computation(
    "initial-hessian",
    initial,
    {
        _start(name, depth): {"net": net.parameters, "depth": depth, "seeds": 1 if net is AT_ZERO else 5, "limit": None}
        for name, net in STARTS.items()
        for depth in DEPTHS
    },
)


def cond10(arrays: Arrays) -> np.ndarray:
    """inf where a tenth of the eigenvalues is zero."""
    with np.errstate(divide="ignore"):
        return arrays["largest"] / arrays["percentile10"]


def cond(arrays: Arrays) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return arrays["largest"] / arrays["smallest"]


def fig_4_claims(results: Results) -> list[Claim]:
    return [
        _constant(results),
        _grows(results, XAVIER.name),
        _grows(results, ORTHOGONAL.name),
        _slower(results),
        _law(results, XAVIER.name, "exponential"),
        _law(results, ORTHOGONAL.name, "power"),
        _like_1_shortcut(results),
        *(_at_start(results, name, depth) for name in STARTS for depth in (2, 8, 20)),
    ]


def _across(results: Results, net: str, value) -> Sample:
    """A number of each seed from its cond10 at all depths; value gets (depths,)."""

    def of_seeds(*pieces: Arrays) -> list[float]:
        table = np.stack([cond10(arrays) for arrays in pieces], axis=1)
        return [value(row) for row in table]

    return results.of_pieces(INITIAL.name, [_start(net, depth) for depth in DEPTHS], of_seeds)


def _constant(results: Results) -> Claim:
    readings = []
    for convention, number in (("cond10", cond10), ("all eigenvalues: max |λ| / min |λ|", cond)):

        def spread(*pieces: Arrays, number=number) -> np.ndarray:
            table = np.stack([number(arrays) for arrays in pieces])
            return table.max(axis=0) / table.min(axis=0)

        pieces = [_start(SHORTCUT_2.name, depth) for depth in DEPTHS]
        ours = results.of_pieces(INITIAL.name, pieces, spread)
        flat = if_measured(ours, lambda o=ours: holds(max(o.values) < 1.05, f"{max(o.values):.3g}"))
        readings.append(Reading(convention, ours, flat))
    quantity = f"largest / smallest condition number over depths {DEPTHS[0]} to {DEPTHS[-1]}, 2-shortcut"
    return Claim(quantity, "constant", "below 1.05 in every seed", tuple(readings))


def _grows(results: Results, net: str) -> Claim:
    """ "Go to infinity": from every depth to the next one, on the geometric mean over seeds."""
    pieces = [_start(net, depth) for depth in DEPTHS]
    ours = results.of_pieces(INITIAL.name, pieces, lambda *arrays: min(_growth(arrays)))
    up = if_measured(ours, lambda: holds(ours.mean > 1, f"a factor {ours.mean:.3g}"))
    test = "above 1: geometric means over seeds rise from every depth to the next"
    return one(f"least growth of cond10 from one depth to the next, {net}", "> 1", test, ours, up)


def _growth(pieces: tuple[Arrays, ...]) -> list[float]:
    means = [np.exp(np.log(cond10(arrays)).mean()) for arrays in pieces]
    return [later / earlier for earlier, later in pairwise(means)]


def _slower(results: Results) -> Claim:
    """Xavier's growth from the shallowest to the deepest, over orthogonal's."""
    ends = [_start(net, depth) for net in (XAVIER.name, ORTHOGONAL.name) for depth in (DEPTHS[0], DEPTHS[-1])]
    ours = results.of_pieces(
        INITIAL.name,
        ends,
        lambda x2, x32, o2, o32: cond10(x32) / cond10(x2) / (cond10(o32) / cond10(o2)),
    )
    faster = if_measured(ours, lambda: holds(min(ours.values) > 1, f"{min(ours.values):.3g}"))
    quantity = f"growth of cond10 from depth {DEPTHS[0]} to {DEPTHS[-1]}, Xavier / orthogonal"
    return one(quantity, "> 1", "above 1 in every seed", ours, faster)


def _law(results: Results, net: str, law: str) -> Claim:
    """Which of two laws leaves the smaller residuals of log cond10."""
    other = {"exponential": "power", "power": "exponential"}[law]
    fits = {"exponential": exponential, "power": power}
    ours = _across(results, net, lambda row: fits[other](DEPTHS, row).rms / fits[law](DEPTHS, row).rms)
    better = if_measured(ours, lambda: holds(min(ours.values) > 1, f"{min(ours.values):.3g} in the worst seed"))
    exponent = _across(results, net, lambda row: fits[law](DEPTHS, row).slope)
    words = "cond10 ~ exp(s L), s" if law == "exponential" else "cond10 ~ L^s, s"
    readings = (
        Reading("", ours, better),
        Reading(words, exponent, described(_range(exponent))),
    )
    quantity = f"residuals of log cond10, {other} / {law} law, {net}"
    return Claim(
        quantity,
        "to infinity; the law is not said",
        f"above 1 in every seed: the {law} law is the better one",
        readings,
    )


def _range(sample: Sample) -> str:
    return f"{min(sample.values):.3g} to {max(sample.values):.3g}" if sample.count else ""


def _like_1_shortcut(results: Results) -> Claim:
    """Theorem 2 and Section 5 say it of shortcuts of depth 1: "essentially equivalent to no shortcuts"."""
    pieces = [_start(net, depth) for depth in DEPTHS for net in (ORTHOGONAL.name, AT_ZERO.name)]

    def worst(*arrays: Arrays) -> float:
        ratios = [cond10(one).mean() / cond10(other).mean() for one, other in zip(arrays[::2], arrays[1::2])]
        return max(max(ratio, 1 / ratio) for ratio in ratios)

    ours = results.of_pieces(INITIAL.name, pieces, worst)
    close = if_measured(ours, lambda: holds(ours.mean <= 1.15, f"a factor {ours.mean:.3g}"))
    quantity = "cond10, orthogonal against 1-shortcut at zero, at the depth where they differ most"
    return one(quantity, "equivalent", "within a factor 1.15 at every depth", ours, close)


def _at_start(results: Results, net: str, depth: int) -> Claim:
    """The paper shows these in its figure only."""
    readings = []
    for convention, number in (("cond10", cond10), ("max |λ| / min |λ|", cond)):
        ours = results.of_pieces(INITIAL.name, [_start(net, depth)], number)
        readings.append(Reading(convention, ours, described(_range(ours))))
    return Claim(
        f"condition number at the start, {net}, depth {depth}", "", "none: shown in the figure", tuple(readings)
    )


def draw_fig_4(results: Results) -> Figure:
    """cond10 by depth as in the paper, logarithmic; beside it the two that grow slowly, on linear axes."""
    figure, ((left, right),) = figures.canvas(1, 2)
    computed = results.computed(INITIAL.name)
    for name in STARTS:
        depths = [depth for depth in DEPTHS if _start(name, depth) in computed]
        if not depths:
            continue
        values = np.stack([cond10(computed[_start(name, depth)]) for depth in depths], axis=1)
        label = f"{name} at zero" if name == AT_ZERO.name else name
        draw_curve(left, name, depths, values, label=label)
        if name != XAVIER.name:
            draw_curve(right, name, depths, values)
    left.set(title="initial cond10", xlabel="depth L", yscale="log")
    right.set(title="the same without Xavier, linear", xlabel="depth L")
    right.set_ylim(bottom=0)
    figures.legend(left)
    return figure


# -- Figs. 5 and 6: along the descent ---------------------------------------------------------------------------------------

DEPTH = 8  # 800 parameters
RATES = {XAVIER: 10**-1.5, ORTHOGONAL: 0.1, SHORTCUT_2: 0.1}  # at 0.1 one of Xavier's three seeds diverges
EPOCHS = 1000  # "We run different networks for 1000 epochs"
GAPS = (1.0, 0.4, 0.2, 0.1)  # of the loss to the optimum, where nets are compared
SHOWN = (1e-3, 30.0)  # gaps in figures


def spectra(
    source: Source,
    net: Mapping[str, Any],
    depth: int,
    rate: float,
    epochs: int,
    seeds: int,
    limit: int | None,
) -> Arrays:
    """Losses, gradient norms and the Hessian's spectrum at every epoch of a full-batch descent: arrays (seeds, epochs + 1)."""
    import torch

    from lightning_app.descent import LinearProblem, descend
    from lightning_app.theory import linear

    data = whitened(source, limit)
    kind = Net.asked(net)
    rates = torch.full((seeds,), rate, dtype=torch.float64)
    descent = descend(LinearProblem(data.moments, kind.shortcut), kind.start(depth, seeds), rates, epochs, keep=True)
    size = depth * WIDTH**2
    memory = torch.empty(size, size, dtype=torch.float64)
    along = [
        _columns([Spectrum.of(linear.hessian(weights, data.moments, kind.shortcut, memory)) for weights in path])
        for path in descent.path
    ]
    return {
        **{field: np.stack([columns[field] for columns in along]) for field in along[0]},
        "losses": descent.losses.numpy(),
        "gradient_norms": descent.gradient_norms.numpy(),
        "optimum": np.array(data.moments.optimum()),
        "data": np.array(data.name),
    }


SPECTRA = Computation(
    "spectra",
    spectra,
    {
        net.name: {
            "net": net.parameters,
            "depth": DEPTH,
            "rate": rate,
            "epochs": EPOCHS,
            "seeds": 3,
            "limit": None,
        }
        for net, rate in RATES.items()
    },
)


def at_gap(arrays: Arrays, values: np.ndarray, gap: float) -> np.ndarray:
    """Each seed's value where its loss first comes down to the gap, linear between epochs; nan if it starts below or never
    does."""
    gaps = arrays["losses"] - arrays["optimum"]
    epochs = np.arange(gaps.shape[1])
    found = [value_where_reached(epochs, v, g, np.array([gap]))[0] for v, g in zip(values, gaps)]
    return np.where(gaps[:, 0] >= gap, found, np.nan)


def fig_5_claims(results: Results) -> list[Claim]:
    others = (XAVIER.name, ORTHOGONAL.name)
    return [
        *(_conditioning(results, other, gap) for other in others for gap in GAPS),
        *(_most_when_large(results, other) for other in others),
        _roughly_the_same(results),
    ]


def _times(results: Results, other: str, gap: float) -> Sample:
    """cond10 of another net over that of the 2-shortcut net at equal gaps, seed by seed."""
    return results.of_pieces(
        SPECTRA.name,
        [other, SHORTCUT_2.name],
        lambda one, two: at_gap(one, cond10(one), gap) / at_gap(two, cond10(two), gap),
    )


def _conditioning(results: Results, other: str, gap: float) -> Claim:
    ours = _times(results, other, gap)
    larger = if_measured(ours, lambda: holds(min(ours.values) > 1, f"{min(ours.values):.3g} in the worst seed"))
    return one(f"cond10 at gap {gap:g}, {other} / 2-shortcut", "> 1", "above 1 in every seed", ours, larger)


def _most_when_large(results: Results, other: str) -> Claim:
    large, small = GAPS[0], GAPS[-1]
    ours = _times(results, other, large).map(
        lambda at_large, at_small: at_large / at_small, _times(results, other, small)
    )
    most = if_measured(ours, lambda: holds(min(ours.values) > 1, f"{min(ours.values):.3g} in the worst seed"))
    quantity = f"that ratio at gap {large:g} over the one at gap {small:g}, {other}"
    return one(quantity, "> 1", "above 1 in every seed: the advantage is largest where the loss is", ours, most)


def _roughly_the_same(results: Results) -> Claim:
    gap = GAPS[-1]
    ours = _times(results, ORTHOGONAL.name, gap)
    near = if_measured(ours, lambda: holds(0.5 <= ours.mean <= 2, f"a factor {ours.mean:.3g}"))
    quantity = f"cond10 where the loss is small (gap {gap:g}), orthogonal / 2-shortcut"
    return one(quantity, "roughly the same", "within a factor 2", ours, near)


def draw_fig_5(results: Results) -> Figure:
    """As in the paper the largest |λ| and the 10th percentile against the loss, here its gap to the optimum; right cond10."""
    figure, (grid,) = figures.canvas(1, 3)
    panels = (
        ("max |λ|", lambda arrays: arrays["largest"]),
        ("10th percentile of |λ|", lambda arrays: arrays["percentile10"]),
        ("cond10", cond10),
    )
    for axes, (title, number) in zip(grid, panels):
        for name, arrays in results.computed(SPECTRA.name).items():
            _against_gap(axes, name, arrays, number(arrays))
        axes.set(title=title, xlabel="loss - optimum", xscale="log", yscale="log")
        axes.invert_xaxis()
    figures.legend(grid[0])
    return figure


def _against_gap(axes: Axes, name: str, arrays: Arrays, values: np.ndarray) -> None:
    """One line a seed, the way training goes."""
    for seed, (gaps, line) in enumerate(zip(arrays["losses"] - arrays["optimum"], values)):
        shown = (gaps > SHOWN[0]) & (gaps < SHOWN[1]) & np.isfinite(line)
        look = style(name)
        label = name if seed == 0 else None
        axes.plot(gaps[shown], line[shown], color=look.colour, linestyle=look.dash, linewidth=1, label=label)


def fig_6_claims(results: Results) -> list[Claim]:
    others = (XAVIER.name, ORTHOGONAL.name)
    return [
        *(_smaller_index(results, other, gap) for other in others for gap in GAPS),
        _drop_at_peak(results),
        _early(results),
    ]


def _smaller_index(results: Results, other: str, gap: float) -> Claim:
    ours = results.of_pieces(
        SPECTRA.name,
        [other, SHORTCUT_2.name],
        lambda one, two: at_gap(one, one["index"], gap) - at_gap(two, two["index"], gap),
    )
    smaller = if_measured(ours, lambda: holds(min(ours.values) > 0, f"{min(ours.values):.3g} in the worst seed"))
    return one(f"index at gap {gap:g}, {other} minus 2-shortcut", "> 0", "above 0 in every seed", ours, smaller)


def steepest_fall(index: np.ndarray, over: int = 10) -> int:
    """The middle of the ``over`` epochs in which an index falls most.

    >>> steepest_fall(np.array([0.5] * 30 + [0.4] * 30), over=10)
    30
    """
    over = min(over, len(index) - 1)
    falls = index[:-over] - index[over:]
    most = np.flatnonzero(falls >= falls.max() - 1e-12)
    return round(float(most.mean()) + over / 2)


def _drop_at_peak(results: Results) -> Claim:
    def apart(arrays: Arrays) -> list[float]:
        peaks = np.nanargmax(arrays["gradient_norms"], axis=1)
        return [steepest_fall(index) - peak for index, peak in zip(arrays["index"], peaks)]

    def share(arrays: Arrays) -> np.ndarray:
        return np.abs(apart(arrays)) / (arrays["index"].shape[1] - 1)

    ours = results.of_pieces(SPECTRA.name, [SHORTCUT_2.name], share)
    near = if_measured(ours, lambda: holds(max(ours.values) <= 0.1, f"{max(ours.values):.3g}"))
    epochs = results.of_pieces(SPECTRA.name, [SHORTCUT_2.name], apart)
    readings = (
        Reading("", ours, near),
        Reading("epochs, fall minus peak", epochs, described(_range(epochs))),
    )
    quantity = "from the gradient norm's peak to the index's steepest fall, share of training, 2-shortcut"
    return Claim(quantity, "together", "at most 0.1 in every seed", readings)


def _early(results: Results) -> Claim:
    """Of its whole fall, how much is in the first tenth of training?"""

    def share(arrays: Arrays) -> np.ndarray:
        index = arrays["index"]
        tenth = max(1, (index.shape[1] - 1) // 10)
        fall = index[:, 0] - index.min(axis=1)
        return np.divide(index[:, 0] - index[:, tenth], fall, out=np.full(len(fall), np.nan), where=fall > 0)

    ours = results.of_pieces(SPECTRA.name, [SHORTCUT_2.name], share)
    early = if_measured(ours, lambda: holds(min(ours.values) >= 0.5, f"{min(ours.values):.3g}"))
    quantity = "share of the index's fall that happens in the first tenth of training, 2-shortcut"
    return one(quantity, "drops dramatically at the beginning", "at least half in every seed", ours, early)


def draw_fig_6(results: Results) -> Figure:
    """Left the index against the loss; right the 2-shortcut net's index and gradient norm over the first epochs."""
    figure, ((left, right),) = figures.canvas(1, 2)
    computed = results.computed(SPECTRA.name)
    for name, arrays in computed.items():
        _against_gap(left, name, arrays, arrays["index"])
    left.set(title="share of negative eigenvalues", xlabel="loss - optimum", xscale="log")
    left.invert_xaxis()
    figures.legend(left)
    if SHORTCUT_2.name in computed:
        _draw_dynamics(right, computed[SHORTCUT_2.name])
    return figure


def _draw_dynamics(axes: Axes, arrays: Arrays, until: int = 150) -> None:
    """First seed; the gradient norm has its own axis."""
    index, gradient = arrays["index"][0, : until + 1], arrays["gradient_norms"][0, : until + 1]
    look = style(SHORTCUT_2.name)
    axes.plot(index, color=look.colour, label="index")
    axes.set(title="2-shortcut, first seed", xlabel="epoch", ylabel="index")
    other = axes.twinx()
    other.plot(gradient, color=figures.INK, linestyle="--", label="gradient norm")
    other.set_ylabel("gradient norm")
    other.grid(False)
    lines = [*axes.lines, *other.lines]
    axes.legend(lines, [line.get_label() for line in lines])


DESCENT = (
    f"Linear nets of depth {DEPTH}, full-batch gradient descent, {EPOCHS} epochs, 3 seeds, at rate 0.1; Xavier at 10^-1.5, the "
    "largest of Fig. 7's rates at which none of its seeds diverges (first it was run at 0.1 as well, where one does). "
)
MATCHED = (
    "Nets are compared at equal gaps of the loss to the optimum, linear between epochs: at every global minimum of a linear "
    "net with L matrices at least 1 - 1/L of the eigenvalues are zero, so that cond10 diverges as training converges."
)

FIG_4 = Artefact(
    "fig-4",
    "initial condition numbers: constant for 2-shortcut nets, growing without bound for Xavier and orthogonal ones",
    (),
    fig_4_claims,
    SPECTRUM
    + "L counts weight matrices. Xavier N(0, 1/d); orthogonal: QR with the signs of R's diagonal; 2-shortcut: 0.01 "
    "times Xavier; 1-shortcut: exactly zero, one draw. Five seeds. " + WHITENING,
    draw_fig_4,
    (INITIAL,),
)
FIG_5 = Artefact(
    "fig-5",
    "2-shortcut nets are better conditioned at every loss, most where it is large",
    (),
    fig_5_claims,
    SPECTRUM + DESCENT + MATCHED + " " + WHITENING,
    draw_fig_5,
    (SPECTRA,),
)
FIG_6 = Artefact(
    "fig-6",
    "the index of 2-shortcut nets is smaller, and falls where the gradient norm peaks",
    (),
    fig_6_claims,
    SPECTRUM
    + DESCENT
    + MATCHED
    + " Steepest fall: the middle of the ten epochs in which the index falls most. "
    + WHITENING,
    draw_fig_6,
    (SPECTRA,),
)
