"""Beyond the paper: noise that is injected into the weights of one layer."""

from matplotlib.figure import Figure

from lightning_app.papers.artefact import Artefact
from lightning_app.papers.predicates import below, tested
from lightning_app.papers.results import Results
from lightning_app.papers.verdicts import Basis, Claim, Class
from lightning_app.papers.yu_tomasi.nets import ARMS, SEED_RUNS, TRAINING
from lightning_app.plots import figures

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
        ratios[convention] = residual / plain
    quantity = "change of the output under noise of strength 0.1, residual / plain, depth 20"
    test = below(1, each=True)
    return [tested(quantity, "", test, ratios, basis=Basis.OURS, ratio=True)]


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


NOISE = Artefact(
    "noise",
    "beyond the paper: noise in the weights of one layer changes the output of residual nets less",
    noise_claims,
    "Gaussian noise of norm s √(2 D), s ‖T(W)‖ or s ‖W‖ added to one layer at a time; relative change of the logits, "
    "median over 50 training images, mean over layers. The paper argues this and measures cushions instead. "
    + TRAINING,
    draw_noise,
    runs=(SEED_RUNS["depth20"],),
    about=Class.TRAINED,
)
