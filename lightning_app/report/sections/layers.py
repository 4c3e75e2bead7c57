"""The layers of each net: what they are called in the keys, what they weigh, and why one cannot be measured."""

import re
from collections.abc import Sequence

from lightning_app.report.blocks import Cell, Section, Table, cell
from lightning_app.report.page_data import PageData, PageNet
from lightning_app.runs import LayerRow
from lightning_app.runs.folder import STOPPED
from lightning_app.runs.naming import OF_LAYER

COLUMNS = {  # of a layer: head -> key, at the layer's name
    "cushion, median": "cushion/{}/median",
    "‖W‖": "weight_norm/{}/own",
    "mass Σ|w|": "weight_mass/{}/all",
    "λ, mean |λ|": "bn_lambda/{}/mean_abs",
}
BLOCK_COLUMNS = {
    "eval, n = CHW": "interlayer/{}/median",
    "eval, n = HW": "interlayer/{}/median_hw",
    "one sample at a time, n = CHW": "interlayer_batch1/{}/median",
    "one sample at a time, n = HW": "interlayer_batch1/{}/median_hw",
}
TITLE = "Layers, and what could not be measured"
FAMILIES = ("interlayer", "interlayer_batch1")
BLOCK_HEAD = ["block", *BLOCK_COLUMNS]
OF_BLOCKS = (
    " Interlayer cushion of a block with Jacobian J at its input x: √n ‖J x‖ / (‖J‖ ‖x‖), median over probe samples. The "
    "larger it is, the less random noise added to x changes the output. n: number of entries of x (CHW), or of places of "
    "a map (HW). BatchNorm uses its running statistics (eval), or those of one sample at a time, which give the numbers "
    "of Yu & Tomasi (2019)."
)
BLOCK = re.compile(r"interlayer(?:_batch1)?/([^/]+)/median$")
HEAD = ["module", "layer", "kind", "weight", *COLUMNS, "no cushion because"]
OTHER_HEAD = ["module", "kind", "weight", "reason"]
WHAT = (
    "Layers stand in the order of the forward pass. Module: its name in the net. Layer: its name in the log. Cushion: "
    "median over the probe samples, by the kernel’s norm, with the identity of a skip in the numerator only. ‖W‖: "
    "Frobenius norm of the weights as trained. λ: factors of the normalisation that follows. A dash: not measured."
)
NO_NUMBER = "its weights are all 0, or its input is 0 for every sample"


def section(page: PageData) -> Section | None:
    """A table for each arm, of the first seed that wrote its layers down; without any, nothing."""
    nets = page.firsts(layers_of_net)
    notes = [f"{run.label}: {note}" for run in page.runs for note in run.notes if not STOPPED.match(note)]
    if not nets and not notes:
        return None
    tables = []
    for net in nets:
        lines = [layer_cells(net, row) for row in layers_of_net(net)]
        measured = [line[:-1] for line in lines if not line[-1].text]
        others = [[module, kind, weight, reason] for module, _, kind, weight, *_, reason in lines if reason.text]
        tables.append(Table("", HEAD[:-1], measured, net.label))
        tables.append(Table("", OTHER_HEAD, others, f"{net.label}: weights without a cushion"))
        tables.append(Table("", BLOCK_HEAD, block_cells(net), f"{net.label}: blocks"))
    shown = [table for table in tables if table.rows]
    what = (WHAT + OF_BLOCKS * any(table.head is BLOCK_HEAD for table in shown)) * bool(shown)
    return Section("layers", TITLE, what, shown, notes, FAMILIES, short="Layers", folded=True)


def layers_of_net(net: PageNet) -> list[LayerRow]:
    """The net's layers in forward order."""
    return [row for row in net.run.layers if row.member == net.name]


def layer_cells(net: PageNet, row: LayerRow) -> list[Cell]:
    """One line of the table, under `HEAD`."""
    numbers = [_last(net, key.format(row.layer)) if row.layer else cell(None) for key in COLUMNS.values()]
    facts = [row.path, row.layer or "–", row.kind, "x".join(map(str, row.shape))]
    return [*map(Cell, facts), *numbers, Cell(row.reason or (NO_NUMBER if numbers[0].text == "nan" else ""))]


def block_cells(net: PageNet) -> list[list[Cell]]:
    """A line a block that has interlayer cushions, under `BLOCK_HEAD`."""
    blocks = dict.fromkeys(match[1] for name in net.names if (match := BLOCK.match(name)))
    return [[Cell(block), *(_last(net, key.format(block)) for key in BLOCK_COLUMNS.values())] for block in blocks]


def of_whole_nets(nets: Sequence[PageNet]) -> list[list[Cell]]:
    """A line a number that is not of one layer or block, which are too many: its name, and each net's last value."""
    names = dict.fromkeys(name for net in nets for name in net.names if not _of_part(name))
    return [[Cell(name), *(_last(net, name) for net in nets)] for name in names]


def _of_part(name: str) -> bool:
    """Whether a number is of one layer or block, the last part of whose name may be the layer's.

    >>> [_of_part(name) for name in ("interlayer/stem/median", "own/layer1.0", "cushion/layer01/median", "hessian/top1")]
    [True, True, True, False]
    """
    return name.partition("/")[0] in FAMILIES or OF_LAYER.fullmatch(f"{name}/value") is not None


def _last(net: PageNet, name: str) -> Cell:
    last = net.final(name)
    return cell(None if last is None else last.value)
