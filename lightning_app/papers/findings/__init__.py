"""Questions that the instrument can settle and no paper has: each with predictions that were registered before any run."""

from lightning_app.papers.findings.common_depth import COMMON_DEPTH
from lightning_app.papers.findings.common_depth_convolutions import COMMON_DEPTH_CONVOLUTIONS
from lightning_app.papers.findings.loss_surface import LOSS_SURFACE
from lightning_app.papers.findings.modern import MODERN
from lightning_app.papers.findings.necessary_depth import NECESSARY_DEPTH, NECESSARY_DEPTH_ATTENTION
from lightning_app.papers.findings.normalised import NORMALISED
from lightning_app.papers.findings.notation import NOTATION
from lightning_app.papers.findings.shortcut_length import SHORTCUT_LENGTH
from lightning_app.papers.findings.shortcut_length_relu import SHORTCUT_LENGTH_RELU
from lightning_app.papers.findings.start_and_centre import START_AND_CENTRE, START_AND_CENTRE_SMALL
from lightning_app.papers.parts import Paper

PAPER = Paper(
    "findings",
    "Findings, questions that no paper has settled, with predictions of ours.",
    (
        *(NOTATION, LOSS_SURFACE, START_AND_CENTRE, START_AND_CENTRE_SMALL),
        *(COMMON_DEPTH, COMMON_DEPTH_CONVOLUTIONS, NORMALISED, MODERN),
        *(SHORTCUT_LENGTH, SHORTCUT_LENGTH_RELU, NECESSARY_DEPTH, NECESSARY_DEPTH_ATTENTION),
    ),
)
