"""The page of all committed figures: what each shows, how its claims stand, and the command that makes it."""

import json
from typing import TYPE_CHECKING

from docstrings import ROOT
from PIL import Image

if TYPE_CHECKING:
    from lightning_app.papers.parts import Artefact

PIXELS = 2.3  # of a figure's file, to one of the page: two figures of two panels fit in a row
HEAD = """\
# Gallery

Every figure that `reproduce` has made at paper scale and that is committed, with what its claims came to. A name leads to its
claims with their numbers, a figure to itself in full size. [Papers](index.md) lists the tables and statements without a figure
too, and what has not been run. [Evidence](../evidence.md) says what the words of a verdict mean."""
CARD = """\
<div style="width: {width}px" markdown="1">
### [{key}]({path}.md)

[![{key}]({path}.png)]({path}.png)

{title}. Claims: *{counts}*. Evidence: {standing}.

`{command}`
</div>"""


def gallery_page() -> str:
    from lightning_app.papers import PAPERS, paper

    parts = [HEAD]
    for key in PAPERS:
        cards = [
            card(key, one) for one in paper(key).artefacts if (ROOT / "results" / key / one.key / "figure.png").exists()
        ]
        parts += [f"## {paper(key).title}", '<div class="gallery" markdown="1">', *cards, "</div>"]
    return "\n\n".join(parts)


def card(paper: str, artefact: "Artefact") -> str:
    from lightning_app.papers.verdicts import in_words

    folder = ROOT / "results" / paper / artefact.key
    verdict = json.loads((folder / "verdict.json").read_text())
    with Image.open(folder / "figure.png") as figure:
        width = round(figure.width / PIXELS)
    return CARD.format(
        width=width,
        key=artefact.key,
        path=f"{paper}/{artefact.key}",
        title=artefact.title[0].upper() + artefact.title[1:],
        counts=in_words(verdict["counts"]),
        standing=verdict["standing"],
        command=verdict["command"],
    )
