"""Yu & Tomasi (2019), *Identity Connections in Residual Nets Improve Noise Stability*: every table and figure.

The tests and tolerances were fixed before any run; the paper's numbers stand here as printed, and its words where it has
no number. Paper scale trains three seeds where the paper shows one, so that there is a spread to compare with.
"""

import math
from collections.abc import Callable, Iterable
from functools import cache

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import stats

from lightning_app.checks import (
    Factor,
    IntervalAbove,
    Share,
    Within,
    above,
    at_most,
    below,
    epochs_to,
    matched,
    noted,
    tested,
)
from lightning_app.claims import (
    CUSHIONS,
    DEPTHS,
    NUMBERS,
    PLAIN,
    RESIDUAL,
    TABLE_1,
    Table,
    apart_in_print,
    as_printed,
    cushion_exceptions,
    cushion_of_layer_10,
    degradation,
    gaps,
    id_share,
    interlayer_gap,
    interlayer_mean,
    loss_over_penalty,
    over_penalty,
    pair_in_print,
    quotient,
)
from lightning_app.plots import figures
from lightning_app.reproduce.artefact import Artefact, Paper
from lightning_app.reproduce.plan import PAPER, REDUCED, SMOKE, Reduced, Run
from lightning_app.reproduce.results import Results
from lightning_app.statistics.paired import error_at_risk, paired
from lightning_app.verdicts import Basis, Claim, Class, Reading, Sample

__all__ = ["PAPER", "implied_norm", "travel_by_print"]

ARMS = (PLAIN, RESIDUAL)

# At reduced scale the learning rate drops after the same fractions of the epochs: .6 and .8.
SHORT = Reduced(epochs=30, milestones=(18, 24), seeds=3)
SEED_RUNS = {name: Run(name, seeds=3, reduced=SHORT) for name in ("depth20", "depth32", "plain44", "residual44")}
EQUIVALENT = {depth: Run(f"equivalent{depth}") for depth in DEPTHS}
FIG_2 = Run("fig2", seeds=13, reduced=Reduced(epochs=40, milestones=(24, 32), seeds=13))
FULL = Run("full20", seeds=3)


def run_of(arm: str, depth: int) -> str:
    """The run of Table 1 that trains an arm at a depth; at 44 they need different learning rates."""
    return f"depth{depth}" if depth < 44 else f"{arm}44"


# -- Tables 1 and 2: loss, cost, error -----------------------------------------------------------------------------------

TABLE_2 = {
    (PLAIN, 20): (0.04132, 0.04183, 0.1121),
    (PLAIN, 32): (0.04880, 0.04936, 0.1085),
    (PLAIN, 44): (0.07345, 0.07407, 0.1159),
    **{(RESIDUAL, depth): TABLE_1[RESIDUAL, depth] for depth in DEPTHS},
}


def implied_norm(loss: float, cost: float, batch: int = 128, strength: float = 1e-4) -> float:
    """||w||^2 that a printed C - L implies under C = L + (lambda/2) ||w||^2 / B.

    With B = 128 depth 32's plain row gives 2304, and Table 3's N (std^2 + mean^2) 2342; without 1 / B it would be 18.

    >>> round(implied_norm(0.1225, 0.1234))
    2304
    """
    return (cost - loss) * 2 * batch / strength


def table_1_claims(results: Results) -> list[Claim]:
    numbers = [
        claim
        for arm, depth in TABLE_1
        for claim in _numbers(results, run_of(arm, depth), arm, depth, TABLE_1, seeds=True)
    ]
    risk = {(arm, depth): results.final(run_of(arm, depth), arm, "train/risk") for arm, depth in TABLE_1}
    error = {(arm, depth): results.final(run_of(arm, depth), arm, "test/error") for arm, depth in TABLE_1}
    return [*numbers, *_degradation(risk), *_gaps("L", risk), *_gaps("E", error), *_penalty(results)]


def _numbers(results: Results, run: str, arm: str, depth: int, table: Table, seeds: bool) -> list[Claim]:
    """L, C and E of one net against the print."""
    return [
        as_printed(symbol, arm, depth, paper, results.final(run, arm, name), seeds)
        for (symbol, name), paper in zip(NUMBERS.items(), table[arm, depth])
    ]


def _degradation(risk: dict[tuple[str, int], Sample]) -> list[Claim]:
    """L(44) / L(20): large for plain nets, small for residual ones."""
    return degradation(*(risk[arm, 44].map(quotient, risk[arm, 20]) for arm in ARMS))


def _gaps(symbol: str, values: dict[tuple[str, int], Sample]) -> list[Claim]:
    """Residual better at every depth, and by more the deeper."""
    differences = {
        depth: values[PLAIN, depth].map(lambda plain, residual: plain - residual, values[RESIDUAL, depth])
        for depth in DEPTHS
    }
    return gaps(symbol, differences)


def _penalty(results: Results) -> list[Claim]:
    runs = {arm: run_of(arm, 20) for arm in ARMS}
    return [
        loss_over_penalty(arm, 20, results.final(run, arm, "train/risk"), _costs(results, run, arm))
        for arm, run in runs.items()
    ]


def _costs(results: Results, run: str, arm: str) -> dict[str, Sample]:
    return {name: results.final(run, arm, name) for name in ("train/cost", "train/cost_paper")}


def draw_table_1(results: Results) -> Figure:
    return _draw_against_depth(results, run_of, TABLE_1)


def _draw_against_depth(results: Results, run: Callable[[str, int], str], table: Table) -> Figure:
    """L and E by depth: the paper's as open circles, ours as dots with standard deviations."""
    figure, ((left, right),) = figures.canvas(1, 2)
    for axes, symbol, title in ((left, "L", "training loss L (nats)"), (right, "E", "test error E")):
        for arm in ARMS:
            _points(axes, results, run, arm, symbol, table)
        axes.set(title=title, xlabel="depth", xticks=DEPTHS)
    left.set_yscale("log")
    figures.legend(left)
    return figure


def _points(axes: Axes, results: Results, run: Callable[[str, int], str], arm: str, symbol: str, table) -> None:
    paper = [table[arm, depth]["LCE".index(symbol)] for depth in DEPTHS]
    axes.plot(DEPTHS, paper, "o", mfc="none", color=figures.colour(arm), label=f"{arm}, paper")
    ours = {depth: results.final(run(arm, depth), arm, NUMBERS[symbol]) for depth in DEPTHS}
    shown = {depth: sample for depth, sample in ours.items() if sample.count}
    spread = [0 if math.isnan(sample.sd) else sample.sd for sample in shown.values()]
    means = [sample.mean for sample in shown.values()]
    axes.errorbar(list(shown), means, spread, fmt=".-", color=figures.colour(arm), label=f"{arm}, ours", capsize=2)


# -- Table 2 and Fig. 6: equivalent training ------------------------------------------------------------------------------

SECOND_LAYER = 1e-16  # "some outputs of the second convolutional layer differ by about 10^-16" after one iteration


def equivalent_run(arm: str, depth: int) -> str:
    return EQUIVALENT[depth].name


def table_2_claims(results: Results) -> list[Claim]:
    claims = []
    for depth in DEPTHS:
        run = EQUIVALENT[depth].name
        for arm in ARMS:
            claims += _numbers(results, run, arm, depth, TABLE_2, seeds=False)
        claims += [_together(results, depth, symbol) for symbol in ("L", "E")]
        claims.append(_second_layer(results, run, depth))
    return claims + _penalty_of_twins(results)


APART = (0.0009, 0.0022)  # E of independent residual nets by the print: those of Fig. 3 and of Table 1
AS_CLOSE = {  # what the tests of closeness let pass; of L the paper prints no spread at all
    "L": "independent nets may be as close: the spread of L over seeds is not printed",
    "E": "independent nets may be as close: residual nets of Fig. 3 and of Table 1 are .0009 and .0022 apart",
}


def _together(results: Results, depth: int, symbol: str) -> Claim:
    """Do the twins end as close as the paper's did? Rounding apart they would end equal.

    Of E only where the paper's twins are closer than both pairs of independent nets that it prints.
    """
    quantity, paper = f"|{symbol} of plain - residual|, depth {depth}", pair_in_print(TABLE_2, symbol, depth)
    limit = abs(apart_in_print(TABLE_2, symbol, depth))
    plain, residual = (results.final(EQUIVALENT[depth].name, arm, NUMBERS[symbol]) for arm in ARMS)
    ours = plain.map(lambda p, r: abs(p - r), residual)
    if symbol == "E" and limit > max(APART):
        test = (
            f"none: at most the paper's {limit:g} would pass for independent nets too; residual nets of Fig. 3 and of "
            "Table 1 are .0009 and .0022 apart"
        )
        return Claim(quantity, paper, test, (noted("", ours),), about=Class.TRAINED)
    test = at_most(limit, note="as far apart as the paper's")
    return tested(quantity, paper, test, ours, about=Class.TRAINED, power=AS_CLOSE[symbol])


def _second_layer(results: Results, run: str, depth: int) -> Claim:
    """ "Some outputs" may be the largest difference or a typical one. Known after the second step, whatever follows."""
    keys = {"largest": "twin/layer02_after_one_step", "mean": "twin/layer02_after_one_step_mean"}
    ours = {convention: results.first(run, PLAIN, key) for convention, key in keys.items()}
    quantity = f"difference at the second convolution after one step, depth {depth}"
    return tested(quantity, SECOND_LAYER, Factor(SECOND_LAYER, 10), ours, about=Class.TRAINED)


TIMES_IN_TABLE_2 = 50  # "Loss L is generally over 50 times more than weight decay term"


def _penalty_of_twins(results: Results) -> list[Claim]:
    claims = []
    for arm in ARMS:
        risk, cost = (results.final(EQUIVALENT[20].name, arm, name) for name in ("train/risk", "train/cost_paper"))
        quantity, ratio = f"L / (C - L), {arm}, depth 20", risk.map(over_penalty, cost)
        printed, test = f"over {TIMES_IN_TABLE_2} times", above(TIMES_IN_TABLE_2)
        claims.append(tested(quantity, printed, test, ratio, about=Class.TRAINED))
    return claims


def draw_table_2(results: Results) -> Figure:
    return _draw_against_depth(results, equivalent_run, TABLE_2)


def fig_6_claims(results: Results) -> list[Claim]:
    """Slow divergence: what max|T^-1(p) - r| is after 200 steps and at the end, and how it grows.

    "Very slow" is said, and drawn, of the losses. How far the weights may be apart the paper nowhere says: those rows are
    ours, with bounds of our own.
    """
    run = EQUIVALENT[20].name
    steps, divergence = _divergence(results, run)
    early = _at_step(steps, divergence, 200, results)
    exponent = results.final(run, PLAIN, "twin/growth/power_exponent")
    drift = results.final(run, PLAIN, "twin/divergence")
    plain, residual = (results.final(run, arm, "train/risk") for arm in ARMS)
    ours = {"about": Class.TRAINED, "basis": Basis.OURS}
    slow = at_most(2, note="rounding accumulates, it does not explode")
    small = below(0.1, note="a tenth of an ID entry")
    return [
        tested("max|T^-1(p) - r| after 200 steps", "", at_most(1e-11, note="float64"), early, **ours),
        tested("growth exponent before the first ReLU sign flip", "", slow, exponent, **ours),
        tested("max|T^-1(p) - r| at the end", "", small, drift, **ours),
        tested(
            "|L of plain - residual| at the end",
            pair_in_print(TABLE_2, "L", 20),
            at_most(0.0031, note="twice the paper's 0.04287 - 0.04132"),
            plain.map(lambda p, r: abs(p - r), residual),
            about=Class.TRAINED,
            power=AS_CLOSE["L"],
        ),
    ]


def _divergence(results: Results, run: str) -> tuple[np.ndarray, np.ndarray]:
    """Steps and max|T^-1(p) - r| after each, over all epochs there are."""
    found = results.history(run, PLAIN, "twin", ("twin/steps/number", "twin/steps/divergence"))
    return found[0], found[1]


def _at_step(steps: np.ndarray, values: np.ndarray, step: int, results: Results) -> Sample:
    where = np.flatnonzero(steps == step)
    if not len(where):
        return results.absent(f"fewer than {step} steps were made")
    return results.known(float(values[where[0]]))


def draw_fig_6(results: Results) -> Figure:
    """Left and middle as in the paper, L of both nets and their difference; right the weights' divergence by step."""
    run = EQUIVALENT[20].name
    figure, ((left, middle, right),) = figures.canvas(1, 3)
    risks = {arm: results.curves(run, arm, "train/risk") for arm in ARMS}
    for arm, risk in risks.items():
        if not risk.empty:
            left.semilogy(
                risk.index, risk.mean(axis=1), color=figures.colour(arm), label=arm, ls="--" if arm == RESIDUAL else "-"
            )
    left.set(title="training loss L (nats)", xlabel="epoch")
    figures.legend(left)
    if not risks[PLAIN].empty:
        difference = (risks[PLAIN] - risks[RESIDUAL]).abs().mean(axis=1)
        middle.semilogy(difference.index, difference.where(difference > 0), color=figures.INK)
    middle.set(title="|L of plain - L of residual|", xlabel="epoch")
    steps, divergence = _divergence(results, run)
    right.loglog(steps, np.where(divergence > 0, divergence, np.nan), color=figures.INK)
    right.set(title="max|T⁻¹(p) - r|", xlabel="step")
    return figure


# -- Table 3 and Fig. 7: weights ------------------------------------------------------------------------------------------

# Table 3 as printed, to two digits: (p_0, p_200, t_0, t_200)
TABLE_3 = {
    "mean": ("0.000062", "-0.0061", "0.0023", "-0.0056"),
    "std": ("0.070", "0.071", "0.048", "0.071"),
    "all": ("25000", "25000", "1900", "20000"),
    "large": ("420", "700", "1100", "1300"),
    "id_entries": ("67", "72", "1100", "1000"),
}
ROWS = {
    "mean": "mean",
    "std": "standard deviation",
    "all": "mass of all weights",
    "large": "mass of |w| ≥ 0.25",
    "id_entries": "mass of ID entries",
}
BLOCKS_PER_GROUP = 10  # at depth 32
LARGE = 0.25


def half_digit(printed: str) -> float:
    """Half a unit of the second significant digit: how much a printed number may have been rounded.

    >>> half_digit("1900"), half_digit("0.0023")
    (50.0, 5e-05)
    """
    return 0.5 * 10.0 ** (math.floor(math.log10(abs(float(printed)))) - 1)


def statistic(results: Results, arm: str, field: str, start: bool) -> Sample:
    """A field of the weight statistics of p, or of t = T(r)."""
    name = f"{'weight_mass' if arm == PLAIN else 'weight_mass_transferred'}/{field}"
    return results.initial("depth32", arm, name) if start else results.final("depth32", arm, name)


def table_3_claims(results: Results) -> list[Claim]:
    claims = []
    for column, (arm, start) in enumerate(((PLAIN, True), (PLAIN, False), (RESIDUAL, True), (RESIDUAL, False))):
        label = f"{'p' if arm == PLAIN else 't'}_{0 if start else 200}"
        for field, printed in TABLE_3.items():
            ours = statistic(results, arm, field, start)
            claims.append(_weight_claim(f"{ROWS[field]}, {label}", printed[column], field, ours, arm, start))
    return claims + [id_share(arm, statistic(results, arm, "id_over_large", start=False)) for arm in (RESIDUAL, PLAIN)]


FAN_IN = "fan-in, as the paper writes"


def _weight_claim(quantity: str, printed: str, field: str, ours: Sample, arm: str, start: bool) -> Claim:
    paper, (expected, spread) = float(printed), at_start(arm, "in")[field]
    if not start:
        test = Share(paper, 0.1)
        if test(Sample((expected,))).held:  # in closed form, of no run
            words = f"none: the net before training would pass as well, {float(f'{expected:.3g}'):g} is expected of it"
            return Claim(quantity, paper, words, (noted("", ours),), about=Class.TRAINED)
        return tested(quantity, paper, test, ours, about=Class.TRAINED)
    if abs(paper) < 4 * spread:  # of p the mean: its expectation is 0, and so is the print but for sampling
        why = f"any symmetric initialisation passes: 0 ± {spread:.1g}"
        beside = (noted(FAN_IN, ours, why),)
        return Claim(quantity, paper, f"none: {why}", beside, about=Class.INITIALISATION)
    test = Within(paper, 4 * spread + half_digit(printed), "4 sampling sd and the print's rounding")
    beside = _of_1900() if (arm, field) == (RESIDUAL, "all") else ()
    return tested(quantity, paper, test, {FAN_IN: ours}, *beside, about=Class.INITIALISATION)


def _of_1900() -> tuple[Reading, ...]:
    """What else the printed mass of t_0 may be, which fan-in misses: closed forms, of no run and of no test."""
    mass, spread = at_start(RESIDUAL, "out")["all"]
    large, own = (at_start(PLAIN, fan)["large"][0] for fan in ("out", "in"))
    fan_out = (
        f"{mass:.0f} ± {spread:.2g} expected, which rounds to the print; but the mass of large weights of p_0, printed as 420, "
        f"would be {large:.0f} under fan-out ({own:.0f} under fan-in)"
    )
    cut = f"{at_start(RESIDUAL, 'in')['all'][0]:.0f} expected under fan-in: its first two digits, not rounded"
    return (
        noted("fan-out, closed form", Sample(), fan_out),
        noted("1976 cut, not rounded, to 1900", Sample(), cut),
    )


@cache
def at_start(arm: str, fan: str) -> dict[str, tuple[float, float]]:
    """Expectation and sampling standard deviation of Table 3's statistics at epoch 0, depth 32, in closed form.

    p: N(0, 2 / S) (KWI); t: N(0, 1 / S^2) (HMWI), plus 1 at the ID entries; S = C U V (fan-in) or D U V (fan-out).

    >>> round(at_start("residual", "out")["all"][0]), round(at_start("plain", "in")["large"][0])
    (1927, 412)
    """
    groups = [group for shape in _convolutions() for group in _gaussians(*shape, arm, fan)]
    count = sum(size for _, _, size, _ in groups)

    def total(moment: Callable[[float, float], float], ids_only: bool = False) -> float:
        return sum(size * moment(mu, sigma) for mu, sigma, size, is_id in groups if is_id or not ids_only)

    def mass(cut: float, ids_only: bool = False) -> tuple[float, float]:
        variance = total(lambda mu, s: _tail(mu, s, cut)[1] - _tail(mu, s, cut)[0] ** 2, ids_only)
        return total(lambda mu, s: _tail(mu, s, cut)[0], ids_only), math.sqrt(variance)

    mean = total(lambda mu, s: mu) / count
    square = total(lambda mu, s: mu**2 + s**2) / count
    std = math.sqrt(square - mean**2)
    return {
        "mean": (mean, math.sqrt(total(lambda mu, s: s**2)) / count),
        "std": (std, math.sqrt(total(lambda mu, s: 4 * mu**2 * s**2 + 2 * s**4)) / count / (2 * std)),
        "all": mass(0.0),
        "large": mass(LARGE),
        "id_entries": mass(0.0, ids_only=True),
    }


def _tail(mu: float, sigma: float, cut: float) -> tuple[float, float]:
    """E |z| 1(|z| >= cut) and E z^2 1(|z| >= cut) of z ~ N(mu, sigma^2)."""
    low, high = (-cut - mu) / sigma, (cut - mu) / sigma
    inside, (phi_low, phi_high) = stats.norm.cdf(high) - stats.norm.cdf(low), stats.norm.pdf([low, high])
    first = mu * (1 - stats.norm.cdf(high) - stats.norm.cdf(low)) + sigma * (phi_low + phi_high)
    second = (mu**2 + sigma**2) * (1 - inside) + sigma * ((mu + cut) * phi_high - (mu - cut) * phi_low)
    return float(first), float(second)


def _convolutions() -> Iterable[tuple[int, int, int]]:
    """(C, D, ID entries) of every convolution at depth 32."""
    widths = [width for width in (16, 32, 64) for _ in range(BLOCKS_PER_GROUP)]
    yield 3, 16, 0
    yield from ((before, now, min(before, now)) for before, now in zip([16, *widths], widths))


def _gaussians(inputs: int, outputs: int, ids: int, arm: str, fan: str) -> Iterable[tuple[float, float, int, bool]]:
    """(mu, sigma, how many, are they ID entries) of one kernel."""
    size = 9 * (inputs if fan == "in" else outputs)
    sigma = math.sqrt(2 / size) if arm == PLAIN else 1 / size
    yield 0.0, sigma, 9 * inputs * outputs - ids, False
    yield (0.0 if arm == PLAIN else 1.0), sigma, ids, True


def fig_7_claims(results: Results) -> list[Claim]:
    return [
        *(_travel(results, arm) for arm in ARMS),
        _travel_by_print(results),
        _mode(results),
        _entries_above(results, start=True),
        _entries_above(results, start=False),
    ]


# "training modifies the parameters of a network by a small extent, when compared to the differences between the
# initialization vectors p_0 and t_0"
SMALL = "a small extent"
NEAR = below(0.5, note="the neighbourhoods of the two starts do not touch")


def _travel(results: Results, arm: str) -> Claim:
    """Training moves weights little against the distance between the starts."""
    other = RESIDUAL if arm == PLAIN else PLAIN
    moved = results.final("depth32", arm, "travel/distance")
    apart = results.initial("depth32", arm, f"travel/from_start_of/{other}")
    label = "p" if arm == PLAIN else "t"
    quantity = f"||{label}_200 - {label}_0|| / ||t_0 - p_0||"
    return tested(quantity, SMALL, NEAR, moved.map(quotient, apart), about=Class.TRAINED, ratio=True)


def _travel_by_print(results: Results) -> Claim:
    """The same of t by the numbers that the paper prints. Of p they leave everything between 0.01 and 1.7 open."""
    least, expected, most = (results.known(value) for value in travel_by_print())
    beside = (noted("the least that rounding and correlations allow", least, ""), noted("the most", most, ""))
    quantity = "||t_200 - t_0|| / ||t_0 - p_0||, arithmetic on the paper's own Table 3"
    readings = {"expected, of uncorrelated vectors": expected}
    return tested(quantity, SMALL, NEAR, readings, *beside, about=Class.TRAINED)


def travel_by_print() -> tuple[float, float, float]:
    """||t_200 - t_0|| / ||t_0 - p_0|| by Table 3: the least, the expected and the largest.

    t = r + ρ with ρ = 1 at the ID entries, so t_200 - t_0 = r_200 - r_0. The print gives the norms: ||w||² is
    N (std² + mean²), and ||r_200||² = ||t_200||² - 2 ρ·t_200 + ρ·ρ, where ρ·t is the mass of the ID entries (if some of
    t_200 were negative, ρ·t would be less than their mass, and t have moved more). ||r_0||, about 2, is less than the print's
    rounding; it follows from the paper's Eq. 4, σ_r = 1/S. Angles are not printed. Expected: r_200 orthogonal to r_0, and p_0
    to t_0, as independent draws nearly are. The ends: every printed number as far off as its rounding allows, r_200 along or
    against r_0, and |p_0·t_0| at most the mass of p_0's ID entries plus ||p_0|| ||r_0||.

    >>> [round(ratio, 2) for ratio in travel_by_print()]
    [0.55, 0.65, 0.76]
    """
    start = math.sqrt(sum(9 * c * d / (9 * c) ** 2 for c, d, _ in _convolutions()))  # ||r_0||

    def ratio(off: int) -> float:
        """-1, 0, 1: least, expected, largest."""
        ids = sum(count for _, _, count in _convolutions())
        end = math.sqrt(_printed_square("t_200", off) - 2 * _printed("id_entries", "t_200", -off) + ids)
        p_0, t_0 = (_printed_square(column, -off) for column in ("p_0", "t_0"))
        product = _printed("id_entries", "p_0", 1) + math.sqrt(p_0) * start
        moved = end + off * start if off else math.hypot(end, start)
        return moved / math.sqrt(p_0 + t_0 - 2 * off * product)

    return ratio(-1), ratio(0), ratio(1)


COLUMNS = ("p_0", "p_200", "t_0", "t_200")


def _printed(field: str, column: str, off: int = 0) -> float:
    """A number of Table 3; with ``off`` the least (-1) or the largest (1) size that would have been rounded to it."""
    printed = TABLE_3[field][COLUMNS.index(column)]
    return abs(float(printed)) + off * half_digit(printed)


def _printed_square(column: str, off: int) -> float:
    """||w||² = N (std² + mean²) of all weights of the convolutions."""
    count = sum(9 * c * d for c, d, _ in _convolutions())
    return count * (_printed("std", column, off) ** 2 + _printed("mean", column, off) ** 2)


def _mode(results: Results) -> Claim:
    """The mode of the ID entries of t_200, from a histogram with bins of 1/32: finer ones show noise."""
    ours = results.sample_at_end("depth32", [RESIDUAL], "weight_mass", _mode_of)
    test = "none: entries that stay where they started pass a tolerance of 10 %, the bin below 1 is 9.4 % off"
    return Claim("mode of the ID entries, t_200", 0.9, test, (noted("", ours),), about=Class.TRAINED)


def _mode_of(arrays: dict[str, np.ndarray]) -> float:
    counts, edges = (arrays[f"weight_mass_transferred/histogram_id/{part}"] for part in ("counts", "edges"))
    coarse = counts.reshape(-1, 4).sum(1)
    best = int(coarse.argmax())
    return float(edges[4 * best] + edges[4 * best + 4]) / 2


def _entries_above(results: Results, start: bool) -> Claim:
    """Entries of p above 0.7: the text does not say whether of w or of |w|."""
    fields = {"w > 0.7": "above_07_signed", "|w| > 0.7": "above_07"}
    ours = {convention: statistic(results, PLAIN, field, start) for convention, field in fields.items()}
    quantity = f"entries above 0.7, p_{0 if start else 200}"
    if not start:
        return tested(quantity, 26.0, Share(26.0, 0.1), ours, about=Class.TRAINED)
    # a count's variance is its mean; the paper's own is one draw of it
    reach = 4 * math.sqrt(expected_above(0.7))
    test = (
        f"none: within 4 sd of a count of {expected_above(0.7):.1f}, which is expected of w under fan-in, any up to "
        f"{math.floor(1 + reach)} would pass"
    )
    readings = tuple(noted(convention, sample) for convention, sample in ours.items())
    return Claim(quantity, 1.0, test, readings, about=Class.INITIALISATION)


def expected_above(cut: float) -> float:
    """How many entries of p_0 are expected above a cut, under fan-in: at 0.7 nearly all are of the first convolution.

    >>> round(expected_above(0.7), 2)
    2.18
    """
    groups = [group for shape in _convolutions() for group in _gaussians(*shape, PLAIN, "in")]
    return float(sum(size * stats.norm.sf(cut, mu, sigma) for mu, sigma, size, _ in groups))


def draw_fig_7(results: Results) -> Figure:
    """Top: all weights, the y axis cut at 800 as in the paper; bottom: ID entries of t. Left: epoch 0; right: last."""
    figure, grid = figures.canvas(2, 2)
    for column, epoch in enumerate((0, None)):
        for arm in ARMS:
            family = "weight_mass" if arm == PLAIN else "weight_mass_transferred"
            for arrays in results.arrays("depth32", arm, "weight_mass", epoch)[:1]:
                _weights(grid[0, column], arrays, f"{family}/histogram", arm)
                if arm == RESIDUAL:
                    _weights(grid[1, column], arrays, f"{family}/histogram_id", arm)
        when = "epoch 0" if epoch == 0 else f"epoch {results.last_epoch('depth32')}"
        grid[0, column].set(title=f"all weights, {when}", ylim=(0, 800), xlim=(-1, 1.5), xlabel="weight")
        grid[1, column].set(title=f"ID entries of t, {when}", xlim=(-1, 1.5), xlabel="weight")
    figures.legend(grid[0, 0])
    return figure


def _weights(axes: Axes, arrays: dict[str, np.ndarray], key: str, arm: str) -> None:
    label = "p (plain)" if arm == PLAIN else "t = T(r) (residual)"
    figures.stairs(axes, arrays[f"{key}/counts"], arrays[f"{key}/edges"], arm, label)


# -- Fig. 2: thirteen and thirteen ---------------------------------------------------------------------------------------

# Risks at which the two kinds are compared, by scale. Those of reduced scale were fixed before any such run.
LEVELS = {PAPER: (0.5, 0.2, 0.1), REDUCED: (1.0, 0.7, 0.5), SMOKE: (0.5, 0.2, 0.1)}
RISK, ERROR = "train/risk", "test/error"


def fig_2_claims(results: Results) -> list[Claim]:
    compared = [
        claim for level in LEVELS[results.scale] for claim in (_error_at(results, level), _epochs_at(results, level))
    ]
    return [*compared, _at_end(results, "E", ERROR), _at_end(results, "L", RISK)]


def _error_at(results: Results, level: float) -> Claim:
    values = {
        arm: matched(results.curves(FIG_2.name, arm, ERROR), results.curves(FIG_2.name, arm, RISK), level)
        for arm in ARMS
    }
    return _paired(results, values, f"E of plain minus residual at L = {level}", "smaller error")


def _epochs_at(results: Results, level: float) -> Claim:
    values = {arm: epochs_to(results.curves(FIG_2.name, arm, RISK), level) for arm in ARMS}
    return _paired(results, values, f"epochs to L = {level}, plain minus residual", "in fewer epochs")


def _paired(results: Results, values: dict[str, list[float]], quantity: str, paper: str) -> Claim:
    """Plain minus residual seed by seed; a seed that never gets there has no difference, and that leaves the test open."""
    differences = [p - r for p, r in zip(values[PLAIN], values[RESIDUAL])]
    reached = tuple(d for d in differences if not math.isnan(d))
    missing = results.incomplete(FIG_2.name) or (
        "" if len(reached) == len(differences) else "some nets never reach this risk"
    )
    ours = Sample(reached, missing)
    arms = [noted(arm, results.known(*values[arm])) for arm in ARMS]
    return tested(quantity, paper, IntervalAbove(), ours, *arms, about=Class.TRAINED, ratio=True)


def _at_end(results: Results, symbol: str, name: str) -> Claim:
    """What the figure shows at its right edge, and the paper gives no number for."""
    plain, residual = (results.final(FIG_2.name, arm, name) for arm in ARMS)
    differences = plain.map(lambda p, r: p - r, residual)
    found = paired(differences.values, [0.0] * differences.count)
    arms = [noted(arm, ours) for arm, ours in zip(ARMS, (plain, residual))]
    readings = (noted("", differences, str(found) if found.count else ""), *arms)
    quantity, test = f"{symbol} of plain minus residual, final epoch", "none: shown in the figure only"
    return Claim(quantity, "", test, readings, about=Class.TRAINED)


def draw_fig_2(results: Results) -> Figure:
    """L and E over epochs as in the paper; E against L and its difference, plain minus residual: "with same training loss"."""
    figure, ((left, right), (against, difference)) = figures.canvas(2, 2)
    for arm in ARMS:
        risk, error = (results.curves(FIG_2.name, arm, name) for name in (RISK, ERROR))
        if not risk.empty:
            figures.band(left, risk, arm, f"{arm}, {risk.shape[1]} seeds: mean, ± sd, extremes")
            figures.band(right, error, arm, arm)
    _draw_at_risk(results, against, difference)
    left.set(title="training risk L (nats)", xlabel="epoch", yscale="log")
    right.set(title="test error E", xlabel="epoch")
    against.set(title="E against L: mean, thin each seed", xlabel="L (nats)", ylabel="E", xscale="log")
    difference.set(title="E of plain minus residual at equal L", xlabel="L (nats)", xscale="log")
    figures.legend(left)
    figures.legend(difference)
    return figure


def _draw_at_risk(results: Results, against: Axes, difference: Axes) -> None:
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
    risk, error = (results.curves(FIG_2.name, arm, name) for name in (RISK, ERROR))
    common = risk.index.intersection(error.index)
    return [(common.to_numpy(), *(table.loc[common, seed].to_numpy() for table in (risk, error))) for seed in risk]


# -- Fig. 3: layer cushions -----------------------------------------------------------------------------------------------


def fig_3_claims(results: Results) -> list[Claim]:
    return [claim for depth in (20, 32) for claim in (_layer_10(results, depth), _all_layers(results, depth))]


def _medians(arrays: dict[str, np.ndarray], depth: int, reading: str) -> dict[str, float]:
    """Median cushion of each convolution of one net."""
    layers = sorted({name.split("/")[1] for name in arrays if name.endswith("/samples")})[: depth - 1]
    return {layer: float(np.nanmedian(arrays[f"cushion/{layer}/samples{reading}"])) for layer in layers}


def _layer_10(results: Results, depth: int) -> Claim:
    def gain(plain: dict[str, float], residual: dict[str, float]) -> float:
        return quotient(residual["layer10"], plain["layer10"])

    return cushion_of_layer_10(depth, _of_medians(results, depth, gain))


def _all_layers(results: Results, depth: int) -> Claim:
    def exceptions(plain: dict[str, float], residual: dict[str, float]) -> float:
        return sum(not residual[layer] > plain[layer] for layer in plain)  # a NaN is an exception

    return cushion_exceptions(depth, _of_medians(results, depth, exceptions))


def _of_medians(results: Results, depth: int, value: Callable[..., float]) -> dict[str, Sample]:
    """A value of each seed from the median cushions of its plain and its residual net, by reading."""

    def found(reading: str) -> Sample:
        def of_arrays(*arms: dict[str, np.ndarray]) -> float:
            return value(*(_medians(arrays, depth, reading) for arrays in arms))

        return results.sample_at_end(f"depth{depth}", ARMS, "cushion", of_arrays)

    return {convention: found(reading) for convention, reading in CUSHIONS.items()}


def draw_fig_3(results: Results) -> Figure:
    """Per-sample cushions of layer 10, first seed: depths 20 and 32, one row for each reading."""
    figure, grid = figures.canvas(len(CUSHIONS), 2)
    for column, depth in enumerate((20, 32)):
        for axes, (convention, reading) in zip(grid[:, column], CUSHIONS.items()):
            arrays = {arm: results.arrays(f"depth{depth}", arm, "cushion")[:1] for arm in ARMS}
            figures.outlines(
                axes, {arm: a[f"cushion/layer10/samples{reading}"] for arm, found in arrays.items() for a in found}
            )
            axes.set(title=f"depth {depth}\n{convention}", xlabel="cushion of layer 10", ylabel="samples")
    return figure


# -- Section 5: interlayer cushions of full nets -----------------------------------------------------------------------------

MODES = {"BN on one sample": "interlayer_batch1", "BN in evaluation mode": "interlayer"}
SIZES = {"n = H W": "mean_hw", "n = C H W": "mean"}
BLOCK = "block05"


def interlayer_claims(results: Results) -> list[Claim]:
    return [*(_interlayer_mean(results, arm) for arm in (RESIDUAL, PLAIN)), _interlayer_gap(results)]


def _interlayer_mean(results: Results, arm: str) -> Claim:
    samples = {
        f"{mode}, {size}": results.final(FULL.name, arm, f"{family}/{BLOCK}/{field}")
        for mode, family in MODES.items()
        for size, field in SIZES.items()
    }
    return interlayer_mean(arm, samples)


def _interlayer_gap(results: Results) -> Claim:
    def ratio(family: str) -> Sample:
        residual, plain = (results.final(FULL.name, arm, f"{family}/{BLOCK}/mean_hw") for arm in (RESIDUAL, PLAIN))
        return residual.map(quotient, plain)

    return interlayer_gap({mode: ratio(family) for mode, family in MODES.items()})


def draw_interlayer(results: Results) -> Figure:
    """Per-sample interlayer cushions of block 5, first seed, in both modes."""
    figure, (grid,) = figures.canvas(1, 2)
    arrays = {arm: results.arrays(FULL.name, arm, "interlayer")[:1] for arm in ARMS}
    for axes, (mode, family) in zip(grid, MODES.items()):
        samples = {arm: a[f"{family}/{BLOCK}/samples"] for arm, found in arrays.items() for a in found}
        figures.outlines(axes, samples)
        axes.set(title=mode, xlabel="interlayer cushion, n = C H W", ylabel="samples")
    return figure


# -- beyond the paper: noise injected --------------------------------------------------------------------------------------

NOISES = {  # how much noise is the same amount -> family of keys
    "the same norm in every net": "noise_absolute",
    "relative to T(W)": "noise_transferred",
    "relative to W": "noise",
}
STRENGTHS = (0.01, 0.03, 0.1, 0.3)


def noise_claims(results: Results) -> list[Claim]:
    """ "The same amount of noise added to such a network has a smaller effect on the output", tested directly.

    The paper argues so and measures cushions; that noise, its strength and this number are ours.
    """
    ratios = {}
    for convention, family in NOISES.items():
        plain, residual = (results.final("depth20", arm, f"{family}/response_0.1") for arm in ARMS)
        ratios[convention] = residual.map(quotient, plain)
    quantity = "change of the output under noise of strength 0.1, residual / plain, depth 20"
    test = below(1, each=True)
    return [tested(quantity, "", test, ratios, about=Class.TRAINED, basis=Basis.OURS, ratio=True)]


def draw_noise(results: Results) -> Figure:
    """Relative change of the output, mean over layers and seeds, against the strength of the noise."""
    figure, (grid,) = figures.canvas(1, len(NOISES), sharey=True)
    for axes, (convention, family) in zip(grid, NOISES.items()):
        for arm in ARMS:
            found = {s: results.final("depth20", arm, f"{family}/response_{s:g}") for s in STRENGTHS}
            shown = {s: sample.mean for s, sample in found.items() if sample.count}
            if shown:
                axes.loglog(list(shown), list(shown.values()), "o-", ms=3, color=figures.colour(arm), label=arm)
        axes.set(title=f"noise: {convention}", xlabel="strength s")
    grid[0].set_ylabel("relative change of the output")
    figures.legend(grid[0])
    return figure


# -- the paper ------------------------------------------------------------------------------------------------------------

COST = (
    "L: mean cross-entropy over the un-augmented training images, in nats; C: L plus the penalty (λ/2)‖w‖² / 128, which "
    "is what the printed C − L imply; E: share of test images classified wrongly. Final epoch, whichever was best. "
)
TRAINING = "SGD with momentum 0.9 (the paper does not say), crop and flip, all parameters decay, fan-in initialisation."

PAPER = Paper(
    "yu-tomasi",
    "Yu & Tomasi (2019), Identity Connections in Residual Nets Improve Noise Stability.",
    (
        Artefact(
            "table-1",
            "loss, cost and error of plain and residual nets of depths 20, 32, 44",
            tuple(SEED_RUNS.values()),
            table_1_claims,
            COST + TRAINING,
            draw_table_1,
            about=Class.TRAINED,
        ),
        Artefact(
            "table-2",
            "equivalently initialised nets stay together",
            tuple(EQUIVALENT.values()),
            table_2_claims,
            COST + TRAINING + " Float64, one CPU; the plain net decays towards ρ.",
            draw_table_2,
            about=Class.TRAINED,
        ),
        Artefact(
            "table-3",
            "weight statistics of p and t at depth 32",
            (SEED_RUNS["depth32"],),
            table_3_claims,
            "Weights of all convolutions, the first included; no biases, no linear layer. Mass: L1 norm. t = T(r). "
            + TRAINING,
            about=Class.TRAINED,
        ),
        Artefact(
            "fig-2",
            "at the same risk residual nets have smaller error, and get there sooner",
            (FIG_2,),
            fig_2_claims,
            "Plain and residual nets of one seed see the same batches, so differences are paired. Intervals: expanded percentile "
            "bootstrap of the mean over seeds, one level at a time, not corrected for looking at several. L is reached where "
            "it first comes down to a level, linear between epochs. The learning rate drops "
            'after epochs 720 and 960. "Equivalently initialised" in the caption is read as: each by its own scheme. '
            + TRAINING,
            draw_fig_2,
            about=Class.TRAINED,
        ),
        Artefact(
            "fig-3",
            "layer cushions of residual nets lie to the right",
            (SEED_RUNS["depth20"], SEED_RUNS["depth32"]),
            fig_3_claims,
            "Per-sample cushion ‖A x‖ / (‖A‖ ‖x‖) on 1,000 training images, bias excluded, ‖A‖ the Frobenius norm of the "
            "kernel; three readings of A in a residual layer side by side. All convolutions, the first included. "
            + TRAINING,
            draw_fig_3,
            about=Class.TRAINED,
        ),
        Artefact(
            "fig-6",
            "losses of twins over training, and how slowly they diverge",
            (EQUIVALENT[20],),
            fig_6_claims,
            "Float64, one CPU, identical batches; divergence max|T⁻¹(p) − r| over all parameters. " + TRAINING,
            draw_fig_6,
            about=Class.TRAINED,
        ),
        Artefact(
            "fig-7",
            "weight distributions before and after training at depth 32",
            (SEED_RUNS["depth32"],),
            fig_7_claims,
            "Bins of 1/128. Distances are 2-norms over the convolutions' weights. " + TRAINING,
            draw_fig_7,
            about=Class.TRAINED,
        ),
        Artefact(
            "interlayer",
            "interlayer cushions of the fifth block of full nets of depth 20",
            (FULL,),
            interlayer_claims,
            "μ = √n ‖J x‖ / (‖J‖ ‖x‖) of conv-BN-ReLU-conv-BN(+x)-ReLU. With BN normalising a single sample, J x of a plain "
            "block is zero up to ε / (var + ε), whatever its weights: that is where 2.7e-7 comes from. In evaluation mode "
            "plain and residual blocks are alike. fb.resnet.torch's recipe, 164 epochs.",
            draw_interlayer,
            about=Class.TRAINED,
        ),
        Artefact(
            "noise",
            "beyond the paper: noise in the weights of one layer changes the output of residual nets less",
            (SEED_RUNS["depth20"],),
            noise_claims,
            "Gaussian noise of norm s √(2 D), s ‖T(W)‖ or s ‖W‖ added to one layer at a time; relative change of the logits, "
            "median over 50 training images, mean over layers. The paper argues this and measures cushions instead. "
            + TRAINING,
            draw_noise,
            about=Class.TRAINED,
        ),
    ),
)
