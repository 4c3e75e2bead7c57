"""What a checkpoint must have in common with the configuration that resumes it, and what the configuration decides."""

import itertools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from lightning_app.common.errors import UserError
from lightning_app.modules.members import Member

__all__ = [
    "check_form",
    "check_members",
    "check_tensors",
    "describe",
    "id_weights",
    "in_words",
    "keep_configured_schedule",
    "keep_one_place",
]


def describe(member: Member) -> dict[str, Any]:
    """What weights alone do not tell: a plain and a residual net have tensors of the same shapes."""
    kind, residual = type(member.net).__name__, getattr(member.net, "residual", None)
    return {"name": member.name, "seed": member.seed, "network": kind, "residual": residual}


def id_weights(member: Member) -> list[str]:
    """The member's weights that have ID entries, as the checkpoint's state dict names them; none where T does not apply.

    Saved beside the weights, so that T can act on a checkpoint alone.
    """
    own = member.net.id_weights() if hasattr(member.net, "id_weights") else []
    return [f"nets.{member.name}.{name}" for name in own]


def check_form(checkpoint: Mapping[str, Any]) -> None:
    """Refuse a checkpoint whose parts are not of the types that `fit` writes, naming the first one.

    A file may be whole and still be anybody's. What is not there at all is for whoever needs it to say.

    Raises:
        UserError: also for a tensor that claims more elements than its storage has: a copy of it could fill any memory.
    """
    for part, fits in FORMS.items():
        if part in checkpoint and not fits(checkpoint[part]):
            raise UserError(f"the checkpoint's {part} is not as fit writes it: it is damaged, or of another program.")
    if sum(checkpoint.get("parameters", {}).values()) > len(checkpoint["state_dict"]):
        raise UserError("the checkpoint's parameters are more than its tensors: it is damaged, or of another program.")
    for name, tensor in checkpoint["state_dict"].items():
        if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
            raise UserError(f"{name} of the checkpoint is no whole tensor: it is damaged, or of another program.")


def _is(kind: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kind)


def _maps(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """From text to what fits."""
    return lambda value: isinstance(value, Mapping) and all(isinstance(k, str) and fits(v) for k, v in value.items())


def _lists(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(fits, value))


def _is_described(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(value.get(key), kind) for key, kind in DESCRIBED.items())


def _is_optimizer(value: Any) -> bool:
    return (
        isinstance(value, Mapping)
        and isinstance(value.get("state"), Mapping)
        and _lists(_maps(lambda _: True))(value.get("param_groups"))
    )


def _is_schedule(value: Any) -> bool:
    return _maps(lambda _: True)(value) and _is_count(value.get("last_epoch"))


def _is_count(value: Any) -> bool:
    """Of what is counted one by one: a billion would take an hour."""
    return isinstance(value, int) and 0 <= value <= 10**6


DESCRIBED = {"name": str, "seed": int, "network": str, "residual": bool | None}  # what `describe` says
FORMS = {
    "state_dict": _maps(_is(Tensor)),
    "members": _lists(_is_described),
    "id_weights": _maps(_lists(_is(str))),
    "centres": _maps(_is(str)),
    "parameters": _maps(_is_count),
    "optimizer_states": _lists(_is_optimizer),
    "lr_schedulers": _lists(_is_schedule),
    "callbacks": _maps(lambda _: True),
    "loops": _maps(_is(Mapping)),
    "epoch": _is(int),
    "global_step": _is(int),
}


def check_members(saved: Sequence[Mapping[str, Any]], own: Sequence[Mapping[str, Any]]) -> None:
    """Refuse a checkpoint of other nets or seeds, naming the first difference. Both as `describe` has them."""
    for got, expected in itertools.zip_longest(saved, own):
        if got != expected:
            raise UserError(
                f"the checkpoint is of another architecture or seed: it has {in_words(got)}, this configuration has "
                f"{in_words(expected)}. Use the configuration it was trained with."
            )


def check_tensors(saved: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> None:
    """Refuse a checkpoint whose tensors have other names or shapes, naming the first one."""
    names = [*own, *(name for name in saved if name not in own)]
    wrong = [name for name in names if _shape(saved.get(name)) != _shape(own.get(name))]
    if wrong:
        raise UserError(
            f"the checkpoint is of another architecture: for {wrong[0]} this configuration expects "
            f"{_shape(own.get(wrong[0]))}, the checkpoint has {_shape(saved.get(wrong[0]))} ({len(wrong)} of {len(own)} "
            "tensors differ). Use the configuration it was trained with."
        )


def keep_configured_schedule(checkpoint: dict[str, Any], made: Mapping[str, Any]) -> None:
    """Let the configuration decide learning rate and schedule, and the checkpoint how far they have come.

    A scheduler made anew and stepped as often ends at the same bits, so an unchanged configuration changes nothing.

    Args:
        checkpoint: changed in place, before Lightning restores optimizers and schedulers from it.
        made: a fresh ``{"optimizer": ..., "lr_scheduler": ...}`` of the configuration.
    """
    configured, saved = type(made["optimizer"]).__name__, checkpoint.get("optimizer")
    if saved != configured:
        raise UserError(
            f"the checkpoint was trained with {saved}, this configuration has {configured}: they share no state."
        )
    schedulers = checkpoint.get("lr_schedulers") or []
    if bool(schedulers) != ("lr_scheduler" in made):
        had, has = ("a", "none") if schedulers else ("no", "one")
        raise UserError(f"the checkpoint was trained with {had} learning rate scheduler, this configuration has {has}.")
    if schedulers:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a scheduler that steps before its optimizer
            for _ in range(schedulers[0]["last_epoch"]):
                made["lr_scheduler"].step()
        schedulers[0] = made["lr_scheduler"].state_dict()
    (groups,) = (state["param_groups"] for state in checkpoint["optimizer_states"])
    for group, fresh in zip(groups, made["optimizer"].state_dict()["param_groups"]):
        group |= {key: value for key, value in fresh.items() if key != "params"}


def keep_one_place(checkpoint: Mapping[str, Any]) -> None:
    """Where the data have come to: older checkpoints list it once for each data stream, and all are at the same place."""
    del checkpoint["loops"]["fit_loop"]["state_dict"].get("combined_loader", [])[1:]


def in_words(described: Mapping[str, Any] | None) -> str:
    """A member in words, from what `describe` says of it.

    >>> in_words({"name": "net", "seed": 0, "network": "SimplifiedNet", "residual": True})
    "'net' (seed 0, residual SimplifiedNet)"
    """
    if described is None:
        return "no such member"
    kind = {True: "residual ", False: "plain "}.get(described["residual"], "")
    return f"'{described['name']}' (seed {described['seed']}, {kind}{described['network']})"


def _shape(tensor: Tensor | None) -> str:
    return "none of that name" if tensor is None else f"shape {tuple(tensor.shape)}"
