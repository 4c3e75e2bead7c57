"""What `measure` says on the terminal: layer by layer, the nets as a whole, and what could not be measured."""

from collections.abc import Iterable, Sequence

from lightning_app.cli.console import table
from lightning_app.report.blocks import Cell
from lightning_app.report.evidence import gather
from lightning_app.report.sections.layers import (
    BLOCK_HEAD,
    HEAD,
    block_cells,
    layer_cells,
    layers_of_net,
    of_whole_nets,
)
from lightning_app.runs import RunFolder

__all__ = ["print_measured"]


def print_measured(run: RunFolder) -> None:
    """Print all that was measured of the nets of one run."""
    evidence = gather([run])
    for net in evidence.nets:
        print()
        table(f"{net.label}", HEAD, _texts(layer_cells(net, row) for row in layers_of_net(net)))
        if blocks := block_cells(net):
            print()
            table(f"{net.label}: interlayer cushions", BLOCK_HEAD, _texts(blocks))
    print()
    table("the nets as a whole", ["", *(net.label for net in evidence.nets)], _texts(of_whole_nets(evidence.nets)))
    for sentence in run.notes():
        print(f"not measured: {sentence}")


def _texts(rows: Iterable[Sequence[Cell]]) -> list[list[str]]:
    return [[cell.text for cell in row] for row in rows]
