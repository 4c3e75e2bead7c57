"""Figs. 1d and 1e and the ensemble, of the nets of any runs: those of the paper are read together, as are all others.

Which of its nets the paper trained it does not say, so that each arm is a reading.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from lightning_app.papers.littwin_wolf.training import NORMALISED
from lightning_app.papers.nets import AnyArm, AnyNets, Found, Recipe, mean_of
from lightning_app.papers.predicates import IntervalAbove, Predicate, below, tested
from lightning_app.papers.verdicts import Class, Sample, Varies

__all__ = ["depths", "growth_of_lambda", "growth_of_norm"]

NORM = "weight_norm/total"
DEPTHS = {"d_eff": "effective", "d_coh": "coherent", "d_grad": "gradient"}
DECIDING = ("data.class_path", "model.optimizer.init_args.momentum", "model.weight_decay")
MIXTURE = Recipe("littwin-wolf", "ResidualMLP", lambda *_: NORMALISED[0].run, DECIDING, longer=True)


def growth_of_lambda(nets: AnyNets) -> Iterator[Found]:
    """ "This steady increase of |λ_l|": of all layers but the first, which has no skip around it."""

    def grown(arm: AnyArm) -> Sample:
        return _grown(arm, [f"bn_lambda/{layer}/mean_abs" for layer in sorted(_layers(arm))[1:]])

    arms = [arm for arm in nets.every(MIXTURE) if len(_layers(arm)) > 1]
    quantity = "mean |λ| of all layers but the first: end minus start"
    yield from _readings(quantity, "steady increase", IntervalAbove(), arms, grown)


def _layers(arm: AnyArm) -> set[str]:
    found = (re.fullmatch(r"bn_lambda/([^/]+)/mean_abs", name) for name in arm.names)
    return {match[1] for match in found if match}


def growth_of_norm(nets: AnyNets) -> Iterator[Found]:
    """ "... a steady increase in the L2 norm of the weights": of nets without normalisation."""
    arms = [arm for arm in nets.every(MIXTURE) if NORM in arm.names and not _normalised(arm)]
    quantity = "‖w‖ without normalisation: end minus start"
    yield from _readings(quantity, "steady increase", IntervalAbove(), arms, partial(_grown, names=[NORM]))


def depths(nets: AnyNets) -> Iterator[Found]:
    """ "While initially the virtual ensemble is mostly at depths lower than half the network's depth, as training progresses,
    it becomes deeper and deeper." """
    known = [arm for arm in nets.every(MIXTURE) if _normalised(arm) or NORM in arm.names]  # BnLambda measured these
    measured = [arm for arm in known if "depth/effective" in arm.names]
    for name, field in DEPTHS.items():

        def start(arm: AnyArm, field: str = field) -> Sample:
            return _of_longest(arm.initial, field)

        def deeper(arm: AnyArm, field: str = field) -> Sample:
            return _of_longest(arm.final, field).map(lambda end, start: end - start, _of_longest(arm.initial, field))

        for words, normalised in (("with", True), ("without", False)):
            arms = [arm for arm in measured if _normalised(arm) == normalised]
            quantity, half = f"{name} / p {words} normalisation", below(0.5, each=True)
            early = Class.INITIALISATION
            yield from _readings(f"{quantity}: at initialisation", "lower than half", half, arms, start, early)
            yield from _readings(f"{quantity}: end minus start", "increases", IntervalAbove(), arms, deeper)


def _normalised(arm: AnyArm) -> bool:
    return "bn_lambda/l2" in arm.names


def _readings(
    quantity: str,
    paper: str,
    test: Predicate,
    arms: Sequence[AnyArm],
    ours: Callable[[AnyArm], Sample],
    about: Class = Class.TRAINED,
) -> Iterator[Found]:
    """One claim of the paper's nets, and one of others."""
    for lacking in (False, True):
        samples = {arm.label: ours(arm) for arm in arms if bool(arm.lacks) == lacking}
        if samples:
            yield "", tested(quantity, paper, test, samples, about=about, varies=Varies.SETTING)


def _grown(arm: AnyArm, names: Sequence[str]) -> Sample:
    """The mean of some numbers at the end minus the one at the start."""
    start = mean_of([arm.initial(name) for name in names])
    return mean_of([arm.final(name) for name in names]).map(lambda end, start: end - start, start)


def _of_longest(moment: Callable[[str], Sample], field: str) -> Sample:
    """A depth as a share of the longest path's."""
    depth, longest = (moment(f"depth/{name}") for name in (field, "longest"))
    return depth.map(lambda d, p: d / p if p else float("nan"), longest)
