"""Loggers are views of a run, which its folder has in full: a view that fails does not stop what it looks at."""

import functools
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

from pytorch_lightning.loggers import Logger

from lightning_app.common.errors import UserError

__all__ = ["excused", "guard"]

CALLED = ("log_metrics", "log_hyperparams", "log_graph", "save", "finalize", "after_save_checkpoint")  # by Lightning

log = logging.getLogger(__name__)
_said: WeakSet[Logger] = WeakSet()


def guard(logger: Logger) -> None:
    """Excuse this one logger wherever Lightning calls it; its class stays what it is."""
    for name in CALLED:
        setattr(logger, name, functools.partial(_call, logger, name))  # can be pickled, unlike a closure


def _call(logger: Logger, name: str, *args: Any, **kwargs: Any) -> Any:
    with excused(logger):
        return getattr(type(logger), name)(logger, *args, **kwargs)


@contextmanager
def excused(logger: Logger) -> Iterator[None]:
    """What a logger raises is said, once for each logger, and what follows goes on.

    Raises:
        UserError: as it comes: it says what to change.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # a logger is anybody's code, and raises what it likes
        if logger not in _said:
            _said.add(logger)
            first = str(error).strip().partition("\n")[0]
            log.warning(
                f"{type(logger).__name__} does not take what is logged ({type(error).__name__}: {first}): the run goes on "
                "without it, and the run folder has everything. With --strict it stops."
            )
