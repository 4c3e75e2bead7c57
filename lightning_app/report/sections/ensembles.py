"""Ensembles: how long the paths are that make up a residual net, and the scales that decide it (Littwin & Wolf, 2016)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from lightning_app.plots.drawing import from_zero, reach, with_zero
from lightning_app.plots.style import INK
from lightning_app.report.blocks import Cell, Figure, Panel, Rows, Section, Table, csv_text, mean_cell, seeds_csv
from lightning_app.report.figures import Curve, Frame, curve_panel, figure_of_curves, frames_csv, group_legend, joined
from lightning_app.report.page_data import PageData, PageNet
from lightning_app.report.profiles import layers_with, profiles, several_seeds, stages

TITLE = "Ensembles of paths"
WHAT = (
    "A residual net is a sum over paths: at each block a path takes the branch or the skip, so paths are short or long. "
    "The larger the factors λ of the normalisation layers (or, without these, the weights), the more long paths count. "
    "Littwin & Wolf (2016) say that a residual net is an ensemble of shallow nets at first, and of deeper ones as "
    "training makes these scales grow. Shown here, as far as measured: effective depth (a mean length of paths), λ, "
    "norms of weights, and the forces that training exerts on the scales."
)

DEPTH = "depth"
DEPTHS = {
    "effective": "d_eff",
    "coherent": "d_coh",
    "gradient": "d_grad",
    "effective_input": "d_eff, from the input",
    "longest": "p",
    "relative": "d_eff / p",
    "bias_share": "bias share",
}
DEPTH_CURVES = ("effective", "coherent", "gradient")
LENGTHS = {"outputs": "E|f_r|²", "gradients": "|g_r|²"}  # array -> what is in it, by length
WHEN = {0: "first", 0.5: "middle", 1: "last"}

DEPTH_TABLE = (
    "On probe samples (fixed training samples) in evaluation mode, at the first and the last measured epoch. Lengths "
    "count weight layers, without the readout. f_r: what all paths of length r together add to the outputs, with each "
    "sample’s own ReLU gates, centred over classes. d_eff = Σ r E|f_r|² / Σ E|f_r|². d_coh = Σ r E⟨f_r, f⟩ / E|f|² with "
    "f = Σ f_r: parts that cancel count negative, so it may be below 0 or above p. d_grad = Σ r |g_r|² / Σ |g_r|², where "
    "g_r is the gradient along paths of length r. From the input: without the paths that start at a bias or at the shift "
    "of a normalisation. Bias share: the part of Σ E|f_r|² that is lost without these paths; it is negative where they "
    "cancel others. p: length of the longest path."
)
ONE_LENGTH = " Nothing was logged of {}: in a net without branches all paths have one length."
UNMEASURED = " Nothing was logged of {}."
DEPTH_OVER_EPOCHS = (
    "Each depth as a share of p, the length of the longest path. Line: one half. By the formula of Littwin & Wolf "
    "(2016), paths shorter than that have most of the weight at initialisation, and longer ones gain as the scales grow."
)
BY_LENGTH = (
    "How E|f_r|² of the outputs and |g_r|² of the gradient are distributed over the length r of paths, each divided by "
    "its sum. Paths that start at a constant (a bias or a shift) are included."
)

Titles = Mapping[str, tuple[str, str]]  # field -> title, y axis

LAMBDA = "bn_lambda"
LAMBDAS = {  # title, y axis
    "mean_abs": ("Mean |λ|", "mean |λ|"),
    "l2": ("‖λ‖", "‖λ‖"),
    "scale": ("Effective scale", "mean |λ| / √(var + ε)"),
    "negative": ("Negative entries", "entries λ < 0"),
    "sign_changes": ("Sign changes", "entries"),
}
COUNTS = ("negative", "sign_changes")  # drawn from zero on
NORMS = {  # prefix -> what the norm is
    "weight_norm": "Frobenius norm",
    "weight_norm_rms": "root mean square",
    "weight_norm_filter": "mean norm of an output channel's weights",
}
WEIGHTS = {
    "own": ("Own norm", "mean norm, w"),
    "absorbed": ("Absorbed norm", "mean norm, w′"),
    "total": ("All weights together", "norm of all weights"),
}

LAMBDAS_OVER_EPOCHS = (
    "λ: the trained factors of a normalisation layer, one per channel. Means over layers: |λ|, ‖λ‖ (2-norm, which grows "
    "with the root of the number of channels) and the effective scale |λ| / √(var + ε), with running statistics. Counts "
    "over all layers: negative entries, and entries whose sign differs from the measurement before."
)
LAMBDAS_BY_LAYER = "λ by layer: layer k is the normalisation after the k-th weight layer."
WEIGHTS_OVER_EPOCHS = (
    "Norms of the weights, without biases: {norm}. Own: of w, the trained weights. Absorbed: of w′ = λ w / √(var + ε), "
    "the weights of the same function with the normalisation behind the layer merged into it, where that is possible; a "
    "net without normalisation has none. Both are means over convolutions, or over all layers of a net that has no "
    "convolutions."
)
WEIGHTS_BY_LAYER = "Norms of the weights by layer ({norm}), in the order of the net."
LINES = (
    " One line per epoch, later ones darker. Each panel has its own scale, which need not start at zero. Layers without "
    "numbers in their names are numbered as the net runs them."
)

DRIVE, SCALE = "drive", "scale"
SIGNS = {"second_order": "second order >\u00a00", "first_order": "first order >\u00a00"}
AGREEMENTS = {"agrees": "second order agrees", "agrees_first": "first order agrees"}
SHARES = {
    "positive": "Second order >\u00a00",
    "positive_first": "First order >\u00a00",
    "agrees": "Second order agrees",
    "agrees_first": "First order agrees",
}
FORCES_TABLE = (
    "Does training push the scales up, and does the push predict how they change? Entries for λ count normalisation "
    "layers and epochs, those for C = ‖w‖ / √(number of weights) count epochs; for several seeds, they are mean shares. "
    "First order: the push of gradient descent, −Σ sign(λ) ∂L/∂λ, or −∂L/∂C; above 0, the scale is pushed up. Second "
    "order: how a small step of the weights alone changes that push, ½ Σ sign(λ) ∂‖g‖²/∂λ with the gradient g of the "
    "weights (Theorem 3; for C, Theorem 4). Agrees: it had the sign of the change of Σ|λ|, or of C, until the next "
    "measurement; cases where either is exactly 0 do not count. L is the risk on probe samples, the change is that of "
    "all steps in between, with momentum and penalty, and the theorems assume that the first order is 0: so agreement is "
    "a finding, and disagreement does not contradict them."
)
FORCES_OVER_EPOCHS = (
    "Share of normalisation layers at each epoch: those whose |λ| is pushed up (>\u00a00), and those whose prediction at "
    "the measurement before had the sign of the change since (agrees). Line: one half, as by chance."
)

FAMILIES = (DEPTH, LAMBDA, *NORMS, DRIVE)


def section(page: PageData) -> Section | None:
    """None if nothing of it was measured."""
    blocks = [*_depth(page), *_scales(page), *_forces(page)]
    return Section("ensembles", TITLE, WHAT, blocks, families=FAMILIES, short="Paths") if blocks else None


def _depth(page: PageData) -> list[Table | Figure]:
    """None of them without an effective depth; the table says which nets have none."""
    measured = page.having(f"{DEPTH}/effective")
    if not measured.nets:
        return []
    rows = []
    for label, nets in measured.with_means():
        # The first and the last epoch, one if they are the same; none where seeds are not equally far.
        first, *others = (stages(list(net.series(f"{DEPTH}/effective").index), (0, 1)) for net in nets)
        for epoch in first.values() if all(ends == first for ends in others) else ():
            numbers = ([net.at(f"{DEPTH}/{field}", epoch) for net in nets] for field in DEPTHS)
            rows.append([Cell(label), Cell(joined([epoch])), *map(mean_cell, numbers)])
    caption = DEPTH_TABLE + _without_depth(page, measured)
    table = Table(caption, ["net", "epoch", *DEPTHS.values()], rows, title="Effective depth")
    return [table, _depth_over_epochs(measured), *_by_length(measured)]


def _without_depth(page: PageData, measured: PageData) -> str:
    """Which arms have no depth, and why. Where one run measured others, only a net of one path length was left out."""
    runs = {net.run for net in measured.nets}
    silent = {group: nets for group, nets in page.groups.items() if group not in measured.groups}
    plain = [group for group, nets in silent.items() if all(net.kind == "plain" and net.run in runs for net in nets)]
    others = [group for group in silent if group not in plain]
    return ONE_LENGTH.format(", ".join(plain)) * bool(plain) + UNMEASURED.format(", ".join(others)) * bool(others)


def _depth_over_epochs(page: PageData) -> Figure:
    def half(axes: Axes) -> None:
        axes.axhline(0.5, color=INK, linewidth=0.9)

    panels, rows = [], []
    draw = partial(curve_panel, page, before=half, after=with_zero, y="share of the longest path")
    for field in DEPTH_CURVES:
        tables = {net: _over_longest(net, field) for net in page.nets}
        shares, title = {net: table["share"] for net, table in tables.items()}, f"{DEPTHS[field]} / p"
        its = Rows({"depth": [field]}, y="share")
        panels.append(draw(f"ensembles-depth-{field}", title, shares.__getitem__, rows=its))
        rows += [(net.label, field, *row) for net, table in tables.items() for row in table.itertuples()]
    data = csv_text(("net", "depth", "epoch", "layers", "longest", "share"), rows)
    more = seeds_csv(page.spreads(f"{DEPTH}/{field}" for field in DEPTHS))
    return Figure("ensembles-depth", DEPTH_OVER_EPOCHS, panels, group_legend(page), data, more=more)


def _over_longest(net: PageNet, field: str) -> pd.DataFrame:
    """A depth in layers, p, and their quotient, by epoch."""
    columns = {"layers": net.series(f"{DEPTH}/{field}"), "longest": net.series(f"{DEPTH}/longest")}
    return pd.concat(columns, axis=1, join="inner").assign(share=lambda both: both["layers"] / both["longest"])


def _by_length(page: PageData) -> list[Figure]:
    """Outputs above, gradients below; nothing if no arrays were saved."""
    views = {(what, when): _distributions(page, what, when) for what in LENGTHS for when in WHEN}
    views = {key: lines for key, lines in views.items() if lines}
    moving = {what: _shares(page, what) for what in LENGTHS}
    panels = [
        _length_panel(page, what, when, lines, [frame.y for frame in moving[what]])
        for (what, when), lines in views.items()
    ]
    rows = [
        (net.label, what, WHEN[when], line.name, length, value, share)
        for (what, when), lines in views.items()
        for net, line in lines.items()
        for length, value, share in zip(line.index, line, line / line.sum(), strict=True)
    ]
    data = csv_text(("net", "quantity", "when", "epoch", "length", "value", "share"), rows)
    most = max((sum(this == what for this, _ in views) for what in LENGTHS), default=0)
    last = {what: when for what, when in views}  # the others stay, to compare with
    frames = frames_csv({_length_key(what, when): moving[what] for what, when in last.items()})
    legend = group_legend(page)
    return [Figure("ensembles-lengths", BY_LENGTH, panels, legend, data, columns=most, frames=frames)] if views else []


def _length_key(what: str, when: float) -> str:
    return f"ensembles-lengths-{what}-{WHEN[when]}"


def _shares(page: PageData, what: str) -> list[Frame]:
    """What each length contributes to the sum over lengths, at every epoch with arrays; none where the net has diverged."""
    lengths, *others = (f"{DEPTH}/{name}" for name in ("lengths", *LENGTHS))
    frames = []
    for net, saved in page.saved(DEPTH, [lengths, *others], ends=False).items():
        for epoch, arrays in saved.items():
            values = arrays.get(f"{DEPTH}/{what}", np.empty(0))
            if lengths in arrays and values.any() and np.isfinite(values).all():
                frames.append(Frame(net, epoch, arrays[lengths], values / values.sum()))
    return frames


def _distributions(page: PageData, what: str, when: float) -> dict[PageNet, pd.Series]:
    """By length, at the first, middle or last epoch with arrays, after which each is named."""
    found = {}
    for net in page.nets:
        epoch = stages(net.run.array_epochs(DEPTH), WHEN).get(when)  # None: it is another of them already
        arrays = net.arrays(DEPTH, epoch)
        if {f"{DEPTH}/{what}", f"{DEPTH}/lengths"} <= arrays.keys():
            found[net] = pd.Series(arrays[f"{DEPTH}/{what}"], arrays[f"{DEPTH}/lengths"], name=epoch)
    return found


def _length_panel(
    page: PageData, what: str, when: float, lines: dict[PageNet, pd.Series], ever: Sequence[np.ndarray]
) -> Panel:
    def shares(net: PageNet) -> pd.Series:
        line = lines.get(net, pd.Series(dtype=float))
        return line / line.sum()

    title = f"{LENGTHS[what]}, epoch {joined(line.name for line in lines.values())}"
    x, y, before = "length r", "share of the sum", partial(reach, values=np.concatenate([*ever, []]))
    rows = Rows({"quantity": [what], "when": [WHEN[when]]}, x="length", y="share")
    draw = partial(curve_panel, page, _length_key(what, when), title, shares, x=x, y=y, rows=rows)
    return draw(before=before, after=from_zero, every=True)


def _scales(page: PageData) -> list[Figure]:
    """Curves and profiles of each family; nothing of those that were not measured."""
    by_layer = {field: LAMBDAS[field] for field in ("mean_abs", "l2")}
    measured = page.having(f"{LAMBDA}/layers")
    figures = _family(measured, LAMBDA, LAMBDAS, LAMBDAS_OVER_EPOCHS, by_layer, LAMBDAS_BY_LAYER)
    by_layer = {field: (WEIGHTS[field][0], "norm") for field in ("own", "absorbed")}
    for prefix, norm in NORMS.items():
        over_epochs, layers = WEIGHTS_OVER_EPOCHS.format(norm=norm), WEIGHTS_BY_LAYER.format(norm=norm)
        figures += _family(page.having(f"{prefix}/total"), prefix, WEIGHTS, over_epochs, by_layer, layers)
    return figures


def _family(
    page: PageData, prefix: str, titles: Titles, over_epochs: str, by_layer: Titles, layers: str
) -> list[Figure]:
    """Curves over epochs and profiles over layers, each with a caption."""
    key = f"ensembles-{prefix.removeprefix('bn_').replace('_', '-')}"
    shown = [field for field in titles if page.having(f"{prefix}/{field}").nets]
    curves = [
        Curve(f"{key}-{number}", f"{prefix}/{field}", *titles[field], adjust=from_zero if field in COUNTS else None)
        for number, field in enumerate(shown)
    ]
    quantities = {(prefix, field): names for field, names in by_layer.items()}
    caption = layers + LINES + several_seeds(page)
    return figure_of_curves(page, key, over_epochs, curves) + profiles(page, f"{key}-layers", caption, quantities)


def _forces(page: PageData) -> list[Table | Figure]:
    """None of them without forces."""

    def half(axes: Axes) -> None:
        axes.axhline(0.5, color=INK, linewidth=0.9)
        axes.set_ylim(-0.03, 1.03)

    measured = page.having(f"{DRIVE}/{SCALE}/size")
    if not measured.nets:
        return []
    head = [f"{scale}: {what}" for scale in ("λ", "C") for what in (*SIGNS.values(), *AGREEMENTS.values())]
    rows = []
    for label, nets in measured.with_means():
        signs = [*zip(*map(_signs, nets), strict=True)]
        rows.append([Cell(label), *map(_share, signs)])
    on_lambda = measured.having(*(f"{DRIVE}/{share}" for share in SHARES))
    curves = [
        Curve(f"ensembles-forces-{share}", f"{DRIVE}/{share}", title, "share of layers", adjust=half)
        for share, title in SHARES.items()
    ]
    return [
        Table(FORCES_TABLE, ["net", *head], rows, title="Driving force"),
        *figure_of_curves(on_lambda, "ensembles-forces", FORCES_OVER_EPOCHS, curves, columns=2),
    ]


def _share(signs: Sequence[np.ndarray]) -> Cell:
    """The share of ones: of a single net as "3 of 4", of several seeds, which may have other totals, as their mean."""
    shares = [float(each.mean()) if len(each) else None for each in signs]
    found = mean_cell(shares)
    return (
        found if len(signs) > 1 or None in shares else replace(found, text=f"{signs[0].sum():.0f} of {len(signs[0])}")
    )


def _signs(net: PageNet) -> list[np.ndarray]:
    """For lambda, then for C: ones and zeros of each column, over layers and epochs without those that are NaN."""

    def values(names: Sequence[str], field: str) -> np.ndarray:
        found = np.concatenate([[], *(net.series(f"{DRIVE}/{name}/{field}").to_numpy(float) for name in names)])
        return found[~np.isnan(found)]

    columns = []
    for names in ([layer for layer in layers_with(net, DRIVE, "size") if layer != SCALE], [SCALE]):
        columns += [(values(names, field) > 0).astype(float) for field in SIGNS]
        columns += [values(names, field) for field in AGREEMENTS]
    return columns
