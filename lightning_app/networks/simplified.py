"""The simplified plain and residual nets of Yu & Tomasi (2019), Figs. 1, 4 and 5: one convolution a block, no BN."""

import copy

import torch.nn.functional as F
from torch import Tensor, nn

from lightning_app.identity import shortcut
from lightning_app.networks.blocks import BlockParts
from lightning_app.networks.cifar import Fan, Scheme, channels_of_blocks, check_size, initialise
from lightning_app.networks.layers import Layer, number_layers


class Block(nn.Module):
    """``relu(conv(x) + b)``, or ``relu(conv(x) + b + S x)`` when residual. (B, C, H, W) -> (B, D, H/s, W/s)."""

    def __init__(self, in_channels: int, out_channels: int, stride: int, residual: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size=3, stride=stride, padding=1)
        self.residual = residual

    def before_relu(self, x: Tensor) -> Tensor:
        """The output before its last ReLU."""
        out = self.conv(x)
        if self.residual:
            out = out + shortcut(x, self.conv.out_channels, self.conv.stride[0])
        return out

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.before_relu(x))

    def block_parts(self) -> BlockParts:
        """One convolution without BatchNorm."""
        return BlockParts(((self.conv, None),), self.residual)


class SimplifiedNet(nn.Module):
    """PlnNet (``residual=False``) or ResNet (``residual=True``) of L = 3N + 2 trainable layers.

    A 3x3 convolution with ReLU (layer 1), three groups of N blocks with widths 16, 32, 64 (layers 2 to L-1; the first
    block of groups 2 and 3 has stride 2), a global average pool, and a linear layer (layer L). Depth 20 has 269,034
    parameters, 624 of them ID entries. Input (B, 3, 32, 32), output logits (B, num_classes).

    Args:
        depth: L = 3N + 2: 5, 8, 11, ..., 20, ..., 32, ..., 44.
        residual: add the identity across each block.
        num_classes: number of logits.
        init: "kwi" or "hmwi" for the convolutions; None takes the paper's choice, HMWI for residual nets, else KWI.
        fan: S of the scheme: "in", fan-in as the paper writes, or "out", fan-out.
        init_conv0: scheme of the first convolution, which is not a block; None takes ``init`` (Table 3 supports this).
        init_fc: scheme of the linear layer, which the paper does not state; "torch" is PyTorch's: weights and bias from
            U(±1/√(4 width)), ±1/8 at width 16.
        width: channels of the first group.
        in_channels: channels of the images.

    Raises:
        UserError: for a depth that is not 3N + 2 (the nearest ones are named), a width below 1, an unknown init or fan.
    """

    def __init__(
        self,
        depth: int = 20,
        residual: bool = True,
        num_classes: int = 10,
        init: Scheme | None = None,
        fan: Fan = "in",
        init_conv0: Scheme | None = None,
        init_fc: Scheme = "torch",
        width: int = 16,
        in_channels: int = 3,
    ) -> None:
        super().__init__()
        check_size(depth, width)
        self.depth = depth
        self.residual = residual
        self.conv0 = nn.Conv2d(in_channels, width, kernel_size=3, padding=1)
        self.blocks = nn.Sequential(*(Block(*sizes, residual) for sizes in channels_of_blocks(width, (depth - 2) // 3)))
        self.fc = nn.Linear(4 * width, num_classes)
        init = init or ("hmwi" if residual else "kwi")
        initialise(self.conv0, init_conv0 or init, fan)
        for layer in self.layers()[1:-1]:
            initialise(layer.module, init, fan)
        initialise(self.fc, init_fc, fan)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.blocks(F.relu(self.conv0(x))).mean((2, 3)))

    def layers(self) -> tuple[Layer, ...]:
        """conv0, the block convolutions and fc as layers 1 to L; only blocks have ID entries and skips."""
        blocks = [f"blocks.{i}.conv" for i in range(len(self.blocks))]
        return number_layers(self, ("conv0", *blocks, "fc"), with_id=blocks, skips=blocks if self.residual else ())

    def block_list(self) -> list[nn.Module]:
        """The 3N blocks in forward order: block01 is layer 2."""
        return list(self.blocks)

    def id_weights(self) -> list[str]:
        """State-dict names of the weights that have ID entries: the 3N block convolutions."""
        return [layer.weight_name for layer in self.layers() if layer.has_id]

    def counterpart(self) -> "SimplifiedNet":
        """A copy with ``residual`` flipped and the same weights. It computes another function until T shifts its ID entries."""
        twin = copy.deepcopy(self)
        for module in (twin, *twin.blocks):
            module.residual = not self.residual
        return twin
