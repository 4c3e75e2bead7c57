"""How weights are distributed, before training and after (the paper's Fig. 7): all of them, and the ID entries alone."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from lightning_app.plots.drawing import histogram
from lightning_app.report.blocks import Figure, Panel, csv_text
from lightning_app.report.evidence import Evidence, Net
from lightning_app.report.panels import group_legend, panel

__all__ = ["figure"]

FAMILY = "weight_mass"
PLAIN_FORMS = ("weight_mass_transferred", "weight_mass")  # t, or w where no t was saved
ALL, ID = "histogram", "histogram_id"
FIRST, LAST = 0, -1  # of the epochs that have arrays
LARGE = 0.25  # the paper's threshold of a large weight

Bins = tuple[np.ndarray, np.ndarray]  # counts (n,), edges (n + 1,)
Views = dict[tuple[str, int], dict[Net, Bins]]  # (ALL or ID, FIRST or LAST) -> what each net has


def figure(evidence: Evidence) -> Figure | None:
    """The first net of each group in plain form, t; all weights above, ID entries below. None if nothing was saved."""
    views = _views(evidence.firsts())
    if not views:
        return None
    clip, span = _clip(views), _span(views)
    panels = [_panel(part, when, by_net, clip, span) for (part, when), by_net in views.items()]
    legend = group_legend(evidence, first=True)
    return Figure("weight-histograms", _caption(evidence, views, clip), panels, legend, _data(views), columns=2)


def _views(nets: Sequence[Net]) -> Views:
    views = {
        (part, when): {net: bins for net in nets if (bins := _bins(net, when, part))}
        for part in (ALL, ID)
        for when in (FIRST, LAST)
    }
    return {key: by_net for key, by_net in views.items() if by_net}


def _bins(net: Net, when: int, part: str) -> Bins | None:
    """Counts and edges; None if not saved, or not finite, or if the last epoch is the first."""
    epochs = net.run.array_epochs(FAMILY)
    if not epochs or (when == LAST and len(epochs) == 1):
        return None
    arrays = net.arrays(FAMILY, epochs[when])
    for prefix in PLAIN_FORMS:
        counts, edges = (arrays.get(f"{prefix}/{part}/{name}") for name in ("counts", "edges"))
        if counts is not None and edges is not None and np.isfinite(edges).all():
            return counts, edges
    return None


def _of(views: Views, part: str) -> list[Bins]:
    return [bins for (this, _), by_net in views.items() if this == part for bins in by_net.values()]


def _clip(views: Views) -> float | None:
    """Height to show of all weights: half more than the highest bin of large weights or of ID entries.

    So the peak at 0, a hundred times higher, hides neither. None if that cuts nothing off, or there are none of them.
    """
    large = [counts[np.abs(edges[1:] + edges[:-1]) / 2 >= LARGE].max(initial=0) for counts, edges in _of(views, ALL)]
    clip = 1.5 * max([*large, _peak(_of(views, ID))])
    return float(clip) if 0 < clip < _peak(_of(views, ALL)) else None


def _peak(histograms: Sequence[Bins]) -> float:
    return max((float(counts.max(initial=0)) for counts, _ in histograms), default=0.0)


def _span(views: Views) -> tuple[float, float]:
    """From the first to the last bin that holds something, anywhere, and a little more: all panels show this range."""
    histograms = [bins for by_net in views.values() for bins in by_net.values()]
    low = min((edges[:-1][counts > 0].min(initial=np.inf) for counts, edges in histograms), default=np.inf)
    high = max((edges[1:][counts > 0].max(initial=-np.inf) for counts, edges in histograms), default=-np.inf)
    margin = 0.04 * (high - low)
    return (float(low - margin), float(high + margin)) if low < high else (-1.0, 1.0)


def _epoch(net: Net, when: int) -> int:
    return net.run.array_epochs(FAMILY)[when]


def _panel(part: str, when: int, by_net: dict[Net, Bins], clip: float | None, span: tuple[float, float]) -> Panel:
    def draw(axes: Axes) -> None:
        for net, (counts, edges) in by_net.items():
            histogram(axes, counts, edges, net.style)
        axes.set(xlim=span, ylim=(0, clip if part == ALL else None))

    epochs = sorted({_epoch(net, when) for net in by_net})
    title = f"{'All weights' if part == ALL else 'ID entries'}, epoch {' and '.join(map(str, epochs))}"
    return panel(f"{part}-{'first' if when == FIRST else 'last'}", title, draw, x="weight t", y="weights per bin")


def _caption(evidence: Evidence, views: Views, clip: float | None) -> str:
    says = ["Weights of the equivalent plain nets, t, before and after training, as in the paper's Fig. 7."]
    if clip is not None:
        says.append(
            f"The count of all weights is cut at {clip:.0f}; the highest bin holds {_peak(_of(views, ALL)):.0f}."
        )
    widths = sorted({f"{np.diff(edges).max():.3g}" for by_net in views.values() for _, edges in by_net.values()})
    says.append(f"Bin width: {' and '.join(widths)}.")
    if len(evidence.firsts()) < len(evidence.nets):
        says.append("Of several seeds the first is shown.")
    return " ".join(says)


def _data(views: Views) -> str:
    rows = [
        (net.label, part, _epoch(net, when), left, right, count)
        for (part, when), by_net in views.items()
        for net, (counts, edges) in by_net.items()
        for left, right, count in zip(edges[:-1], edges[1:], counts, strict=True)
        if count
    ]
    return csv_text(("net", "part", "epoch", "bin_from", "bin_to", "count"), rows)
