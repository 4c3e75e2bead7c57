"""Where each net ended: the numbers of the paper's Table 1, of the final epoch and never of the best."""

from collections.abc import Iterable, Sequence

from lightning_app.common.seeds import consecutive
from lightning_app.report.blocks import Cell, Section, Table, cell, mean_cell
from lightning_app.report.page_data import Final, Net, PageData

__all__ = ["failures", "section", "spell_epochs"]

FAILED = "failed/"  # and the family of a measure: 1 at epochs at which it failed

COLUMNS = {
    "train risk L (nats)": "train/risk",
    "cost C (nats)": "train/cost",
    "cost C, paper's convention (nats)": "train/cost_paper",
    "train error": "train/error",
    "test error E": "test/error",
    "test risk (nats)": "test/risk",
}
GAP = "gap: test − train error"
CAPTION = (
    "Values after the final epoch, whichever epoch was best. L: mean cross-entropy over the training samples. C: L plus the "
    "weight penalty as trained; the paper's tables count it as (λ/2)‖w‖²/B, B the batch size. "
    "E: share of test samples classified wrongly. A dash: not measured. A small epoch number: not measured later than that. "
    "Hold the pointer on a number to see all its digits."
)


def section(page: PageData) -> Section:
    """One row a net; where an arm has several seeds, their mean and standard deviation below."""
    if not page.nets:
        return Section("headline", "Where each net ended", notices=["No net has logged a number yet."])
    rows = []
    for group, nets in page.groups.items():
        rows += [_row(net) for net in nets]
        if len(nets) > 1:
            rows.append(_statistics(group, nets))
    notes = [f"{net.label} diverged: its risk is not finite from epoch {since} on." for net, since in _lost(page)]
    notes += [f"{net.label}: {failure}" for net in page.nets for failure in failures(net)]
    table = Table(CAPTION, ["net", "epochs", *COLUMNS, GAP], rows)
    return Section("headline", "Where each net ended", blocks=[table], notices=notes, families=("failed",))


def failures(net: Net) -> list[str]:
    """A message for each measure that failed: which, and when. Why is in the section on layers."""
    return [
        f"'{name.removeprefix(FAILED)}' could not be measured at epochs {spell_epochs(net.series(name).index)}."
        for name in net.names
        if name.startswith(FAILED)
    ]


def spell_epochs(epochs: Iterable[int]) -> str:
    """Ascending numbers, those in a row by their ends.

    >>> spell_epochs([0, 3, 4, 5, 9])
    '0, 3 to 5, 9'
    """
    rows = consecutive(map(int, epochs))
    return ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in rows)


def _lost(page: PageData) -> list[tuple[Net, int]]:
    return [(net, since) for net in page.nets if (since := net.diverged) is not None]


def _finals(net: Net) -> list[Final | None]:
    found = {name: net.final(name) for name in COLUMNS.values()}
    return [*found.values(), _gap(found["test/error"], found["train/error"])]


def _gap(test: Final | None, train: Final | None) -> Final | None:
    """Of one epoch only: a difference across epochs would mix gap and progress."""
    if test is None or train is None or test.epoch != train.epoch:
        return None
    return Final(test.value - train.value, test.epoch)


def _row(net: Net) -> list[Cell]:
    notes = ["" if last is None or last.epoch == net.epoch else f"epoch {last.epoch}" for last in _finals(net)]
    values = [None if last is None else last.value for last in _finals(net)]
    return [Cell(net.label), Cell(str(net.epoch)), *map(cell, values, notes)]


def _statistics(group: str, nets: Sequence[Net]) -> list[Cell]:
    columns = zip(*(_finals(net) for net in nets), strict=True)
    epochs = sorted({net.epoch for net in nets})
    span = str(epochs[0]) if len(epochs) == 1 else f"{epochs[0]} to {epochs[-1]}"
    return [Cell(f"{group}: mean ± sd of {len(nets)}"), Cell(span), *map(_mean, columns)]


def _mean(finals: Sequence[Final | None]) -> Cell:
    return mean_cell([None if last is None else last.value for last in finals])
