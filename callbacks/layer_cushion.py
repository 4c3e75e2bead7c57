"""Noise stability, layer by layer: `lightning_app.measures.cushions` on the probe samples after epochs."""

from collections.abc import Mapping
from typing import Any

import pytorch_lightning as pl
from torch import nn
from typing_extensions import override

from callbacks.base import Measure, probe_batches
from lightning_app.measures import cushions, probe_forward
from lightning_app.networks import layers_of

__all__ = ["LayerCushion"]


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

    @override
    def measure(self, trainer: pl.Trainer, net: nn.Module) -> Mapping[str, Any]:
        layers = layers_of(net)
        probe = probe_forward(net, layers, probe_batches(trainer, net), self.compile)
        by_layer = {f"cushion/{name}": cushion for name, cushion in cushions(layers, probe.layers).items()}
        return {"probe/risk": probe.loss, "probe/error": probe.error, **by_layer}
