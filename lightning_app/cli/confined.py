"""Whatever a configuration makes Lightning write goes into the run folder: loggers, callbacks, profilers, plugins.

A relative path of one of these is relative to the run folder, whose place is `run.root`, `run.group` and `run.name`. A path
that leads out of it is refused, so that a configuration that somebody sent writes nowhere else. config.yaml keeps what the
user wrote.
"""

import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from jsonargparse import Namespace

from lightning_app.common.errors import UserError

__all__ = ["confined"]

PLACE = re.compile(
    r"(?!class_path$)(?:\w*_)?(?:dir|dirpath|directory|folder|path|file)"
)  # arguments that are joined to the run folder
ELSEWHERE = re.compile(r"/|~|[a-z][\w+.-]*://|file:", re.IGNORECASE)  # what an absolute path or a URL begins with


def confined(trainer: Any, folder: Path, key: str = "trainer") -> Any:
    """A trainer's configuration with every relative path of its parts below the run folder.

    Args:
        trainer: as parsed; untouched.
        folder: of the run.
        key: for messages.

    Raises:
        UserError: for a text that would be an absolute path, a URL of a file or a path with ``..``, whatever it is
            for, and for an address where a path is expected.

    >>> confined(Namespace(save_dir="tb", name="v1"), Path("runs/a"))
    Namespace(save_dir='runs/a/tb', name='v1')
    """
    if isinstance(trainer, Namespace):
        return Namespace(**{name: confined(value, folder, f"{key}.{name}") for name, value in vars(trainer).items()})
    if isinstance(trainer, Mapping):
        return {name: confined(value, folder, f"{key}.{name}") for name, value in trainer.items()}
    if isinstance(trainer, list | tuple):
        return type(trainer)(confined(value, folder, key) for value in trainer)
    if isinstance(trainer, str | PurePosixPath) and trainer != "":
        return _below(str(trainer), folder, key)
    return trainer


def _below(text: str, folder: Path, key: str) -> str:
    is_place = PLACE.fullmatch(key.rpartition(".")[2]) is not None
    leads_out = ".." in PurePosixPath(text).parts or ELSEWHERE.match(text)
    if leads_out and (is_place or not re.match(r"https?://", text)):
        raise UserError(
            f"{key}: '{text}' would lead out of the run folder. A path is relative to that folder, which is chosen with "
            "run.root, run.group and run.name."
        )
    return str(folder / text) if is_place else text
