"""The commands that turn one checkpoint into another: `transfer` (T or T^-1) and `extract` (one net of a bank).

They write an ordinary checkpoint. ``validate``, ``test`` and (if the source has an optimizer's state) ``fit`` accept it together
with the configuration of the net in it. torch is imported late, so that --help starts fast.
"""

import argparse
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_app.common.arguments import Parser
from lightning_app.common.errors import UserError, reason
from lightning_app.common.seeds import ALONE, spell_seeds

if TYPE_CHECKING:
    from torch import Tensor

TRANSFER = """\
examples:
  python main.py transfer runs/cifar10/res20/checkpoints/last.ckpt plain.ckpt          T: residual -> plain
  python main.py test --config configs/pln20.yaml --ckpt_path plain.ckpt               the same risk and error
  python main.py transfer --inverse plain.ckpt residual.ckpt                           T^-1: plain -> residual
  python main.py transfer runs/cifar10/pair20/checkpoints/last.ckpt out.ckpt --member residual

T adds 1 at the centre of each kernel that a skip goes around (the ID entries), T^-1 subtracts it. All other tensors stay the same
to the last bit, and so does the optimizer's state: T is a translation, so gradients and their history are the same for both nets.
"""
EXTRACT = """\
examples:
  python main.py extract runs/yu-tomasi/fig2/checkpoints/last.ckpt one.ckpt --member residual-seed03
  python main.py test --config configs/res20.yaml --model.seeds 3-3 --ckpt_path one.ckpt     the same risk and error
  python main.py fit  --config configs/res20.yaml --model.seeds 3-3 --ckpt_path one.ckpt     continues as in the bank
"""

Checkpoint = Mapping[str, Any]
Change = Callable[[Checkpoint, argparse.Namespace], tuple[dict[str, Any], list[str]]]
"""A checkpoint and the command's options to another checkpoint, and the lines to print about it."""


def transfer(argv: list[str]) -> int:
    """Run the command ``transfer`` (Yu & Tomasi 2019, section 3, Eq. 1); returns the exit code. Raises UserError."""
    command = _parser(
        "transfer",
        "Turn a checkpoint of a residual net into one of the plain net that computes the same, or back.",
        TRANSFER,
    )
    command.add_argument(
        "--inverse", action="store_true", help="the other way: turn a plain net into the equivalent residual net"
    )
    command.add_argument(
        "--member", metavar="NAME", help="only this one of several nets (default: all of the right kind)"
    )
    return _rewrite(argv, command, _transferred)


def extract(argv: list[str]) -> int:
    """Run the command ``extract``; returns the exit code. Raises UserError."""
    command = _parser("extract", "Take one net out of a checkpoint of several, as a checkpoint of its own.", EXTRACT)
    command.add_argument("--member", required=True, metavar="NAME", help="the net's name in the run's log")
    return _rewrite(argv, command, _extracted)


def _parser(name: str, description: str, examples: str) -> Parser:
    made = Parser(prog=f"python main.py {name}", description=description, epilog=examples)
    made.add_argument("source", type=Path, metavar="IN.ckpt", help="checkpoint written by fit")
    made.add_argument(
        "target",
        type=Path,
        metavar="OUT.ckpt",
        help="file to write, which must not exist yet (*.safetensors: weights alone)",
    )
    return made


def _rewrite(argv: list[str], command: Parser, change: Change) -> int:
    options = command.parse_args(argv)
    if options.target.exists():
        raise UserError(f"{options.target} already exists and is not overwritten: remove it or choose another name.")
    if not options.target.parent.is_dir():
        raise UserError(
            f"expected a folder {options.target.parent} to write {options.target.name} into, found none: make it first."
        )
    from lightning_app.runs.checkpoints import AtomicCheckpointIO

    files = AtomicCheckpointIO()
    checkpoint = files.load_checkpoint(options.source)
    try:
        changed, lines = change(checkpoint, options)
    except UserError:
        raise
    except (LookupError, TypeError, AttributeError, RuntimeError, ValueError) as error:
        raise UserError(
            f"{options.source} cannot be used as a checkpoint of `fit` ({reason(error)}): it is damaged, or was written by "
            "another program. Name another file."
        ) from error
    files.save_checkpoint(changed, options.target)
    print(*lines, sep="\n")
    return 0


def _check_member(checkpoint: Checkpoint, member: str) -> None:
    names = [one["name"] for one in checkpoint.get("members", [])]
    if member not in names:
        raise UserError(f"the checkpoint has no member '{member}'; it has {', '.join(names) or 'none'}.")


# transfer


@dataclass(frozen=True)
class Shift:
    """What happened to one member."""

    member: str
    entries: int  # ID entries that moved by 1
    error: float  # max |back(there(w)) - w| over them
    bound: float  # max u (1 + |r|): the most that rounding beside 1 can cost
    precision: str  # "float32" or "float64"

    def __str__(self) -> str:
        return (
            f"{self.member}: {self.entries} ID entries shifted; shifting them back would change them by at most "
            f"{self.error:.2g} (limit of rounding in {self.precision}: {self.bound:.2g})"
        )


def _transferred(checkpoint: Checkpoint, options: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    from lightning_app.runs.checkpoints import holds_weights_alone

    changed, shifts = transfer_checkpoint(checkpoint, options.inverse, options.member)
    trains = "optimizer_states" in checkpoint and not holds_weights_alone(options.target)
    kept = (
        "the optimizer's state is kept: T is a translation"
        if trains
        else "weights alone, without the optimizer's state: you can validate, test and measure them; fit cannot resume from them"
    )
    # Section 4.1: twins stay twins only where the penalties are equal, ||p - rho||^2 = ||r||^2.
    direction, condition = (
        ("T^-1: plain -> residual", "the plain net's twin only if the plain net has `model.decay_towards: identity`")
        if options.inverse
        else ("T: residual -> plain", "the residual net's twin only if it has `model.decay_towards: identity`")
    )
    return changed, [
        *map(str, shifts),
        f"written: {options.target} ({direction}; {kept})",
        *[f"If it is trained further, it stays {condition}."] * trains,
    ]


def transfer_checkpoint(
    checkpoint: Checkpoint, inverse: bool = False, member: str | None = None
) -> tuple[dict[str, Any], list[Shift]]:
    """T, or T^-1, on the members of a checkpoint that it applies to.

    The optimizer's state stays: grad_p L(T(r)) = grad_r L(r), so momentum is the same on both sides.

    Args:
        checkpoint: as `fit` writes it; unchanged.
        inverse: T^-1 on plain members instead of T on residual ones.
        member: only the one of this name.

    Returns:
        The checkpoint with shifted ID entries and flipped ``residual`` flags, and what happened to each member.

    Raises:
        UserError: if there is nothing to shift, or if in the weights' precision adding 1 would round r away.
    """
    import torch

    from lightning_app.identity import transfer, untransfer

    weights = _weights_to_shift(checkpoint, inverse, member)
    there, back = (untransfer, transfer) if inverse else (transfer, untransfer)
    before, names = checkpoint["state_dict"], [name for own in weights.values() for name in own]
    for name in names:
        if before[name].dtype not in (torch.float32, torch.float64):
            raise UserError(
                f"{name}: expected float32 or float64 (trainer.precision 32-true or 64-true), got {before[name].dtype}: next to "
                f"the 1 of an ID entry, everything below {torch.finfo(before[name].dtype).eps:g} would be rounded away."
            )
    after = there(before, names)
    again = back(after, names)
    residual = after if inverse else before
    shifts = [_shift(name, [(before[w], again[w], residual[w]) for w in own]) for name, own in weights.items()]
    described = [one | ({"residual": inverse} if one["name"] in weights else {}) for one in checkpoint["members"]]
    return {**checkpoint, "state_dict": after, "members": described}, shifts


def _shift(member: str, kernels: "list[tuple[Tensor, Tensor, Tensor]]") -> Shift:
    """From each kernel as it was, there and back again, and in its residual form."""
    import torch

    from lightning_app.identity import id_entries

    was, again, r = (torch.cat([kernel[id_entries(kernel)] for kernel in form]) for form in zip(*kernels))
    unit = torch.finfo(was.dtype).eps / 2
    error, largest = float((again - was).abs().max()), float(r.abs().max())
    if not math.isfinite(largest):
        raise UserError(
            f"'{member}' has ID entries that are NaN or infinite, as it has diverged: use an earlier checkpoint."
        )
    return Shift(member, len(was), error, unit * (1 + largest), str(was.dtype).removeprefix("torch."))


def _weights_to_shift(checkpoint: Checkpoint, inverse: bool, member: str | None) -> dict[str, list[str]]:
    """Names of the weights with ID entries, of each member that T (or T^-1) shall act on."""
    if not {"members", "id_weights"} <= checkpoint.keys():
        raise UserError(
            "this checkpoint does not say which of its weights have ID entries: it was not written by `fit`, or by an old "
            "version of it. Resume from it with `fit --ckpt_path`, and transfer the checkpoint that fit writes."
        )
    described = {one["name"]: one for one in checkpoint["members"]}
    if member is not None:
        _check_member(checkpoint, member)
    asked = {name: one for name, one in described.items() if member in (None, name)}
    shiftable = {name: one for name, one in asked.items() if checkpoint["id_weights"][name]}
    chosen = [name for name, one in shiftable.items() if one["residual"] == (not inverse)]
    if not chosen:
        raise UserError(_nothing_to_shift(asked.values(), bool(shiftable), inverse))
    return {name: checkpoint["id_weights"][name] for name in chosen}


def _nothing_to_shift(members: Collection[Mapping[str, Any]], shiftable: bool, inverse: bool) -> str:
    from lightning_app.modules.resume import in_words

    found = ", ".join(in_words(one) for one in members)
    if not shiftable:
        return (
            f"no weight of {found} has ID entries, so T has nothing to shift: only a skip around a single convolution, as in "
            "SimplifiedNet, can be written as an entry of the kernel."
        )
    if inverse:
        return f"T^-1 needs a plain net with ID entries, found {found}. For T (residual -> plain) leave --inverse out."
    return f"T needs a residual net with ID entries, found {found}. For T^-1 (plain -> residual) add --inverse."


# extract


def _extracted(checkpoint: Checkpoint, options: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    from lightning_app.modules.resume import in_words
    from lightning_app.runs.checkpoints import holds_weights_alone

    weights_alone = holds_weights_alone(options.target)
    if weights_alone and "optimizer_states" in checkpoint:  # what it does not write need not be told apart
        checkpoint = {**checkpoint, "optimizer_states": []}
    alone = extract_member(checkpoint, options.member)
    (one,) = alone["members"]
    centre = checkpoint.get("centres", {}).get(options.member, "zero")
    decay = " --model.decay_towards identity, as in the bank." if centre == "identity" else "."
    apart = not weights_alone and not checkpoint.get("share_batches", True)  # older ones do not say
    return alone, [
        f"written: {options.target} ({in_words(one)}, was '{options.member}')",
        f"Use it with a configuration of that one net and --model.seeds {spell_seeds([one['seed']])}{decay}",
        *["Trained further, it gets other batches than in the bank, which had model.share_batches false."] * apart,
        *["It has the weights alone: you can validate, test and measure them; fit cannot resume from them."]
        * weights_alone,
    ]


def extract_member(checkpoint: Checkpoint, member: str) -> dict[str, Any]:
    """The checkpoint that the member would have, had it been trained alone as ``model.net``.

    It has the member's weights, its part of the optimizer's state, and what callbacks keep under its name; schedule and
    progress are the bank's. The data continue as in the bank if members with the same seed shared batches (the default): else
    they depend on the name of its arm, which a net alone does not have. A plain twin decays towards the identity: to train it
    alone, set ``model.decay_towards``.

    Args:
        checkpoint: of a bank, as `fit` writes it; unchanged.
        member: its name.

    Raises:
        UserError: for an unknown member, a checkpoint without the optimizer's state or the members' numbers of parameters, or an
            optimizer whose numbers of weights do not say of which member they are.
    """
    _check_member(checkpoint, member)
    if "parameters" not in checkpoint:
        raise UserError(
            "this checkpoint does not say which part of the optimizer's state belongs to which net: an old version of fit "
            "wrote it. Resume from it with `fit --ckpt_path`, and extract from the checkpoint that fit writes."
        )
    if "optimizer_states" not in checkpoint:
        raise UserError(
            "extract needs the optimizer's state, and this file has only the final weights: name a checkpoint (last.ckpt). "
            "`measure --ckpt_path` accepts this file and measures all its nets."
        )
    described = {one["name"]: one for one in checkpoint["members"]}
    old = re.compile(rf"(nets|averages)\.{re.escape(member)}\.")

    def renamed(name: str) -> str:
        return old.sub(rf"\1.{ALONE}.", name, count=1)

    counts = checkpoint["parameters"]  # the optimizer's parameters are in the members' order
    first, end = dict(zip(counts, pairwise(accumulate(counts.values(), initial=0))))[member]
    in_order = checkpoint.get("in_order", True) or len(counts) == 1  # all of the state is the only net's in any order
    states = []
    for state in checkpoint["optimizer_states"]:  # the parameters first to end - 1, numbered from 0
        group = _only_group(state["param_groups"], sum(counts.values()), in_order)
        part = {i - first: kept for i, kept in state["state"].items() if first <= i < end}
        states.append({"state": part, "param_groups": [group | {"params": list(range(end - first))}]})
    return {
        **checkpoint,
        "state_dict": {renamed(n): w for n, w in checkpoint["state_dict"].items() if old.match(n)},
        "optimizer_states": states,
        "callbacks": _of_member(checkpoint.get("callbacks", {}), member, {*described}),
        "members": [described[member] | {"name": ALONE}],
        "id_weights": {ALONE: [renamed(name) for name in checkpoint["id_weights"][member]]},
        "centres": {ALONE: checkpoint["centres"][member]},
        "parameters": {ALONE: counts[member]},
        "running": {ALONE: checkpoint["running"][member]},
    }


def _only_group(groups: Sequence[dict[str, Any]], weights: int, in_order: bool) -> dict[str, Any]:
    """The optimizer's group with all weights. UserError: if it has others, whose numbers do not say which net they are of."""
    sizes = [len(group["params"]) for group in groups]
    if sizes != [weights] or not in_order:
        got = "another order" if sizes == [weights] else " and ".join(map(str, sizes)) or "none"
        raise UserError(
            f"extract expected an optimizer with all {weights} weights of these nets in one group, in the order of the nets, got "
            f"{got}: its state does not say of which net each is. Write to a .safetensors file to extract the weights alone, or "
            "measure all nets with `measure --ckpt_path`."
        )
    return groups[0]


def _of_member(state: Any, member: str, members: set[str]) -> Any:
    """Callbacks' states, where they are kept by members' names that of this member alone, under its new name."""
    if not isinstance(state, dict):
        return state
    if state and state.keys() <= members:
        return {ALONE: state[member]} if member in state else {}
    return {name: _of_member(value, member, members) for name, value in state.items()}
