"""The few numbers that matter, as a table for a terminal or a notebook."""

from typing import NamedTuple

from lightning_app.common.numbers import number
from lightning_app.report.page_data import gather
from lightning_app.report.sections.cushions import choose_layer, measured_layers
from lightning_app.report.sections.weights import id_mass
from lightning_app.runs import RunFolder

NOT_MEASURED = "-"


class Summary(NamedTuple):
    """A table of texts."""

    title: str
    head: list[str]
    rows: list[list[str]]


def summary(run: RunFolder) -> Summary:
    """One row a net: its last risk and errors, the weight mass in the ID entries of t, the median cushion at one layer.

    The layer is layer10 or else the middle one. "-": not measured. Without any net there is a title only, which says so.

    Raises:
        ValueError: from the run folder, if there is no log or it is not one of ours.
    """
    page = gather([run])
    if not page.nets:
        return Summary(f"{run.label}: no net has logged a number yet.", [], [])
    layers = measured_layers(page.nets)
    layer = choose_layer(layers) if layers else None
    head = ["net", "train risk", "train error", "test error", "ID mass of t", f"cushion {layer or ''}".strip()]
    rows = []
    for net in page.nets:
        names = ("train/risk", "train/error", "test/error", id_mass(net), f"cushion/{layer}/median")
        finals = [net.final(name) for name in names]
        rows.append([net.label, *(NOT_MEASURED if last is None else number(last.value) for last in finals)])
    epochs = " and ".join(str(epoch) for epoch in sorted({net.epoch for net in page.nets}))
    return Summary(f"{page.runs[0].label} after epoch {epochs}", head, rows)
