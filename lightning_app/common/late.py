"""torch for files that start without it: a module that is imported when something of it is first used.

Claims and figures are made of files, in commands that start in a second; what they rest on is computed in the same files.

    from lightning_app.common.late import F, Tensor, torch
"""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    import torch.nn.functional as F
    from torch import Tensor, nn
else:

    class Late(ModuleType):
        """Stands for the module of its name."""

        def __getattr__(self, name: str) -> Any:
            return getattr(import_module(self.__name__), name)

    torch, nn, F = map(Late, ("torch", "torch.nn", "torch.nn.functional"))
    Tensor = Any  # in annotations only
