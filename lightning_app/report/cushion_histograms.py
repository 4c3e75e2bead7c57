"""Cushions of single samples at one layer, after training (the paper's Fig. 3), in each reading."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from lightning_app.plots.drawing import from_zero, histogram, median_mark
from lightning_app.report.blocks import Figure, Panel, csv_text
from lightning_app.report.evidence import Evidence, Net
from lightning_app.report.panels import group_legend, panel

__all__ = ["figure"]

FAMILY = "cushion"
SAMPLES = {
    "Paper’s reading": "samples",
    "Transferred": "samples_transferred",
    "Branch": "samples_branch",
}
BINS = 40
WIDE = 8.0  # largest over smallest cushion from which bins are logarithmic

View = dict[Net, np.ndarray]  # cushions per sample (n,), at least one of them finite


def figure(evidence: Evidence, layer: str) -> Figure | None:
    """One panel a reading, the first net of each group, at the last epoch that has arrays; None if there are none."""
    views = {title: _view(evidence, layer, key) for title, key in SAMPLES.items()}
    views = {title: view for title, view in views.items() if view}
    if not views:
        return None
    edges = {title: _edges([_finite(samples) for samples in view.values()]) for title, view in views.items()}
    panels = [_panel(layer, title, view, edges[title]) for title, view in views.items()]
    legend = group_legend(evidence, first=True)
    return Figure("cushion-histograms", _caption(layer, views, evidence), panels, legend, _data(layer, views, edges))


def _view(evidence: Evidence, layer: str, key: str) -> View:
    found = {net: _samples(net, layer, key) for net in evidence.firsts()}
    return {net: samples for net, samples in found.items() if len(_finite(samples))}


def _samples(net: Net, layer: str, key: str) -> np.ndarray:
    """Cushions of the last epoch with arrays; empty if there are none."""
    epochs = net.run.array_epochs(FAMILY)
    saved = net.arrays(FAMILY, epochs[-1]).get(f"cushion/{layer}/{key}") if epochs else None
    return np.empty(0) if saved is None else np.asarray(saved, dtype=float).ravel()


def _finite(samples: np.ndarray) -> np.ndarray:
    return samples[np.isfinite(samples)]


def _edges(samples: Sequence[np.ndarray]) -> np.ndarray:
    """Bins that all nets share, (BINS + 1,); logarithmic when cushions span more than a factor of `WIDE`."""
    low, high = min(part.min() for part in samples), max(part.max() for part in samples)
    return np.geomspace(low, high, BINS + 1) if _wide(low, high) else np.histogram_bin_edges([low, high], BINS)


def _wide(low: float, high: float) -> bool:
    return low > 0 and high / low > WIDE


def _count(samples: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Finite samples in each bin; rounding of the outermost edges loses none."""
    return np.histogram(_finite(samples).clip(edges[0], edges[-1]), edges)[0]


def _panel(layer: str, title: str, view: View, edges: np.ndarray) -> Panel:
    def draw(axes: Axes) -> None:
        for net, samples in view.items():
            histogram(axes, _count(samples, edges), edges, net.style)
            median_mark(axes, float(np.median(_finite(samples))), net.style)
        from_zero(axes)

    log = _wide(edges[0], edges[-1])
    key = f"cushion-histogram-{SAMPLES[title]}"
    return panel(key, f"{title}, {layer}", draw, x="cushion μ", y="samples per bin", log_x=log)


def _epoch(net: Net) -> int:
    return net.run.array_epochs(FAMILY)[-1]


def _caption(layer: str, views: dict[str, View], evidence: Evidence) -> str:
    nets = {net: samples for view in views.values() for net, samples in view.items()}
    epochs = " and ".join(map(str, sorted({_epoch(net) for net in nets})))
    counts = " and ".join(map(str, sorted({len(samples) for samples in nets.values()})))
    says = f"Cushion per sample at {layer} after epoch {epochs}, {counts} samples a net, as in the paper's Fig. 3. "
    says += f"All nets share {BINS} bins, logarithmic ones where cushions span more than a factor of {WIDE:.0f}. "
    says += "The marker on the axis is the median of what is drawn."
    if lost := sum(len(samples) - len(_finite(samples)) for samples in next(iter(views.values())).values()):
        says += f" Not drawn, because x is zero or the cushion infinite: {lost}."
    return says + (" Of several seeds the first is shown." if len(evidence.firsts()) < len(evidence.nets) else "")


def _data(layer: str, views: dict[str, View], edges: dict[str, np.ndarray]) -> str:
    rows = [
        (net.label, layer, SAMPLES[title], _epoch(net), left, right, count)
        for title, view in views.items()
        for net, samples in view.items()
        for left, right, count in zip(edges[title][:-1], edges[title][1:], _count(samples, edges[title]), strict=True)
        if count
    ]
    return csv_text(("net", "layer", "samples", "epoch", "bin_from", "bin_to", "count"), rows)
