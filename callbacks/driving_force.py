"""What drives the scales of nets during training, predicted and observed: Theorems 3 and 4 of Littwin & Wolf (2016)."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import astuple
from statistics import fmean
from typing import Any

from typing_extensions import override

from callbacks.context import MeasureContext
from callbacks.measure import StatefulMeasure
from lightning_app.common.errors import at_least
from lightning_app.measures import Force, driving_force, normalisations_of, scale_change
from lightning_app.measures.paths.driving_force import SCALE
from lightning_app.networks import layers_of


class DrivingForce(StatefulMeasure):
    """Logs the forces on every normalisation's λ and on the scale C = ‖w‖ / √(number of weights), and whether they
    predicted the change.

    Definition:
        With g the gradient of the loss in the layers' weights w, the first-order force on Σ |λ| is ``-Σ sign(λ) ∂L/∂λ``, and a
        small step along -g changes it by ``½ Σ sign(λ) ∂‖g‖²/∂λ`` per unit of learning rate, the driving force of Theorem 3.
        Likewise for C: ``-∂L/∂C``, and ``(g·Hw + ‖g‖²) / C - (g·w)² / (C ‖w‖²)``, Theorem 4. L is the mean loss of probe
        samples, without penalty, with the statistics of normalisation frozen.

    Keys:
        | key | unit | meaning |
        |---|---|---|
        | ``drive/layer07/<field>`` | below | fields of `Force`, on λ after that layer; of `ScaleChange` from the second time on |
        | ``drive/scale/<field>`` | below | the same of `Force` and `ScaleChange` for C |
        | ``drive/positive`` | share | of normalisations with ``second_order`` > 0: λ is driven away from 0 |
        | ``drive/positive_first`` | share | of normalisations with ``first_order`` > 0 |
        | ``drive/agrees`` | share | of normalisations whose ``second_order`` had the sign of the observed change |
        | ``drive/agrees_first`` | share | of normalisations whose ``first_order`` had it |
        | ``cost/drive`` | s | what measuring all nets took |

    Interpretation:
        Positive means upwards. The observed change is that of all steps in between, with momentum and penalty. So agreement is
        a finding, not a test of the theorem, which holds as an identity (to 1e-14 in tests). The theorem is about stationary λ;
        elsewhere the first order is larger by orders of magnitude and decides: on Gaussian mixtures |λ| goes where the driving
        force points in 16 to 53 % of layers and epochs, C where its own does in 92 % of epochs and more when the Gaussians
        overlap, else in 2 to 57 %.

    Cost:
        About 4 gradients of the samples: with the defaults on the order of 1 % of an epoch of CIFAR-10.

    Breaks:
        * Before training, when running statistics have seen no data, those of probe samples are used.
        * Entries of λ that are 0 are ignored: |λ| has no derivative there.
        * If force or change is exactly 0, ``agrees`` is NaN and does not count in shares.
        * w and C include trained parameters only: neither frozen weights nor weights computed from others, as under
          ``weight_norm`` and other parametrizations.
        * A net without normalisation has C only; if no layer is trained, nothing is logged.
        * The loss must be differentiable twice and a mean over the batch.

    Source:
        Littwin & Wolf (2016), section 4.2, Theorems 3 and 4.

    When it measures: ``every_n_epochs`` (1; the last epoch always), ``at_start`` (True: before the first step) and
    ``every_n_steps`` (None; a number of steps, or "powers_of_2"), the arguments of `EpochCallback`.

    Args:
        samples: number of probe samples, evenly spread over the probe; all if it has fewer.
        double: compute in float64; otherwise in the precision of the weights.
    """

    family = "drive"

    def __init__(self, samples: int = 128, double: bool = False, **clock: Any) -> None:
        super().__init__(**clock)
        self.samples = at_least(1, "DrivingForce", samples=samples)
        self.double = double

    @override
    def measure(self, context: MeasureContext) -> Mapping[str, Any]:
        net = context.recalibrated()
        layers = [layer for layer in layers_of(net) if layer.weight.requires_grad]
        if not layers:
            self.warn_once(
                f"DrivingForce logs nothing for '{context.name}': no layer has a weight that is a trained parameter."
            )
            return {}
        norms, samples = normalisations_of(net, context.example()), context.samples(self.samples)
        forces = driving_force(net, samples, layers, norms, context.loss, self.double, context.graph_memory)
        before = context.kept("last", {})
        context.keep("last", {name: list(astuple(force)) for name, force in forces.items()})
        return _forces(forces) | _comparisons({name: Force(*before[name]) for name in before if name in forces}, forces)


def _forces(forces: Mapping[str, Force]) -> dict[str, Any]:
    found: dict[str, Any] = {f"drive/{name}": force for name, force in forces.items()}
    if on_lambda := [force for name, force in forces.items() if name != SCALE]:
        found["drive/positive"] = _share(_upwards(force.second_order) for force in on_lambda)
        found["drive/positive_first"] = _share(_upwards(force.first_order) for force in on_lambda)
    return found


def _upwards(force: float) -> float:
    """1 or 0; NaN of a net that has diverged."""
    return math.nan if math.isnan(force) else float(force > 0)


def _comparisons(before: Mapping[str, Force], now: Mapping[str, Force]) -> dict[str, float]:
    compared = {name: scale_change(force, now[name]) for name, force in before.items()}
    found = {f"drive/{name}/{field}": value for name, one in compared.items() for field, value in vars(one).items()}
    if on_lambda := [one for name, one in compared.items() if name != SCALE]:
        found["drive/agrees"] = _share(one.agrees for one in on_lambda)
        found["drive/agrees_first"] = _share(one.agrees_first for one in on_lambda)
    return found


def _share(signs: Iterable[float]) -> float:
    """Mean of ones and zeros without those that are NaN; NaN if all are.

    >>> _share([1.0, math.nan, 0.0])
    0.5
    """
    known = [sign for sign in signs if not math.isnan(sign)]
    return fmean(known) if known else math.nan
