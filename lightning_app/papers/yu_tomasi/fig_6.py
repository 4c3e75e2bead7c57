"""Fig. 6: how slowly equivalently initialised nets part."""

import numpy as np
from matplotlib.figure import Figure

from lightning_app.papers.artefact import Artefact
from lightning_app.papers.predicates import at_most, below, tested
from lightning_app.papers.results import Results
from lightning_app.papers.verdicts import Basis, Claim, Class
from lightning_app.papers.yu_tomasi.nets import ARMS, EQUIVALENT, PLAIN, RESIDUAL, RISK, TRAINING
from lightning_app.papers.yu_tomasi.table_1 import pair_in_print
from lightning_app.papers.yu_tomasi.table_2 import AS_CLOSE, TABLE_2_IN_PRINT
from lightning_app.plots import figures


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
    weights = [
        ("max|T^-1(p) - r| after 200 steps", at_most(1e-11, note="float64"), early),
        (
            "growth exponent before the first ReLU sign flip",
            at_most(2, note="rounding accumulates, it does not explode"),
            results.final(run, PLAIN, "twin/growth/power_exponent"),
        ),
        (
            "max|T^-1(p) - r| at the end",
            below(0.1, note="a tenth of an ID entry"),
            results.final(run, PLAIN, "twin/divergence"),
        ),
    ]
    close = at_most(0.0031, note="twice the paper's 0.04287 - 0.04132")
    apart, printed = (plain - residual).map(abs), pair_in_print(TABLE_2_IN_PRINT, "L", 20)
    return [
        *(tested(quantity, "", test, ours, basis=Basis.OURS) for quantity, test, ours in weights),
        tested("|L of plain - residual| at the end", printed, close, apart, power=AS_CLOSE["L"]),
    ]


def _divergence(results: Results) -> list[np.ndarray]:
    """Steps and max|T^-1(p) - r| after each, over all epochs there are."""
    return results.history(EQUIVALENT[20].name, PLAIN, "twin", ("twin/steps/number", "twin/steps/divergence"))


def draw_fig_6(results: Results) -> Figure:
    """Left and middle as in the paper, L of both nets and their difference; right the weights' divergence by step."""
    run = EQUIVALENT[20].name
    figure, ((left, middle, right),) = figures.canvas(1, 3)
    risks = {arm: results.curves(run, arm, RISK) for arm in ARMS}
    for arm, risk in risks.items():
        if not risk.empty:
            dash = "--" if arm == RESIDUAL else "-"
            left.semilogy(risk.index, risk.mean(axis=1), color=figures.colour(arm), label=arm, ls=dash)
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
    about=Class.TRAINED,
)
