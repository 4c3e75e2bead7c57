"""The three papers and predictions of ours: claims with tests and verdicts; tables and figures as artefacts.

``reproduce`` trains, computes and judges what is said here. Claims and tolerances are fixed before any run.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from lightning_app.common.errors import unknown

if TYPE_CHECKING:
    from lightning_app.papers.parts import Artefact, Paper

PAPERS = {  # key -> its package
    "yu-tomasi": "lightning_app.papers.yu_tomasi",
    "li-et-al": "lightning_app.papers.li_et_al",
    "littwin-wolf": "lightning_app.papers.littwin_wolf",
    "beyond": "lightning_app.papers.beyond",  # predictions of ours
    "findings": "lightning_app.papers.findings",
}


def paper(key: str) -> "Paper":
    return import_module(PAPERS[key]).PAPER


def find(name: str) -> "list[tuple[Paper, Artefact]]":
    """The artefact "paper/artefact", or all of a paper.

    Raises:
        UserError: for an unknown name, with the nearest one.
    """
    key, _, artefact = name.strip("/").partition("/")
    if key not in PAPERS:
        raise unknown("paper", key, PAPERS)
    found = paper(key)
    chosen = [candidate for candidate in found.artefacts if artefact in ("", candidate.key)]
    if not chosen:
        raise unknown("artefact", name, [f"{key}/{candidate.key}" for candidate in found.artefacts])
    return [(found, candidate) for candidate in chosen]
