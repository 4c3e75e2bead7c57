"""Theorems 3 and 4 in trained nets, beside their identities: is a scale driven up, and does it go where it is driven?

The theorems assume that the loss does not change with the scale to first order. Training does not wait for that, so that
nothing here tests them: it tests whether they describe what happens.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pandas as pd

from lightning_app.checks import excludes_zero, if_measured
from lightning_app.reproduce.littwin_wolf import theorems_3_4
from lightning_app.reproduce.littwin_wolf.training import (
    BLOCKS,
    NORMALISED,
    SKIPPED,
    UNNORMALISED,
    Setting,
    claim,
    layer,
    often,
    runs_of,
)
from lightning_app.reproduce.results import Results
from lightning_app.verdicts import Claim, Outcome, Sample, described, holds

__all__ = ["THEOREM_3", "THEOREM_4"]

ALWAYS = 0.95  # of the measurements
ALL = range(1, BLOCKS + 1)


# -- shares of layers and epochs ------------------------------------------------------------------------------------------


def _share(results: Results, setting: Setting, names: Sequence[str], true: Callable[[pd.Series], pd.Series]) -> Sample:
    """The share of numbers, over names and epochs, of which something is true; NaN of a seed where that cannot be told."""
    curves = [results.curves(setting.run.name, setting.arm, name) for name in names]
    by_seed = pd.concat(curves).apply(lambda numbers: true(numbers).mean(skipna=False))
    return Sample(tuple(by_seed), results.incomplete(setting.run.name))


def _positive(numbers: pd.Series) -> pd.Series:
    return (numbers > 0).astype(float).where(numbers.notna())


def _true(numbers: pd.Series) -> pd.Series:
    """Of what is 1 or 0; a scale that did not change agrees with nothing and is left out."""
    return numbers.dropna()


def _drives(layers: Sequence[int], field: str) -> list[str]:
    return [f"drive/{layer(number)}/{field}" for number in layers]


def _more_than_half(ours: Sample) -> Outcome:
    return excludes_zero(ours.map(lambda share: share - 0.5))


def _told(ours: Sample) -> Outcome:
    return described(ours.range)


HALF = "95 % bootstrap interval over seeds above 0.5"
NONE = "none"


def _agreement(results: Results, quantity: str, settings: Sequence[Setting], names: Callable[[str], Sequence[str]]):
    """Of the change to the next epoch with the second-order drive, and with the first-order push."""

    def share(field: str) -> Callable[[Setting], Sample]:
        return lambda setting: _share(results, setting, names(field), _true)

    yield claim(f"{quantity} goes where its drive says", "> 0.5", HALF, settings, share("agrees"), _more_than_half)
    quantity = f"{quantity} goes where the gradient itself says"
    yield claim(quantity, "", NONE, settings, share("agrees_first"), _told)


# -- Theorem 3 ------------------------------------------------------------------------------------------------------------


def theorem_3_in_training(results: Results) -> list[Claim]:
    def driven_up(layers: Sequence[int]) -> Callable[[Setting], Sample]:
        return lambda setting: _share(results, setting, _drives(layers, "second_order"), _positive)

    return [
        claim(
            "training: share of epochs with |λ| of the first layer driven up",
            "all: it has no skip",
            f"at least {ALWAYS:g}, mean over seeds",
            NORMALISED,
            driven_up([1]),
            often(ALWAYS),
        ),
        claim(
            "training: share of layers with a skip and epochs with |λ| driven up",
            "where ‖g_p‖² + g_p·g_m > 0",
            NONE,
            NORMALISED,
            driven_up(SKIPPED),
            _told,
        ),
        *_agreement(
            results,
            "training: share of layers and epochs in which |λ|",
            NORMALISED,
            lambda field: _drives(ALL, field),
        ),
    ]


# -- Theorem 4 ------------------------------------------------------------------------------------------------------------


def theorem_4_in_training(results: Results) -> list[Claim]:
    def at_start(setting: Setting) -> Sample:
        return results.initial(setting.run.name, setting.arm, "drive/scale/second_order")

    return [
        claim(
            "training: drive of C before the first step",
            "> 0: at the start of training",
            "above 0 in every seed",
            UNNORMALISED,
            at_start,
            lambda ours: if_measured(ours, lambda: holds(min(ours.values) > 0, f"down to {min(ours.values):.3g}")),
        ),
        claim(
            "training: share of epochs with C driven up",
            "if either gradient dominates",
            NONE,
            UNNORMALISED,
            lambda setting: _share(results, setting, ["drive/scale/second_order"], _positive),
            _told,
        ),
        *_agreement(
            results, "training: share of epochs in which C", UNNORMALISED, lambda field: [f"drive/scale/{field}"]
        ),
    ]


CONVENTION = (
    " In training: the nets of Fig. 1{}, cross-entropy of 128 training samples with statistics of normalisation frozen. The "
    "drive is ½ sign(λ) ∂‖∇_w L‖²/∂λ, for C -∂²L/∂C∂μ along the step. Its sign at one epoch is compared with the change to the "
    "next, which is of 200 steps and of first order too."
)

THEOREM_3 = replace(
    theorems_3_4.THEOREM_3,
    runs=runs_of(NORMALISED),
    claims=lambda results: [*theorems_3_4.identities_3(results), *theorem_3_in_training(results)],
    convention=theorems_3_4.THEOREM_3.convention + CONVENTION.format("d"),
)
THEOREM_4 = replace(
    theorems_3_4.THEOREM_4,
    runs=runs_of(UNNORMALISED),
    claims=lambda results: [*theorems_3_4.identities_4(results), *theorem_4_in_training(results)],
    convention=theorems_3_4.THEOREM_4.convention + CONVENTION.format("e"),
)
