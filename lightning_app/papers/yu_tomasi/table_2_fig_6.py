"""Table 2 and Fig. 6: plain and residual nets that start as the same function stay together, and how slowly they part."""

from functools import partial

import numpy as np

from lightning_app.papers.parts import Artefact
from lightning_app.papers.predicates import Factor, above, at_most, below, shown, tested
from lightning_app.papers.results import Results
from lightning_app.papers.verdicts import Basis, Claim
from lightning_app.papers.yu_tomasi.nets import ARMS, COST, DEPTHS, EQUIVALENT, NUMBERS, PLAIN, RESIDUAL, RISK, TRAINING
from lightning_app.papers.yu_tomasi.table_1 import (
    TABLE_1_IN_PRINT,
    apart_in_print,
    as_printed,
    by_convention,
    draw_against_depth,
    over_penalty,
    pair_in_print,
)
from lightning_app.plots import figures

TABLE_2_IN_PRINT = {
    (PLAIN, 20): (0.04132, 0.04183, 0.1121),
    (PLAIN, 32): (0.04880, 0.04936, 0.1085),
    (PLAIN, 44): (0.07345, 0.07407, 0.1159),
    **{(RESIDUAL, depth): TABLE_1_IN_PRINT[RESIDUAL, depth] for depth in DEPTHS},
}
SECOND_LAYER = 1e-16  # "some outputs of the second convolutional layer differ by about 10^-16" after one iteration
TIMES_IN_TABLE_2 = 50  # "Loss L is generally over 50 times more than weight decay term"
APART = (0.0009, 0.0022)  # E of independent residual nets by the print: those of Fig. 3 and of Table 1
ARE_APART = "residual nets of Fig. 3 and of Table 1 are .0009 and .0022 apart"
AS_CLOSE = {  # what the tests of closeness let pass; of L the paper prints no spread at all
    "L": "independent nets may be as close: the spread of L over seeds is not printed",
    "E": f"independent nets may be as close: {ARE_APART}",
}


def table_2_claims(results: Results) -> list[Claim]:
    """Table 2 as printed, "loss L is generally over 50 times more than weight decay term", and "after one iteration of
    training, some outputs of the second convolutional layer differ by about 10^-16 between the two networks"."""
    claims = []
    for depth in DEPTHS:
        run = EQUIVALENT[depth].name
        for arm in ARMS:
            final = partial(results.final, run, arm)
            for symbol, paper in zip(NUMBERS, TABLE_2_IN_PRINT[arm, depth]):
                claims.append(as_printed(symbol, arm, depth, paper, by_convention(symbol, final), seeds=False))
        claims += [_together(results, depth, "L"), _together(results, depth, "E"), _second_layer(results, run, depth)]
        for arm in ARMS:
            printed, test = f"over {TIMES_IN_TABLE_2} times", above(TIMES_IN_TABLE_2)
            ratios = over_penalty(partial(results.final, run, arm))
            claims.append(tested(f"L / (C - L), {arm}, depth {depth}", printed, test, ratios))
    return claims


def _together(results: Results, depth: int, symbol: str) -> Claim:
    """Do the twins end as close as the paper's did? Rounding apart they would end equal.

    Of E only where the paper's twins are closer than both pairs of independent nets that it prints.
    """
    quantity, paper = f"|{symbol} of plain - residual|, depth {depth}", pair_in_print(TABLE_2_IN_PRINT, symbol, depth)
    limit = abs(apart_in_print(TABLE_2_IN_PRINT, symbol, depth))
    plain, residual = (results.final(EQUIVALENT[depth].name, arm, NUMBERS[symbol]) for arm in ARMS)
    ours = (plain - residual).map(abs)
    if symbol == "E" and limit > max(APART):
        why = f"at most the paper's {limit:g} would pass for independent nets too; {ARE_APART}"
        return shown(quantity, paper, why, ours)
    test = at_most(limit, note="as far apart as the paper's")
    return tested(quantity, paper, test, ours, power=AS_CLOSE[symbol])


def _second_layer(results: Results, run: str, depth: int) -> Claim:
    """ "Some outputs" may be the largest difference or a typical one. Known after the second step, whatever follows."""
    keys = {"largest": "twin/layer02_after_one_step", "mean": "twin/layer02_after_one_step_mean"}
    ours = {convention: results.first(run, PLAIN, key) for convention, key in keys.items()}
    quantity = f"difference at the second convolution after one step, depth {depth}"
    return tested(quantity, SECOND_LAYER, Factor(SECOND_LAYER, 10), ours)


def draw_table_2(results: Results) -> figures.Figure:
    return draw_against_depth(results, lambda arm, depth: EQUIVALENT[depth].name, TABLE_2_IN_PRINT)


TABLE_2 = Artefact(
    "table-2",
    "equivalently initialised nets stay together",
    table_2_claims,
    COST
    + TRAINING
    + " Float64, one CPU; the plain net decays towards ρ. Changed after a look (2026-11-29): C and L / (C - L) have "
    "the reading with the whole penalty, too.",
    draw_table_2,
    runs=tuple(EQUIVALENT.values()),
)


def fig_6_claims(results: Results) -> list[Claim]:
    """ "Figure 6 supports this explanation by showing a very slow divergence over training time."

    "Very slow" is said, and drawn, of the losses. How far the weights may be apart the paper nowhere says: those rows are
    ours, with bounds of our own: max|T^-1(p) - r| after 200 steps and at the end, and how it grows.
    """
    run = EQUIVALENT[20].name
    steps, divergence = _divergence(results)
    after_200 = np.flatnonzero(steps == 200)
    absent = results.absent("fewer than 200 steps were made")
    early = results.known(float(divergence[after_200[0]])) if len(after_200) else absent
    plain, residual = (results.final(run, arm, RISK) for arm in ARMS)
    exponent, end = (results.final(run, PLAIN, f"twin/{name}") for name in ("growth/power_exponent", "divergence"))
    slow, near = at_most(2, note="rounding accumulates, it does not explode"), below(0.1, note="a tenth of an ID entry")
    close = at_most(0.0031, note="twice the paper's 0.04287 - 0.04132")
    apart, printed = (plain - residual).map(abs), pair_in_print(TABLE_2_IN_PRINT, "L", 20)
    after = at_most(1e-11, note="float64")
    return [
        tested("max|T^-1(p) - r| after 200 steps", "", after, early, basis=Basis.OURS),
        tested("growth exponent before the first ReLU sign flip", "", slow, exponent, basis=Basis.OURS),
        tested("max|T^-1(p) - r| at the end", "", near, end, basis=Basis.OURS),
        tested("|L of plain - residual| at the end", printed, close, apart, power=AS_CLOSE["L"]),
    ]


def _divergence(results: Results) -> list[np.ndarray]:
    """Steps and max|T^-1(p) - r| after each, over all epochs there are."""
    return results.history(EQUIVALENT[20].name, PLAIN, "twin", ("twin/steps/number", "twin/steps/divergence"))


def draw_fig_6(results: Results) -> figures.Figure:
    """Left and middle as in the paper, L of both nets and their difference; right the weights' divergence by step."""
    run = EQUIVALENT[20].name
    figure, ((left, middle, right),) = figures.canvas(1, 3)
    risks = {arm: results.curves(run, arm, RISK) for arm in ARMS}
    for arm, risk in risks.items():
        if not risk.empty:
            dash = "--" if arm == RESIDUAL else "-"
            alone = "o" if len(risk) == 1 else None  # a line needs two points to be seen
            left.semilogy(risk.index, risk.mean(axis=1), marker=alone, color=figures.colour(arm), label=arm, ls=dash)
    left.set(title="training loss L (nats)", xlabel="epoch")
    figures.legend(left)
    if not risks[PLAIN].empty:
        difference = (risks[PLAIN] - risks[RESIDUAL]).abs().mean(axis=1)
        middle.semilogy(difference.index, difference.where(difference > 0), color=figures.INK)
    middle.set(title="|L of plain - L of residual|", xlabel="epoch")
    steps, divergence = _divergence(results)
    right.loglog(steps, np.where(divergence > 0, divergence, np.nan), color=figures.INK)
    right.set(title="max|T⁻¹(p) - r|", xlabel="step")
    return figure


FIG_6 = Artefact(
    "fig-6",
    "losses of twins over training, and how slowly they diverge",
    fig_6_claims,
    "Float64, one CPU, identical batches; divergence max|T⁻¹(p) − r| over all parameters. " + TRAINING,
    draw_fig_6,
    runs=(EQUIVALENT[20],),
)
