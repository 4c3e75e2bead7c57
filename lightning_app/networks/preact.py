"""Pre-activation CIFAR nets with a shortcut around every n convolutions (Li et al. 2016, section 5.3.2, Fig. 9).

The paper changes the shortcut depth of fb.resnet.torch's ``preresnet`` "while keeping the total number of parameters
fixed"; its code was not published. Here each convolution of a unit is preceded by a BatchNorm and a ReLU of its own, as in
``preresnet`` with n = 2. So convolutions and BatchNorms are the same for every n and for the plain net, and n determines only
where the identities are. As there, the first unit of each group adds the *activated* input, relu(bn(x)), with option A
(subsampled, zero channels appended), and all others add x itself.

A difference to the paper: n must divide the number of convolutions in a group. n = 2 is ``preresnet`` itself. Blocks have no
`BlockParts` (these have a ReLU at the end), so measures differentiate them.
"""

import itertools

import torch.nn.functional as F
from torch import Tensor, nn

from lightning_app.common.errors import UserError
from lightning_app.identity import shortcut
from lightning_app.networks.cifar import channels_of_blocks, check_size, initialise_fan_out
from lightning_app.networks.layers import Layer, number_layers


class PreactUnit(nn.Module):
    """``F(x)``, or ``F(x) + S x`` when residual, with F = conv_n relu bn_n ... conv_1 relu bn_1.

    (B, C, H, W) -> (B, D, H/s, W/s); conv_1 has the stride. When ``activated`` S acts on relu(bn_1(x)) instead of x.
    """

    def __init__(
        self, in_channels: int, out_channels: int, stride: int, n: int, residual: bool, activated: bool
    ) -> None:
        super().__init__()
        channels = [in_channels] + [out_channels] * n
        self.norms = nn.ModuleList(nn.BatchNorm2d(c) for c in channels[:-1])
        self.convs = nn.ModuleList(
            nn.Conv2d(c, d, kernel_size=3, stride=1 if index else stride, padding=1, bias=False)
            for index, (c, d) in enumerate(itertools.pairwise(channels))
        )
        self.stride = stride
        self.residual = residual
        self.activated = activated

    def forward(self, x: Tensor) -> Tensor:
        out = x
        for index, (norm, conv) in enumerate(zip(self.norms, self.convs)):
            out = F.relu(norm(out))
            if self.activated and not index:
                x = out
            out = conv(out)
        if self.residual:
            out = out + shortcut(x, out.shape[1], self.stride)
        return out


class PreactResNet(nn.Module):
    """The n-shortcut pre-activation CIFAR net of depth 3nN + 2, residual or (``residual=False``) its plain sibling.

    A 3x3 convolution (layer 1), three groups of N units of n convolutions with widths 16, 32, 64 (the first unit of
    groups 2 and 3 has stride 2), BatchNorm and ReLU, a global average pool, and a linear layer. All nets of the same
    depth have the same parameters, whatever n. Input (B, 3, 32, 32), output logits (B, num_classes).

    Convolutions have no bias and draw N(0, 2 / (k k out_channels)); BN starts at weight 1 and bias 0; the linear layer's
    weights are PyTorch's, its bias is 0.

    Args:
        depth: 3nN + 2. Depths 20, 38, 56 and 110 are possible with n = 1, 2 and 3.
        n: number of convolutions that a shortcut spans.
        residual: add the shortcuts.
        num_classes: number of logits.
        width: channels of the first group.
        in_channels: channels of the images.

    Raises:
        UserError: for a depth that is not 3nN + 2 (the nearest ones are named), or n or a width below 1.
    """

    def __init__(
        self,
        depth: int = 20,
        n: int = 2,
        residual: bool = True,
        num_classes: int = 10,
        width: int = 16,
        in_channels: int = 3,
    ) -> None:
        super().__init__()
        if n < 1:
            raise UserError(
                f"n, the number of convolutions that a shortcut spans, must be at least 1, got {n}: for a net without shortcuts "
                "set residual to false."
            )
        check_size(depth, width, kind=f"{n}-shortcut pre-activation", step=3 * n)
        self.depth = depth
        self.residual = residual
        self.n = n
        units = (depth - 2) // (3 * n)
        self.conv0 = nn.Conv2d(in_channels, width, kernel_size=3, padding=1, bias=False)
        sizes = enumerate(channels_of_blocks(width, units))
        self.blocks = nn.Sequential(*(PreactUnit(*size, n, residual, activated=i % units == 0) for i, size in sizes))
        self.norm = nn.BatchNorm2d(4 * width)
        self.fc = nn.Linear(4 * width, num_classes)
        initialise_fan_out(self.layers(), self.fc)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(F.relu(self.norm(self.blocks(self.conv0(x)))).mean((2, 3)))

    def layers(self) -> tuple[Layer, ...]:
        """conv0, the convolutions of every unit, and fc as layers 1 to ``depth``.

        None has ID entries. A shortcut goes around a single layer only if n = 1, and then only in the first unit of a group;
        elsewhere it also goes around BatchNorm and ReLU.
        """
        names = [f"blocks.{i}.convs.{k}" for i in range(len(self.blocks)) for k in range(self.n)]
        firsts = names[:: len(names) // 3] if self.residual and self.n == 1 else ()  # units of the groups
        return number_layers(self, ("conv0", *names, "fc"), skips=firsts)

    def block_list(self) -> list[nn.Module]:
        """The 3N units in forward order."""
        return list(self.blocks)
