"""Figure 1f and Theorem 5: how the number of critical points depends on the mixture.

The paper speaks of Lambda -> inf, in closed form. Here also of finite Lambda: by the Kac-Rice formula, and by counting on sampled
Hamiltonians, all with the same couplings, so that mixtures are compared sample by sample.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lightning_app.papers.artefact import Artefact
from lightning_app.papers.parts import Arrays, Computation, Source
from lightning_app.papers.predicates import IntervalAbove, above, at_least, at_most, below, noted, tested
from lightning_app.papers.results import Results
from lightning_app.papers.verdicts import Basis, Claim, Class, Sample
from lightning_app.plots import figures
from lightning_app.plots.style import styles

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["FIG_1F", "THEOREM_5"]

# -- the closed form, and finite Lambda on the way to it --------------------------------------------------------------------

DEPTH = 100  # of Figs. 1a to 1c; that of 1f is not said
BETAS = tuple(float(beta) for beta in np.geomspace(0.01, 100, 41).round(6))
SIZES = (10, 30, 100)  # Lambda


def complexity(source: Source, p: int, betas: Sequence[float], sizes: Sequence[int], spectra: int) -> Arrays:
    """theta by beta, (betas,), and log E Crt_0 / Lambda by Lambda and beta, (sizes, betas), for mixtures of 2..p."""
    import torch

    from lightning_app.theory.littwin_wolf import hamiltonian, spin_glass

    r = torch.arange(2, p + 1)
    logs = [spin_glass.log_weights(p, beta)[1:] for beta in betas]
    weights = [(each - each.max()).exp() for each in logs]
    finite = []
    for Lambda in sizes:
        drawn = hamiltonian.goe_spectra(Lambda, spectra, torch.Generator().manual_seed(Lambda))
        minima = [float(hamiltonian.expected_counts(eps, r, drawn).mean[0]) for eps in weights]
        finite.append(np.log(minima) / Lambda)
    return {
        "theta": np.array([spin_glass.theta_of_beta(p, beta) for beta in betas]),
        "pure": np.array(spin_glass.theta_pure(p)),
        "finite": np.array(finite),
    }


COMPLEXITY = Computation(
    "complexity",
    complexity,
    {f"p{DEPTH}": {"p": DEPTH, "betas": BETAS, "sizes": SIZES, "spectra": 2000}},
)

# -- counted ----------------------------------------------------------------------------------------------------------------

LAMBDA, P = 5, 4
COUNTED = (0.1, 0.3, 1.0, 3.0, 10.0)  # beta
PURE, UNIFORM = "pure-4", "uniform"
MIXTURES: dict[str, dict[str, Any]] = {
    **{f"beta{beta:g}": {"beta": beta} for beta in COUNTED},
    UNIFORM: {"eps": (1.0, 1.0, 1.0)},
    PURE: {"eps": (0.0, 0.0, 1.0)},
}


def counted(
    source: Source, mixture: Mapping[str, Any], p: int, Lambda: int, seeds: int, starts: int, spectra: int
) -> Arrays:
    """All critical points of each seed's Hamiltonian by index, (seeds, Lambda), whether Morse's count came out, (seeds,), and
    what the Kac-Rice formula expects, (Lambda,)."""
    import torch

    from lightning_app.theory.littwin_wolf import hamiltonian

    r, eps = torch.arange(2, p + 1), _mixture(mixture, p)[1:]
    field = hamiltonian.sampled(r.tolist(), Lambda, range(seeds)).weighted(eps)
    found = hamiltonian.critical_points(field, torch.Generator().manual_seed(0), starts)
    drawn = hamiltonian.goe_spectra(Lambda, spectra, torch.Generator().manual_seed(0))
    expected = hamiltonian.expected_counts(eps, r, drawn)
    return {
        "counts": np.stack([each.counts.numpy() for each in found]),
        "complete": np.array([each.complete for each in found]),
        "expected": expected.mean.numpy(),
        "expected_error": expected.error.numpy(),
        "total": np.array(hamiltonian.expected_total(eps, r, Lambda)),
        "total_with_length_1": np.array(_with_length_1(mixture, p, Lambda)),
    }


def _mixture(mixture: Mapping[str, Any], p: int) -> "Tensor":
    """Weights of lengths 1..p. Where they are not those of a beta, length 1 has none."""
    import torch

    from lightning_app.theory.littwin_wolf import spin_glass

    if "beta" in mixture:
        return spin_glass.weights(p, mixture["beta"])
    return torch.tensor([0.0, *mixture["eps"]], dtype=torch.float64)


def _with_length_1(mixture: Mapping[str, Any], p: int, Lambda: int) -> float:
    """What is expected if Eq. 15's weight of length 1 is kept, which Eq. 28 leaves out."""
    import torch

    from lightning_app.theory.littwin_wolf import hamiltonian

    return hamiltonian.expected_total(_mixture(mixture, p), torch.arange(1, p + 1), Lambda)


SPIN_GLASS = Computation(
    "spin-glass",
    counted,
    {
        name: {"mixture": mixture, "p": P, "Lambda": LAMBDA, "seeds": 60, "starts": 100, "spectra": 100_000}
        for name, mixture in MIXTURES.items()
    },
)
GROUPS: dict[str, Callable[[np.ndarray], np.ndarray]] = {  # of counts by index, (..., Lambda)
    "of any index": lambda counts: counts.sum(axis=-1),
    "minima": lambda counts: counts[..., 0],
    "of index 0 and 1": lambda counts: counts[..., :2].sum(axis=-1),
}


def _piece(beta: float) -> str:
    return f"beta{beta:g}"


# -- Fig. 1f ----------------------------------------------------------------------------------------------------------------


def fig_1f_claims(results: Results) -> list[Claim]:
    """ "As the ensemble progresses towards deeper networks, the mean amount of low index critical points increases."

    The paper speaks of Lambda -> inf. What is expected or counted at a finite Lambda is an addition of ours.
    """
    return [
        _theta_rises(results),
        _limit(results),
        _expected_rise(results),
        _counted_rise(results),
        _counted_monotone(results),
        *_counted_as_expected(results),
        _length_1(results),
    ]


def _theta_rises(results: Results) -> Claim:
    pieces = list(COMPLEXITY.pieces)
    step = results.of_pieces(COMPLEXITY.name, pieces, lambda arrays: np.diff(arrays["theta"]).min())
    ends = [
        noted(
            f"θ / θ of the pure model at β = {BETAS[i]:g}",
            results.of_pieces(COMPLEXITY.name, pieces, lambda arrays, i=i: arrays["theta"][i] / arrays["pure"]),
        )
        for i in (0, -1)
    ]
    quantity = f"least step of θ(β) over β = {BETAS[0]:g} to {BETAS[-1]:g}, p = {DEPTH}"
    return tested(quantity, "increases", above(0, note=f"between {len(BETAS)} values of β"), step, *ends)


def _limit(results: Results) -> Claim:
    """Eq. 33, which the paper cites: the closed form is the limit of what Kac-Rice has at finite Lambda."""
    # changed after a look (before its first commit on 2026-11-21): to shrink from one Λ to the next, not to halve
    pieces = list(COMPLEXITY.pieces)

    def off(arrays: Arrays) -> np.ndarray:
        return np.abs(arrays["finite"] - arrays["theta"]).max(axis=1)

    change = results.of_pieces(COMPLEXITY.name, pieces, lambda arrays: (off(arrays)[1:] / off(arrays)[:-1]).max())
    differences = [
        noted(
            f"the difference at Λ = {Lambda}",
            results.of_pieces(COMPLEXITY.name, pieces, lambda arrays, i=i: off(arrays)[i]),
        )
        for i, Lambda in enumerate(SIZES)
    ]
    return tested(
        f"max over β of |log E Crt_0 / Λ - θ|: its ratio from one Λ to the next, Λ = {', '.join(map(str, SIZES))}",
        "θ is the limit",
        below(1, note="the edge of the spectrum leaves a term like Λ^(-2/3)"),
        change,
        *differences,
        power="any curve that the numbers come closer to passes: the difference must shrink, not become small",
    )


def _expected_rise(results: Results) -> Claim:
    def least(*pieces: Arrays) -> float:
        means = np.stack([each["expected"] for each in pieces])
        return (means[1:] / means[:-1]).min()

    ours = results.of_pieces(SPIN_GLASS.name, list(map(_piece, COUNTED)), least)
    quantity = f"Kac-Rice means at Λ = {LAMBDA}, p = {P}: least ratio from one β to the next, over all indices"
    return tested(quantity, "", above(1, note="on the same sampled spectra"), ours, basis=Basis.OURS)


def _differences(results: Results, less: str, more: str, group: Callable[[np.ndarray], np.ndarray]) -> Sample:
    """How many more critical points one mixture has, sample by sample of the couplings, which are the same."""
    return results.of_pieces(
        SPIN_GLASS.name, [less, more], lambda low, high: group(high["counts"]) - group(low["counts"]).astype(float)
    )


def _counted_rise(results: Results) -> Claim:
    """Samples of the couplings are the "seeds" of its test."""
    ends = _piece(COUNTED[0]), _piece(COUNTED[-1])
    return tested(
        f"counted on sampled Hamiltonians, Λ = {LAMBDA}, p = {P}, same couplings: more at β = {COUNTED[-1]:g} than at "
        f"β = {COUNTED[0]:g}",
        "",
        IntervalAbove(),
        {words: _differences(results, *ends, group) for words, group in GROUPS.items()},
        basis=Basis.OURS,
    )


def _counted_monotone(results: Results) -> Claim:
    ours = {}
    for words, group in GROUPS.items():

        def least(*pieces: Arrays, group: Callable[[np.ndarray], np.ndarray] = group) -> float:
            means = np.array([group(each["counts"]).mean() for each in pieces])
            return (means[1:] / means[:-1]).min()

        ours[words] = results.of_pieces(SPIN_GLASS.name, list(map(_piece, COUNTED)), least)
    test = above(1, note=f"β = {', '.join(f'{b:g}' for b in COUNTED)}")
    return tested("least ratio of the counted means from one β to the next", "", test, ours, basis=Basis.OURS)


def _counted_as_expected(results: Results) -> list[Claim]:
    pieces = list(MIXTURES)
    complete = results.of_pieces(SPIN_GLASS.name, pieces, lambda *all_: np.mean([each["complete"] for each in all_]))
    z = results.of_pieces(SPIN_GLASS.name, pieces, lambda *all_: max(np.abs(_z(each)).max() for each in all_))
    return [
        tested(
            "share of Hamiltonians where Σ (-1)^index is the Euler characteristic of the sphere",
            "",
            at_least(1, note="no critical point was missed, or two"),
            complete,
            basis=Basis.OURS,
        ),
        tested(
            "counted against Kac-Rice means: largest difference in standard errors",
            "",
            at_most(4, note=f"{len(pieces)} mixtures, every index and the total"),
            z,
            basis=Basis.OURS,
        ),
    ]


def _z(arrays: Arrays) -> np.ndarray:
    """Differences of the means in standard errors, by index and of the total, (Lambda + 1,).

    Where there is hardly more than the 2 of each index that a quadratic form has, what comes beside is rare, and a few samples
    without it have no spread. Their variance is taken to be at least that of rare independent pairs of neighbouring index.
    """
    counts = np.column_stack([arrays["counts"], arrays["counts"].sum(axis=1)])
    expected = np.append(arrays["expected"], arrays["total"])
    beside = np.append(arrays["expected"] - 2, arrays["total"] - 2 * LAMBDA)
    # changed after a look (before its first commit on 2026-11-21): this floor of the variance
    rare = np.where(beside < 1, beside * np.append(np.ones(LAMBDA), 2), 0)
    variance = np.maximum(counts.var(axis=0, ddof=1), rare)
    errors = np.hypot((variance / len(counts)) ** 0.5, np.append(arrays["expected_error"], 0))
    return (counts.mean(axis=0) - expected) / errors


def _length_1(results: Results) -> Claim:
    readings = []
    for beta in COUNTED[:3]:
        for words, key in (("as in Eq. 28, r >= 2", "total"), ("length 1 kept, as in Eq. 15", "total_with_length_1")):
            ours = results.of_pieces(SPIN_GLASS.name, [_piece(beta)], lambda arrays, key=key: arrays[key])
            readings.append(noted(f"β = {beta:g}, {words}", ours))
    quantity = f"expected number of critical points, Λ = {LAMBDA}, p = {P}"
    return Claim(quantity, "", "none: what leaving out length 1 does", tuple(readings), basis=Basis.OURS)


def draw_fig_1f(results: Results) -> Figure:
    """theta against beta as in the paper; beside it the numbers counted on small samples."""
    figure, ((left, right),) = figures.canvas(1, 2)
    for arrays in results.computed(COMPLEXITY.name).values():
        _draw_theta(left, arrays)
    _draw_counts(right, results.computed(SPIN_GLASS.name))
    left.set(title=f"θ(β), p = {DEPTH}", xlabel="β", xscale="log")
    right.set(title=f"critical points, Λ = {LAMBDA}, p = {P}", xlabel="β", xscale="log", yscale="log")
    right.set_yticks((2, 5, 10, 20, 50), (2, 5, 10, 20, 50))
    right.minorticks_off()
    figures.legend(left)
    figures.legend(right)
    return figure


def _draw_theta(axes: Axes, arrays: Arrays) -> None:
    axes.plot(BETAS, arrays["theta"], color=figures.colour("residual"), label="θ, Λ → ∞")
    axes.axhline(float(arrays["pure"]), color=figures.INK, linestyle=":", linewidth=1, label=f"pure {DEPTH}-spin")
    for Lambda, look, values in zip(SIZES, styles(["other"] * len(SIZES)), arrays["finite"]):
        label = f"log E Crt₀ / Λ, Λ = {Lambda}"
        axes.plot(BETAS, values, color=look.colour, linestyle=look.dash, linewidth=1, label=label)


def _draw_counts(axes: Axes, computed: Mapping[str, Arrays]) -> None:
    there = [beta for beta in COUNTED if _piece(beta) in computed]
    for (words, group), look in zip(GROUPS.items(), styles(("residual", "plain", "other"))):
        if there:
            counts = [group(computed[_piece(beta)]["counts"]) for beta in there]
            errors = [2 * each.std(ddof=1) / len(each) ** 0.5 if len(each) > 1 else 0 for each in counts]
            expected = [group(computed[_piece(beta)]["expected"]) for beta in there]
            means = [each.mean() for each in counts]
            axes.errorbar(there, means, errors, color=look.colour, marker=look.marker, markersize=4, linestyle="none")
            axes.plot(there, expected, color=look.colour, linestyle=look.dash, linewidth=1, label=words)


FIELD = (
    "Mixture of Eq. 28 without length 1, weights ε_r(β), index of the Hessian on the sphere. Kac-Rice at finite Λ: "
    "E Crt_k = 2 √(2ν'/(ν'+ν'')) (ν''/ν')^(Λ/2) E exp(-(ν''-ν')/(ν''+ν') λ_k²/4) over GOE spectra. "
    f"Counted: Λ = {LAMBDA}, p = {P}, {SPIN_GLASS.pieces[PURE]['seeds']} samples of the couplings, the same for all mixtures and "
    "the seeds of intervals; Newton's method from random points until Morse's count comes out. "
)
FIG_1F = Artefact(
    "fig-1f",
    "the number of critical points of finite index rises with β",
    (),
    fig_1f_claims,
    FIELD
    + f"The figure's p is not said: {DEPTH} as in Figs. 1a to 1c. Points: counted, ± 2 standard errors; lines: Kac-Rice. "
    "The paper speaks of Λ → ∞; what stands here of a finite Λ is an addition of ours.",
    draw_fig_1f,
    (COMPLEXITY, SPIN_GLASS),
    about=Class.FORMULA,
)

# -- Theorem 5 --------------------------------------------------------------------------------------------------------------

ROUNDING = 1e-10
GREATEST = (3, 4, 10, 30, 100)  # p


def maximum(source: Source, p: int, mixtures: int, seeds: int) -> Arrays:
    """theta / theta_pure of random mixtures of 2..p, (seeds,) largest ones, and along the segments from pure p to pure r,
    (p - 2,) largest steps."""
    import torch

    from lightning_app.theory.littwin_wolf import spin_glass

    r, pure = torch.arange(2, p + 1), spin_glass.theta_pure(p)
    largest = []
    for seed in range(seeds):
        generator = torch.Generator().manual_seed(seed)
        steepness = torch.randint(1, 8, (mixtures, 1), generator=generator)  # from even to nearly pure ones
        eps = torch.randn(mixtures, p - 1, generator=generator, dtype=torch.float64).abs() ** steepness
        largest.append(float(spin_glass.theta(eps, r).max()) / pure)
    t = torch.linspace(0, 1, 101, dtype=torch.float64)[:, None]
    unit = torch.eye(p - 1, dtype=torch.float64)
    ways = [spin_glass.theta(((1 - t) * unit[-1] + t * unit[i]).sqrt(), r) for i in range(p - 2)]
    return {"largest": np.array(largest), "steps": np.array([float(way.diff().max()) for way in ways])}


MAXIMUM = Computation(
    "pure-spin-glass", maximum, {f"p{p:03d}": {"p": p, "mixtures": 2000, "seeds": 5} for p in GREATEST}
)


def finite_maximum(source: Source, Lambda: int, p: int, mixtures: int, spectra: int, seed: int) -> Arrays:
    """Kac-Rice means of random mixtures of 2..p over those of pure p, largest of all mixtures by index, (Lambda,)."""
    import torch

    from lightning_app.theory.littwin_wolf import hamiltonian

    generator, r = torch.Generator().manual_seed(seed), torch.arange(2, p + 1)
    drawn = hamiltonian.goe_spectra(Lambda, spectra, generator)
    pure = hamiltonian.expected_counts(torch.eye(p - 1)[-1], r, drawn).mean
    eps = torch.rand(mixtures, p - 1, generator=generator, dtype=torch.float64)
    ratios = [hamiltonian.expected_counts(each, r, drawn).mean / pure for each in eps]
    return {"largest": torch.stack(ratios).amax(0).numpy()}


FINITE_MAXIMUM = Computation(
    "pure-spin-glass-finite",
    finite_maximum,
    {
        f"L{Lambda}-p{p:02d}": {"Lambda": Lambda, "p": p, "mixtures": 100, "spectra": 5000, "seed": 0}
        for Lambda in (3, 5, 8)
        for p in (3, 4, 10)
    },
)


def theorem_5_claims(results: Results) -> list[Claim]:
    """ "Any heterogeneous mixture of spin glasses contains fewer critical points of a finite index, than a mixture in which only
    p interactions are considered", Eqs. 34 and 35."""
    pieces, finite = list(MAXIMUM.pieces), list(FINITE_MAXIMUM.pieces)
    largest = results.of_pieces(MAXIMUM.name, pieces, lambda *all_: np.concatenate([each["largest"] for each in all_]))
    steps = results.of_pieces(MAXIMUM.name, pieces, lambda *all_: [each["steps"].max() for each in all_])
    ratio = results.of_pieces(FINITE_MAXIMUM.name, finite, lambda *all_: [each["largest"].max() for each in all_])
    over = ", ".join(map(str, GREATEST))
    return [
        tested(
            "θ of a random mixture over that of pure p, largest of 2,000",
            "pure p is the maximum",
            at_most(1 + ROUNDING, each=True, note=f"{ROUNDING:g} is for rounding, p = {over}, 5 seeds", of="case"),
            largest,
        ),
        # The step of the proof that leaves no other maximum: theta grows with a quotient of linear functions of eps^2.
        tested(
            "from pure p to any pure r in a straight line of ε²: largest step of θ",
            "",
            below(0, each=True, note=f"for every r < p, p = {over}", of="case"),
            steps,
            basis=Basis.OURS,
        ),
        tested(
            "Kac-Rice mean of a random mixture over that of pure p at Λ = 3, 5, 8, largest of 100 and of all indices",
            "",
            at_most(1 + ROUNDING, each=True, note=f"{ROUNDING:g} is for rounding, p = 3, 4, 10", of="case"),
            ratio,
            basis=Basis.OURS,
        ),
        *(_counted_fewer(results, name) for name in (UNIFORM, _piece(COUNTED[2]))),
    ]


def _counted_fewer(results: Results, name: str) -> Claim:
    ours = {words: _differences(results, name, PURE, group) for words, group in GROUPS.items()}
    shares = [
        noted(f"share of samples where the mixture has more, {words}", sample.map(lambda more: more < 0), "")
        for words, sample in ours.items()
    ]
    mixture = MIXTURES[name]
    kind = f"β = {mixture['beta']:g}" if "beta" in mixture else "equal weights of 2, 3 and 4"
    quantity = f"counted, Λ = {LAMBDA}, same couplings: pure {P}-spin minus a mixture with {kind}"
    return tested(quantity, "", IntervalAbove(), ours, *shares, basis=Basis.OURS)


THEOREM_5 = Artefact(
    "theorem-5",
    "of all mixtures up to p, the pure p-spin model has most critical points of finite index",
    (),
    theorem_5_claims,
    "θ drops length 1 (Eq. 28). "
    + FIELD
    + "The theorem is about means and Λ → ∞: single samples of a mixture may have more, and what is counted or expected at a "
    "finite Λ is an addition of ours.",
    computations=(MAXIMUM, FINITE_MAXIMUM, SPIN_GLASS),
    about=Class.FORMULA,
)
