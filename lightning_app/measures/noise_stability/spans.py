"""Inputs and outputs of the blocks of a net in one forward pass, and the Jacobians of spans of blocks there.

Jacobians are computed by hand if the blocks describe their parts, else by differentiation.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from lightning_app.common.errors import UserError
from lightning_app.common.isolation import attention_written_out, uncompiled
from lightning_app.measures.core.channels import Channels
from lightning_app.measures.core.hooks import SAME_EACH_TIME, hooked, is_random, nearly_same, own_copy
from lightning_app.measures.noise_stability.batch_of_one import BnMode, normalising
from lightning_app.measures.noise_stability.block_jacobian import BlockJacobian, block_jacobian
from lightning_app.measures.noise_stability.block_norm import block_norm
from lightning_app.measures.noise_stability.jacobian import (
    DifferentiatedJacobian,
    FrobeniusNorm,
    frobenius_by_columns,
    push,
)
from lightning_app.networks.blocks import Span
from lightning_app.networks.layers import is_ordinary, layers_of


@dataclass(frozen=True, eq=False)
class Call:
    """What went into a block in a forward pass, and of what came out as much as is needed."""

    x: Tensor  # (B, ...)
    positions: int  # of x: H W of a map, T of tokens, 1 of a vector
    gate: Tensor  # (B, ...), 1 where the output is positive: where its last ReLU lets through
    first: Tensor  # (1, ...), the first row's output
    last: Tensor  # (1, ...), the last row's


def calls_of(net: nn.Module, spans: Sequence[Span], images: Tensor, bn_mode: BnMode) -> dict[nn.Module, Call]:
    """One forward pass, watched at every module of the spans."""
    came: dict[nn.Module, tuple[Tensor, int]] = {}
    channels = Channels.before(net)
    calls: dict[nn.Module, Call] = {}
    layers = {layer.module for layer in layers_of(net)}
    names = {module: span.name for span in spans for module in span.modules}

    def enter(module: nn.Module, args: tuple) -> None:
        if module in came or len(args) != 1 or not (isinstance(args[0], Tensor) and args[0].is_floating_point()):
            given = ", ".join(type(each).__name__ for each in args)
            given = str(args[0].dtype) if len(args) == 1 and isinstance(args[0], Tensor) else given
            raise UserError(
                "an interlayer cushion needs a block that the net calls once, with one tensor of real numbers, but "
                f"{names[module]} is called {'twice' if module in came else f'with ({given})'}: leave it out."
            )
        came[module] = args[0].clone(), channels.positions(args[0])  # what follows may work in place

    def leave(module: nn.Module, _: tuple, y: Tensor) -> None:
        if not isinstance(y, Tensor):
            raise UserError(
                f"an interlayer cushion needs a block that returns one tensor, but {names[module]} returns a "
                f"{type(y).__name__}: leave it out."
            )
        calls[module] = Call(*came[module], (y > 0).to(y.dtype), y[:1].clone(), y[-1:].clone())

    def called(layer: nn.Module, _: tuple, out: Any) -> None:
        nonlocal channels
        channels = Channels.of(layer, out)

    if isinstance(images, Tensor) and images.ndim == 4:
        images = images.contiguous(memory_format=torch.channels_last)  # convolutions of few channels: 3 times faster
    with uncompiled(net), normalising(bn_mode, net), hooked(names, enter, leave), hooked(layers, after=called):
        net(images)
    for module, name in names.items():
        if module not in calls:
            raise UserError(f"the net's forward pass never calls {name}: leave it out.")
    return calls


def check_rows(
    net: nn.Module, images: Any, bn_mode: BnMode, spans: Sequence[Span], calls: dict[nn.Module, Call]
) -> None:
    """Check that rows can be treated one by one: each is a sample, or one of several rows of a sample (frames, windows).

    Their number must be proportional to that of the samples, and no row's output may depend on another row: the first and the
    last row are passed through each block alone.
    """
    few = images[:1] if len(images) > 1 else images[[0, 0]]
    try:
        others = calls_of(net, spans, few, bn_mode)
    except Exception:  # a net for this number of samples only, or no memory for two: its rows are taken for samples
        others = {}
    for span in spans:
        for module in span.modules:
            call = calls[module]
            if module in others and len(call.x) * len(few) != len(others[module].x) * len(images):
                raise UserError(
                    f"an interlayer cushion is defined per sample, but {span.name} gets {len(call.x)} rows for {len(images)} "
                    f"samples and {len(others[module].x)} for {len(few)}, as if time came first: name other blocks, or set "
                    "batch_first."
                )
            with uncompiled(net), normalising(bn_mode, *span.modules):
                alone = module(call.x[:1].clone()), module(call.x[-1:].clone())  # it may work in place
                same = all(map(_alike, alone, (call.first, call.last)))
                random = not same and is_random(module, call.x[:1])
            if random:
                raise UserError(
                    f"an interlayer cushion of {span.name} needs {SAME_EACH_TIME} Otherwise name other blocks."
                )
            if not same:
                raise UserError(
                    f"an interlayer cushion is defined per sample, but the output of {span.name} for a sample depends on the "
                    "other samples, as if time came first: name other blocks, or set batch_first."
                )


def check_description(span: Span, calls: Sequence[Call], bn_mode: BnMode) -> None:
    """Check on one sample that the blocks of a span follow one another, and that their `block_parts` describe them."""
    for one, other in pairwise(calls):
        if not _alike(one.first, other.x[:1]):
            raise UserError(
                f"the net does something between the blocks of {span.name}, so they do not form a span: name the blocks one by "
                "one."
            )
    for parts, call in zip(span.parts or (), calls):
        with normalising(bn_mode, *span.modules):
            y = parts(call.x[:1])
        if not _alike(y, call.first):
            raise UserError(
                f"block_parts() of a block in {span.name} does not describe the block: the parts give another output. Correct "
                "that method, or remove it (the block is then differentiated)."
            )


def _alike(one: Tensor, other: Tensor) -> bool:
    """Up to the rounding of other batch sizes and of GPUs' convolutions."""
    return nearly_same(one, other, 1e-2)


@dataclass(frozen=True, eq=False)
class ChainJacobian:
    """J of blocks in a row."""

    blocks: tuple[BlockJacobian, ...]

    @property
    def x(self) -> Tensor:
        return self.blocks[0].x

    @property
    def image(self) -> Tensor:
        return reduce(lambda t, block: block.push(t), self.blocks[1:], self.blocks[0].image)

    @property
    def has_closed_form(self) -> bool:
        """Is ||J||_F next to free? Of one block of one convolution, unless BatchNorm looks at each sample by itself."""
        return len(self.blocks) == 1 and [stage.norm for stage in self.blocks[0].stages] == [None]

    def half(self) -> "ChainJacobian":
        """The same for pushing random signs, in bfloat16 where that is harmless."""
        blocks = tuple(block.half() for block in self.blocks)
        return ChainJacobian(blocks) if len({block.x.dtype for block in blocks}) == 1 else self

    def push(self, tangents: Tensor) -> Tensor:
        return reduce(lambda t, block: block.push(t), self.blocks, tangents)

    def frobenius(self) -> FrobeniusNorm:
        """Of several blocks from as many products as x has entries."""
        return block_norm(self.blocks[0]) if len(self.blocks) == 1 else frobenius_by_columns(self.push, self.x)


def span_jacobian(
    span: Span, calls: Sequence[Call], bn_mode: BnMode, before_relu: bool
) -> ChainJacobian | DifferentiatedJacobian:
    """By hand if the blocks describe their parts, else by differentiation."""
    if span.parts is None or not all(is_ordinary(conv) for parts in span.parts for conv, _ in parts.stages):
        return _differentiated(span, calls[0].x, bn_mode, before_relu)
    blocks = []
    for place, (parts, call) in enumerate(zip(span.parts, calls), start=1):
        gate = None if before_relu and place == len(calls) else call.gate
        x = call.x.contiguous(memory_format=torch.channels_last)  # a third faster on CPUs
        blocks.append(block_jacobian(parts.stages, parts.skip, x, gate, alone=bn_mode == "batch1"))
    return ChainJacobian(tuple(blocks))


def _differentiated(span: Span, x: Tensor, bn_mode: BnMode, before_relu: bool) -> DifferentiatedJacobian:
    precise, wide = span, x
    if bn_mode == "batch1":
        precise = Span(span.name, tuple(own_copy(module).double() for module in span.modules))
        wide = x.double()

    def through(blocks: Span, t: Tensor) -> Tensor:
        with normalising(bn_mode, *blocks.modules), attention_written_out():
            return blocks(t.clone(), before_relu)  # the first one may change its input in place

    image = push(lambda t: through(precise, t), wide, wide[None])[1][0]
    return DifferentiatedJacobian(lambda t: through(span, t), x, image)
