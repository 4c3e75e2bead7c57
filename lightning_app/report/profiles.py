"""Profiles over layers as a net is trained: one panel a group of nets, one line an epoch, as the paper's Figs. 1d, 2, 3."""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce

import pandas as pd
from matplotlib.axes import Axes

from lightning_app.plots.drawing import curve, finite
from lightning_app.plots.style import INK, Style
from lightning_app.report.blocks import Entry, Figure, Panel, csv_text
from lightning_app.report.page_data import Net, PageData
from lightning_app.report.panels import legend, panel

__all__ = ["SEVERAL_SEEDS", "by_layer", "by_layer_keys", "layers_with", "positions", "profiles", "stages"]

LOOKS = {  # where between the first and the last epoch -> marker and opacity: later ones are darker
    0.0: ("o", 0.3),
    0.25: ("s", 0.45),
    0.5: ("^", 0.6),
    0.75: ("D", 0.8),
    1.0: ("v", 1.0),
}
LAYER = re.compile(r"(?P<prefix>[^/]+)/(?:layer|block)\d+[^/]*/(?P<field>[^/]+)")  # a key of one layer
SEVERAL_SEEDS = " Of several seeds the mean is shown."
LONGEST_TITLE = 44  # characters that fit above a panel

Frames = dict[Net, pd.DataFrame]  # (epochs, layers) each
Profiles = dict[str, pd.DataFrame]  # group -> the mean over seeds


def stages(epochs: Sequence[int], at: Iterable[float]) -> dict[float, int]:
    """Epochs nearest to these fractions of the list, each once: where there are few, the outer fractions have them.

    >>> stages([0, 1, 2, 4, 8], (0, 0.5, 1)), stages([0, 3], (0, 0.5, 1)), stages([], (0, 1))
    ({0: 0, 0.5: 2, 1: 8}, {0: 0, 1: 3}, {})
    """
    found: dict[int, float] = {}
    for fraction in sorted(at, key=lambda fraction: -abs(fraction - 0.5)) if epochs else ():
        found.setdefault(epochs[round(fraction * (len(epochs) - 1))], fraction)
    return {fraction: epoch for epoch, fraction in sorted(found.items())}


def layers_with(net: Net, prefix: str, field: str) -> list[str]:
    """The layers of which <prefix>/<layer>/<field> was logged, in the order of the log."""
    pattern = re.compile(rf"{re.escape(prefix)}/([^/]+)/{re.escape(field)}")
    return [match[1] for name in net.names if (match := pattern.fullmatch(name))]


def by_layer_keys(names: Iterable[str]) -> dict[tuple[str, str], list[str]]:
    """Prefix and field of the keys that are of single layers, and these keys.

    >>> by_layer_keys(["grad/layer01/norm", "grad/layer02/norm", "grad/norm"])
    {('grad', 'norm'): ['grad/layer01/norm', 'grad/layer02/norm']}
    """
    found: dict[tuple[str, str], list[str]] = {}
    for match in filter(None, map(LAYER.fullmatch, names)):
        found.setdefault((match["prefix"], match["field"]), []).append(match[0])
    return found


def by_layer(net: Net, prefix: str, field: str) -> pd.DataFrame:
    """(epochs, layers) of what was logged; empty if nothing was."""
    return pd.DataFrame(
        {layer: net.series(f"{prefix}/{layer}/{field}") for layer in layers_with(net, prefix, field)}, dtype=float
    )


def profiles(
    page: PageData, key: str, caption: str, quantities: Mapping[tuple[str, str], tuple[str, str]]
) -> Figure | None:
    """A panel for each quantity and group; None if nothing of it was measured.

    Args:
        quantities: (prefix, field) -> title and label of the y axis.
    """
    frames = {of: _frames(page, *of) for of in quantities}
    found = {of: _means(page, by_net) for of, by_net in frames.items()}
    shown = [(of, group) for of, by_group in found.items() for group in by_group]
    if not shown:
        return None
    styles = {group: nets[0].style for group, nets in page.groups.items()}
    panels = [
        _panel(f"{key}-{number}", f"{quantities[of][0]}: {group}", found[of][group], styles[group], quantities[of][1])
        for number, (of, group) in enumerate(shown)
    ]
    rows = [row for of, group in shown for row in _rows(of, found[of][group], frames[of], page.groups[group])]
    data = csv_text(("net", "name", "epoch", "value"), rows)
    columns = 2 if len({group for _, group in shown}) == 2 else 3  # so that two arms stand side by side
    return Figure(key, caption, panels, _legend(found), data, columns=columns)


# -- numbers --------------------------------------------------------------------------------------------------------------


def _frames(page: PageData, prefix: str, field: str) -> Frames:
    nets = [net for nets in page.groups.values() for net in nets]
    return {net: frame for net in nets if len(frame := by_layer(net, prefix, field))}


def _means(page: PageData, frames: Frames) -> Profiles:
    found = {group: [frames[net] for net in nets if net in frames] for group, nets in page.groups.items()}
    means = {group: _mean(of_seeds) for group, of_seeds in found.items() if of_seeds}
    return {group: frame for group, frame in means.items() if len(frame)}


def _mean(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Over seeds, at the epochs that all have. A diverged seed makes it NaN."""
    common = reduce(pd.Index.intersection, (frame.index for frame in frames))
    return sum(frame.loc[common] for frame in frames) / len(frames)


def _rows(of: tuple[str, str], mean: pd.DataFrame, frames: Frames, nets: Sequence[Net]) -> list[tuple]:
    """What is behind the lines of a group: every seed at the epochs drawn."""
    prefix, field = of
    return [
        (net.label, f"{prefix}/{layer}/{field}", epoch, value)
        for net in nets
        if net in frames
        for epoch in stages(list(mean.index), LOOKS).values()
        for layer, value in frames[net].loc[epoch].items()
    ]


# -- drawing --------------------------------------------------------------------------------------------------------------


def _panel(key: str, title: str, frame: pd.DataFrame, style: Style, y: str) -> Panel:
    numbered = frame.set_axis(positions(frame.columns), axis=1)

    def draw(axes: Axes) -> None:
        for when, epoch in stages(list(frame.index), LOOKS).items():
            curve(axes, finite(numbered.loc[epoch]), _look(style.colour, when), every=True)

    return panel(key, _short(title), draw, x="layer", y=y, whole_x=True)


def positions(layers: Sequence[str]) -> list[int]:
    """The layers' own numbers, if all have one of their own, else their positions in the list.

    >>> positions(["layer02", "layer04"]), positions(["bn", "layer01", "layer01_2"])
    ([2, 4], [1, 2, 3])
    """
    numbers = [int(match[1]) for layer in layers if (match := re.fullmatch(r"layer(\d+)", layer))]
    return numbers if len(set(numbers)) == len(layers) else list(range(1, len(layers) + 1))


def _look(colour: str, when: float) -> Style:
    marker, alpha = LOOKS[when]
    return Style(colour, "-", marker, alpha)


def _short(title: str) -> str:
    return title if len(title) <= LONGEST_TITLE else title[: LONGEST_TITLE - 1] + "…"


def _legend(found: Mapping[tuple[str, str], Profiles]) -> list[Entry]:
    """Which epoch each marker is; groups that were measured at different ones have several."""
    drawn = [stages(list(frame.index), LOOKS) for by_group in found.values() for frame in by_group.values()]
    epochs = {when: sorted({each[when] for each in drawn if when in each}) for when in LOOKS}
    return legend(
        (f"epoch {' and '.join(map(str, these))}", _look(INK, when)) for when, these in epochs.items() if these
    )
