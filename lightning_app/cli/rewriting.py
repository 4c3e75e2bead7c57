"""What the commands share that turn one checkpoint into another: IN.ckpt, OUT.ckpt, and errors that are sentences."""

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lightning_app.common.arguments import Parser
from lightning_app.common.errors import UserError

__all__ = ["Change", "check_member", "parser", "rewrite"]

Change = Callable[[Mapping[str, Any], argparse.Namespace], tuple[dict[str, Any], list[str]]]
"""A checkpoint and the command's options to another checkpoint and the lines to say about it."""


def parser(command: str, description: str, epilog: str) -> argparse.ArgumentParser:
    """A parser with the two files; the command adds its own options."""
    made = Parser(
        prog=f"python main.py {command}",
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("source", type=Path, metavar="IN.ckpt", help="checkpoint that fit has written")
    made.add_argument("target", type=Path, metavar="OUT.ckpt", help="where to write; never an existing file")
    return made


def rewrite(argv: list[str], parser: argparse.ArgumentParser, change: Change) -> int:
    """Run the command; returns the exit code. A user's mistake is one sentence on stderr and 2."""
    try:
        options = parser.parse_args(argv)
        _check_target(options.target)
        from lightning_app.modules.resume import check_form
        from lightning_app.runs.checkpoints import AtomicCheckpointIO

        files = AtomicCheckpointIO()
        checkpoint = files.load_checkpoint(options.source)
        check_form(checkpoint)
        changed, lines = _changed(change, checkpoint, options)
        files.save_checkpoint(changed, options.target)
        print(*lines, sep="\n")
    except (UserError, OSError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except SystemExit as done:  # argparse has shown its help
        return int(done.code or 0)
    return 0


def _changed(change: Change, checkpoint: Mapping[str, Any], options: argparse.Namespace) -> tuple[dict, list[str]]:
    """The parts have the right types here; what one part says of another may still not be so."""
    try:
        return change(checkpoint, options)
    except UserError:
        raise
    except (LookupError, TypeError, AttributeError, RuntimeError, ValueError) as error:
        said = str(error).split("\n")[0]
        raise UserError(
            f"{options.source} contradicts itself ({type(error).__name__}: {said}): it is damaged, or of another program."
        ) from error


def check_member(checkpoint: Mapping[str, Any], member: str) -> None:
    """Refuse a name that is no member's, saying which there are."""
    names = [one["name"] for one in checkpoint.get("members", [])]
    if member not in names:
        raise UserError(f"the checkpoint has no member '{member}'; it has {', '.join(names) or 'none'}.")


def _check_target(target: Path) -> None:
    if target.exists():
        raise UserError(f"{target} exists already and is not overwritten: remove it or choose another name.")
    if not target.parent.is_dir():
        raise UserError(f"expected a folder {target.parent} to write {target.name} into, found none: make it first.")
