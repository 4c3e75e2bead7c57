"""All callbacks by name, each imported when it is first used: ``from skipscope.callbacks import LayerCushion``."""

from typing import TYPE_CHECKING

from skipscope import mirror

if TYPE_CHECKING:
    from callbacks import *  # noqa: F403

__all__, __getattr__, __dir__ = mirror("callbacks")
