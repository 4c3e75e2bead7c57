"""What must be the same in a checkpoint and in the configuration that resumes it, and what the configuration may change."""

import inspect
import itertools
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from lightning_app.common.errors import UserError
from lightning_app.modules.members import Member
from lightning_app.modules.optimizing import step_schedule


def describe(member: Member) -> dict[str, Any]:
    """What weights alone do not show: a plain and a residual net have tensors of the same shapes."""
    kind, residual = type(member.net).__name__, getattr(member.net, "residual", None)
    return {"name": member.name, "seed": member.seed, "network": kind, "residual": residual}


def id_weights(member: Member, averaged: bool = False) -> list[str]:
    """The member's weights that have ID entries, as the checkpoint's state dict names them; none where T does not apply.

    Saved beside the weights, so that T can act on a checkpoint alone. Averages of weights are shifted like the weights.
    """
    own = getattr(member.net, "id_weights", list)
    roots = [f"nets.{member.name}", *([f"averages.{member.name}.module"] if averaged else [])]
    return [f"{root}.{name}" for root in roots for name in own()]


def check_members(saved: Sequence[dict[str, Any]], own: Sequence[dict[str, Any]]) -> None:
    """Refuse a checkpoint of other nets or seeds, naming the first difference. Both are lists of what `describe` returns.

    A net whose checkpoint does not say whether it is residual may be either now.
    """
    for got, expected in itertools.zip_longest(saved, own):
        unsaid = got and expected and got.get("residual") is None
        if (got | {"residual": expected["residual"]} if unsaid else got) != expected:
            raise UserError(
                f"the checkpoint is of another architecture or seed: it has {in_words(got)}, this configuration has "
                f"{in_words(expected)}. Use the configuration it was trained with."
            )


def check_tensors(saved: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Refuse a checkpoint whose tensors have other names or shapes, naming the first one."""
    had, has = (any(name.startswith("averages.") for name in each) for each in (saved, own))
    if had != has:
        raise UserError(
            f"the checkpoint has {'' if had else 'no '}averages of weights, this configuration keeps "
            f"{'some' if has else 'none'}: set model.ema_decay as it was, or start a new run without --ckpt_path."
        )
    names = [*own, *(name for name in saved if name not in own)]
    wrong = [name for name in names if _shape(saved, name) != _shape(own, name)]
    if wrong:
        raise UserError(
            f"the checkpoint is of another architecture: for {wrong[0]} this configuration expects "
            f"{_shape(own, wrong[0])}, the checkpoint has {_shape(saved, wrong[0])} ({len(wrong)} of {len(own)} "
            "tensors differ). Use the configuration it was trained with."
        )


def keep_configured_schedule(checkpoint: dict[str, Any], made: Mapping[str, Any]) -> None:
    """Let the configuration decide learning rate and schedule, and the checkpoint how far they have come.

    A scheduler made anew and stepped as often ends at the same bits, so an unchanged configuration changes nothing. What an
    optimizer counts in its groups is the checkpoint's.

    Args:
        checkpoint: changed in place, before Lightning restores optimizers and schedulers from it.
        made: a fresh ``{"optimizer": ..., "lr_scheduler": ...}`` of the configuration.
    """
    configured, saved = type(made["optimizer"]).__name__, checkpoint.get("optimizer")
    if saved != configured:
        raise UserError(
            f"the checkpoint was trained with {saved}, this configuration has {configured}: their states do not fit. Set "
            "model.optimizer as it was, or start a new run without --ckpt_path."
        )
    schedulers = checkpoint.get("lr_schedulers") or []
    if bool(schedulers) != ("lr_scheduler" in made):
        had, has = ("a", "none") if schedulers else ("no", "one")
        raise UserError(
            f"the checkpoint was trained with {had} learning rate scheduler, this configuration has {has}. Set model.scheduler "
            "as it was, or start a new run without --ckpt_path."
        )
    if schedulers:
        scheduler, interval = made["lr_scheduler"]["scheduler"], made["lr_scheduler"]["interval"]
        counted = checkpoint.get("scheduler_interval", "epoch")  # older checkpoints do not say
        if counted != interval:
            raise UserError(
                f"the checkpoint's schedule went by {counted}s, this configuration's model.scheduler_interval is '{interval}': "
                "use the one it was trained with."
            )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a scheduler that steps before its optimizer
            for _ in range(_steps_of(schedulers[0])):
                step_schedule(scheduler)
        schedulers[0] = scheduler.state_dict()
    (groups,) = (state["param_groups"] for state in checkpoint["optimizer_states"])
    kept = {"params", *_counted(made["optimizer"])}
    for group, fresh in zip(groups, made["optimizer"].state_dict()["param_groups"]):
        group |= {key: value for key, value in fresh.items() if key not in kept}


def _counted(optimizer: Optimizer) -> set[str]:
    """What is in its groups from the beginning and is no option of it: numbers that its steps change, as Prodigy's d."""
    constructors = [vars(each)["__init__"] for each in type(optimizer).__mro__[:-1] if "__init__" in vars(each)]
    options = [option for each in constructors for option in inspect.signature(each).parameters.values()]
    if any(option.kind is option.VAR_KEYWORD for option in options):  # it may have any
        return set()
    return optimizer.defaults.keys() - {"lr", *(option.name for option in options)}


def _steps_of(schedule: Mapping[str, Any]) -> int:
    """How often a schedule has stepped, from its state; a chained one has that of its parts."""
    return schedule["last_epoch"] if "last_epoch" in schedule else _steps_of(schedule["_schedulers"][0])


def in_words(described: Mapping[str, Any] | None) -> str:
    """A member in words, from what `describe` says of it.

    >>> in_words({"name": "net", "seed": 0, "network": "SimplifiedNet", "residual": True})
    "'net' (seed 0, residual SimplifiedNet)"
    """
    if described is None:
        return "no such member"
    kind = {True: "residual ", False: "plain "}.get(described["residual"], "")
    return f"'{described['name']}' (seed {described['seed']}, {kind}{described['network']})"


def _shape(state: Mapping[str, Any], name: str) -> str:
    """What a net's `get_extra_state` returns may be anything, and another thing later."""
    if name not in state:
        return "none of that name"
    value = state[name]
    return f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else "no tensor"
