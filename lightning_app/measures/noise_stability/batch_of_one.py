"""BatchNorm in training mode on one sample at a time: what a net computes when it is left in training mode by mistake.

The interlayer cushions that Yu & Tomasi (2019, section 5) print come out only this way. Each sample is then normalised
with its own mean and variance over the map, as InstanceNorm does, and the Jacobian goes through both. Here all samples of a
batch are treated so at once, with the net in evaluation mode: running statistics do not move.

BatchNorm is then nearly invariant to the scale of its input. With m, v mean and (biased) variance of a channel u of n
values, ``y = gamma (u - m) / sqrt(v + eps) + beta`` and

    J t = gamma / sqrt(v + eps) (t - mean(t) - uhat mean(uhat t)),    uhat = (u - m) / sqrt(v + eps)
    J u = gamma uhat eps / (v + eps)                                  (Euler: exact, and zero for eps = 0)
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from lightning_app.common.errors import UserError
from lightning_app.measures.core.hooks import hooked

BnMode = Literal["eval", "batch1"]


def batch_norms(*modules: nn.Module) -> list[_BatchNorm]:
    """All BatchNorms in these modules, of any number of dimensions."""
    return [norm for module in modules for norm in module.modules() if isinstance(norm, _BatchNorm)]


def normalising(bn_mode: BnMode, *modules: nn.Module) -> AbstractContextManager[None]:
    """Within it, BatchNorms work as ``bn_mode`` says. The modules must be in evaluation mode, and are not changed."""
    if bn_mode != "batch1":
        return nullcontext()
    return hooked(batch_norms(*modules), after=lambda norm, inputs, _: SampleNorm.at(inputs[0], norm).value)


@dataclass(frozen=True, eq=False)
class SampleNorm:
    """BatchNorm of each sample by itself at u, (B, C, ...) with one or more further dimensions, and its Jacobian there.

    >>> norm = nn.BatchNorm1d(1, eps=0.0)
    >>> SampleNorm.at(torch.tensor([[[1.0, 3.0]], [[5.0, 9.0]]]), norm).value.tolist()
    [[[-1.0, 1.0]], [[-1.0, 1.0]]]
    """

    normal: Tensor  # (B, C, ...), uhat
    inverse: Tensor  # (B, C, 1, ...), 1 / sqrt(v + eps)
    gamma: Tensor  # (C, 1, ...)
    beta: Tensor  # (C, 1, ...)
    eps: float

    @classmethod
    def at(cls, u: Tensor, norm: _BatchNorm) -> "SampleNorm":
        """UserError: if a channel has only one value, and so no variance."""
        if u[0, 0].numel() < 2:
            raise UserError(
                "BatchNorm's mode 'batch1' (bn_modes) needs more than one value per channel, got a map of shape "
                f"{tuple(u.shape)} before a {type(norm).__name__}: use 'eval', or larger images."
            )
        over = tuple(range(2, u.ndim))
        centred = u - u.mean(over, keepdim=True)
        inverse = (centred.square().mean(over, keepdim=True) + norm.eps).rsqrt()
        gamma = u.new_ones(u.shape[1]) if norm.weight is None else norm.weight
        beta = u.new_zeros(u.shape[1]) if norm.bias is None else norm.bias
        per_channel = (-1, *[1] * (u.ndim - 2))
        return cls(centred * inverse, inverse, gamma.view(per_channel), beta.view(per_channel), norm.eps)

    @property
    def value(self) -> Tensor:
        """The output. (B, C, ...)"""
        return self.gamma * self.normal + self.beta

    @property
    def scale(self) -> Tensor:
        """The factor of each channel. (B, C, 1, ...)"""
        return self.gamma * self.inverse

    @property
    def own_image(self) -> Tensor:
        """J u by Euler's identity, free of the cancellation that ``push(u)`` suffers. (B, C, ...)"""
        return self.gamma * self.eps * self.inverse.square() * self.normal

    def push(self, t: Tensor) -> Tensor:
        """J t for tangents (..., B, C, H, W)."""
        return self.scale * self.project(t)

    def pull(self, t: Tensor) -> Tensor:
        """J^T t for cotangents (..., B, C, H, W)."""
        return self.project(self.scale * t)

    def project(self, t: Tensor) -> Tensor:
        """``(I - P) t``, P = `axes` times their transpose."""
        along = (self.normal * t).mean((-2, -1), keepdim=True)
        return t - t.mean((-2, -1), keepdim=True) - self.normal * along

    def axes(self) -> Tensor:
        """The two directions that the Jacobian of a channel maps (nearly) to 0: 1 and uhat, over sqrt(H W). (2C, B, C, H, W)."""
        channels, *size = self.normal.shape[1:]
        pair = torch.stack([torch.ones_like(self.normal), self.normal]) / (size[0] * size[1]) ** 0.5
        of_one_channel = torch.eye(channels, dtype=pair.dtype, device=pair.device)[:, None, None, :, None, None]
        return (of_one_channel * pair).flatten(0, 1)
