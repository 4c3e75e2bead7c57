"""``--json``: what a command found as one JSON object on standard output, for programs.

Everything else that the command and the processes that it starts print goes to standard error meanwhile. Numbers are the computed
ones, not the rounded ones of tables; NaN and infinity are null. A command that fails prints
no object: its exit code and standard error say why.
"""

import json
import math
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from typing import Any

__all__ = ["HELP", "OPTION", "answering", "as_json"]

OPTION = "--json"
HELP = "print the results as JSON, and everything else on stderr"


@contextmanager
def answering(asked: bool) -> Iterator[dict[str, Any]]:
    """If asked for, print what is put into the dict at the end, and nothing else."""
    found: dict[str, Any] = {}
    if not asked:
        yield found
        return
    sys.stdout.flush()
    stdout = os.dup(1)
    os.dup2(2, 1)  # also of processes that are started, and of libraries
    try:
        with redirect_stdout(sys.stderr):
            yield found
    finally:
        sys.stdout.flush()
        os.dup2(stdout, 1)
        os.close(stdout)
    if found:
        print(as_json(found), end="")


def as_json(data: Any) -> str:
    """
    >>> as_json({"error": float("nan"), "nets": ("plain", 3)})
    '{\\n "error": null,\\n "nets": [\\n  "plain",\\n  3\\n ]\\n}\\n'
    """
    return json.dumps(_finite(data), indent=1, default=_plain) + "\n"


def _plain(value: Any) -> Any:
    """Numbers of numpy as numbers; paths, dates and whatever else as text."""
    return value.item() if hasattr(value, "item") else str(value)


def _finite(node: Any) -> Any:
    if isinstance(node, Mapping):
        return {key: _finite(value) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return [_finite(value) for value in node]
    return None if isinstance(node, float) and not math.isfinite(node) else node
