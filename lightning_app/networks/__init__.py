"""Pure ``nn.Module``s and how they describe themselves. No Lightning, no W&B."""

from lightning_app.networks.blocks import Span, blocks_of, span_of
from lightning_app.networks.cifar_resnet import CifarResNet
from lightning_app.networks.layers import Layer, layers_of
from lightning_app.networks.preact import PreactResNet
from lightning_app.networks.residual_mlp import ResidualMLP
from lightning_app.networks.shortcut import ShortcutNet, draw, shortcut_net_of_depth, units_of_depth
from lightning_app.networks.simplified import SimplifiedNet
from lightning_app.networks.tracing import Surveyed, measurable, survey

__all__ = [
    # how a net describes its layers
    "Layer",
    "layers_of",
    "Surveyed",
    "measurable",
    "survey",
    # how a net describes its blocks
    "Span",
    "blocks_of",
    "span_of",
    # Yu & Tomasi (2019)
    "SimplifiedNet",
    # He et al. (2016)
    "CifarResNet",
    # Li et al. (2016)
    "PreactResNet",
    "ShortcutNet",
    "draw",
    "shortcut_net_of_depth",
    "units_of_depth",
    # Littwin & Wolf (2016)
    "ResidualMLP",
]
