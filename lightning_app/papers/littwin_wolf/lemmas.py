"""Lemmas 1 to 3 by exact enumeration of the paths of small nets, and by sampling. (Lemma 4 is in `weights`.)"""

import operator
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np

from lightning_app.common.late import torch
from lightning_app.papers.parts import Arrays, Artefact, Computation, Source, columns
from lightning_app.papers.predicates import above, at_least, at_most, noted, tested
from lightning_app.papers.results import Results
from lightning_app.papers.verdicts import Basis, Claim, Class, Varies

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
    return columns(_of_seed(shared, (p, n, d, Lambda), draws, seed) for seed in range(seeds)) | {"d": np.array(d)}


def _of_seed(shared: str, sizes: tuple[int, int, int, int], draws: int, seed: int) -> dict[str, float]:
    from lightning_app.theory.littwin_wolf import unravelled

    makes: dict[str, Callable[..., unravelled.SharedWeights]] = {
        "evenly": unravelled.evenly_shared,
        "by_input": unravelled.by_input,
        "unevenly": unravelled.unevenly_shared,
    }
    generator = torch.Generator().manual_seed(seed)
    net = makes[shared](*sizes, generator)
    w = torch.randn(net.Lambda, generator=generator, dtype=torch.float64)
    x = torch.randn(net.d, generator=generator, dtype=torch.float64)
    found: dict[int, Any] = {
        1: unravelled.lemma_1(net, w, x),
        2: unravelled.lemma_2(net, draws, generator),
        3: unravelled.lemma_3(net, w, x, 0.5, draws, generator),
    }
    return {f"{lemma}/{key}": value for lemma, each in found.items() for key, value in asdict(each).items()}


PIECES = {name: {**net, "draws": 2000, "seeds": 20} for name, net in (EVEN | DRAWN).items()}
UNRAVELLED = Computation("unravelled-nets", lemmas, PIECES)
ROUNDED = at_most(EXACT, each=True, of="net")
EVENLY = "A3 without remainder: each weight on equally many connections of every unit"
DRAWING = "A3 on average: each connection draws its weight"
SHARED = {EVENLY: EVEN, DRAWING: DRAWN}


def lemma_1_claims(results: Results) -> list[Claim]:
    """ "The output can be expressed after reindexing as" Eq. 10."""
    paths, reindexed = (results.each(UNRAVELLED, key) for key in ("1/paths", "1/reindexed"))
    uneven = {words: results.each(UNRAVELLED, "1/uneven", *nets) for words, nets in SHARED.items()}
    configurations = "sum over all configurations of weights, Eq. 10, against the output, difference"
    number = "number of paths of a configuration over ψ_r / Λ^r: largest difference from 1"
    repeated, none = "each configuration is repeated ψ_r / Λ^r times", at_most(0, each=True, of="net")
    return [
        tested("sum over all paths, Eq. 9, against the output, difference", "equal", ROUNDED, paths),
        tested(configurations, "equal", ROUNDED, reindexed),
        tested(number, repeated, none, uneven, varies=Varies.SETTING),
    ]


SMALL = (
    "Nets of Eq. 8 with 2 to 4 layers of 4 or 6 units and Λ = 2 to 4 unique weights, all of their paths enumerated; gates of the "
    "net's own ReLUs. "
)
LEMMA_1 = Artefact(
    "lemma-1",
    "the output is a sum over configurations of unique weights",
    lemma_1_claims,
    SMALL
    + 'The text\'s "Λ ∈ Z" is read as ψ_r / Λ^r ∈ Z. Eqs. 9 and 10 hold for any net with shared weights; what needs A3 is that '
    "every configuration has ψ_r / Λ^r paths. Changed after a look (2026-11-23): weights drawn for each connection, where A3 "
    "holds on average, are judged in this row, where they were described.",
    computations=(UNRAVELLED,),
    about=Class.FORMULA,
)


def lemma_2_claims(results: Results) -> list[Claim]:
    """Eq. 13: ψ_r² / (d Λ^2r) ≤ E[ξ²] ≤ ψ_r² / Λ^2r, "assuming A2 - A3 hold".

    A3 says "close to being evenly distributed", and the inputs may be "dependent or not": each reading is one way to take that.
    """
    nets = {f"{words}; independent inputs": of for words, of in SHARED.items()}
    lowest = {words: results.each(UNRAVELLED, lambda a: a["2/smallest"] * a["d"], *of) for words, of in nets.items()}
    signs = "A3 without remainder; inputs equal but for their signs"
    lowest[signs] = results.each(UNRAVELLED, lambda a: a["2/opposite"] * a["d"], *EVEN)
    highest = {words: results.each(UNRAVELLED, "2/largest", *of) for words, of in nets.items()}
    lengths = f"all lengths and configurations, {EXACT:g} is for rounding"
    at_bottom, at_top = at_least(1 - EXACT, True, lengths, "net"), at_most(1 + EXACT, True, lengths, "net")
    few = at_most(ERRORS, each=True, note="all lengths and configurations", of="net")
    mean = "mean of ξ² over sampled inputs against ‖α‖², largest difference in standard errors"
    least, largest = "least E[ξ²] over its lower bound", "largest E[ξ²] over its upper bound"
    return [
        tested(least, "(ψ_r / Λ^r)² / d ≤ E[ξ²]", at_bottom, lowest, varies=Varies.SETTING),
        tested(largest, "E[ξ²] ≤ (ψ_r / Λ^r)²", at_top, highest, varies=Varies.SETTING),
        *_bounds_attained(results),
        tested(mean, "", few, results.each(UNRAVELLED, "2/sampled", *EVEN), basis=Basis.OURS),
    ]


def _bounds_attained(results: Results) -> list[Claim]:
    """Is E[ξ²] once or twice the lower bound for all configurations? The proof says where."""

    def off(times: float) -> Callable[[Arrays], np.ndarray]:
        ends = ("2/smallest", "2/largest")
        return lambda arrays: np.max([np.abs(arrays[end] * arrays["d"] / times - 1) for end in ends], axis=0)

    lower = results.each(UNRAVELLED, off(1), *(name for name in EVEN if name.startswith("even")))
    upper = results.each(UNRAVELLED, off(2), "by-input-Lambda-d")
    distance = "distance from the bound"
    evenly = f"{distance}: lower, ψ_r² / (d Λ^2r): all weights leave every input equally often"
    by_input = f"{distance}: upper, ψ_r² / Λ^2r: each input has a weight of its own"
    return [
        tested(evenly, "achieves its minimal value", ROUNDED, lower),
        tested(by_input, "the maximum value is achieved", ROUNDED, upper),
    ]


LEMMA_2 = Artefact(
    "lemma-2",
    "the variance of a configuration's coefficient lies between ψ_r² / (d Λ^2r) and ψ_r² / Λ^2r",
    lemma_2_claims,
    SMALL
    + "ξ sums the inputs of a configuration's paths; E[ξ²] = ‖α‖², α_i the number of those that start at input i. This needs "
    'uncorrelated inputs: "dependent or not", which the text allows before the lemma, is not enough. Changed after a look '
    "(2026-11-23): uneven weights and dependent inputs, which the lemma's words allow, are judged, where they were described.",
    computations=(UNRAVELLED,),
    about=Class.FORMULA,
)

LOSSES = {
    "absolute": "E_A|Y_x - Y| against |Y_x| - sign(Y_x) E_A[Y], relative",
    "hinge": "E_A max(0, 1 - Y_x Y) against 1 - Y_x E_A[Y]",
}
CONDITIONS = {"absolute": "|Y_x| at least every |Y|", "hinge": "no Y_x Y above 1"}


def lemma_3_claims(results: Results) -> list[Claim]:
    """ "Both the losses can be generalized to a distribution of the form" C1 + C2 Y, "where C1, C2 are positive constants"."""
    any_label = "any label: as large as the median output"
    power = "an identity under this condition, which is ours: it checks the computation only"
    expectation = "E_A[Y] as a sum over paths with ρ^r, Eq. 11, against the net with every gate ρ, difference"
    sampled, few = "mean of Y over sampled gates against that, in standard errors", at_most(ERRORS, each=True, of="net")
    claims = []
    for key, quantity in LOSSES.items():
        claims.append(tested(quantity, "C1 + C2 Y", ROUNDED, {any_label: results.each(UNRAVELLED, f"3/{key}_beyond")}))
    for key, condition in CONDITIONS.items():
        quantity, ours = f"{LOSSES[key]}, label beyond all outputs", {condition: results.each(UNRAVELLED, f"3/{key}")}
        claims.append(tested(quantity, "", ROUNDED, ours, basis=Basis.OURS, power=power))
    return [
        *claims,
        _sign(results),
        tested(expectation, "equal", ROUNDED, results.each(UNRAVELLED, "3/expectation")),
        tested(sampled, "", few, results.each(UNRAVELLED, "3/sampled"), basis=Basis.OURS),
    ]


def _sign(results: Results) -> Claim:
    """C2 as the identity has it, where it was found to hold; else not a number."""

    def sign_of_c2(arrays: Arrays) -> np.ndarray:
        """Of a positive label."""
        held = (arrays["3/absolute"] <= EXACT) & (arrays["3/hinge"] <= EXACT)
        return np.where(held, -1.0, np.nan)

    positive = results.each(UNRAVELLED, sign_of_c2)
    negative = noted("a negative label", positive.map(operator.neg), "positive as printed")
    test = above(0, each=True, note="C2 is -sign(Y_x) of the absolute loss, -Y_x of the hinge loss", of="net")
    quantity = "sign of C2 of both losses, label beyond all outputs"
    return tested(quantity, "C1, C2 are positive constants", test, {"a positive label": positive}, negative)


LEMMA_3 = Artefact(
    "lemma-3",
    "hinge and absolute loss are C1 + C2 Y",
    lemma_3_claims,
    SMALL + "Gates of units open independently with probability ρ = 1/2. Exactly, with s the sign of Y_x: "
    "|Y_x - Y| = |Y_x| - s Y + 2 max(0, s Y - |Y_x|) and max(0, 1 - Y_x Y) = 1 - Y_x Y + max(0, Y_x Y - 1). Both are affine as "
    "long as no output goes beyond the label, and only then. For a positive label C2 is negative, not positive as printed; the "
    "law of Y over the inputs is symmetric, so that its sign does not matter. "
    "Changed after a look (2026-11-23): labels that outputs go beyond are judged, where they were described: the paper names no "
    "condition. Labels beyond all outputs have rows of their own, as an identity of ours, and so has the sign of C2.",
    computations=(UNRAVELLED,),
    about=Class.FORMULA,
)
