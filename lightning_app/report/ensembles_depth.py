"""Effective depth: how long the paths are along which a residual net's outputs, and its gradient, come about."""

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes

from lightning_app.plots.drawing import from_zero, with_zero
from lightning_app.plots.style import INK
from lightning_app.report.blocks import Cell, Figure, Panel, Table, cell, csv_text, mean_cell, seeds_csv
from lightning_app.report.ensembles_layers import stages
from lightning_app.report.evidence import Evidence, Net
from lightning_app.report.panels import curves, group_legend, panel

__all__ = ["blocks"]

FAMILY = "depth"
FIELDS = {
    "effective": "d_eff",
    "coherent": "d_coh",
    "gradient": "d_grad",
    "effective_input": "d_eff, from the input",
    "longest": "p",
    "relative": "d_eff / p",
    "bias_share": "bias share",
}
CURVES = ("effective", "coherent", "gradient")
LENGTHS = {"outputs": "E|f_r|²", "gradients": "|g_r|²"}  # array -> what is in it, by length
WHEN = {0: "first", 0.5: "middle", 1: "last"}

TABLE = (
    "On probe samples in evaluation mode, at the first and the last epoch measured. Lengths count weight layers; the readout is "
    "not counted. f_r: what all paths of length r together add to the outputs, with the ReLU gates of the sample, centred over "
    "classes. d_eff = Σ r E|f_r|² / Σ E|f_r|². d_coh = Σ r E⟨f_r, f⟩ / E|f|² with f = Σ f_r: parts that cancel count negative, "
    "and it may lie below 0 or above p. d_grad = Σ r |g_r|² / Σ |g_r|², with the gradient g_r along paths of length r. From the "
    "input: without the paths that start at a bias or at the shift of a normalisation; bias share: what part of Σ E|f_r|² is "
    "lost without them, negative where the two cancel. p: the most layers of a path."
)
OVER_EPOCHS = (
    "Each depth over p, the most layers of a path. Line: one half. By the paper’s formula most weight is on paths shorter than "
    "that at initialisation, and moves to longer ones as the scales grow."
)
BY_LENGTH = (
    "How E|f_r|² of the outputs and |g_r|² of the gradient are distributed over the length r of paths: each divided by its sum. "
    "Paths that start at a constant are included."
)


def blocks(evidence: Evidence) -> list[Table | Figure]:
    """None of them without an effective depth."""
    measured = evidence.having(f"{FAMILY}/effective")
    if not measured.nets:
        return []
    by_length = _by_length(measured)
    return [_table(measured, _silent(evidence, measured)), _over_epochs(measured), *([by_length] if by_length else [])]


def _silent(evidence: Evidence, measured: Evidence) -> str:
    """Which nets have no effective depth, and why that may be."""
    names = [group for group in evidence.groups if group not in measured.groups]
    if not names:
        return ""
    return f" Nothing was logged of {', '.join(names)}: in a net without branches all paths have one length."


# -- in numbers -----------------------------------------------------------------------------------------------------------


def _table(evidence: Evidence, silent: str) -> Table:
    rows = [row for group, nets in evidence.groups.items() for row in _rows(group, nets)]
    return Table(TABLE + silent, ["", "epoch", *FIELDS.values()], rows, title="Effective depth")


def _rows(group: str, nets: Sequence[Net]) -> list[list[Cell]]:
    """Of each net; of several seeds also the mean, where these are equally far."""
    rows = [_row(net.label, [net], epoch) for net in nets for epoch in _ends(net)]
    ends = {tuple(_ends(net)) for net in nets}
    if len(nets) > 1 and len(ends) == 1:
        rows += [_row(f"{group}: mean ± sd of {len(nets)}", nets, epoch) for epoch in ends.pop()]
    return rows


def _row(label: str, nets: Sequence[Net], epoch: int) -> list[Cell]:
    found = ([net.at(f"{FAMILY}/{field}", epoch) for net in nets] for field in FIELDS)
    return [Cell(label), Cell(str(epoch)), *(mean_cell(x) if len(x) > 1 else cell(*x) for x in found)]


def _ends(net: Net) -> list[int]:
    """The first and the last epoch; one if they are the same."""
    epochs = net.series(f"{FAMILY}/effective").index
    return sorted({int(epochs[0]), int(epochs[-1])})


# -- over epochs ----------------------------------------------------------------------------------------------------------


def _over_epochs(evidence: Evidence) -> Figure:
    panels = [_share_panel(evidence, field) for field in CURVES]
    rows = [
        (net.label, field, *row)
        for field in CURVES
        for net in evidence.nets
        for row in _over_longest(net, field).itertuples()
    ]
    data = csv_text(("net", "depth", "epoch", "layers", "longest", "share"), rows)
    more = seeds_csv(evidence.spreads(f"{FAMILY}/{field}" for field in FIELDS))
    return Figure("ensembles-depth", OVER_EPOCHS, panels, group_legend(evidence), data, more=more)


def _over_longest(net: Net, field: str) -> pd.DataFrame:
    """A depth in layers, p, and their quotient, by epoch."""
    columns = {"layers": net.series(f"{FAMILY}/{field}"), "longest": net.series(f"{FAMILY}/longest")}
    return pd.concat(columns, axis=1, join="inner").assign(share=lambda both: both["layers"] / both["longest"])


def _share_panel(evidence: Evidence, field: str) -> Panel:
    def draw(axes: Axes) -> None:
        axes.axhline(0.5, color=INK, linewidth=0.9)
        curves(
            axes, evidence.groups.values(), lambda net: net.series(f"{FAMILY}/{field}") / net.series("depth/longest")
        )
        with_zero(axes)

    title = f"{FIELDS[field]} / p"
    return panel(f"ensembles-depth-{field}", title, draw, x="epoch", y="share of the longest path", whole_x=True)


# -- by length ------------------------------------------------------------------------------------------------------------


def _by_length(evidence: Evidence) -> Figure | None:
    """Outputs above, gradients below; None if no arrays were saved."""
    views = {
        (what, when): {net: line for net in evidence.nets if (line := _distribution(net, what, when)) is not None}
        for what in LENGTHS
        for when in WHEN
    }
    views = {key: by_net for key, by_net in views.items() if by_net}
    if not views:
        return None
    panels = [_length_panel(evidence, what, when, by_net) for (what, when), by_net in views.items()]
    rows = [
        (net.label, what, _epoch(net, when), length, value, share)
        for (what, when), by_net in views.items()
        for net, line in by_net.items()
        for length, value, share in zip(line.index, line, _shares(line), strict=True)
    ]
    data = csv_text(("net", "quantity", "epoch", "length", "value", "share"), rows)
    most = max(sum(this == what for this, _ in views) for what in LENGTHS)
    return Figure("ensembles-lengths", BY_LENGTH, panels, group_legend(evidence), data, columns=most)


def _epoch(net: Net, when: float) -> int | None:
    """Which epoch of those with arrays is the first, middle or last; None if it is another already."""
    return stages(net.run.array_epochs(FAMILY), [*WHEN]).get(when)


def _distribution(net: Net, what: str, when: float) -> pd.Series | None:
    epoch = _epoch(net, when)
    arrays = {} if epoch is None else net.arrays(FAMILY, epoch)
    values, lengths = (arrays.get(f"{FAMILY}/{name}") for name in (what, "lengths"))
    return None if values is None or lengths is None else pd.Series(values, lengths)


def _shares(line: pd.Series) -> pd.Series:
    return line / line.sum()


def _length_panel(evidence: Evidence, what: str, when: float, by_net: dict[Net, pd.Series]) -> Panel:
    def draw(axes: Axes) -> None:
        curves(axes, evidence.groups.values(), lambda net: _shares(by_net.get(net, pd.Series(dtype=float))), every=True)
        from_zero(axes)

    epochs = " and ".join(map(str, sorted({_epoch(net, when) for net in by_net})))
    key = f"ensembles-lengths-{what}-{WHEN[when]}"
    return panel(key, f"{LENGTHS[what]}, epoch {epochs}", draw, x="length r", y="share of the sum", whole_x=True)
