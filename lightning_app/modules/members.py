"""The bank of members: arms (plain, residual, the T-twin of another arm) times seeds.

One arm and one seed is the ordinary case. Networks know nothing of the bank: a member is an ordinary net with a name,
an arm and a seed. The seed alone decides its initial weights, its batches and its random draws, so a member is the same
net whether it is trained alone or among others.
"""

import re
from collections.abc import Callable, Iterator, Mapping, ValuesView
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar, cast

import torch
from torch import nn
from typing_extensions import override

from lightning_app.common.errors import UserError
from lightning_app.common.seeds import parse_seeds
from lightning_app.identity import transfer, untransfer

__all__ = ["Arm", "ByMember", "Centre", "Member", "NetFactory", "build_members", "parse_seeds"]

NetFactory = Callable[[], nn.Module]
Centre = Literal["zero", "identity"]
M = TypeVar("M", bound=nn.Module)


@dataclass
class Arm:
    """One kind of net of the bank: a net of its own, or the T-twin of another arm.

    Args:
        net: the network class and its arguments.
        twin_of: name of the arm whose twin this is: T(r) of a residual net, T^-1(p) of a plain one, from the same
            initial weights, on the same batches.
        decay_towards: centre of the penalty: "zero", or "identity" (rho: 1 at the ID entries). None takes "identity"
            for the plain twin of a residual arm, so that twins stay equivalent (Yu & Tomasi, section 4.1), else "zero".
            The residual twin of a plain arm stays equivalent only if that arm decays towards "identity".
    """

    net: NetFactory | None = None
    twin_of: str | None = None
    decay_towards: Centre | None = None


@dataclass(frozen=True)
class Member:
    """One net of the bank. Iterates as (name, net), which is all that measures need."""

    name: str  # "residual", or "residual-seed03" when there are several seeds
    arm: str
    seed: int
    net: nn.Module
    centre: Centre = "zero"
    twin_of: str | None = None  # name of the member this one was transferred from

    def __iter__(self) -> Iterator[Any]:
        return iter((self.name, self.net))


class ByMember(nn.ModuleDict, Generic[M]):
    """A module of one class for each member, by the member's name."""

    @override
    def __getitem__(self, name: str) -> M:
        return cast(M, super().__getitem__(name))

    @override
    def values(self) -> ValuesView[M]:
        return cast(ValuesView[M], super().values())


def build_members(arms: Mapping[str, Arm], seeds: tuple[int, ...]) -> tuple[Member, ...]:
    """Every arm with every seed, seeds within arms. Leaves the global random state untouched.

    Raises:
        UserError: for an arm with both or neither of net and twin_of, an unknown or chained twin, or a bad name.
    """
    for name, arm in arms.items():
        _check_arm(name, arm, arms)
    digits = max(2, len(str(max(seeds))))
    members: dict[tuple[str, int], Member] = {}
    for name in sorted(arms, key=lambda name: arms[name].twin_of is not None):  # twins after what they are twins of
        for seed in seeds:
            label = name if len(seeds) == 1 else f"{name}-seed{seed:0{digits}d}"
            members[name, seed] = _member(label, name, arms[name], seed, members)
    return tuple(members[name, seed] for name in arms for seed in seeds)


def _check_arm(name: str, arm: Arm, arms: Mapping[str, Arm]) -> None:
    if not re.fullmatch(r"\w+", name):
        raise UserError(f"an arm's name becomes a key, so it has letters, digits and '_' only, got '{name}'.")
    if hasattr(nn.ModuleDict(), name):
        raise UserError(f"'{name}' cannot name an arm: PyTorch's modules use it themselves. Choose another name.")
    if (arm.net is None) == (arm.twin_of is None):
        raise UserError(
            f"arm '{name}' needs either `net` or `twin_of`, got {'neither' if arm.net is None else 'both'}."
        )
    if arm.twin_of is not None and (arm.twin_of not in arms or arms[arm.twin_of].net is None):
        own = [other for other, candidate in arms.items() if candidate.net is not None]
        raise UserError(
            f"arm '{name}' is the twin of '{arm.twin_of}', which is not an arm with a net; there are {own}."
        )


def _member(label: str, name: str, arm: Arm, seed: int, members: Mapping[tuple[str, int], Member]) -> Member:
    if arm.net is not None:
        with torch.random.fork_rng(devices=[]):  # nets are made on the CPU: no GPU need be woken for this
            torch.default_generator.manual_seed(seed)
            return Member(label, name, seed, arm.net(), arm.decay_towards or "zero")
    original = members[cast(str, arm.twin_of), seed]  # one of both is given: `_check_arm`
    net = twin(original.net)
    centre = arm.decay_towards or ("zero" if net.residual else "identity")
    return Member(label, name, seed, net, centre, original.name)


def twin(net: nn.Module) -> nn.Module:
    """The plain net of a residual one, the residual net of a plain one, computing the same function."""
    try:
        return transfer(net) if getattr(net, "residual", False) else untransfer(net)
    except ValueError as error:
        raise UserError(str(error)) from error
