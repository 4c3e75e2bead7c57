"""Which axis of a signal has its channels, and how many positions it has: the shape alone does not tell.

A map is (B, C, H, W) and has H W positions, unless its layers are linear ones, (B, H, W, C). Tokens are (B, T, C) and
have T positions; what a one-dimensional convolution puts out is (B, C, T). The layer that ran last tells: it put out so
many channels, on the second axis if it is a convolution, else on the last.
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from lightning_app.common.isolation import tensors_in
from lightning_app.networks.layers import layers_of


@dataclass(frozen=True)
class Channels:
    """What a layer put out, for signals that were made from it without another layer."""

    count: int  # 0: not known
    second: bool  # whether a convolution did, whose channels are the second axis
    places: tuple[int, ...] = ()  # the other axes but the samples'

    @classmethod
    def of(cls, layer: nn.Module, out: Any) -> "Channels":
        """Of a layer's own output: (B, ...), and what else attention returns with it."""
        out = next(tensors_in(out))
        second = isinstance(layer, _ConvNd)
        if out.ndim < 2:
            return cls(1, second)
        return cls(out.shape[1 if second else -1], second, tuple(out.shape[2:] if second else out.shape[1:-1]))

    @classmethod
    def before(cls, net: nn.Module) -> "Channels":
        """Of what comes before all layers of a net: where the first one expects them."""
        return cls(0, any(layer.is_conv for layer in layers_of(net)[:1]))

    def axis(self, signal: Tensor) -> int:
        """Where a signal (B, ..., ...) has its channels.

        It may have been permuted since. If no axis has that many channels (they were joined, or halved), or if only an axis of
        places happens to have that length, the usual axis for such signals is returned.

        >>> import torch
        >>> of_convolution, of_linear = Channels(8, True, (5, 5)), Channels(8, False, (5,))
        >>> of_convolution.axis(torch.zeros(2, 8, 5, 5)), of_convolution.axis(torch.zeros(2, 5, 5, 8))
        (1, 3)
        >>> of_linear.axis(torch.zeros(2, 5, 16)), of_linear.axis(torch.zeros(2, 3, 5, 5))
        (2, 1)
        >>> Channels(8, True, (8, 8)).axis(torch.zeros(2, 24, 8, 8))
        1
        >>> Channels(8, False).axis(torch.zeros(2, 8, 8, 8))  # maps times a vector, as in squeeze-and-excitation
        1
        """
        last = signal.ndim - 1
        of_maps = self.second or (signal.ndim > 3 and not self.places)
        own, other = (1, last) if of_maps else (last, 1)
        if signal.shape[own] == self.count:
            return own
        left = (*signal.shape[1:other], *signal.shape[other + 1 :])
        permuted = len(left) != len(self.places) or left == self.places
        usual = 1 if self.second or signal.ndim > 3 else last
        return other if signal.shape[other] == self.count and permuted else usual

    def positions(self, signal: Tensor) -> int:
        """At how many places a sample of the signal (B, ...) has its channels: H W, T of tokens, 1 of a vector.

        >>> import torch
        >>> Channels(8, False, (5,)).positions(torch.zeros(2, 5, 8))
        5
        """
        return signal[0].numel() // signal.shape[self.axis(signal)] if signal.ndim > 2 else 1
