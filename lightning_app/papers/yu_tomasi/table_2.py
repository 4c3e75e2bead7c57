"""Table 2: plain and residual nets that start as the same function stay together."""

from matplotlib.figure import Figure

from lightning_app.papers.artefact import Artefact
from lightning_app.papers.predicates import Factor, above, at_most, shown, tested
from lightning_app.papers.results import Results
from lightning_app.papers.verdicts import Claim, Class
from lightning_app.papers.yu_tomasi import table_1
from lightning_app.papers.yu_tomasi.nets import ARMS, COST, DEPTHS, EQUIVALENT, NUMBERS, PLAIN, RESIDUAL, RISK, TRAINING

TABLE_2_IN_PRINT = {
    (PLAIN, 20): (0.04132, 0.04183, 0.1121),
    (PLAIN, 32): (0.04880, 0.04936, 0.1085),
    (PLAIN, 44): (0.07345, 0.07407, 0.1159),
    **{(RESIDUAL, depth): table_1.TABLE_1_IN_PRINT[RESIDUAL, depth] for depth in DEPTHS},
}
SECOND_LAYER = 1e-16  # "some outputs of the second convolutional layer differ by about 10^-16" after one iteration
TIMES_IN_TABLE_2 = 50  # "Loss L is generally over 50 times more than weight decay term"
APART = (0.0009, 0.0022)  # E of independent residual nets by the print: those of Fig. 3 and of Table 1
AS_CLOSE = {  # what the tests of closeness let pass; of L the paper prints no spread at all
    "L": "independent nets may be as close: the spread of L over seeds is not printed",
    "E": "independent nets may be as close: residual nets of Fig. 3 and of Table 1 are .0009 and .0022 apart",
}


def table_2_claims(results: Results) -> list[Claim]:
    """Table 2 as printed, "loss L is generally over 50 times more than weight decay term", and "after one iteration of
    training, some outputs of the second convolutional layer differ by about 10^-16 between the two networks"."""
    claims = []
    for depth in DEPTHS:
        run = EQUIVALENT[depth].name
        for arm in ARMS:
            for (symbol, name), paper in zip(NUMBERS.items(), TABLE_2_IN_PRINT[arm, depth]):
                claims.append(table_1.as_printed(symbol, arm, depth, paper, results.final(run, arm, name), seeds=False))
        claims += [_together(results, depth, "L"), _together(results, depth, "E"), _second_layer(results, run, depth)]
    for arm in ARMS:
        risk, cost = (results.final(EQUIVALENT[20].name, arm, name) for name in (RISK, "train/cost_paper"))
        printed, test = f"over {TIMES_IN_TABLE_2} times", above(TIMES_IN_TABLE_2)
        claims.append(tested(f"L / (C - L), {arm}, depth 20", printed, test, risk / (cost - risk)))
    return claims


def _together(results: Results, depth: int, symbol: str) -> Claim:
    """Do the twins end as close as the paper's did? Rounding apart they would end equal.

    Of E only where the paper's twins are closer than both pairs of independent nets that it prints.
    """
    quantity, paper = (
        f"|{symbol} of plain - residual|, depth {depth}",
        table_1.pair_in_print(TABLE_2_IN_PRINT, symbol, depth),
    )
    limit = abs(table_1.apart_in_print(TABLE_2_IN_PRINT, symbol, depth))
    plain, residual = (results.final(EQUIVALENT[depth].name, arm, NUMBERS[symbol]) for arm in ARMS)
    ours = (plain - residual).map(abs)
    if symbol == "E" and limit > max(APART):
        why = (
            f"at most the paper's {limit:g} would pass for independent nets too; residual nets of Fig. 3 and of "
            "Table 1 are .0009 and .0022 apart"
        )
        return shown(quantity, paper, why, ours)
    test = at_most(limit, note="as far apart as the paper's")
    return tested(quantity, paper, test, ours, power=AS_CLOSE[symbol])


def _second_layer(results: Results, run: str, depth: int) -> Claim:
    """ "Some outputs" may be the largest difference or a typical one. Known after the second step, whatever follows."""
    keys = {"largest": "twin/layer02_after_one_step", "mean": "twin/layer02_after_one_step_mean"}
    ours = {convention: results.first(run, PLAIN, key) for convention, key in keys.items()}
    quantity = f"difference at the second convolution after one step, depth {depth}"
    return tested(quantity, SECOND_LAYER, Factor(SECOND_LAYER, 10), ours)


def draw_table_2(results: Results) -> Figure:
    return table_1.draw_against_depth(results, lambda arm, depth: EQUIVALENT[depth].name, TABLE_2_IN_PRINT)


TABLE_2 = Artefact(
    "table-2",
    "equivalently initialised nets stay together",
    table_2_claims,
    COST + TRAINING + " Float64, one CPU; the plain net decays towards ρ.",
    draw_table_2,
    runs=tuple(EQUIVALENT.values()),
    about=Class.TRAINED,
)
