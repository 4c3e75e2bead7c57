"""A net as the sum over its paths: any forward pass, carried out on the parts that its tensors are sums of.

Where a net adds an identity to a branch, what comes out is a sum over paths, one for each choice of branch or identity at
each addition (Veit et al. 2016; Littwin & Wolf 2016, Eq. 9): exponentially many, but of as many *lengths* as layers, and what
the paths of one length carry together can be followed through the net. All that a net does beside its ReLUs is affine, and
a ReLU with its gates frozen at the sample is linear too. So each tensor of the forward pass goes with a stack of parts, and
every function is applied to the sum (which decides about gates) and to the parts.

Two kinds of parts know what a layer does to a path. `ByLength` keeps one part for each length, and a layer makes them all
longer by one. `AtRoot` keeps the one number sum_r t^r f_r at a complex t with |t| = 1, and a layer multiplies by t: all
lengths are the Fourier transform of this over the roots of unity, at a cost that does not grow with their number. The
first resolves outputs, the second gradients, and each is the other's witness.

A weight layer is a convolution or a linear map. A constant (a layer's bias, the shift of a normalisation) starts a path of
its own, of length 1 where it comes in.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightning_app.common.errors import UserError

Linear = Callable[..., Tensor]


class NotPiecewiseLinear(UserError):
    """The net is not made of affine maps and ReLUs, and so is no sum over paths."""


@dataclass(frozen=True, eq=False)
class Parts(ABC):
    """A stack of parts, (K, ...) where the tensor is (...)."""

    stack: Tensor

    def mapped(self, linear: Linear) -> Self:
        """A linear function of each."""
        return replace(self, stack=torch.vmap(linear)(self.stack))

    def joined(self, others: Sequence[Self], linear: Linear) -> Self:
        """A linear function of several tensors' parts: their sum, or one after the other."""
        first, *rest = self.aligned(others)
        return replace(first, stack=torch.vmap(linear)(first.stack, *(parts.stack for parts in rest)))

    @abstractmethod
    def aligned(self, others: Sequence[Self]) -> list[Self]:
        """All of them, self first, with stacks whose k-th entries belong together."""

    @abstractmethod
    def longer(self, by: int) -> Self:
        """Behind so many more weight layers; -1: as if the last one did not count."""

    @abstractmethod
    def born(self, constant: Tensor) -> Self:
        """With a constant, of the tensor's shape, that starts a path here."""


STARTS: tuple[Literal["input", "constant"], ...] = ("input", "constant")


class Kind(NamedTuple):
    """What the paths of one part have in common."""

    start: Literal["constant", "input"]
    length: int  # weight layers passed


@dataclass(frozen=True, eq=False)
class ByLength(Parts):
    """One part for each kind of path.

    >>> x = ByLength(torch.tensor([[5.0]]), (Kind("input", 0),))
    >>> y = x.joined([x.longer(1).born(torch.tensor([2.0]))], torch.add)
    >>> y.kinds, y.stack.flatten().tolist()
    ((Kind(start='constant', length=1), Kind(start='input', length=0), Kind(start='input', length=1)), [2.0, 5.0, 5.0])
    """

    kinds: tuple[Kind, ...] = (Kind("input", 0),)  # ascending

    def aligned(self, others: Sequence[Self]) -> list[Self]:
        every = (self, *others)
        kinds = tuple(sorted({kind for parts in every for kind in parts.kinds}))
        return [parts if kinds == parts.kinds else parts._among(kinds) for parts in every]

    def _among(self, kinds: tuple[Kind, ...]) -> Self:
        """With parts that are zero for kinds that have no path here."""
        places = torch.tensor([kinds.index(kind) for kind in self.kinds], device=self.stack.device)
        stack = self.stack.new_zeros(len(kinds), *self.stack.shape[1:]).index_copy(0, places, self.stack)
        return replace(self, stack=stack, kinds=kinds)

    def longer(self, by: int) -> Self:
        return replace(self, kinds=tuple(Kind(start, length + by) for start, length in self.kinds))

    def born(self, constant: Tensor) -> Self:
        # Sorted, so that a path that starts here comes first. Written out, as `joined` would copy the stack three times.
        here, constant = Kind("constant", 1), constant.unsqueeze(0)
        if self.kinds[0] == here:
            return replace(self, stack=torch.cat([self.stack[:1] + constant, self.stack[1:]]))
        return replace(self, stack=torch.cat([constant, self.stack]), kinds=(here, *self.kinds))


@dataclass(frozen=True, eq=False)
class AtRoot(Parts):
    """Real and imaginary part of sum_r t^r f_r at t = exp(i angle), the parts of each length r being f_r.

    >>> x = AtRoot.at_start(torch.tensor([5.0]), math.pi / 2).longer(1)  # 5 i
    >>> x.stack.flatten().round().int().tolist(), x.longer(1).stack.flatten().round().int().tolist()
    ([0, 5], [-5, 0])
    """

    angle: float = 0.0

    @classmethod
    def at_start(cls, inputs: Tensor, angle: float) -> Self:
        """Inputs, from which all paths start."""
        return cls(torch.stack([inputs, torch.zeros_like(inputs)]), angle)

    def aligned(self, others: Sequence[Self]) -> list[Self]:
        return [self, *others]

    def longer(self, by: int) -> Self:
        (real, imaginary), cos, sin = self.stack, math.cos(by * self.angle), math.sin(by * self.angle)
        return replace(self, stack=torch.stack([cos * real - sin * imaginary, sin * real + cos * imaginary]))

    def born(self, constant: Tensor) -> Self:
        one = torch.stack([math.cos(self.angle) * constant, math.sin(self.angle) * constant])
        return replace(self, stack=self.stack + one)


class Unravelled(Tensor):
    """A tensor of a forward pass that goes with its parts; functions of it are such tensors again."""

    parts: Parts  # what it is the sum of
    from_layer: bool = False  # is it the output of a weight layer, of which nothing but the form was changed since?

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is Tensor.__setitem__:
            raise NotPiecewiseLinear(WRITTEN)
        if func in RULES:
            args = args or (kwargs.pop("tensors" if "tensors" in kwargs else "input"),)
            out = RULES[func](func, *args, **kwargs)
            in_place = func in _IN_PLACE or kwargs.get("inplace") or (func is F.relu and args[1:] == (True,))
            return _written(args[0], out) if in_place else out
        out = _on_sum(func, *args, **kwargs)
        if isinstance(out, Tensor) or (isinstance(out, (tuple, list)) and any(isinstance(o, Tensor) for o in out)):
            name = getattr(func, "__name__", str(func))
            raise NotPiecewiseLinear(
                "a net is resolved into paths if it is made of convolutions, linear maps, ReLUs, normalisations in "
                f"evaluation mode, sums and pools; this one calls {name}: leave it out of EffectiveDepth."
            )
        return out


def unravel(net: nn.Module, inputs: Tensor, parts: Parts) -> Unravelled:
    """The output of a net in evaluation mode for inputs (B, ...) of known parts, with the ordinary forward pass's gates.

    Raises:
        NotPiecewiseLinear: if a function of the net is not, named.
    """
    out = net(_unravelled(inputs, parts))
    if not isinstance(out, Unravelled):
        raise NotPiecewiseLinear(
            f"paths lead from the inputs to one tensor of outputs, but this net returns {type(out).__name__}."
        )
    return out


def _unravelled(total: Tensor, parts: Parts, from_layer: bool = False) -> Unravelled:
    out = total.detach().as_subclass(Unravelled)
    out.parts, out.from_layer = parts, from_layer
    return out


def _plain(x: Any) -> Any:
    if isinstance(x, (tuple, list)):
        return type(x)(map(_plain, x))
    with torch._C.DisableTorchFunctionSubclass():
        return x.as_subclass(Tensor) if isinstance(x, Unravelled) else x


@torch.no_grad()
def _on_sum(func: Callable, *args: Any, **kwargs: Any) -> Any:
    """The function of the sum, as in an ordinary forward pass."""
    args = tuple(map(_plain, args))
    if "inplace" in kwargs:
        kwargs["inplace"] = False
    return func(*args, **kwargs)


RULES: dict[Callable, Callable[..., Unravelled]] = {}  # torch function -> (function, its arguments) -> result


def _rule(*functions: Callable) -> Callable:
    def register(rule: Callable[..., Unravelled]) -> Callable[..., Unravelled]:
        RULES.update(dict.fromkeys(functions, rule))
        return rule

    return register


@_rule(F.conv1d, F.conv2d, F.conv3d, F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d, F.linear)
def _layer(func: Any, x: Any, weight: Tensor, bias: Tensor | None = None, *args: Any, **kwargs: Any) -> Any:
    """A weight layer: its linear map makes every path longer, its bias starts one."""
    total = _on_sum(func, x, weight, bias, *args, **kwargs)
    parts = x.parts.mapped(lambda part: func(part, weight, None, *args, **kwargs)).longer(1)
    return _unravelled(total, _with_constant(parts, bias, total, func is F.linear), from_layer=True)


@_rule(F.batch_norm)
def _batch_norm(
    func: Any,
    x: Any,
    mean: Tensor | None,
    var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    """lambda (x - mean) / sqrt(var + eps) + bias: a scale, and a constant that starts a path."""
    if training or mean is None or var is None:
        raise NotPiecewiseLinear(
            "a net is resolved into paths with its normalisation's statistics frozen, but a BatchNorm of this net has no "
            "running statistics or is in training mode: give it track_running_stats=True and call net.eval()."
        )
    total = _on_sum(func, x, mean, var, weight, bias, training, momentum, eps)
    scale = (var + eps).rsqrt() if weight is None else weight * (var + eps).rsqrt()
    shift = -mean * scale if bias is None else bias - mean * scale
    shape = (-1, *[1] * (total.ndim - 2))
    parts = x.parts.mapped(lambda part: part * scale.reshape(shape))
    return _unravelled(total, _with_constant(parts, shift, total, last=False))


def _with_constant(parts: Parts, constant: Tensor | None, like: Tensor, last: bool) -> Parts:
    """With one number for each channel, the last dimension or the second."""
    if constant is None:
        return parts
    shape = (-1,) if last else (-1, *[1] * (like.ndim - 2))
    return parts.born(constant.reshape(shape).expand(like.shape))


@_rule(F.relu, torch.relu, Tensor.relu, torch.relu_, Tensor.relu_)
def _relu(func: Any, x: Any, inplace: bool = False) -> Any:
    """The gates are the sum's."""
    total = _plain(x)
    gates = (total > 0).to(total.dtype)
    return _unravelled(total * gates, x.parts.mapped(lambda part: part * gates))


@_rule(F.max_pool2d, F.max_pool1d, F.max_pool3d, torch.max_pool2d, torch.max_pool1d, torch.max_pool3d)
def _max_pool(func: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
    """Each output is one of the inputs: the one that is largest in the sum."""
    kwargs = {**kwargs, "return_indices": True}
    total, places = _on_sum(WITH_PLACES[_plain(x).ndim], x, *args, **kwargs)
    first = places.ndim - total.ndim + 2  # maps are flattened, (B, C, places)

    def chosen(part: Tensor) -> Tensor:
        return part.flatten(first).gather(first, places.flatten(first)).reshape(total.shape)

    return _unravelled(total, x.parts.mapped(chosen))


WITH_PLACES = {3: F.max_pool1d, 4: F.max_pool2d, 5: F.max_pool3d}  # by dimensions of the maps


@_rule(torch.add, Tensor.add, Tensor.add_, torch.sub, Tensor.sub, Tensor.sub_)
def _sum(func: Any, x: Any, other: Any, *, alpha: float = 1) -> Any:
    sign = -1 if func.__name__.startswith("sub") else 1
    return _combined(_on_sum(func, x, other, alpha=alpha), x, other, sign * alpha)


@_rule(Tensor.__rsub__)
def _reversed_difference(func: Any, x: Any, y: Any) -> Any:
    return _combined(_on_sum(func, x, y), y, x, -1)


def _combined(total: Tensor, x: Any, y: Any, factor: float) -> Unravelled:
    """x + factor y. What has no parts is a constant."""
    like = next(each for each in (x, y) if isinstance(each, Unravelled)).parts

    def parts(x: Any) -> Parts:
        if isinstance(x, Unravelled):
            return x.parts.mapped(lambda part: part.expand(total.shape))
        return _constant(torch.as_tensor(x, dtype=total.dtype, device=total.device), like, total.shape)

    return _unravelled(total, parts(x).joined([parts(y)], lambda one, other: one + factor * other))


def _constant(x: Tensor, like: Parts, shape: torch.Size) -> Parts:
    """A tensor without parts: a path starts here, unless it is zero and stays so. A trained one has a gradient at 0 too."""
    none = replace(like, stack=x.new_zeros(len(like.stack), *shape))
    return none.born(x.expand(shape)) if x.requires_grad or x.any() else none


@_rule(torch.mul, Tensor.mul, Tensor.mul_)
def _scaled(func: Any, x: Any, other: Any) -> Any:
    """Multiplied by something that has no parts."""
    if isinstance(x, Unravelled) and isinstance(other, Unravelled):
        raise NotPiecewiseLinear(
            "a net is resolved into paths if it multiplies signals by weights only, this one multiplies two signals: "
            "leave it out of EffectiveDepth."
        )
    signal, factor = (x, other) if isinstance(x, Unravelled) else (other, x)
    return _unravelled(_on_sum(func, x, other), signal.parts.mapped(lambda part: part * factor))


@_rule(torch.div, Tensor.div, Tensor.div_, torch.true_divide, Tensor.true_divide)
def _divided(func: Any, x: Any, other: Any) -> Any:
    if isinstance(other, Unravelled):
        raise NotPiecewiseLinear(
            "a net is resolved into paths if it divides signals by weights only, this one divides by a signal: leave it out of "
            "EffectiveDepth."
        )
    return _unravelled(_on_sum(func, x, other), x.parts.mapped(lambda part: part / other))


@_rule(torch.cat, torch.concat, torch.concatenate)
def _cat(func: Any, tensors: Sequence[Any], dim: int = 0) -> Any:
    like = next(x for x in tensors if isinstance(x, Unravelled)).parts
    one, *others = (x.parts if isinstance(x, Unravelled) else _constant(x, like, x.shape) for x in tensors)
    return _unravelled(_on_sum(func, tensors, dim), one.joined(others, lambda *each: torch.cat(each, dim)))


@_rule(F.pad)
def _pad(func: Any, x: Any, pad: Any, mode: str = "constant", value: float | None = None) -> Any:
    if mode == "constant" and value:
        raise NotPiecewiseLinear(f"a net is resolved into paths if it pads with zeros, this one pads with {value}.")
    return _linear(func, x, pad, mode, value)


@_rule(F.dropout, F.dropout1d, F.dropout2d, F.dropout3d)
def _dropout(func: Any, x: Any, p: float = 0.5, training: bool = False, inplace: bool = False) -> Any:
    if training:
        raise NotPiecewiseLinear(
            "a net is resolved into paths in evaluation mode, this one drops units at random: call net.eval()."
        )
    return _unravelled(_plain(x), x.parts, x.from_layer)


@_rule(
    *(torch.flatten, Tensor.flatten, Tensor.unflatten, Tensor.view, Tensor.reshape, torch.reshape, Tensor.contiguous),
    *(Tensor.permute, torch.permute, Tensor.transpose, torch.transpose, Tensor.squeeze, torch.squeeze),
    *(Tensor.unsqueeze, torch.unsqueeze, Tensor.clone, torch.clone, Tensor.to, Tensor.float, Tensor.double),
)
def _form(func: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
    """The same numbers in another form: a readout's are still its."""
    out = _linear(func, x, *args, **kwargs)
    out.from_layer = x.from_layer
    return out


@_rule(
    *(Tensor.neg, torch.neg, Tensor.__getitem__, Tensor.mean, torch.mean, Tensor.sum, torch.sum),
    *(F.avg_pool1d, F.avg_pool2d, F.avg_pool3d, F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d),
    *(F.interpolate, F.pixel_shuffle),
)
def _linear(func: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
    total = _on_sum(func, x, *args, **kwargs)
    return _unravelled(total, x.parts.mapped(lambda part: func(part, *args, **kwargs)))


WRITTEN = (
    "a net is resolved into paths if it adds and concatenates signals, this one writes them into a part of a tensor or "
    "into one that was there before: use sums and torch.cat, or leave it out of EffectiveDepth."
)
_IN_PLACE = {torch.relu_, Tensor.relu_, Tensor.add_, Tensor.sub_, Tensor.mul_, Tensor.div_}


def _written(x: Unravelled, out: Unravelled) -> Unravelled:
    """What an in-place function leaves in its argument, which others may hold."""
    if not isinstance(x, Unravelled):
        raise NotPiecewiseLinear(WRITTEN)
    with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
        x.as_subclass(Tensor).copy_(out.as_subclass(Tensor))
    x.parts, x.from_layer = out.parts, out.from_layer
    return x
