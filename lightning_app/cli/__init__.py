"""The command line. This file starts in milliseconds: torch and Lightning are imported by the commands that need them."""

import importlib
import os
import re
import signal
import sys

from lightning_app.cli.help import brief, overview
from lightning_app.common.errors import MachineError, UserError
from lightning_app.common.memory import keep_freed_memory
from lightning_app.common.signals import requeue, stopping

__all__ = ["main"]

TRAINING = ("fit", "validate", "test", "measure")
OTHERS = {  # command -> the module whose main(argv) it is, imported when asked for
    "transfer": "lightning_app.cli.transfer",
    "extract": "lightning_app.cli.extract",
    "reproduce": "lightning_app.reproduce",
    "verify": "lightning_app.reproduce.verify",
    "report": "lightning_app.report",
}
RESUME = "What was logged is kept; go on from the last finished epoch with --ckpt_path last."
LOST = 1
INTERRUPTED = 130  # 128 + SIGINT


def main(argv: list[str]) -> int:
    """Run one command; returns the exit code.

    A user's mistake is two lines on stderr and exit code 2, a fault of the machine likewise and 1;
    SKIPSCOPE_TRACEBACK=1 shows where it was noticed.
    """
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(overview(), end="")
        return 0 if argv else 2
    command, *words = argv
    if command not in (*TRAINING, *OTHERS):
        return _fail(f"unknown command '{command}'. Commands: {', '.join((*TRAINING, *OTHERS))}; see --help.")
    if command in OTHERS:
        return _other(OTHERS[command], words)
    if "-h" in words:  # --help takes seconds, since it imports what it lists
        print(brief(command), end="")
        return 0
    return _train(argv)


def _other(module: str, words: list[str]) -> int:
    try:
        return importlib.import_module(module).main(words)
    except UserError as error:  # noticed while importing: configurations that are nowhere
        return _fail(str(error))


def _train(argv: list[str]) -> int:
    stopping.listen()
    keep_freed_memory()
    try:
        code = _run(argv)
    except SystemExit:  # ours, or Lightning's, whose exit code 0 schedulers would count as finished
        if stopping.asked is None:
            raise
        code = LOST
    if stopping.asked is None or code != LOST:  # another process may be gone by the same signal
        return code
    trained = argv[0] == "fit"
    if os.environ.get("LOCAL_RANK", "0") == "0":
        print(f"stopped by {stopping.asked.name}{': go on with --ckpt_path last' if trained else ''}", file=sys.stderr)
    if trained and stopping.asked is signal.SIGUSR1 and (said := requeue()):
        print(said, file=sys.stderr)
    return 128 + stopping.asked


def _run(argv: list[str]) -> int:
    with stopping.held():  # an exception inside an import of PyTorch's can end the process in its own way
        from pytorch_lightning.utilities.exceptions import MisconfigurationException

        from lightning_app.cli.training import run_training

    try:
        run_training(argv)
    except (UserError, MisconfigurationException) as error:
        if os.environ.get("SKIPSCOPE_TRACEBACK"):
            raise
        return _fail(str(error), LOST if isinstance(error, MachineError) else 2)
    except RuntimeError as error:
        if not _another_is_gone(error) or os.environ.get("SKIPSCOPE_TRACEBACK"):
            raise
        reason = str(error).splitlines()[0].split("] ")[-1].split(". ")[0]
        print(
            f"error: another process of this job is gone ({reason}): see what it said before. {RESUME}", file=sys.stderr
        )
        return LOST
    except (KeyboardInterrupt, SystemExit) as stop:  # Lightning turns the first into the second
        if not isinstance(stop, KeyboardInterrupt) and not isinstance(stop.__context__, KeyboardInterrupt):
            raise
        print("interrupted: resume from the last finished epoch with --ckpt_path last", file=sys.stderr)
        return INTERRUPTED
    return 0


def _another_is_gone(error: RuntimeError) -> bool:
    """Did a process group notice that one of its processes died? gloo and NCCL say it in their own words only."""
    import torch.distributed as dist

    signs = r"connection (closed|reset)|broken pipe|timed out waiting|remote process exited|ncclRemoteError"
    return dist.is_available() and dist.is_initialized() and bool(re.search(signs, str(error), re.IGNORECASE))


def _fail(message: str, code: int = 2) -> int:
    print(f"error: {message}", file=sys.stderr)
    return code
