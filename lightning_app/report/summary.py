"""The few numbers that matter, as text for a terminal."""

from collections.abc import Sequence

from lightning_app.report.blocks import number
from lightning_app.report.cushions import choose_layer, measured_layers
from lightning_app.report.evidence import Evidence, Final, Net, gather
from lightning_app.report.weights import id_mass
from lightning_app.runs import RunFolder

__all__ = ["summary"]

NOT_MEASURED = "-"


def summary(run: RunFolder) -> str:
    """One line a net: its last risk and errors, the weight mass in the ID entries of t, the median cushion at one layer.

    The layer is layer10 or else the middle one. "-": not measured.

    Raises:
        ValueError: from the run folder, if there is no log or it is not one of ours.
    """
    evidence = gather([run])
    if not evidence.nets:
        return f"{run.label}: no net has logged a number yet."
    layers = measured_layers(evidence.nets)
    layer = choose_layer(layers) if layers else None
    head = ["net", "train risk", "train error", "test error", "ID mass of t", f"cushion {layer or ''}".strip()]
    lines = _aligned([head, *(_row(net, layer) for net in evidence.nets)])
    return "\n".join([_title(evidence), *lines])


def _title(evidence: Evidence) -> str:
    epochs = sorted({net.epoch for net in evidence.nets})
    return f"{evidence.records[0].label} after epoch {' and '.join(map(str, epochs))}"


def _row(net: Net, layer: str | None) -> list[str]:
    names = ["train/risk", "train/error", "test/error", id_mass(net), f"cushion/{layer}/median"]
    return [net.label, *(_text(net.final(name)) for name in names)]


def _text(last: Final | None) -> str:
    return NOT_MEASURED if last is None else number(last.value)


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Names to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            [row[0].ljust(widths[0]), *(text.rjust(width) for text, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in rows
    ]
