"""The forces on the scales, predicted and observed: how often their signs agree (Theorems 3 and 4 of Littwin & Wolf)."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from lightning_app.plots.style import INK
from lightning_app.report.blocks import Cell, Figure, Panel, Table, cell, csv_text, mean_cell, seeds_csv
from lightning_app.report.ensembles_layers import layers_with
from lightning_app.report.evidence import Evidence, Net
from lightning_app.report.panels import curves, group_legend, panel

__all__ = ["blocks"]

DRIVE, SCALE = "drive", "scale"
SIGNS = {"second_order": "second order >\u00a00", "first_order": "first order >\u00a00"}
AGREEMENTS = {"agrees": "second order agrees", "agrees_first": "first order agrees"}
SHARES = {
    "positive": "Second order >\u00a00",
    "positive_first": "First order >\u00a00",
    "agrees": "Second order agrees",
    "agrees_first": "First order agrees",
}
TABLE = (
    "For λ: share of normalisation layers and epochs; for C = ‖w‖ / √(number of weights): share of epochs; beside it, how many. "
    "First order: the push of gradient descent, −Σ sign(λ) ∂L/∂λ, or −∂L/∂C; above 0 the scale is pushed up. Second order: its "
    "change by a small step of the weights alone, ½ Σ sign(λ) ∂‖g‖²/∂λ with their gradient g (Theorem 3; for C, Theorem 4). "
    "Agrees: it had the sign of the change of Σ|λ|, or of C, until the next measurement; not counted where either is exactly 0. "
    "L is the risk on probe samples, the change is of all steps in between with momentum and penalty, and the theorems "
    "presuppose that the first order is 0: agreement is a finding, disagreement no contradiction."
)
OVER_EPOCHS = (
    "Share of normalisation layers at each epoch: those whose |λ| is driven up, and those whose prediction at the measurement "
    "before had the sign of the change since. Line: one half, as by chance."
)


def blocks(evidence: Evidence) -> list[Table | Figure]:
    """None of them without forces."""
    measured = evidence.having(f"{DRIVE}/{SCALE}/size")
    on_lambda = measured.having(*(f"{DRIVE}/{share}" for share in SHARES))
    return [*([_table(measured)] if measured.nets else []), *([_over_epochs(on_lambda)] if on_lambda.nets else [])]


# -- in numbers -----------------------------------------------------------------------------------------------------------


def _table(evidence: Evidence) -> Table:
    head = [f"{scale}: {what}" for scale in ("λ", "C") for what in (*SIGNS.values(), *AGREEMENTS.values())]
    rows = [row for group, nets in evidence.groups.items() for row in _rows(group, nets)]
    return Table(TABLE, ["", *head], rows, title="Driving force")


def _rows(group: str, nets: Sequence[Net]) -> list[list[Cell]]:
    """Of each net, and of several seeds the mean."""
    counted = [_counted(net) for net in nets]
    rows = [[Cell(net.label), *map(_share_cell, each)] for net, each in zip(nets, counted, strict=True)]
    if len(nets) > 1:
        means = (mean_cell([_share(each) for each in column]) for column in zip(*counted, strict=True))
        rows.append([Cell(f"{group}: mean ± sd of {len(nets)}"), *means])
    return rows


def _counted(net: Net) -> list[np.ndarray]:
    """For lambda, then for C: ones and zeros of each column."""
    layers = [layer for layer in layers_with(net, DRIVE, "size") if layer != SCALE]
    return [part for names in (layers, [SCALE]) for part in _columns(net, names)]


def _columns(net: Net, names: Sequence[str]) -> list[np.ndarray]:
    signs = [(_values(net, names, field) > 0).astype(float) for field in SIGNS]
    return [*signs, *(_values(net, names, field) for field in AGREEMENTS)]


def _values(net: Net, names: Sequence[str], field: str) -> np.ndarray:
    """Of these layers at all epochs, without those that are NaN."""
    found = np.concatenate([[], *(net.series(f"{DRIVE}/{name}/{field}").to_numpy(float) for name in names)])
    return found[~np.isnan(found)]


def _share(values: np.ndarray) -> float | None:
    return float(values.mean()) if len(values) else None


def _share_cell(values: np.ndarray) -> Cell:
    return cell(_share(values), f"of {len(values)}" if len(values) else "")


# -- over epochs ----------------------------------------------------------------------------------------------------------


def _over_epochs(evidence: Evidence) -> Figure:
    names = [f"{DRIVE}/{share}" for share in SHARES]
    panels = [_panel(evidence, share) for share in SHARES if evidence.having(f"{DRIVE}/{share}").nets]
    data = csv_text(("net", "name", "epoch", "value"), evidence.rows(names))
    more = seeds_csv(evidence.spreads(names))
    return Figure("ensembles-forces", OVER_EPOCHS, panels, group_legend(evidence), data, columns=2, more=more)


def _panel(evidence: Evidence, share: str) -> Panel:
    def draw(axes: Axes) -> None:
        axes.axhline(0.5, color=INK, linewidth=0.9)
        curves(axes, evidence.groups.values(), lambda net: net.series(f"{DRIVE}/{share}"))
        axes.set_ylim(-0.03, 1.03)

    return panel(f"ensembles-forces-{share}", SHARES[share], draw, x="epoch", y="share of layers", whole_x=True)
