"""The command ``python main.py transfer``: T or T^-1 on a checkpoint (Yu & Tomasi 2019, section 3, Eq. 1).

What comes out is an ordinary checkpoint of the net of the other kind that computes the same function; ``fit``,
``validate`` and ``test`` take it with that net's configuration. torch is imported late, so that --help starts fast.
"""

import argparse
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lightning_app.cli.rewriting import check_member, parser, rewrite
from lightning_app.common.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Shift", "main", "transfer_checkpoint"]

DESCRIPTION = "Turn a checkpoint of a residual net into one of the plain net that computes the same, or back."
EPILOG = """\
examples:
  python main.py transfer runs/cifar10/res20/checkpoints/last.ckpt plain.ckpt          T: residual -> plain
  python main.py test --config configs/pln20.yaml --ckpt_path plain.ckpt               the same risk and error
  python main.py transfer --inverse plain.ckpt residual.ckpt                           T^-1: plain -> residual
  python main.py transfer runs/cifar10/pair20/checkpoints/last.ckpt out.ckpt --member residual

T adds 1 to the ID entries of a residual net's kernels, T^-1 subtracts it; all other tensors keep their bits. So does the
optimizer's state: T is a translation, gradients and their history are the same on both sides.
"""


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
            f"{self.member}: {self.entries} ID entries shifted; the way back would differ by at most {self.error:.2g} "
            f"({self.precision} allows {self.bound:.2g})"
        )


def main(argv: list[str]) -> int:
    """Run the command; returns the exit code. A user's mistake is one sentence on stderr and 2."""
    command = parser("transfer", DESCRIPTION, EPILOG)
    command.add_argument("--inverse", action="store_true", help="T^-1: plain -> residual")
    command.add_argument(
        "--member", metavar="NAME", help="only this net of a bank (default: every one of the right kind)"
    )
    return rewrite(argv, command, _change)


def _change(checkpoint: Mapping[str, Any], options: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    moved, shifts = transfer_checkpoint(checkpoint, options.inverse, options.member)
    direction = "T^-1: plain -> residual" if options.inverse else "T: residual -> plain"
    return moved, [
        *map(str, shifts),
        f"written: {options.target} ({direction}; the optimizer's state is kept: T is a translation)",
        _on_training(options.inverse),
    ]


def _on_training(inverse: bool) -> str:
    """Section 4.1: twins stay twins only where the penalties are equal, ||p - rho||^2 = ||r||^2."""
    if inverse:
        return "Trained on, it stays the plain net's twin only if that one has `decay_towards: identity`."
    return "Trained on, it stays the residual net's twin only with `decay_towards: identity`."


def transfer_checkpoint(
    checkpoint: Mapping[str, Any], inverse: bool = False, member: str | None = None
) -> tuple[dict[str, Any], list[Shift]]:
    """T, or T^-1, on the members of a checkpoint that it applies to.

    The optimizer's state stays: grad_p L(T(r)) = grad_r L(r), so momentum is the same on both sides.

    Args:
        checkpoint: as `fit` writes it; untouched.
        inverse: T^-1 on plain members instead of T on residual ones.
        member: only the one of this name.

    Returns:
        The checkpoint with shifted ID entries and flipped ``residual`` flags, and what happened to each member.

    Raises:
        UserError: where there is nothing to shift, or in a precision in which r is lost beside 1.
    """
    from lightning_app.identity import transfer, untransfer

    weights = _chosen(checkpoint, inverse, member)
    there, back = (untransfer, transfer) if inverse else (transfer, untransfer)
    before, names = checkpoint["state_dict"], [name for own in weights.values() for name in own]
    _check_precision({name: before[name] for name in names})
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
        raise UserError(f"'{member}' has ID entries that are not numbers: it diverged, and T of it says nothing.")
    return Shift(member, len(was), error, unit * (1 + largest), str(was.dtype).removeprefix("torch."))


def _check_precision(weights: "Mapping[str, Tensor]") -> None:
    import torch

    for name, weight in weights.items():
        if weight.dtype not in (torch.float32, torch.float64):
            raise UserError(
                f"{name} is {weight.dtype}: beside the 1 of an ID entry everything below {torch.finfo(weight.dtype).eps:g}"
                " would be rounded away. T needs weights in float32 or float64 (trainer.precision 32-true or 64-true)."
            )


def _chosen(checkpoint: Mapping[str, Any], inverse: bool, member: str | None) -> dict[str, list[str]]:
    """Names of the weights with ID entries, of each member that T (or T^-1) shall act on.

    Raises:
        UserError: if there is no such member, saying what the checkpoint holds.
    """
    if not {"members", "id_weights"} <= checkpoint.keys():
        raise UserError(
            "this checkpoint does not say which of its weights have ID entries: it is not one of `fit`, or from before fit "
            "recorded them. Resume it with `fit --ckpt_path` and transfer what that writes."
        )
    described = {one["name"]: one for one in checkpoint["members"]}
    if member is not None:
        check_member(checkpoint, member)
    asked = {name: one for name, one in described.items() if member in (None, name)}
    shiftable = {name: one for name, one in asked.items() if checkpoint["id_weights"][name]}
    chosen = [name for name, one in shiftable.items() if one["residual"] == (not inverse)]
    if not chosen:
        raise UserError(_nothing_to_do(asked.values(), shiftable, inverse))
    return {name: checkpoint["id_weights"][name] for name in chosen}


def _nothing_to_do(asked: Collection[Mapping[str, Any]], shiftable: Collection[str], inverse: bool) -> str:
    from lightning_app.modules.resume import in_words

    there = ", ".join(in_words(one) for one in asked)
    if not shiftable:
        return (
            f"no weight of {there} has ID entries, so T cannot act on it: only an identity across a single convolution, as "
            "in SimplifiedNet, is an entry of a kernel."
        )
    if inverse:
        return f"T^-1 starts from a plain net with ID entries, found {there}. For T, residual -> plain, leave --inverse out."
    return f"T starts from a residual net with ID entries, found {there}. For T^-1, plain -> residual, add --inverse."
