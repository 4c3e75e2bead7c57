"""Exceptions that become an error message: what was expected, what came, what to do. No traceback follows them."""

import difflib
from collections.abc import Iterable

LONGEST = 300  # characters of a reason: some libraries' messages are pages


class UserError(ValueError):
    """A mistake that the user can correct: the message says how. The command line prints it alone and exits with 2."""


class DivergedError(UserError):
    """A loss became NaN or infinite. What was logged and saved so far is kept."""


class MachineError(UserError):
    """A fault of the machine, such as a full disk. The command line exits with 1."""


def at_least(minimum: int, who: str = "", **named: int) -> int:
    """The first of the named values, if all are at least the minimum; otherwise a `UserError` names it and its owner ``who``.

    >>> at_least(1, samples=3)
    3
    """
    for name, value in named.items():
        if value is None or value < minimum:  # a configuration may have null in place of a number
            raise UserError(f"{name}{who and f' of {who}'} must be at least {minimum}, got {value}.")
    return next(iter(named.values()))


def first_line(error: BaseException) -> str:
    """What an error says first; its type where it says nothing.

    >>> first_line(ValueError("expected 3 channels\\n  at conv1")), first_line(AssertionError())
    ('expected 3 channels', 'AssertionError')
    """
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def first_sentence(error: BaseException) -> str:
    """The same on one line and without its full stop, for messages of several sentences.

    >>> first_sentence(ValueError("bad magic\\n number. Set allow_pickle to continue.")), first_sentence(AssertionError())
    ('bad magic number', 'AssertionError')
    """
    return " ".join(str(error).split()).split(". ")[0].rstrip(".")[:LONGEST] or type(error).__name__


def reason(error: Exception) -> str:
    """A user's mistake in its own words, anything else as its type and first line.

    >>> reason(ValueError("expected 3 channels\\n  at conv1")), reason(AssertionError())
    ('ValueError: expected 3 channels', 'AssertionError')
    """
    if isinstance(error, UserError):
        return " ".join(str(error).split())
    first = str(error).strip().partition("\n")[0][:LONGEST]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def nearest(name: str, choices: Iterable[str], most: int = 1, cutoff: float = 0.6) -> list[str]:
    """The most similar names, the nearest first, of a similarity in [0, 1] of at least the cutoff.

    >>> nearest("tabel-1", ["fig-2", "table-1"])
    ['table-1']
    """
    return difflib.get_close_matches(name, list(choices), n=most, cutoff=cutoff)


def unknown(what: str, name: str, choices: Iterable[str]) -> UserError:
    """The error for a name that is none of the choices.

    >>> print(unknown("paper", "yu-tomsi", ["yu-tomasi", "li-et-al"]))
    there is no paper 'yu-tomsi'. Did you mean 'yu-tomasi'? Expected one of: yu-tomasi, li-et-al.
    """
    choices = list(choices)
    hint = [f"Did you mean '{near}'?" for near in nearest(name, choices)]
    return UserError(" ".join([f"there is no {what} '{name}'.", *hint, f"Expected one of: {', '.join(choices)}."]))
