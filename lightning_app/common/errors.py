"""Exceptions that become an error message: what was expected, what came, what to do. No traceback follows them."""

import difflib
from collections.abc import Iterable

__all__ = ["DivergedError", "MachineError", "UserError", "did_you_mean", "unknown"]


class UserError(ValueError):
    """A mistake the user can mend. The command line prints the message alone and exits with 2."""


class DivergedError(UserError):
    """A loss stopped being a number. What was logged and saved so far is kept."""


class MachineError(UserError):
    """A fault of the machine, such as a full disk. The command line exits with 1."""


def did_you_mean(name: str, choices: Iterable[str], most: int = 1, cutoff: float = 0.6) -> str:
    """The most similar names as a question; "" if there are none.

    >>> did_you_mean("tabel-1", ["table-1", "fig-2"])
    "Did you mean 'table-1'?"
    """
    near = difflib.get_close_matches(name, list(choices), n=most, cutoff=cutoff)
    return f"Did you mean {' or '.join(repr(each) for each in near)}?" if near else ""


def unknown(what: str, name: str, choices: Iterable[str]) -> UserError:
    """The error for a name that is none of the choices.

    >>> print(unknown("paper", "yu-tomsi", ["yu-tomasi", "li-et-al"]))
    there is no paper 'yu-tomsi'. Did you mean 'yu-tomasi'? Expected one of: yu-tomasi, li-et-al.
    """
    choices = list(choices)
    words = (f"there is no {what} '{name}'.", did_you_mean(name, choices), f"Expected one of: {', '.join(choices)}.")
    return UserError(" ".join(filter(None, words)))
