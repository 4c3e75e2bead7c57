"""How a net describes its measurable layers.

Measures get a net's layers only from `layers_of`: a tuple of `Layer`, in the order of the forward pass, numbered from 1 as in
the papers (layer 1 is the first convolution). The names become keys in logs and tables, so they never change.
"""

import inspect
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from lightning_app.common.errors import UserError
from lightning_app.common.isolation import unwrapped
from lightning_app.identity import id_entries

T = TypeVar("T")
MAPS = (_ConvNd, nn.Linear, nn.Embedding)  # and transformers' Conv1D
ROLES = ("query", "key", "value", "output")  # the maps of an `nn.MultiheadAttention`


@dataclass(frozen=True)
class Layer:
    """One trainable linear map of a net, its bias excluded: a convolution, a linear map, an embedding, a part of attention.

    The layer's linear map is ``A x = W x`` or, where the net adds an identity across just this layer (``skip``),
    ``A x = W x + S x`` with S of `identity.shortcut`. The x of an embedding is one-hot. The query, key, value and output
    maps of an `nn.MultiheadAttention` are separate layers, whose weights may be rows of one packed weight.
    """

    name: str  # "layer01", "layer02", ...: 1-based, in forward order; "layer02_3": its third call in a forward pass
    module: Any  # the nn.Module that is called
    weight_name: str  # its key in the net's state dict, e.g. "blocks.3.conv.weight"
    has_id: bool = False  # its kernel has ID entries (a block of a plain or residual simplified net)
    skip: bool = False  # the net adds S x to its output
    role: str = ""  # one of `ROLES`
    call: int = 1  # which of the module's calls in a forward pass

    @property
    def parameter(self) -> Tensor:
        """The tensor that contains the weight, and the rows of other layers if it is packed."""
        attribute = self.weight_name.rpartition(".")[2]
        if self.role == "output":
            attribute = f"out_proj.{attribute}"
        return attrgetter(attribute)(self.module)

    @property
    def rows(self) -> slice:
        """The rows of `parameter` that belong to this layer."""
        return self._third if self.role and self.weight_name.endswith("in_proj_weight") else slice(None)

    @property
    def _third(self) -> slice:
        start, size = ROLES.index(self.role), self.module.embed_dim
        return slice(start * size, (start + 1) * size)

    @property
    def weight(self) -> Tensor:
        """(D, C, U, V) of a convolution, (D, C) of a linear map; (C, D, ...) of a transposed one, (tokens, D) of an embedding."""
        return self.parameter[self.rows] if self.role else self.parameter

    @property
    def by_output(self) -> Tensor:
        """The weight with its D output channels first.

        >>> Layer("layer01", nn.ConvTranspose2d(6, 4, 3, groups=2), "weight").by_output.shape  # 3 inputs an output
        torch.Size([4, 3, 3, 3])
        """
        return self.outputs_first(self.weight)

    def outputs_first(self, values: Tensor) -> Tensor:
        """Values of the weight's shape, arranged as in `by_output`."""
        if isinstance(self.module, _ConvTransposeNd):  # (C, D / groups, U, V): the outputs of a group beside its inputs
            return values.unflatten(0, (self.module.groups, -1)).transpose(1, 2).flatten(0, 1)
        return values.transpose(0, 1) if self.transposed else values

    @property
    def bias(self) -> Tensor | None:
        """(D,)"""
        return next((whole[rows] for whole, rows in self.parameters[1:]), None)

    @property
    def parameters(self) -> list[tuple[Tensor, slice]]:
        """Its weight and, if there is one, its bias: each as the tensor that contains it, and the layer's rows in that tensor."""
        packed = self.role not in ("", "output")
        owner = self.module.out_proj if self.role == "output" else self.module
        bias = getattr(owner, "in_proj_bias" if packed else "bias", None)
        of_bias = [(bias, self._third if packed else slice(None))] if isinstance(bias, Tensor) else []
        return [(self.parameter, self.rows), *of_bias]

    def with_weight(self, weight: Tensor) -> dict[str, Tensor]:
        """A dict, by state-dict name, that sets the layer's weight in a net; the rows of other layers are unchanged."""
        if weight.shape == self.parameter.shape:
            return {self.weight_name: weight}
        whole = self.parameter.clone()
        whole[self.rows] = weight
        return {self.weight_name: whole}

    @property
    def is_conv(self) -> bool:
        return isinstance(self.module, _ConvNd)

    @property
    def transposed(self) -> bool:
        """Whether the weight has its inputs first."""
        return isinstance(self.module, (_ConvTransposeNd, nn.Embedding)) or _is_their_conv1d(self.module)

    @property
    def stride(self) -> int:
        """Of a convolution, in all directions; 1 of a linear map."""
        return self.module.stride[0] if self.is_conv else 1

    def id_mask(self) -> Tensor | None:
        """Bool mask of the ID entries of `weight`, or None where there are none."""
        return id_entries(self.weight) if self.has_id else None

    def weight64(self) -> Tensor:
        """`weight` in float64 on the CPU.

        UserError: if it is complex.
        """
        if self.weight.is_complex():
            raise UserError(f"expected real weights, but those of {self.weight_name} are {self.weight.dtype}.")
        return self.weight.detach().to("cpu", torch.float64)

    def transferred(self) -> Tensor:
        """T(W), the weight of the plain layer that computes ``W x + S x``; W itself without a skip. In float64 on the CPU.

        Raises:
            UserError: as `identity`.
        """
        return self.weight64() + self.identity() if self.skip else self.weight64()

    def identity(self) -> Tensor:
        """rho, the weight of S x: 1 at (c, c), for a convolution at its centre tap. float64 on the CPU.

        Raises:
            UserError: if S x is not such a convolution: groups, strides that differ, or padding other than half the kernel.
        """
        if not self.is_conv:
            return torch.eye(*self.weight.shape, dtype=torch.float64, device="cpu")
        conv = self.module
        centred = all(
            before == after == dilation * (window // 2)
            for (before, after), window, dilation in zip(padding_of(conv), conv.kernel_size, conv.dilation)
        )
        if conv.groups != 1 or not centred or len({*conv.stride}) > 1:
            raise UserError(
                f"{self.name} has a skip, which its kernel can contain only if groups is 1, the stride is the same in all "
                f"directions and the padding is half the kernel, got {conv}: describe the layer with skip=False."
            )
        return id_entries(self.weight).to("cpu", torch.float64)

    def at_call(self, call: int) -> "Layer":
        """The same layer at another call of its module, with a name of its own."""
        return replace(self, name=named_at(self.name, call), call=call)


def each_once(layers: Sequence[Layer]) -> list[Layer]:
    """The layers without those whose weight an earlier layer has, too (tied)."""
    weights = [(layer.parameter, layer.rows.start) for layer in layers]  # held, so that no id is used again
    first = {(id(weight), start): id(layer) for (weight, start), layer in zip(weights[::-1], layers[::-1])}
    return [layer for layer in layers if id(layer) in first.values()]


def named_at(name: str, call: int) -> str:
    """The name of a layer at its n-th call in a forward pass.

    >>> named_at("layer07", 1), named_at("layer07", 2)
    ('layer07', 'layer07_2')
    """
    return name if call == 1 else f"{name}_{call}"


def padding_of(conv: Any) -> list[tuple[int, int]]:
    """Padding (before, after) for each axis. With "same", an odd total has one more after, as in PyTorch."""
    if conv.padding == "valid":
        return [(0, 0)] * len(conv.kernel_size)
    if conv.padding == "same":
        totals = [dilation * (window - 1) for dilation, window in zip(conv.dilation, conv.kernel_size)]
        return [(total // 2, total - total // 2) for total in totals]
    return [(int(padding), int(padding)) for padding in conv.padding]


def is_ordinary(conv: nn.Module) -> bool:
    """Whether it is a convolution as in ResNets: zero padding smaller than the kernel, one group, equal strides, no dilation."""
    return (
        isinstance(conv, nn.Conv2d)
        and conv.padding_mode == "zeros"
        and not isinstance(conv.padding, str)
        and all(padding < window for padding, window in zip(conv.padding, conv.kernel_size))
        and conv.groups == 1
        and conv.dilation == (1, 1)
        and conv.stride[0] == conv.stride[1]
    )


def number_layers(
    net: nn.Module, names: Iterable[str], with_id: Collection[str] = (), skips: Collection[str] = ()
) -> tuple[Layer, ...]:
    """These modules, in this order, as layers from `layer01` on; ``with_id`` have ID entries, ``skips`` have a skip."""
    with_id, skips = {*with_id}, {*skips}
    return _numbered([Layer("", net.get_submodule(n), f"{n}.weight", n in with_id, n in skips) for n in names])


def _numbered(layers: Sequence[Layer]) -> tuple[Layer, ...]:
    digits = max(2, len(str(len(layers))))
    return tuple(replace(each, name=f"layer{number:0{digits}d}") for number, each in enumerate(layers, start=1))


def layers_of(net: nn.Module) -> tuple[Layer, ...]:
    """The measurable layers of any net: its own ``net.layers()``, else all convolutions, linear maps, embeddings and maps of
    attention, in the order of registration.

    A net without ``layers()`` is assumed to have no ID entries and no skips, and to call layers in the order of registration. A
    weight that several layers share (tied) has its first name. Names are those in the net that ``torch.compile`` wraps.
    """
    net = unwrapped(net)
    _renew_weights(net)
    if (own := said_by(net, "layers", Layer)) is not None:
        return own
    names = {id(parameter): name for name, parameter in net.named_parameters()}
    found = [
        replace(each, weight_name=names[id(each.parameter)])
        if id(each.parameter) in names and names[id(each.parameter)].endswith(each.weight_name.rpartition(".")[2])
        else each
        for each in _found(net)
    ]
    return _numbered(found)


def _renew_weights(net: nn.Module) -> None:
    """Pruned weights, and those of the older `weight_norm` and `spectral_norm`, are attributes that a hook sets before each pass:
    after a step they are still those before it. Set as the next pass would, without a step of the power iteration, and with a
    graph where there was one: without, a net can be copied.
    """
    never_called = {module.out_proj for module in net.modules() if isinstance(module, nn.MultiheadAttention)}
    for module in net.modules():
        for hook in () if module in never_called else module._forward_pre_hooks.values():
            name = hook._tensor_name if isinstance(hook, BasePruningMethod) else getattr(hook, "name", "")
            with torch.set_grad_enabled(getattr(getattr(module, name, None), "requires_grad", False)):
                if isinstance(hook, (BasePruningMethod, WeightNorm)):
                    hook(module, ())
                elif isinstance(hook, SpectralNorm):
                    setattr(module, name, hook.compute_weight(module, do_power_iteration=False))


def said_by(net: nn.Module, method: str, kind: type[T]) -> tuple[T, ...] | None:
    """The result of a net's own method, such as ``layers()``; None if it has none, or one of that name that means something else.

    >>> said_by(nn.Sequential(nn.ReLU()), "layers", Layer) is None
    True
    """
    own = getattr(net, method, None)
    if not callable(own) or isinstance(own, nn.Module) or inspect.signature(own).parameters:
        return None
    found = own()
    fits = isinstance(found, Sequence) and all(isinstance(each, kind) for each in found)
    return tuple(found) if fits else None


def _found(net: nn.Module) -> Iterator[Layer]:
    within: set[nn.Module] = set()
    for path, module in net.named_modules():
        prefix = f"{path}." if path else ""
        if isinstance(module, nn.MultiheadAttention):
            within |= set(module.modules())
            packed = module.in_proj_weight is not None
            names = ["in_proj_weight"] * 3 if packed else [f"{letter}_proj_weight" for letter in "qkv"]
            for role, name in zip(ROLES, (*names, "out_proj.weight")):
                yield Layer("", module, prefix + name, role=role)
        elif module not in within and (isinstance(module, MAPS) or _is_their_conv1d(module)):
            yield Layer("", module, f"{prefix}weight")


def _is_their_conv1d(module: Any) -> bool:
    """transformers' Conv1D, a linear map whose weight is (inputs, outputs)."""
    return type(module).__name__ == "Conv1D" and hasattr(module, "nf")
