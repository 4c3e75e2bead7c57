"""What drives the scales of nets during training, predicted and observed: Theorems 3 and 4 of Littwin & Wolf (2016)."""

from collections.abc import Mapping
from dataclasses import astuple
from typing import Any

import pytorch_lightning as pl
from torch import nn
from typing_extensions import override

from callbacks.protocol import few_samples, loss_of, settled_net
from callbacks.remembering import RememberingMeasure
from lightning_app.errors import UserError
from lightning_app.measures import Force, compare, driving_force, normalisations_of, share
from lightning_app.measures.driving_force import SCALE
from lightning_app.networks import layers_of

__all__ = ["DrivingForce"]


class DrivingForce(RememberingMeasure):
    """Logs the forces on every normalisation's lambda and on the scale C = \\|\\|w\\|\\| / sqrt(number of weights).

    | key | meaning |
    |---|---|
    | ``drive/layer07/size`` | sum \\|lambda\\| of the normalisation after that layer |
    | ``drive/layer07/first_order`` | - sum sign(lambda) dL/dlambda: its push, per unit of learning rate |
    | ``drive/layer07/second_order`` | Theorem 3: 1/2 sum sign(lambda) d\\|\\|g\\|\\|^2/dlambda; > 0: \\|lambda\\| is driven up |
    | ``drive/layer07/observed`` | change of sum \\|lambda\\| since the last measurement |
    | ``drive/layer07/agrees`` | 1 where the last measurement's second_order had the sign of this change, else 0 |
    | ``drive/layer07/agrees_first`` | the same of its first_order |
    | ``drive/scale/...`` | the same for C: -dL/dC, Theorem 4, ... |
    | ``drive/positive``, ``positive_first`` | share of normalisations with second_order (first_order) > 0 |
    | ``drive/agrees``, ``agrees_first`` | share of normalisations that agree |

    L is the module's ``loss(outputs, labels)`` on the probe samples, or cross-entropy where it has none, without
    penalty and with the statistics of normalisation frozen (before training, when these are of no data, those of probe
    samples); g is its gradient in the weights of the layers (`lightning_app.measures.driving_force`). The observed
    change is of all steps in between, momentum and penalty included, so that agreement is a finding and no test of the
    theorem: the theorem speaks of stationary lambda, elsewhere the first order decides. Of a net whose layers are not
    trained nothing is logged. The first measurement has nothing to compare with; where prediction or change is exactly
    0, ``agrees`` is NaN. A net without normalisation has C only.

    Args:
        every_n_epochs: after every so many epochs, and always after the final one. A measurement costs about 4 gradients
            of the samples: 500 of an image with the defaults, 1 % of a CIFAR-10 epoch.
        at_start: also before the first training step.
        samples: so many of the probe, evenly spread over it.
        double: in float64; otherwise in the precision of the weights.
    """

    family = "drive"

    def __init__(
        self, every_n_epochs: int = 1, at_start: bool = True, samples: int = 128, double: bool = False
    ) -> None:
        super().__init__(every_n_epochs, at_start)
        if samples < 1:
            raise UserError(f"samples of DrivingForce must be at least 1, got {samples}.")
        self.samples = samples
        self.double = double

    @override
    def measure(self, trainer: pl.Trainer, net: nn.Module) -> Mapping[str, Any]:
        trained = settled_net(trainer, net)
        layers = [layer for layer in layers_of(trained) if layer.weight.requires_grad]
        if not layers:
            return {}
        few = list(few_samples(trainer, net, self.samples))
        norms = normalisations_of(trained, few[0][0][:1])
        forces = driving_force(trained, few, layers, norms, loss_of(trainer.lightning_module), self.double)
        before = self.swap(trainer, net, {name: list(astuple(force)) for name, force in forces.items()}) or {}
        return _forces(forces) | _comparisons({name: Force(*before[name]) for name in before if name in forces}, forces)


def _forces(forces: Mapping[str, Force]) -> dict[str, Any]:
    found: dict[str, Any] = {f"drive/{name}": force for name, force in forces.items()}
    if on_lambda := [force for name, force in forces.items() if name != SCALE]:
        found["drive/positive"] = share(float(force.second_order > 0) for force in on_lambda)
        found["drive/positive_first"] = share(float(force.first_order > 0) for force in on_lambda)
    return found


def _comparisons(before: Mapping[str, Force], now: Mapping[str, Force]) -> dict[str, float]:
    compared = {name: compare(force, now[name]) for name, force in before.items()}
    found = {f"drive/{name}/{field}": value for name, one in compared.items() for field, value in vars(one).items()}
    if on_lambda := [one for name, one in compared.items() if name != SCALE]:
        found["drive/agrees"] = share(one.agrees for one in on_lambda)
        found["drive/agrees_first"] = share(one.agrees_first for one in on_lambda)
    return found
