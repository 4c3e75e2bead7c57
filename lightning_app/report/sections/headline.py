"""Where each net ended: the numbers of the paper's Table 1, of the final epoch and never of the best."""

import math
from collections.abc import Iterable, Sequence

from lightning_app.common.seeds import consecutive
from lightning_app.report.blocks import Cell, Section, Table, mean_cell
from lightning_app.report.page_data import Net, PageData, loss_of
from lightning_app.runs.reader import Final

TITLE = "Where each net ended"
FAILED = "failed/"  # and the family of a measure: 1 at epochs at which it failed

COLUMNS = {
    "train risk L": "train/risk",
    "cost C": "train/cost",
    "cost C, paper's convention": "train/cost_paper",
    "train error": "train/error",
    "test error E": "test/error",
    "test risk": "test/risk",
}
ERRORS = ("train error", "test error E")  # columns that are not measured as the loss is
GAP = "gap: test − train error"
CAPTION = (
    "Values after the final epoch, whichever epoch was best. L: mean {loss} over the training samples. C: L plus the "
    "weight penalty as trained; the tables of Yu & Tomasi (2019) count it as (λ/2)‖w‖²/B, B the batch size. "
    "E: share of test samples classified wrongly. A dash: not measured. A small epoch number: not measured later than that. "
    "All digits of a number: hold the pointer on it, or write the tables as files (report --export csv)."
)


def section(page: PageData) -> Section:
    """One row a net; where an arm has several seeds, their mean and standard deviation below."""
    if not page.nets:
        return Section("headline", TITLE, notices=["No net has logged a number yet."], short="Ends")
    lost = [(net.label, net.diverged) for net in page.nets if net.diverged is not None]
    notes = [f"{label} diverged: its numbers are not finite from epoch {since} on." for label, since in lost]
    notes += [f"{net.label}: {failure}" for net in page.nets for failure in failures(net)]
    rows = [_row(label, nets) for label, nets in page.with_means()]
    loss = loss_of(page.nets)
    heads = [head if head in ERRORS else loss.measured(head) for head in COLUMNS]
    table = Table(CAPTION.format(loss=loss.name), ["net", "epochs", *heads, GAP], rows)
    return Section("headline", TITLE, blocks=[table], notices=notes, families=("failed",), short="Ends")


def failures(net: Net) -> list[str]:
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


def _row(label: str, nets: Sequence[Net]) -> list[Cell]:
    epochs = sorted({net.epoch for net in nets})
    span = str(epochs[0]) if len(epochs) == 1 else f"{epochs[0]} to {epochs[-1]}"
    cells = []
    for finals in zip(*map(_finals, nets), strict=True):
        earlier = len(nets) == 1 and finals[0] is not None and finals[0].epoch < nets[0].epoch
        values = [None if last is None else last.value for last in finals]
        cells.append(mean_cell(values, f"epoch {finals[0].epoch}" if earlier else ""))
    return [Cell(label), Cell(span), *cells]


def _finals(net: Net) -> list[Final | None]:
    """Of each column. The gap is of one epoch only: a difference across epochs would mix gap and progress."""
    found = {name: net.final(name) for name in COLUMNS.values()}
    test, train = found["test/error"], found["train/error"]
    gap = Final(test.value - train.value, test.epoch) if test and train and test.epoch == train.epoch else None
    return [*found.values(), gap]
