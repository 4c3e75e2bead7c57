"""argparse for the commands that start fast, its complaints as exceptions like all users' mistakes."""

import argparse
import sys
from pathlib import Path
from typing import NoReturn

from lightning_app.common.errors import UserError

__all__ = ["Parser", "as_called"]

WRITTEN = "python main.py"  # how help texts call us
INSTALLED = "skipscope"


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose help has the examples first, and which raises `UserError` instead of printing its usage."""

    def error(self, message: str) -> NoReturn:
        raise UserError(as_called(f"{message}; see {self.prog} --help."))

    def format_help(self) -> str:
        """Usage, description, epilog, options: the epilog is where the examples are."""
        formatter = self._get_formatter()
        formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        formatter.add_text(self.description)
        formatter.add_text(self.epilog)
        for group in self._action_groups:
            formatter.start_section(group.title)
            formatter.add_text(group.description)
            formatter.add_arguments(group._group_actions)
            formatter.end_section()
        return as_called(formatter.format_help())


def as_called(text: str) -> str:
    """A help text with the program's name as it was called: ``skipscope`` where that is what runs."""
    return text.replace(WRITTEN, INSTALLED) if Path(sys.argv[0]).stem == INSTALLED else text
