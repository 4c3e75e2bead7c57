"""What `measure` adds to the other commands: a new folder for what is measured, and tables on the terminal."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from jsonargparse import Namespace

from lightning_app.cli.console import table
from lightning_app.cli.place import RunPlace
from lightning_app.common.errors import UserError
from lightning_app.runs import RunFolder
from lightning_app.runs.folder import CHECKPOINTS

GROUP = "measured"  # folder of measurements among the groups of runs


def claim(out: str | None, place: RunPlace, checkpoint: str | None, model: Namespace) -> RunFolder:
    """A new folder for the measurement of a configuration's model.

    Raises:
        UserError: if there is something in the one that was asked for.
    """
    if out is None:
        return RunPlace(str(place.parent.parent), GROUP, _name(checkpoint, model)).claim()
    folder = RunFolder(Path(out).expanduser())
    if folder.path.exists() and (not folder.path.is_dir() or any(folder.path.iterdir())):
        raise UserError(
            f"--out names a new folder, and there is something at {folder.path}: choose another or remove it."
        )
    folder.path.mkdir(parents=True, exist_ok=True)
    return folder


def _name(checkpoint: str | None, model: Namespace) -> str:
    """After the checkpoint's run and its file, or after the classes and functions that make the nets, in small letters."""
    if checkpoint is None:
        nets = filter(None, (model.net, *(arm["net"] for arm in (model.arms or {}).values())))
        paths = [net.class_path if isinstance(net, Namespace) else getattr(net, "__name__", str(net)) for net in nets]
        return "-".join(dict.fromkeys(path.rsplit(".", 1)[-1].lower() for path in paths)) or "nets"
    file = Path(checkpoint).resolve()
    run = file.parent.parent.name if file.parent.name == CHECKPOINTS else ""
    return re.sub(r"[^\w.=+-]", "-", "-".join(filter(None, (run, file.stem)))).lstrip("-.=+") or "checkpoint"


def print_measured(run: RunFolder) -> None:
    """Print what was measured in one run: layer by layer, the nets as a whole, and what could not be measured."""
    from lightning_app.report.page_data import gather
    from lightning_app.report.sections.layers import (
        BLOCK_HEAD,
        HEAD,
        block_cells,
        layer_cells,
        layers_of_net,
        of_whole_nets,
    )

    nets = gather([run]).nets
    for net in nets:
        print()
        table(f"{net.label}", HEAD, _texts(layer_cells(net, row) for row in layers_of_net(net)))
        if blocks := block_cells(net):
            print()
            table(f"{net.label}: interlayer cushions", BLOCK_HEAD, _texts(blocks))
    print()
    table("the nets as a whole", ["", *(net.label for net in nets)], _texts(of_whole_nets(nets)))
    for reason in run.notes():
        print(f"not measured: {reason}")


def _texts(rows: Iterable[Sequence[Any]]) -> list[list[str]]:
    return [[cell.text for cell in row] for row in rows]
