"""Members shared out among the ranks of a job: Lightning's DDP launcher and process group, without its wrapper.

Independent nets need no gradient traffic, and DistributedDataParallel would overwrite their weights with rank zero's. So
every rank holds the whole bank, trains its share on whole batches, and sends it to the others when the epoch's training is
over. After that all ranks hold the same bank again: evaluation is shared out too, measures and checkpoints happen on
rank zero as ever. A member does not notice where it was trained.

Several jobs share out seeds without any of this: ``--model.seeds 0-6`` here, ``--model.seeds 7-12`` there.
"""

from collections.abc import Sequence
from typing import Any

import torch
from pytorch_lightning.strategies import DDPStrategy, StrategyRegistry
from torch.optim import Optimizer
from typing_extensions import override

from lightning_app.common.errors import UserError
from lightning_app.modules.members import ByMember, Member

__all__ = ["SeedSharding", "exchange", "shares"]


@StrategyRegistry.register("seeds", description="members of the bank shared out among ranks")
class SeedSharding(DDPStrategy):
    """``--trainer.strategy seeds``: several processes, each with its share of the members and whole batches."""

    strategy_name = "seeds"
    shards_batches = False  # read by the datamodule

    @override
    def configure_ddp(self) -> None:
        """The module stays as it is: nothing is broadcast and no gradient is averaged."""


def shares(members: Sequence[Member], ranks: int) -> list[list[Member]]:
    """The members of each rank. A twin stays with what it is the twin of: some measures compare the two after every step.

    Seeds are kept together, so that a rank makes few data streams. Shares differ by one net, with its twins, at most.

    Raises:
        UserError: with more ranks than there are nets to share out.

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
            f"{ranks} processes cannot share out {len(members)} member(s){twins}: expected at most {len(families)}. "
            "Ask for fewer devices, or for more seeds."
        )
    parts = torch.tensor_split(torch.arange(len(families)), ranks)
    return [[member for family in part for member in families[family]] for part in parts]


def exchange(
    owners: dict[str, int],
    members: Sequence[Member],
    averages: ByMember,
    optimizer: Optimizer,
    strategy: DDPStrategy,
) -> None:
    """Every rank gets weights, buffers, averages and optimizer state of the members that others train, in place."""
    for member in members:
        owner, parameters, packed = owners[member.name], list(member.net.parameters()), None
        modules = [member.net, *([averages[member.name]] if averages else [])]
        if own := owner == strategy.global_rank:
            states = [_to(dict(optimizer.state[parameter]), "cpu") for parameter in parameters]
            packed = [_to(dict(each.state_dict()), "cpu") for each in modules], states
        received = strategy.broadcast(packed, owner)
        if own or received is None:
            continue
        nets, states = received
        for module, state in zip(modules, nets):
            module.load_state_dict(state)
        for parameter, state in zip(parameters, states):
            optimizer.state[parameter] = _to(state, parameter.device)


def _to(state: dict[str, Any], device: torch.device | str) -> dict[str, Any]:
    """A state with its tensors on a device; counters of steps stay where optimizers keep them."""
    return {
        key: value.detach().to(device) if torch.is_tensor(value) and key != "step" else value
        for key, value in state.items()
    }
