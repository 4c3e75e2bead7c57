"""Lazy packages (PEP 562): importing one name of a package does not import the modules of all the others.

A package imports its names under ``if TYPE_CHECKING:``, where type checkers read them, and has at its end::

    __getattr__ = lazy(__name__, renamed={"OldName": "NewName"})
"""

import ast
import inspect
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy(package: str, *, renamed: Mapping[str, str] | None = None) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package: imports a name when it is first used.

    Args:
        package: Name of the package, whose ``from module import name`` statements say where each name is. They are its
            ``__all__``, unless it has its own.
        renamed: Old name -> present name, for class paths in older files. They are not in ``__all__``.
    """
    module = sys.modules[package]
    blocks = [node for node in ast.parse(inspect.getsource(module)).body if isinstance(node, ast.If)]
    imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
    homes = {name.asname or name.name: (str(node.module), name.name) for node in imports for name in node.names}

    def __getattr__(name: str) -> Any:
        present = (renamed or {}).get(name, name)
        if present not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home, original = homes[present]
        submodule = home == package  # `from package import submodule`
        found = import_module(f"{home}.{original}") if submodule else getattr(import_module(home), original)
        setattr(module, name, found)  # from now on an attribute like any other
        return found

    module.__dict__.setdefault("__all__", [*homes])
    # completion sees what is not imported yet
    module.__dict__.setdefault("__dir__", lambda: sorted({*vars(module), *homes}))
    return __getattr__
