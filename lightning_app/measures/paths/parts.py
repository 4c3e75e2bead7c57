"""What a tensor of a forward pass is the sum of: parts that belong to paths of one kind each, or to a root of unity.

`ByLength` keeps one part for each length, and a layer makes them all longer by one. `AtRoot` keeps the one number
sum_r t^r f_r at a complex t with |t| = 1, and a layer multiplies by t: all lengths are the Fourier transform of this over the
roots of unity, at a cost that does not grow with their number. The first resolves outputs, the second gradients, and each is
the other's witness.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, Self

import torch
from torch import Tensor

from lightning_app.common.errors import UserError

Linear = Callable[..., Tensor]


class NoPaths(UserError):
    """The net cannot be carried out on parts of its tensors."""


@dataclass(frozen=True, eq=False)
class Parts(ABC):
    """A stack of parts, (K, ...) where the tensor is (...)."""

    stack: Tensor
    gated: bool = field(default=False, kw_only=True)  # by a gate that has a derivative, which is left out?

    @abstractmethod
    def started(self, tensor: Tensor) -> Self:
        """Parts of this kind for a tensor from which paths start."""

    def mapped(self, linear: Linear) -> Self:
        """A linear function of each."""
        return replace(self, stack=torch.vmap(linear)(self.stack))

    def split(self, linear: Callable[..., Sequence[Tensor]]) -> list[Self]:
        """A linear function of each that has several results."""
        return [replace(self, stack=stack) for stack in torch.vmap(lambda part: tuple(linear(part)))(self.stack)]

    def frozen(self, linear: Linear) -> Self:
        """A linear function of each, whose coefficients depend on the net's input and are held as they are."""
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

    def started(self, tensor: Tensor) -> Self:
        return self.at_start(tensor, self.angle)

    def aligned(self, others: Sequence[Self]) -> list[Self]:
        return [self, *others]

    def longer(self, by: int) -> Self:
        (real, imaginary), cos, sin = self.stack, math.cos(by * self.angle), math.sin(by * self.angle)
        return replace(self, stack=torch.stack([cos * real - sin * imaginary, sin * real + cos * imaginary]))

    def born(self, constant: Tensor) -> Self:
        one = torch.stack([math.cos(self.angle) * constant, math.sin(self.angle) * constant])
        return replace(self, stack=self.stack + one)
