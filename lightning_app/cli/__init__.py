"""The command line. This file starts in milliseconds: torch and Lightning are imported by the commands that need them."""

import importlib
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

from lightning_app.common.answer import OPTION, answering
from lightning_app.common.errors import MachineError, UserError
from lightning_app.common.processes import LOST, is_lost_rank, keep_freed_memory, lost_rank
from lightning_app.common.signals import requeue, stopping

__all__ = ["main"]

TRAINING = ("fit", "validate", "test", "measure")
OTHERS = {  # command -> the module and function that runs it, imported when needed
    "transfer": "lightning_app.cli.checkpoints:transfer",
    "extract": "lightning_app.cli.checkpoints:extract",
    "reproduce": "lightning_app.reproduce:main",
    "verify": "lightning_app.reproduce.verify:main",
    "report": "lightning_app.report:main",
    "board": "lightning_app.board:main",
    "compare": "lightning_app.compare:main",
}
FOLDER_VARIABLE = "SKIPSCOPE_RUN_FOLDER"  # rank zero tells the ranks it launches where the run is
INTERRUPTED = 130  # 128 + SIGINT
INDUCTOR = "torch._inductor.exc"  # module of torch.compile's errors


def main(argv: list[str]) -> int:
    """Run one command; returns the exit code.

    A user's mistake is a short message on stderr and exit code 2, a fault of the machine a message and exit code 1.
    SKIPSCOPE_TRACEBACK=1 shows the traceback instead.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed (`>&-`): the next file that is opened would have its number
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8"))
    if not argv or argv[0] in ("-h", "--help", "help"):
        from lightning_app.cli.help import overview

        return _show(overview()) or (0 if argv else 2)
    command, *words = argv
    if command.startswith("-"):
        return _fail(
            f"expected a command before the options, got '{command}': write for example fit {command} ...; see --help."
        )
    if command not in (*TRAINING, *OTHERS):
        return _fail(f"unknown command '{command}'. Commands: {', '.join((*TRAINING, *OTHERS))}; see --help.")
    if command in OTHERS:
        return _other(OTHERS[command], words)
    if "-h" in words:  # --help takes seconds, since it imports what it lists
        from lightning_app.cli.help import brief

        return _show(brief(command))
    if command == "fit" and any(word.partition("=")[0] == "--until" for word in words):
        return _other("lightning_app.cli.until:fit_until", argv)
    return _train(argv)


def _show(text: str) -> int:
    try:
        print(text, end="", flush=True)
    except OSError as error:
        return _unwritten(error)
    return 0


def _unwritten(error: OSError) -> int:
    """Standard output takes no more. That who reads, such as `head`, has enough is no error, but has an exit code.

    Without standard output Python says nothing at its end.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):
        return 128 + signal.SIGPIPE
    return _fail(f"cannot write to standard output: {error.strerror}. Free space, or redirect the output.", LOST)


def _is_of_output(error: OSError) -> bool:
    """Is standard output what cannot be written? Such an error names no file, and comes again."""
    if error.filename is not None:
        return False
    try:
        print(flush=True)
    except OSError:
        return True
    return False


def _other(home: str, words: list[str]) -> int:
    module, _, function = home.partition(":")
    try:
        code = getattr(importlib.import_module(module), function)(words)
        sys.stdout.flush()
        return code
    except (ValueError, OSError) as error:
        if isinstance(error, OSError) and _is_of_output(error):
            return _unwritten(error)
        if os.environ.get("SKIPSCOPE_TRACEBACK"):
            raise
        from lightning_app.common.text import printable

        ours = isinstance(error, UserError | OSError)
        where = "" if ours else f" ({type(error).__name__}; SKIPSCOPE_TRACEBACK=1 shows the traceback)"
        return _fail(printable(" ".join(str(error).split())) + where, LOST if isinstance(error, MachineError) else 2)
    except KeyboardInterrupt:
        return INTERRUPTED
    except SystemExit as done:  # argparse has shown its help
        return done.code if isinstance(done.code, int) else int(done.code is not None)


def _train(argv: list[str]) -> int:
    stopping.listen()
    keep_freed_memory()
    words = [word for word in argv if word != OPTION]
    try:
        with answering(words != argv) as answer:
            code = _run(words, answer)
        sys.stdout.flush()
    except SystemExit:  # ours, or Lightning's, whose exit code 0 schedulers would count as finished
        if stopping.received is None:
            raise
        code = LOST
    except Exception as error:
        if os.environ.get("SKIPSCOPE_TRACEBACK"):
            raise
        if isinstance(error, OSError) and _is_of_output(error):
            if isinstance(error, BrokenPipeError):
                said = f"{error}: the program that read the output of {argv[0]} has ended."
                _fail(f"{said} Send the output to a file, or to a program that reads all of it.")
            return _unwritten(error)
        if not stopping.raised:
            raise  # else compiled code (matplotlib's, for one) has replaced the exception of a signal by its own
        code = LOST
    if stopping.received is None or code != LOST:  # another process may be gone by the same signal
        return code
    if os.environ.get("LOCAL_RANK", "0") == "0":
        print(": ".join([f"stopped by {stopping.received.name}", *_what_to_do(argv[0])]), file=sys.stderr)
    if argv[0] == "fit" and stopping.received.name == "SIGUSR1" and (message := requeue()):
        print(message, file=sys.stderr)
    return 128 + stopping.received


def _run(argv: list[str], answer: dict[str, Any]) -> int:
    with stopping.deferred():  # an exception inside an import of PyTorch's can end the process in its own way
        from pytorch_lightning.utilities.exceptions import MisconfigurationException

        from lightning_app.cli.training import run_training

    try:
        run_training(argv, answer)
    except Exception as error:
        if os.environ.get("SKIPSCOPE_TRACEBACK"):
            raise
        if isinstance(error, MachineError):
            return _fail(" ".join([str(error), *(f"Then: {step}." for step in _what_to_do(argv[0]))]), LOST)
        if isinstance(error, UserError | MisconfigurationException):
            return _fail(str(error))
        if type(error).__module__ == INDUCTOR:
            return _fail(not_compiled(str(error)), LOST)
        if isinstance(error, RuntimeError) and is_lost_rank(error):
            print(lost_rank(str(error).splitlines()[0].split("] ")[-1].split(". ")[0]), file=sys.stderr)
            return LOST
        raise
    except (KeyboardInterrupt, SystemExit) as stop:  # Lightning turns the first into the second
        if not isinstance(stop, KeyboardInterrupt) and not isinstance(stop.__context__, KeyboardInterrupt):
            raise
        print(": ".join(["interrupted", *_what_to_do(argv[0])]), file=sys.stderr)
        return INTERRUPTED
    return 0


def _what_to_do(command: str) -> list[str]:
    """After a stop, as its run folder is now; nothing where no folder was chosen, or what it is for is finished.

    Where the folder is gone again, `last` would be an older run of this name.
    """
    name = os.environ.get(FOLDER_VARIABLE)
    if not name or os.environ.get("LOCAL_RANK", "0") != "0":  # rank zero decides what is left
        return []
    from lightning_app.runs.folder import FINISHED

    folder = Path(name)
    if (folder / FINISHED).exists():
        return []
    if command == "measure":
        return [f"{folder} is incomplete, remove it"] if folder.exists() else []
    return ["resume with --ckpt_path last" if folder.exists() else "nothing was saved, run the same command again"]


def not_compiled(said: str) -> str:
    """The error message where torch.compile failed, which in most cases lacks a tool of the machine.

    >>> not_compiled("CppCompileError: C++ compile error\\n\\nmain.cpp:26:10: fatal error: Python.h: No such file")[:75]
    'torch.compile failed (fatal error: Python.h: No such file): it needs a C++ '
    """
    line = re.search(r"fatal error: .*", said) or re.search(r".*", said.strip())
    return (
        f"torch.compile failed ({line[0] if line else ''}): it needs a C++ compiler and Python's headers (on Debian g++ and "
        "python3-dev). Install them, or turn compilation off (such as --model.compile false). SKIPSCOPE_TRACEBACK=1 "
        "shows the whole error."
    )


def _fail(message: str, code: int = 2) -> int:
    print(f"error: {message}", file=sys.stderr)
    return code
