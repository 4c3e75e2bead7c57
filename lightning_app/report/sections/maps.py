"""Every number of single layers at every epoch: maps that the page's script draws, and the numbers behind them as a file."""

from collections.abc import Collection, Iterator, Sequence

from lightning_app.common.numbers import whole
from lightning_app.report.blocks import Figure, Section, csv_text
from lightning_app.report.page_data import PageData, PageNet
from lightning_app.report.profiles import by_layer_keys
from lightning_app.report.sections.signals import FAMILY as SIGNAL

TITLE = "Layer by epoch"
MOST = 70_000  # numbers: one takes nine bytes of the page
CAPTION = (
    "A map for each arm: colour is the mean over its seeds, layers run upwards, epochs to the right. Below the maps is "
    "the difference of two arms, or their ratio where colours are logarithmic. Click a cell, or press Enter, to see the "
    "values of all seeds. What never changes, such as a count of weights, has no map. Maps need the page’s script. The "
    "file has a row for each measure, net and epoch, with one number per layer, separated by spaces; the first row of a "
    "measure names the layers; a dash: not measured."
)
FIRST = " Only the first seed of each arm that has these numbers is here: all seeds would make the page too large."
SOME = " Only one epoch in {} is here, counted from the last: all epochs would make the page too large."

Measures = dict[tuple[str, str], dict[str, str]]  # prefix and field -> layer -> key


def section(page: PageData) -> Section | None:
    """Signals come first; None where no number of a single layer was logged, or none ever changed."""
    found = by_layer_keys(dict.fromkeys(name for net in page.nets for name in net.names))
    ordered = sorted(found.items(), key=lambda item: item[0][0] != SIGNAL)
    measures = {of: keys for of, keys in ordered if not _constant(page.nets, keys.values())}
    if not measures:
        return None
    keys = [key for keys in measures.values() for key in keys.values()]
    named = {*keys}
    firsts = page.firsts(lambda net: not named.isdisjoint(net.names))
    counts = {net.group: sum(len(net.points(key)[1]) for key in keys) for net in firsts}
    of_all = sum(count * len(page.groups[group]) for group, count in counts.items())
    nets = page.nets if of_all <= MOST else firsts
    step = -(-sum(counts.values()) // MOST) if of_all > MOST else 1
    caption = CAPTION + FIRST * (len(nets) < len(page.nets)) + SOME.format(step) * (step > 1)
    data = csv_text(("measure", "net", "epoch", "values"), _rows(nets, measures, step))
    figure = Figure("maps-figure", caption, [], [], data, packed=True)
    return Section("maps", TITLE, blocks=[figure], short="Maps")


def _constant(nets: Sequence[PageNet], keys: Collection[str]) -> bool:
    """Whether it was logged at several epochs and never changed, as a count of weights."""
    series = (values for net in nets for key in keys if len(values := net.points(key)[1]))
    return all(len(values) > 1 and bool((values == values[0]).all()) for values in series)


def _rows(nets: Sequence[PageNet], measures: Measures, step: int) -> Iterator[tuple[object, ...]]:
    for (prefix, field), keys in measures.items():
        measure = f"{prefix}/*/{field}"
        yield measure, "", "", "/".join(keys)
        found = {net: [_by_epoch(net, key) for key in keys.values()] for net in nets}
        epochs = sorted({epoch for values in found.values() for each in values for epoch in each})
        shown = epochs[::-step][::-1]  # of all nets, since the page draws differences of them
        for net, values in found.items():
            for epoch in shown:
                if any(epoch in each for each in values):
                    yield measure, net.label, whole(epoch), "".join(_text(each.get(epoch)) for each in values)


def _by_epoch(net: PageNet, key: str) -> dict[float, float]:
    epochs, values = net.points(key)
    return dict(zip(epochs.tolist(), values.tolist(), strict=True))


def _text(value: float | None) -> str:
    """With a space first, as `figures.frames_csv` has it."""
    return " -" if value is None else f" {value!r}"
