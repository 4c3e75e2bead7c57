"""How a net describes its blocks: the parts that map one signal to the next, including the skip.

Measures get blocks only from `blocks_of` and `span_of`. Names are numbered from 1 in forward order and become keys:
"block05", a span "block03-block05". For a net that does not describe itself they are the names of its modules: "layer1.0".
"""

import re
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from lightning_app.common.errors import UserError, nearest
from lightning_app.common.isolation import unwrapped
from lightning_app.identity import shortcut
from lightning_app.networks.layers import said_by


@dataclass(frozen=True)
class BlockParts:
    """The parts of a block: ``relu(stage_k(relu(... stage_1(x))) + S x)``, a ReLU after every stage but the last.

    From them measures compute the block's Jacobian by hand, much faster than by automatic differentiation.
    """

    stages: tuple[tuple[nn.Conv2d, nn.BatchNorm2d | None], ...]  # a convolution and the BatchNorm behind it, if any
    skip: bool  # whether S x, `identity.shortcut`, is added

    def __call__(self, x: Tensor) -> Tensor:
        """The block's output for a batch x (B, C, H, W), from its parts."""
        out, stride = x, 1
        for index, (conv, norm) in enumerate(self.stages):
            out = conv(F.relu(out) if index else out)
            out = out if norm is None else norm(out)
            stride *= conv.stride[0]
        return F.relu(out + shortcut(x, out.shape[1], stride) if self.skip else out)


@dataclass(frozen=True)
class Span:
    """One or several blocks in a row: a map from the first one's input to the last one's output.

    A block may have two methods, as the blocks here do: ``before_relu(x)``, its output before the last ReLU, and
    ``block_parts()``, its parts.
    """

    name: str  # "block05", "block03-block05", "layer1.0"
    modules: tuple[nn.Module, ...]  # applied one after the other

    def __call__(self, x: Tensor, before_relu: bool = False) -> Tensor:
        """The output for a batch x (B, ...): (B, C, H, W) for feature maps, (B, T, d) for tokens.

        Raises:
            UserError: if ``before_relu`` is true and the last block has no such method.
        """
        *earlier, last = self.modules
        for module in earlier:
            x = module(x)
        if not before_relu:
            return last(x)
        output = getattr(last, "before_relu", None)
        if output is None:
            raise UserError(
                f"before_relu needs a method before_relu(x), but {self.name} is a {type(last).__name__} without one: set "
                "before_relu to false, or give the class that method."
            )
        return output(x)

    @property
    def parts(self) -> tuple[BlockParts, ...] | None:
        """The parts of each module, or None if one of them does not describe its parts."""
        described = [getattr(module, "block_parts", None) for module in self.modules]
        return tuple(own() for own in described if own) if all(described) else None


def blocks_of(net: nn.Module) -> tuple[Span, ...]:
    """The blocks of any net in forward order.

    A net with a method ``block_list()`` lists them itself. For any other net they are the composite children of its Sequentials
    (those that contain a convolution or linear map and are not Sequentials themselves), in the order of registration:
    "layer1.0", ... in torchvision's ResNets. Names are those in the net that ``torch.compile`` wraps.
    """
    net = unwrapped(net)
    if (blocks := said_by(net, "block_list", nn.Module)) is not None:
        digits = max(2, len(str(len(blocks))))
        return tuple(Span(f"block{number:0{digits}d}", (block,)) for number, block in enumerate(blocks, start=1))
    sequentials = {name for name, module in net.named_modules() if isinstance(module, nn.Sequential)}
    leaves = (_ConvNd, nn.Linear)
    return tuple(
        Span(name, (module,))
        for name, module in net.named_modules()
        if name.rpartition(".")[0] in sequentials and name and not isinstance(module, (nn.Sequential, *leaves))
        if any(isinstance(each, leaves) for each in module.modules())
    )


def span_of(net: nn.Module, name: str) -> Span:
    """A block, a span of blocks, or any module of a net, by name: "block05", "block03-block05", "layer1.0".

    Raises:
        UserError: if there is none of that name. It suggests the nearest name and lists all.
    """
    net = unwrapped(net)
    blocks = blocks_of(net)
    known = {block.name: block for block in blocks}
    if name in known:
        return known[name]
    first, dash, last = name.partition("-")
    if dash and first in known and last in known:
        names = [block.name for block in blocks]
        start, stop = names.index(first), names.index(last)
        if start <= stop:
            return Span(name, tuple(module for block in blocks[start : stop + 1] for module in block.modules))
        raise UserError(f"a span names its earlier block first: expected '{last}-{first}', got '{name}'.")
    modules = {path: module for path, module in net.named_modules() if path}
    if name in modules:
        return Span(name, (modules[name],))
    number = re.fullmatch(r"block(\d+)", name)
    near = [block for block in known if number and block.removeprefix("block").lstrip("0") == number[1].lstrip("0")]
    near = near or ([] if number else nearest(name, [*known, *modules]))
    hint = f" Did you mean '{near[0]}'?" if near else ""
    raise UserError(
        f"there is no block '{name}' in this net.{hint} It has: {', '.join(known or modules) or 'no modules'}."
    )
