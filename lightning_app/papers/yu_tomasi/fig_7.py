"""Fig. 7: weight distributions before and after training at depth 32, and how far training moves the weights."""

import math

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import stats

from lightning_app.papers.artefact import Artefact
from lightning_app.papers.predicates import Share, below, noted, shown, tested
from lightning_app.papers.results import Results
from lightning_app.papers.verdicts import Claim, Class
from lightning_app.papers.yu_tomasi.nets import ARMS, PLAIN, RESIDUAL, SEED_RUNS, TRAINING
from lightning_app.papers.yu_tomasi.table_3 import TABLE_3_IN_PRINT, convolutions, gaussians, half_digit, statistic
from lightning_app.plots import figures


def fig_7_claims(results: Results) -> list[Claim]:
    """ "Training modifies the parameters of a network by a small extent, when compared to the differences between the
    initialization vectors p_0 and t_0"; "the mode for these entries is still high, around 0.9, in t_200"."""
    return [
        *(_moved(results, arm) for arm in ARMS),
        _by_print(results),
        _mode(results),
        _entries_above(results, start=True),
        _entries_above(results, start=False),
    ]


SMALL = "a small extent"
NEAR = below(0.5, note="the neighbourhoods of the two starts do not touch")


def _moved(results: Results, arm: str) -> Claim:
    """Training moves weights little against the distance between the starts."""
    label, other = {PLAIN: ("p", RESIDUAL), RESIDUAL: ("t", PLAIN)}[arm]
    moved = results.final("depth32", arm, "travel/distance")
    apart = results.initial("depth32", arm, f"travel/from_start_of/{other}")
    return tested(f"||{label}_200 - {label}_0|| / ||t_0 - p_0||", SMALL, NEAR, moved / apart, ratio=True)


def _by_print(results: Results) -> Claim:
    """The same of t by the numbers that the paper prints. Of p they leave everything between 0.01 and 1.7 open."""
    least, expected, most = (results.known(value) for value in distance_by_print())
    beside = (noted("the least that rounding and correlations allow", least, ""), noted("the most", most, ""))
    quantity = "||t_200 - t_0|| / ||t_0 - p_0||, arithmetic on the paper's own Table 3"
    readings = {"expected, of uncorrelated vectors": expected}
    return tested(quantity, SMALL, NEAR, readings, *beside)


def distance_by_print() -> tuple[float, float, float]:
    """||t_200 - t_0|| / ||t_0 - p_0|| by Table 3: the least, the expected and the largest.

    t = r + ρ with ρ = 1 at the ID entries, so t_200 - t_0 = r_200 - r_0. The print gives the norms: ||w||² is
    N (std² + mean²), and ||r_200||² = ||t_200||² - 2 ρ·t_200 + ρ·ρ, where ρ·t is the mass of the ID entries (if some of
    t_200 were negative, ρ·t would be less than their mass, and t have moved more). ||r_0||, about 2, is less than the print's
    rounding; it follows from the paper's Eq. 4, σ_r = 1/S. Angles are not printed. Expected: r_200 orthogonal to r_0, and p_0
    to t_0, as independent draws nearly are. The ends: every printed number as far off as its rounding allows, r_200 along or
    against r_0, and |p_0·t_0| at most the mass of p_0's ID entries plus ||p_0|| ||r_0||.

    >>> [round(ratio, 2) for ratio in distance_by_print()]
    [0.55, 0.65, 0.76]
    """
    start = math.sqrt(sum(9 * c * d / (9 * c) ** 2 for c, d, _ in convolutions()))  # ||r_0||

    def ratio(off: int) -> float:
        """-1, 0, 1: least, expected, largest."""
        ids = sum(count for _, _, count in convolutions())
        end = math.sqrt(printed_square("t_200", off) - 2 * _printed("id_entries", "t_200", -off) + ids)
        p_0, t_0 = (printed_square(column, -off) for column in ("p_0", "t_0"))
        product = _printed("id_entries", "p_0", 1) + math.sqrt(p_0) * start
        moved = end + off * start if off else math.hypot(end, start)
        return moved / math.sqrt(p_0 + t_0 - 2 * off * product)

    return ratio(-1), ratio(0), ratio(1)


COLUMNS = ("p_0", "p_200", "t_0", "t_200")


def _printed(field: str, column: str, off: int = 0) -> float:
    """A number of Table 3; with ``off`` the least (-1) or the largest (1) size that would have been rounded to it."""
    printed = TABLE_3_IN_PRINT[field][COLUMNS.index(column)]
    return abs(float(printed)) + off * half_digit(printed)


def printed_square(column: str, off: int) -> float:
    """||w||² = N (std² + mean²) of all weights of the convolutions."""
    count = sum(9 * c * d for c, d, _ in convolutions())
    return count * (_printed("std", column, off) ** 2 + _printed("mean", column, off) ** 2)


def _mode(results: Results) -> Claim:
    """From a histogram with bins of 1/32: finer ones show noise."""
    ours = results.sample_at_end("depth32", RESIDUAL, "weight_mass", _mode_of)
    why = "entries that stay where they started pass a tolerance of 10 %, the bin below 1 is 9.4 % off"
    return shown("mode of the ID entries, t_200", 0.9, why, ours)


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
        return tested(quantity, 26.0, Share(26.0, 0.1), ours)
    # a count's variance is its mean; the paper's own is one draw of it
    count, reach = expected_above(0.7), math.floor(1 + 4 * math.sqrt(expected_above(0.7)))
    why = f"within 4 sd of a count of {count:.1f}, which is expected of w under fan-in, any up to {reach} would pass"
    return shown(quantity, 1.0, why, ours, about=Class.INITIALISATION)


def expected_above(cut: float) -> float:
    """How many entries of p_0 are expected above a cut, under fan-in: at 0.7 nearly all are of the first convolution.

    >>> round(expected_above(0.7), 2)
    2.18
    """
    groups = [group for shape in convolutions() for group in gaussians(*shape, PLAIN, "in")]
    return float(sum(size * stats.norm.sf(cut, mu, sigma) for mu, sigma, size, _ in groups))


def draw_fig_7(results: Results) -> Figure:
    """Top: all weights, the y axis cut at 800 as in the paper; bottom: ID entries of t. Left: epoch 0; right: last."""
    figure, grid = figures.canvas(2, 2)
    for column, epoch in enumerate((0, None)):
        for arm in ARMS:
            family = "weight_mass" if arm == PLAIN else "weight_mass_transferred"
            for arrays in results.arrays("depth32", arm, "weight_mass", epoch)[:1]:
                _draw_weights(grid[0, column], arrays, f"{family}/histogram", arm)
                if arm == RESIDUAL:
                    _draw_weights(grid[1, column], arrays, f"{family}/histogram_id", arm)
        when = "epoch 0" if epoch == 0 else f"epoch {results.last_epoch('depth32')}"
        grid[0, column].set(title=f"all weights, {when}", ylim=(0, 800), xlim=(-1, 1.5), xlabel="weight")
        grid[1, column].set(title=f"ID entries of t, {when}", xlim=(-1, 1.5), xlabel="weight")
    figures.legend(grid[0, 0])
    return figure


def _draw_weights(axes: Axes, arrays: dict[str, np.ndarray], key: str, arm: str) -> None:
    label = "p (plain)" if arm == PLAIN else "t = T(r) (residual)"
    figures.stairs(axes, arrays[f"{key}/counts"], arrays[f"{key}/edges"], arm, label)


FIG_7 = Artefact(
    "fig-7",
    "weight distributions before and after training at depth 32",
    fig_7_claims,
    "Bins of 1/128. Distances are 2-norms over the convolutions' weights. " + TRAINING,
    draw_fig_7,
    runs=(SEED_RUNS["depth32"],),
    about=Class.TRAINED,
)
