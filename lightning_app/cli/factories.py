"""Nets that a function makes, such as torchvision's and timm's, as factories: every seed calls them anew.

For a class jsonargparse passes a factory on; for a function with arguments what it returned, before any seed was set.
"""

import functools
import inspect
from collections.abc import Mapping
from typing import Any

from jsonargparse import Namespace

from lightning_app.cli.safety import importable

__all__ = ["as_factories"]


def as_factories(config: Any) -> Any:
    """A configuration whose nets made by functions are factories: calls of them without arguments make the net."""
    if isinstance(config, Namespace):
        return Namespace(**{key: _factory(key, value) for key, value in vars(config).items()})
    if isinstance(config, Mapping):
        return {key: _factory(key, value) for key, value in config.items()}
    return config


def _factory(key: str, value: Any) -> Any:
    function = _function(value.get("class_path")) if key == "net" and isinstance(value, Namespace) else None
    return as_factories(value) if function is None else functools.partial(function, **_arguments(value))


def _arguments(spec: Namespace) -> dict[str, Any]:
    """A class among the arguments (a norm_layer) is a recipe too."""
    groups = [spec.get("init_args") or {}, spec.get("dict_kwargs") or {}]
    given = [vars(group) if isinstance(group, Namespace) else group for group in groups]
    return {name: _recipe(value) for group in given for name, value in group.items()}


def _recipe(value: Any) -> Any:
    if isinstance(value, Namespace) and value.get("class_path"):
        return functools.partial(importable(value.class_path), **_arguments(value))
    return value


def _function(path: Any) -> Any:
    """What a dotted path names, if it is a function."""
    found = importable(path) if isinstance(path, str) else None
    return found if inspect.isfunction(found) else None
