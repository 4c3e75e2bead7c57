"""The one exception that becomes a sentence: what was expected, what came, what to do. No traceback follows it."""

__all__ = ["DivergedError", "UserError"]


class UserError(ValueError):
    """A mistake the user can mend. The command line prints the message alone and exits with 2."""


class DivergedError(UserError):
    """A loss stopped being a number. What was logged and saved so far is kept."""
