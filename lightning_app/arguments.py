"""argparse for the commands that start fast, its complaints as exceptions like all users' mistakes."""

import argparse
from typing import NoReturn

from lightning_app.errors import UserError

__all__ = ["Parser"]


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises `UserError` where argparse prints its usage and exits."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see {self.prog} --help.")
