"""Lemmas 1 to 3 by exact enumeration of the paths of small nets, and by sampling. (Lemma 4 is in `weights`.)"""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from lightning_app.checks import if_measured
from lightning_app.reproduce.artefact import Artefact
from lightning_app.reproduce.computation import Arrays, Computation, Source
from lightning_app.reproduce.results import Results
from lightning_app.verdicts import Claim, Outcome, Reading, Sample, described, holds, one

__all__ = ["LEMMA_1", "LEMMA_2", "LEMMA_3"]

EXACT = 1e-10  # what rounding may leave of an identity
ERRORS = 5.0  # standard errors that a sampled mean may be off, the largest of many

EVEN: dict[str, dict[str, Any]] = {  # nets where all configurations have as many paths
    "even": {"shared": "evenly", "p": 4, "n": 4, "d": 3, "Lambda": 2},
    "even-3": {"shared": "evenly", "p": 3, "n": 6, "d": 4, "Lambda": 3},
    "even-Lambda-n": {"shared": "evenly", "p": 3, "n": 4, "d": 3, "Lambda": 4},
    "by-input": {"shared": "by_input", "p": 3, "n": 4, "d": 4, "Lambda": 2},
    "by-input-Lambda-d": {"shared": "by_input", "p": 3, "n": 4, "d": 2, "Lambda": 2},
}
DRAWN = {"drawn": {"shared": "unevenly", "p": 4, "n": 4, "d": 3, "Lambda": 2}}  # A3 on average only


def lemmas(source: Source, shared: str, p: int, n: int, d: int, Lambda: int, draws: int, seeds: int) -> Arrays:
    """Lemmas 1 to 3 for a net of each seed: arrays (seeds,) by "lemma/what"."""
    return _columns([_of_seed(shared, (p, n, d, Lambda), draws, seed) for seed in range(seeds)]) | {"d": np.array(d)}


def _of_seed(shared: str, sizes: Sequence[int], draws: int, seed: int) -> dict[str, float]:
    import torch

    from lightning_app.theory import unravelled

    makes = {
        "evenly": unravelled.evenly_shared,
        "by_input": unravelled.by_input,
        "unevenly": unravelled.unevenly_shared,
    }
    generator = torch.Generator().manual_seed(seed)
    net = makes[shared](*sizes, generator)
    w = torch.randn(net.Lambda, generator=generator, dtype=torch.float64)
    x = torch.randn(net.d, generator=generator, dtype=torch.float64)
    found = {
        1: unravelled.lemma_1(net, w, x),
        2: unravelled.lemma_2(net, draws, generator),
        3: unravelled.lemma_3(net, w, x, 0.5, draws, generator),
    }
    return {f"{lemma}/{key}": value for lemma, each in found.items() for key, value in asdict(each).items()}


def _columns(rows: Sequence[dict[str, float]]) -> Arrays:
    return {key: np.array([row[key] for row in rows]) for key in rows[0]}


UNRAVELLED = Computation(
    "unravelled-nets", lemmas, {name: {**net, "draws": 2000, "seeds": 20} for name, net in (EVEN | DRAWN).items()}
)


def _ours(results: Results, nets: Sequence[str], value: Callable[[Arrays], np.ndarray]) -> Sample:
    """A number of every seed of these nets."""
    return results.of_pieces(UNRAVELLED.name, list(nets), lambda *all_: np.concatenate([value(each) for each in all_]))


def _at_most(ours: Sample, limit: float) -> Outcome:
    return if_measured(ours, lambda: holds(max(ours.values) <= limit, f"{max(ours.values):.3g}"))


def _exact(results: Results, key: str, quantity: str, nets: Sequence[str]) -> Claim:
    ours = _ours(results, nets, lambda arrays: arrays[key])
    return one(quantity, 0.0, f"at most {EXACT:g}, {len(nets)} kinds of nets, 20 seeds", ours, _at_most(ours, EXACT))


# -- Lemma 1 ------------------------------------------------------------------------------------------------------------------


def lemma_1_claims(results: Results) -> list[Claim]:
    every = [*EVEN, *DRAWN]
    even, drawn = (_ours(results, nets, lambda arrays: arrays["1/uneven"]) for nets in (EVEN, DRAWN))
    words = "each weight on equally many connections of every unit"
    return [
        _exact(results, "1/paths", "sum over all paths, Eq. 9, against the output", every),
        _exact(results, "1/reindexed", "sum over all configurations of weights, Eq. 10, against the output", every),
        Claim(
            "number of paths of a configuration over ψ_r / Λ^r: largest difference from 1",
            "every configuration ψ_r / Λ^r times",
            "0 where A3 holds without remainder, 20 seeds",
            (
                Reading(words, even, _at_most(even, 0.0)),
                Reading("each connection draws its weight: A3 on average", drawn, described(drawn.range)),
            ),
        ),
    ]


SMALL = (
    "Nets of Eq. 8 with 2 to 4 layers of 4 or 6 units and Λ = 2 to 4 unique weights, all of their paths enumerated; gates of the "
    "net's own ReLUs. "
)
LEMMA_1 = Artefact(
    "lemma-1",
    "the output is a sum over configurations of unique weights",
    (),
    lemma_1_claims,
    SMALL
    + 'The text\'s "Λ ∈ Z" is read as ψ_r / Λ^r ∈ Z. Eqs. 9 and 10 hold for any net with shared weights; what needs A3 is that '
    "every configuration has ψ_r / Λ^r paths.",
    computations=(UNRAVELLED,),
)

# -- Lemma 2 ------------------------------------------------------------------------------------------------------------------


def lemma_2_claims(results: Results) -> list[Claim]:
    least = _ours(results, EVEN, lambda arrays: arrays["2/smallest"] * arrays["d"])
    most = _ours(results, EVEN, lambda arrays: arrays["2/largest"])
    ends = [
        (
            "lower, ψ_r² / (d Λ^2r): all weights leave every input equally often",
            [n for n in EVEN if n.startswith("even")],
            1.0,
        ),
        ("upper, ψ_r² / Λ^2r: each input has a weight of its own", ["by-input-Lambda-d"], 2.0),
    ]
    sampled = _ours(results, EVEN, lambda arrays: arrays["2/sampled"])
    return [
        one(
            "least E[ξ²] over its lower bound",
            "at least 1",
            f"at least 1 - {EXACT:g}, all lengths and configurations, 20 seeds",
            least,
            if_measured(least, lambda: holds(min(least.values) >= 1 - EXACT, f"{min(least.values):.3g}")),
        ),
        one(
            "largest E[ξ²] over its upper bound",
            "at most 1",
            f"at most 1 + {EXACT:g}, all lengths and configurations, 20 seeds",
            most,
            _at_most(most, 1 + EXACT),
        ),
        *(_attained(results, words, nets, times) for words, nets, times in ends),
        one(
            "mean of ξ² over sampled inputs against ‖α‖², largest difference in standard errors",
            0.0,
            f"at most {ERRORS:g}, all lengths and configurations, 20 seeds",
            sampled,
            _at_most(sampled, ERRORS),
        ),
        _without_assumptions(results),
    ]


def _attained(results: Results, words: str, nets: Sequence[str], times: float) -> Claim:
    """Is E[ξ²] so many times the lower bound for all configurations?"""
    ours = _ours(
        results,
        nets,
        lambda arrays: np.maximum(
            np.abs(arrays["2/smallest"] * arrays["d"] / times - 1),
            np.abs(arrays["2/largest"] * arrays["d"] / times - 1),
        ),
    )
    return one(
        f"distance from the bound: {words}", 0.0, f"at most {EXACT:g}: it is attained", ours, _at_most(ours, EXACT)
    )


def _without_assumptions(results: Results) -> Claim:
    readings = []
    cases = {
        "weights drawn for each connection (A3 on average)": (DRAWN, "2/smallest"),
        "inputs equal but for their signs": (EVEN, "2/opposite"),
    }
    for words, (nets, key) in cases.items():
        ours = _ours(results, nets, lambda arrays, key=key: arrays[key] * arrays["d"])
        readings.append(Reading(words, ours, described(ours.range)))
    return Claim(
        "least E[ξ²] over its lower bound, without an assumption",
        "",
        "none: below 1 it leaves the bounds",
        tuple(readings),
    )


LEMMA_2 = Artefact(
    "lemma-2",
    "the variance of a configuration's coefficient lies between ψ_r² / (d Λ^2r) and ψ_r² / Λ^2r",
    (),
    lemma_2_claims,
    SMALL
    + "ξ sums the inputs of a configuration's paths; E[ξ²] = ‖α‖², α_i the number of those that start at input i. This needs "
    'uncorrelated inputs: "dependent or not", which the text allows before the lemma, is not enough.',
    computations=(UNRAVELLED,),
)

# -- Lemma 3 ------------------------------------------------------------------------------------------------------------------


def lemma_3_claims(results: Results) -> list[Claim]:
    every = [*EVEN, *DRAWN]
    sampled = _ours(results, every, lambda arrays: arrays["3/sampled"])
    return [
        _loss(
            results, "absolute", "E_A|Y_x - Y| against |Y_x| - sign(Y_x) E_A[Y], relative", "|Y_x| at least every |Y|"
        ),
        _loss(results, "hinge", "E_A max(0, 1 - Y_x Y) against 1 - Y_x E_A[Y]", "no Y_x Y above 1"),
        _exact(
            results,
            "3/expectation",
            "E_A[Y] as a sum over paths with ρ^r, Eq. 11, against the net with every gate ρ",
            every,
        ),
        one(
            "mean of Y over sampled gates against that, in standard errors",
            0.0,
            f"at most {ERRORS:g}, 20 seeds",
            sampled,
            _at_most(sampled, ERRORS),
        ),
    ]


def _loss(results: Results, key: str, quantity: str, condition: str) -> Claim:
    every = [*EVEN, *DRAWN]
    within, beyond = (_ours(results, every, lambda arrays, end=end: arrays[f"3/{key}{end}"]) for end in ("", "_beyond"))
    return Claim(
        quantity,
        "C1 + C2 Y",
        f"at most {EXACT:g} where the label lies beyond all outputs, 20 seeds",
        (
            Reading(condition, within, _at_most(within, EXACT)),
            Reading("label as large as the median output", beyond, described(beyond.range)),
        ),
    )


LEMMA_3 = Artefact(
    "lemma-3",
    "hinge and absolute loss are C1 + C2 Y",
    (),
    lemma_3_claims,
    SMALL + "Gates of units open independently with probability ρ = 1/2. Exactly, with s the sign of Y_x: "
    "|Y_x - Y| = |Y_x| - s Y + 2 max(0, s Y - |Y_x|) and max(0, 1 - Y_x Y) = 1 - Y_x Y + max(0, Y_x Y - 1). Both are affine as "
    "long as no output goes beyond the label, and only then. For a positive label C2 is negative, not positive as printed; the "
    "law of Y over the inputs is symmetric, so that its sign does not matter.",
    computations=(UNRAVELLED,),
)
