"""How far training moves a net, against how far apart the nets started (Yu & Tomasi 2019, section 4.2 and SM C).

The paper says that plain nets and the plain equivalents of residual nets "evolve in relatively small neighborhoods of
their starting points", and that these are far apart. Both are distances in the space of the plain net's weights:
``||w_e - w_0||``, the same for r and t = T(r), and ``||t_0 - p_0||``.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from lightning_app.networks.layers import Layer

__all__ = ["conv_weights", "distance"]


def conv_weights(layers: Sequence[Layer], transferred: bool = False) -> Tensor:
    """All weights of the convolutions as one vector (n,) on the CPU, in their own precision; no biases, no linear layer.

    The weights that Table 3 counts. A net without convolutions gives all its layers' weights.

    Args:
        layers: the net's layers.
        transferred: of t = T(w) instead of w, in float64 so that nothing is lost to rounding.
    """
    counted = [layer for layer in layers if layer.is_conv] or list(layers)
    return torch.cat([_weight(layer, transferred).flatten() for layer in counted])


def distance(one: Tensor, other: Tensor) -> float:
    """2-norm of the difference, in float64.

    >>> distance(torch.tensor([3.0, 0.0]), torch.tensor([0.0, 4.0]))
    5.0
    """
    return float((one.double() - other.double()).norm())


def _weight(layer: Layer, transferred: bool) -> Tensor:
    weight = layer.weight.detach().cpu()
    if not transferred:
        return weight
    mask = layer.id_mask() if layer.skip else None
    return weight.double() if mask is None else weight.double() + mask.cpu()
