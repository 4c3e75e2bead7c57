"""Effective depth of the ensemble that a residual net is: `lightning_app.measures.paths` on probe samples after epochs."""

import logging
from collections.abc import Mapping
from typing import Any

import pytorch_lightning as pl
from torch import nn
from typing_extensions import override

from callbacks.base import Measure
from callbacks.protocol import few_samples, loss_of, members_of, settled_net
from lightning_app.errors import UserError
from lightning_app.measures import NoBranches, NotPiecewiseLinear, effective_depth

__all__ = ["EffectiveDepth"]

log = logging.getLogger(__name__)


class EffectiveDepth(Measure):
    """Logs how long the paths are along which a residual net's outputs, and its gradient, come about.

    | key | meaning |
    |---|---|
    | ``depth/effective`` | d_eff = sum_r r E|f_r|^2 / sum_r E|f_r|^2, in weight layers, the readout not counted |
    | ``depth/effective_input`` | the same of the paths that start at the input, not at a bias or shift |
    | ``depth/coherent`` | d_coh = sum_r r E<f_r, f> / E|f|^2 |
    | ``depth/gradient`` | d_grad = sum_r r |g_r|^2 / sum_r |g_r|^2 |
    | ``depth/longest``, ``depth/relative`` | p, the most layers of a path; d_eff / p |
    | ``depth/bias_share`` | share of sum_r E|f_r|^2 that is lost without the paths that start at a constant |
    | ``depth/distribution`` | E|f_r|^2 over r: histogram, in millionths of the sum |
    | ``depth/lengths``, ``depth/outputs``, ``depth/gradients`` | r, E|f_r|^2, |g_r|^2: arrays |

    Outputs are centred over the classes. The net is in evaluation mode; before training, when running statistics are of no
    data, they are those of probe samples. Nothing is logged of nets that have no branches (their one length is their depth)
    and of those that are not piecewise linear.

    Args:
        every_n_epochs: after every so many epochs, and always after the final one. The defaults take 1,700 gradients of an
            image for a residual net of depth 20, 3 % of a CIFAR-10 epoch; it grows with the square of the depth, a gradient's
            own cost with the depth.
        at_start: also before the first training step.
        samples: so many of the probe, evenly spread over it.
        gradient_samples: so many of these for d_grad: one costs as much as five others.
    """

    family = "depth"

    def __init__(
        self, every_n_epochs: int = 1, at_start: bool = True, samples: int = 64, gradient_samples: int = 16
    ) -> None:
        super().__init__(every_n_epochs, at_start)
        if samples < 1 or gradient_samples < 1:
            raise UserError(
                f"EffectiveDepth needs samples and gradient_samples of at least 1, got {samples} and {gradient_samples}."
            )
        self.samples = samples
        self.gradient_samples = min(samples, gradient_samples)
        self._said: set[str] = set()

    @override
    def measure(self, trainer: pl.Trainer, net: nn.Module) -> Mapping[str, Any]:
        loss, net = loss_of(trainer.lightning_module), settled_net(trainer, net)
        few = list(few_samples(trainer, net, self.samples))
        try:
            return {"depth": effective_depth(net, few, loss, self.gradient_samples)}
        except NoBranches as error:
            if len(members_of(trainer.lightning_module)) == 1:  # beside a residual net, a plain one is no surprise
                self._say_once(str(error))
        except NotPiecewiseLinear as error:
            self._say_once(str(error))
        return {}

    def _say_once(self, sentence: str) -> None:
        if sentence not in self._said:
            self._said.add(sentence)
            log.warning(f"no depth keys: {sentence}")
