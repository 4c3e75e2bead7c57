"""A configuration that came with a checkpoint is not the user's: what it names is looked at before any of it is called.

Whoever names a configuration trusts it like code: it says which classes and functions are called, with which arguments.
``measure --ckpt_path`` takes net and data from the config.yaml beside the checkpoint, which somebody may have sent.

What remains: modules that it names are imported, and constructors of nets that it names run with its arguments. A package
of nets whose constructor reads a pickle, or downloads weights, does so.
"""

import inspect
import typing
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any

import pytorch_lightning as pl
import torch
from jsonargparse import Namespace
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from lightning_app.errors import UserError

__all__ = ["check_borrowed"]

HARMLESS = (nn.Module, Optimizer, LRScheduler, pl.LightningDataModule, torch.Tensor)


def check_borrowed(config: Any) -> None:
    """Refuse what is no net, data module, optimizer or schedule, and no function that says it returns a net.

    Args:
        config: as parsed: class paths, their arguments, and functions that jsonargparse has imported.

    Raises:
        UserError: naming the first, before anything is built.
    """
    for found in _named(config):
        if not _is_harmless(found):
            raise UserError(
                f"the checkpoint's own config.yaml names {_spelled(found)}, which is no class of nets or data and no function "
                "that says it returns a net (-> nn.Module): it may do anything. If you trust it, name it yourself: --config "
                "with that file."
            )


def _named(config: Any) -> Iterator[Any]:
    """All that a configuration would call. Of texts, those that name something callable: a class may look them up."""
    if isinstance(config, Namespace | Mapping):
        for value in (vars(config) if isinstance(config, Namespace) else config).values():
            yield from _named(value)
    elif isinstance(config, list | tuple | set):
        for value in config:
            yield from _named(value)
    elif callable(config):
        yield config
    elif isinstance(config, str) and (found := _imported(config)) is not None:
        yield found


def _is_harmless(found: Callable) -> bool:
    if inspect.isclass(found):
        return issubclass(found, HARMLESS)
    return inspect.isfunction(found) and _returns_net(found)


def _returns_net(function: Callable) -> bool:
    try:
        returned = typing.get_type_hints(function).get("return")
    except (NameError, TypeError, AttributeError):  # annotations of what is not imported
        return False
    return inspect.isclass(returned) and issubclass(returned, nn.Module)


def _imported(path: str) -> Any:
    """What a dotted path names, if it can be called."""
    module, _, name = path.rpartition(".")
    if not all(part.isidentifier() for part in path.split(".")) or not module:
        return None
    try:
        found = getattr(import_module(module), name, None)
    except (ImportError, ValueError):
        return None
    return found if callable(found) else None


def _spelled(found: Any) -> str:
    return f"{getattr(found, '__module__', '?')}.{getattr(found, '__qualname__', type(found).__name__)}"
