"""A configuration that came with a checkpoint is not the user's: what it names is looked at before any of it is called.

Whoever names a configuration trusts it like code: it says which classes and functions are called, with which arguments.
``measure --ckpt_path`` takes net and data from the config.yaml beside the checkpoint, which somebody may have sent.

Allowed are classes of nets, data modules, optimizers and schedules, and the functions of torchvision and timm that make
nets. What a function says it returns proves nothing.

What remains: modules that it names are imported, and constructors of nets that it names run with its arguments. A package
of nets whose constructor reads a pickle, or downloads weights, does so.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any

import pytorch_lightning as pl
import torch
from jsonargparse import Namespace
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from lightning_app.common.errors import UserError

__all__ = ["check_borrowed"]

HARMLESS = (nn.Module, Optimizer, LRScheduler, pl.LightningDataModule, torch.Tensor)
MAKERS = ("torchvision.models", "timm.models")  # whose functions make nets
BUILDERS = ("torch.fx", "torch.jit", "torch.package", "torch.export")  # whose classes of nets are made of source text


def check_borrowed(config: Any) -> None:
    """Refuse what is no net, data module, optimizer or schedule, and no function that says it returns a net.

    Args:
        config: as parsed: class paths, their arguments, and functions that jsonargparse has imported.

    Raises:
        UserError: naming the first, before anything is built.
    """
    for path in _class_paths(config):
        if "." in path and _imported(path) is None:
            raise UserError(
                f"the checkpoint's own config.yaml names {path}, and there is no such class or function here."
            )
    for found in _named(config):
        if not _is_harmless(found):
            raise UserError(
                f"the checkpoint's own config.yaml names {_spelled(found)}, which is no class of nets or data and no function "
                "of torchvision or timm that makes a net: it may do anything. If you trust it, name it yourself: --config "
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


def _class_paths(config: Any) -> Iterator[str]:
    if isinstance(config, Namespace | Mapping):
        for key, value in (vars(config) if isinstance(config, Namespace) else config).items():
            if key == "class_path" and isinstance(value, str):
                yield value
            yield from _class_paths(value)
    elif isinstance(config, list | tuple):
        for value in config:
            yield from _class_paths(value)


def _is_harmless(found: Callable) -> bool:
    if inspect.isclass(found):
        return issubclass(found, HARMLESS) and not _within(found, BUILDERS)
    return inspect.isfunction(found) and _within(found, MAKERS)


def _within(found: Callable, packages: tuple[str, ...]) -> bool:
    return f"{found.__module__}.".startswith(tuple(f"{package}." for package in packages))


def _imported(path: str) -> Any:
    """What a dotted path names, if it can be called: also a method of a class in a module."""
    parts = path.split(".")
    if not all(part.isidentifier() for part in parts):
        return None
    for cut in range(len(parts) - 1, 0, -1):
        try:
            found = import_module(".".join(parts[:cut]))
        except (ImportError, ValueError):
            continue
        for name in parts[cut:]:
            found = getattr(found, name, None)
        return found if callable(found) else None
    return None


def _spelled(found: Any) -> str:
    return f"{getattr(found, '__module__', '?')}.{getattr(found, '__qualname__', type(found).__name__)}"
