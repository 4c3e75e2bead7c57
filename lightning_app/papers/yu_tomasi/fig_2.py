"""Fig. 2: risk and error over epochs, thirteen seeds of each kind."""

import math

import numpy as np

from lightning_app.papers.parts import PAPER, REDUCED, SMOKE, Artefact
from lightning_app.papers.predicates import IntervalAbove, epochs_to, matched, noted, tested
from lightning_app.papers.results import Results
from lightning_app.papers.verdicts import Claim, Sample
from lightning_app.papers.yu_tomasi.nets import ARMS, ERROR, PLAIN, RESIDUAL, RISK, TRAINING
from lightning_app.papers.yu_tomasi.nets import FIG_2 as RUN
from lightning_app.plots import figures
from lightning_app.statistics.paired import error_at_risk, paired

# Risks at which the two kinds are compared, by scale. Those of reduced scale were fixed before any such run.
LEVELS = {PAPER: (0.5, 0.2, 0.1), REDUCED: (1.0, 0.7, 0.5), SMOKE: (0.5, 0.2, 0.1)}


def fig_2_claims(results: Results) -> list[Claim]:
    """ "As shown in Figure 2, with same training loss, the ResNets achieve smaller error." They "train faster": levels of
    risk are reached in fewer epochs."""
    risks, errors = ({arm: results.curves(RUN.name, arm, name) for arm in ARMS} for name in (RISK, ERROR))
    claims = []
    for level in LEVELS[results.scale]:
        error = {arm: matched(errors[arm], risks[arm], level) for arm in ARMS}
        epochs = {arm: epochs_to(risks[arm], level) for arm in ARMS}
        claims.append(_paired(results, error, f"E of plain minus residual at L = {level}", "smaller error"))
        claims.append(_paired(results, epochs, f"epochs to L = {level}, plain minus residual", "in fewer epochs"))
    return [*claims, _at_end(results, "E", ERROR), _at_end(results, "L", RISK)]


def _paired(results: Results, values: dict[str, list[float]], quantity: str, paper: str) -> Claim:
    """Plain minus residual seed by seed; a seed that never gets there has no difference, and that leaves the test open."""
    differences = [p - r for p, r in zip(values[PLAIN], values[RESIDUAL])]
    reached = tuple(d for d in differences if not math.isnan(d))
    never = "" if len(reached) == len(differences) else "some nets never reach this risk"
    arms = [noted(arm, results.known(*values[arm])) for arm in ARMS]
    ours = Sample(reached, results.incomplete(RUN.name) or never)
    return tested(quantity, paper, IntervalAbove(), ours, *arms, ratio=True)


def _at_end(results: Results, symbol: str, name: str) -> Claim:
    """What the figure shows at its right edge, and the paper gives no number for."""
    plain, residual = (results.final(RUN.name, arm, name) for arm in ARMS)
    differences = plain - residual
    found = paired(differences.values, [0.0] * differences.count)
    arms = [noted(arm, ours) for arm, ours in zip(ARMS, (plain, residual))]
    readings = (noted("", differences, str(found) if found.count else ""), *arms)
    quantity, test = f"{symbol} of plain minus residual, final epoch", "none: shown in the figure only"
    return Claim(quantity, "", test, readings)


def draw_fig_2(results: Results) -> figures.Figure:
    """L and E over epochs as in the paper; E against L and its difference, plain minus residual: "with same training loss"."""
    figure, ((left, right), (against, difference)) = figures.canvas(2, 2)
    for arm in ARMS:
        risk, error = (results.curves(RUN.name, arm, name) for name in (RISK, ERROR))
        if not risk.empty:
            figures.band(left, risk, arm, f"{arm}, {risk.shape[1]} seeds: mean, ± sd, extremes")
            figures.band(right, error, arm, arm)
    _draw_at_risk(results, against, difference)
    left.set(title="training risk L (nats)", xlabel="epoch", yscale="log")
    right.set(title="test error E", xlabel="epoch")
    against.set(title="E against L: mean, thin each seed", xlabel="L (nats)", ylabel="E", xscale="log")
    difference.set(title="E of plain minus residual at equal L", xlabel="L (nats)", xscale="log")
    figures.legend(left, difference)
    return figure


def _draw_at_risk(results: Results, against: figures.Axes, difference: figures.Axes) -> None:
    """Nothing where no run has reached anything yet."""
    errors = error_at_risk(*(_risks_and_errors(results, arm) for arm in ARMS))
    if not len(errors.levels):
        return
    for arm, values in zip(ARMS, (errors.plain, errors.residual)):
        against.plot(errors.levels, values.T, color=figures.colour(arm), linewidth=0.5, alpha=0.4)
        against.plot(errors.levels, values.mean(axis=0), color=figures.colour(arm))
    ends = errors.difference
    difference.axhline(0, color=figures.INK, linewidth=0.8)
    difference.plot(errors.levels, ends.mean, color=figures.INK, label="mean over seeds, pointwise 95 % interval")
    difference.fill_between(errors.levels, ends.low, ends.high, color=figures.INK, alpha=0.2, linewidth=0)


def _risks_and_errors(results: Results, arm: str) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Epochs, L and E of each seed."""
    risk, error = (results.curves(RUN.name, arm, name) for name in (RISK, ERROR))
    common = risk.index.intersection(error.index)
    return [(common.to_numpy(), *(table.loc[common, seed].to_numpy() for table in (risk, error))) for seed in risk]


FIG_2 = Artefact(
    "fig-2",
    "at the same risk residual nets have smaller error, and get there sooner",
    fig_2_claims,
    "Plain and residual nets of one seed see the same batches, so differences are paired. Intervals: expanded percentile "
    "bootstrap of the mean over seeds, one level at a time, not corrected for looking at several. L is reached where "
    "it first comes down to a level, linear between epochs. The learning rate drops "
    'after 60 and 80 % of the epochs, 720 and 960 of 1200. "Equivalently initialised" in the caption is read as: each by its '
    "own scheme. " + TRAINING,
    draw_fig_2,
    runs=(RUN,),
)
