"""The command ``python main.py extract``: one net of a bank as a checkpoint of its own.

What comes out is what ``fit`` would have written, had the net been trained alone: ``fit``, ``validate`` and ``test`` take
it with that net's configuration, optimizer, schedule and place in the data included. torch is imported late, so that
--help starts fast.
"""

import argparse
from collections.abc import Mapping
from itertools import accumulate, pairwise
from typing import Any

from lightning_app.cli.rewriting import check_member, parser, rewrite
from lightning_app.common.errors import UserError
from lightning_app.common.seeds import spell_seeds

__all__ = ["extract_member", "main"]

EPILOG = """\
examples:
  python main.py extract runs/yu-tomasi/fig2/checkpoints/last.ckpt one.ckpt --member residual-seed03
  python main.py test --config configs/res20.yaml --model.seeds 3-3 --ckpt_path one.ckpt     the same risk and error
  python main.py fit  --config configs/res20.yaml --model.seeds 3-3 --ckpt_path one.ckpt     goes on as the bank would
"""
ALONE = "net"  # what the member of a configuration with one `model.net` and one seed is called


def main(argv: list[str]) -> int:
    """Run the command; returns the exit code. A user's mistake is one sentence on stderr and 2."""
    command = parser("extract", "Take one net out of a bank of several, as an ordinary checkpoint.", EPILOG)
    command.add_argument("--member", required=True, metavar="NAME", help="the net, as the run's log calls it")
    return rewrite(argv, command, _change)


def _change(checkpoint: Mapping[str, Any], options: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    from lightning_app.modules.resume import in_words

    alone = extract_member(checkpoint, options.member)
    (one,) = alone["members"]
    seed = spell_seeds([one["seed"]])
    centre = checkpoint.get("centres", {}).get(options.member, "zero")
    decay = " --model.decay_towards identity: so its penalty was in the bank." if centre == "identity" else "."
    return alone, [
        f"written: {options.target} ({in_words(one)}, was '{options.member}')",
        f"Use it with a configuration of that one net and --model.seeds {seed}{decay}",
    ]


def extract_member(checkpoint: Mapping[str, Any], member: str) -> dict[str, Any]:
    """The checkpoint that the member would have, had it been trained alone as ``model.net``.

    Weights, its part of the optimizer's state, and what callbacks keep under its name; schedule and progress are the
    bank's. The data go on as in the bank where members of one seed shared batches, which is the default. A plain twin
    decays towards the identity: its configuration alone must say so (``model.decay_towards``).

    Args:
        checkpoint: of a bank, as `fit` writes it; untouched.
        member: its name.

    Raises:
        UserError: for an unknown member, or a checkpoint that does not say how many parameters each member has.
    """
    check_member(checkpoint, member)
    if "parameters" not in checkpoint:
        raise UserError(
            "this checkpoint does not say which part of the optimizer's state is whose: it is from before fit recorded it. "
            "Resume it with `fit --ckpt_path` and extract from what that writes."
        )
    (described,) = (one for one in checkpoint["members"] if one["name"] == member)
    members = {one["name"] for one in checkpoint["members"]}
    old, new = f"nets.{member}.", f"nets.{ALONE}."

    def renamed(name: str) -> str:
        return new + name.removeprefix(old)

    return {
        **checkpoint,
        "state_dict": {renamed(n): w for n, w in checkpoint["state_dict"].items() if n.startswith(old)},
        "optimizer_states": [_own_part(state, *_place(checkpoint, member)) for state in checkpoint["optimizer_states"]],
        "callbacks": _kept(checkpoint.get("callbacks", {}), member, members),
        "members": [described | {"name": ALONE}],
        "id_weights": {ALONE: [renamed(name) for name in checkpoint["id_weights"][member]]},
        "centres": {ALONE: checkpoint["centres"][member]},
        "parameters": {ALONE: checkpoint["parameters"][member]},
        "running": {ALONE: checkpoint["running"][member]},
    }


def _place(checkpoint: Mapping[str, Any], member: str) -> tuple[int, int]:
    """First and last + 1 of the optimizer's parameters that are the member's: they stand in the members' order."""
    counts = checkpoint["parameters"]
    bounds = pairwise(accumulate(counts.values(), initial=0))
    return dict(zip(counts, bounds))[member]


def _own_part(state: Mapping[str, Any], start: int, stop: int) -> dict[str, Any]:
    (group,) = state["param_groups"]
    own = {i - start: state["state"][i] for i in range(start, stop) if i in state["state"]}
    return {"state": own, "param_groups": [group | {"params": list(range(stop - start))}]}


def _kept(state: Any, member: str, members: set[str]) -> Any:
    """What callbacks keep by members' names: only what is under this one's, by its new name; all else as it is."""
    if not isinstance(state, dict):
        return state
    if state and state.keys() <= members:
        return {ALONE: state[member]} if member in state else {}
    return {name: _kept(value, member, members) for name, value in state.items()}
