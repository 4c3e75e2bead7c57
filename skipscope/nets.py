"""The papers' nets by name, and how a net describes itself: ``from skipscope.nets import SimplifiedNet``."""

from typing import TYPE_CHECKING

from skipscope import mirror

if TYPE_CHECKING:
    from lightning_app.networks import *  # noqa: F403

__all__, __getattr__, __dir__ = mirror("lightning_app.networks")
