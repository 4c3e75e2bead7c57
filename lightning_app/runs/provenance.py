"""What made a run or a result: the commit of the checkout and the versions of libraries. Starts fast."""

import importlib.metadata
import subprocess
from collections.abc import Iterable
from pathlib import Path

__all__ = ["commit", "versions"]


def commit() -> str:
    """The checkout's commit, with a + when files differ from it."""
    here = str(Path(__file__).resolve().parent)
    words = ["git", "-C", here, "describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*"]
    try:
        return subprocess.run(words, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "not a checkout"


def versions(names: Iterable[str]) -> str:
    """ "torch 2.15.0, numpy 2.4.6" """
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)
