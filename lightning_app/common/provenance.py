"""What made a run or a result: the checkout's commit, versions of libraries, and the machine. Starts fast."""

import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["commit", "made_with", "processor", "threads", "versions"]

COMMIT = "SKIPSCOPE_COMMIT"  # environment variable: the commit of a tree that was sent without its .git
LIBRARIES = ("torch", "pytorch-lightning", "numpy", "scipy")


@cache
def commit() -> str:
    """The checkout's commit, with a + when files differ from it."""
    if told := os.environ.get(COMMIT):
        return told
    here = str(Path(__file__).resolve().parent)
    words = ["git", "-C", here, "describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*"]
    try:
        return subprocess.run(words, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "not a checkout"


def versions(names: Iterable[str]) -> str:
    """ "torch 2.15.0, numpy 2.4.6"; a library that is not installed is said to be missing."""
    return ", ".join(f"{name} {_version(name) or 'not installed'}" for name in names)


def made_with() -> dict[str, Any]:
    """Commit, Python, libraries, processor and threads of this process, as JSON has them."""
    return {
        "commit": commit(),
        "python": platform.python_version(),
        "libraries": {name: version for name in LIBRARIES if (version := _version(name))},
        "processor": processor(),
        "threads": threads(),
    }


@cache
def processor() -> str:
    """The processor's model, as the operating system calls it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def threads() -> int:
    """How many threads torch computes with in this process."""
    import torch

    return torch.get_num_threads()


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
