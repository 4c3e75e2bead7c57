"""The command line. This file starts in milliseconds: torch and Lightning are imported by the commands that need them."""

import importlib
import os
import re
import sys

from lightning_app.errors import UserError

__all__ = ["main"]

HELP = """\
SkipScope: why do identity connections help? Measured, not argued.

usage: python main.py COMMAND [options]

  fit        train, and measure after every epoch      fit --config configs/res20.yaml
  validate   risk and error of a checkpoint            validate --config configs/res20.yaml --ckpt_path last
  test       the same on the test set alone            test --config configs/res20.yaml --ckpt_path last
  measure    all measures of a net, untrained or from a file   measure --ckpt_path runs/cifar10/res20/checkpoints/last.ckpt
  transfer   a residual net's checkpoint made plain    transfer IN.ckpt OUT.ckpt (--inverse: plain to residual)
  extract    one net of a bank as a checkpoint         extract IN.ckpt OUT.ckpt --member residual-seed03
  reproduce  a paper's table or figure, ours beside    reproduce yu-tomasi/table-1 (--list: all of them)
  report     run folders -> one HTML page              report runs/cifar10/res20 runs/cifar10/pln20

COMMAND --help lists every option; --print_config prints the whole configuration.
Any option can be given on the command line:  fit --config configs/res20.yaml --trainer.max_epochs 5 --data.root ~/data
Configurations are layered: configs/base.yaml, then each --config in order, then the command line.
"""
TRAINING = ("fit", "validate", "test", "measure")
OTHERS = {  # command -> the module whose main(argv) it is, imported when asked for
    "transfer": "lightning_app.cli.transfer",
    "extract": "lightning_app.cli.extract",
    "reproduce": "lightning_app.reproduce",
    "report": "lightning_app.report",
}
RESUME = "What was logged is kept; go on from the last finished epoch with --ckpt_path last."
LOST = 1
INTERRUPTED = 130  # 128 + SIGINT
TERMINATED = 143  # 128 + SIGTERM, what a scheduler expects of a job it has pre-empted


def main(argv: list[str]) -> int:
    """Run one command; returns the exit code.

    A user's mistake is two lines on stderr and exit code 2; SKIPSCOPE_TRACEBACK=1 shows where it was noticed.
    """
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(HELP, end="")
        return 0 if argv else 2
    command = argv[0]
    if command in OTHERS:
        return importlib.import_module(OTHERS[command]).main(argv[1:])
    if command not in TRAINING:
        return _fail(f"unknown command '{command}'. Commands: {', '.join((*TRAINING, *OTHERS))}; see --help.")
    return _train(argv)


def _train(argv: list[str]) -> int:
    from pytorch_lightning.utilities.exceptions import MisconfigurationException, SIGTERMException

    from lightning_app.cli.training import run_training

    try:
        run_training(argv)
    except (UserError, MisconfigurationException) as error:
        if os.environ.get("SKIPSCOPE_TRACEBACK"):
            raise
        return _fail(str(error))
    except RuntimeError as error:
        if not _another_is_gone(error) or os.environ.get("SKIPSCOPE_TRACEBACK"):
            raise
        reason = str(error).splitlines()[0].split("] ")[-1].split(". ")[0]
        print(
            f"error: another process of this job is gone ({reason}): see what it said before. {RESUME}", file=sys.stderr
        )
        return LOST
    except SIGTERMException:  # Lightning 2.6.6 would exit with 0, which schedulers count as finished
        print("terminated: resume with --ckpt_path last", file=sys.stderr)
        return TERMINATED
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


def _fail(message: str) -> int:
    print(f"error: {message}", file=sys.stderr)
    return 2
