"""Where this program is and what it is: its configurations, the checkout's commit, versions, the machine. Starts fast."""

import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_app.common.errors import UserError

if TYPE_CHECKING:  # importing it takes seconds
    import torch

COMMIT = "SKIPSCOPE_COMMIT"  # environment variable: the commit of a tree that was sent without its .git
ARCHIVED = "$Format:%H$"  # `git archive`, and so a download of the sources, writes the commit here: see .gitattributes
UNKNOWN = f"unknown (no git checkout, and {COMMIT} is not set)"
CHECKOUT = Path(__file__).resolve().parents[2]
NAME = "skipscope"  # of the distribution
FOLDER = "configs"
BASE = "base.yaml"  # lies in it, under all others
LIBRARIES = ("torch", "pytorch-lightning", "numpy", "scipy")


@cache
def configs() -> Path:
    """The folder ``configs``: of the checkout, else ``share/skipscope/configs`` where pip installed it.

    Raises:
        UserError: if there is none.
    """
    if (CHECKOUT / FOLDER / BASE).exists():
        return CHECKOUT / FOLDER
    # The file lists of installed distributions are right under any prefix.
    files = [file for found in metadata.distributions(name=NAME) for file in found.files or () if file.name == BASE]
    for folder in (Path(file.locate()).resolve().parent for file in files):
        if (folder / BASE).exists():
            return folder
    raise UserError(
        f"found no configurations in {CHECKOUT / FOLDER} or where pip installs them: run from a checkout, or "
        f"install {NAME} with pip."
    )


def packaged(name: str) -> str:
    """A file's name as it is; ``configs/...`` that does not exist here means the file that comes with the code."""
    if Path(name).parts[:1] != (FOLDER,) or Path(name).exists():
        return name
    ours = configs().parent / name
    return str(ours) if ours.exists() else name


@cache
def commit() -> str:
    """The checkout's commit, with a + if files differ from it; for a tree without .git the commit that is known, if any."""
    if told := os.environ.get(COMMIT):
        return told
    if not ARCHIVED.startswith("$"):
        return ARCHIVED[:12]
    if not (CHECKOUT / ".git").exists():  # git would find a repository further up, which is another program's
        return UNKNOWN
    words = ["git", "-C", str(CHECKOUT), "describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*"]
    try:
        return subprocess.run(words, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return UNKNOWN


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


def device_named(device: "torch.device") -> dict[str, str]:
    """Kind of a device, such as cpu or cuda, and a GPU's model."""
    import torch

    return {"device": device.type} | ({"gpu": torch.cuda.get_device_name(device)} if device.type == "cuda" else {})


def command_line() -> str:
    """How this process was started, its program without the folder; also of a notebook that has set other words, or none."""
    program, *words = map(str, sys.argv or [""])
    return shlex.join([Path(program).name, *words])


@cache
def processor() -> str:
    """The processor's model, as the operating system calls it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def threads() -> int:
    """How many threads torch computes with in this process."""
    import torch

    return torch.get_num_threads()


@cache
def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
