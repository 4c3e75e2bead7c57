"""Figs. 1d and 1e and the ensemble, of the nets of any runs: those of the paper are read together, as are all others.

Which of its nets the paper trained it does not say, so that each arm is a reading.
"""

import re
from collections.abc import Iterator, Mapping

from lightning_app.papers.littwin_wolf.training import NORMALISED
from lightning_app.papers.nets import AnyArm, AnyNets, Found, Recipe, mean_of
from lightning_app.papers.predicates import IntervalAbove, Predicate, below, tested
from lightning_app.papers.verdicts import Class, Sample, Varies

NORM = "weight_norm/total"
DEPTHS = {"d_eff": "effective", "d_coh": "coherent", "d_grad": "gradient"}
DECIDING = ("data.class_path", "model.optimizer.init_args.momentum", "model.weight_decay")
MIXTURE = Recipe("littwin-wolf", "ResidualMLP", lambda *_: NORMALISED[0].run, DECIDING, longer=True)


def growth_of_lambda(nets: AnyNets) -> Iterator[Found]:
    """ "This steady increase of |λ_l|": of all layers but the first, which has no skip around it."""
    of_layer = re.compile("bn_lambda/[^/]+/mean_abs").fullmatch
    names = {arm: sorted(filter(of_layer, arm.names)) for arm in nets.every(MIXTURE)}
    ours = {arm: _grown(arm, *of_layers[1:]) for arm, of_layers in names.items() if len(of_layers) > 1}
    quantity = "mean |λ| of all layers but the first: end minus start"
    yield from _readings(quantity, "steady increase", IntervalAbove(), ours)


def growth_of_norm(nets: AnyNets) -> Iterator[Found]:
    """ "... a steady increase in the L2 norm of the weights": of nets without normalisation."""
    ours = {arm: _grown(arm, NORM) for arm in nets.every(MIXTURE) if NORM in arm.names and not _normalised(arm)}
    yield from _readings("‖w‖ without normalisation: end minus start", "steady increase", IntervalAbove(), ours)


def depths(nets: AnyNets) -> Iterator[Found]:
    """ "While initially the virtual ensemble is mostly at depths lower than half the network's depth, as training progresses,
    it becomes deeper and deeper." """
    known = [arm for arm in nets.every(MIXTURE) if _normalised(arm) or NORM in arm.names]  # BnLambda measured these
    measured = [arm for arm in known if "depth/effective" in arm.names]
    for name, field in DEPTHS.items():
        for words, normalised in (("with", True), ("without", False)):
            arms = [arm for arm in measured if _normalised(arm) == normalised]
            start, end = (
                {arm: moment(arm, f"depth/{field}") / moment(arm, "depth/longest") for arm in arms}
                for moment in (AnyArm.initial, AnyArm.final)
            )
            quantity, half = f"{name} / p {words} normalisation", below(0.5, each=True)
            early, deeper = Class.INITIALISATION, {arm: end[arm] - start[arm] for arm in arms}
            yield from _readings(f"{quantity}: at initialisation", "lower than half", half, start, early)
            yield from _readings(f"{quantity}: end minus start", "increases", IntervalAbove(), deeper)


def _normalised(arm: AnyArm) -> bool:
    return "bn_lambda/l2" in arm.names


def _readings(
    quantity: str, paper: str, test: Predicate, ours: Mapping[AnyArm, Sample], about: Class = Class.TRAINED
) -> Iterator[Found]:
    """One claim of the paper's nets, and one of others."""
    for lacking in (False, True):
        samples = {arm.label: sample for arm, sample in ours.items() if bool(arm.lacks) == lacking}
        if samples:
            yield "", tested(quantity, paper, test, samples, about=about, varies=Varies.SETTING)


def _grown(arm: AnyArm, *names: str) -> Sample:
    """The mean of some numbers at the end minus the one at the start."""
    return mean_of([arm.final(name) for name in names]) - mean_of([arm.initial(name) for name in names])
