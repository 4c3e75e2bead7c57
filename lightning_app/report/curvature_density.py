"""How the Hessian's eigenvalues are distributed, at the first and at the last epoch with a spectrum."""

import numpy as np
from matplotlib.axes import Axes

from lightning_app.plots.drawing import histogram, symmetric_log
from lightning_app.report.blocks import Figure, Panel, csv_text
from lightning_app.report.evidence import Evidence, Net
from lightning_app.report.panels import group_legend, panel

__all__ = ["figure"]

FIRST, LAST = 0, -1  # of the epochs that have arrays
LEAST = 1e-3  # eigenvalues a bin: fewer are not drawn

Bins = tuple[np.ndarray, np.ndarray, np.ndarray]  # counts (n,), edges (n + 1,), below and above (2,)
Views = dict[int, dict[Net, Bins]]  # FIRST or LAST -> what each net has

CAPTION = (
    "Expected number of eigenvalues a bin, eight bins a decade to both sides of zero; both axes logarithmic, the horizontal "
    "one linear around zero. A run of m products tells the density at m points only, and these are the peaks: between them "
    "it is not resolved, and the highest peaks, next to zero, stand for eigenvalues on either side of it."
)


def figure(evidence: Evidence, prefix: str, key: str, name: str) -> Figure | None:
    """The first net of each group; None if no density was saved."""
    views = _views(evidence, prefix)
    if not views:
        return None
    panels = [_panel(by_net, prefix, when, key, name) for when, by_net in views.items()]
    legend = group_legend(evidence, first=True)
    return Figure(f"{key}-density", name + _caption(evidence, views), panels, legend, _data(views, prefix), columns=2)


def _views(evidence: Evidence, prefix: str) -> Views:
    nets = evidence.firsts()
    views = {when: {net: bins for net in nets if (bins := _bins(net, prefix, when))} for when in (FIRST, LAST)}
    return {when: by_net for when, by_net in views.items() if by_net}


def _bins(net: Net, prefix: str, when: int) -> Bins | None:
    """None if not saved, or not finite, or if the last epoch is the first."""
    epochs = net.run.array_epochs(prefix)
    if not epochs or (when == LAST and len(epochs) == 1):
        return None
    arrays = net.arrays(prefix, epochs[when])
    counts, edges, outside = (arrays.get(f"{prefix}/density/{name}") for name in ("counts", "edges", "outside"))
    known = counts is not None and edges is not None and outside is not None
    return (counts, edges, outside) if known and np.isfinite(counts).all() and np.isfinite(edges).all() else None


def _epoch(net: Net, prefix: str, when: int) -> int:
    return net.run.array_epochs(prefix)[when]


def _panel(by_net: dict[Net, Bins], prefix: str, when: int, key: str, name: str) -> Panel:
    counts = np.concatenate([counts for counts, _, _ in by_net.values()])
    floor = max(LEAST, 10 ** np.floor(np.log10(counts[counts > 0].min(initial=1.0))))

    def draw(axes: Axes) -> None:
        for net, (counts, edges, _) in by_net.items():
            histogram(axes, counts, edges, net.style, floor)
        at = np.concatenate([_occupied(counts, edges) for counts, edges, _ in by_net.values()])
        symmetric_log(axes.xaxis, at, decades=10)
        margin = 10**0.25  # a quarter of a decade beyond the outermost bins
        axes.set_xlim(margin * at.min(initial=-LEAST), margin * at.max(initial=LEAST))
        axes.set_ylim(floor, 2 * max(counts.max(initial=0), 10 * floor))

    epochs = " and ".join(map(str, sorted({_epoch(net, prefix, when) for net in by_net})))
    panel_key = f"{key}-density-{'first' if when == FIRST else 'last'}"
    return panel(
        panel_key, f"{name}Density, epoch {epochs}", draw, x="eigenvalue λ", y="eigenvalues per bin", log_y=True
    )


def _occupied(counts: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Edges of the bins that are drawn."""
    drawn = counts >= LEAST
    return np.concatenate([edges[:-1][drawn], edges[1:][drawn]])


def _caption(evidence: Evidence, views: Views) -> str:
    says = [CAPTION]
    bins = [each for by_net in views.values() for each in by_net.values()]
    if any((counts[counts > 0] < LEAST).any() for counts, _, _ in bins):
        says.append(f"Bins with an expected number below {LEAST} are left out.")
    if lost := sum(float(np.sum(outside)) for _, _, outside in bins):
        edges = bins[0][1]
        says.append(f"Not drawn, beyond {edges[0]:g} and {edges[-1]:g}: {lost:.3g}.")
    if len(evidence.firsts()) < len(evidence.nets):
        says.append("Of several seeds the first is shown.")
    return " ".join(says)


def _data(views: Views, prefix: str) -> str:
    rows = [
        (net.label, _epoch(net, prefix, when), left, right, count)
        for when, by_net in views.items()
        for net, (counts, edges, _) in by_net.items()
        for left, right, count in zip(edges[:-1], edges[1:], counts, strict=True)
        if count
    ]
    return csv_text(("net", "epoch", "bin_from", "bin_to", "eigenvalues"), rows)
