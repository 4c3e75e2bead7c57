"""Section 5: interlayer cushions of full nets."""

from collections.abc import Iterator

from matplotlib.figure import Figure

from lightning_app.papers.artefact import Artefact
from lightning_app.papers.nets import Found, Nets, all_of
from lightning_app.papers.predicates import Factor, above, tested
from lightning_app.papers.results import Results
from lightning_app.papers.verdicts import Class
from lightning_app.papers.yu_tomasi.nets import ARMS, FULL, PLAIN, RESIDUAL, full
from lightning_app.plots import figures

MODES = {"BN on one sample": "interlayer_batch1", "BN in evaluation mode": "interlayer"}
SIZES = {"n = H W": "mean_hw", "n = C H W": "mean"}
BLOCK = "block05"
IN_PRINT = {RESIDUAL: 0.20, PLAIN: 2.7e-7}  # means; standard deviations .0024 and 2.4e-8
BY_ITSELF = (
    "on one sample any plain block passes, trained or not: J x is zero but for ε / (var + ε), whatever the weights"
)


def interlayer(nets: Nets) -> Iterator[Found]:
    """ "μ for a residual block is much bigger than that of the corresponding plain block. [...] The 5th out of 9 residual
    block [...] has a mean 0.20 and standard deviation 0.0024. In comparison, [...] the corresponding plain block has a mean
    2.7×10^-7 and standard deviation 2.4×10^-8." """
    for arm in nets.arms(full()):
        samples = {
            f"{mode}, {size}": arm.final(f"{family}/{BLOCK}/{field}")
            for mode, family in MODES.items()
            for size, field in SIZES.items()
        }
        paper = IN_PRINT[arm.kind]
        test = Factor(paper, 1.5 if arm.kind == RESIDUAL else 3.0)
        quantity = f"interlayer cushion of block 5 of 9, {arm.kind}"
        yield arm.label, tested(quantity, paper, test, samples, about=Class.TRAINED)
    for pair in nets.pairs(full()):  # the two n differ by a factor that is the same for both nets
        both = {mode: pair.final(f"{family}/{BLOCK}/mean_hw") for mode, family in MODES.items()}
        ratios = {mode: residual / plain for mode, (plain, residual) in both.items()}
        more = {"about": Class.TRAINED, "ratio": True, "power": BY_ITSELF}
        yield pair.label, tested("residual / plain", "much bigger", above(10), ratios, **more)


def draw_interlayer(results: Results) -> Figure:
    """Per-sample interlayer cushions of block 5, first seed, in both modes."""
    figure, (grid,) = figures.canvas(1, 2)
    arrays = {arm: results.arrays(FULL.name, arm, "interlayer")[:1] for arm in ARMS}
    for axes, (mode, family) in zip(grid, MODES.items()):
        samples = {arm: a[f"{family}/{BLOCK}/samples"] for arm, found in arrays.items() for a in found}
        figures.outlines(axes, samples)
        axes.set(title=mode, xlabel="interlayer cushion, n = C H W", ylabel="samples")
    return figure


INTERLAYER = Artefact(
    "interlayer",
    "interlayer cushions of the fifth block of full nets of depth 20",
    all_of(interlayer),
    "μ = √n ‖J x‖ / (‖J‖ ‖x‖) of conv-BN-ReLU-conv-BN(+x)-ReLU. With BN normalising a single sample, J x of a plain "
    "block is zero up to ε / (var + ε), whatever its weights: that is where 2.7e-7 comes from. In evaluation mode "
    "plain and residual blocks are alike. fb.resnet.torch's recipe, 164 epochs.",
    draw_interlayer,
    runs=(FULL,),
    about=Class.TRAINED,
)
