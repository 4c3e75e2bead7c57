"""Where in the net the curvature is: the leading eigenvector by layer, and each layer's own block of the Hessian."""

from collections.abc import Callable, Sequence

import pandas as pd
from matplotlib.axes import Axes

from lightning_app.plots.drawing import from_zero, symmetric_log, with_zero
from lightning_app.report.blocks import Figure, Panel, csv_text
from lightning_app.report.curvature_keys import last_epoch, parts
from lightning_app.report.evidence import Evidence, Net
from lightning_app.report.panels import curves, group_legend, panel

__all__ = ["figure"]

NO_LAYERS = ("id", "rest")
PANELS = {  # title, y axis, what is drawn
    "leading": ("Leading eigenvector", "share of its square", ("leading",)),
    "ends": ("λmax and λmin of each layer", "eigenvalue λ", ("top1", "bottom1")),
    "trace": ("Trace of each layer", "trace", ("trace",)),
}
LEADING = (
    "By layer, in the order of the net, at the last epoch with a spectrum. Leading eigenvector: that of the largest |λ|, over "
    "weights and biases; its square sums to 1 over all parameters."
)
BLOCKS = " λ and trace: of the diagonal block of H of one layer's parameters; errors are in the table."

Lines = dict[str, dict[Net, pd.Series]]  # quantity -> net -> values by layer, from 1


def figure(evidence: Evidence, prefix: str, key: str, name: str) -> Figure | None:
    """Profiles over layers at the last epoch; None without any."""
    lines = {what: _profiles(evidence, prefix, what) for _, _, drawn in PANELS.values() for what in drawn}
    if not any(lines.values()):
        return None
    panels = [_panel(evidence, lines, what, key, name) for what, (_, _, drawn) in PANELS.items() if lines[drawn[0]]]
    rows = [
        (net.label, what, layer, last_epoch(net, prefix), x)
        for what, by_net in lines.items()
        for net, line in by_net.items()
        for layer, x in line.items()
    ]
    data = csv_text(("net", "quantity", "layer", "epoch", "value"), rows)
    caption = name + LEADING + BLOCKS * bool(lines["trace"])
    return Figure(f"{key}-layers", caption, panels, group_legend(evidence), data)


def _profiles(evidence: Evidence, prefix: str, what: str) -> dict[Net, pd.Series]:
    pick: Callable[[Net, str, str], Sequence[float | None]] = _leading if what == "leading" else _of_blocks
    found = {net: pd.Series(pick(net, prefix, what), dtype=float) for net in evidence.nets}
    return {net: line.set_axis(range(1, 1 + len(line))) for net, line in found.items() if len(line)}


def _leading(net: Net, prefix: str, what: str) -> Sequence[float]:
    """The array of the last epoch; empty if there is none."""
    epoch = last_epoch(net, prefix)
    return () if epoch is None else net.arrays(prefix, epoch).get(f"{prefix}/{what}", ())


def _of_blocks(net: Net, prefix: str, what: str) -> Sequence[float | None]:
    epoch = last_epoch(net, prefix)
    layers = [part for part in parts([net], prefix) if part not in NO_LAYERS]
    return [net.at(f"{prefix}/{layer}/{what}", epoch) for layer in layers]


def _panel(evidence: Evidence, lines: Lines, what: str, key: str, name: str) -> Panel:
    title, y, drawn = PANELS[what]

    def draw(axes: Axes) -> None:
        for quantity in drawn:
            curves(axes, evidence.groups.values(), _of(lines[quantity]), every=True)
        if what == "leading":
            from_zero(axes)
        else:
            with_zero(axes)  # so that rounding errors of zero are drawn there
            symmetric_log(axes.yaxis, (x for quantity in drawn for line in lines[quantity].values() for x in line))

    return panel(f"{key}-layers-{what}", f"{name}{title}", draw, x="layer", y=y, whole_x=True)


def _of(by_net: dict[Net, pd.Series]) -> Callable[[Net], pd.Series]:
    return lambda net: by_net.get(net, pd.Series(dtype=float))
