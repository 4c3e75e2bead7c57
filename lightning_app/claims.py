"""Claims of the papers about trained nets: the numbers as printed, and the test of each, from samples over seeds.

Where the samples come from is not said here: ``reproduce`` trains what an artefact needs, the report takes the nets that
are there. Both judge by these tests, whose tolerances were fixed before any run.

The column of the paper holds what it prints: a number, or its words where it has none. Orderings and ratios without unit
are marked (``ratio``): they can be judged at reduced scale too.
"""

import math
from collections.abc import Mapping

from lightning_app.checks import All, Factor, NextDraw, Share, Within, above, at_most, judged, tested
from lightning_app.verdicts import Claim, Class, Sample

__all__ = [
    "CUSHIONS",
    "DEPTHS",
    "INTERLAYER",
    "NUMBERS",
    "PLAIN",
    "RESIDUAL",
    "TABLE_1",
    "Table",
    "apart_in_print",
    "as_printed",
    "cushion_exceptions",
    "cushion_of_layer_10",
    "degradation",
    "gaps",
    "id_share",
    "interlayer_gap",
    "interlayer_mean",
    "loss_over_penalty",
    "over_penalty",
    "pair_in_print",
    "quotient",
]

PLAIN, RESIDUAL = "plain", "residual"
DEPTHS = (20, 32, 44)


def quotient(numerator: float, denominator: float) -> float:
    """NaN where there is nothing to divide by."""
    return numerator / denominator if denominator else math.nan


def over_penalty(loss: float, cost: float) -> float:
    """L / (C - L)."""
    return quotient(loss, cost - loss)


# -- Yu & Tomasi, Tables 1 and 2: loss, cost, error -------------------------------------------------------------------------

Table = Mapping[tuple[str, int], tuple[float, float, float]]  # arm, depth -> (L, C, E)


def _pair(table: Table, symbol: str, depth: int) -> tuple[float, float]:
    """Plain, residual."""
    place = "LCE".index(symbol)
    return table[PLAIN, depth][place], table[RESIDUAL, depth][place]


def pair_in_print(table: Table, symbol: str, depth: int) -> str:
    """What the paper prints of plain and of residual nets, to its four digits.

    >>> pair_in_print(TABLE_1, "L", 44)
    '0.4950 and 0.07397'
    """
    plain, residual = _pair(table, symbol, depth)
    return f"{plain:#.4g} and {residual:#.4g}"


def apart_in_print(table: Table, symbol: str, depth: int) -> float:
    """Plain minus residual, as exact as the print. Arithmetic of ours: it belongs to a test, not to the paper's column.

    >>> apart_in_print(TABLE_1, "L", 20)
    0.0294
    """
    plain, residual = _pair(table, symbol, depth)
    return round(plain - residual, 6)


# -- Table 1 ----------------------------------------------------------------------------------------------------------------

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


FAMILY = len(TABLE_1) * len(NUMBERS)  # of tests against a printed number: 18


def as_printed(symbol: str, arm: str, depth: int, paper: float, ours: Sample, seeds: bool = True) -> Claim:
    """L, C or E of one net against the print: close to it, and within what one more seed may give.

    The prediction interval took the place of "within 3 sd of our seeds" before any run of Table 1. If the print is one more
    draw of our seeds' distribution, 3 sd of three seeds fail with 12 % (Student's t with 2 degrees of freedom beyond
    3 / √(4/3)), and at least one of 12 independent numbers with 79 %; all 18 intervals hold with 95 %.

    Args:
        seeds: whether there are several, whose spread counts.
    """
    close = Within(paper, 0.015, "1.5 points") if symbol == "E" else Factor(paper, 1.5)
    draw = NextDraw(paper, FAMILY)
    test = All(draw, close) if seeds else close
    power = (
        f"with three seeds the prediction interval is ± {draw.widths(3):.0f} of their standard deviations: mostly "
        f"{'the 1.5 points decide' if symbol == 'E' else 'the factor decides'}"
    )
    quantity = f"{symbol}, {arm}, depth {depth}"
    return tested(quantity, paper, test, ours, about=Class.TRAINED, power=power if seeds else "")


def gaps(symbol: str, differences: Mapping[int, Sample]) -> list[Claim]:
    """L or E of plain minus residual: residual better at every depth, and by more the deeper.

    Args:
        differences: by depth, the shallowest first.
    """
    claims, last, shallower = [], None, None
    for depth, apart in differences.items():
        ours = apart if last is None else apart.map(lambda own, _: own, last)  # marked if either is incomplete
        growth = apart if last is None else apart.map(lambda own, less: own - less, last)
        claims.append(_gap(symbol, depth, shallower, ours, growth))
        last, shallower = apart, depth
    return claims


def _gap(symbol: str, depth: int, shallower: int | None, ours: Sample, growth: Sample) -> Claim:
    test = above(0, note=_of_a_gap(symbol, depth, shallower))
    printed = pair_in_print(TABLE_1, symbol, depth) if depth in DEPTHS else "smaller"  # of residual nets
    readings = (judged("", growth, test, shown=ours),)
    quantity = f"{symbol} of plain - residual, depth {depth}"
    return Claim(quantity, printed, str(test), readings, about=Class.TRAINED, ratio=True)


def _of_a_gap(symbol: str, depth: int, shallower: int | None) -> str:
    """What is above 0, and what it is by the printed numbers, where there are any.

    >>> _of_a_gap("L", 32, 20), _of_a_gap("L", 56, 44)
    ('the difference less that of depth 20; by the print 0.04463', 'the difference less that of depth 44')
    """
    compared = [] if shallower is None else [shallower]
    words = [f"the difference less that of depth {each}" for each in compared]
    if {depth, *compared} <= set(DEPTHS):
        by_print = apart_in_print(TABLE_1, symbol, depth) - sum(
            apart_in_print(TABLE_1, symbol, each) for each in compared
        )
        words.append(f"by the print {by_print:.6g}")
    return "; ".join(words)


def degradation(plain: Sample, residual: Sample) -> list[Claim]:
    """L(44) / L(20): large for plain nets, small for residual ones."""
    both = (
        plain.map(lambda p, _: p, residual),
        residual.map(lambda r, _: r, plain),
    )  # each marked if either is incomplete
    beyond = plain.map(lambda p, r: p - 2 * r, residual)
    test = above(0, note="the ratio of plain less twice that of residual")
    return [
        Claim(
            f"L(44) / L(20), {arm}",
            DEGRADATION[arm],
            str(test),
            (judged("", beyond, test, shown=ours),),
            about=Class.TRAINED,
            ratio=True,
        )
        for arm, ours in zip((PLAIN, RESIDUAL), both, strict=True)
    ]


TIMES_IN_TABLE_1 = 80  # "Loss L is generally over 80 times more than the weight decay term"


def loss_over_penalty(arm: str, depth: int, risk: Sample, costs: Mapping[str, Sample]) -> Claim:
    """L over 80 times the weight decay term: true of the cost as the tables count it, with 1 / B.

    Not for reduced scale: shorter training leaves a larger L.

    Args:
        costs: by the name under which each of `COSTS` is logged.
    """
    ratios = {convention: risk.map(over_penalty, costs[name]) for convention, name in COSTS.items()}
    quantity = f"L / (C - L), {arm}, depth {depth}"
    printed, test = f"over {TIMES_IN_TABLE_1} times", above(TIMES_IN_TABLE_1)
    return tested(quantity, printed, test, ratios, about=Class.TRAINED)


# -- Yu & Tomasi, Table 3: weights -----------------------------------------------------------------------------------------

ID_SHARE = {PLAIN: ("p", 0.1029), RESIDUAL: ("t", 0.76)}  # symbol, share


def id_share(arm: str, ours: Sample) -> Claim:
    """How much of the mass of large weights is in the ID entries after training, depth 32."""
    symbol, paper = ID_SHARE[arm]
    quantity = f"ID entries / |w| ≥ 0.25, {symbol}_200"
    return tested(quantity, paper, Share(paper, 0.1), ours, about=Class.TRAINED, ratio=True)


# -- Yu & Tomasi, Fig. 3: layer cushions -----------------------------------------------------------------------------------

CUSHIONS = {  # what A is in a residual layer -> the ending of its keys
    "identity in A x, not in ||A|| (the paper's)": "",
    "identity in both": "_transferred",
    "identity in neither": "_branch",
}
EXCEPTIONS = 2  # "This pattern holds for all the layers, with the exception of 2 layers"


def cushion_of_layer_10(depth: int, ratios: Mapping[str, Sample]) -> Claim:
    """Residual over plain, by reading: layer 10's cushions lie to the right ("the red distribution is to the right")."""
    quantity = f"median cushion of layer 10, residual / plain, depth {depth}"
    return tested(quantity, "to the right", above(1, each=True), ratios, about=Class.TRAINED, ratio=True)


def cushion_exceptions(depth: int, counts: Mapping[str, Sample]) -> Claim:
    """Layers of which this is not so, by reading."""
    test = at_most(EXCEPTIONS, note="on average over seeds")
    quantity = f"layers where the residual median is not larger, depth {depth}"
    return tested(quantity, float(EXCEPTIONS), test, counts, about=Class.TRAINED, ratio=True)


# -- Yu & Tomasi, section 5: interlayer cushions of full nets ----------------------------------------------------------------

INTERLAYER = {RESIDUAL: 0.20, PLAIN: 2.7e-7}  # means; standard deviations .0024 and 2.4e-8


def interlayer_mean(arm: str, samples: Mapping[str, Sample]) -> Claim:
    """Of block 5 of 9, by convention."""
    test = Factor(INTERLAYER[arm], 1.5 if arm == RESIDUAL else 3.0)
    return tested(f"interlayer cushion of block 5 of 9, {arm}", INTERLAYER[arm], test, samples, about=Class.TRAINED)


def interlayer_gap(ratios: Mapping[str, Sample]) -> Claim:
    """ "Much bigger", by mode of BatchNorm: the two n differ by a factor that is the same for both nets."""
    power = (
        "on one sample any plain block passes, trained or not: J x is zero but for ε / (var + ε), whatever the weights"
    )
    return tested("residual / plain", "much bigger", above(10), ratios, about=Class.TRAINED, ratio=True, power=power)
