"""The full CIFAR nets of He et al. (2016), section 4.2, plain and residual: two convolutions a block, with BatchNorm.

The "fully-fledged" nets of Yu & Tomasi's interlayer cushions (2019, section 5) and of Littwin & Wolf (2016), Figs. 2 and 3, as
in fb.resnet.torch: option-A shortcut (subsampling, zero channels appended at the end), fan-out
initialisation. There is no map T between the two kinds: a shortcut over two convolutions with a ReLU between them cannot be
written into either kernel.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from lightning_app.identity import shortcut
from lightning_app.networks.blocks import BlockParts
from lightning_app.networks.cifar import channels_of_blocks, check_size, initialise_fan_out
from lightning_app.networks.layers import Layer, number_layers


class CifarBlock(nn.Module):
    """``relu(F(x))``, or ``relu(F(x) + S x)`` when residual, with F = bn2 conv2 relu bn1 conv1.

    (B, C, H, W) -> (B, D, H/s, W/s); conv1 has the stride.
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int, residual: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, kernel_size=3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, kernel_size=3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.residual = residual

    def before_relu(self, x: Tensor) -> Tensor:
        """The output before its last ReLU."""
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.residual:
            out = out + shortcut(x, self.conv1.out_channels, self.conv1.stride[0])
        return out

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.before_relu(x))

    def block_parts(self) -> BlockParts:
        """Two convolutions, each with its BatchNorm."""
        return BlockParts(((self.conv1, self.bn1), (self.conv2, self.bn2)), self.residual)


class CifarResNet(nn.Module):
    """The CIFAR net of depth 6n + 2, residual or (``residual=False``) its plain sibling with the same parameters.

    A 3x3 convolution with BN and ReLU (layer 1), three groups of n blocks with widths 16, 32, 64 (the first block of
    groups 2 and 3 has stride 2), a global average pool, and a linear layer. With the default width, 3 channels and 10
    classes there are 97,216 n - 21,926 parameters: 0.27 M at depth 20, 1.73 M at depth 110. Input (B, 3, 32, 32),
    output logits (B, num_classes).

    Convolutions have no bias and draw N(0, 2 / (k k out_channels)); BN starts at weight 1 and bias 0; the linear layer's
    weights are PyTorch's, its bias is 0.

    Args:
        depth: 6n + 2: 8, 14, 20, ..., 32, 44, 56, ..., 110.
        residual: add the identity shortcut across each block.
        num_classes: number of logits.
        width: channels of the first group.
        in_channels: channels of the images.

    Raises:
        UserError: for a depth that is not 6n + 2 (the nearest ones are named), or a width below 1.
    """

    def __init__(
        self, depth: int = 20, residual: bool = True, num_classes: int = 10, width: int = 16, in_channels: int = 3
    ) -> None:
        super().__init__()
        check_size(depth, width, kind="full CIFAR", step=6)
        self.depth = depth
        self.residual = residual
        self.conv0 = nn.Conv2d(in_channels, width, kernel_size=3, padding=1, bias=False)
        self.bn0 = nn.BatchNorm2d(width)
        self.blocks = nn.Sequential(
            *(CifarBlock(*sizes, residual) for sizes in channels_of_blocks(width, (depth - 2) // 6))
        )
        self.fc = nn.Linear(4 * width, num_classes)
        initialise_fan_out(self.layers(), self.fc)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.blocks(F.relu(self.bn0(self.conv0(x)))).mean((2, 3)))

    def layers(self) -> tuple[Layer, ...]:
        """conv0, conv1 and conv2 of every block, and fc as layers 1 to 6n + 2. The shortcut belongs to the block."""
        names = [f"blocks.{i}.{conv}" for i in range(len(self.blocks)) for conv in ("conv1", "conv2")]
        return number_layers(self, ("conv0", *names, "fc"))

    def block_list(self) -> list[nn.Module]:
        """The 3n blocks in forward order."""
        return list(self.blocks)
