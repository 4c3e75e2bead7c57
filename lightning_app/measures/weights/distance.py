"""How far training moves a net, against how far apart the nets started (Yu & Tomasi 2019, section 4.2 and SM C).

The paper says that plain nets and the plain equivalents of residual nets "evolve in relatively small neighborhoods of
their starting points", and that these are far apart. Both are distances in the space of the plain net's weights:
``||w_e - w_0||``, the same for r and t = T(r), and ``||t_0 - p_0||``.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from lightning_app.measures.weights.mass import counted_layers
from lightning_app.networks.layers import Layer


def conv_weights(layers: Sequence[Layer], transferred: bool = False) -> Tensor:
    """All weights of the `counted_layers` as one vector (n,) on the CPU, in their own precision, no biases.

    ``transferred``: of t = T(w) instead of w, in float64.
    """
    weights = [layer.transferred() if transferred else layer.weight.detach().cpu() for layer in counted_layers(layers)]
    return torch.cat([weight.flatten() for weight in weights])


def distance(one: Tensor, other: Tensor) -> float:
    """2-norm of the difference, in float64.

    >>> distance(torch.tensor([3.0, 0.0]), torch.tensor([0.0, 4.0]))
    5.0
    """
    return float((one.double() - other.double()).norm())
