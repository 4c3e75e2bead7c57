"""The few numbers that matter, as a table for a terminal or a notebook."""

from typing import NamedTuple

from lightning_app.common.numbers import epoch_text, number
from lightning_app.report.page_data import PageNet, gather
from lightning_app.report.sections.cushions import choose_layer
from lightning_app.report.sections.outcome import limits
from lightning_app.runs import RunFolder

NOT_MEASURED = "-"


class Summary(NamedTuple):
    """A table of texts."""

    title: str
    head: list[str]
    rows: list[list[str]]


def summary(run: RunFolder) -> Summary:
    """One row a net: its last risk and errors, and the median cushion at one layer; with the epoch where it is an earlier one.

    Errors are of the test data, where there are none of the validation data. The layer is layer10 or else the middle one. "-":
    not measured. Without any net there is a title only, which says so.

    Raises:
        ValueError: from the run folder, if there is no log or it is not one of ours.
    """
    page = gather([run])
    if not page.nets:
        return Summary(f"{run.label}: no net has logged a number yet.", [], [])
    layer = choose_layer(page.nets)
    columns = {
        "train risk": "train/risk",
        "train error": "train/error",
        f"{page.held_out.key} error": page.held_out.error,
        f"cushion {layer or ''}".strip(): f"cushion/{layer}/median",
    }
    head = ["net", *columns]
    rows = [[net.label, *(_last(net, name) for name in columns.values())] for net in page.nets]
    epochs = " and ".join(str(epoch) for epoch in sorted({net.epoch for net in page.nets}))
    title = " ".join(filter(None, (f"{page.runs[0].label} after epoch {epochs}.", limits(page.runs))))
    return Summary(title.removesuffix("."), head, rows)


def _last(net: PageNet, name: str) -> str:
    last = net.end(name)
    if last is None:
        return NOT_MEASURED
    return number(last.value) + (f" (epoch {epoch_text(last.epoch)})" if last.epoch != net.epoch else "")
