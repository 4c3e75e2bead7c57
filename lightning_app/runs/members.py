"""Which nets a LightningModule has, by name, and what is written into the run folder of each: members.csv.

A module names its nets in an attribute ``members``, pairs (name, net); without one, its only child with parameters, an
`AveragedModel` apart, is the net, or else the module itself.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple, TypeGuard

import pytorch_lightning as pl
from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim.swa_utils import AveragedModel

from lightning_app.common.errors import UserError
from lightning_app.common.isolation import unwrapped
from lightning_app.runs.folder import MemberRow


class Member(NamedTuple):
    """A net of a module. What is in no bank has a name only."""

    name: str
    net: nn.Module
    arm: str = ""
    seed: int | None = None
    twin_of: str = ""  # name of the member that it was transferred from

    @property
    def own_arm(self) -> str:
        """Its arm; a net that is in no bank is an arm of its own."""
        return self.arm or self.name


def members_of(pl_module: pl.LightningModule) -> list[Member]:
    """The nets of a module. UserError: if the module neither names its nets nor leaves one answer."""
    members = getattr(pl_module, "members", None)
    return [Member("net", _network_in(pl_module))] if members is None else _named(members, type(pl_module).__name__)


def named_members(pl_module: pl.LightningModule) -> dict[str, Member]:
    """By name the nets that a module names itself, in ``members``; none where it names none.

    UserError: if its ``members`` are something else.
    """
    named = getattr(pl_module, "members", None) is not None
    return {member.name: member for member in members_of(pl_module)} if named else {}


def describe_members(pl_module: pl.LightningModule) -> list[MemberRow]:
    """A row for each net of a module; raises as `members_of`.

    ``arm``, ``seed`` and ``twin_of`` are attributes of a bank's member, ``residual`` and ``depth`` of the net itself; what
    other people's modules do not have is unknown.
    """
    rows = []
    for name, net, arm, seed, twin_of in members_of(pl_module):
        plain = unwrapped(net)
        class_path = f"{type(plain).__module__}.{type(plain).__qualname__}"
        residual, depth = (getattr(plain, attribute, None) for attribute in ("residual", "depth"))
        residual, depth = residual if isinstance(residual, bool) else None, depth if _is_count(depth) else None
        weights = [*plain.parameters()]
        parameters = None if any(map(is_lazy, weights)) else sum(weight.numel() for weight in weights)
        rows.append(MemberRow(name, arm, seed, class_path, residual, twin_of, depth, parameters))
    return rows


def _named(members: Any, owner: str) -> list[Member]:
    found = [_member(each) for each in members] if isinstance(members, Iterable) else [None]
    known = [member for member in found if member is not None]
    if len(known) < len(found):
        raise UserError(
            f"{owner}.members: expected pairs of a name and a network, such as [('net', self.backbone)], as measures read the "
            f"networks from it, got a {type(members).__name__} of something else. If it has another meaning, rename it."
        )
    names = [member.name for member in known]
    if len(set(names)) < len(names) or any(not name or "/" in name for name in names):
        raise UserError(
            f"the names in {owner}.members must be unique, non-empty and without '/', as they become parts of keys, got {names}."
        )
    return known


def _member(each: Any) -> Member | None:
    """None for what is no pair; a member of a bank iterates as one."""
    pair = tuple(each) if isinstance(each, Iterable) else ()
    if len(pair) == 2 and isinstance(pair[0], str) and isinstance(pair[1], nn.Module):
        arm, seed, twin_of = (getattr(each, attribute, None) for attribute in ("arm", "seed", "twin_of"))
        return Member(*pair, _text(arm), seed if _is_count(seed) else None, _text(twin_of))
    return None


def _text(value: Any) -> str:
    """An attribute of other people's objects may mean something else."""
    return value if isinstance(value, str) else ""


def _is_count(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _network_in(pl_module: pl.LightningModule) -> nn.Module:
    # A moving average beside the net is a second one in numbers only: nothing trains it.
    every = dict(pl_module.named_children())
    children = {name: child for name, child in every.items() if not isinstance(child, AveragedModel)} or every
    holders = {name: child for name, child in children.items() if any(True for _ in child.parameters())}
    only = next(iter(holders.values())) if len(holders) == 1 else None
    # A ModuleList has no forward, and another LightningModule may have none: the outer module calls what is in it.
    nobodys = (nn.Module.forward, pl.LightningModule.forward)
    called = only is not None and getattr(only.forward, "__func__", None) not in nobodys
    if only is not None and called and not any(True for _ in pl_module.parameters(recurse=False)):
        return only
    if any(True for _ in pl_module.parameters()) and type(pl_module).forward is not pl.LightningModule.forward:
        return pl_module
    own = ["parameters of its own"] * any(True for _ in pl_module.parameters(recurse=False))
    within = [f"parameters in {', '.join(holders)}"] * bool(holders)
    no_forward = ["no forward()"] * (type(pl_module).forward is pl.LightningModule.forward)
    raise UserError(
        f"cannot tell which network of {type(pl_module).__name__} to measure: it has "
        f"{' and '.join([*(own + within or ['no parameters']), *no_forward])}. Give it an attribute `members`, pairs of a name "
        "and a network, such as self.members = [('net', self.backbone)]."
    )
