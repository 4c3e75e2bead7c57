"""Shortcuts around one to four matrices with ReLUs between them: is it the size of the start there, too?

`shortcut_length` with x + W^n relu(... relu(W^1 x)) in place of linear units. Around one matrix there is no ReLU in a unit.

Predicted before any run, from the orders of the loss at zero, which a ReLU leaves as they are: a start of 1e-3 trains
with n = 1 and 2 and not with 4, nor with 3 at depth 12 (linear nets with n = 3 left it at larger depths); and from the
best start 3 and 4 end as low as 2.

Rates ended at 10^-0.5 at first, which was the best for n = 2: ends of 3 and 4 were then 1.4 and 2.1 times as high. Of
larger rates nothing had been seen but single trials of one seed when they were added.
"""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from lightning_app.common.late import torch
from lightning_app.papers.findings.shortcut_length import LENGTHS, piece_of
from lightning_app.papers.li_et_al.data import WHITENING, Whitened, on_whitened
from lightning_app.papers.li_et_al.nets import Net
from lightning_app.papers.parts import Arrays, Artefact, Computation
from lightning_app.papers.predicates import at_least, at_most, observed, predicted
from lightning_app.papers.results import Results
from lightning_app.papers.verdicts import Claim, Sample
from lightning_app.plots import figures

DEPTHS, EPOCHS, IMAGES = (12, 24), 1000, 1000
STARTS = (1e-3, 1e-2, 0.1, 0.2, 0.4, 0.7, 1.0)
EXPONENTS = (-2.0, -1.5, -1.0, -0.5, 0.0, 0.5)  # of the rates


@on_whitened
def losses(
    data: Whitened, n: int, depth: int, starts: Sequence[float], exponents: Sequence[float], epochs: int, seeds: int
) -> Arrays:
    """The loss at the end over that of the identity, (seeds, starts); inf where every rate diverges.

    At the best rate, seed by seed. ``rate``: log10 of it. ``linear``: what the best linear map leaves.
    """
    from lightning_app.theory.li_et_al.descent import descend

    problem, rates = data.problem(True, "relu"), 10 ** torch.tensor(exponents, dtype=torch.float64)
    whole = problem.loss_and_gradient(Net("", n, True, "zero", 0.0).start(depth, 1).to(problem.dtype))[0]
    rows, best = [], []
    for start in starts:
        weights = Net("", n, True, "zero", start).start(depth, seeds).repeat_interleave(len(rates), dim=0)
        found = descend(problem, weights.to(problem.dtype), rates.repeat(seeds), epochs).losses[:, -1]
        ends = found.view(seeds, len(rates)).min(1)
        rows.append(ends.values / whole)
        best.append(torch.tensor(exponents)[ends.indices])
    left, rate = torch.stack(rows, 1).numpy(), torch.stack(best, 1).numpy()
    return {"left": left, "rate": rate, "linear": np.array(data.moments.optimum() / float(whole))}


ASKED = {"starts": STARTS, "exponents": EXPONENTS, "epochs": EPOCHS, "seeds": 3, "limit": IMAGES}
PIECES = {piece_of(n, depth): {"n": n, "depth": depth, **ASKED} for n in LENGTHS for depth in DEPTHS}
ENDS = Computation("ends-relu", losses, PIECES, precision="float32")


def relu_claims(results: Results) -> list[Claim]:
    """No sentence of a paper; see the module's docstring for where the predictions come from."""

    def small(n: int, depth: int) -> Sample:
        return results.of(ENDS, lambda arrays: arrays["left"][:, 0], piece_of(n, depth))

    def best(n: int, depth: int) -> Sample:
        return results.of(ENDS, lambda arrays: arrays["left"].min(axis=1), piece_of(n, depth))

    def best_rate(n: int, depth: int) -> Sample:
        def at_best(arrays: Arrays) -> np.ndarray:
            return np.take_along_axis(arrays["rate"], arrays["left"].argmin(1)[:, None], 1)[:, 0]

        return results.of(ENDS, at_best, piece_of(n, depth))

    trains = {f"{n}-shortcut, depth {depth}": small(n, depth) for n in (1, 2) for depth in DEPTHS}
    stays = {f"{n}-shortcut, depth {depth}": small(n, depth) for n, depth in ((3, 12), (4, 12), (4, 24))}
    alike = {f"{n}-shortcut, depth {depth}": best(n, depth) / best(2, depth) for n in (3, 4) for depth in DEPTHS}
    linear = {f"depth {depth}": results.of(ENDS, "linear", piece_of(2, depth)) for depth in DEPTHS}
    bests = {f"{n}-shortcut, depth {depth}": best(n, depth) for n in LENGTHS for depth in DEPTHS}
    rates = {f"{n}-shortcut, depth {depth}": best_rate(n, depth) for n in LENGTHS for depth in DEPTHS}
    return [
        predicted("loss over that of the identity, start 1e-3", at_most(0.1, each=True), trains),
        predicted("loss over that of the identity, start 1e-3, flat at zero", at_least(0.9, each=True), stays),
        predicted("loss from the best start over that of the 2-shortcut", at_most(1.1, each=True), alike),
        observed("loss over that of the identity, best start", bests),
        observed("log10 of the best rate there, of -2 to 0.5", rates),
        observed("what the best linear map leaves of it", linear),
    ]


def draw_relu(results: Results) -> Figure:
    """Loss at the end against the start, a panel each depth, a line each n."""
    figure, (row,) = figures.canvas(1, len(DEPTHS), sharey=True)
    for axes, depth in zip(row, DEPTHS):
        for n, shade in zip(LENGTHS, ("plain-0", "plain-1", "residual-1", "residual-0")):
            if arrays := results.computed(ENDS).get(piece_of(n, depth)):
                left = np.median(arrays["left"], axis=0)
                shown_ = np.where(np.isfinite(left), left, np.nan)
                axes.plot(STARTS, shown_, "o-", ms=3, color=figures.COLOURS[shade][0], label=f"around {n}")
        axes.set(xscale="log", yscale="log", title=f"depth {depth}", xlabel="start, times Xavier")
    row[0].set_ylabel("loss over that of the identity")
    figures.legend(row[-1], beside=True)
    return figure


SHORTCUT_LENGTH_RELU = Artefact(
    "shortcut-length-relu",
    "shortcuts around one to four matrices with ReLUs between them, from starts of all sizes",
    relu_claims,
    f"Full-batch gradient descent on {IMAGES:,} images, {EPOCHS:,} epochs at the best of the rates 10^-2, 10^-1.5, "
    "..., 10^0.5, seed by seed; three seeds, float32. Starts are Gaussian, s times Xavier's. ReLUs between the matrices of a "
    "unit. " + WHITENING,
    draw_relu,
    computations=(ENDS,),
)
