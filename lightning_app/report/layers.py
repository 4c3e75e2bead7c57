"""The layers of each net: what they are called in the keys, what they weigh, and why one cannot be measured."""

import re
from collections.abc import Sequence

from lightning_app.report.blocks import Cell, Section, Table, cell
from lightning_app.report.evidence import Evidence, Net
from lightning_app.runs import LayerRow

__all__ = ["COLUMNS", "HEAD", "layer_cells", "layers_of_net", "of_whole_nets", "section"]

COLUMNS = {  # of a layer: head -> key, at the layer's name
    "cushion, median": "cushion/{}/median",
    "‖W‖": "weight_norm/{}/own",
    "mass Σ|w|": "weight_mass/{}/all",
    "λ, mean |λ|": "bn_lambda/{}/mean_abs",
}
HEAD = ["module", "layer", "kind", "weight", *COLUMNS, "no cushion because"]
CAPTION = (
    "In the order of the forward pass. Layer: its name in the keys, as registered in the net. Cushion: median over the probe "
    "samples, kernel norm, the identity of a skip in the numerator only. ‖W‖: Frobenius norm of the weights as they are. "
    "λ: of the normalisation that follows. A dash: not measured."
)
# Numbers of one layer or one block: there are too many of them for a list.
PART = re.compile(r"^(interlayer\w*/|.*\b(layer|block)\d+)")


def section(evidence: Evidence) -> Section | None:
    """A table for each arm, of its first seed; for runs that wrote no layers down, nothing."""
    nets = [net for net in evidence.firsts() if layers_of_net(net)]
    notes = [f"{record.label}: {note}" for record in evidence.records for note in record.folder.notes()]
    if not nets and not notes:
        return None
    tables = [Table(CAPTION, HEAD, [layer_cells(net, row) for row in layers_of_net(net)], net.label) for net in nets]
    return Section("layers", "Layers, and what could not be measured", blocks=tables, notices=notes)


def layers_of_net(net: Net) -> list[LayerRow]:
    """The net's layers in forward order."""
    return [row for row in net.record.folder.layers() if row.member == net.member]


def layer_cells(net: Net, row: LayerRow) -> list[Cell]:
    """One line of the table, under `HEAD`."""
    numbers = [_last(net, key.format(row.layer)) if row.layer else cell(None) for key in COLUMNS.values()]
    said = [row.path, row.layer or "–", row.kind, "x".join(map(str, row.shape))]
    return [*map(Cell, said), *numbers, Cell(row.reason)]


def of_whole_nets(nets: Sequence[Net]) -> list[list[Cell]]:
    """A line a number that is not of one layer or block: its name, and each net's last value."""
    names = dict.fromkeys(name for net in nets for name in net.names if not PART.match(name))
    return [[Cell(name), *(_last(net, name) for net in nets)] for name in names]


def _last(net: Net, name: str) -> Cell:
    last = net.final(name)
    return cell(None if last is None else last.value)
