"""Layer cushions: histograms over samples at one layer (the paper's Fig. 3), and the median at every layer."""

import re
from collections.abc import Sequence
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from lightning_app.common.errors import UserError
from lightning_app.plots.drawing import from_zero, median_mark
from lightning_app.report.blocks import Figure, Rows, Section, csv_text
from lightning_app.report.figures import Histogram, View, curve_panel, figure_of_histograms, group_legend, joined
from lightning_app.report.page_data import Net, PageData

__all__ = ["choose_layer", "measured_layers", "section"]

DEFAULT_LAYER = "layer10"  # of the paper's Fig. 3
CONVENTIONS = {"Paper’s convention": "", "Transferred": "_transferred", "Branch": "_branch"}  # ends of keys
MEDIANS = (
    "Median over samples of the layer cushion, at the last measured epoch. Layers are numbered as in the paper, from the "
    "first convolution on. Logarithmic scale; each convention has its own."
)
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

Samples = dict[Net, tuple[np.ndarray, float]]  # cushions per sample (n,), and their epoch


def section(page: PageData) -> Section:
    """Histograms of one layer and medians of all."""
    layers = measured_layers(page.nets)
    if not layers:
        return Section("cushions", TITLE, notices=["Layer cushions were not measured in this run."], short="Cushions")
    layer = choose_layer(layers, page.layer)
    histograms = _histograms(page, layer)
    missing = [] if histograms else [f"No cushions per sample were saved at {layer}."]
    return Section("cushions", TITLE, WHAT, [*histograms, *_medians(page, layers)], missing, (FAMILY,), "Cushions")


def choose_layer(layers: Sequence[str], wanted: str | None = None) -> str:
    """The requested layer, else layer10, else the middle one.

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
    return sorted({match[1] for match in found if match}, key=lambda layer: (_number(layer), layer))


def _number(layer: str) -> int:
    digits = re.search(r"\d+", layer)
    return int(digits[0]) if digits else 0


def _histograms(page: PageData, layer: str) -> list[Figure]:
    """A panel a convention, the first net of each group, at the last epoch that has arrays; nothing if there are none."""
    found = {title: _samples(page, layer, f"samples{end}") for title, end in CONVENTIONS.items()}
    found = {f"{title}, {layer}": samples for title, samples in found.items() if samples}
    keys = {f"{title}, {layer}": f"samples{end}" for title, end in CONVENTIONS.items()}
    views = [
        View(f"cushion-histogram-{keys[title]}", title, (layer, keys[title]), _binned(samples))
        for title, samples in found.items()
    ]

    def adjust(axes: Axes, view: View) -> None:
        for net in view.of:
            values, _ = found[view.title][net]
            median_mark(axes, float(np.median(_finite(values))), net.style)
        from_zero(axes)

    caption, columns = _caption(layer, [*found.values()]) if found else "", ("layer", "samples", "count")
    draw = partial(figure_of_histograms, x="cushion μ", y="samples per bin", adjust=adjust, log_x=_logarithmic)
    return draw(page, "cushion-histograms", caption, views, columns)


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


def _caption(layer: str, found: Sequence[Samples]) -> str:
    every = [each for samples in found for each in samples.values()]
    epochs, counts = joined(epoch for _, epoch in every), joined(len(values) for values, _ in every)
    caption = (
        f"Cushion per sample at {layer} after epoch {epochs}, {counts} samples a net, as in the paper's Fig. 3. "
        f"All nets share {BINS} bins, logarithmic ones where cushions span more than a factor of {WIDE:.0f}. "
        "The marker on the axis is the median of what is drawn."
    )
    lost = sum(len(values) - len(_finite(values)) for values, _ in found[0].values())
    return caption + f" Not drawn, because x is zero or the cushion infinite: {lost}." * bool(lost)


def _medians(page: PageData, layers: Sequence[str]) -> list[Figure]:
    """Median cushion of every layer, one panel a convention, by the layers' own numbers or else their order."""
    numbers = [_number(layer) for layer in layers]
    places = numbers if len(set(numbers)) == len(numbers) else range(1, len(layers) + 1)

    def profile(net: Net, field: str) -> pd.Series:
        finals = {place: net.final(f"cushion/{layer}/{field}") for place, layer in zip(places, layers, strict=True)}
        return pd.Series({place: last.value for place, last in finals.items() if last}, dtype=float)

    panels, rows = [], []
    for title, end in CONVENTIONS.items():
        field = f"median{end}"
        found = [(net, layer, net.final(f"cushion/{layer}/{field}")) for net in page.nets for layer in layers]
        if drawn := [(net.label, layer, field, last.epoch, last.value) for net, layer, last in found if last]:
            its = Rows({"field": [field]}, x="layer", places=dict(zip(layers, places, strict=True)))
            draw = partial(curve_panel, page, x="layer", y="median cushion μ", log_y=True, every=True, rows=its)
            panels.append(draw(f"cushion-{field}", title, partial(profile, field=field)))
            rows += drawn
    data = csv_text(("net", "layer", "field", "epoch", "value"), rows)
    return [Figure("cushion-medians", MEDIANS, panels, group_legend(page), data)] if panels else []
