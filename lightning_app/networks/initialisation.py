"""Weight initialisation of the simplified nets (Yu & Tomasi 2019, SM A, Eqs. 3 and 4).

KWI (He et al. 2015) draws N(0, 2/S), HMWI (Hardt & Ma 2017) draws N(0, 1/S^2), biases are 0. The paper writes
S = C U V, the fan-in; Table 3's "1900" fits the fan-out D U V better for HMWI, so ``fan`` is an option.
"""

import math
from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor, nn

from lightning_app.common.errors import UserError
from lightning_app.networks.layers import Layer

__all__ = ["Fan", "Scheme", "initialise", "initialise_fan_out", "standard_deviation"]

Scheme = Literal["kwi", "hmwi", "torch"]
Fan = Literal["in", "out"]


def standard_deviation(weight: Tensor, scheme: Scheme, fan: Fan = "in") -> float:
    """Standard deviation that a scheme gives to a kernel (D, C, U, V) or matrix (D, C).

    >>> standard_deviation(torch.empty(32, 2, 3, 3), "hmwi") == 1 / 18
    True
    >>> standard_deviation(torch.empty(32, 2, 3, 3), "kwi", fan="out") == (2 / 288) ** 0.5
    True
    """
    outputs, inputs, *window = weight.shape
    size = (inputs if fan == "in" else outputs) * math.prod(window)
    if scheme in ("kwi", "hmwi"):
        return math.sqrt(2 / size) if scheme == "kwi" else 1 / size
    raise UserError(f"an initialisation is 'kwi', 'hmwi' or 'torch' (as PyTorch made it), got {scheme!r}.")


@torch.no_grad()
def initialise(module: nn.Conv2d | nn.Linear, scheme: Scheme, fan: Fan = "in") -> None:
    """Draw a layer's weights from the global random state and set its bias to 0; "torch" leaves it as PyTorch made it."""
    if scheme == "torch":
        return
    module.weight.normal_(0.0, standard_deviation(module.weight, scheme, fan))
    if module.bias is not None:
        module.bias.zero_()


def initialise_fan_out(layers: Iterable[Layer], fc: nn.Linear) -> None:
    """fb.resnet.torch's: convolutions N(0, 2/(D U V)), the linear layer as PyTorch makes it but with bias 0."""
    for layer in layers:
        if layer.is_conv:
            initialise(layer.module, "kwi", fan="out")
    nn.init.zeros_(fc.bias)
