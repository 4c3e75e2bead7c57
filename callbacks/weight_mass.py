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

    Keys: ``weight_mass/<field>`` over all convolutions and ``weight_mass/layer10/<field>`` for one layer;
    ``weight_mass_transferred/<field>`` likewise, by layer only where T changes the layer. Fields and units are those of
    `lightning_app.measures.WeightStatistics`.
    """

    family = "weight_mass"

    @override
    def measure(self, trainer: pl.Trainer, net: nn.Module) -> Mapping[str, Any]:
        layers = layers_of(net)
        changed = {"", *(layer.name for layer in layers if layer.skip)}  # T is the identity on the other layers
        results = {_key("weight_mass", layer): found for layer, found in weight_mass(layers).items()}
        return results | {
            _key("weight_mass_transferred", layer): found
            for layer, found in weight_mass(layers, transferred=True).items()
            if layer in changed
        }


def _key(prefix: str, layer: str) -> str:
    return f"{prefix}/{layer}" if layer else prefix
