"""Noise stability, layer by layer: `lightning_app.measures.cushions` on the probe samples after epochs."""

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import pytorch_lightning as pl
from torch import nn
from typing_extensions import override

from callbacks.base import Measure, isolated
from callbacks.emit import describe_layers
from callbacks.protocol import loss_of, members_of, probe_batches
from lightning_app.measures import cushions, probe_forward
from lightning_app.networks import Surveyed, measurable, survey

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
        self._described = False

    @override
    def observe(self, trainer: pl.Trainer, pl_module: pl.LightningModule, epoch: int) -> None:
        if trainer.is_global_zero and not self._described:
            self._describe(trainer, pl_module)
        super().observe(trainer, pl_module, epoch)

    @override
    def measure(self, trainer: pl.Trainer, net: nn.Module) -> Mapping[str, Any]:
        layers = measurable(_surveyed(trainer, net))
        loss = loss_of(trainer.lightning_module)
        probe = probe_forward(net, layers, probe_batches(trainer, net), self.compile, loss)
        by_layer = {f"cushion/{name}": cushion for name, cushion in cushions(layers, probe.layers).items()}
        return {"probe/risk": probe.loss, "probe/error": probe.error, **by_layer}

    def _describe(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Once a run: which layers there are, and of those without cushions the reason."""
        surveyed = {}
        for name, net in members_of(pl_module):
            with isolated(net):
                surveyed[name] = _surveyed(trainer, net)
        describe_layers(trainer, surveyed)
        for sentence in dict.fromkeys(s for found in surveyed.values() for s in _without(found)):
            log.warning(sentence)
        self._described = True


def _surveyed(trainer: pl.Trainer, net: nn.Module) -> tuple[Surveyed, ...]:
    return survey(net, next(probe_batches(trainer, net))[0][:1])


def _without(surveyed: Sequence[Surveyed]) -> list[str]:
    """The layers without cushions by their reason."""
    paths = defaultdict(list)
    for found in surveyed:
        if found.reason:
            paths[found.reason].append(found.path)
    return [f"no cushion of {', '.join(of_reason)}: {reason}" for reason, of_reason in paths.items()]
