"""Is a shortcut around two matrices special, or is it the size of the start?

Li et al. (2016) find that linear nets with shortcuts around two matrices train at any depth, from weights near zero,
and those with shortcuts around three or four do not. A unit of n matrices of size s is I + O(s^n), so that at zero
the loss is flat to order n; and from a start of size s its n matrices grow as dw/dt = c w^(n - 1), which takes a time
of order s^-(n - 2) for n > 2 and ln 1/s for n = 2. So a start of one size is not one start for all n.

Predicted before any run, of L matrices in L / n units, starts of s times Xavier's, and a budget of B steps at the
best of the rates: a start of 1e-3 trains with n = 1 and 2 and not with 3 and 4; from the best start all of them
train, as close to the optimum; there is a least start for n = 3 and 4, and it falls as B^-(1 / (n - 2)); and there is
a largest start for every n, which falls with depth as (L / n)^-(1 / 2n), since L / n independent units let squares
grow by (1 + s^2n)^(L / n).
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from matplotlib.figure import Figure

from lightning_app.common.late import torch
from lightning_app.papers.li_et_al.data import WHITENING, Whitened, on_whitened
from lightning_app.papers.li_et_al.nets import Net
from lightning_app.papers.parts import Arrays, Artefact, Computation
from lightning_app.papers.predicates import Share, at_least, at_most, observed, predicted
from lightning_app.papers.results import Results
from lightning_app.papers.verdicts import Claim, Sample
from lightning_app.plots import figures

LENGTHS, DEPTHS = (1, 2, 3, 4), (12, 24, 48, 96)
EPOCHS = 1000
SHARES = (0.25, 0.5, 1.0)  # of the epochs, at which losses are kept
STARTS = (1e-3, 10**-2.5, 1e-2, *(10 ** (exponent / 16) for exponent in range(-24, 9)))
EXPONENTS = (-3.0, -2.5, -2.0, -1.5, -1.0, -0.5, 0.0)  # of the rates
TRAINED = 0.01  # of the loss that there is to lose, left at the end
UNTRAINED = 0.5


@on_whitened
def remaining(
    data: Whitened, n: int, depth: int, starts: Sequence[float], exponents: Sequence[float], epochs: int, seeds: int
) -> Arrays:
    """What is left of the loss above the optimum, as a share of what the identity has, (seeds, starts, shares of the epochs).

    At the rate that leaves least, seed by seed and budget by budget; inf where every rate diverges.
    """
    from lightning_app.theory.li_et_al.descent import descend

    shape = (depth // n, n, *[data.x.shape[1]] * 2)
    rates = 10 ** torch.tensor(exponents, dtype=torch.float64)
    problem, least = data.problem(True, "identity"), data.moments.optimum()
    whole = problem.loss_and_gradient(torch.zeros(1, *shape).double())[0]
    at = [round(share * epochs) for share in SHARES]
    rows = []
    for start in starts:
        weights = Net("", n, True, "zero", start).start(depth, seeds).repeat_interleave(len(rates), dim=0)
        losses = descend(problem, weights, rates.repeat(seeds), epochs).losses[:, at]
        rows.append((losses.view(seeds, len(rates), len(at)).amin(1) - least) / (whole - least))
    return {"remaining": torch.stack(rows, 1).numpy(), "starts": np.array(starts)}


def piece_of(n: int, depth: int) -> str:
    return f"{n}-shortcut-{depth:02d}"


ASKED = {"starts": STARTS, "exponents": EXPONENTS, "epochs": EPOCHS, "seeds": 3, "limit": None}
PIECES = {piece_of(n, depth): {"n": n, "depth": depth, **ASKED} for n in LENGTHS for depth in DEPTHS}
PHASES = Computation("phases", remaining, PIECES)


def edge(arrays: Arrays, side: int, budget: int = -1) -> np.ndarray:
    """The largest (side 1) or the least (side -1) start that trains, of each seed; nan if all or none do on that side.

    Counted from the best start outwards, and between two starts on a straight line in logarithms, or in the middle where one of
    the two diverged.

    >>> starts, left = np.array([0.1, 1.0, 10.0]), np.array([[[0.0001], [0.001], [0.1]]])
    >>> edge({"starts": starts, "remaining": left}, 1).round(3).tolist()
    [3.162]
    """
    return np.array([_edge(arrays["starts"], row[:, budget], side) for row in arrays["remaining"]])


def _edge(starts: np.ndarray, left: np.ndarray, side: int) -> float:
    best = int(np.argmin(left))
    if not left[best] <= TRAINED:
        return float("nan")
    last = best
    while 0 <= last + side < len(left) and left[last + side] <= TRAINED:
        last += side
    beyond = last + side
    if not 0 <= beyond < len(left):
        return float("nan")
    (x, y), logs = np.log(starts[[last, beyond]]), np.log(np.clip(left[[last, beyond]], 1e-300, None))
    share = (np.log(TRAINED) - logs[0]) / (logs[1] - logs[0]) if np.isfinite(logs[1]) else 0.5
    return float(np.exp(x + share * (y - x)))


def exponent(n: int, *by_depth: Arrays) -> np.ndarray:
    """Of the largest start that trains, in the number of units, of each seed."""
    edges = np.stack([edge(arrays, 1) for arrays in by_depth])
    return np.polyfit(np.log(np.array(DEPTHS) / n), np.log(edges), 1)[0]


def shortcut_length_claims(results: Results) -> list[Claim]:
    """No sentence of a paper on starts of other sizes; see the module's docstring for where the predictions come from."""

    def at_depths(value: Callable[[Arrays], np.ndarray], n: int) -> dict[str, Sample]:
        return {f"depth {depth}": results.of(PHASES, value, piece_of(n, depth)) for depth in DEPTHS}

    claims = []
    for n in LENGTHS:
        words = f"{n}-shortcut"
        small = at_most(TRAINED, each=True) if n < 3 else at_least(UNTRAINED, each=True)
        from_best = at_depths(lambda a: a["remaining"][:, :, -1].min(axis=1), n)
        law = results.of(PHASES, partial(exponent, n), *(piece_of(n, depth) for depth in DEPTHS))
        largest = f"exponent of the largest start in the number of units, {words}"
        claims += [
            predicted(f"loss left, start 1e-3, {words}", small, at_depths(lambda a: a["remaining"][:, 0, -1], n)),
            predicted(f"loss left from the best start, {words}", at_most(TRAINED, each=True), from_best),
            predicted(largest, Share(-1 / (2 * n), 0.35), law),
        ]
        if n > 2:
            fall = 4 ** (1 / (n - 2))
            least = at_depths(lambda a: edge(a, -1, 0) / edge(a, -1), n)
            quantity = f"least start with a quarter of the steps over that with all, {words}"
            claims.append(predicted(quantity, Share(fall, 0.35), least))
    pieces = {f"{n}-shortcut, depth {depth}": piece_of(n, depth) for n in LENGTHS for depth in DEPTHS}
    best = {words: results.of(PHASES, best_start, piece) for words, piece in pieces.items()}
    return [*claims, observed("the best start, times Xavier", best)]


def best_start(arrays: Arrays) -> np.ndarray:
    return arrays["starts"][arrays["remaining"][:, :, -1].argmin(1)]


def draw_shortcut_length(results: Results) -> Figure:
    """Loss left against the start, a panel each n, a line each depth; and the largest start against the number of units."""
    figure, grid = figures.canvas(2, 3)
    *axes, of_edges, empty = grid.flat
    empty.set_axis_off()
    shades = ("plain-0", "plain-1", "residual-1", "residual-0")
    for ax, n in zip(axes, LENGTHS):
        for depth, shade in zip(DEPTHS, shades):
            if arrays := results.computed(PHASES).get(piece_of(n, depth)):
                left = np.median(arrays["remaining"][:, :, -1], axis=0)
                left = np.where(np.isfinite(left), np.clip(left, 1e-8, None), np.nan)
                ax.plot(arrays["starts"], left, color=figures.COLOURS[shade][0], label=f"depth {depth}")
        ax.axhline(TRAINED, color=figures.INK, linewidth=0.8, label="trained: below")
        ax.set(xscale="log", yscale="log", ylim=(5e-9, 1e3), title=f"shortcuts around {n}")
        ax.set(xlabel="start, times Xavier")
    for ax in grid[:, 0]:
        ax.set(ylabel="loss left")
    for n, shade in zip(LENGTHS, shades):
        found = {depth / n: a for depth in DEPTHS if (a := results.computed(PHASES).get(piece_of(n, depth)))}
        if found:
            edges = [np.exp(np.log(edge(arrays, 1)).mean()) for arrays in found.values()]
            of_edges.plot([*found], edges, "o-", color=figures.COLOURS[shade][0], label=f"around {n}")
    of_edges.set(xscale="log", yscale="log", title="largest start that trains", xlabel="units")
    figures.legend(axes[0])
    empty.legend(*of_edges.get_legend_handles_labels(), loc="center left")
    return figure


SHORTCUT_LENGTH = Artefact(
    "shortcut-length",
    "shortcuts around one to four matrices, from starts of all sizes: what trains, by depth",
    shortcut_length_claims,
    f"Linear nets, full-batch gradient descent, {EPOCHS:,} epochs at the best of the rates 10^-3, 10^-2.5, ..., 1, seed by "
    "seed; three seeds. Starts are Gaussian, s times Xavier's. Loss left: (loss - optimum) / (loss of the identity - optimum); "
    f"trained: at most {TRAINED:g}. The largest and the least start that trains are found from the best start outwards. "
    + WHITENING,
    draw_shortcut_length,
    computations=(PHASES,),
)
