"""Layer cushions: histograms over samples at one layer (the paper's Fig. 3), and the median at every layer."""

import re
from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes

from lightning_app.common.errors import UserError
from lightning_app.report import cushion_histograms
from lightning_app.report.blocks import Figure, Panel, Section, csv_text
from lightning_app.report.evidence import Evidence, Net
from lightning_app.report.panels import curves, group_legend, panel

__all__ = ["choose_layer", "measured_layers", "section"]

DEFAULT_LAYER = "layer10"  # of the paper's Fig. 3
MEDIANS = {
    "Paper’s reading": "median",
    "Transferred": "median_transferred",
    "Branch": "median_branch",
}
TITLE = "Layer cushions"
WHAT = (
    "Layer cushion μ = ‖A x‖ / (‖A‖ ‖x‖), one number a sample x, without unit: how much of its input a layer passes on, for "
    "the size of its weights. The larger, the less does noise on the weights change the output. For a residual layer the "
    "paper leaves the identity in the numerator and takes it out of the norm: ‖T(r) x‖ / (‖r‖ ‖x‖). The transferred reading "
    "keeps it in both, ‖T(r) x‖ / (‖T(r)‖ ‖x‖); the branch reading drops it from both, ‖r x‖ / (‖r‖ ‖x‖). For a plain layer "
    "the three agree. ‖A‖ is the Frobenius norm of the kernel; samples whose x is zero are left out."
)


def section(evidence: Evidence) -> Section:
    layers = measured_layers(evidence.nets)
    if not layers:
        return Section("cushions", TITLE, notices=["Layer cushions were not measured in this run."])
    layer = choose_layer(layers, evidence.layer)
    histograms, medians = cushion_histograms.figure(evidence, layer), _medians(evidence, layers)
    missing = [] if histograms else [f"No cushions per sample were saved at {layer}."]
    return Section("cushions", TITLE, WHAT, [block for block in (histograms, medians) if block], missing)


def choose_layer(layers: Sequence[str], wanted: str | None = None) -> str:
    """The layer asked for, else layer10, else the middle one.

    Raises:
        UserError: if the layer asked for was not measured, naming those that were.
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


def _medians(evidence: Evidence, layers: Sequence[str]) -> Figure | None:
    """Median cushion of every layer, one panel a reading."""
    present = {
        title: field
        for title, field in MEDIANS.items()
        if any(f"cushion/{layer}/{field}" in net.names for layer in layers for net in evidence.nets)
    }
    if not present:
        return None
    rows = [
        (net.label, layer, field, last.epoch, last.value)
        for field in present.values()
        for net in evidence.nets
        for layer in layers
        if (last := net.final(f"cushion/{layer}/{field}"))
    ]
    caption = (
        "Median over samples of the layer cushion, at the last measured epoch. Layers are numbered as in the paper, from the "
        "first convolution on. "
        "Logarithmic scale; each reading has its own."
    )
    panels = [_median_panel(evidence, layers, title, field) for title, field in present.items()]
    data = csv_text(("net", "layer", "field", "epoch", "value"), rows)
    return Figure("cushion-medians", caption, panels, group_legend(evidence), data)


def _median_panel(evidence: Evidence, layers: Sequence[str], title: str, field: str) -> Panel:
    def profile(net: Net) -> pd.Series:
        finals = {_place(layer, layers): net.final(f"cushion/{layer}/{field}") for layer in layers}
        return pd.Series({place: last.value for place, last in finals.items() if last}, dtype=float)

    def draw(axes: Axes) -> None:
        curves(axes, evidence.groups.values(), profile, every=True)

    return panel(f"cushion-{field}", title, draw, x="layer", y="median cushion μ", log_y=True, whole_x=True)


def _place(layer: str, layers: Sequence[str]) -> int:
    """The layer's own number when all layers have one of their own, else its place in the list."""
    numbers = [_position(name)[0] for name in layers]
    return _position(layer)[0] if len(set(numbers)) == len(numbers) else list(layers).index(layer) + 1
