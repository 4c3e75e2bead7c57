"""Where the weights are: `lightning_app.measures.weight_mass` after epochs."""

from collections.abc import Mapping
from typing import Any

import pytorch_lightning as pl
from torch import nn
from typing_extensions import override

from callbacks.base import Measure
from lightning_app.measures import weight_mass
from lightning_app.networks import layers_of

__all__ = ["WeightMass"]


class WeightMass(Measure):
    """Logs the statistics of Table 3 for w, and for its transferred twin t = T(w) (w itself where the net is plain).

    Keys: ``weight_mass/<field>`` over all convolutions and ``weight_mass/layer10/<field>`` for one layer, likewise
    ``weight_mass_transferred/...``; fields and units are those of `WeightStatistics`.
    """

    family = "weight_mass"

    @override
    def measure(self, trainer: pl.Trainer, net: nn.Module) -> Mapping[str, Any]:
        layers = layers_of(net)
        return {
            "/".join(filter(None, (prefix, layer))): statistics
            for prefix, transferred in (("weight_mass", False), ("weight_mass_transferred", True))
            for layer, statistics in weight_mass(layers, transferred).items()
        }
