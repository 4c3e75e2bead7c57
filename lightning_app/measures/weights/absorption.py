"""Normalisation absorbed into the layer before it, and the norms of what results: Fig. 2 of Littwin & Wolf (2016).

In evaluation mode a BatchNorm is an affine map of each channel. Behind a convolution or a linear map it can be merged
into that layer's weights, ``w' = s w`` and ``b' = beta + (b - mean) s`` with ``s = lambda / sqrt(var + eps)``, as the
paper does with e-lab's BN-absorber: the scale that a layer really has is then the norm of its weights, wherever
training keeps it.

A LayerNorm, GroupNorm, InstanceNorm or RMSNorm divides by statistics of the sample at hand, which no weights can do: nothing
before it can absorb it. Its lambda and beta are affine, and a linear map behind it could take them, ``W diag(lambda)`` and
``b + W beta``; `absorb` leaves them where they are.
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

    Its output is the net's in evaluation mode up to rounding (1e-12 of its size in float64). An `nn.Identity` stands in
    each merged normalisation's place; what cannot be merged stays. An image (1, ...) finds the pairs in a forward pass.
    """
    net = own_copy(net).eval()
    for norm in normalisations_of(net, image):
        if norm.into is None:
            continue
        layer: Any = net.get_submodule(norm.into)
        (scale, shift), trained = affine(norm.module), layer.weight.requires_grad
        bias, dtype = layer.weight.new_zeros(len(scale)) if layer.bias is None else layer.bias, layer.weight.dtype
        layer.bias = nn.Parameter((bias * scale + shift).to(dtype), trained)
        layer.weight = nn.Parameter(_times(layer.weight, scale).to(dtype), trained)
        # Under each of its names: some nets keep a layer as an attribute and in a Sequential.
        for path in [path for path, each in net.named_modules(remove_duplicate=False) if each is norm.module]:
            net.set_submodule(path, nn.Identity().eval())
    return net


def weight_norm(weights: Sequence[Tensor], norm: NormName = "frobenius") -> float:
    """The size of one or several layers' weights, (D, ...) each with D output channels, taken together.

    "frobenius": the root of the sum of squares; "rms": of their mean, which for all layers is C of Eq. 4; "filter": the
    mean over output channels of their 2-norms.

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
    """Norms of the weights, biases excluded, as they are and with the normalisation that follows absorbed.

    ``"layer07/own"``, and ``"layer07/absorbed"`` where that can be; ``"own"`` and ``"absorbed"``: means of these over
    the `counted_layers` (Fig. 2b); ``"total"``: of all layers' weights together, a shared one once, Fig. 1e.
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
