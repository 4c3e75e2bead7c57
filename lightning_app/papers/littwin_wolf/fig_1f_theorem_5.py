"""Figure 1f and Theorem 5: how the number of critical points depends on the mixture.

The paper speaks of Lambda -> inf, in closed form. Here also of finite Lambda: by the Kac-Rice formula, and by counting on sampled
Hamiltonians, all with the same couplings, so that mixtures are compared sample by sample.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from lightning_app.common.late import Tensor, torch
from lightning_app.papers.parts import Arrays, Artefact, Computation, Source
from lightning_app.papers.predicates import IntervalAbove, above, at_least, at_most, below, noted, shown, tested
from lightning_app.papers.results import Results
from lightning_app.papers.verdicts import Basis, Claim, Class, Sample
from lightning_app.plots import figures
from lightning_app.plots.style import styles

DEPTH = 100  # of Figs. 1a to 1c; that of 1f is not said
BETAS = tuple(float(beta) for beta in np.geomspace(0.01, 100, 41).round(6))
SIZES = (10, 30, 100)  # Lambda


def complexity(source: Source, p: int, betas: Sequence[float], sizes: Sequence[int], spectra: int) -> Arrays:
    """theta by beta, (betas,), and log E Crt_0 / Lambda by Lambda and beta, (sizes, betas), for mixtures of 2..p."""
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


WHOLE = {"p": DEPTH, "betas": BETAS, "sizes": SIZES, "spectra": 2000}
COMPLEXITY = Computation("complexity", complexity, {f"p{DEPTH}": WHOLE})

LAMBDA, P = 5, 4
COUNTED = {beta: f"beta{beta:g}" for beta in (0.1, 0.3, 1.0, 3.0, 10.0)}  # their pieces
PURE, UNIFORM = "pure-4", "uniform"
Mixture = Mapping[str, Any]  # its beta, or weights of lengths 2..p
MIXTURES: dict[str, Mixture] = {
    **{piece: {"beta": beta} for beta, piece in COUNTED.items()},
    UNIFORM: {"eps": (1.0, 1.0, 1.0)},
    PURE: {"eps": (0.0, 0.0, 1.0)},
}


def counted(source: Source, mixture: Mixture, p: int, Lambda: int, seeds: int, starts: int, spectra: int) -> Arrays:
    """All critical points of each seed's Hamiltonian by index, (seeds, Lambda), whether Morse's count came out, (seeds,), and
    what the Kac-Rice formula expects, (Lambda,)."""
    from lightning_app.theory.littwin_wolf import hamiltonian

    lengths, weights = torch.arange(1, p + 1), _mixture(mixture, p)
    r, eps = lengths[1:], weights[1:]
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
        # if Eq. 15's weight of length 1 is kept, which Eq. 28 leaves out
        "total_with_length_1": np.array(hamiltonian.expected_total(weights, lengths, Lambda)),
    }


def _mixture(mixture: Mixture, p: int) -> Tensor:
    """Weights of lengths 1..p. Where they are not those of a beta, length 1 has none."""
    from lightning_app.theory.littwin_wolf import spin_glass

    if "beta" in mixture:
        return spin_glass.weights(p, mixture["beta"])
    return torch.tensor([0.0, *mixture["eps"]], dtype=torch.float64)


SPIN_GLASS_PIECES = {
    name: {"mixture": mixture, "p": P, "Lambda": LAMBDA, "seeds": 60, "starts": 100, "spectra": 100_000}
    for name, mixture in MIXTURES.items()
}
SPIN_GLASS = Computation("spin-glass", counted, SPIN_GLASS_PIECES)
GROUPS: dict[str, Callable[[np.ndarray], np.ndarray]] = {  # of counts by index, (..., Lambda)
    "of any index": lambda counts: counts.sum(axis=-1),
    "minima": lambda counts: counts[..., 0],
    "of index 0 and 1": lambda counts: counts[..., :2].sum(axis=-1),
}


def fig_1f_claims(results: Results) -> list[Claim]:
    """ "As the ensemble progresses towards deeper networks, the mean amount of low index critical points increases."

    The paper speaks of Lambda -> inf. What is expected or counted at a finite Lambda is an addition of ours.
    """
    step = results.of(COMPLEXITY, lambda arrays: np.diff(arrays["theta"]).min())
    ends = []
    for i in (0, -1):
        share = results.of(COMPLEXITY, lambda arrays, i=i: arrays["theta"][i] / arrays["pure"])
        ends.append(noted(f"θ / θ of the pure model at β = {BETAS[i]:g}", share))
    rises = f"least step of θ(β) over β = {BETAS[0]:g} to {BETAS[-1]:g}, p = {DEPTH}"
    return [
        tested(rises, "increases", above(0, note=f"between {len(BETAS)} values of β"), step, *ends),
        _limit(results),
        *_rises_at_finite_size(results),
        *_counted_as_expected(results),
        _length_1(results),
    ]


def _limit(results: Results) -> Claim:
    """Eq. 33, which the paper cites: the closed form is the limit of what Kac-Rice has at finite Lambda."""

    def off(arrays: Arrays) -> np.ndarray:
        return np.abs(arrays["finite"] - arrays["theta"]).max(axis=1)

    change = results.of(COMPLEXITY, lambda arrays: (off(arrays)[1:] / off(arrays)[:-1]).max())
    differences = [
        noted(f"the difference at Λ = {Lambda}", results.of(COMPLEXITY, lambda arrays, i=i: off(arrays)[i]))
        for i, Lambda in enumerate(SIZES)
    ]
    sizes = ", ".join(map(str, SIZES))
    quantity = f"max over β of |log E Crt_0 / Λ - θ|: its ratio from one Λ to the next, Λ = {sizes}"
    why = (
        "it shrinks with Λ, as it would for many other curves, and a term like Λ^(-1/2) keeps it from being small here"
    )
    return shown(quantity, "θ is the limit", why, change, *differences)


def _rises_at_finite_size(results: Results) -> list[Claim]:
    """Expected and counted. Samples of the couplings are the "seeds" of the test of what was counted."""

    def least(means: Callable[[Arrays], float | np.ndarray]) -> Sample:
        """Ratio from one beta to the next."""

        def ratio(*pieces: Arrays) -> float:
            table = np.array([means(each) for each in pieces])
            return (table[1:] / table[:-1]).min()

        return results.of(SPIN_GLASS, ratio, *COUNTED.values())

    (low, less), *_, (high, more) = COUNTED.items()
    counted = f"counted on sampled Hamiltonians, Λ = {LAMBDA}, p = {P}, same couplings: more at β = {high:g} than at β = {low:g}"
    expected = f"Kac-Rice means at Λ = {LAMBDA}, p = {P}: least ratio from one β to the next, over all indices"
    differ = {words: _differences(results, less, more, group) for words, group in GROUPS.items()}

    def mean_of(group: Callable[[np.ndarray], np.ndarray]) -> Callable[[Arrays], float]:
        return lambda arrays: float(group(arrays["counts"]).mean())

    steps = {words: least(mean_of(group)) for words, group in GROUPS.items()}
    same, over = above(1, note="on the same sampled spectra"), ", ".join(f"{beta:g}" for beta in COUNTED)
    monotone, every = "least ratio of the counted means from one β to the next", above(1, note=f"β = {over}")
    return [
        tested(expected, "", same, least(lambda arrays: arrays["expected"]), basis=Basis.OURS),
        tested(counted, "", IntervalAbove(), differ, basis=Basis.OURS),
        tested(monotone, "", every, steps, basis=Basis.OURS),
    ]


def _differences(results: Results, less: str, more: str, group: Callable[[np.ndarray], np.ndarray]) -> Sample:
    """How many more critical points one mixture has, sample by sample of the couplings, which are the same."""
    return results.of(SPIN_GLASS, lambda low, high: 1.0 * group(high["counts"]) - group(low["counts"]), less, more)


def _counted_as_expected(results: Results) -> list[Claim]:
    complete = results.of(SPIN_GLASS, lambda *all_: np.mean([each["complete"] for each in all_]))
    z = results.of(SPIN_GLASS, lambda *all_: max(np.abs(_z(each)).max() for each in all_))
    euler = "share of Hamiltonians where Σ (-1)^index is the Euler characteristic of the sphere"
    all_found = at_least(1, note="no critical point was missed, or two")
    as_expected = "counted against Kac-Rice means: largest difference in standard errors"
    near = at_most(4, note=f"{len(MIXTURES)} mixtures, every index and the total")
    rows = ((euler, all_found, complete), (as_expected, near, z))
    return [tested(quantity, "", test, ours, basis=Basis.OURS) for quantity, test, ours in rows]


def _z(arrays: Arrays) -> np.ndarray:
    """Differences of the means in standard errors, by index and of the total, (Lambda + 1,).

    Where there is hardly more than the 2 of each index that a quadratic form has, what comes beside is rare, and a few samples
    without it have no spread. Their variance is taken to be at least that of rare independent pairs of neighbouring index.
    """
    counts = np.column_stack([arrays["counts"], arrays["counts"].sum(axis=1)])
    expected = np.append(arrays["expected"], arrays["total"])
    beside = np.append(arrays["expected"] - 2, arrays["total"] - 2 * LAMBDA)
    rare = np.where(beside < 1, beside * np.append(np.ones(LAMBDA), 2), 0)
    variance = np.maximum(counts.var(axis=0, ddof=1), rare)
    errors = np.hypot((variance / len(counts)) ** 0.5, np.append(arrays["expected_error"], 0))
    return (counts.mean(axis=0) - expected) / errors


def _length_1(results: Results) -> Claim:
    kinds = {"as in Eq. 28, r >= 2": "total", "length 1 kept, as in Eq. 15": "total_with_length_1"}
    ours = {
        f"β = {beta:g}, {words}": results.of(SPIN_GLASS, key, COUNTED[beta])
        for beta in [*COUNTED][:3]
        for words, key in kinds.items()
    }
    quantity = f"expected number of critical points, Λ = {LAMBDA}, p = {P}"
    return shown(quantity, "", "what leaving out length 1 does", ours, basis=Basis.OURS)


def draw_fig_1f(results: Results) -> figures.Figure:
    """theta against beta as in the paper; beside it the numbers counted on small samples."""
    figure, ((left, right),) = figures.canvas(1, 2)
    for arrays in results.computed(COMPLEXITY).values():
        left.plot(BETAS, arrays["theta"], color=figures.colour("residual"), label="θ, Λ → ∞")
        left.axhline(float(arrays["pure"]), color=figures.INK, linestyle=":", linewidth=1, label=f"pure {DEPTH}-spin")
        for Lambda, look, values in zip(SIZES, styles(["other"] * len(SIZES)), arrays["finite"]):
            label = f"log E Crt₀ / Λ, Λ = {Lambda}"
            left.plot(BETAS, values, color=look.colour, linestyle=look.dash, linewidth=1, label=label)
    _draw_counts(right, results.computed(SPIN_GLASS))
    left.set(title=f"θ(β), p = {DEPTH}", xlabel="β", xscale="log")
    right.set(title=f"critical points, Λ = {LAMBDA}, p = {P}", xlabel="β", xscale="log", yscale="log")
    right.set_yticks((2, 5, 10, 20, 50), (2, 5, 10, 20, 50))
    right.minorticks_off()
    figures.legend(left, right)
    return figure


def _draw_counts(axes: figures.Axes, computed: Mapping[str, Arrays]) -> None:
    there = {beta: computed[piece] for beta, piece in COUNTED.items() if piece in computed}
    for (words, group), look in zip(GROUPS.items() if there else (), styles(("residual", "plain", "other"))):
        counts = [group(arrays["counts"]) for arrays in there.values()]
        errors = [2 * each.std(ddof=1) / len(each) ** 0.5 if len(each) > 1 else 0 for each in counts]
        means, expected = [each.mean() for each in counts], [group(arrays["expected"]) for arrays in there.values()]
        axes.errorbar([*there], means, errors, color=look.colour, marker=look.marker, markersize=4, linestyle="none")
        axes.plot([*there], expected, color=look.colour, linestyle=look.dash, linewidth=1, label=words)


FIELD = (
    "Mixture of Eq. 28 without length 1, weights ε_r(β), index of the Hessian on the sphere. Kac-Rice at finite Λ: "
    "E Crt_k = 2 √(2ν'/(ν'+ν'')) (ν''/ν')^(Λ/2) E exp(-(ν''-ν')/(ν''+ν') λ_k²/4) over GOE spectra. "
    f"Counted: Λ = {LAMBDA}, p = {P}, {SPIN_GLASS.pieces[PURE]['seeds']} samples of the couplings, the same for all mixtures and "
    "the seeds of intervals; Newton's method from random points until Morse's count comes out. "
)
FIG_1F = Artefact(
    "fig-1f",
    "the number of critical points of finite index rises with β",
    fig_1f_claims,
    FIELD
    + f"The figure's p is not said: {DEPTH} as in Figs. 1a to 1c. Points: counted, ± 2 standard errors; lines: Kac-Rice. "
    "The paper speaks of Λ → ∞; what stands here of a finite Λ is an addition of ours. Changed after a look: "
    "that the numbers at finite Λ halve their distance to θ from one Λ to the next (2026-11-21), then that they come closer at "
    "all (2026-12-01); both are described now.",
    draw_fig_1f,
    computations=(COMPLEXITY, SPIN_GLASS),
    about=Class.FORMULA,
)

ROUNDING = 1e-10
GREATEST = (3, 4, 10, 30, 100)  # p


def maximum(source: Source, p: int, mixtures: int, seeds: int) -> Arrays:
    """theta / theta_pure of random mixtures of 2..p, (seeds,) largest ones, and along the segments from pure p to pure r,
    (p - 2,) largest steps."""
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


RANDOM = {f"p{p:03d}": {"p": p, "mixtures": 2000, "seeds": 5} for p in GREATEST}
MAXIMUM = Computation("pure-spin-glass", maximum, RANDOM)


def finite_maximum(source: Source, Lambda: int, p: int, mixtures: int, spectra: int, seed: int) -> Arrays:
    """Kac-Rice means of random mixtures of 2..p over those of pure p, largest of all mixtures by index, (Lambda,)."""
    from lightning_app.theory.littwin_wolf import hamiltonian

    generator, r = torch.Generator().manual_seed(seed), torch.arange(2, p + 1)
    drawn = hamiltonian.goe_spectra(Lambda, spectra, generator)
    pure = hamiltonian.expected_counts(torch.eye(p - 1)[-1], r, drawn).mean
    eps = torch.rand(mixtures, p - 1, generator=generator, dtype=torch.float64)
    ratios = [hamiltonian.expected_counts(each, r, drawn).mean / pure for each in eps]
    return {"largest": torch.stack(ratios).amax(0).numpy()}


FINITE_MAXIMUM_PIECES = {
    f"L{Lambda}-p{p:02d}": {"Lambda": Lambda, "p": p, "mixtures": 100, "spectra": 5000, "seed": 0}
    for Lambda in (3, 5, 8)
    for p in (3, 4, 10)
}
FINITE_MAXIMUM = Computation("pure-spin-glass-finite", finite_maximum, FINITE_MAXIMUM_PIECES)


def theorem_5_claims(results: Results) -> list[Claim]:
    """ "Any heterogeneous mixture of spin glasses contains fewer critical points of a finite index, than a mixture in which only
    p interactions are considered", Eqs. 34 and 35."""
    in_cases: Any = {"each": True, "of": "case"}
    over, rounding = ", ".join(map(str, GREATEST)), f"{ROUNDING:g} is for rounding"
    largest = results.each(MAXIMUM, "largest")
    steps = results.each(MAXIMUM, lambda arrays: arrays["steps"].max())
    ratio = results.each(FINITE_MAXIMUM, lambda arrays: arrays["largest"].max())
    near_1 = at_most(1 + ROUNDING, note=f"{rounding}, p = {over}, 5 seeds", **in_cases)
    near_1_too = at_most(1 + ROUNDING, note=f"{rounding}, p = 3, 4, 10", **in_cases)
    # The step of the proof that leaves no other maximum: theta grows with a quotient of linear functions of eps^2.
    step = "from pure p to any pure r in a straight line of ε²: largest step of θ"
    finite = "Kac-Rice mean of a random mixture over that of pure p at Λ = 3, 5, 8, largest of 100 and of all indices"
    random = "θ of a random mixture over that of pure p, largest of 2,000"
    falls = below(0, note=f"for every r < p, p = {over}", **in_cases)
    return [
        tested(random, "pure p is the maximum", near_1, largest),
        tested(step, "", falls, steps, basis=Basis.OURS),
        tested(finite, "", near_1_too, ratio, basis=Basis.OURS),
        *(_counted_fewer(results, name) for name in (UNIFORM, COUNTED[1.0])),
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
    theorem_5_claims,
    "θ drops length 1 (Eq. 28). "
    + FIELD
    + "The theorem is about means and Λ → ∞: single samples of a mixture may have more, and what is counted or expected at a "
    "finite Λ is an addition of ours.",
    computations=(MAXIMUM, FINITE_MAXIMUM, SPIN_GLASS),
    about=Class.FORMULA,
)
