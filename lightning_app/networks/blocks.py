"""How a net describes its blocks: the parts that map one signal to the next, skip included.

Measures meet a block only through `blocks_of` and `span_of`. Names are 1-based in forward order and become keys:
"block05", a span "block03-block05". A net that does not describe itself has the names of its modules: "layer1.0".
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
    """What a block is made of: ``relu(stage_k(relu(... stage_1(x))) + S x)``, a ReLU after every stage but the last.

    From it measures build the block's Jacobian by hand, many times cheaper than by automatic differentiation.
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

    A block may have two methods, as a net's own blocks do: ``before_relu(x)``, its output before the last ReLU, and
    ``block_parts()``, what it is made of.
    """

    name: str  # "block05", "block03-block05", "layer1.0"
    modules: tuple[nn.Module, ...]  # applied one after the other

    def __call__(self, x: Tensor, before_relu: bool = False) -> Tensor:
        """The output for a batch x (B, ...): (B, C, H, W) of feature maps, (B, T, d) of tokens.

        Raises:
            UserError: ``before_relu`` of a block that does not have it.
        """
        *earlier, last = self.modules
        for module in earlier:
            x = module(x)
        if not before_relu:
            return last(x)
        output = getattr(last, "before_relu", None)
        if output is None:
            raise UserError(
                f"{self.name} is a {type(last).__name__}, which has no before_relu(x): measure its output after the "
                "ReLU, or give the class that method."
            )
        return output(x)

    @property
    def parts(self) -> tuple[BlockParts, ...] | None:
        """What each module is made of, or None if one of them does not say."""
        described = [getattr(module, "block_parts", None) for module in self.modules]
        return tuple(own() for own in described if own) if all(described) else None


def blocks_of(net: nn.Module) -> tuple[Span, ...]:
    """The blocks of any net in forward order.

    A net with a method ``block_list()`` says them itself. Of any other one they are the composite children of its
    Sequentials (those that hold a convolution or linear map below them and are not Sequentials themselves), as
    registered: "layer1.0", ... in torchvision's ResNets. Names are those in the net that ``torch.compile`` wraps.
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
        UserError: if there is none of that name, with the nearest ones and the list.
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
        raise UserError(f"a span goes forward, from an earlier block to a later one: '{last}-{first}', got '{name}'.")
    modules = {path: module for path, module in net.named_modules() if path}
    if name in modules:
        return Span(name, (modules[name],))
    number = re.fullmatch(r"block(\d+)", name)
    near = [block for block in known if number and block.removeprefix("block").lstrip("0") == number[1].lstrip("0")]
    near = near or ([] if number else nearest(name, [*known, *modules]))
    hint = f" Did you mean '{near[0]}'?" if near else ""
    raise UserError(f"there is no block '{name}' in this net.{hint} It has: {', '.join(known or modules)}.")
