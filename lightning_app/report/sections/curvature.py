"""Curvature: the spectrum of the Hessian of the risk, plain against residual, as far as a few dozen products tell it."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from lightning_app.plots.drawing import curve, filled, finite, from_zero, group_mean, symmetric_log, with_zero
from lightning_app.report.blocks import Figure, Panel, Section, csv_text, seeds_csv
from lightning_app.report.figures import (
    FIRST,
    LAST,
    View,
    curves,
    figure_of_histograms,
    group_legend,
    joined,
    saved_histograms,
)
from lightning_app.report.page_data import Net, PageData
from lightning_app.report.panels import panel
from lightning_app.report.spectra import last_epoch, parts, prefixes, requested_samples, table, tables_of_parts

__all__ = ["section"]

TITLE = "Curvature"
WHAT = (
    "Eigenvalues λ of H, the second derivative of the mean loss in all trained parameters: over {samples}, without weight "
    "penalty, BatchNorm with running statistics. H is known by some products H v only (Lanczos), unless the net is so small "
    "that all eigenvalues were computed. Ends and averages of the spectrum come with errors. The share of negative "
    "eigenvalues (λ < 0; the index, over the number of parameters) and the condition number |λ|max / |λ|10 %, with the 10th "
    "percentile of |λ|, lie in an interval: no more follows from so few products, as most eigenvalues are too close to zero "
    "to tell their sign and size. It is widened by two standard errors of the random starts; neither its ends nor its middle "
    "are estimates. Where all eigenvalues were computed both are exact, and |λ| up to 1e-10 of the largest counts as zero."
)
CURVES = ("top1", "bottom1", "trace", "index_low", "index_high", "unresolved", "condition10_low", "condition10_high")
LEADING = "id/leading"
ERRORS = ("top1_residual", "bottom1_residual", "trace_error")
SPREADABLE = ("top1", "bottom1", "trace", LEADING)  # what is a number, and no end of an interval

NO_LAYERS = ("id", "rest")
PANELS = {  # title, y axis, what is drawn
    "leading": ("Leading eigenvector", "share of its square", ("leading",)),
    "ends": ("λmax and λmin of each layer", "eigenvalue λ", ("top1", "bottom1")),
    "trace": ("Trace of each layer", "trace", ("trace",)),
}
LAYERS = (
    "By layer, in the order of the net, at the last epoch with a spectrum. Leading eigenvector: that of the largest |λ|, over "
    "weights and biases; its square sums to 1 over all parameters."
)
BLOCKS = " λ and trace: of the diagonal block of H of one layer's parameters; errors are in the table."

Lines = dict[str, dict[Net, pd.Series]]  # quantity -> net -> values by layer, from 1
LEAST = 1e-3  # eigenvalues a bin: fewer are not drawn
DENSITY = (
    "Expected number of eigenvalues a bin, eight bins a decade to both sides of zero; both axes logarithmic, the horizontal "
    "one linear around zero. A run of m products tells the density at m points only, and these are the peaks: between them "
    "it is not resolved, and the highest peaks, next to zero, stand for eigenvalues on either side of it."
)

Pick = Callable[[Net], pd.Series]


def section(page: PageData) -> Section | None:
    """None without a spectrum."""
    found = prefixes(page.nets)
    if not found:
        return None
    shown = [_blocks(page, prefix, len(found) > 1) for prefix in found]
    return Section("curvature", TITLE, _what(page, found), list(chain.from_iterable(shown)), families=found)


def _what(page: PageData, found: Sequence[str]) -> str:
    samples = {prefix: " or ".join(map(str, requested_samples(page, prefix))) for prefix in found}
    if len(found) == 1:
        return WHAT.format(samples=f"{samples[found[0]]} probe samples".strip())
    each = ", ".join(f"{number or 'some'} for {prefix}" for prefix, number in samples.items())
    return WHAT.format(samples=f"probe samples ({each})")


def _blocks(page: PageData, prefix: str, several: bool) -> list:
    """What is shown of the spectra under one prefix; with its name, if there are ``several``."""
    key = "curvature-" + re.sub(r"\W+", "-", prefix)
    name = f"{prefix}: " if several else ""
    figures = [make(page, prefix, key, name) for make in (_over_epochs, _density, _by_layer)]
    blocks = [table(page, prefix, prefix if several else ""), *figures, *tables_of_parts(page, prefix)]
    return [block for block in blocks if block is not None]


# -- over epochs ----------------------------------------------------------------------------------------------------------


def _over_epochs(page: PageData, prefix: str, key: str, name: str) -> Figure:
    """The ends, trace, index and condition as the nets are trained."""
    drawn = [*CURVES, *([LEADING] if _measured(page, f"{prefix}/{LEADING}") else [])]
    panels = [
        _ends_panel(page, prefix, key, name),
        _trace_panel(page, prefix, key, name),
        _index_panel(page, prefix, key, name),
        _condition_panel(page, prefix, key, name),
        *([_leading_panel(page, prefix, key, name)] if LEADING in drawn else []),
    ]
    data = csv_text(("net", "name", "epoch", "value"), page.rows(f"{prefix}/{each}" for each in (*drawn, *ERRORS)))
    more = seeds_csv(page.spreads(f"{prefix}/{each}" for each in SPREADABLE if each in drawn))
    caption = name + " ".join(_caption(page, prefix))
    return Figure(f"{key}-curves", caption, panels, group_legend(page), data, more=more)


def _measured(page: PageData, name: str) -> bool:
    return any(name in net.names for net in page.nets)


def _caption(page: PageData, prefix: str) -> list[str]:
    """The caption in parts: convention first, then what these runs leave open."""
    parts = [
        "Largest eigenvalue above zero, most negative one below, as found by Lanczos, which never finds values beyond the "
        "true ends.",
        "Shaded: the norm of the residual, and of the trace one standard error.",
        "Index and condition number lie between the two lines. Eigenvalues, trace and index are drawn on logarithmic axes "
        "where they span more than a decade, linear ones next to zero; the condition number always.",
    ]
    if any(len(nets) > 1 for nets in page.groups.values()):
        parts.append(
            "Of several seeds a band is of the seeds, as the legend says, without the errors of each; an interval runs from "
            "the mean lower to the mean upper end, thin lines are the outermost ends of any seed."
        )
    if shares := _by_group(page, lambda net: net.at(f"{prefix}/unresolved", last_epoch(net, prefix))):
        parts.append(f"Share of eigenvalues whose sign is unresolved at the last epoch: {shares}.")
    if endless := [text for group, nets in page.groups.items() if (text := _endless(group, nets, prefix))]:
        parts.append(
            f"No finite upper end of the condition number, because the percentile may be 0, and drawn to the top of the axes: "
            f"{', '.join(endless)}."
        )
    return parts


def _by_group(page: PageData, pick: Callable[[Net], float | None]) -> str:
    """Of each group, from the smallest to the largest over its seeds."""
    found = {group: [x for net in nets if (x := pick(net)) is not None] for group, nets in page.groups.items()}
    ranges = {
        group: sorted({f"{x:.4g}" for x in (min(values), max(values))}) for group, values in found.items() if values
    }
    return ", ".join(f"{group} {' to '.join(ends)}" for group, ends in ranges.items())


def _endless(group: str, nets: Sequence[Net], prefix: str) -> str:
    highs = pd.concat([net.series(f"{prefix}/condition10_high") for net in nets])
    endless = int(np.isposinf(highs.to_numpy(float)).sum())
    return f"{group} ({endless} of {len(highs)} spectra)" if endless else ""


def _ends_panel(page: PageData, prefix: str, key: str, name: str) -> Panel:
    def draw(axes: Axes) -> None:
        for end in ("top1", "bottom1"):
            _with_error(axes, page, f"{prefix}/{end}", f"{prefix}/{end}_residual")
        with_zero(axes)
        _wide(axes, page, [f"{prefix}/{end}" for end in ("top1", "bottom1")])

    return panel(f"{key}-ends", f"{name}Largest and smallest λ", draw, x="epoch", y="eigenvalue λ", whole_x=True)


def _trace_panel(page: PageData, prefix: str, key: str, name: str) -> Panel:
    def draw(axes: Axes) -> None:
        _with_error(axes, page, f"{prefix}/trace", f"{prefix}/trace_error")
        _wide(axes, page, [f"{prefix}/trace"])

    return panel(f"{key}-trace", f"{name}Trace", draw, x="epoch", y="trace of H", whole_x=True)


def _with_error(axes: Axes, page: PageData, value: str, error: str) -> None:
    """Curves, and around those of single nets what each value may be off."""
    curves(axes, page.groups.values(), _series(value))
    for nets in page.groups.values():
        if len(nets) == 1:
            line, off = (finite(nets[0].series(each)) for each in (value, error))
            filled(axes, line - off, line + off, nets[0].style)


def _series(name: str) -> Pick:
    return lambda net: net.series(name)


def _wide(axes: Axes, page: PageData, names: Iterable[str]) -> None:
    symmetric_log(axes.yaxis, chain.from_iterable(net.series(name) for name in names for net in page.nets))


def _index_panel(page: PageData, prefix: str, key: str, name: str) -> Panel:
    def draw(axes: Axes) -> None:
        _intervals(axes, page, f"{prefix}/index", 1.0)
        _wide(axes, page, [f"{prefix}/index_{end}" for end in ("low", "high")])
        if axes.get_yscale() == "linear":
            from_zero(axes)

    title = f"{name}Share of negative λ: interval"
    return panel(f"{key}-index", title, draw, x="epoch", y="share of eigenvalues", whole_x=True)


def _condition_panel(page: PageData, prefix: str, key: str, name: str) -> Panel:
    low, high = (_all(page, f"{prefix}/condition10_{end}") for end in ("low", "high"))
    top = 10 * max(chain(low, high), default=1.0)

    def draw(axes: Axes) -> None:
        _intervals(axes, page, f"{prefix}/condition10", top)
        axes.set_ylim(min(low, default=1.0) / 2, top)

    title = f"{name}|λ|max / |λ|10 %: interval"
    return panel(f"{key}-condition", title, draw, x="epoch", y="condition number", log_y=True, whole_x=True)


def _all(page: PageData, name: str) -> list[float]:
    """All finite values, positive as the axis needs them."""
    return [x for net in page.nets for x in net.series(name) if np.isfinite(x) and x > 0]


def _intervals(axes: Axes, page: PageData, name: str, top: float) -> None:
    """The area from <name>_low to <name>_high; to ``top`` where the upper end is infinite."""
    for nets in page.groups.values():
        lows, highs = ([line for net in nets if len(line := net.series(f"{name}_{end}"))] for end in ("low", "high"))
        if not lows or not highs:
            continue
        style, low, high = nets[0].style, group_mean(lows), group_mean(highs)
        filled(axes, finite(low), high.clip(upper=top), style)
        for ends, outermost in ((lows, "min"), (highs, "max")):
            seeds = pd.concat(ends, axis=1, join="inner")
            curve(axes, finite(group_mean(ends)), style)
            if len(ends) > 1:
                line = finite(seeds.agg(outermost, axis=1))
                axes.plot(line.index, line, color=style.colour, linewidth=0.7, alpha=0.6)


def _leading_panel(page: PageData, prefix: str, key: str, name: str) -> Panel:
    def draw(axes: Axes) -> None:
        curves(axes, page.groups.values(), _series(f"{prefix}/{LEADING}"))
        from_zero(axes)

    title = f"{name}Leading eigenvector on ID entries"
    return panel(f"{key}-id", title, draw, x="epoch", y="share of its square", whole_x=True)


# -- density --------------------------------------------------------------------------------------------------------------


def _density(page: PageData, prefix: str, key: str, name: str) -> Figure | None:
    """How eigenvalues are distributed, at the first and the last epoch with a spectrum; None if no density was saved."""
    views = [
        View(
            f"{key}-density-{when}", f"{name}Density, epoch {joined(each.epoch for each in found.values())}", (), found
        )
        for when, epoch in (("first", FIRST), ("last", LAST))
        if (found := saved_histograms(page, prefix, epoch, partial(_bins, prefix=prefix)))
    ]
    if not views:
        return None

    def adjust(axes: Axes, view: View) -> None:
        at = np.concatenate([_occupied(*each[:2]) for each in view.of.values()])
        symmetric_log(axes.xaxis, at, decades=10)
        margin = 10**0.25  # a quarter of a decade beyond the outermost bins
        axes.set_xlim(margin * at.min(initial=-LEAST), margin * at.max(initial=LEAST))
        axes.set_ylim(_floor(view), 2 * max(_counts(view).max(initial=0), 10 * _floor(view)))

    caption, x, y = name + _density_caption(views, prefix), "eigenvalue λ", "eigenvalues per bin"
    return figure_of_histograms(
        page,
        f"{key}-density",
        caption,
        views,
        ("eigenvalues",),
        x=x,
        y=y,
        adjust=adjust,
        floor=_floor,
        log_y=True,
        wide=2,
    )


def _bins(arrays: Mapping[str, np.ndarray], prefix: str) -> tuple[np.ndarray, np.ndarray] | None:
    """Counts and edges; None if not saved, or not finite."""
    counts, edges, outside = (arrays.get(f"{prefix}/density/{name}") for name in ("counts", "edges", "outside"))
    if counts is None or edges is None or outside is None:
        return None
    return (counts, edges) if np.isfinite(counts).all() and np.isfinite(edges).all() else None


def _counts(view: View) -> np.ndarray:
    return np.concatenate([each.counts for each in view.of.values()])


def _floor(view: View) -> float:
    counts = _counts(view)
    return max(LEAST, float(10 ** np.floor(np.log10(counts[counts > 0].min(initial=1.0)))))


def _occupied(counts: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Edges of the bins that are drawn."""
    drawn = counts >= LEAST
    return np.concatenate([edges[:-1][drawn], edges[1:][drawn]])


def _density_caption(views: Sequence[View], prefix: str) -> str:
    parts = [DENSITY]
    histograms = [(net, each) for view in views for net, each in view.of.items()]
    if any((counts[counts > 0] < LEAST).any() for _, (counts, _, _) in histograms):
        parts.append(f"Bins with an expected number below {LEAST} are left out.")
    lost = sum(float(np.sum(net.arrays(prefix, each.epoch)[f"{prefix}/density/outside"])) for net, each in histograms)
    if lost:
        edges = histograms[0][1].edges
        parts.append(f"Not drawn, beyond {edges[0]:g} and {edges[-1]:g}: {lost:.3g}.")
    return " ".join(parts)


# -- by layer -------------------------------------------------------------------------------------------------------------


def _by_layer(page: PageData, prefix: str, key: str, name: str) -> Figure | None:
    """Profiles over layers at the last epoch; None without any."""
    lines = {what: _profiles(page, prefix, what) for _, _, drawn in PANELS.values() for what in drawn}
    if not any(lines.values()):
        return None
    panels = [_layer_panel(page, lines, what, key, name) for what, (_, _, drawn) in PANELS.items() if lines[drawn[0]]]
    rows = [
        (net.label, what, layer, last_epoch(net, prefix), x)
        for what, by_net in lines.items()
        for net, line in by_net.items()
        for layer, x in line.items()
    ]
    data = csv_text(("net", "quantity", "layer", "epoch", "value"), rows)
    caption = name + LAYERS + BLOCKS * bool(lines["trace"])
    return Figure(f"{key}-layers", caption, panels, group_legend(page), data)


def _profiles(page: PageData, prefix: str, what: str) -> dict[Net, pd.Series]:
    pick: Callable[[Net, str, str], Sequence[float | None]] = _leading_by_layer if what == "leading" else _of_blocks
    found = {net: pd.Series(pick(net, prefix, what), dtype=float) for net in page.nets}
    return {net: line.set_axis(range(1, 1 + len(line))) for net, line in found.items() if len(line)}


def _leading_by_layer(net: Net, prefix: str, what: str) -> Sequence[float]:
    """The array of the last epoch; empty if there is none."""
    epoch = last_epoch(net, prefix)
    return [] if epoch is None else [*net.arrays(prefix, epoch).get(f"{prefix}/{what}", ())]


def _of_blocks(net: Net, prefix: str, what: str) -> Sequence[float | None]:
    epoch = last_epoch(net, prefix)
    layers = [part for part in parts([net], prefix) if part not in NO_LAYERS]
    return [net.at(f"{prefix}/{layer}/{what}", epoch) for layer in layers]


def _layer_panel(page: PageData, lines: Lines, what: str, key: str, name: str) -> Panel:
    title, y, drawn = PANELS[what]

    def draw(axes: Axes) -> None:
        for quantity in drawn:
            curves(axes, page.groups.values(), _of(lines[quantity]), every=True)
        if what == "leading":
            from_zero(axes)
        else:
            with_zero(axes)  # so that rounding errors of zero are drawn there
            symmetric_log(axes.yaxis, (x for quantity in drawn for line in lines[quantity].values() for x in line))

    return panel(f"{key}-layers-{what}", f"{name}{title}", draw, x="layer", y=y, whole_x=True)


def _of(by_net: dict[Net, pd.Series]) -> Callable[[Net], pd.Series]:
    return lambda net: by_net.get(net, pd.Series(dtype=float))
