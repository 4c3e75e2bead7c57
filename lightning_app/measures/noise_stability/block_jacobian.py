"""The Jacobian of a block that describes its parts, computed by hand from convolutions and masks, without differentiation.

At a sample x a block ``relu(N2 C2 relu(N1 C1 x) + S x)`` is linear except for shifts: ``J = D2 (N2 C2 D1 N1 C1 + S)``, with
convolutions C (`layers.is_ordinary`), masks D of the ReLUs, normalisations N and the shortcut S. In evaluation mode N is a
factor for each channel and goes into the kernel. Then

* J v costs little more than the block's convolutions, for many v in one call;
* J x costs less than that, because ``C1 x`` is known from the masks;
* random signs can be multiplied in bfloat16: signs and masks are exact there, and the rounding of kernels and results, by
  at most 2^-9 each, averages out in a norm.

With BatchNorm on a batch of one N is such a factor times a projection. `block_norm` has ||J||_F.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from math import prod
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.grad import conv2d_input
from torch.nn.modules.batchnorm import _BatchNorm

from lightning_app.identity import shortcut
from lightning_app.measures.noise_stability.batch_of_one import SampleNorm


@dataclass(frozen=True, eq=False)
class Convolution:
    """A convolution without bias: (..., C, H, W) -> (..., D, H', W')."""

    weight: Tensor  # (D, C, U, V)
    stride: tuple[int, int]
    padding: tuple[int, int]

    def __call__(self, x: Tensor) -> Tensor:
        return _as_one_batch(lambda batch: F.conv2d(batch, self.weight, None, self.stride, self.padding), x)

    def transposed(self, y: Tensor, size: tuple[int, int]) -> Tensor:
        """C^T y, for inputs of ``size`` (H, W)."""

        def back(batch: Tensor) -> Tensor:
            shape = (len(batch), self.weight.shape[1], *size)
            return conv2d_input(shape, self.weight, batch, self.stride, self.padding)

        return _as_one_batch(back, y)


@dataclass(frozen=True, eq=False)
class Stage:
    """Convolution, normalisation and ReLU at a batch x: ``t -> gate N conv(t)``."""

    conv: Convolution  # with evaluation-mode BatchNorm in its kernel
    norm: SampleNorm | None  # BatchNorm on a batch of one
    gate: Tensor | None  # (B, D, H, W), 1 where the ReLU lets through, else 0; None without a ReLU
    size: tuple[int, int]  # (H, W) of its input

    def push(self, t: Tensor) -> Tensor:
        t = self.conv(t)
        t = t if self.norm is None else self.norm.push(t)
        return t if self.gate is None else t.mul_(self.gate)

    def push_unprojected(self, t: Tensor) -> Tensor:
        return self.gated(self.scale * self.conv(t))

    def pull(self, t: Tensor) -> Tensor:
        t = self.gated(t)
        return self.conv.transposed(t if self.norm is None else self.norm.pull(t), self.size)

    def gated(self, t: Tensor) -> Tensor:
        return t if self.gate is None else self.gate * t

    @property
    def scale(self) -> Tensor | float:
        """The normalisation without its projection. (B, D, 1, 1)"""
        return 1.0 if self.norm is None else self.norm.scale

    @property
    def open_scale(self) -> Tensor:
        """The same where the ReLU of this stage lets through, else 0. (B, D, H, W)"""
        assert self.gate is not None  # a hidden stage
        return self.gate * self.scale


@dataclass(frozen=True, eq=False)
class BlockJacobian:
    """J of a block at a batch x: ``gate (stage_k ... stage_1 + S)``."""

    stages: tuple[Stage, ...]  # the last has no gate of its own
    skip: bool
    gate: Tensor | None  # (B, D, H', W') of the last ReLU; None: the output before it
    x: Tensor  # (B, C, H, W)
    image: Tensor  # (B, D, H', W'), J x

    def push(self, tangents: Tensor) -> Tensor:
        """J v for tangents v, (..., B, C, H, W) -> (..., B, D, H', W')."""
        return self.add_up(Stage.push, tangents)

    def half(self) -> "BlockJacobian":
        """The same in bfloat16, for pushing random signs. With BatchNorm on a batch of one, which subtracts, it is unchanged."""
        if any(stage.norm for stage in self.stages):
            return self

        def narrow(gate: Tensor | None) -> Tensor | None:
            return None if gate is None else gate.bfloat16()

        kernels = [replace(stage.conv, weight=stage.conv.weight.bfloat16()) for stage in self.stages]
        stages = (replace(stage, conv=conv, gate=narrow(stage.gate)) for stage, conv in zip(self.stages, kernels))
        return replace(self, stages=tuple(stages), gate=narrow(self.gate), x=self.x.bfloat16())

    def add_up(self, apply: Callable[[Stage, Tensor], Tensor], t: Tensor) -> Tensor:
        """Branch plus skip, gated, each stage applied in this way."""
        out = reduce(lambda out, stage: apply(stage, out), self.stages, t)
        if self.skip:
            out += self.shortcut(t)
        return out if self.gate is None else out.mul_(self.gate)

    def shortcut(self, t: Tensor) -> Tensor:
        """S t."""
        channels, stride = len(self.stages[-1].conv.weight), prod(stage.conv.stride[0] for stage in self.stages)
        return _as_one_batch(lambda batch: shortcut(batch, channels, stride), t)


def _as_one_batch(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """A function of (N, C, H, W), applied to (..., C, H, W)."""
    return torch.unflatten(function(x.flatten(0, -4)), 0, x.shape[:-3])


def block_jacobian(
    parts: Sequence[tuple[nn.Conv2d, _BatchNorm | None]], skip: bool, x: Tensor, gate: Tensor | None, alone: bool
) -> BlockJacobian:
    """J of a block at every sample of a batch x, (B, C, H, W), and J x.

    Args:
        parts: its convolutions, each with the BatchNorm after it; there is a ReLU between any two.
        skip: whether S x is added.
        gate: (B, D, H', W'), 1 where the input of the last ReLU is positive, else 0; None leaves that ReLU out.
        alone: normalise each sample by itself instead of using running statistics.

    Cost: less than a forward pass for one stage, one and a half for two.
    """
    stages: list[Stage] = []
    h = t = x  # the forward pass, and what J makes of x on the way
    for place, (conv, norm) in enumerate(parts, start=1):
        norm = None if isinstance(norm, nn.Identity) else norm  # where a BatchNorm has been absorbed
        stage, h, t = _stage(conv, norm, h, t, alone, last=place == len(parts))
        stages.append(stage)
    block = BlockJacobian(tuple(stages), skip, gate, x, t)
    image = t + block.shortcut(x) if skip else t
    return replace(block, image=image if gate is None else gate * image)


def _stage(
    conv: nn.Conv2d, norm: _BatchNorm | None, h: Tensor, t: Tensor, alone: bool, last: bool
) -> tuple[Stage, Tensor, Tensor]:
    """A stage linearised at h, and what comes out of it for h and for the tangent t. The last one has no ReLU."""
    kernel, shift = _fold(conv, norm, alone)
    size = h.shape[2], h.shape[3]
    if last and t is not h and not (alone and norm):  # with running statistics only the tangent is of interest
        return Stage(kernel, None, None, size), h, kernel(t)
    u = kernel(h)
    around = SampleNorm.at(u, norm) if alone and norm else None
    image = u if t is h else kernel(t)
    if around is not None:
        image = around.own_image if t is h else around.push(image)
    if last:
        return Stage(kernel, around, None, size), u, image
    before = u + shift if around is None else around.value  # a new tensor in any case
    gate = (before > 0).to(u.dtype)
    return Stage(kernel, around, gate, size), before.mul_(gate), image.mul_(gate)


def _fold(conv: nn.Conv2d, norm: _BatchNorm | None, alone: bool) -> tuple[Convolution, Tensor]:
    """The convolution with evaluation-mode BatchNorm in its kernel, and the shift, (D or 1, 1, 1), that goes with it.

    A batch of one subtracts its mean, so there the bias does not matter.
    """
    weight: Tensor = conv.weight
    shift = weight.new_zeros(1) if conv.bias is None else conv.bias
    if norm is not None and not alone:
        assert norm.running_mean is not None and norm.running_var is not None  # else it is refused before
        scale = (norm.running_var + norm.eps).rsqrt() * (1.0 if norm.weight is None else norm.weight)
        weight = weight * scale[:, None, None, None]
        shift = (shift - norm.running_mean) * scale + (0.0 if norm.bias is None else norm.bias)
    # `is_ordinary`: two strides and two paddings
    stride, padding = cast(tuple[int, int], conv.stride), cast(tuple[int, int], conv.padding)
    return Convolution(weight, stride, padding), shift[:, None, None]
