"""A net as the sum over its paths: any forward pass, carried out on parts whose sum is the net's tensors.

If a net adds identities to branches, its output is a sum over paths, one for each choice of branch or identity at each addition
(Veit et al. 2016; Littwin & Wolf 2016, Eq. 9). There are exponentially many paths, but only as many *lengths* as layers, and
the sum over all paths of one length can be followed through the net. At a given sample the net is made linear: each tensor of
the forward pass has a stack of parts. Every function is applied to the sum of the parts, which determines the gates, and as a
linear map to each part.

*Gates are those of the sum, held fixed.* An activation is x times the gate phi(x) / x, a normalisation keeps its variances,
attention its pattern: paths go through values, while queries and keys make gates. In a product of two signals, the gate is the
one whose last function comes later in this list: a weight layer, another linear function, an activation, a function with values
from 0 to 1 or one that carries no path at all (softmax, a norm, a reciprocal). So squeeze-and-excitation scales are gates, and
so is the factor with the activation in a gated unit. If both are of the same kind, as in a bilinear layer, there is no rule and
no path. A gate of ReLU, leaky ReLU, BatchNorm or max pooling is constant near the sample: there the gradient of the paths is
the gradient. Other gates change, and the gradient that goes through them belongs to no path.

*Length* counts weight layers: convolutions, linear maps, embeddings, and matrix products with a tensor that does not depend
on the inputs. Query and key maps are parts of gates; a path through attention passes two layers, the value map and the output
map. Paths start at the inputs (of tokens, or whole numbers made of them: at their embeddings, which are one layer long, and
where they become real numbers), and at constants: a layer's bias, the shift of a normalisation, positions, a class token,
phi(0). Those have length 1 where they come in.

*Parts* are kept in two ways. `ByLength` keeps one part for each length, and a layer makes them all longer by one. `AtRootOfUnity`
keeps the one number sum_r t^r f_r at a complex t with |t| = 1, and a layer multiplies by t: all lengths are the Fourier transform
of this over the roots of unity, at a cost that does not grow with their number. The first is used for outputs, the second for
gradients, and each checks the other.
"""

import inspect
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cache
from typing import Any, Literal, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightning_app.common.calls import Inputs, call, takes
from lightning_app.common.errors import UserError
from lightning_app.common.isolation import tensors_in, unwrapped

LEAVE = "leave EffectiveDepth out of trainer.callbacks (in Python: of `measures`)."
WRITTEN = (
    "this net cannot be resolved by path length, because it writes signals into a part of a tensor or into an "
    f"existing tensor: use sums and torch.cat, or {LEAVE}"
)
TWO_SIGNALS = (
    "this net cannot be resolved by path length, because it multiplies two signals of the same kind. One of them "
    f"must be a gate, which passed an activation, a sigmoid or a softmax that the other did not: otherwise {LEAVE}"
)
TOKENS = f"no path starts, because this net makes only whole numbers of its tokens, and never real ones: {LEAVE}"


Linear = Callable[..., Tensor]


class NoPaths(UserError):
    """The net cannot be resolved into paths."""


@dataclass(frozen=True, eq=False)
class Parts(ABC):
    """A stack of parts, (K, ...) where the tensor is (...)."""

    stack: Tensor
    gated: bool = field(default=False, kw_only=True)  # by a gate that has a derivative, which is left out?

    @abstractmethod
    def started(self, tensor: Tensor) -> Self:
        """Parts of this kind for a tensor at which paths start."""

    def mapped(self, linear: Linear) -> Self:
        """A linear function of each part."""
        return replace(self, stack=torch.vmap(linear)(self.stack))

    def split(self, linear: Callable[..., Sequence[Tensor]]) -> list[Self]:
        """A linear function, with several results, of each part."""
        return [replace(self, stack=stack) for stack in torch.vmap(lambda part: tuple(linear(part)))(self.stack)]

    def frozen(self, linear: Linear) -> Self:
        """A linear function of each part, whose coefficients depend on the net's input and are held fixed."""
        return replace(self.mapped(linear), gated=True)

    def joined(self, others: Sequence[Self], linear: Linear) -> Self:
        """A linear function of several tensors' parts: their sum, or one after the other."""
        first, *rest = self.aligned(others)
        stack = torch.vmap(linear)(first.stack, *(parts.stack for parts in rest))
        return replace(first, stack=stack, gated=any(parts.gated for parts in (self, *others)))

    @abstractmethod
    def aligned(self, others: Sequence[Self]) -> list[Self]:
        """All of them, self first, with stacks whose k-th entries belong together."""

    @abstractmethod
    def lengthened(self, by: int) -> Self:
        """Parts of paths that are longer by this number of weight layers; -1: as if the last one did not count."""

    @abstractmethod
    def with_constant(self, constant: Tensor) -> Self:
        """With a constant, of the tensor's shape, added: it starts a path here."""


class Kind(NamedTuple):
    """What the paths of one part have in common."""

    start: Literal["constant", "input"]
    length: int  # weight layers passed


@dataclass(frozen=True, eq=False)
class ByLength(Parts):
    """One part for each kind of path.

    >>> x = ByLength(torch.tensor([[5.0]]), (Kind("input", 0),))
    >>> y = x.joined([x.lengthened(1).with_constant(torch.tensor([2.0]))], torch.add)
    >>> y.kinds, y.stack.flatten().tolist()
    ((Kind(start='constant', length=1), Kind(start='input', length=0), Kind(start='input', length=1)), [2.0, 5.0, 5.0])
    """

    kinds: tuple[Kind, ...] = (Kind("input", 0),)  # ascending

    def started(self, tensor: Tensor) -> Self:
        return type(self)(tensor.unsqueeze(0))

    def aligned(self, others: Sequence[Self]) -> list[Self]:
        every = (self, *others)
        kinds = tuple(sorted({kind for parts in every for kind in parts.kinds}))
        return [parts if kinds == parts.kinds else parts._among(kinds) for parts in every]

    def _among(self, kinds: tuple[Kind, ...]) -> Self:
        """With parts that are zero for kinds that have no path here."""
        places = torch.tensor([kinds.index(kind) for kind in self.kinds], device=self.stack.device)
        stack = self.stack.new_zeros(len(kinds), *self.stack.shape[1:]).index_copy(0, places, self.stack)
        return replace(self, stack=stack, kinds=kinds)

    def lengthened(self, by: int) -> Self:
        return replace(self, kinds=tuple(Kind(start, length + by) for start, length in self.kinds))

    def with_constant(self, constant: Tensor) -> Self:
        # Sorted, so that a path that starts here comes first. Written out, as `joined` would copy the stack three times.
        here, constant = Kind("constant", 1), constant.unsqueeze(0)
        if self.kinds[0] == here:
            return replace(self, stack=torch.cat([self.stack[:1] + constant, self.stack[1:]]))
        return replace(self, stack=torch.cat([constant, self.stack]), kinds=(here, *self.kinds))


@dataclass(frozen=True, eq=False)
class AtRootOfUnity(Parts):
    """Real and imaginary part of sum_r t^r f_r at t = exp(i angle), the parts of each length r being f_r.

    >>> x = AtRootOfUnity(torch.zeros(2), math.pi / 2).started(torch.tensor([5.0])).lengthened(1)  # 5 i
    >>> x.stack.flatten().round().int().tolist(), x.lengthened(1).stack.flatten().round().int().tolist()
    ([0, 5], [-5, 0])
    """

    angle: float = 0.0

    def started(self, tensor: Tensor) -> Self:
        return type(self)(torch.stack([tensor, torch.zeros_like(tensor)]), self.angle)

    def aligned(self, others: Sequence[Self]) -> list[Self]:
        return [self, *others]

    def lengthened(self, by: int) -> Self:
        (real, imaginary), cos, sin = self.stack, math.cos(by * self.angle), math.sin(by * self.angle)
        return replace(self, stack=torch.stack([cos * real - sin * imaginary, sin * real + cos * imaginary]))

    def with_constant(self, constant: Tensor) -> Self:
        one = torch.stack([math.cos(self.angle) * constant, math.sin(self.angle) * constant])
        return replace(self, stack=self.stack + one)


class Last(IntEnum):
    """What a tensor passed last; in a product, the larger is the gate."""

    LAYER = 0  # a weight layer, and since then nothing but a change of form
    LINEAR = 1
    ACTIVATION = 2
    GATE = 3  # values from 0 to 1, or a function that carries no path


class CarriesNoPath(Exception):
    """No path leads through this function of signals; its result can still be a gate."""

    def __init__(self, why: str, last: Last | None = None) -> None:
        super().__init__(why)
        self.why, self.last = why, last


class Unravelled(Tensor):
    """A tensor of a forward pass that goes with its parts; functions of it are such tensors again."""

    like: Parts  # what it is the sum of; if it has no parts, those of something before it
    why: str | None = None  # it has no parts
    last: Last = Last.LINEAR

    @property
    def parts(self) -> Parts:
        if self.why:
            raise CarriesNoPath(self.why)
        return self.like

    @property
    def from_layer(self) -> bool:
        """Is it the output of a weight layer, of which nothing but the form was changed since?"""
        return self.last == Last.LAYER

    @property
    def output_parts(self) -> Parts:
        """Parts of a net's outputs: a layer that ends the net, its readout, does not count in lengths."""
        return self.parts.lengthened(-1) if self.from_layer else self.parts

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if func is Tensor.__setitem__:
            raise NoPaths(WRITTEN)
        func, args, kwargs, in_place = _out_of_place(func, args, dict(kwargs or {}))
        args = args or tuple(kwargs.pop(name) for name in ("input", "tensors") if name in kwargs)
        if func is Tensor.__iter__:
            return iter(args[0].unbind(0))
        signals = [each for each in tensors_in((args, kwargs)) if isinstance(each, Unravelled)]
        tokens, real = ([each for each in signals if (each.why == TOKENS) is whole] for whole in (True, False))
        total = on_sum(func, *args, **kwargs)
        new = func in NEW
        whole = new or not any(map(_is_signal, tensors_in(total)))
        if in_place and (whole or not real):  # of tokens, which would stay as they were
            raise NoPaths(WRITTEN)
        if whole:
            return _each(total, lambda part: _whole(part, tokens[0].like)) if tokens and not new else total
        if not real:
            return _embedded(func, total, tokens[0].like, args, kwargs)
        args, kwargs = _without_tokens(args), _without_tokens(kwargs)  # they choose among signals, or mask them
        out = _resolved(func, total, args, kwargs, real)
        return _written(args[0], out) if in_place else out


LOOKUPS = {F.embedding, Tensor.__getitem__, torch.index_select, Tensor.index_select}
NEW = {Tensor.new_zeros, Tensor.new_ones, Tensor.new_empty, Tensor.new_full, Tensor.new_tensor}
NEW |= {torch.zeros_like, torch.ones_like, torch.empty_like, torch.full_like, torch.rand_like, torch.randn_like}


def unravel(net: nn.Module, inputs: Tensor | Inputs, parts: Parts) -> Unravelled:
    """The output of a net in evaluation mode for inputs (B, ...), with its parts and the gates of the ordinary forward pass.

    If there are several inputs, paths start at the first one and at all that have real numbers; other inputs of whole numbers are
    constants, such as segments and positions, and so is each with ``mask`` in its name in ``forward``. If the first one has whole
    numbers, these are tokens, and paths start where they are embedded.

    Args:
        parts: only their kind is used.

    Raises:
        NoPaths: if no path leads to the output, with the name of the function that prevents it.
    """
    several = inputs if isinstance(inputs, Inputs) else Inputs([inputs])
    if not takes(net, "decoder_input_ids"):  # which encoder-decoders make of the labels
        several = several.without_labels()
    masks = _masks(net, several)
    first = next((each for each in several.tensors if id(each) not in masks), several.tensors[0])

    def with_parts(x: Tensor) -> Tensor:
        if x is not first and (id(x) in masks or not x.is_floating_point()):
            return x
        return unravelled(x, parts.started(x)) if x.is_floating_point() else _whole(x, parts)

    out = call(net, several.each(with_parts))
    if not isinstance(out, Unravelled):
        raise NoPaths("no path leads from the inputs to the outputs: this net's outputs do not depend on its inputs.")
    if out.why:
        raise NoPaths(out.why)
    return out


def _masks(net: nn.Module, inputs: Inputs) -> set[int]:
    """By id, the tensors that ``forward`` calls some mask."""
    in_place = zip(inspect.signature(unwrapped(net).forward).parameters, inputs.placed)
    return {id(each) for name, each in (*in_place, *inputs.named.items()) if re.search("mask(?!ed)", name)}


def unravelled(total: Tensor, parts: Parts, last: Last = Last.LINEAR, why: str | None = None) -> Unravelled:
    out = total.detach().as_subclass(Unravelled)
    out.like, out.last, out.why = parts, last, why
    return out


def plain(x: Any) -> Any:
    """The sums without their parts."""
    with torch._C.DisableTorchFunctionSubclass():
        return _each(x, lambda one: one.as_subclass(Tensor) if isinstance(one, Unravelled) else one)


@torch.no_grad()
def on_sum(func: Callable, *args: Any, **kwargs: Any) -> Any:
    """The function of the sum, as in an ordinary forward pass."""
    return func(*plain(args), **plain(kwargs))


class Rule(NamedTuple):
    """(function, its value for the sum, its arguments) -> the parts of its value, or a list of them, or all of the value."""

    parts: Callable[..., Parts | Sequence[Parts] | Any]
    floor: Last  # what the result has passed last, unless the arguments have passed something later
    resets: bool  # it is `floor` whatever the arguments have passed
    several: bool  # other arguments than the first may have parts, too


RULES: dict[Callable, Rule] = {}  # by torch function


def rule(*functions: Callable, floor: Last = Last.LINEAR, resets: bool = False, several: bool = False) -> Callable:
    def register(parts: Callable) -> Callable:
        RULES.update(dict.fromkeys(functions, Rule(parts, floor, resets, several)))
        return parts

    return register


def _resolved(func: Callable, total: Any, args: tuple, kwargs: dict, signals: Sequence[Unravelled]) -> Any:
    """The sum with its parts, or as a tensor that can only be a gate."""
    found = RULES.get(func)
    last = Last.GATE
    try:
        if found is None or not (found.several or (len(signals) == 1 and isinstance(args[0], Unravelled))):
            raise CarriesNoPath(
                f"no path leads through {_name(func)}, only through linear maps, activations, normalisations, attention and "
                f"pools. What passes another function can only be a gate: {LEAVE}"
            )
        # What carries no path stays the gate that it was.
        resets = found.resets and not all(signal.why for signal in signals)
        last = found.floor if resets else max(found.floor, min(signal.last for signal in signals))
        parts = found.parts(func, total, *args, **kwargs)
    except (AttributeError, KeyError, TypeError) as error:  # a way to call it that its rule does not know
        raise NoPaths(f"no path leads through {_name(func)} in this form ({error}): {LEAVE}") from error
    except CarriesNoPath as refusal:
        like, why, last = signals[0].like, refusal.why, last if refusal.last is None else refusal.last
        return _each(total, lambda part: unravelled(part, like, last, why) if _is_signal(part) else part)
    if isinstance(parts, Parts):
        return unravelled(total, parts, last)
    if isinstance(parts, list):
        return type(total)(unravelled(one, of_one, last) for one, of_one in zip(total, parts, strict=True))
    return parts


def _whole(total: Any, like: Parts) -> Any:
    """Tokens, or whole numbers and masks that depend on them."""
    return unravelled(total, like, why=TOKENS) if isinstance(total, Tensor) else total


def _embedded(func: Callable, total: Tensor, like: Parts, args: tuple, kwargs: dict) -> Unravelled:
    """A path starts: behind a weight layer of tokens that are one-hot vectors, or as numbers that can also make gates."""
    start = like.started(func(*plain(args), **plain(kwargs)))
    if func in LOOKUPS:
        return unravelled(total, start.lengthened(1), Last.LAYER)
    return unravelled(total, start, Last.GATE)


def _each(values: Any, make: Callable[[Any], Any]) -> Any:
    """Nested tuples, lists and dicts of what is made of each value."""
    if isinstance(values, dict):
        return {name: _each(value, make) for name, value in values.items()}
    if isinstance(values, (tuple, list)):
        return type(values)([_each(value, make) for value in values])
    return make(values)


def _is_signal(x: Any) -> bool:
    return isinstance(x, Tensor) and (x.is_floating_point() or x.is_complex())


def _without_tokens(x: Any) -> Any:
    return _each(x, lambda one: plain(one) if isinstance(one, Unravelled) and one.why == TOKENS else one)


def _name(func: Callable) -> str:
    name = getattr(func, "__name__", str(func))
    return func.__self__.__name__ if name == "__get__" else name  # type: ignore[attr-defined]


@cache
def _signature(func: Callable) -> inspect.Signature | None:
    try:
        return inspect.signature(func)
    except ValueError:  # functions in C have none, and no argument `inplace` either
        return None


def _out_of_place(func: Any, args: tuple, kwargs: dict) -> tuple[Any, tuple, dict, bool]:
    """The same call without a change of its argument, and whether it had one."""
    name, signature = _name(func), _signature(func)
    if name.endswith("_") and not name.endswith("__"):
        other = getattr(Tensor, name[:-1], None) or getattr(F, name[:-1], None)
        if not callable(other):
            raise NoPaths(WRITTEN)
        return other, args, kwargs, True
    if signature is None or "inplace" not in signature.parameters:
        return func, args, kwargs, False
    call = signature.bind(*args, **kwargs)
    in_place = bool(call.arguments.pop("inplace", False))
    return func, call.args, call.kwargs, in_place


def _written(x: Any, out: Unravelled) -> Unravelled:
    """What an in-place function leaves in its argument, which others may hold."""
    if not isinstance(x, Unravelled):
        raise NoPaths(WRITTEN)
    with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
        x.as_subclass(Tensor).copy_(out.as_subclass(Tensor))
    x.like, x.last, x.why = out.like, out.last, out.why
    return x
