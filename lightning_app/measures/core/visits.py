"""What goes into the blocks of a net and what comes out, in one forward pass."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from lightning_app.common.errors import UserError
from lightning_app.measures.core.hooks import hooked, nearly_same
from lightning_app.measures.noise_stability.batch_of_one import BnMode, normalising
from lightning_app.networks.blocks import Span

__all__ = ["Visit", "check_description", "visits_of"]


@dataclass(frozen=True, eq=False)
class Visit:
    """What went into a module, and of what came out as much as is needed."""

    x: Tensor  # (B, ...)
    gate: Tensor  # (B, ...), 1 where the output is positive: where its last ReLU lets through
    first: Tensor  # (1, ...), the first sample's output


def visits_of(net: nn.Module, spans: Sequence[Span], images: Tensor, bn_mode: BnMode) -> dict[nn.Module, Visit]:
    """One forward pass, watched at every module of the spans."""
    came: dict[nn.Module, Tensor] = {}
    visits: dict[nn.Module, Visit] = {}
    names = {module: span.name for span in spans for module in span.modules}

    def enter(module: nn.Module, args: tuple) -> None:
        if module in came or len(args) != 1 or not isinstance(args[0], Tensor):
            given = ", ".join(type(each).__name__ for each in args)
            raise UserError(
                f"an interlayer cushion needs a block that the net calls once, with one tensor; {names[module]} is called "
                f"{'twice' if module in came else f'with ({given})'}: leave it out."
            )
        came[module] = args[0].clone()  # what follows may work in place

    def leave(module: nn.Module, _: tuple, y: Tensor) -> None:
        if not isinstance(y, Tensor):
            raise UserError(f"{names[module]} returns a {type(y).__name__}, a Jacobian needs one tensor: leave it out.")
        visits[module] = Visit(came[module], (y > 0).to(y.dtype), y[:1].clone())

    if images.ndim == 4:
        images = images.contiguous(memory_format=torch.channels_last)  # convolutions of few channels: 3 times faster
    with normalising(bn_mode, net), hooked(names, enter, leave):
        net(images)
    for module, name in names.items():
        if module not in visits:
            raise UserError(f"the net's forward pass never calls {name}: leave it out.")
    return visits


def check_description(span: Span, visits: Sequence[Visit], bn_mode: BnMode) -> None:
    """On one sample: blocks of a span follow one another, and compute what their parts do."""
    for one, other in pairwise(visits):
        if not _alike(one.first, other.x[:1]):
            raise UserError(
                f"something lies between the blocks of {span.name}, so that it is no span: measure them singly."
            )
    for parts, visit in zip(span.parts or (), visits):
        with normalising(bn_mode, *span.modules):
            y = parts(visit.x[:1])
        if not _alike(y, visit.first):
            raise UserError(
                f"a block of {span.name} is not what its block_parts() says: from these its output would differ. Correct "
                "that method, or remove it: the block is then differentiated."
            )


def _alike(one: Tensor, other: Tensor) -> bool:
    """Up to the rounding of other batch sizes and of GPUs' convolutions."""
    return nearly_same(one, other, max(1e-2, 8 * torch.finfo(other.dtype).eps))
