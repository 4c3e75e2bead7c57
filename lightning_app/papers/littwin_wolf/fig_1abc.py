"""Figures 1a to 1c, Theorems 1 and 2 and Lemma 4: how much paths of each length weigh, from the closed form of eps_r(beta)."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from lightning_app.papers.parts import Arrays, Artefact, Computation, Source, Value
from lightning_app.papers.predicates import Share, Within, at_least, at_most, below, noted, tested
from lightning_app.papers.results import Results
from lightning_app.papers.verdicts import Basis, Claim, Class, Sample
from lightning_app.plots import figures
from lightning_app.plots.style import styles
from lightning_app.statistics.fitting import power

EXACT = 1e-10  # what rounding may leave of an identity
IN_CASES: Any = {"each": True, "of": "case"}  # of tests: each beta, or each depth, has a number

DEPTH = 100
BETAS = {"fig-1a": 0.1, "fig-1b": 0.5, "fig-1c": 2.0}
BAND = 0.1  # of the depth, to either side of the largest weight


def path_weights(source: Source, p: int, beta: float) -> Arrays:
    """eps_1, ..., eps_p, and the same from rational numbers."""
    from lightning_app.theory.littwin_wolf import spin_glass

    found, limit = spin_glass.lengths(p, beta), spin_glass.limiting_lengths(p, beta)
    return {
        "weights": spin_glass.weights(p, beta).numpy(),
        "exact": _exact_weights(p, beta),
        "argmax": np.array(spin_glass.argmax(p, beta)),
        "share": np.array(spin_glass.limiting_share(beta)),
        "spread": np.array([found.variance**0.5, limit.variance**0.5]),
    }


def _exact_weights(p: int, beta: float) -> np.ndarray:
    """From integers: with beta = a/b, ``binom(p-1, r-1) a^r b^(p-r)``, divided by their norm after the last exact step."""
    a, b = beta.as_integer_ratio()
    terms = [math.comb(p - 1, r - 1) * a**r * b ** (p - r) for r in range(1, p + 1)]
    norm = math.isqrt(sum(term**2 for term in terms) << 128)  # 2^64 times the norm, to 64 bits behind the point
    return np.array([(term << 64) / norm for term in terms])


WEIGHTS = Computation("path-weights", path_weights, {key: {"p": DEPTH, "beta": beta} for key, beta in BETAS.items()})


def _histogram_claims(results: Results, key: str) -> list[Claim]:
    """Of one of the three figures. "The epsilons are concentrated in a narrow band near the maximal value"."""

    def ours(value: Value) -> Sample:
        return results.of(WEIGHTS, value, key)

    norm = ours(lambda arrays: (arrays["weights"] ** 2).sum())
    deviation = ours(lambda arrays: np.abs(arrays["weights"] - arrays["exact"]).max())
    largest = ours(lambda arrays: (arrays["weights"].argmax() + 1) / len(arrays["weights"]))
    spread, limit = (ours(lambda arrays, i=i: arrays["spread"][i]) for i in (0, 1))
    width = noted("standard deviation of r under ε_r²", spread), noted("its limit √((p-1) q (1-q) / 2)", limit)
    q = BETAS[key] / (1 + BETAS[key])  # Theorem 1, with the caption's β
    near = Within(q, 1 / DEPTH, "β / (1 + β), give or take 1/p")
    binomials = "ε_r against binomials in integer arithmetic, largest difference"
    inside = f"share of Σ ε_r² within {BAND:g} p of the largest"
    power = "Z is chosen so that it is 1: this checks the computation only"
    return [
        tested("Σ ε_r²", "", Within(1.0, EXACT), norm, basis=Basis.OURS, power=power),
        tested(binomials, "", at_most(EXACT), deviation, basis=Basis.OURS),
        tested("argmax ε_r / p", "β p / (1 + β)", near, largest),
        tested(inside, "a narrow band", at_least(0.99), ours(_mass_near_the_top), *width),
    ]


def _mass_near_the_top(arrays: Arrays) -> float:
    r = np.arange(1, DEPTH + 1)
    return (arrays["weights"][np.abs(r - arrays["argmax"]) <= BAND * DEPTH] ** 2).sum()


def _draw_histogram(results: Results, key: str) -> figures.Figure:
    """eps_r by r, as bars."""
    figure, ((axes,),) = figures.canvas()
    if arrays := results.computed(WEIGHTS).get(key):
        axes.bar(np.arange(1, DEPTH + 1), arrays["weights"], width=1.0, color=figures.colour("residual"))
        end = float(arrays["share"]) * DEPTH
        axes.axvline(end, color=figures.INK, linestyle="--", linewidth=1, label="β p / (1 + β)")
    axes.set(title=f"ε_r(β), β = {BETAS[key]:g}, p = {DEPTH}", xlabel="path length r", xlim=(0, DEPTH + 1))
    figures.legend(axes)
    return figure


FIG_1A, FIG_1B, FIG_1C = (
    Artefact(
        key,
        f"the weights ε_r of path lengths, β = {beta:g}: a narrow band around β p / (1 + β)",
        partial(_histogram_claims, key=key),
        "ε_r = binom(p-1, r-1) β^r / Z with Σ ε_r² = 1 (Eq. 15), p = 100; the proofs write binom(p, r), ignoring constants.",
        partial(_draw_histogram, key=key),
        computations=(WEIGHTS,),
        about=Class.FORMULA,
    )
    for key, beta in BETAS.items()
)

RATIOS = {"0.1": (1, 10), "0.5": (1, 2), "1": (1, 1), "2": (2, 1), "10": (10, 1)}  # beta = a / b
PAIRS = RATIOS.items()
OVER = f"β = {', '.join(RATIOS)}"
DEEPEST = 100_000
FEW = (5, 30, 100, 1000, 10_000, DEEPEST)  # depths, about
LOOKS = dict(zip(RATIOS, styles(("plain", "residual", "other") * 2)))


def deepest(source: Source, a: int, b: int, depths: Sequence[int]) -> Arrays:
    """Where the largest weight is, by depth: arrays (depths,), and (depths, 2) for the two lengths that may tie."""
    from fractions import Fraction

    from lightning_app.theory.littwin_wolf import spin_glass

    beta = Fraction(a, b)
    ties = [spin_glass.maximisers(p, beta) for p in depths]
    computed = [int(spin_glass.weights(p, beta).argmax()) + 1 for p in depths]
    return {
        "depths": np.array(depths),
        "argmax": np.array([(tie[0], tie[-1]) for tie in ties]),
        "of_weights": np.array(computed),
        "share": np.array(spin_glass.limiting_share(beta)),
    }


def _multiples(of: int, near: Sequence[int]) -> list[int]:
    """Near these numbers, at most 1e5 in the end.

    Multiples of a + b: beta p / (1 + beta) is an integer, as both theorems assume.

    >>> _multiples(11, (5, 100, 100_000))
    [11, 99, 99990]
    """
    return [max(p // of, 1) * of for p in near]


DEEP = Computation(
    "deepest-weight", deepest, {f"beta{k}": {"a": a, "b": b, "depths": _multiples(a + b, FEW)} for k, (a, b) in PAIRS}
)


def theorem_1_claims(results: Results) -> list[Claim]:
    """Eq. 18: lim 1/p argmax_r ε_r(β) = β / (1 + β)."""
    off = results.each(DEEP, lambda arrays: _off(arrays).max())
    last = results.each(DEEP, lambda arrays: _off(arrays)[-1] / arrays["depths"][-1])
    wrong = results.each(DEEP, lambda arrays: (arrays["of_weights"][:, None] != arrays["argmax"]).all(axis=1).sum())
    ties = results.each(DEEP, lambda arrays: np.ptp(arrays["argmax"], axis=1).mean())
    all_tie = "all: β p / (1 + β) ∈ N, the theorem's case, is that of a tie of this length and the next"
    tied = noted("share of depths where two lengths tie", ties, all_tie)
    everywhere = f"largest |argmax ε_r - β p / (1 + β)| over depths up to {DEEPEST:g}"
    near, small, none = (
        at_most(limit, note=note, **IN_CASES)
        for limit, note in ((1 + EXACT, f"{EXACT:g} is for rounding, {OVER}"), (1.1e-5, OVER), (0, OVER))
    )
    limit = f"|argmax / p - β / (1 + β)| at p = {DEEPEST:g}"
    elsewhere = "depths where the largest of the weights is not at the length of the closed form ⌊β p / (1 + β)⌋ + 1"
    return [
        tested(everywhere, "lim argmax ε_r / p = β / (1 + β), Eq. 18", near, off),
        tested(limit, "the limit is β / (1 + β)", small, last),
        tested(elsewhere, "", none, wrong, tied, basis=Basis.OURS),
    ]


def _off(arrays: Arrays) -> np.ndarray:
    return np.abs(arrays["argmax"][:, 1] - arrays["share"] * arrays["depths"])


def draw_theorem_1(results: Results) -> figures.Figure:
    """argmax / p by depth, with its limits."""
    figure, ((axes,),) = figures.canvas()
    for name, arrays in _by_ratio(results, DEEP).items():
        (a, b), look = RATIOS[name], LOOKS[name]
        _draw_line(axes, name, arrays["depths"], arrays["argmax"][:, 1] / arrays["depths"])
        axes.axhline(a / (a + b), color=look.colour, linestyle=":", linewidth=1)
        place: Any = {"textcoords": "offset points", "ha": "right", "fontsize": 8}
        axes.annotate(f"β = {name}", (DEEPEST, a / (a + b)), (-4, 4), **place)
    axes.set(title="argmax ε_r / p and its limit β / (1 + β)", xlabel="depth p", xscale="log", ylim=(0, 1.05))
    return figure


def _by_ratio(results: Results, of: Computation) -> dict[str, Arrays]:
    there = results.computed(of)
    return {name: there[f"beta{name}"] for name in RATIOS if f"beta{name}" in there}


def _draw_line(axes: figures.Axes, name: str, x: np.ndarray, y: np.ndarray) -> None:
    look = LOOKS[name]
    axes.plot(x, y, color=look.colour, linestyle=look.dash, marker=look.marker, markersize=4, label=f"β = {name}")


THEOREM_1 = Artefact(
    "theorem-1",
    "the largest weight is that of length β p / (1 + β)",
    theorem_1_claims,
    "Exact rational arithmetic for the closed form. Depths with β p / (1 + β) ∈ N, as assumed. The larger of two that tie.",
    draw_theorem_1,
    computations=(DEEP,),
    about=Class.FORMULA,
)

NEAR = (100, 300, 1000, 3000, 10_000, 30_000, DEEPEST)  # depths, about
EDGE = 10  # the band reaches a tenth of the way from q to 0 and to 1


def concentration(source: Source, a: int, b: int, edge: int, depths: Sequence[int]) -> Arrays:
    """How much of Σ ε_r² lies in the band of Theorem 2, by depth, for beta = a / b: arrays (depths,)."""
    from lightning_app.theory.littwin_wolf import spin_glass as glass

    beta = a / b
    bands = [((edge - 1) * a * p // (edge * (a + b)), (edge * a + b) * p // (edge * (a + b))) for p in depths]
    return {
        "depths": np.array(depths),
        "mass": np.array([glass.mass(p, beta, *band) for p, band in zip(depths, bands)]),
        "log_outside": np.array([glass.log_mass_outside(p, beta, *band) for p, band in zip(depths, bands)]),
        "rate": np.array([min(glass.rate(beta, end / p) for end in band) for p, band in zip(depths, bands)]),
        "spread": np.array([glass.lengths(p, beta).variance ** 0.5 for p in depths]),
        "limit": np.array([glass.limiting_lengths(p, beta).variance ** 0.5 for p in depths]),
    }


BANDS = Computation(
    "path-concentration",
    concentration,
    {f"beta{k}": {"a": a, "b": b, "edge": EDGE, "depths": _multiples(EDGE * (a + b), NEAR)} for k, (a, b) in PAIRS},
)


def theorem_2_claims(results: Results) -> list[Claim]:
    """ "The epsilons are concentrated in a narrow band near the maximal value."

    Eq. 19: the limit of Σ ε_r² over the band is 1. How fast, and how wide the band is, the paper does not say: ours.
    """
    mass = results.each(BANDS, lambda arrays: arrays["mass"][-1])
    growth = results.each(BANDS, lambda arrays: np.diff(arrays["log_outside"]).max())
    decay = results.each(BANDS, lambda arrays: _slope(arrays) / arrays["rate"][-1])
    exponent = results.each(BANDS, lambda arrays: power(arrays["depths"], arrays["spread"]).slope)
    spread = results.each(BANDS, lambda arrays: arrays["spread"][-1] / arrays["limit"][-1])
    beside = noted(f"the deviation over √((p-1) q (1-q) / 2) at p = {DEEPEST:g}", spread)
    near_1 = at_least(1 - EXACT, note=f"{EXACT:g} is for rounding, {OVER}", **IN_CASES)
    change = "largest change, from one depth to the next, of the log of what is outside"
    # a slope, because beside p times the rate there is 1/2 log p, which a quotient at one p keeps
    slope = "slope of -log of what is outside between the two largest p, over the rate 2 KL(α ‖ q) of the nearer edge"
    width = "width of the band: exponent of p in the standard deviation of r under ε_r²"
    return [
        tested(f"Σ ε_r² over the band at p = {DEEPEST:g}", 1.0, near_1, mass),
        tested(change, "falls to 0", below(0, note=OVER, **IN_CASES), growth),
        tested(slope, "", Share(1.0, 0.02, **IN_CASES), decay, basis=Basis.OURS),
        tested(width, "", Within(0.5, 0.02, OVER, **IN_CASES), exponent, beside, basis=Basis.OURS),
    ]


def _slope(arrays: Arrays) -> float:
    (early, late), (less, more) = arrays["depths"][-2:], -arrays["log_outside"][-2:]
    return (more - less) / (late - early)


def draw_theorem_2(results: Results) -> figures.Figure:
    """What is outside of the band, by depth."""
    figure, ((axes,),) = figures.canvas()
    for name, arrays in _by_ratio(results, BANDS).items():
        _draw_line(axes, name, arrays["depths"], -arrays["log_outside"])
    axes.set(title="-log of Σ ε_r² outside of the band", xlabel="depth p", xscale="log", yscale="log")
    figures.legend(axes)
    return figure


THEOREM_2 = Artefact(
    "theorem-2",
    "all weight lies in a band around β p / (1 + β)",
    theorem_2_claims,
    f"α₁ = q - q / {EDGE} and α₂ = q + (1 - q) / {EDGE}, q = β / (1 + β), at depths where these are whole lengths, as assumed. "
    "The paper proves β < 1; "
    "β > 1 is its mirror image. 2 KL(α ‖ q), the rate, is what Stirling's formula leaves of the proof's quotient.",
    draw_theorem_2,
    computations=(BANDS,),
    about=Class.FORMULA,
)

RHO, WIDTH, UNIQUE = 0.5, 64, 64  # the net whose scale C is set


def reached(source: Source, p: int, rho: float, n: int, Lambda: int) -> Arrays:
    """For every k = 1..p a scale C, the argmax it leads to, and the ends of its interval: arrays (p,)."""
    from lightning_app.theory.littwin_wolf import spin_glass as glass

    scales = [glass.scale_of(glass.reaching(p, k), rho, n, Lambda) for k in range(1, p + 1)]
    betas = [glass.beta_of(rho, n, C, Lambda) for C in scales]
    intervals = np.array([glass.interval(p, k) for k in range(1, p + 1)])
    return {
        "scales": np.array(scales),
        "argmax": np.array([glass.argmax(p, beta) for beta in betas]),
        "of_weights": np.array([int(glass.weights(p, beta).argmax()) + 1 for beta in betas]),
        "low": intervals[:, 0],
        "high": intervals[:, 1],
    }


REACHED = Computation(
    "reached-depths",
    reached,
    {f"p{p}": {"p": p, "rho": RHO, "n": WIDTH, "Lambda": UNIQUE} for p in (2, 3, 10, 100, 1000)},
)


def lemma_4_claims(results: Results) -> list[Claim]:
    """ "For any integer 1 ≤ k ≤ p there exists a global scaling parameter C such that argmax_r(ε_r(C)) = k." """
    missed = results.each(REACHED, lambda arrays: (arrays["argmax"] != np.arange(1, len(arrays["argmax"]) + 1)).sum())
    other = results.each(REACHED, lambda arrays: (arrays["of_weights"] != arrays["argmax"]).sum())
    gaps = results.each(REACHED, lambda arrays: np.abs(arrays["low"][1:] - arrays["high"][:-1]).max())
    ends = results.each(REACHED, lambda arrays: arrays["low"][0] + 1 / arrays["high"][-1])
    none = at_most(0, **IN_CASES)
    wrong = f"k = 1..p that no scale C was found for, p = {', '.join(piece[1:] for piece in REACHED.pieces)}"
    checks = {
        "the same by the largest of all weights instead of the closed form": other,
        "gaps between the intervals of β of neighbouring k": gaps,
        "what they leave of (0, ∞): lower end, and 1 / upper end": ends,
    }
    return [
        tested(wrong, "for any integer k there exists a C", none, missed),
        *(tested(quantity, "", none, ours, basis=Basis.OURS) for quantity, ours in checks.items()),
    ]


def draw_lemma_4(results: Results) -> figures.Figure:
    """The deepest weight as a function of the scale, a staircase."""
    figure, ((axes,),) = figures.canvas()
    if arrays := results.computed(REACHED).get("p100"):
        axes.step(arrays["scales"], arrays["argmax"], where="mid", color=figures.colour("residual"))
        axes.axvline(1 / WIDTH**0.5, color=figures.INK, linestyle=":", linewidth=1, label="C = 1/√n")
    axes.set(title="argmax ε_r(C), p = 100", xlabel="scale C of the weights", xscale="log")
    figures.legend(axes)
    return figure


LEMMA_4 = Artefact(
    "lemma-4",
    "every depth is the ensemble's at some scale of the weights",
    lemma_4_claims,
    "Exactly: argmax ε_r = k for β in [(k-1)/(p-k+1), k/(p-k)), C = β √Λ / (ρ n), tried at the middle of each interval. "
    f"ρ = {RHO:g}, n = {WIDTH}, Λ = {UNIQUE}.",
    draw_lemma_4,
    computations=(REACHED,),
    about=Class.FORMULA,
)
