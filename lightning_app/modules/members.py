"""The bank of members: arms (plain, residual, the T-twin of another arm) times seeds.

One arm and one seed is the ordinary case. Networks know nothing of the bank: a member is an ordinary net with a name,
an arm and a seed. The seed alone decides its initial weights, its batches and its random draws, so a member is the same
net whether it is trained alone or among others.

Members can be shared out among the ranks of a job, by Lightning's DDP launcher and process group without its wrapper:
independent nets need no gradient traffic, and DistributedDataParallel would overwrite their weights with rank zero's. So
every rank holds the whole bank, trains its share on whole batches, and sends it to the others when the epoch's training is
over. After that all ranks hold the same bank again: evaluation is shared out too, measures and checkpoints happen on
rank zero as ever. A member does not notice where it was trained. Several jobs share out seeds without any of this:
``--model.seeds 0-6`` here, ``--model.seeds 7-12`` there.
"""

import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, ValuesView
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from typing import Any, Generic, Literal, TypeVar, cast

import numpy as np
import torch
from pytorch_lightning.strategies import DDPStrategy, StrategyRegistry
from pytorch_lightning.utilities.seed import isolate_rng
from torch import nn
from torch.optim import Optimizer
from typing_extensions import override

from lightning_app.common.calls import described
from lightning_app.common.errors import UserError
from lightning_app.common.isolation import trained_weights
from lightning_app.common.seeds import spell_seed
from lightning_app.identity import transfer, untransfer

NetFactory = Callable[[], nn.Module]
Centre = Literal["zero", "identity"]
M = TypeVar("M", bound=nn.Module)


@dataclass
class Arm:
    """One kind of net of the bank: a net of its own, or the T-twin of another arm.

    Args:
        net: the network class and its arguments.
        twin_of: name of the arm whose twin this is: T(r) of a residual net, T^-1(p) of a plain one, with the same initial
            function and batches.
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
        UserError: for an arm with both or neither of net and twin_of, an unknown or chained twin, a bad name, or nets that
            share weights.
    """
    for name, arm in arms.items():
        _check_arm(name, arm, arms)
    members: dict[tuple[str, int], Member] = {}
    for name in sorted(arms, key=lambda name: arms[name].twin_of is not None):  # twins after what they are twins of
        for seed in seeds:
            label = name if len(seeds) == 1 else f"{name}-seed{spell_seed(seed, seeds)}"
            members[name, seed] = _member(label, name, arms[name], seed, members)
    found = tuple(members[name, seed] for name in arms for seed in seeds)
    _check_apart(found)
    return found


def _check_apart(members: Iterable[Member]) -> None:
    """Each net is trained alone, which one and the same weight of two nets is not."""
    owners: dict[int, str] = {}
    for name, net in members:
        for path, weight in trained_weights(net).items():
            if (other := owners.setdefault(id(weight), name)) != name:
                raise UserError(
                    f"members '{other}' and '{name}' share the weight '{path}': expected separate weights for each, so make the "
                    "net and everything in it anew in each call."
                )


def _check_arm(name: str, arm: Arm, arms: Mapping[str, Arm]) -> None:
    if not isinstance(name, str):  # 18, or a word like on and no
        raise UserError(f"model.arms: expected a text as an arm's name, got {name!r}: write it in quotes.")
    if not re.fullmatch(r"\w+", name):
        raise UserError(f"model.arms: expected an arm's name of letters, digits and '_' only, got '{name}'.")
    if hasattr(nn.ModuleDict(), name):
        raise UserError(f"'{name}' cannot name an arm: PyTorch's modules use it themselves. Choose another name.")
    if (arm.net is None) == (arm.twin_of is None):
        raise UserError(
            f"arm '{name}' needs either `net` or `twin_of`, got {'neither' if arm.net is None else 'both'}."
        )
    if arm.twin_of is not None and (arm.twin_of not in arms or arms[arm.twin_of].net is None):
        own = [other for other, candidate in arms.items() if candidate.net is not None]
        raise UserError(
            f"arm '{name}': expected as twin_of the name of an arm with a net, one of {own}, got '{arm.twin_of}'."
        )


def _member(label: str, name: str, arm: Arm, seed: int, members: Mapping[tuple[str, int], Member]) -> Member:
    if arm.net is not None:
        with isolate_rng(include_cuda=False):  # nets are made on the CPU: no GPU need be woken for this
            random.seed(seed), np.random.seed(seed % 2**32), torch.default_generator.manual_seed(seed)
            net = arm.net()
        if not isinstance(net, nn.Module):
            raise UserError(f"the net of arm '{name}' must be a torch.nn.Module, got {described(net)}.")
        return Member(label, name, seed, net, arm.decay_towards or "zero")
    original = members[cast(str, arm.twin_of), seed]  # one of both is given: `_check_arm`
    net = twin(original.net)
    centre = arm.decay_towards or ("zero" if net.residual else "identity")
    return Member(label, name, seed, net, centre, original.name)


def twin(net: nn.Module) -> nn.Module:
    """The plain net of a residual one, the residual net of a plain one, computing the same function."""
    return transfer(net) if getattr(net, "residual", False) else untransfer(net)


@StrategyRegistry.register("seeds", description="members of the bank shared out among ranks")
class SeedSharding(DDPStrategy):
    """``--trainer.strategy seeds``: several processes, each with its share of the members and whole batches."""

    strategy_name = "seeds"
    shards_batches = False  # read by the datamodule

    @property
    @override
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        """All ranks get all samples, where Lightning puts a sampler of its own into loaders: not under our `Trainer`."""
        return {"num_replicas": 1, "rank": 0}

    @override
    def configure_ddp(self) -> None:
        """The module stays as it is: nothing is broadcast and no gradient is averaged."""


def shares(members: Sequence[Member], ranks: int) -> list[list[Member]]:
    """The members of each rank. A twin stays with its original: some measures compare the two after every step.

    Seeds are kept together, so that a rank makes few data streams. Ranks get as equal a number of nets (with their twins) as
    possible: the slowest rank sets the time of an epoch.

    Raises:
        UserError: with more ranks than nets, a net and its twins counted as one.

    >>> plain, residual = (Member(name, name, 0, torch.nn.Identity()) for name in ("plain", "residual"))
    >>> [[member.name for member in share] for share in shares([plain, residual], 2)]
    [['plain'], ['residual']]
    """
    together: dict[str, list[Member]] = {}
    for member in sorted(members, key=lambda member: (member.seed, member.twin_of is not None)):
        together.setdefault(member.twin_of or member.name, []).append(member)
    families = list(together.values())
    if ranks > len(families):
        twins = " (twins stay together)" if len(families) < len(members) else ""
        raise UserError(
            f"expected at most {len(families)} process(es) for {len(members)} member(s){twins}, got {ranks}: use fewer devices "
            "or more seeds."
        )
    before = [0, *accumulate(map(len, families))]  # nets before each family
    cuts = [0]
    for rank in range(1, ranks):
        choice = range(cuts[-1] + 1, len(families) - (ranks - rank) + 1)  # leaves a family for every rank
        cuts.append(min(choice, key=lambda cut: abs(before[cut] * ranks - rank * len(members))))
    return [list(chain(*families[start:end])) for start, end in pairwise([*cuts, len(families)])]


def exchange(
    owners: dict[str, int],
    members: Sequence[Member],
    averages: ByMember,
    optimizer: Optimizer,
    strategy: DDPStrategy,
) -> None:
    """Every rank gets weights, buffers, averages and optimizer state of the members that others train, in place."""
    fused = any(group.get("fused") or group.get("capturable") for group in optimizer.param_groups)
    for member in members:
        owner, parameters, packed = owners[member.name], list(member.net.parameters()), None
        modules = [member.net, *([averages[member.name]] if averages else [])]
        if own := owner == strategy.global_rank:
            states = [_to(dict(optimizer.state.get(parameter, {})), "cpu") for parameter in parameters]
            packed = [_to(dict(each.state_dict()), "cpu") for each in modules], states
        received = strategy.broadcast(packed, owner)
        if own or received is None:
            continue
        nets, states = received
        for module, state in zip(modules, nets):
            module.load_state_dict(state)
        for parameter, state in zip(parameters, states):
            if state:
                optimizer.state[parameter] = _to(state, parameter.device, parameter.device if fused else "cpu")
            else:  # the optimizer was not given this weight, or has dropped what it kept of it
                optimizer.state.pop(parameter, None)


def _to(state: dict[str, Any], device: torch.device | str, steps: torch.device | str = "cpu") -> dict[str, Any]:
    """A state with its tensors on a device, and with its counter of steps where the optimizer keeps it."""
    return {
        key: value.detach().to(steps if key == "step" else device) if torch.is_tensor(value) else value
        for key, value in state.items()
    }
