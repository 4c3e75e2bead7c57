"""What all CIFAR nets here share: initialisation, and three groups of blocks, each with twice the channels of the one before.

KWI (He et al. 2015) draws N(0, 2/S), HMWI (Hardt & Ma 2017) draws N(0, 1/S^2), biases are 0 (Yu & Tomasi 2019, SM A, Eqs. 3
and 4). The paper writes S = C U V, the fan-in; Table 3's "1900" fits the fan-out D U V better for HMWI, so ``fan`` is an option.
"""

import math
from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor, nn

from lightning_app.common.errors import UserError
from lightning_app.networks.layers import Layer

Scheme = Literal["kwi", "hmwi", "torch"]
Fan = Literal["in", "out"]


def standard_deviation(weight: Tensor, scheme: Scheme, fan: Fan = "in") -> float:
    """Standard deviation that a scheme gives to a kernel (D, C, U, V) or matrix (D, C).

    >>> standard_deviation(torch.empty(32, 2, 3, 3), "hmwi") == 1 / 18
    True
    >>> standard_deviation(torch.empty(32, 2, 3, 3), "kwi", fan="out") == (2 / 288) ** 0.5
    True
    """
    if fan not in ("in", "out"):
        raise UserError(f"fan must be 'in' (as the paper writes) or 'out', got {fan!r}.")
    outputs, inputs, *window = weight.shape
    size = (inputs if fan == "in" else outputs) * math.prod(window)
    if scheme in ("kwi", "hmwi"):
        return math.sqrt(2 / size) if scheme == "kwi" else 1 / size
    raise UserError(
        "an initialisation (init, init_conv0, init_fc) must be 'kwi', 'hmwi' or 'torch' (PyTorch's own), got "
        f"{scheme!r}."
    )


@torch.no_grad()
def initialise(module: nn.Conv2d | nn.Linear, scheme: Scheme, fan: Fan = "in") -> None:
    """Draw a layer's weights from the global random state and set its bias to 0; "torch" leaves it as PyTorch made it."""
    if scheme == "torch":
        return
    module.weight.normal_(0.0, standard_deviation(module.weight, scheme, fan))
    if module.bias is not None:
        module.bias.zero_()


def initialise_fan_out(layers: Iterable[Layer], fc: nn.Linear) -> None:
    """Initialise as fb.resnet.torch: convolutions N(0, 2/(D U V)), the linear layer as PyTorch does but with bias 0."""
    for layer in layers:
        if layer.is_conv:
            initialise(layer.module, "kwi", fan="out")
    nn.init.zeros_(fc.bias)


def check_size(depth: int, width: int, kind: str = "simplified", step: int = 3) -> None:
    """Check that depth is ``step`` N + 2 with N >= 1 blocks per group, and width at least 1; the UserError names the nearest
    depths.

    ``kind``: name of the net in the message. ``step``: number of layers that one more block in every group adds.
    """
    least = step + 2
    if depth < least or (depth - 2) % step:
        below = max(least, depth - (depth - 2) % step)
        nearest = f"{below}" if depth < least else f"{below} and {below + step}"
        raise UserError(
            f"depth of a {kind} net must be {step}N + 2 with N >= 1 ({least}, {least + step}, {least + 2 * step}, ...), got "
            f"{depth}. Nearest: {nearest}."
        )
    if width < 1:
        raise UserError(f"width of a {kind} net must be at least 1 channel, got {width}.")


def channels_of_blocks(width: int, blocks: int) -> list[tuple[int, int, int]]:
    """(in_channels, out_channels, stride) of three groups of blocks: each group doubles the channels, halves the map.

    >>> channels_of_blocks(16, 1)
    [(16, 16, 1), (16, 32, 2), (32, 64, 2)]
    """
    widths = [width * 2**group for group in range(3) for _ in range(blocks)]
    return [(before, now, 1 if before == now else 2) for before, now in zip([width, *widths], widths)]
