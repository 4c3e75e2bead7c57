"""Exceptions that become a sentence: what was expected, what came, what to do. No traceback follows them."""

__all__ = ["DivergedError", "MachineError", "UserError"]


class UserError(ValueError):
    """A mistake the user can mend. The command line prints the message alone and exits with 2."""


class DivergedError(UserError):
    """A loss stopped being a number. What was logged and saved so far is kept."""


class MachineError(UserError):
    """The machine does not do what was asked of it, as a full disk. Nobody's mistake: the command line exits with 1."""
