"""The Jacobian of a span of blocks at every sample: by hand where the blocks say what they are made of, or differentiated."""

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_app.measures.core.visits import Visit
from lightning_app.measures.noise_stability.batch_of_one import BnMode, normalising
from lightning_app.measures.noise_stability.block_jacobian import BlockJacobian, block_jacobian, is_ordinary
from lightning_app.measures.noise_stability.block_norm import block_norm
from lightning_app.measures.noise_stability.jacobian import (
    DifferentiatedJacobian,
    FrobeniusNorm,
    frobenius_by_columns,
    push,
)
from lightning_app.networks.blocks import Span

__all__ = ["ChainJacobian", "span_jacobian"]


@dataclass(frozen=True, eq=False)
class ChainJacobian:
    """J of blocks in a row."""

    blocks: tuple[BlockJacobian, ...]

    @property
    def x(self) -> Tensor:
        return self.blocks[0].x

    @property
    def image(self) -> Tensor:
        first, *others = self.blocks
        return _push(others, first.image)

    @property
    def has_closed_form(self) -> bool:
        """Is ||J||_F next to free? Of one block of one convolution, unless BatchNorm looks at each sample by itself."""
        return len(self.blocks) == 1 and [stage.norm for stage in self.blocks[0].stages] == [None]

    def half(self) -> "ChainJacobian":
        """The same for pushing random signs, in bfloat16 where that is harmless."""
        blocks = tuple(block.half() for block in self.blocks)
        return self if any(block.x.dtype != blocks[0].x.dtype for block in blocks) else ChainJacobian(blocks)

    def push(self, tangents: Tensor) -> Tensor:
        return _push(self.blocks, tangents)

    def frobenius(self) -> FrobeniusNorm:
        """Of several blocks from as many products as x has entries."""
        first, *others = self.blocks
        return frobenius_by_columns(self.push, self.x) if others else block_norm(first)


def _push(blocks: Iterable[BlockJacobian], t: Tensor) -> Tensor:
    for block in blocks:
        t = block.push(t)
    return t


def span_jacobian(
    span: Span, visits: Sequence[Visit], bn_mode: BnMode, before_relu: bool
) -> ChainJacobian | DifferentiatedJacobian:
    """By hand where the blocks say what they are made of, else by differentiation."""
    if not _is_described(span):
        return _differentiated(span, visits[0].x, bn_mode, before_relu)
    blocks = []
    for place, (parts, visit) in enumerate(zip(span.parts, visits), start=1):
        gate = None if before_relu and place == len(visits) else visit.gate
        x = visit.x.contiguous(memory_format=torch.channels_last)  # a third faster on CPUs
        blocks.append(block_jacobian(parts.stages, parts.skip, x, gate, alone=bn_mode == "batch1"))
    return ChainJacobian(tuple(blocks))


def _is_described(span: Span) -> bool:
    return span.parts is not None and all(is_ordinary(conv) for parts in span.parts for conv, _ in parts.stages)


def _differentiated(span: Span, x: Tensor, bn_mode: BnMode, before_relu: bool) -> DifferentiatedJacobian:
    precise = _double(span) if bn_mode == "batch1" else span

    def through(blocks: Span, t: Tensor) -> Tensor:
        with normalising(bn_mode, *blocks.modules):
            return blocks(t, before_relu)

    like = next((parameter for module in precise.modules for parameter in module.parameters()), x)
    wide = x.to(like.dtype)
    image = push(lambda t: through(precise, t), wide, wide[None])[1][0]
    return DifferentiatedJacobian(lambda t: through(span, t), x, image)


def _double(span: Span) -> Span:
    return Span(span.name, tuple(copy.deepcopy(module).double() for module in span.modules))
