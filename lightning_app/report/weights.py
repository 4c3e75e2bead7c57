"""Where the weights are: the paper's Table 3, before training and after, for w and for t = T(w)."""

from collections.abc import Sequence

from matplotlib.axes import Axes

from lightning_app.report import weight_histograms
from lightning_app.report.blocks import Cell, Figure, Panel, Section, Table, cell, csv_text
from lightning_app.report.evidence import Evidence, Net
from lightning_app.report.panels import curves, group_legend, panel

__all__ = ["TRANSFERRED", "WEIGHTS", "id_mass", "section"]

WEIGHTS, TRANSFERRED = "weight_mass", "weight_mass_transferred"
OBJECTS = {WEIGHTS: "w", TRANSFERRED: "t"}
FIELDS = {
    "mean": "Mean",
    "std": "Standard deviation",
    "all": "Mass of all entries",
    "large": "Mass of entries of magnitude ≥ 0.25",
    "id_entries": "Mass of ID entries",
    "id_over_large": "ID mass over mass of magnitude ≥ 0.25",
    "above_07": "Entries of magnitude > 0.7",
    "above_07_signed": "Entries > 0.7",
    "norm": "Euclidean norm",
    "count": "Entries",
    "id_count": "ID entries",
}
CURVES = ("mean", "std", "all", "large", "id_entries")

TITLE = "Where the weights are"
WHAT = (
    "w: the trained convolution weights, without biases and the fully connected layer. t = T(w): the weights of the plain net "
    "that computes the same function, with 1 added at the ID entries of a residual net; t is w itself where the net is plain. "
    "Mass: sum of magnitudes (L1 norm). ID entries: the taps (c, c, centre) through which an identity connection would pass. "
    "The tables hold the first and the last measured epoch."
)


def section(evidence: Evidence) -> Section:
    measured = [net for net in evidence.nets if _measured(net)]
    if not measured:
        return Section("weights", TITLE, notices=["Weight mass was not measured in this run."])
    tables = [_table(net) for net in measured]
    figures = [_curves(evidence, prefix) for prefix in OBJECTS if any(prefix in _measured(net) for net in measured)]
    histograms = weight_histograms.figure(evidence)
    if histograms is None:
        return Section("weights", TITLE, WHAT, [*tables, *figures], notices=["No histograms of weights were saved."])
    return Section("weights", TITLE, WHAT, [*tables, *figures, histograms])


def id_mass(net: Net) -> str:
    """The name under which the ID mass of t is logged; of w where no t is, as for a plain net on its own."""
    name = f"{TRANSFERRED}/id_entries"
    return name if name in net.names else f"{WEIGHTS}/id_entries"


# -- Table 3 --------------------------------------------------------------------------------------------------------------


def _measured(net: Net) -> list[str]:
    """Which of w and t have numbers."""
    return [prefix for prefix in OBJECTS if any(f"{prefix}/{field}" in net.names for field in FIELDS)]


def _table(net: Net) -> Table:
    shown = [WEIGHTS] if _same(net) else _measured(net)
    columns = [(prefix, epoch) for prefix in shown for epoch in _ends(_epochs(net, prefix))]
    fields = [field for field in FIELDS if any(f"{prefix}/{field}" in net.names for prefix, _ in columns)]
    rows = [
        [Cell(FIELDS[field]), *(cell(net.at(f"{prefix}/{field}", epoch)) for prefix, epoch in columns)]
        for field in fields
    ]
    head = [f"{'w = t' if _same(net) else OBJECTS[prefix]}, epoch {epoch}" for prefix, epoch in columns]
    return Table("", ["", *head], rows, title=net.label)


def _same(net: Net) -> bool:
    """Whether t is w at every epoch, as for a plain net: one pair of columns then says all."""
    return len(_measured(net)) == 2 and all(
        net.series(f"{WEIGHTS}/{field}").equals(net.series(f"{TRANSFERRED}/{field}")) for field in FIELDS
    )


def _epochs(net: Net, prefix: str) -> list[int]:
    return sorted({epoch for field in FIELDS for epoch in net.series(f"{prefix}/{field}").index})


def _ends(epochs: Sequence[int]) -> list[int]:
    """The first and the last; one if they are the same."""
    return sorted({epochs[0], epochs[-1]}) if epochs else []


# -- over epochs ----------------------------------------------------------------------------------------------------------


def _curves(evidence: Evidence, prefix: str) -> Figure:
    fields = [field for field in CURVES if any(f"{prefix}/{field}" in net.names for net in evidence.nets)]
    caption = f"Statistics of {OBJECTS[prefix]} over training; weights have no unit. Linear scales that need not start at zero."
    panels = [_curve_panel(evidence, prefix, field) for field in fields]
    data = csv_text(("net", "name", "epoch", "value"), evidence.rows(f"{prefix}/{field}" for field in fields))
    return Figure(f"curves-{prefix}", caption, panels, group_legend(evidence), data)


def _curve_panel(evidence: Evidence, prefix: str, field: str) -> Panel:
    name = f"{prefix}/{field}"

    def draw(axes: Axes) -> None:
        curves(axes, evidence.groups.values(), lambda net: net.series(name))

    symbol = OBJECTS[prefix]
    y = f"sum of |{symbol}|" if field in ("all", "large", "id_entries") else symbol
    return panel(f"curve-{prefix}-{field}", f"{FIELDS[field]}, {symbol}", draw, x="epoch", y=y, whole_x=True)
