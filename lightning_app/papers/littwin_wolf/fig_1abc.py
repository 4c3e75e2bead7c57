"""Figures 1a to 1c, Theorems 1 and 2 and Lemma 4: how much paths of each length weigh, from the closed form of eps_r(beta)."""

import math
from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lightning_app.papers.artefact import Artefact
from lightning_app.papers.parts import Arrays, Computation, Source, Value
from lightning_app.papers.predicates import Share, Within, at_least, at_most, below, noted, tested
from lightning_app.papers.results import Results
from lightning_app.papers.verdicts import Basis, Claim, Class, Sample
from lightning_app.plots import figures
from lightning_app.plots.style import styles
from lightning_app.statistics.fitting import power

__all__ = ["FIG_1A", "FIG_1B", "FIG_1C", "LEMMA_4", "THEOREM_1", "THEOREM_2"]

EXACT = 1e-10  # what rounding may leave of an identity

# -- Figs. 1a, 1b, 1c --------------------------------------------------------------------------------------------------------

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


def _histogram_claims(key: str) -> Callable[[Results], list[Claim]]:
    """Of one of the three figures."""

    def claims(results: Results) -> list[Claim]:
        def ours(value: Value) -> Sample:
            return results.of_pieces(WEIGHTS.name, [key], value)

        norm = ours(lambda arrays: (arrays["weights"] ** 2).sum())
        deviation = ours(lambda arrays: np.abs(arrays["weights"] - arrays["exact"]).max())
        largest = ours(lambda arrays: (arrays["weights"].argmax() + 1) / len(arrays["weights"]))
        inside = ours(_mass_near_the_top)
        spread, limit = (ours(lambda arrays, i=i: arrays["spread"][i]) for i in (0, 1))
        q = BETAS[key] / (1 + BETAS[key])
        return [
            tested(
                "Σ ε_r²",
                "",
                Within(1.0, EXACT),
                norm,
                basis=Basis.OURS,
                power="Z is chosen so that it is 1: this checks the computation only",
            ),
            tested(
                "ε_r against binomials in integer arithmetic, largest difference",
                "",
                at_most(EXACT),
                deviation,
                basis=Basis.OURS,
            ),
            tested(  # Theorem 1, and the caption's β
                "argmax ε_r / p",
                "β p / (1 + β)",
                Within(q, 1 / DEPTH, "β / (1 + β), give or take 1/p"),
                largest,
            ),
            tested(  # "the epsilons are concentrated in a narrow band near the maximal value"
                f"share of Σ ε_r² within {BAND:g} p of the largest",
                "a narrow band",
                at_least(0.99),
                inside,
                noted("standard deviation of r under ε_r²", spread),
                noted("its limit √((p-1) q (1-q) / 2)", limit),
            ),
        ]

    return claims


def _mass_near_the_top(arrays: Arrays) -> float:
    r = np.arange(1, DEPTH + 1)
    return (arrays["weights"][np.abs(r - arrays["argmax"]) <= BAND * DEPTH] ** 2).sum()


def _draw_histogram(key: str) -> Callable[[Results], Figure]:
    def draw(results: Results) -> Figure:
        """eps_r by r, as bars."""
        figure, ((axes,),) = figures.canvas()
        for arrays in filter(None, [results.computed(WEIGHTS.name).get(key)]):
            axes.bar(np.arange(1, DEPTH + 1), arrays["weights"], width=1.0, color=figures.colour("residual"))
            axes.axvline(
                float(arrays["share"]) * DEPTH, color=figures.INK, linestyle="--", linewidth=1, label="β p / (1 + β)"
            )
        axes.set(title=f"ε_r(β), β = {BETAS[key]:g}, p = {DEPTH}", xlabel="path length r", xlim=(0, DEPTH + 1))
        figures.legend(axes)
        return figure

    return draw


def _histogram(key: str) -> Artefact:
    return Artefact(
        key,
        f"the weights ε_r of path lengths, β = {BETAS[key]:g}: a narrow band around β p / (1 + β)",
        (),
        _histogram_claims(key),
        "ε_r = binom(p-1, r-1) β^r / Z with Σ ε_r² = 1 (Eq. 15), p = 100; the proofs write binom(p, r), ignoring constants.",
        _draw_histogram(key),
        (WEIGHTS,),
        about=Class.FORMULA,
    )


FIG_1A, FIG_1B, FIG_1C = map(_histogram, BETAS)

# -- Theorem 1 ---------------------------------------------------------------------------------------------------------------

RATIOS = {"0.1": (1, 10), "0.5": (1, 2), "1": (1, 1), "2": (2, 1), "10": (10, 1)}  # beta = a / b
DEEPEST = 100_000
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
    "deepest-weight",
    deepest,
    {
        f"beta{name}": {"a": a, "b": b, "depths": _multiples(a + b, (5, 30, 100, 1000, 10_000, DEEPEST))}
        for name, (a, b) in RATIOS.items()
    },
)


def theorem_1_claims(results: Results) -> list[Claim]:
    """Eq. 18: lim 1/p argmax_r ε_r(β) = β / (1 + β)."""
    pieces = list(DEEP.pieces)

    def ours(value: Value) -> Sample:
        return results.of_pieces(DEEP.name, pieces, lambda *arrays: [value(each) for each in arrays])

    off = ours(lambda arrays: _off(arrays).max())
    last = ours(lambda arrays: _off(arrays)[-1] / arrays["depths"][-1])
    wrong = ours(lambda arrays: (arrays["of_weights"][:, None] != arrays["argmax"]).all(axis=1).sum())
    ties = ours(lambda arrays: np.ptp(arrays["argmax"], axis=1).mean())
    over = f"β = {', '.join(RATIOS)}"
    return [
        tested(
            f"largest |argmax ε_r - β p / (1 + β)| over depths up to {DEEPEST:g}",
            "lim argmax ε_r / p = β / (1 + β), Eq. 18",
            at_most(1 + EXACT, each=True, note=f"{EXACT:g} is for rounding, {over}", of="case"),
            off,
        ),
        tested(
            f"|argmax / p - β / (1 + β)| at p = {DEEPEST:g}",
            "the limit is β / (1 + β)",
            at_most(1.1e-5, each=True, note=over, of="case"),
            last,
        ),
        tested(
            "depths where the largest of the weights is not at the length of the closed form ⌊β p / (1 + β)⌋ + 1",
            "",
            at_most(0, each=True, note=over, of="case"),
            wrong,
            noted(
                "share of depths where two lengths tie",
                ties,
                "all: β p / (1 + β) ∈ N, the theorem's case, is that of a tie of this length and the next",
            ),
            basis=Basis.OURS,
        ),
    ]


def _off(arrays: Arrays) -> np.ndarray:
    return np.abs(arrays["argmax"][:, 1] - arrays["share"] * arrays["depths"])


def draw_theorem_1(results: Results) -> Figure:
    """argmax / p by depth, with its limits."""
    figure, ((axes,),) = figures.canvas()
    for name, (a, b) in RATIOS.items():
        for arrays in filter(None, [results.computed(DEEP.name).get(f"beta{name}")]):
            _line(axes, name, arrays["depths"], arrays["argmax"][:, 1] / arrays["depths"])
            axes.axhline(a / (a + b), color=LOOKS[name].colour, linestyle=":", linewidth=1)
            axes.annotate(
                f"β = {name}", (DEEPEST, a / (a + b)), (-4, 4), textcoords="offset points", ha="right", fontsize=8
            )
    axes.set(title="argmax ε_r / p and its limit β / (1 + β)", xlabel="depth p", xscale="log", ylim=(0, 1.05))
    return figure


def _line(axes: Axes, name: str, x: np.ndarray, y: np.ndarray) -> None:
    look = LOOKS[name]
    axes.plot(x, y, color=look.colour, linestyle=look.dash, marker=look.marker, markersize=4, label=f"β = {name}")


THEOREM_1 = Artefact(
    "theorem-1",
    "the largest weight is that of length β p / (1 + β)",
    (),
    theorem_1_claims,
    "Exact rational arithmetic for the closed form. Depths with β p / (1 + β) ∈ N, as assumed. The larger of two that tie.",
    draw_theorem_1,
    (DEEP,),
    about=Class.FORMULA,
)

# -- Theorem 2 ---------------------------------------------------------------------------------------------------------------

NEAR = (100, 300, 1000, 3000, 10_000, 30_000, DEEPEST)  # depths, about
EDGE = 10  # the band reaches a tenth of the way from q to 0 and to 1


def concentration(source: Source, a: int, b: int, edge: int, depths: Sequence[int]) -> Arrays:
    """How much of Σ ε_r² lies in the band of Theorem 2, by depth, for beta = a / b: arrays (depths,)."""
    from lightning_app.theory.littwin_wolf import spin_glass as glass

    beta = a / b
    bands = [((edge - 1) * a * p // (edge * (a + b)), (edge * a + b) * p // (edge * (a + b))) for p in depths]
    found, limits = ([f(p, beta) for p in depths] for f in (glass.lengths, glass.limiting_lengths))
    rates = [min(glass.rate(beta, first / p), glass.rate(beta, last / p)) for p, (first, last) in zip(depths, bands)]
    return {
        "depths": np.array(depths),
        "mass": np.array([glass.mass(p, beta, *band) for p, band in zip(depths, bands)]),
        "log_outside": np.array([glass.log_mass_outside(p, beta, *band) for p, band in zip(depths, bands)]),
        "rate": np.array(rates),
        "spread": np.array([each.variance**0.5 for each in found]),
        "limit": np.array([each.variance**0.5 for each in limits]),
    }


BANDS = Computation(
    "path-concentration",
    concentration,
    {
        f"beta{name}": {"a": a, "b": b, "edge": EDGE, "depths": _multiples(EDGE * (a + b), NEAR)}
        for name, (a, b) in RATIOS.items()
    },
)


def theorem_2_claims(results: Results) -> list[Claim]:
    """ "The epsilons are concentrated in a narrow band near the maximal value."

    Eq. 19: the limit of Σ ε_r² over the band is 1. How fast, and how wide the band is, the paper does not say: ours.
    """
    pieces = list(BANDS.pieces)

    def ours(value: Value) -> Sample:
        return results.of_pieces(BANDS.name, pieces, lambda *arrays: [value(each) for each in arrays])

    mass = ours(lambda arrays: arrays["mass"][-1])
    growth = ours(lambda arrays: np.diff(arrays["log_outside"]).max())
    decay = ours(lambda arrays: _slope(arrays) / arrays["rate"][-1])
    exponent = ours(lambda arrays: power(arrays["depths"], arrays["spread"]).slope)
    spread = ours(lambda arrays: arrays["spread"][-1] / arrays["limit"][-1])
    over = f"β = {', '.join(RATIOS)}"
    return [
        tested(
            f"Σ ε_r² over the band at p = {DEEPEST:g}",
            1.0,
            at_least(1 - EXACT, each=True, note=f"{EXACT:g} is for rounding, {over}", of="case"),
            mass,
        ),
        tested(
            "largest change, from one depth to the next, of the log of what is outside",
            "falls to 0",
            below(0, each=True, note=over, of="case"),
            growth,
        ),
        # changed after a look (before its first commit on 2026-11-21): the slope between the two largest p, because beside p
        # times the rate there is 1/2 log p, which a quotient at one p keeps
        tested(
            "slope of -log of what is outside between the two largest p, over the rate 2 KL(α ‖ q) of the nearer edge",
            "",
            Share(1.0, 0.02, each=True, of="case"),
            decay,
            basis=Basis.OURS,
        ),
        tested(
            "width of the band: exponent of p in the standard deviation of r under ε_r²",
            "",
            Within(0.5, 0.02, over, each=True, of="case"),
            exponent,
            noted(f"the deviation over √((p-1) q (1-q) / 2) at p = {DEEPEST:g}", spread),
            basis=Basis.OURS,
        ),
    ]


def _slope(arrays: Arrays) -> float:
    (early, late), (less, more) = arrays["depths"][-2:], -arrays["log_outside"][-2:]
    return (more - less) / (late - early)


def draw_theorem_2(results: Results) -> Figure:
    """What is outside of the band, by depth."""
    figure, ((axes,),) = figures.canvas()
    for name in RATIOS:
        for arrays in filter(None, [results.computed(BANDS.name).get(f"beta{name}")]):
            _line(axes, name, arrays["depths"], -arrays["log_outside"])
    axes.set(title="-log of Σ ε_r² outside of the band", xlabel="depth p", xscale="log", yscale="log")
    figures.legend(axes)
    return figure


THEOREM_2 = Artefact(
    "theorem-2",
    "all weight lies in a band around β p / (1 + β)",
    (),
    theorem_2_claims,
    f"α₁ = q - q / {EDGE} and α₂ = q + (1 - q) / {EDGE}, q = β / (1 + β), at depths where these are whole lengths, as assumed. "
    "The paper proves β < 1; "
    "β > 1 is its mirror image. 2 KL(α ‖ q), the rate, is what Stirling's formula leaves of the proof's quotient.",
    draw_theorem_2,
    (BANDS,),
    about=Class.FORMULA,
)

# -- Lemma 4 -----------------------------------------------------------------------------------------------------------------

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
    pieces = list(REACHED.pieces)

    def ours(value: Value) -> Sample:
        return results.of_pieces(REACHED.name, pieces, lambda *arrays: [value(each) for each in arrays])

    missed = ours(lambda arrays: (arrays["argmax"] != np.arange(1, len(arrays["argmax"]) + 1)).sum())
    other = ours(lambda arrays: (arrays["of_weights"] != arrays["argmax"]).sum())
    gaps = ours(lambda arrays: np.abs(arrays["low"][1:] - arrays["high"][:-1]).max())
    ends = ours(lambda arrays: arrays["low"][0] + 1 / arrays["high"][-1])
    over = ", ".join(piece.removeprefix("p") for piece in pieces)
    none = at_most(0, each=True, of="case")
    return [
        tested(
            f"k = 1..p that no scale C was found for, p = {over}", "for any integer k there exists a C", none, missed
        ),
        tested("the same by the largest of all weights instead of the closed form", "", none, other, basis=Basis.OURS),
        tested("gaps between the intervals of β of neighbouring k", "", none, gaps, basis=Basis.OURS),
        tested("what they leave of (0, ∞): lower end, and 1 / upper end", "", none, ends, basis=Basis.OURS),
    ]


def draw_lemma_4(results: Results) -> Figure:
    """The deepest weight as a function of the scale, a staircase."""
    figure, ((axes,),) = figures.canvas()
    for arrays in filter(None, [results.computed(REACHED.name).get("p100")]):
        axes.step(arrays["scales"], arrays["argmax"], where="mid", color=figures.colour("residual"))
        axes.axvline(1 / WIDTH**0.5, color=figures.INK, linestyle=":", linewidth=1, label="C = 1/√n")
    axes.set(title="argmax ε_r(C), p = 100", xlabel="scale C of the weights", xscale="log")
    figures.legend(axes)
    return figure


LEMMA_4 = Artefact(
    "lemma-4",
    "every depth is the ensemble's at some scale of the weights",
    (),
    lemma_4_claims,
    "Exactly: argmax ε_r = k for β in [(k-1)/(p-k+1), k/(p-k)), C = β √Λ / (ρ n), tried at the middle of each interval. "
    f"ρ = {RHO:g}, n = {WIDTH}, Λ = {UNIQUE}.",
    draw_lemma_4,
    (REACHED,),
    about=Class.FORMULA,
)
