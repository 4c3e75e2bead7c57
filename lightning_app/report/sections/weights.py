"""Where the weights are: the paper's Table 3, before training and after, for w and for t = T(w)."""

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
from matplotlib.axes import Axes

from lightning_app.plots.drawing import reach
from lightning_app.report import figures
from lightning_app.report.blocks import Cell, Figure, Section, Table, cell
from lightning_app.report.page_data import PageData, PageNet
from lightning_app.report.profiles import stages

WEIGHTS, TRANSFERRED = "weight_mass", "weight_mass_transferred"
OBJECTS = {WEIGHTS: "w", TRANSFERRED: "t"}
FIELDS = {
    "mean": "Mean",
    "std": "Standard deviation",
    "all": "Mass of all entries",
    "large": "Mass of entries of magnitude ≥ 0.25",
    "id_entries": "Mass of ID entries",
    "id_over_large": "ID mass over mass of magnitude ≥ 0.25",
    "above_07": "Entries of magnitude > 0.7",
    "above_07_signed": "Entries > 0.7",
    "norm": "Euclidean norm",
    "count": "Entries",
    "id_count": "ID entries",
}
CURVES = {"mean": False, "std": False, "all": True, "large": True, "id_entries": True}  # field -> is it a mass?
PARTS = {"histogram": "All weights", "histogram_id": "ID entries"}
LARGE = 0.25  # the paper's threshold of a large weight
Frames = Sequence[figures.Frame]

TITLE = "Where the weights are"
WHAT = (
    "w: the trained weights of the convolutions, without biases; of all layers in a net where most are not convolutions. "
    "t = T(w): the weights of the plain net that computes the same function, with 1 added to each weight through which a "
    "skip passes its input on; without skips t is w. ID entries: entry (c, c) at the centre of each kernel, through "
    "which an identity connection would pass. Mass: sum of magnitudes (L1 norm). The tables show the first and the last "
    "measured epoch."
)


def section(page: PageData) -> Section:
    """Curves, histograms, and behind them Table 3 of each net."""
    measured = {net: forms for net in page.nets if (forms := _measured(net))}
    if not measured:
        return Section("weights", TITLE, notices=["Weight mass was not measured in this run."], short="Weights")
    tables = [_table(net, forms) for net, forms in measured.items()]
    prefixes = (WEIGHTS,) if all(map(_are_equal, measured)) else OBJECTS
    curves = [figure for prefix in prefixes for figure in _curves(page, prefix)]
    histograms = _histograms(page)
    notices = [] if histograms else ["No histograms of weights were saved."]
    return Section("weights", TITLE, WHAT, [*curves, *histograms, *tables], notices, (*OBJECTS,), "Weights")


def _measured(net: PageNet) -> list[str]:
    """Which of w and t have numbers."""
    return [prefix for prefix in OBJECTS if any(f"{prefix}/{field}" in net.names for field in FIELDS)]


def _are_equal(net: PageNet) -> bool:
    """Is t as w at every epoch, as for a plain net?"""
    return all(net.series(f"{WEIGHTS}/{field}").equals(net.series(f"{TRANSFERRED}/{field}")) for field in FIELDS)


def _table(net: PageNet, forms: Sequence[str]) -> Table:
    """A pair of columns for w and one for t; one for both where t is w at every epoch."""
    same = _are_equal(net)
    columns = []
    for prefix in forms[:1] if same else forms:
        epochs = sorted({epoch for field in FIELDS for epoch in net.series(f"{prefix}/{field}").index})
        columns += [(prefix, epoch) for epoch in stages(epochs, (0, 1)).values()]
    fields = [field for field in FIELDS if any(f"{prefix}/{field}" in net.names for prefix, _ in columns)]
    rows = [[Cell(FIELDS[field]), *(_cell(net, prefix, field, epoch) for prefix, epoch in columns)] for field in fields]
    head = [f"{'w = t' if same else OBJECTS[prefix]}, epoch {figures.joined([epoch])}" for prefix, epoch in columns]
    return Table("", ["quantity", *head], rows, title=net.label, folded="first and last epoch")


def _cell(net: PageNet, prefix: str, field: str, epoch: float) -> Cell:
    """The number. A share of the large weights is not defined where there are none: then a note says so."""
    if field == "id_over_large" and net.at(f"{prefix}/large", epoch) == 0:
        return Cell("–", note="no weight so large")
    return cell(net.at(f"{prefix}/{field}", epoch))


def _curves(page: PageData, prefix: str) -> list[Figure]:
    symbol = OBJECTS[prefix]
    caption = f"Statistics of {symbol} over training, without unit. Axes are linear and need not start at zero."
    names = {field: (f"curve-{prefix}-{field}", f"{prefix}/{field}", f"{FIELDS[field]}, {symbol}") for field in CURVES}
    shown = [figures.Curve(*names[field], f"sum of |{symbol}|" if mass else symbol) for field, mass in CURVES.items()]
    return figures.figure_of_curves(page, f"curves-{prefix}", caption, shown, spreads=False)


def _histograms(page: PageData) -> list[Figure]:
    """The first net of each group in plain form, t; all weights above, ID entries below. Nothing if nothing was saved."""
    arrays = [f"{prefix}/{part}/{name}" for prefix in OBJECTS for part in PARTS for name in ("counts", "edges")]
    whole, ids = (
        figures.first_and_last(page, WEIGHTS, arrays, part, title, (part,), partial(_bins, part=part))
        for part, title in PARTS.items()
    )
    of_whole, of_ids = ([frame for view in views for frame in view.all] for views in (whole, ids))
    clip, span = _clip(of_whole, of_ids), _span([*of_whole, *of_ids])

    def adjust(axes: Axes, view: figures.View) -> None:
        reach(axes, [each.y.max() for each in view.all])
        axes.set(xlim=span, ylim=(0, clip if view in whole else None))

    caption, columns = _caption(of_whole, of_ids, clip), ("part", "count")
    views, x, y = [*whole, *ids], "weight t", "weights per bin"
    return figures.figure_of_histograms(
        page, "weight-histograms", caption, views, columns, x=x, y=y, adjust=adjust, wide=2
    )


def _bins(arrays: Mapping[str, np.ndarray], part: str) -> tuple[np.ndarray, np.ndarray] | None:
    """Edges and counts of t, or of w where no t was saved; None if not saved, or not finite."""
    for prefix in (TRANSFERRED, WEIGHTS):
        counts, edges = (arrays.get(f"{prefix}/{part}/{name}") for name in ("counts", "edges"))
        if counts is not None and edges is not None and np.isfinite(edges).all():
            return edges, counts
    return None


def _clip(whole: Frames, ids: Frames) -> float | None:
    """Height to show of all weights: half more than the highest bin of large weights or of ID entries.

    So the peak at 0, a hundred times higher, hides neither. None if that cuts nothing off, or there are none of them.
    """
    large = [counts[np.abs(edges[1:] + edges[:-1]) / 2 >= LARGE].max(initial=0) for *_, edges, counts in whole]
    clip = 1.5 * max([*large, _peak(ids)])
    return float(clip) if 0 < clip < _peak(whole) else None


def _peak(frames: Frames) -> float:
    return max((float(each.y.max(initial=0)) for each in frames), default=0.0)


def _span(frames: Frames) -> tuple[float, float]:
    """From the first to the last bin that holds something, anywhere, and a little more: all panels show this range."""
    low = min((edges[:-1][counts > 0].min(initial=np.inf) for *_, edges, counts in frames), default=np.inf)
    high = max((edges[1:][counts > 0].max(initial=-np.inf) for *_, edges, counts in frames), default=-np.inf)
    margin = 0.04 * (high - low)
    return (float(low - margin), float(high + margin)) if low < high else (-1.0, 1.0)


def _caption(whole: Frames, ids: Frames, clip: float | None) -> str:
    parts = ["Weights of the equivalent plain nets, t, before and after training, as in Fig. 7 of Yu & Tomasi (2019)."]
    if clip is not None:
        parts.append(
            f"Panels of all weights end at a count of {clip:.0f}; the highest bin of any epoch holds {_peak(whole):.0f}."
        )
    widths = figures.joined(f"{np.diff(each.x).max():.3g}" for each in (*whole, *ids))
    return " ".join([*parts, f"Bin width: {widths}."])
