"""Pure ``nn.Module``s and how they describe themselves. No Lightning, no W&B."""

from lightning_app.networks.layers import Layer, layers_of
from lightning_app.networks.simplified import SimplifiedNet

__all__ = [
    # how a net describes its layers
    "Layer",
    "layers_of",
    # Yu & Tomasi (2019)
    "SimplifiedNet",
]
