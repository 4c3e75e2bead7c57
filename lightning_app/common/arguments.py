"""argparse for the commands that start fast; its errors are raised as `UserError`, like all mistakes of users."""

import argparse
import sys
from pathlib import Path
from typing import Any, NoReturn

from lightning_app.common.errors import UserError
from lightning_app.common.files import with_home

WRITTEN = "python main.py"  # how help texts call the program
INSTALLED = "skipscope"


class Parser(argparse.ArgumentParser):
    """An ArgumentParser with examples before the options in its help, no abbreviated options, and errors that are raised.

    Paths have the home folder in place of ``~``: a shell leaves it in ``--out=~/x``.

    Args:
        description: one line.
        epilog: the examples.
        options: of `argparse.ArgumentParser`.
    """

    def __init__(self, description: str = "", epilog: str = "", **options: Any) -> None:
        raw: dict[str, Any] = {"formatter_class": argparse.RawDescriptionHelpFormatter, "allow_abbrev": False} | options
        super().__init__(description=f"{description}\n\n{epilog}".strip(), **raw)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuse empty texts: as a path one means the working folder, and an unset shell variable leaves one."""
        for word in args or ():
            if word == "" or (word.startswith("--") and word.endswith("=")):
                self.error(
                    f"expected a value{f' after {word}' if word else ''}, got an empty text: is a variable unset?"
                )
        found, rest = super().parse_known_args(args, namespace)
        for name, value in vars(found).items():
            setattr(found, name, _with_home(value))
        return found, rest

    def error(self, message: str) -> NoReturn:
        """Raise `UserError` instead of printing the usage."""
        raise UserError(as_called(f"{message}; see {self.prog} --help."))

    def format_help(self) -> str:
        """With the program's name as it was called."""
        return as_called(super().format_help())


def _with_home(value: Any) -> Any:
    if isinstance(value, list):
        return [*map(_with_home, value)]
    return with_home(value) if isinstance(value, Path) else value


def as_called(text: str) -> str:
    """A help text with the program's name as it was called: ``skipscope`` where that is what runs."""
    called = Path(sys.argv[0])
    ours = called.stem == INSTALLED or called.parts[-2:] == (INSTALLED, "__main__.py")  # or python -m skipscope
    return text.replace(WRITTEN, INSTALLED) if ours else text
