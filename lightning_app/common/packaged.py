"""Where the configurations lie that come with the code: beside it in a checkout, where pip put them otherwise."""

from collections.abc import Sequence
from functools import cache
from importlib import metadata
from itertools import pairwise
from pathlib import Path

from lightning_app.common.errors import UserError

__all__ = ["configs", "shipped", "with_shipped"]

CHECKOUT = Path(__file__).resolve().parents[2]
NAME = "skipscope"  # of the distribution
FOLDER = "configs"
BASE = "base.yaml"  # lies in it, under all others
OPTIONS = ("--config", "-c")  # what names a configuration


@cache
def configs() -> Path:
    """The folder ``configs``: of the checkout, else ``share/skipscope/configs`` of wherever pip installed us.

    Raises:
        UserError: if there is none.
    """
    if (CHECKOUT / FOLDER / BASE).exists():
        return CHECKOUT / FOLDER
    for folder in _installed():
        if (folder / BASE).exists():
            return folder
    raise UserError(
        f"expected the configurations in {CHECKOUT / FOLDER}, or where pip installs them, and found none: run from a "
        f"checkout, or install {NAME} with pip."
    )


def _installed() -> list[Path]:
    """Where installed distributions of ours say that their ``base.yaml`` is: pip's lists are right under any prefix."""
    files = [file for found in metadata.distributions(name=NAME) for file in found.files or ()]
    return [Path(file.locate()).resolve().parent for file in files if file.name == BASE]


def shipped(name: str) -> str:
    """A file's name as it is; ``configs/...`` that is not there means the one that comes with the code, from any folder."""
    if Path(name).parts[:1] != (FOLDER,) or Path(name).exists():
        return name
    ours = configs().parent / name
    return str(ours) if ours.exists() else name


def with_shipped(argv: Sequence[str]) -> list[str]:
    """A command line with each configuration that it names as `shipped` finds it."""
    words = []
    for before, word in pairwise(["", *argv]):
        option, equals, value = word.partition("=")
        if before in OPTIONS:
            words.append(shipped(word))
        else:
            words.append(f"{option}={shipped(value)}" if equals and option in OPTIONS else word)
    return words
