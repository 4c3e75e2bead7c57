"""Ensembles: how long the paths are that make up a residual net, and the scales that decide it (Littwin & Wolf, 2016)."""

from lightning_app.report import ensembles_depth, ensembles_forces, ensembles_scales
from lightning_app.report.blocks import Section
from lightning_app.report.evidence import Evidence

__all__ = ["section"]

TITLE = "Ensembles of paths"
WHAT = (
    "A residual net is the sum of the paths through it, short and long ones (Littwin & Wolf, 2016). The larger the factors λ of "
    "its normalisation layers, or without these its weights, the more do long paths count: it is said to be an ensemble of "
    "shallow nets at first, and of deeper ones as training makes the scales grow. Here is as much of this as was measured: "
    "effective depth, λ, norms of weights, and the forces that training exerts on the scales."
)


def section(evidence: Evidence) -> Section | None:
    """None if nothing of it was measured."""
    blocks = [
        block for part in (ensembles_depth, ensembles_scales, ensembles_forces) for block in part.blocks(evidence)
    ]
    return Section("ensembles", TITLE, WHAT, blocks) if blocks else None
