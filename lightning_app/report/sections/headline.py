"""Where each net ended: the numbers of the paper's Table 1, of the final epoch and never of the best."""

import math
from collections.abc import Iterable, Sequence

from lightning_app.common.seeds import consecutive
from lightning_app.report.blocks import Cell, Section, Table, mean_cell
from lightning_app.report.figures import joined
from lightning_app.report.page_data import PageData, PageNet, loss_of
from lightning_app.runs.reader import Final

TITLE = "Where each net ended"
FAILED = "failed/"  # and the family of a measure: 1 at epochs at which it failed

COLUMNS = {  # those that were measured are shown
    "train risk L": "train/risk",
    "cost C": "train/cost",
    "cost C, paper's convention": "train/cost_paper",
    "train error": "train/error",
    "{unseen} error E": "{unseen}/error",
    "{unseen} risk": "{unseen}/risk",
}
# Where there is no risk on all training data.
PROBE = {"risk on the probe": "probe/risk", "error on the probe": "probe/error"}
GAP = "gap: {unseen} − train error"
CAPTION = (
    "Values after the last epoch, not the best one. L: mean {loss} over the training samples. C: L plus the weight "
    "penalty as trained; the tables of Yu & Tomasi (2019) count the penalty as (λ/2)‖w‖²/B, where B is the batch size. "
    "E: share of {unseen} samples classified wrongly. A dash: not measured. An epoch beside a number: the last one at "
    "which this number was measured (the last ones, where seeds differ)."
)


def section(page: PageData) -> Section:
    """One row a net; where an arm has several seeds, their mean and standard deviation below."""
    if not page.nets:
        return Section("headline", TITLE, notices=["No net has logged a number yet."], short="Ends")
    lost = [(net.label, net.diverged) for net in page.nets if net.diverged is not None]
    notes = [f"{label} diverged in epoch {since}: its risk or weights were not finite." for label, since in lost]
    notes += [f"{net.label}: {failure}" for net in page.nets for failure in failures(net)]
    loss, columns = loss_of(page.nets), _columns(page)
    rows = [_row(label, nets, [*columns.values()]) for label, nets in page.with_means()]
    heads = [head if "error" in head else loss.measured(head) for head in columns]
    table = Table(CAPTION.format(loss=loss.name, unseen=page.held_out.words), ["net", "epochs", *heads], rows)
    return Section("headline", TITLE, blocks=[table], notices=notes, families=("failed",), short="Ends")


def _columns(page: PageData) -> dict[str, tuple[str, ...]]:
    """By head one name, or two of which the difference is shown."""
    measured, unseen = {name for net in page.nets for name in net.names}, page.held_out
    names = {head.format(unseen=unseen.words): name.format(unseen=unseen.key) for head, name in COLUMNS.items()}
    names |= {} if "train/risk" in measured else PROBE
    found: dict[str, tuple[str, ...]] = {head: (name,) for head, name in names.items()}
    found[GAP.format(unseen=unseen.words)] = unseen.error, "train/error"
    return {head: each for head, each in found.items() if measured.issuperset(each)}


def failures(net: PageNet) -> list[str]:
    """A message for each measure that failed: which, and when. Why is in the section on layers."""
    return [
        f"'{name.removeprefix(FAILED)}' could not be measured at epochs {spell_epochs(net.series(name).index)}."
        for name in net.names
        if name.startswith(FAILED)
    ]


def spell_epochs(epochs: Iterable[float]) -> str:
    """Ascending numbers, those in a row by their ends; what is within an epoch is of that epoch.

    >>> spell_epochs([0, 2.25, 2.5, 3, 4, 5, 9])
    '0, 3 to 5, 9'
    """
    rows = consecutive({math.ceil(epoch) for epoch in epochs})
    return ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in rows)


def _row(label: str, nets: Sequence[PageNet], columns: Sequence[tuple[str, ...]]) -> list[Cell]:
    epochs = sorted({net.epoch for net in nets})
    span = str(epochs[0]) if len(epochs) == 1 else f"{epochs[0]} to {epochs[-1]}"
    cells = []
    for names in columns:
        finals = [_final(net, names) for net in nets]
        known = [(net, last) for net, last in zip(nets, finals, strict=True) if last is not None]
        earlier = any(last.epoch < net.epoch for net, last in known)
        note = f"epoch {joined(last.epoch for _, last in known)}" * earlier
        cells.append(mean_cell([None if last is None else last.value for last in finals], note))
    return [Cell(label), Cell(span), *cells]


def _final(net: PageNet, names: tuple[str, ...]) -> Final | None:
    """The last value. A difference is of one epoch only: across epochs it would mix gap and progress."""
    finals = [last for name in names if (last := net.end(name))]
    if len(finals) < len(names) or len({last.epoch for last in finals}) > 1:
        return None
    return Final(finals[0].value - sum(last.value for last in finals[1:]), finals[0].epoch)
