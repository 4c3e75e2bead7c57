"""Claims of the papers about trained nets: the numbers as printed, and the test of each, from samples over seeds.

Where the samples come from is not said here: ``reproduce`` trains what an artefact needs, the report takes the nets that
are there. Both judge by these tests, whose tolerances were fixed before any run.
"""

import math
from collections.abc import Mapping, Sequence

from lightning_app.checks import all_of, if_measured, within, within_factor, within_sds, within_share
from lightning_app.verdicts import Claim, Reading, Sample, holds, one

__all__ = [
    "CUSHIONS",
    "DEPTHS",
    "INTERLAYER",
    "NUMBERS",
    "PLAIN",
    "RESIDUAL",
    "TABLE_1",
    "as_printed",
    "cushion_exceptions",
    "cushion_of_layer_10",
    "degradation",
    "gaps",
    "id_share",
    "interlayer_gap",
    "interlayer_mean",
    "loss_over_penalty",
    "quotient",
]

PLAIN, RESIDUAL = "plain", "residual"
DEPTHS = (20, 32, 44)


def quotient(numerator: float, denominator: float) -> float:
    """NaN where there is nothing to divide by."""
    return numerator / denominator if denominator else math.nan


# -- Yu & Tomasi, Table 1: loss, cost, error --------------------------------------------------------------------------------

# (L, C, E) as printed
TABLE_1 = {
    (PLAIN, 20): (0.07227, 0.07304, 0.1263),
    (PLAIN, 32): (0.1225, 0.1234, 0.1349),
    (PLAIN, 44): (0.4950, 0.4962, 0.2213),
    (RESIDUAL, 20): (0.04287, 0.04338, 0.1131),
    (RESIDUAL, 32): (0.04847, 0.04903, 0.1143),
    (RESIDUAL, 44): (0.07397, 0.07459, 0.1182),
}
NUMBERS = {"L": "train/risk", "C": "train/cost_paper", "E": "test/error"}
DEGRADATION = {PLAIN: 6.85, RESIDUAL: 1.73}
COSTS = {"C as printed: penalty / 128": "train/cost_paper", "C as trained": "train/cost"}


def as_printed(symbol: str, arm: str, depth: int, paper: float, ours: Sample, seeds: bool = True) -> Claim:
    """L, C or E of one net against the print.

    Args:
        seeds: whether there are several, whose spread counts.
    """
    close = within(ours, paper, 0.015) if symbol == "E" else within_factor(ours, paper, 1.5)
    spread = [within_sds(ours, paper, 3)] if seeds else []
    words = "1.5 points" if symbol == "E" else "a factor 1.5"
    test = f"within 3 sd of our seeds, and within {words}" if seeds else f"within {words}"
    return one(f"{symbol}, {arm}, depth {depth}", paper, test, ours, all_of(*spread, close))


def gaps(symbol: str, differences: Mapping[int, Sample]) -> list[Claim]:
    """L or E of plain minus residual: residual better at every depth, and by more the deeper.

    Args:
        differences: by depth, the shallowest first.
    """
    claims, last, before = [], None, "0"
    for depth, apart in differences.items():
        ours = apart if last is None else apart.map(lambda own, _: own, last)  # marked if either is incomplete
        growth = apart if last is None else apart.map(lambda own, shallower: own - shallower, last)
        claims.append(_gap(symbol, depth, ours, growth, before))
        last, before = apart, f"that of depth {depth}"
    return claims


def _gap(symbol: str, depth: int, ours: Sample, growth: Sample, words: str) -> Claim:
    larger = if_measured(growth, lambda: holds(growth.mean > 0, f"{ours.mean:.3g} <= {ours.mean - growth.mean:.3g}"))
    place = "LCE".index(symbol)
    printed = TABLE_1[PLAIN, depth][place] - TABLE_1[RESIDUAL, depth][place] if depth in DEPTHS else "> 0"
    return one(f"{symbol} of plain - residual, depth {depth}", printed, f"above {words}", ours, larger)


def degradation(plain: Sample, residual: Sample) -> list[Claim]:
    """L(44) / L(20): large for plain nets, small for residual ones."""
    both = (
        plain.map(lambda p, _: p, residual),
        residual.map(lambda r, _: r, plain),
    )  # each marked if either is incomplete
    beyond = plain.map(lambda p, r: p - 2 * r, residual)
    apart = if_measured(beyond, lambda: holds(beyond.mean > 0, "not twice as large"))
    test = "ratio of plain more than twice that of residual"
    return [
        one(f"L(44) / L(20), {arm}", DEGRADATION[arm], test, ours, apart)
        for arm, ours in zip((PLAIN, RESIDUAL), both, strict=True)
    ]


def loss_over_penalty(arm: str, depth: int, risk: Sample, costs: Mapping[str, Sample]) -> Claim:
    """L over 80 times the weight decay term: true of the cost as the tables count it, with 1 / B.

    Args:
        costs: by the name under which each of `COSTS` is logged.
    """
    readings = []
    for convention, name in COSTS.items():
        ratio = risk.map(lambda loss, cost: quotient(loss, cost - loss), costs[name])
        large = if_measured(ratio, lambda r=ratio: holds(r.mean > 80, f"{r.mean:.3g}"))
        readings.append(Reading(convention, ratio, large))
    loss, cost, _ = TABLE_1.get((arm, depth), (math.nan,) * 3)
    paper = "> 80" if math.isnan(loss) else loss / (cost - loss)
    return Claim(f"L / (C - L), {arm}, depth {depth}", paper, "more than 80", tuple(readings))


# -- Yu & Tomasi, Table 3: weights -----------------------------------------------------------------------------------------

ID_SHARE = {PLAIN: ("p", 0.1029), RESIDUAL: ("t", 0.76)}  # symbol, share


def id_share(arm: str, ours: Sample) -> Claim:
    """How much of the mass of large weights is in the ID entries after training, depth 32."""
    symbol, paper = ID_SHARE[arm]
    test = "within 10 %"
    return one(f"ID entries / |w| ≥ 0.25, {symbol}_200", paper, test, ours, within_share(ours, paper, 0.1))


# -- Yu & Tomasi, Fig. 3: layer cushions -----------------------------------------------------------------------------------

CUSHIONS = {  # what A is in a residual layer -> the ending of its keys
    "identity in A x, not in ||A|| (the paper's)": "",
    "identity in both": "_transferred",
    "identity in neither": "_branch",
}
EXCEPTIONS = 2  # "This pattern holds for all the layers, with the exception of 2 layers"


def cushion_of_layer_10(depth: int, ratios: Mapping[str, Sample]) -> Claim:
    """Residual over plain, by reading: layer 10's cushions lie to the right."""
    readings = tuple(
        Reading(convention, ours, if_measured(ours, lambda o=ours: holds(min(o.values) > 1, f"ratio {o.mean:.3g}")))
        for convention, ours in ratios.items()
    )
    quantity = f"median cushion of layer 10, residual / plain, depth {depth}"
    return Claim(quantity, "> 1", "above 1 in every seed", readings)


def cushion_exceptions(depth: int, counts: Mapping[str, Sample]) -> Claim:
    """Layers of which this is not so, by reading."""
    readings = tuple(
        Reading(convention, ours, if_measured(ours, lambda o=ours: holds(o.mean <= EXCEPTIONS, f"{o.mean:.3g} layers")))
        for convention, ours in counts.items()
    )
    quantity = f"layers where the residual median is not larger, depth {depth}"
    return Claim(quantity, float(EXCEPTIONS), "at most 2 on average over seeds", readings)


# -- Yu & Tomasi, section 5: interlayer cushions of full nets ----------------------------------------------------------------

INTERLAYER = {RESIDUAL: 0.20, PLAIN: 2.7e-7}  # means; standard deviations .0024 and 2.4e-8


def interlayer_mean(arm: str, samples: Mapping[str, Sample]) -> Claim:
    """Of block 5 of 9, by convention."""
    paper, factor = INTERLAYER[arm], 1.5 if arm == RESIDUAL else 3.0
    readings = tuple(
        Reading(convention, ours, within_factor(ours, paper, factor)) for convention, ours in samples.items()
    )
    return Claim(f"interlayer cushion of block 5 of 9, {arm}", paper, f"within a factor {factor:g}", readings)


def interlayer_gap(ratios: Mapping[str, Sample]) -> Claim:
    """ "Much bigger", by mode of BatchNorm: the two n differ by a factor that is the same for both nets."""
    readings: Sequence[Reading] = [
        Reading(mode, ratio, if_measured(ratio, lambda r=ratio: holds(r.mean > 10, f"{r.mean:.3g}")))
        for mode, ratio in ratios.items()
    ]
    return Claim("residual / plain", INTERLAYER[RESIDUAL] / INTERLAYER[PLAIN], "more than 10", tuple(readings))
