"""Configurations that come with the code: beside it in a checkout, else where pip installed them."""

from functools import cache
from importlib import metadata
from pathlib import Path

from lightning_app.common.errors import UserError

__all__ = ["configs", "packaged"]

CHECKOUT = Path(__file__).resolve().parents[2]
NAME = "skipscope"  # of the distribution
FOLDER = "configs"
BASE = "base.yaml"  # lies in it, under all others


@cache
def configs() -> Path:
    """The folder ``configs``: of the checkout, else ``share/skipscope/configs`` where pip installed it.

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
    """Folders of ``base.yaml`` in the file lists of installed distributions, which are right under any prefix."""
    files = [file for found in metadata.distributions(name=NAME) for file in found.files or ()]
    return [Path(file.locate()).resolve().parent for file in files if file.name == BASE]


def packaged(name: str) -> str:
    """A file's name as it is; ``configs/...`` that does not exist here means the file that comes with the code."""
    if Path(name).parts[:1] != (FOLDER,) or Path(name).exists():
        return name
    ours = configs().parent / name
    return str(ours) if ours.exists() else name
