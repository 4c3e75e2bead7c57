"""Nets that a function makes, such as torchvision's and timm's: a bank needs the recipe, once for every seed.

Of a class, jsonargparse hands on a factory; of a function with arguments, what it returned, made before any seed was set.
"""

import functools
import inspect
from collections.abc import Mapping, Sequence
from importlib import import_module
from itertools import pairwise
from typing import Any

from jsonargparse import Namespace

__all__ = ["as_factories", "with_class_paths"]


def with_class_paths(argv: Sequence[str]) -> list[str]:
    """``--model.net FUNCTION`` spelled as its class_path where arguments of the function follow, as one may for a class.

    >>> with_class_paths(["--model.net", "torchvision.models.resnet18", "--model.net.num_classes", "10"])
    ['--model.net.class_path', 'torchvision.models.resnet18', '--model.net.num_classes', '10']
    """
    spelled = list(argv)
    for place, (option, value) in enumerate(pairwise([*argv, ""])):
        name, equals, own = option.partition("=")
        follows = any(word.startswith(f"{name}.") for word in argv)
        if name.startswith("--model.") and name.endswith("net") and follows and _function(own if equals else value):
            spelled[place] = f"{name}.class_path{equals}{own}"
    return spelled


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
        return functools.partial(_imported(value.class_path), **_arguments(value))
    return value


def _function(path: Any) -> Any:
    """What a dotted path names, if it is a function."""
    found = _imported(path) if isinstance(path, str) and "." in path else None
    return found if inspect.isfunction(found) else None


def _imported(path: str) -> Any:
    """None for what is not there: the parser says so in its own words."""
    module, _, name = path.rpartition(".")
    try:
        return getattr(import_module(module), name, None)
    except (ImportError, TypeError, ValueError):  # the last two for paths that begin with a dot
        return None
