"""Layer cushions: histograms over samples at one layer (the paper's Fig. 3), and the median at every layer."""

import re
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from lightning_app.common.errors import UserError
from lightning_app.plots.drawing import from_zero, median_mark
from lightning_app.report.blocks import Figure, Panel, Section, csv_text
from lightning_app.report.figures import Histogram, View, curves, figure_of_histograms, group_legend, joined
from lightning_app.report.page_data import Net, PageData
from lightning_app.report.panels import panel

__all__ = ["choose_layer", "measured_layers", "section"]

DEFAULT_LAYER = "layer10"  # of the paper's Fig. 3
MEDIANS = {
    "Paper’s convention": "median",
    "Transferred": "median_transferred",
    "Branch": "median_branch",
}
SAMPLES = {
    "Paper’s convention": "samples",
    "Transferred": "samples_transferred",
    "Branch": "samples_branch",
}
FAMILY = "cushion"
BINS = 40
WIDE = 8.0  # largest over smallest cushion from which bins are logarithmic
TITLE = "Layer cushions"
WHAT = (
    "Layer cushion μ = ‖A x‖ / (‖A‖ ‖x‖), one number a sample x, without unit: how much of its input a layer passes on, for "
    "the size of its weights. The larger, the less does noise on the weights change the output. For a residual layer the "
    "paper leaves the identity in the numerator and takes it out of the norm: ‖T(r) x‖ / (‖r‖ ‖x‖). The transferred convention "
    "keeps it in both, ‖T(r) x‖ / (‖T(r)‖ ‖x‖); the branch convention drops it from both, ‖r x‖ / (‖r‖ ‖x‖). For a plain layer "
    "the three agree. ‖A‖ is the Frobenius norm of the kernel; samples whose x is zero are left out."
)

Samples = dict[Net, tuple[np.ndarray, int]]  # cushions per sample (n,), and their epoch


def section(page: PageData) -> Section:
    """Histograms of one layer and medians of all."""
    layers = measured_layers(page.nets)
    if not layers:
        return Section("cushions", TITLE, notices=["Layer cushions were not measured in this run."])
    layer = choose_layer(layers, page.layer)
    histograms, medians = _histograms(page, layer), _medians(page, layers)
    missing = [] if histograms else [f"No cushions per sample were saved at {layer}."]
    return Section("cushions", TITLE, WHAT, [block for block in (histograms, medians) if block], missing, (FAMILY,))


def choose_layer(layers: Sequence[str], wanted: str | None = None) -> str:
    """The requested layer, else layer10, else the middle one.

    Raises:
        UserError: if the requested layer was not measured, naming those that were.
    """
    if wanted is None:
        return DEFAULT_LAYER if DEFAULT_LAYER in layers else layers[len(layers) // 2]
    if wanted not in layers:
        raise UserError(f"expected --layer to be one of {', '.join(layers)}, got {wanted}.")
    return wanted


def measured_layers(nets: Sequence[Net]) -> list[str]:
    """Layers whose cushion was logged for any of the nets, by number."""
    found = (re.fullmatch(r"cushion/([^/]+)/[^/]+", name) for net in nets for name in net.names)
    return sorted({match[1] for match in found if match}, key=_position)


def _position(layer: str) -> tuple[int, str]:
    """Sort key: layer 10 after layer 9."""
    digits = re.search(r"\d+", layer)
    return (int(digits[0]) if digits else 0, layer)


# -- samples of one layer, the paper's Fig. 3 -----------------------------------------------------------------------------


def _histograms(page: PageData, layer: str) -> Figure | None:
    """A panel a convention, the first net of each group, at the last epoch that has arrays; None if there are none."""
    found = {title: _samples(page, layer, key) for title, key in SAMPLES.items()}
    found = {title: samples for title, samples in found.items() if samples}
    if not found:
        return None
    views = [
        View(f"cushion-histogram-{SAMPLES[title]}", f"{title}, {layer}", (layer, SAMPLES[title]), _binned(samples))
        for title, samples in found.items()
    ]

    def adjust(axes: Axes, view: View) -> None:
        for net in view.of:
            values, _ = found[view.title.removesuffix(f", {layer}")][net]
            median_mark(axes, float(np.median(_finite(values))), net.style)
        from_zero(axes)

    caption, columns = _caption(layer, found), ("layer", "samples", "count")
    x, y = "cushion μ", "samples per bin"
    return figure_of_histograms(
        page, "cushion-histograms", caption, views, columns, x=x, y=y, adjust=adjust, log_x=_logarithmic
    )


def _samples(page: PageData, layer: str, key: str) -> Samples:
    """Cushions (n,) of the last epoch with arrays, and that epoch; of nets with a finite one."""
    found = {}
    for net in page.firsts():
        epochs = net.run.array_epochs(FAMILY)
        saved = net.arrays(FAMILY, epochs[-1]).get(f"cushion/{layer}/{key}") if epochs else None
        if saved is not None and np.isfinite(saved).any():
            found[net] = (np.asarray(saved, dtype=float).ravel(), epochs[-1])
    return found


def _finite(samples: np.ndarray) -> np.ndarray:
    return samples[np.isfinite(samples)]


def _binned(samples: Samples) -> dict[Net, Histogram]:
    """Over bins that all nets share, logarithmic when cushions span more than a factor of `WIDE`; rounding of the outermost
    edges loses no sample."""
    finite = {net: _finite(values) for net, (values, _) in samples.items()}
    low, high = min(each.min() for each in finite.values()), max(each.max() for each in finite.values())
    edges = np.geomspace(low, high, BINS + 1) if _wide(low, high) else np.histogram_bin_edges([low, high], BINS)
    clipped = {net: values.clip(edges[0], edges[-1]) for net, values in finite.items()}
    return {net: Histogram(np.histogram(clipped[net], edges)[0], edges, samples[net][1]) for net in samples}


def _wide(low: float, high: float) -> bool:
    return low > 0 and high / low > WIDE


def _logarithmic(view: View) -> bool:
    edges = next(iter(view.of.values())).edges
    return _wide(edges[0], edges[-1])


def _caption(layer: str, found: dict[str, Samples]) -> str:
    every = [each for samples in found.values() for each in samples.values()]
    epochs, counts = joined(epoch for _, epoch in every), joined(len(values) for values, _ in every)
    caption = (
        f"Cushion per sample at {layer} after epoch {epochs}, {counts} samples a net, as in the paper's Fig. 3. "
        f"All nets share {BINS} bins, logarithmic ones where cushions span more than a factor of {WIDE:.0f}. "
        "The marker on the axis is the median of what is drawn."
    )
    lost = sum(len(values) - len(_finite(values)) for values, _ in next(iter(found.values())).values())
    return caption + f" Not drawn, because x is zero or the cushion infinite: {lost}." * bool(lost)


# -- medians of every layer -----------------------------------------------------------------------------------------------


def _medians(page: PageData, layers: Sequence[str]) -> Figure | None:
    """Median cushion of every layer, one panel a convention."""
    present = {
        title: field
        for title, field in MEDIANS.items()
        if any(f"cushion/{layer}/{field}" in net.names for layer in layers for net in page.nets)
    }
    if not present:
        return None
    rows = [
        (net.label, layer, field, last.epoch, last.value)
        for field in present.values()
        for net in page.nets
        for layer in layers
        if (last := net.final(f"cushion/{layer}/{field}"))
    ]
    caption = (
        "Median over samples of the layer cushion, at the last measured epoch. Layers are numbered as in the paper, from the "
        "first convolution on. "
        "Logarithmic scale; each convention has its own."
    )
    panels = [_median_panel(page, layers, title, field) for title, field in present.items()]
    data = csv_text(("net", "layer", "field", "epoch", "value"), rows)
    return Figure("cushion-medians", caption, panels, group_legend(page), data)


def _median_panel(page: PageData, layers: Sequence[str], title: str, field: str) -> Panel:
    def profile(net: Net) -> pd.Series:
        finals = {_number(layer, layers): net.final(f"cushion/{layer}/{field}") for layer in layers}
        return pd.Series({number: last.value for number, last in finals.items() if last}, dtype=float)

    def draw(axes: Axes) -> None:
        curves(axes, page.groups.values(), profile, every=True)

    return panel(f"cushion-{field}", title, draw, x="layer", y="median cushion μ", log_y=True, whole_x=True)


def _number(layer: str, layers: Sequence[str]) -> int:
    """The layer's own number when all layers have one of their own, else its position in the list."""
    numbers = [_position(name)[0] for name in layers]
    return _position(layer)[0] if len(set(numbers)) == len(numbers) else list(layers).index(layer) + 1
