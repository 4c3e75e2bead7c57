"""Noise stability, layer by layer: `lightning_app.measures.cushions` on the probe samples after epochs."""

import logging
from collections.abc import Mapping
from typing import Any

import pytorch_lightning as pl
from torch import Tensor, nn
from typing_extensions import override

from callbacks.base import Measure
from callbacks.protocol import loss_of, probe_batches
from lightning_app.measures import cushions, probe_forward
from lightning_app.networks import Layer, measurable, survey

__all__ = ["LayerCushion"]

log = logging.getLogger(__name__)


class LayerCushion(Measure):
    """Logs the per-sample cushions of all layers, in all readings, from one forward pass over the probe samples.

    Keys: ``cushion/layer10/<field>`` with the fields of `lightning_app.measures.CushionStatistics` (``median``, ``minimum``,
    ``median_transferred_operator``, ...; dimensionless), and from the same pass ``probe/risk`` (nats) and
    ``probe/error`` (share).

    Args:
        every_n_epochs: after every so many epochs, and always after the final one.
        at_start: also before the first training step.
        compile: one compiled graph for the pass: pays on a large probe or with many epochs.
    """

    family = "cushion"

    def __init__(self, every_n_epochs: int = 1, at_start: bool = True, compile: bool = False) -> None:
        super().__init__(every_n_epochs, at_start)
        self.compile = compile
        self._warned = False

    @override
    def measure(self, trainer: pl.Trainer, net: nn.Module) -> Mapping[str, Any]:
        layers = self._measurable(net, next(probe_batches(trainer, net))[0][:1])
        loss = loss_of(trainer.lightning_module)
        probe = probe_forward(net, layers, probe_batches(trainer, net), self.compile, loss)
        by_layer = {f"cushion/{name}": cushion for name, cushion in cushions(layers, probe.layers).items()}
        return {"probe/risk": probe.loss, "probe/error": probe.error, **by_layer}

    def _measurable(self, net: nn.Module, sample: Tensor) -> tuple[Layer, ...]:
        """The layers that have cushions; the others are named, once a run, with the reason."""
        surveyed = survey(net, sample)
        without = [f"{found.path}: {found.reason}" for found in surveyed if found.reason]
        if without and not self._warned:
            log.warning("no cushions of %d of %d weights. %s", len(without), len(surveyed), "; ".join(without))
        self._warned |= bool(without)
        return measurable(surveyed)
