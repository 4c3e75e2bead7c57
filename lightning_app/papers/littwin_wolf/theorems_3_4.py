"""Theorems 3 and 4: what drives the scales of a residual net up. As identities of a small model, and in trained nets.

The theorems are exact statements about one skip connection, frozen gates and a loss that is linear in the output: identities,
checked by finite differences. They assume that the loss does not change with the scale to first order. Training does not wait
for that, so that trained nets do not test them: they tell whether the theorems describe what happens.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from lightning_app.common.late import torch
from lightning_app.papers.littwin_wolf import training
from lightning_app.papers.littwin_wolf.training import NORMALISED, UNNORMALISED, layer, seen
from lightning_app.papers.parts import Arrays, Artefact, Computation, Source, columns
from lightning_app.papers.predicates import at_least, at_most, noted, shown, tested
from lightning_app.papers.results import Results
from lightning_app.papers.verdicts import Basis, Claim, Class, Sample, Varies

if TYPE_CHECKING:
    from lightning_app.theory.littwin_wolf.driving_force import SkipNet

EXACT = 1e-8  # what differences may leave of an identity

BLOCKS: dict[str, dict[str, Any]] = {  # layers p, and those that the identity connection skips, counted from 1
    "p3": {"p": 3, "first": 2, "last": 2},
    "p5-early": {"p": 5, "first": 2, "last": 3},
    "p5-late": {"p": 5, "first": 3, "last": 5},
    "p6-all": {"p": 6, "first": 2, "last": 6},
}
NETS = {
    **BLOCKS,
    "p5-weak": {**BLOCKS["p5-early"], "strength": 0.02},
    "p5-strong": {**BLOCKS["p5-early"], "strength": 50.0},
}
NETS = {name: {"strength": 1.0, **net, "seeds": 20} for name, net in NETS.items()}


def scales(source: Source, p: int, first: int, last: int, strength: float, seeds: int) -> Arrays:
    """Theorem 3 for every layer of each seed's net: arrays (seeds * p,)."""
    from lightning_app.theory.littwin_wolf import driving_force

    nets = [_net(p, first, last, seed, strength=strength) for seed in range(seeds)]
    return columns(driving_force.theorem_3(net, layer) for net in nets for layer in range(p))


def overall_scale(source: Source, p: int, first: int, last: int, seeds: int) -> Arrays:
    """Theorem 4 for each seed's net: arrays (seeds,)."""
    from lightning_app.theory.littwin_wolf import driving_force

    return columns(driving_force.theorem_4(_net(p, first, last, seed, normalised=False)) for seed in range(seeds))


def _net(p: int, first: int, last: int, seed: int, **more: Any) -> "SkipNet":
    from lightning_app.theory.littwin_wolf.driving_force import skip_net

    return skip_net(p, range(first - 1, last), 8, 4, 30, torch.Generator().manual_seed(seed), **more)


SCALES = Computation("scale-drive", scales, NETS)
WITH_SEEDS = {name: {**block, "seeds": 20} for name, block in BLOCKS.items()}
OVERALL = Computation("overall-scale-drive", overall_scale, WITH_SEEDS)
ROUNDED = at_most(EXACT, each=True, of="net")
ALWAYS = at_least(1, each=True, of="layer of every net")


def identities_3(results: Results) -> list[Claim]:
    """ "|λ_l| will increase for layers l that do not have skip-connections. Conversely, if layer l has a parallel skip
    connection, then |λ_l| will increase if ‖g_p‖² > ‖g_m‖²": by the identities behind it."""
    plain = results.each(SCALES, lambda found: found["identity"][~found["skipped"]])
    skipped = results.each(SCALES, lambda found: found["identity"][found["skipped"]])
    energy = results.each(SCALES, "energy")
    derivative = "d/dμ ∂L/∂λ_l(w - μg), l not skipped: by differences, from -‖g_m + g_p‖² / λ_l, relative"
    power = "an identity that the paper does not use: it checks the computation only"
    same = "the same, l skipped, from -(‖g_p‖² + g_p·g_m) / λ_l"
    return [
        tested(derivative, "Eq. 41", ROUNDED, plain),
        tested(same, "Eq. 44", ROUNDED, skipped),
        tested("-½ ∂‖g‖²/∂λ_l from the same, all layers", "", ROUNDED, energy, basis=Basis.OURS, power=power),
        *_signs(results),
    ]


def _signs(results: Results) -> list[Claim]:
    """Eqs. 24 and 25, at points with ∂L/∂λ_l = 0; that the second holds under its condition only, which the paper does not say;
    and "the condition ‖g_p‖ > ‖g_m‖ implies that g_m·g_p + ‖g_p‖² > 0"."""

    def share(positive: bool) -> Sample:
        def value(found: Arrays) -> np.ndarray:
            chosen = found["skipped"] & ((found["drive"] > 0) == positive)
            return (found["growth"][chosen] > 0) == positive

        return results.each(SCALES, value)

    grows = results.each(SCALES, lambda found: found["growth"][~found["skipped"]] > 0)
    often = results.each(SCALES, lambda found: found["drive"][found["skipped"]] > 0)
    suffice = results.each(SCALES, lambda found: found["drive"][found["skipped"] & (found["norms"] > 1)] > 0)
    quantity = "share with ∂L/∂λ_l = 0, l skipped, ‖g_p‖² + g_p·g_m {} 0, where |λ_l| {}"
    beside = noted("how often the condition holds, random nets", often, "")
    norms = "share with ‖g_p‖ > ‖g_m‖ where ‖g_p‖² + g_p·g_m > 0"
    power = "the inequality of Cauchy and Schwarz: it cannot fail"
    return [
        tested("share with ∂L/∂λ_l = 0, l not skipped, where |λ_l| grows", "all, Eq. 24", ALWAYS, grows),
        tested(quantity.format(">", "grows"), "all, Eq. 25", ALWAYS, share(positive=True), beside),
        tested(quantity.format("<", "falls"), "", ALWAYS, share(positive=False), basis=Basis.OURS),
        tested(norms, "", ALWAYS, suffice, basis=Basis.OURS, power=power),
    ]


def identities_4(results: Results) -> list[Claim]:
    """ "If either ‖g_p‖² or ‖g_m‖² is dominant [...], the scaling of the weights C will increase": by the identities behind it,
    and m a² + p b² >= 2 √(mp) a b. "Dominant" is made precise by a bound of ours."""
    euler, final, printed, cosine = (results.each(OVERALL, key) for key in ("euler", "identity", "printed", "cosine"))
    driven = results.each(OVERALL, lambda found: found["drive"][found["cosine"] > found["bound"]] > 0)
    often = results.each(OVERALL, lambda found: found["drive"] > 0)
    beside = noted("how often C is driven up, random nets", often, ""), noted("cos(g_m, g_p), random nets", cosine)
    eq_27 = "d/dμ ∂L/∂C(w - μg) where ∂L/∂C = 0: by differences, from Eq. 27, relative"
    larger = "share with cos(g_m, g_p) > -2√(mp) / (m + p) where the drive is towards a larger C"
    power = "the inequality of arithmetic and geometric mean: it cannot fail, and no net near a cosine of -1 was tried"
    misprint = noted("Eq. 47, the proof's last line, has m‖g_p‖² for m‖g_m‖²: a misprint", printed)
    return [
        tested("C ∂L/∂C, by differences, from m L_m + p L_p, relative", "proof of Thm. 4", ROUNDED, euler),
        tested(eq_27, "-(m‖g_m‖² + p‖g_p‖² + (m+p) g_p·g_m) / C", ROUNDED, {"Eq. 27": final}, misprint),
        tested(larger, "", at_least(1, each=True, of="net"), driven, *beside, basis=Basis.OURS, power=power),
    ]


ALL = range(1, training.BLOCKS + 1)
DYNAMICS, CONDITION = "dynamics, not the theorem's statement", "the theorem has a condition"
OTHER_LOSS = "the theorem is of a loss linear in the output, at points where its derivative by the scale is zero"


def _share(results: Results, settings: Sequence[training.Setting], *names: str) -> dict[str, Sample]:
    """The share of numbers, over names and epochs, that are positive; NaN of a seed where that cannot be told.

    Agreements are 1 or 0, and NaN of a scale that did not change: it agrees with nothing and is left out.
    """

    def of_seed(numbers: pd.Series) -> float:
        positive = (numbers > 0).astype(float).where(numbers.notna())
        return (numbers.dropna() if "/agrees" in names[0] else positive).mean(skipna=False)

    def of(setting: training.Setting) -> Sample:
        by_seed = pd.concat([results.curves(setting.run.name, setting.arm, name) for name in names]).apply(of_seed)
        return Sample(tuple(by_seed), results.incomplete(setting.run.name))

    return training.by_setting(settings, of)


def _drives(layers: Sequence[int], field: str) -> list[str]:
    return [f"drive/{layer(number)}/{field}" for number in layers]


def theorem_3_in_training(results: Results) -> list[Claim]:
    """ "Thm. 3 suggests that |λ_l| will increase for layers l that do not have skip-connections." """
    layers = [1], training.SKIPPED
    first, skipped = (_share(results, NORMALISED, *_drives(which, "second_order")) for which in layers)
    agrees, at_first = (_share(results, NORMALISED, *_drives(ALL, field)) for field in ("agrees", "agrees_first"))
    first_layer = "training: share of epochs with |λ| of the first layer driven up"
    goes = "training: share of layers and epochs in which |λ| goes where"
    return [
        seen(first_layer, OTHER_LOSS, first),
        seen("training: share of layers with a skip and epochs with |λ| driven up", CONDITION, skipped),
        seen(f"{goes} its drive says", DYNAMICS, agrees),
        seen(f"{goes} the gradient itself says", DYNAMICS, at_first),
    ]


def theorem_4_in_training(results: Results) -> list[Claim]:
    """ "If either ‖g_p‖ or ‖g_m‖ is dominant (for example ... at the start of training), the scaling of the weights C will
    increase." """
    start = training.by_setting(UNNORMALISED, lambda s: results.initial(s.run.name, s.arm, "drive/scale/second_order"))
    driven, agrees, at_first = (
        _share(results, UNNORMALISED, f"drive/scale/{field}") for field in ("second_order", "agrees", "agrees_first")
    )
    before = "training: drive of C before the first step"
    goes = "training: share of epochs in which C goes where"
    return [
        shown(before, "", OTHER_LOSS, start, basis=Basis.OURS, varies=Varies.SETTING, about=Class.INITIALISATION),
        seen("training: share of epochs with C driven up", CONDITION, driven),
        seen(f"{goes} its drive says", DYNAMICS, agrees),
        seen(f"{goes} the gradient itself says", DYNAMICS, at_first),
    ]


IN_TRAINING = (
    " In training: the nets of Fig. 1{}, cross-entropy of 128 training samples with statistics of normalisation frozen. The "
    "drive is ½ sign(λ) ∂‖∇_w L‖²/∂λ, for C -∂²L/∂C∂μ along the step. Its sign at one epoch is compared with the change to the "
    "next, which is of 200 steps and of first order too: how often they agree is described, and was judged before it was looked "
    "at again on 2026-11-23, because it tells of dynamics and not of the theorem. Since 2026-11-27 the drive of the first "
    "layer, and that of C before the first step, are described too: cross-entropy is not linear in the output. "
) + training.DURATION

THEOREM_3 = Artefact(
    "theorem-3",
    "the scale of a layer grows, always where no connection skips it, else if the deep paths' gradient is the larger one",
    lambda results: [*identities_3(results), *theorem_3_in_training(results)],
    "Eq. 23 with the loss -mean(label Y); gates and σ those of a forward pass, then frozen. 20 nets for each of six shapes, "
    "8 units a layer, two of them with the block's output made 50 times weaker or stronger. The identities hold at any point; "
    "the signs of steps are those at the nearest point with ∂L/∂λ_l = 0, as the theorem assumes: elsewhere the ordinary gradient "
    "of order μ decides, and the drive is of order μ²." + IN_TRAINING.format("d"),
    runs=training.runs_of(NORMALISED),
    computations=(SCALES,),
    about=Class.FORMULA,
)
THEOREM_4 = Artefact(
    "theorem-4",
    "the scale of all weights grows without normalisation too",
    lambda results: [*identities_4(results), *theorem_4_in_training(results)],
    "Eq. 26: λ = σ = 1, C = ‖w‖ / √Λ with Λ the number of weights; the loss and frozen gates of theorem-3, 20 nets for each of "
    "four shapes. Eq. 27 at the nearest point with g·w = 0, where C does not change to first order."
    + IN_TRAINING.format("e"),
    runs=training.runs_of(UNNORMALISED),
    computations=(OVERALL,),
    about=Class.FORMULA,
)
