"""Normalisation absorbed into the layer before it, and the norms of what results: Fig. 2 of Littwin & Wolf (2016).

In evaluation mode a BatchNorm is an affine map of each channel. Behind a convolution or a linear map it can be merged
into that layer's weights, ``w' = s w`` and ``b' = beta + (b - mean) s`` with ``s = lambda / sqrt(var + eps)``, as the paper does
with e-lab's BN-absorber. The norm of the merged weights is the layer's effective scale, no matter how training divides it
between the two.

A LayerNorm, GroupNorm, InstanceNorm or RMSNorm divides by statistics of each sample, which weights cannot do, so no layer before
it can absorb it. Its lambda and beta are affine, and could be merged into a linear map behind it, ``W diag(lambda)`` and
``b + W beta``; `absorb` does not do that.
"""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lightning_app.measures.core.hooks import own_copy
from lightning_app.measures.weights.mass import counted_layers
from lightning_app.measures.weights.normalisation import Normalisation, affine, normalisations_of
from lightning_app.networks.layers import Layer, each_once

NormName = Literal["frobenius", "rms", "filter"]


@torch.no_grad()
def absorb(net: nn.Module, image: Tensor) -> nn.Module:
    """A copy in evaluation mode, with every normalisation that can be absorbed merged into the layer before it.

    Its output is that of the net in evaluation mode up to rounding (1e-12 of its size in float64). Each merged normalisation is
    replaced by an `nn.Identity`; others stay. The pairs are found in a forward pass of ``image``, (1, ...).
    """
    net = own_copy(net).eval()
    for norm in normalisations_of(net, image):
        if norm.into is None:
            continue
        layer: Any = net.get_submodule(norm.into)
        (scale, shift), weight = affine(norm.module), layer.weight
        bias = weight.new_zeros(len(weight)) if layer.bias is None else layer.bias
        layer.bias = nn.Parameter((bias * scale + shift).to(weight.dtype), weight.requires_grad)
        layer.weight = nn.Parameter(_times(weight, scale).to(weight.dtype), weight.requires_grad)
        # Under each of its names: some nets keep a layer as an attribute and in a Sequential.
        for path in [path for path, each in net.named_modules(remove_duplicate=False) if each is norm.module]:
            net.set_submodule(path, nn.Identity().eval())
    return net


def weight_norm(weights: Sequence[Tensor], norm: NormName = "frobenius") -> float:
    """The norm of the weights of one or several layers together, each (D, ...) with D output channels.

    "frobenius": the root of the sum of squares; "rms": the root of their mean, which over all layers is C of Eq. 4; "filter": the
    mean 2-norm of the output channels.

    >>> w = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    >>> weight_norm([w]), weight_norm([w], "rms"), weight_norm([w], "filter")
    (5.0, 2.5, 2.5)
    """
    wide = (w.detach().to(torch.promote_types(w.dtype, torch.float64)).flatten(1) for w in weights)  # may be complex
    filters = torch.cat([torch.linalg.vector_norm(w, dim=1).cpu() for w in wide])
    if norm == "filter":
        return float(filters.mean())
    size = sum(w.numel() for w in weights) if norm == "rms" else 1
    return float(filters.norm()) / size**0.5


def absorbed_norms(
    layers: Sequence[Layer], norms: Sequence[Normalisation], norm: NormName = "frobenius"
) -> dict[str, float]:
    """Norms of the weights, without biases, as they are and with the following normalisation absorbed.

    Keys: ``"layer07/own"``, and ``"layer07/absorbed"`` if possible; ``"own"`` and ``"absorbed"``, means of these over the
    `counted_layers` (Fig. 2b); ``"total"``, the norm of all layers' weights together, with shared weights once (Fig. 1e).
    """
    if not layers:
        return {}
    following = {one.into: one.module for one in norms if one.into is not None}
    paths = {layer: layer.weight_name.removesuffix(".weight") for layer in layers}
    own = {layer: weight_norm([layer.by_output], norm) for layer in layers}
    absorbed = {
        layer: weight_norm([_times(layer.weight.detach().double(), affine(following[path])[0].double())], norm)
        for layer, path in paths.items()
        if path in following
    }
    found: dict[str, float] = {}
    for kind, by_layer in (("own", own), ("absorbed", absorbed)):
        found |= {f"{layer.name}/{kind}": value for layer, value in by_layer.items()}
        counted = [by_layer[layer] for layer in counted_layers(layers) if layer in by_layer] or list(by_layer.values())
        found |= {kind: sum(counted) / len(counted)} if counted else {}
    return found | {"total": weight_norm([layer.by_output for layer in each_once(layers)], norm)}


def _times(weight: Tensor, scale: Tensor) -> Tensor:
    """w' = s w: output channel d of w (D, ...) multiplied by lambda_d / sqrt(var_d + eps)."""
    return weight * scale.view(-1, *(1,) * (weight.ndim - 1))
