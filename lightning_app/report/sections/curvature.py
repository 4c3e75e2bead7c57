"""Curvature: the spectrum of the Hessian of the risk, plain against residual, as far as a few dozen products tell it."""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import chain

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from numpy.typing import ArrayLike

from lightning_app.plots.drawing import (
    curve,
    filled,
    finite,
    from_zero,
    group_mean,
    over_seeds,
    reach,
    symmetric_log,
    with_zero,
)
from lightning_app.report.blocks import Block, Figure, Panel, Rows, Section, csv_text, seeds_csv
from lightning_app.report.figures import (
    Frame,
    View,
    curve_panel,
    figure_of_histograms,
    first_and_last,
    frames_csv,
    group_legend,
)
from lightning_app.report.page_data import Net, PageData
from lightning_app.report.panels import panel
from lightning_app.report.spectra import last_epoch, parts, prefixes, requested_samples, table, tables_of_parts

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
# quantity -> its error
ENDS, TRACE = {"top1": "top1_residual", "bottom1": "bottom1_residual"}, {"trace": "trace_error"}
OVER_EPOCHS = (
    "Largest eigenvalue above zero, most negative one below, as found by Lanczos, which never finds values beyond the true "
    "ends. Shaded: the norm of the residual, and of the trace one standard error. Index and condition number lie between the "
    "two lines. Eigenvalues, trace and index are drawn on logarithmic axes where they span more than a decade, linear ones "
    "next to zero; the condition number always."
)
SEVERAL_SEEDS = (
    "Of several seeds a band is of the seeds, as the legend says, without the errors of each; an interval runs from the mean "
    "lower to the mean upper end, thin lines are the outermost ends of any seed."
)
UNRESOLVED = "Share of eigenvalues whose sign is unresolved at the last epoch: {}."
ENDLESS = "No finite upper end of the condition number, because the percentile may be 0, and drawn to the top of the axes: {}."

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

DENSITY_ARRAYS = ("counts", "edges", "outside")
LEAST = 1e-3  # eigenvalues a bin: fewer are not drawn
DENSITY = (
    "Expected number of eigenvalues a bin, eight bins a decade to both sides of zero; both axes logarithmic, the horizontal "
    "one linear around zero. A run of m products tells the density at m points only, and these are the peaks: between them "
    "it is not resolved, and the highest peaks, next to zero, stand for eigenvalues on either side of it."
)


def section(page: PageData) -> Section | None:
    """None without a spectrum; of several, figures and tables bear the prefix of each."""
    found = prefixes(page.nets)
    if not found:
        return None
    blocks: list[Block] = []
    for prefix in found:
        key, title = key_of(prefix), prefix if len(found) > 1 else ""
        about = (page, prefix, key, f"{title}: " if title else "")
        figures = [_over_epochs(*about), *_density(*about), *_by_layer(*about)]
        blocks += [table(page, prefix, title), *figures, *tables_of_parts(page, prefix)]
    return Section("curvature", TITLE, WHAT.format(samples=_samples(page, found)), blocks, families=found)


def key_of(prefix: str) -> str:
    """What the keys of a spectrum's figures begin with."""
    return "curvature-" + re.sub(r"\W+", "-", prefix)


def _samples(page: PageData, found: Sequence[str]) -> str:
    """Over how many the mean loss is."""
    samples = {prefix: " or ".join(map(str, requested_samples(page, prefix))) for prefix in found}
    if len(found) == 1:
        return f"{samples[found[0]]} probe samples".strip()
    each = ", ".join(f"{number or 'some'} for {prefix}" for prefix, number in samples.items())
    return f"probe samples ({each})"


def _over_epochs(page: PageData, prefix: str, key: str, name: str) -> Figure:
    """The ends, trace, index and condition as the nets are trained."""
    panels = [
        _panel_with_errors(page, prefix, f"{key}-ends", f"{name}Largest and smallest λ", "eigenvalue λ", ENDS),
        _panel_with_errors(page, prefix, f"{key}-trace", f"{name}Trace", "trace of H", TRACE),
        _index_panel(page, prefix, key, name),
        _condition_panel(page, prefix, key, name),
    ]
    drawn, spread = [*CURVES], [*ENDS, *TRACE]  # a spread is of what is a number, and no end of an interval
    if page.having(f"{prefix}/{LEADING}").nets:
        title, leading = f"{name}Leading eigenvector on ID entries", partial(Net.series, name=f"{prefix}/{LEADING}")
        rows, y = _rows(prefix, LEADING), "share of its square"
        panels.append(curve_panel(page, f"{key}-id", title, leading, y=y, after=from_zero, rows=rows))
        drawn, spread = [*drawn, LEADING], [*spread, LEADING]
    errors = (*ENDS.values(), *TRACE.values())
    data = csv_text(("net", "name", "epoch", "value"), page.rows(f"{prefix}/{each}" for each in (*drawn, *errors)))
    more = seeds_csv(page.spreads(f"{prefix}/{each}" for each in spread))
    caption = name + " ".join(_caption(page, prefix))
    return Figure(f"{key}-curves", caption, panels, group_legend(page), data, more=more)


def _caption(page: PageData, prefix: str) -> list[str]:
    """The caption in parts: convention first, then what these runs leave open."""
    parts = [OVER_EPOCHS]
    if any(len(nets) > 1 for nets in page.groups.values()):
        parts.append(SEVERAL_SEEDS)
    shares, endless = [], []
    for group, nets in page.groups.items():
        of_seeds = [x for net in nets if (x := net.at(f"{prefix}/unresolved", last_epoch(net, prefix))) is not None]
        if of_seeds:
            ends = sorted({f"{x:.4g}" for x in (min(of_seeds), max(of_seeds))})
            shares.append(f"{group} {' to '.join(ends)}")
        highs = pd.concat([net.series(f"{prefix}/condition10_high") for net in nets])
        if count := int(np.isposinf(highs.to_numpy(float)).sum()):
            endless.append(f"{group} ({count} of {len(highs)} spectra)")
    parts += [UNRESOLVED.format(", ".join(shares))] * bool(shares)
    return parts + [ENDLESS.format(", ".join(endless))] * bool(endless)


def _panel_with_errors(page: PageData, prefix: str, key: str, title: str, y: str, errors: Mapping[str, str]) -> Panel:
    """Curves of quantities, and around those of single nets the errors: what each value may be off."""

    def draw(axes: Axes) -> None:
        for name, error in errors.items():
            for nets in page.groups.values():
                over_seeds(axes, [net.series(f"{prefix}/{name}") for net in nets], nets[0].style)
            for (net,) in (nets for nets in page.groups.values() if len(nets) == 1):
                line, off = (finite(net.series(f"{prefix}/{each}")) for each in (name, error))
                filled(axes, line - off, line + off, net.style)
        if len(errors) > 1:  # ends on both sides of zero
            with_zero(axes)
        _wide(axes, page, [f"{prefix}/{name}" for name in errors])

    return panel(key, title, draw, x="epoch", y=y, rows=_rows(prefix, *errors), whole_x=True)


def _wide(axes: Axes, page: PageData, names: Iterable[str]) -> None:
    symmetric_log(axes.yaxis, chain.from_iterable(net.series(name) for name in names for net in page.nets))


def _index_panel(page: PageData, prefix: str, key: str, name: str) -> Panel:
    def draw(axes: Axes) -> None:
        _intervals(axes, page, f"{prefix}/index", 1.0)
        _wide(axes, page, [f"{prefix}/index_{end}" for end in ("low", "high")])
        if axes.get_yscale() == "linear":
            from_zero(axes)

    title, rows = f"{name}Share of negative λ: interval", _rows(prefix, "index_low", "index_high")
    return panel(f"{key}-index", title, draw, x="epoch", y="share of eigenvalues", rows=rows, whole_x=True)


def _condition_panel(page: PageData, prefix: str, key: str, name: str) -> Panel:
    lows, highs = (
        [x for net in page.nets for x in net.series(f"{prefix}/condition10_{end}") if np.isfinite(x) and x > 0]
        for end in ("low", "high")
    )
    top = 10 * max(chain(lows, highs), default=1.0)

    def draw(axes: Axes) -> None:
        _intervals(axes, page, f"{prefix}/condition10", top)
        axes.set_ylim(min(lows, default=1.0) / 2, top)

    title, rows = f"{name}|λ|max / |λ|10 %: interval", _rows(prefix, "condition10_low", "condition10_high")
    y = "condition number"
    return panel(f"{key}-condition", title, draw, x="epoch", y=y, rows=rows, log_y=True, whole_x=True)


def _rows(prefix: str, *names: str) -> Rows:
    return Rows({"name": [f"{prefix}/{name}" for name in names]}, line="name" if len(names) > 1 else "")


def _intervals(axes: Axes, page: PageData, name: str, top: float) -> None:
    """The area from <name>_low to <name>_high; to ``top`` where the upper end is infinite."""
    for nets in page.groups.values():
        lows, highs = ([line for net in nets if len(line := net.series(f"{name}_{end}"))] for end in ("low", "high"))
        if not lows or not highs:
            continue
        style, low, high = nets[0].style, group_mean(lows), group_mean(highs)
        filled(axes, finite(low), high.clip(upper=top), style)
        for ends, outermost in ((lows, "min"), (highs, "max")):
            curve(axes, finite(group_mean(ends)), style)
            if len(ends) > 1:
                line = finite(pd.concat(ends, axis=1, join="inner").agg(outermost, axis=1))
                axes.plot(line.index, line, color=style.colour, linewidth=0.7, alpha=0.6, gid=style.arm)


def _density(page: PageData, prefix: str, key: str, name: str) -> list[Figure]:
    """How eigenvalues are distributed, at the first and the last epoch with a spectrum; nothing if no density was saved."""
    views = first_and_last(
        page, prefix, _arrays(prefix), f"{key}-density", f"{name}Density", (), partial(_bins, prefix=prefix)
    )

    def adjust(axes: Axes, view: View) -> None:
        drawn = [(each.edges, each.counts >= LEAST) for each in view.all]
        at = np.concatenate([[*edges[:-1][those], *edges[1:][those]] for edges, those in drawn])
        symmetric_log(axes.xaxis, at, decades=10)
        margin = 10**0.25  # a quarter of a decade beyond the outermost bins
        axes.set_xlim(margin * at.min(initial=-LEAST), margin * at.max(initial=LEAST))
        axes.set_ylim(_floor(view), 2 * max(_counts(view).max(initial=0), 10 * _floor(view)))

    caption = name + _density_caption(views, prefix)
    draw = partial(figure_of_histograms, x="eigenvalue λ", y="eigenvalues per bin", log_y=True, wide=2)
    return draw(page, f"{key}-density", caption, views, ("eigenvalues",), adjust=adjust, floor=_floor)


def _bins(arrays: Mapping[str, np.ndarray], prefix: str) -> tuple[np.ndarray, np.ndarray] | None:
    """Counts and edges; None if not saved, or not finite."""
    counts, edges, outside = (arrays.get(f"{prefix}/density/{name}") for name in DENSITY_ARRAYS)
    if counts is None or edges is None or outside is None:
        return None
    return (counts, edges) if np.isfinite(counts).all() and np.isfinite(edges).all() else None


def _counts(view: View) -> np.ndarray:
    return np.concatenate([each.counts for each in view.all])


def _floor(view: View) -> float:
    counts = _counts(view)
    return max(LEAST, float(10 ** np.floor(np.log10(counts[counts > 0].min(initial=1.0)))))


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


def _by_layer(page: PageData, prefix: str, key: str, name: str) -> list[Figure]:
    """Profiles over layers at the last epoch; nothing without any."""
    lines = {what: _profiles(page, prefix, what) for _, _, drawn in PANELS.values() for what in drawn}
    leading = _leading(page, prefix)
    panels = [
        _layer_panel(
            *(page, prefix, {quantity: lines[quantity] for quantity in drawn}, f"{key}-layers-{what}", name + title, y),
            [frame.y for frame in leading] if what == "leading" else _ever(page, prefix, drawn),
        )
        for what, (title, y, drawn) in PANELS.items()
        if lines[drawn[0]]
    ]
    rows = [
        (net.label, what, layer, last_epoch(net, prefix), x)
        for what, by_net in lines.items()
        for net, line in by_net.items()
        for layer, x in line.items()
    ]
    data = csv_text(("net", "quantity", "layer", "epoch", "value"), rows)
    caption = name + LAYERS + BLOCKS * bool(lines["trace"])
    frames = frames_csv({f"{key}-layers-leading": leading})
    return [Figure(f"{key}-layers", caption, panels, group_legend(page), data, frames=frames)] if panels else []


def _ever(page: PageData, prefix: str, drawn: Sequence[str]) -> list[pd.Series]:
    """What was logged of each layer's block, at any epoch."""
    return [
        net.series(f"{prefix}/{layer}/{what}")
        for net in page.nets
        for layer in parts([net], prefix)
        if layer not in NO_LAYERS
        for what in drawn
    ]


def _leading(page: PageData, prefix: str) -> list[Frame]:
    name = f"{prefix}/leading"
    saved = page.saved(prefix, _arrays(prefix), ends=False)
    found = [(net, *each) for net, epochs in saved.items() for each in epochs.items()]
    values = [(net, epoch, each[name]) for net, epoch, each in found if name in each]
    return [Frame(net, epoch, np.arange(1, 1 + len(each)), each) for net, epoch, each in values]


def _arrays(prefix: str) -> list[str]:
    """All that is shown at every epoch."""
    return [f"{prefix}/leading", *(f"{prefix}/density/{part}" for part in DENSITY_ARRAYS)]


def _profiles(page: PageData, prefix: str, what: str) -> dict[Net, pd.Series]:
    """By layer, from 1: the array of the leading eigenvector, or what was logged of each layer's block."""
    found = {}
    for net in page.nets:
        epoch = last_epoch(net, prefix)
        values: Sequence[float | None] | np.ndarray
        if what == "leading":
            values = () if epoch is None else net.arrays(prefix, epoch).get(f"{prefix}/{what}", ())
        else:
            layers = [part for part in parts([net], prefix) if part not in NO_LAYERS]
            values = [net.at(f"{prefix}/{layer}/{what}", epoch) for layer in layers]
        if len(values):
            found[net] = pd.Series(values, range(1, 1 + len(values)), dtype=float)
    return found


def _layer_panel(
    page: PageData,
    prefix: str,
    lines: Mapping[str, Mapping[Net, pd.Series]],
    key: str,
    title: str,
    y: str,
    ever: Sequence[ArrayLike],
) -> Panel:
    def draw(axes: Axes) -> None:
        for values in ever:
            reach(axes, values)
        for by_net in lines.values():
            for nets in page.groups.values():
                shown = [by_net.get(net, pd.Series(dtype=float)) for net in nets]
                over_seeds(axes, shown, nets[0].style, every=True)
        if "leading" in lines:
            from_zero(axes)
        else:
            with_zero(axes)  # so that rounding errors of zero are drawn there
            symmetric_log(axes.yaxis, np.concatenate(ever) if ever else ())

    measures = () if "leading" in lines else [f"{prefix}/*/{what}" for what in lines]
    rows = Rows({"quantity": [*lines]}, x="layer", line="quantity" if len(lines) > 1 else "", measures=measures)
    return panel(key, title, draw, x="layer", y=y, rows=rows, whole_x=True)
