"""Curvature: the spectrum of the Hessian of the risk, plain against residual, as far as a few dozen products tell it."""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from numpy.typing import ArrayLike

from lightning_app.plots import drawing
from lightning_app.report import figures
from lightning_app.report.blocks import Block, Figure, Panel, Rows, Section, csv_text, seeds_csv
from lightning_app.report.page_data import PageData, PageNet
from lightning_app.report.panels import panel
from lightning_app.report.profiles import positions
from lightning_app.report.spectra import (
    UPPER,
    last_epoch,
    matrix_of,
    parts,
    prefixes,
    samples_of,
    table,
    tables_of_parts,
)

TITLE = "Curvature"
WHAT = (
    "Eigenvalues λ of H, {matrix} of the mean loss in all trained parameters, over {samples}, without weight penalty; "
    "BatchNorm uses running statistics. Unless the net is so small that all eigenvalues were computed, H is known by "
    "some products H v only (Lanczos), and ends and averages of the spectrum come with errors. There are only intervals "
    "for the share of negative eigenvalues (λ < 0; the index, divided by the number of parameters) and for the condition "
    "number |λ|max / |λ|10 %, where |λ|10 % is the 10th percentile of |λ|: most eigenvalues are so close to zero that a "
    "few products do not show their sign and size. An interval is widened by two standard errors of the random starts; "
    "neither its ends nor its middle are estimates. Where all eigenvalues were computed, both numbers are exact, and |λ| "
    "up to 1e-10 of the largest counts as zero."
)
INDEX, CONDITION = ("index_low", "index_high"), ("condition10_low", "condition10_high")
CURVES = ("top1", "bottom1", "trace", *INDEX, "unresolved", *CONDITION)
LEADING = "id/leading"
# quantity -> its error
ENDS, TRACE = {"top1": "top1_residual", "bottom1": "bottom1_residual"}, {"trace": "trace_error"}
NUMBERS = (*ENDS, *TRACE, LEADING)  # and no ends of an interval: these have a spread over seeds
OVER_EPOCHS = (
    "Ends: largest eigenvalue above, smallest below; Lanczos never finds values beyond the true ends. Shaded: the error, "
    "which is the norm of the residual for an eigenvalue and one standard error for the trace. Index and condition "
    "number lie between their two lines. Axes of eigenvalues, trace and index are logarithmic where values span more "
    "than a decade, and linear next to zero; that of the condition number is always logarithmic."
)
SEVERAL_SEEDS = (
    "With several seeds a band shows the spread over seeds, as the legend says, without the error of each. An interval "
    "runs from the mean lower to the mean upper end; thin lines are the outermost ends of any seed."
)
ENDLESS = "An interval of the condition number without a finite upper end is drawn to the top of the axes."

NO_LAYERS = ("id", "rest")
PANELS = {  # title, y axis, what is drawn
    "leading": ("Leading eigenvector", "share of its square", ("leading",)),
    "ends": ("λmax and λmin of each layer", "eigenvalue λ", ("top1", "bottom1")),
    "trace": ("Trace of each layer", "trace", ("trace",)),
}
LAYERS = (
    "By layer, in the order of the net, at the last epoch with a spectrum{}. Leading eigenvector: the one of the largest "
    "|λ|; shown is how much of its square lies on each layer’s weights and biases. Over all parameters the square sums "
    "to 1."
)
BLOCKS = " λ and trace: of the diagonal block of H for one layer’s parameters; the table below has their errors."

DENSITY_ARRAYS = ("counts", "edges", "outside")
LEAST = 1e-3  # eigenvalues a bin: fewer are not drawn
DENSITY = (
    "Expected number of eigenvalues per bin, eight bins per decade on both sides of zero. Both axes are logarithmic, the "
    "horizontal one linear around zero. A run of m products tells the density at m points only, which are the peaks: "
    "between them it is not resolved, and the highest peaks, next to zero, stand for eigenvalues on both sides of it."
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
        drawn = [_over_epochs(*about), *_density(*about), *_by_layer(*about)]
        blocks += [table(page, prefix, title), *drawn, *tables_of_parts(page, prefix)]
    return Section(
        "curvature",
        TITLE,
        WHAT.format(matrix=_matrix(page, found), samples=_samples(page, found)),
        blocks,
        families=found,
    )


def key_of(prefix: str) -> str:
    """What the keys of a spectrum's figures begin with."""
    return "curvature-" + re.sub(r"\W+", "-", prefix)


def _matrix(page: PageData, found: Sequence[str]) -> str:
    """What H is; of which prefix, where these differ."""
    matrices = {prefix: matrix_of(page, prefix) for prefix in found}
    several = len({*matrices.values()}) > 1
    return ", or ".join(dict.fromkeys(matrix + f" ({prefix})" * several for prefix, matrix in matrices.items()))


def _samples(page: PageData, found: Sequence[str]) -> str:
    """Over how many the mean loss is."""
    samples = {prefix: " or ".join(map(str, samples_of(page, prefix))) for prefix in found}
    if len(found) == 1:
        return f"{samples[found[0]]} probe samples".strip()
    each = ", ".join(f"{number or 'some'} for {prefix}" for prefix, number in samples.items())
    return f"probe samples ({each})"


def _over_epochs(page: PageData, prefix: str, key: str, name: str) -> Figure:
    """The ends, trace, index and condition as the nets are trained."""

    def drawn(which: str, title: str, y: str, draw: Callable[..., None], *names: str, log_y: bool = False) -> Panel:
        rows = Rows({"name": [f"{prefix}/{each}" for each in names]}, line="name" if len(names) > 1 else "")
        draw = partial(draw, page=page, prefix=prefix)
        return panel(f"{key}-{which}", name + title, draw, x="epoch", y=y, rows=rows, log_y=log_y, whole_x=True)

    panels = [
        drawn("ends", "Largest and smallest λ", "eigenvalue λ", partial(_draw_errors, errors=ENDS), *ENDS),
        drawn("trace", "Trace", "trace of H", partial(_draw_errors, errors=TRACE), *TRACE),
        drawn("index", "Share of negative λ: interval", "share of eigenvalues", _draw_index, *INDEX),
        drawn("condition", "|λ|max / |λ|10 %: interval", "condition number", _draw_condition, *CONDITION, log_y=True),
    ]
    if page.having(leading := f"{prefix}/{LEADING}").nets:
        words = name + "Leading eigenvector on ID entries", "share of its square"
        panels.append(figures.panel_of(page, figures.Curve(f"{key}-id", leading, *words, adjust=drawing.from_zero)))
    names = [f"{prefix}/{each}" for each in (*CURVES, LEADING, *ENDS.values(), *TRACE.values())]
    data = csv_text(("net", "name", "epoch", "value"), page.rows(names))
    more = seeds_csv(page.spreads(f"{prefix}/{each}" for each in NUMBERS))
    caption = name + " ".join(_caption(page, prefix))
    return Figure(f"{key}-curves", caption, panels, figures.group_legend(page), data, more=more)


def _caption(page: PageData, prefix: str) -> list[str]:
    """The caption in parts: convention first, then what these runs leave open."""
    parts = [OVER_EPOCHS]
    if any(len(nets) > 1 for nets in page.groups.values()):
        parts.append(SEVERAL_SEEDS)
    endless = any(math.inf in net.series(f"{prefix}/{UPPER}").to_numpy() for net in page.nets)
    return parts + [ENDLESS] * endless


def _draw_errors(axes: Axes, page: PageData, prefix: str, errors: Mapping[str, str]) -> None:
    """Curves of quantities, and around those of single nets the errors: what each value may be off."""
    for name, error in errors.items():
        figures.over_groups(axes, page, partial(PageNet.series, name=f"{prefix}/{name}"))
        for (net,) in (nets for nets in page.groups.values() if len(nets) == 1):
            line, off = (drawing.finite(net.series(f"{prefix}/{each}")) for each in (name, error))
            drawing.filled(axes, line - off, line + off, net.style)
    if len(errors) > 1:  # ends on both sides of zero
        drawing.with_zero(axes)
    drawing.symmetric_log(axes.yaxis, _values(page, prefix, errors))


def _draw_index(axes: Axes, page: PageData, prefix: str) -> None:
    _draw_intervals(axes, page, prefix, INDEX, 1.0)
    drawing.symmetric_log(axes.yaxis, _values(page, prefix, INDEX))
    if axes.get_yscale() == "linear":
        drawing.from_zero(axes)


def _draw_condition(axes: Axes, page: PageData, prefix: str) -> None:
    lows, highs = ([x for x in _values(page, prefix, [end]) if np.isfinite(x) and x > 0] for end in CONDITION)
    top = 10 * max(chain(lows, highs), default=1.0)
    _draw_intervals(axes, page, prefix, CONDITION, top)
    axes.set_ylim(min(lows, default=1.0) / 2, top)


def _values(page: PageData, prefix: str, names: Iterable[str]) -> Iterable[float]:
    return chain.from_iterable(net.series(f"{prefix}/{name}") for name in names for net in page.nets)


def _draw_intervals(axes: Axes, page: PageData, prefix: str, ends: tuple[str, str], top: float) -> None:
    """The area from the lower to the upper end; to ``top`` where that is infinite."""
    for nets in page.groups.values():
        lows, highs = ([line for net in nets if len(line := net.series(f"{prefix}/{end}"))] for end in ends)
        if not lows or not highs:
            continue
        style, low, high = nets[0].style, drawing.group_mean(lows), drawing.group_mean(highs)
        drawing.filled(axes, drawing.finite(low), high.clip(upper=top), style)
        for lines, outermost in ((lows, "min"), (highs, "max")):
            drawing.curve(axes, drawing.finite(drawing.group_mean(lines)), style)
            if len(lines) > 1:
                line = drawing.finite(pd.concat(lines, axis=1, join="inner").agg(outermost, axis=1))
                axes.plot(line.index, line, color=style.colour, linewidth=0.7, alpha=0.6, gid=style.arm)


def _density(page: PageData, prefix: str, key: str, name: str) -> list[Figure]:
    """How eigenvalues are distributed, at the first and the last epoch with a spectrum; nothing if no density was saved."""
    views = figures.first_and_last(
        page, prefix, _arrays(prefix), f"{key}-density", f"{name}Density", (), partial(_bins, prefix=prefix)
    )

    def adjust(axes: Axes, view: figures.View) -> None:
        drawn = [(each.x, each.y >= LEAST) for each in view.all]
        at = np.concatenate([[*edges[:-1][those], *edges[1:][those]] for edges, those in drawn])
        drawing.symmetric_log(axes.xaxis, at, decades=10)
        margin = 10**0.25  # a quarter of a decade beyond the outermost bins
        axes.set_xlim(margin * at.min(initial=-LEAST), margin * at.max(initial=LEAST))
        axes.set_ylim(_floor(view), 2 * max(_counts(view).max(initial=0), 10 * _floor(view)))

    caption = name + _density_caption(views, prefix)
    draw = partial(figures.figure_of_histograms, x="eigenvalue λ", y="eigenvalues per bin", log_y=True, wide=2)
    return draw(page, f"{key}-density", caption, views, ("eigenvalues",), adjust=adjust, floor=_floor)


def _bins(arrays: Mapping[str, np.ndarray], prefix: str) -> tuple[np.ndarray, np.ndarray] | None:
    """Edges and counts; None if not saved, or not finite."""
    counts, edges, outside = (arrays.get(f"{prefix}/density/{name}") for name in DENSITY_ARRAYS)
    if counts is None or edges is None or outside is None:
        return None
    return (edges, counts) if np.isfinite(counts).all() and np.isfinite(edges).all() else None


def _counts(view: figures.View) -> np.ndarray:
    return np.concatenate([each.y for each in view.all])


def _floor(view: figures.View) -> float:
    counts = _counts(view)
    return max(LEAST, float(10 ** np.floor(np.log10(counts[counts > 0].min(initial=1.0)))))


def _density_caption(views: Sequence[figures.View], prefix: str) -> str:
    parts = [DENSITY]
    histograms = [each for view in views for each in view.of]
    if any((counts[counts > 0] < LEAST).any() for *_, counts in histograms):
        parts.append(f"Bins with an expected number below {LEAST} are left out.")
    outside = f"{prefix}/density/outside"
    lost = sum(float(np.sum(each.net.arrays(prefix, each.epoch)[outside])) for each in histograms)
    if lost:
        edges = histograms[0].x
        parts.append(f"Not drawn, beyond {edges[0]:g} and {edges[-1]:g}: {lost:.3g}.")
    return " ".join(parts)


def _by_layer(page: PageData, prefix: str, key: str, name: str) -> list[Figure]:
    """Profiles over layers at the last epoch; nothing without any."""
    leading = _leading(page, prefix)
    lines = {"leading": _leading_at_end(page, prefix)}
    lines |= {what: _blocks_at_end(page, prefix, what) for what in ("top1", "bottom1", "trace")}
    panels = []
    for which, (title, y, drawn) in PANELS.items():
        if lines[drawn[0]]:
            of_blocks = which != "leading"
            measures = [f"{prefix}/*/{what}" for what in drawn] if of_blocks else ()
            several = "quantity" if len(drawn) > 1 else ""
            its = Rows({"quantity": drawn}, x="layer", line=several, measures=measures)
            ever = _ever(page, prefix, drawn) if of_blocks else [frame.y for frame in leading]
            draw = partial(
                _draw_layers, page=page, lines=[lines[what] for what in drawn], ever=ever, to_zero=not of_blocks
            )
            panels.append(panel(f"{key}-layers-{which}", name + title, draw, x="layer", y=y, rows=its, whole_x=True))
    rows = [
        (net.label, what, layer, last_epoch(net, prefix), x)
        for what, by_net in lines.items()
        for net, line in by_net.items()
        for layer, x in line.items()
    ]
    data = csv_text(("net", "quantity", "layer", "epoch", "value"), rows)
    ends = figures.of_each(epoch for *_, epoch, _ in rows if epoch is not None)
    caption = name + LAYERS.format(ends) + BLOCKS * bool(lines["trace"])
    frames = figures.frames_csv({f"{key}-layers-leading": leading})
    return [Figure(f"{key}-layers", caption, panels, figures.group_legend(page), data, frames=frames)] if panels else []


def _leading_at_end(page: PageData, prefix: str) -> dict[PageNet, pd.Series]:
    """The leading eigenvector's square by layer, at the last epoch with a spectrum."""
    found = {}
    for net in page.nets:
        arrays = net.arrays(prefix, last_epoch(net, prefix))
        if len(values := arrays.get(f"{prefix}/leading", np.empty(0))):
            found[net] = pd.Series(values, range(1, 1 + len(values)), dtype=float)
    return found


def _blocks_at_end(page: PageData, prefix: str, what: str) -> dict[PageNet, pd.Series]:
    """A number of each layer's diagonal block of H, at the last epoch with a spectrum."""
    found = {}
    for net in page.nets:
        if layers := _layers(net, prefix):
            values = [net.at(f"{prefix}/{layer}/{what}", last_epoch(net, prefix)) for layer in layers]
            found[net] = pd.Series(values, positions(layers), dtype=float)
    return found


def _layers(net: PageNet, prefix: str) -> list[str]:
    """The layers of which the diagonal block of H has a spectrum."""
    return [part for part in parts([net], prefix) if part not in NO_LAYERS]


def _ever(page: PageData, prefix: str, drawn: Sequence[str]) -> list[pd.Series]:
    """What was logged of each layer's block, at any epoch."""
    return [
        net.series(f"{prefix}/{layer}/{what}") for net in page.nets for layer in _layers(net, prefix) for what in drawn
    ]


def _leading(page: PageData, prefix: str) -> list[figures.Frame]:
    name = f"{prefix}/leading"
    saved = page.saved(prefix, _arrays(prefix), ends=False)
    found = [(net, *each) for net, epochs in saved.items() for each in epochs.items()]
    values = [(net, epoch, each[name]) for net, epoch, each in found if name in each]
    return [figures.Frame(net, epoch, np.arange(1, 1 + len(each)), each) for net, epoch, each in values]


def _arrays(prefix: str) -> list[str]:
    """Keys of the arrays that are shown at every epoch."""
    return [f"{prefix}/leading", *(f"{prefix}/density/{part}" for part in DENSITY_ARRAYS)]


def _draw_layers(
    axes: Axes, page: PageData, lines: Iterable[Mapping[PageNet, pd.Series]], ever: Sequence[ArrayLike], to_zero: bool
) -> None:
    """``ever``: all that may be drawn there later. The axis starts at zero, or is logarithmic to both sides of it."""
    for values in ever:
        drawing.reach(axes, values)
    for by_net in lines:
        shown = {net: by_net.get(net, pd.Series(dtype=float)) for nets in page.groups.values() for net in nets}
        figures.over_groups(axes, page, shown.__getitem__, every=True)
    if to_zero:
        drawing.from_zero(axes)
    else:
        drawing.with_zero(axes)  # so that rounding errors of zero are drawn there
        drawing.symmetric_log(axes.yaxis, np.concatenate(ever) if ever else ())
