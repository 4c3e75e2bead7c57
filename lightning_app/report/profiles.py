"""Profiles over layers as a net is trained: one panel a group of nets, one line an epoch, as the paper's Figs. 1d, 2, 3."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import NamedTuple

import pandas as pd
from matplotlib.axes import Axes

from lightning_app.common.numbers import whole
from lightning_app.plots.drawing import curve, finite, reach
from lightning_app.plots.style import INK, Style
from lightning_app.report.blocks import Entry, Figure, Panel, Rows, csv_text
from lightning_app.report.figures import joined
from lightning_app.report.page_data import PageData, PageNet
from lightning_app.report.panels import legend, panel
from lightning_app.runs.naming import OF_LAYER

LOOKS = {  # where between the first and the last epoch -> marker and opacity: later ones are darker
    0.0: ("o", 0.3),
    0.25: ("s", 0.45),
    0.5: ("^", 0.6),
    0.75: ("D", 0.8),
    1.0: ("v", 1.0),
}
LONGEST_TITLE = 44  # characters that fit above a panel


def stages(epochs: Sequence[float], at: Iterable[float]) -> dict[float, float]:
    """The epochs nearest to these fractions of the list, each once; if there are few, outer fractions come first.

    >>> stages([0, 1, 2, 4, 8], (0, 0.5, 1)), stages([0, 3], (0, 0.5, 1)), stages([], (0, 1))
    ({0: 0, 0.5: 2, 1: 8}, {0: 0, 1: 3}, {})
    """
    found: dict[float, float] = {}
    for fraction in sorted(at, key=lambda fraction: -abs(fraction - 0.5)) if epochs else ():
        found.setdefault(epochs[round(fraction * (len(epochs) - 1))], fraction)
    return {fraction: epoch for epoch, fraction in sorted(found.items())}


def layers_with(net: PageNet, prefix: str, field: str) -> list[str]:
    """The layers of which <prefix>/<layer>/<field> was logged, in the order of the log."""
    pattern = re.compile(rf"{re.escape(prefix)}/([^/]+)/{re.escape(field)}")
    return [match[1] for name in net.names if (match := pattern.fullmatch(name))]


def by_layer_keys(names: Iterable[str]) -> dict[tuple[str, str], dict[str, str]]:
    """Prefix and field of the keys that are of single layers; of each the layers and their keys.

    >>> by_layer_keys(["grad/layer01/norm", "grad/layer1.0.conv1/norm", "grad/norm"])
    {('grad', 'norm'): {'layer01': 'grad/layer01/norm', 'layer1.0.conv1': 'grad/layer1.0.conv1/norm'}}
    """
    found: dict[tuple[str, str], dict[str, str]] = {}
    for match in filter(None, map(OF_LAYER.fullmatch, names)):
        found.setdefault((match["family"], match["field"]), {})[match["layer"]] = match[0]
    return found


def by_layer(net: PageNet, prefix: str, field: str) -> pd.DataFrame:
    """(epochs, layers) of what was logged; empty if nothing was."""
    return pd.DataFrame(
        {layer: net.series(f"{prefix}/{layer}/{field}") for layer in layers_with(net, prefix, field)}, dtype=float
    )


def several_seeds(page: PageData) -> str:
    """What a caption of profiles says where a group has several seeds."""
    return " Of several seeds the mean is shown." * any(len(nets) > 1 for nets in page.groups.values())


class _Profile(NamedTuple):
    """One panel: a quantity of a group, by epoch and layer."""

    of: tuple[str, str]  # prefix, field
    group: str
    mean: pd.DataFrame  # over seeds, at the epochs that all have; NaN where one diverged
    seeds: dict[PageNet, pd.DataFrame]

    @property
    def expected(self) -> pd.DataFrame | None:
        """Of the first seed that has it."""
        prefix, field = self.of
        return next((found for net in self.seeds if len(found := by_layer(net, prefix, f"{field}_expected"))), None)

    @property
    def drawn(self) -> dict[float, float]:
        """Epochs by their place between the first and the last."""
        return stages([whole(epoch) for epoch in self.mean.index.tolist()], LOOKS)


def profiles(
    page: PageData,
    key: str,
    caption: str,
    quantities: Mapping[tuple[str, str], tuple[str, str]],
    log_y: Collection[str] = (),
) -> list[Figure]:
    """A panel for each quantity and group, with what was expected of it, <field>_expected, as a dashed line; nothing if none
    of it was measured.

    Args:
        quantities: (prefix, field) -> title and label of the y axis.
        log_y: fields on a logarithmic axis.
    """
    shown = [profile for of in quantities for profile in _profiles(page, *of)]
    panels = [
        _panel(f"{key}-{number}", profile, *quantities[profile.of], log_y=profile.of[1] in log_y)
        for number, profile in enumerate(shown)
    ]
    rows = [
        (net.label, f"{of[0]}/{layer}/{of[1]}", epoch, value)
        for of, profile in ((profile.of, profile) for profile in shown)
        for net, frame in profile.seeds.items()
        for epoch in profile.drawn.values()
        for layer, value in frame.loc[epoch].items()
    ]
    data = csv_text(("net", "name", "epoch", "value"), rows)
    columns = 2 if len({profile.group for profile in shown}) == 2 else 3  # so that two arms stand side by side
    return [Figure(key, caption, panels, _legend(shown), data, columns=columns)] if shown else []


def _profiles(page: PageData, prefix: str, field: str) -> Iterator[_Profile]:
    """The quantity of each group that has it."""
    for group, nets in page.groups.items():
        seeds = {net: frame for net in nets if len(frame := by_layer(net, prefix, field))}
        common = reduce(pd.Index.intersection, (frame.index for frame in seeds.values())) if seeds else []
        if len(common):
            mean = sum(frame.loc[common] for frame in seeds.values()) / len(seeds)
            yield _Profile((prefix, field), group, mean, seeds)


def _panel(key: str, profile: _Profile, title: str, y: str, log_y: bool) -> Panel:
    numbered = profile.mean.set_axis(positions(profile.mean.columns), axis=1)
    style, places = next(iter(profile.seeds)).style, dict(zip(profile.mean.columns, numbered.columns))

    def draw(axes: Axes) -> None:
        for when, epoch in profile.drawn.items():
            curve(axes, finite(numbered.loc[epoch]), _look(style.colour, when, style.arm), every=True)
        if (expected := profile.expected) is not None:
            line = expected.iloc[0].filter(places)  # the last layers of a log may lack a number
            axes.plot([places[layer] for layer in line.index], line, color=INK, linestyle="--", linewidth=1)
        reach(axes, profile.mean)

    title = f"{title}: {profile.group}"
    title = title if len(title) <= LONGEST_TITLE else title[: LONGEST_TITLE - 1] + "…"
    prefix, field = profile.of
    rows = Rows(
        {"net": [net.label for net in profile.seeds]},
        x="name",
        line="epoch",
        places={f"{prefix}/{layer}/{field}": place for layer, place in places.items()},
        measures=[f"{prefix}/*/{field}"],
    )
    return panel(key, title, draw, x="layer", y=y, rows=rows, whole_x=True, log_y=log_y)


def positions(layers: Sequence[str]) -> list[int]:
    """The layers' own numbers, if all have one of their own, else their positions in the list.

    >>> positions(["layer02", "layer04"]), positions(["bn", "layer01", "layer01_2"])
    ([2, 4], [1, 2, 3])
    """
    numbers = [int(match[1]) for layer in layers if (match := re.fullmatch(r"layer(\d+)", layer))]
    return numbers if len(set(numbers)) == len(layers) else list(range(1, len(layers) + 1))


def _look(colour: str, when: float, arm: str = "") -> Style:
    marker, alpha = LOOKS[when]
    return Style(colour, "-", marker, alpha, arm)


def _legend(shown: Sequence[_Profile]) -> list[Entry]:
    """Which epoch each marker is; groups that were measured at different ones have several."""
    epochs = {when: {profile.drawn[when] for profile in shown if when in profile.drawn} for when in LOOKS}
    return legend((f"epoch {joined(these)}", _look(INK, when)) for when, these in epochs.items() if these)
