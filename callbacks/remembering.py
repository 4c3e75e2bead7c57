"""Measures that compare a net with what it was at the last measurement, also across a resume."""

from typing import Any

import pytorch_lightning as pl
from torch import nn
from typing_extensions import override

from callbacks.measure import Measure
from callbacks.protocol import name_of

__all__ = ["RememberingMeasure"]


class RememberingMeasure(Measure):
    """Keeps one thing for each member, in the checkpoint too: tensors and plain types only."""

    def __init__(self, every_n_epochs: int = 1, at_start: bool = True) -> None:
        super().__init__(every_n_epochs, at_start)
        self._last: dict[str, Any] = {}  # by member

    def swap(self, trainer: pl.Trainer, net: nn.Module, now: Any) -> Any:
        """What was kept of this net at the last measurement, None at the first; from now on this is."""
        name = name_of(trainer, net)
        before = self._last.get(name)
        self._last[name] = now
        return before

    @override
    def attempt(self, trainer: pl.Trainer, net: nn.Module) -> dict[str, Any]:
        """After one that fails, what is kept is still of the last measurement that did not."""
        before = dict(self._last)
        try:
            return super().attempt(trainer, net)
        except BaseException:
            self._last = before
            raise

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"last": self._last}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._last = state_dict["last"]
