"""Which papers there are, and finding an artefact by its name."""

import difflib
from functools import cache
from importlib import import_module

from lightning_app.common.errors import UserError
from lightning_app.reproduce.artefact import Artefact, Paper

__all__ = ["PAPERS", "find", "paper"]

PAPERS = {  # key -> its file or package
    "yu-tomasi": "lightning_app.reproduce.yu_tomasi",
    "li-et-al": "lightning_app.reproduce.li_et_al",
    "littwin-wolf": "lightning_app.reproduce.littwin_wolf",
}


@cache
def paper(key: str) -> Paper:
    return import_module(PAPERS[key]).PAPER


def find(name: str) -> list[tuple[Paper, Artefact]]:
    """The artefact "paper/artefact", or all of a paper.

    Raises:
        UserError: for a name that is none, with the nearest one.
    """
    key, _, artefact = name.strip("/").partition("/")
    if key not in PAPERS:
        raise UserError(f"there is no paper '{key}'.{_nearest(key, PAPERS)} Papers: {', '.join(PAPERS)}.")
    found = paper(key)
    chosen = [candidate for candidate in found.artefacts if artefact in ("", candidate.key)]
    if not chosen:
        keys = [candidate.key for candidate in found.artefacts]
        raise UserError(
            f"{key} has no artefact '{artefact}'.{_nearest(artefact, keys, f'{key}/')} It has: {', '.join(keys)}."
        )
    return [(found, candidate) for candidate in chosen]


def _nearest(word: str, known, prefix: str = "") -> str:
    """
    >>> _nearest("tabel-1", ["table-1", "fig-2"], "yu-tomasi/")
    " Did you mean 'yu-tomasi/table-1'?"
    """
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.4)
    return f" Did you mean '{prefix}{near[0]}'?" if near else ""
