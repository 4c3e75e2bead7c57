"""How a net describes its measurable layers.

Measures meet a net only through `layers_of`: a tuple of `Layer`, in the order of the forward pass, numbered from 1 as
in the papers (layer 1 is the first convolution). The names become keys in logs and tables, so they never change.
"""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from lightning_app.identity import id_entries


@dataclass(frozen=True)
class Layer:
    """One trainable layer of a net: a convolution or a linear map, its bias excluded.

    The layer's linear map is ``A x = W x`` or, where the net adds an identity across just this layer (``skip``),
    ``A x = W x + S x`` with S of `identity.shortcut`.
    """

    name: str  # "layer01", "layer02", ...: 1-based, in forward order
    module: nn.Conv2d | nn.Linear
    weight_name: str  # its key in the net's state dict, e.g. "blocks.3.conv.weight"
    has_id: bool = False  # its kernel has ID entries (a block of a plain or residual simplified net)
    skip: bool = False  # the net adds S x to its output

    @property
    def weight(self) -> Tensor:
        """(D, C, U, V) of a convolution, (D, C) of a linear map."""
        return self.module.weight

    @property
    def is_conv(self) -> bool:
        return isinstance(self.module, nn.Conv2d)

    @property
    def stride(self) -> int:
        """Of a convolution, in both directions; 1 of a linear map."""
        return self.module.stride[0] if isinstance(self.module, nn.Conv2d) else 1

    def id_mask(self) -> Tensor | None:
        """Bool mask of the ID entries of `weight`, or None where there are none."""
        return id_entries(self.weight) if self.has_id else None

    def weight64(self) -> Tensor:
        """`weight` in float64 on the CPU."""
        return self.weight.detach().to("cpu", torch.float64)

    def transferred(self) -> Tensor:
        """T(W), 1 added to the ID entries of a layer with a skip, in float64 on the CPU; of any other layer its `weight`."""
        mask = self.id_mask() if self.skip else None
        return self.weight64() if mask is None else self.weight64() + mask.cpu()


def number_layers(modules: Sequence[tuple[str, nn.Module, bool, bool]]) -> tuple[Layer, ...]:
    """Layers from (module name, module, has_id, skip) in forward order; `layer01` is the first."""
    digits = max(2, len(str(len(modules))))
    return tuple(
        Layer(f"layer{number:0{digits}d}", cast(Any, module), f"{name}.weight".removeprefix("."), has_id, skip)
        for number, (name, module, has_id, skip) in enumerate(modules, start=1)
    )


def layers_of(net: nn.Module) -> tuple[Layer, ...]:
    """The measurable layers of any net: its own ``net.layers()``, else every Conv2d and Linear as registered.

    A net without ``layers()`` is taken at face value: no ID entries, no skips, registration order for forward order.
    """
    own = getattr(net, "layers", None)
    if inspect.ismethod(own):  # in many nets it is a Sequential
        return own()
    found = [(name, each) for name, each in net.named_modules() if isinstance(each, (nn.Conv2d, nn.Linear))]
    return number_layers([(name, module, False, False) for name, module in found])
