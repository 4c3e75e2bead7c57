"""Fig. 3: layer cushions of residual nets lie to the right."""

from collections.abc import Iterator, Sequence

from matplotlib.figure import Figure

from lightning_app.papers.artefact import Artefact
from lightning_app.papers.nets import Found, Nets, all_of
from lightning_app.papers.predicates import above, at_most, tested
from lightning_app.papers.results import Results
from lightning_app.papers.verdicts import Class, Sample
from lightning_app.papers.yu_tomasi.nets import ARMS, SEED_RUNS, TRAINING, simplified
from lightning_app.plots import figures

CUSHIONS = {  # what A is in a residual layer -> the ending of its keys
    "identity in A x, not in ||A|| (the paper's)": "",
    "identity in both": "_transferred",
    "identity in neither": "_branch",
}
EXCEPTIONS = 2  # "This pattern holds for all the layers, with the exception of 2 layers"


def cushions(nets: Nets) -> Iterator[Found]:
    """ "The red distribution is to the right of the blue distribution. This pattern holds for all the layers, with the
    exception of 2 layers (in both the 20-layer and 32-layer networks)." """
    for pair in nets.pairs(simplified((20, 32))):
        layers = [f"layer{number:02d}" for number in range(1, pair.depth)]
        medians = {
            words: {layer: pair.final(f"cushion/{layer}/median{ending}") for layer in layers}
            for words, ending in CUSHIONS.items()
        }
        if "layer10" in layers:
            ratios = {words: of["layer10"][1] / of["layer10"][0] for words, of in medians.items()}
            quantity = f"median cushion of layer 10, residual / plain, depth {pair.depth}"
            test = above(1, each=True)
            yield pair.label, tested(quantity, "to the right", test, ratios, about=Class.TRAINED, ratio=True)
        counts = {words: _exceptions([*of.values()]) for words, of in medians.items()}
        test = at_most(EXCEPTIONS, note="on average over seeds")
        quantity = f"layers where the residual median is not larger, depth {pair.depth}"
        yield pair.label, tested(quantity, float(EXCEPTIONS), test, counts, about=Class.TRAINED, ratio=True)


def _exceptions(medians: Sequence[tuple[Sample, Sample]]) -> Sample:
    """Of each seed, how many layers have no larger median in the residual net; a NaN is one."""
    first, *others = [plain.map(lambda p, r: not r > p, residual) for plain, residual in medians]
    return first.map(lambda *layers: sum(layers), *others)


def draw_fig_3(results: Results) -> Figure:
    """Per-sample cushions of layer 10, first seed: depths 20 and 32, one row for each reading."""
    figure, grid = figures.canvas(len(CUSHIONS), 2)
    for column, depth in enumerate((20, 32)):
        for axes, (convention, reading) in zip(grid[:, column], CUSHIONS.items()):
            arrays = {arm: results.arrays(f"depth{depth}", arm, "cushion")[:1] for arm in ARMS}
            key = f"cushion/layer10/samples{reading}"
            figures.outlines(axes, {arm: each[key] for arm, found in arrays.items() for each in found})
            axes.set(title=f"depth {depth}\n{convention}", xlabel="cushion of layer 10", ylabel="samples")
    return figure


FIG_3 = Artefact(
    "fig-3",
    "layer cushions of residual nets lie to the right",
    all_of(cushions),
    "Per-sample cushion ‖A x‖ / (‖A‖ ‖x‖) on 1,000 training images, bias excluded, ‖A‖ the Frobenius norm of the "
    "kernel; three readings of A in a residual layer side by side. All convolutions, the first included. " + TRAINING,
    draw_fig_3,
    runs=(SEED_RUNS["depth20"], SEED_RUNS["depth32"]),
    about=Class.TRAINED,
)
