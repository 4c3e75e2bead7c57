"""Layer cushions: histograms over samples at one layer (the paper's Fig. 3), and the median at every layer."""

import re
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from lightning_app.common.errors import UserError
from lightning_app.plots.drawing import from_zero, median_mark, reach
from lightning_app.report.blocks import Figure, Rows, Section, csv_text
from lightning_app.report.figures import Frame, View, curve_panel, figure_of_histograms, group_legend, joined, of_each
from lightning_app.report.page_data import PageData, PageNet
from lightning_app.report.profiles import positions

DEFAULT_LAYER = "layer10"  # of the paper's Fig. 3
CONVENTIONS = {"Paper’s convention": "", "Transferred": "_transferred", "Branch": "_branch"}  # ends of keys
MEDIANS = (
    "Median of the layer cushion over samples, at the last measured epoch{}. Layers are numbered as by Yu & Tomasi (2019), "
    "from the first convolution on. Each panel has its own logarithmic scale."
)
FAMILY = "cushion"
BINS = 40
WIDE = 8.0  # largest over smallest cushion from which bins are logarithmic
TITLE = "Layer cushions"
WHAT = (
    "Layer cushion μ = ‖A x‖ / (‖A‖ ‖x‖) of a layer with weights A, one number without unit for each sample x: how much "
    "of its input the layer passes on, for the size of its weights. The larger it is, the less noise on the weights "
    "changes the output. For a residual layer r, where T(r) is r plus the identity, there are three conventions. Paper’s "
    "convention (Yu & Tomasi, 2019): the identity counts in the numerator, not in the norm, ‖T(r) x‖ / (‖r‖ ‖x‖). "
    "Transferred: in both, ‖T(r) x‖ / (‖T(r)‖ ‖x‖). Branch: in neither, ‖r x‖ / (‖r‖ ‖x‖). For a plain layer the three "
    "agree. ‖A‖ is the Frobenius norm of the kernel; samples with x = 0 are left out."
)

Samples = dict[PageNet, dict[float, np.ndarray]]  # cushions per sample (n,) by epoch, ascending


def section(page: PageData) -> Section:
    """Histograms of one layer and medians of all."""
    layer = choose_layer(page.nets, page.layer)
    if layer is None:
        return Section("cushions", TITLE, notices=["Layer cushions were not measured in this run."], short="Cushions")
    histograms = _histograms(page, layer)
    missing = [] if histograms else [f"No cushions per sample were saved at {layer}."]
    return Section("cushions", TITLE, WHAT, [*histograms, *_medians(page)], missing, (FAMILY,), "Cushions")


def choose_layer(nets: Sequence[PageNet], wanted: str | None = None) -> str | None:
    """The requested layer, else layer10, else the middle one of those whose cushion was logged; None without any.

    UserError: if the requested layer was not measured, naming those that were.
    """
    layers = _measured_layers(nets)
    if not layers:
        return None
    if wanted is None:
        return DEFAULT_LAYER if DEFAULT_LAYER in layers else layers[len(layers) // 2]
    if wanted not in layers:
        raise UserError(f"expected --layer to be one of {', '.join(layers)}, got {wanted}.")
    return wanted


def _measured_layers(nets: Sequence[PageNet]) -> list[str]:
    """Layers whose cushion was logged for any of the nets, by number."""
    found = (re.fullmatch(r"cushion/([^/]+)/[^/]+", name) for net in nets for name in net.names)
    return sorted({match[1] for match in found if match}, key=lambda layer: (_number(layer), layer))


def _number(layer: str) -> int:
    digits = re.search(r"\d+", layer)
    return int(digits[0]) if digits else 0


def _histograms(page: PageData, layer: str) -> list[Figure]:
    """A panel a convention, of each group the first net that has arrays, at their last epoch; nothing if there are none."""
    saved = page.saved(FAMILY, [_array(layer, end) for end in CONVENTIONS.values()])
    shown: dict[str, Samples] = {}  # by key of a view
    views = []
    for title, end in CONVENTIONS.items():
        samples, key = _samples(saved, _array(layer, end)), f"cushion-histogram-samples{end}"
        if of := {net: samples[net] for net in page.firsts(samples.__contains__)}:
            shown[key] = of
            views.append(_view(key, f"{title}, {layer}", (layer, f"samples{end}"), samples, of))

    def adjust(axes: Axes, view: View) -> None:
        for net, epochs in shown[view.key].items():
            median_mark(axes, float(np.median(_finite([*epochs.values()][-1]))), net.style)
        reach(axes, [each.y.max() for each in view.all])
        from_zero(axes)

    caption, columns = _caption(layer, [*shown.values()]) if shown else "", ("layer", "samples", "count")
    draw = partial(figure_of_histograms, x="cushion μ", y="samples per bin", adjust=adjust, log_x=_logarithmic)
    return draw(page, "cushion-histograms", caption, views, columns)


def _array(layer: str, end: str) -> str:
    return f"cushion/{layer}/samples{end}"


def _samples(saved: Mapping[PageNet, Mapping[float, Mapping[str, np.ndarray]]], key: str) -> Samples:
    """Cushions (n,) by epoch, of nets with a finite one at the last epoch with arrays."""
    found = {}
    for net, epochs in saved.items():
        each = {
            epoch: np.asarray(arrays[key], dtype=float).ravel() for epoch, arrays in epochs.items() if key in arrays
        }
        each = {epoch: values for epoch, values in each.items() if np.isfinite(values).any()}
        if each and [*each][-1] == net.run.array_epochs(FAMILY)[-1]:
            found[net] = each
    return found


def _finite(samples: np.ndarray) -> np.ndarray:
    return samples[np.isfinite(samples)]


def _view(key: str, title: str, facts: tuple[str, ...], samples: Samples, shown: Samples) -> View:
    """Over bins that all nets and epochs share, logarithmic when cushions span more than a factor of `WIDE`; rounding of the
    outermost edges loses no sample."""
    every = np.concatenate([_finite(values) for epochs in samples.values() for values in epochs.values()])
    low, high = every.min(), every.max()
    edges = np.geomspace(low, high, BINS + 1) if _wide(low, high) else np.histogram_bin_edges([low, high], BINS)

    def binned(values: np.ndarray) -> np.ndarray:
        return np.histogram(_finite(values).clip(edges[0], edges[-1]), edges)[0]

    frames = [Frame(net, epoch, edges, binned(each)) for net, its in samples.items() for epoch, each in its.items()]
    last = {frame.net: frame for frame in frames}
    return View(key, title, facts, [last[net] for net in shown], frames)


def _wide(low: float, high: float) -> bool:
    return low > 0 and high / low > WIDE


def _logarithmic(view: View) -> bool:
    edges = view.of[0].x
    return _wide(edges[0], edges[-1])


def _caption(layer: str, found: Sequence[Samples]) -> str:
    every = [[*epochs.items()][-1] for samples in found for epochs in samples.values()]
    epochs, counts = joined(epoch for epoch, _ in every), joined(len(values) for _, values in every)
    caption = (
        f"Cushion per sample at {layer} after epoch {epochs}, {counts} samples per net, as in Fig. 3 of Yu & Tomasi (2019). "
        f"All nets and epochs share {BINS} bins, which are logarithmic where cushions span more than a factor of "
        f"{WIDE:.0f}. The marker on the axis is the median of the cushions drawn."
    )
    last = [[*epochs.values()][-1] for epochs in found[0].values()]
    lost = sum(len(values) - len(_finite(values)) for values in last)
    return caption + f" Not drawn, because x is zero or the cushion infinite: {lost}." * bool(lost)


def _medians(page: PageData) -> list[Figure]:
    """Median cushion of every layer, one panel a convention, by the layers' own numbers or else their order."""
    layers = _measured_layers(page.nets)
    places = dict(zip(layers, positions(layers), strict=True))
    panels, rows = [], []
    for title, end in CONVENTIONS.items():
        field = f"median{end}"
        names = {layer: f"cushion/{layer}/{field}" for layer in layers}
        found = {net: {layer: last for layer in layers if (last := net.final(names[layer]))} for net in page.nets}
        if any(found.values()):
            values = {net: {places[layer]: last.value for layer, last in of.items()} for net, of in found.items()}
            lines = {net: pd.Series(line, dtype=float) for net, line in values.items()}
            its = Rows({"field": [field]}, x="layer", places=places, measures=[f"cushion/*/{field}"])
            ever = pd.concat([net.series(name) for net in page.nets for name in names.values()])
            draw = partial(curve_panel, page, x="layer", y="median cushion μ", log_y=True, every=True, rows=its)
            panels.append(draw(f"cushion-{field}", title, lines.__getitem__, before=partial(reach, values=ever)))
            found_rows = ((net.label, layer, last) for net, of in found.items() for layer, last in of.items())
            rows += [(label, layer, field, last.epoch, last.value) for label, layer, last in found_rows]
    data = csv_text(("net", "layer", "field", "epoch", "value"), rows)
    caption = MEDIANS.format(of_each(epoch for *_, epoch, _ in rows))
    return [Figure("cushion-medians", caption, panels, group_legend(page), data)] if panels else []
