"""Ensembles: how long the paths are that make up a residual net, and the scales that decide it (Littwin & Wolf, 2016)."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from lightning_app.plots.drawing import from_zero, with_zero
from lightning_app.plots.style import INK
from lightning_app.report.blocks import Cell, Figure, Panel, Section, Table, cell, csv_text, mean_cell, seeds_csv
from lightning_app.report.figures import Curve, curves, figure_of_curves, group_legend
from lightning_app.report.page_data import Net, PageData
from lightning_app.report.panels import panel
from lightning_app.report.profiles import SEVERAL_SEEDS, layers_with, profiles, stages

__all__ = ["section"]

TITLE = "Ensembles of paths"
WHAT = (
    "A residual net is the sum of the paths through it, short and long ones (Littwin & Wolf, 2016). The larger the factors λ of "
    "its normalisation layers, or without these its weights, the more do long paths count: it is said to be an ensemble of "
    "shallow nets at first, and of deeper ones as training makes the scales grow. Here is as much of this as was measured: "
    "effective depth, λ, norms of weights, and the forces that training exerts on the scales."
)


# -- effective depth ----------------------------------------------------------------------------------------------------

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
    "On probe samples in evaluation mode, at the first and the last epoch measured. Lengths count weight layers; the readout is "
    "not counted. f_r: what all paths of length r together add to the outputs, with the ReLU gates of the sample, centred over "
    "classes. d_eff = Σ r E|f_r|² / Σ E|f_r|². d_coh = Σ r E⟨f_r, f⟩ / E|f|² with f = Σ f_r: parts that cancel count negative, "
    "and it may lie below 0 or above p. d_grad = Σ r |g_r|² / Σ |g_r|², with the gradient g_r along paths of length r. From the "
    "input: without the paths that start at a bias or at the shift of a normalisation; bias share: what part of Σ E|f_r|² is "
    "lost without them, negative where the two cancel. p: the most layers of a path."
)
DEPTH_OVER_EPOCHS = (
    "Each depth over p, the most layers of a path. Line: one half. By the paper’s formula most weight is on paths shorter than "
    "that at initialisation, and moves to longer ones as the scales grow."
)
BY_LENGTH = (
    "How E|f_r|² of the outputs and |g_r|² of the gradient are distributed over the length r of paths: each divided by its sum. "
    "Paths that start at a constant are included."
)


# -- scales -------------------------------------------------------------------------------------------------------------

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
    "λ: the trained factors of normalisation layers, one a channel. |λ|, ‖λ‖ (2-norm; grows with the root of the number of "
    "channels) and the effective scale |λ| / √(var + ε), with running statistics, are means over layers; negative entries and "
    "those whose sign differs from the measurement before are counted over all layers."
)
LAMBDAS_BY_LAYER = "λ by layer: layer k is the normalisation after the k-th weight layer."
WEIGHTS_OVER_EPOCHS = (
    "Norms of the weights, biases excluded: {norm}. Own: of w, as it is trained. Absorbed: of w′ = λ w / √(var + ε), the "
    "weights of the same function without the normalisation that follows the layer, where it can be merged; a net without "
    "normalisation has none. Both are means over convolutions, or over all layers of a net without any."
)
WEIGHTS_BY_LAYER = "Norms of the weights by layer ({norm}), in the order of the net."
LINES = (
    " One line an epoch, later ones darker. Each panel has its own scale, which need not start at zero. Without numbers of "
    "their own, layers are counted as the net runs them."
)


# -- forces -------------------------------------------------------------------------------------------------------------

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
    "For λ: share of normalisation layers and epochs; for C = ‖w‖ / √(number of weights): share of epochs; beside it, how many. "
    "First order: the push of gradient descent, −Σ sign(λ) ∂L/∂λ, or −∂L/∂C; above 0 the scale is pushed up. Second order: its "
    "change by a small step of the weights alone, ½ Σ sign(λ) ∂‖g‖²/∂λ with their gradient g (Theorem 3; for C, Theorem 4). "
    "Agrees: it had the sign of the change of Σ|λ|, or of C, until the next measurement; not counted where either is exactly 0. "
    "L is the risk on probe samples, the change is of all steps in between with momentum and penalty, and the theorems "
    "presuppose that the first order is 0: agreement is a finding, disagreement no contradiction."
)
FORCES_OVER_EPOCHS = (
    "Share of normalisation layers at each epoch: those whose |λ| is driven up, and those whose prediction at the measurement "
    "before had the sign of the change since. Line: one half, as by chance."
)

FAMILIES = (DEPTH, LAMBDA, *NORMS, DRIVE)


def section(page: PageData) -> Section | None:
    """None if nothing of it was measured."""
    blocks = [*_depth(page), *_scales(page), *_forces(page)]
    return Section("ensembles", TITLE, WHAT, blocks, families=FAMILIES) if blocks else None


# -- effective depth: how long the paths are along which outputs and gradient come about --------------------------------


def _depth(page: PageData) -> list[Table | Figure]:
    """None of them without an effective depth."""
    measured = page.having(f"{DEPTH}/effective")
    if not measured.nets:
        return []
    by_length = _by_length(measured)
    return [
        _depth_table(measured, _silent(page, measured)),
        _depth_over_epochs(measured),
        *([by_length] if by_length else []),
    ]


def _silent(page: PageData, measured: PageData) -> str:
    """Which nets have no effective depth, and why that may be."""
    names = [group for group in page.groups if group not in measured.groups]
    if not names:
        return ""
    return f" Nothing was logged of {', '.join(names)}: in a net without branches all paths have one length."


def _depth_table(page: PageData, silent: str) -> Table:
    rows = [row for group, nets in page.groups.items() for row in _depth_rows(group, nets)]
    return Table(DEPTH_TABLE + silent, ["", "epoch", *DEPTHS.values()], rows, title="Effective depth")


def _depth_rows(group: str, nets: Sequence[Net]) -> list[list[Cell]]:
    """Of each net; of several seeds also the mean, where these are equally far."""
    rows = [_depth_row(net.label, [net], epoch) for net in nets for epoch in _ends(net)]
    ends = {tuple(_ends(net)) for net in nets}
    if len(nets) > 1 and len(ends) == 1:
        rows += [_depth_row(f"{group}: mean ± sd of {len(nets)}", nets, epoch) for epoch in ends.pop()]
    return rows


def _depth_row(label: str, nets: Sequence[Net], epoch: int) -> list[Cell]:
    found = ([net.at(f"{DEPTH}/{field}", epoch) for net in nets] for field in DEPTHS)
    return [Cell(label), Cell(str(epoch)), *(mean_cell(x) if len(x) > 1 else cell(x[0]) for x in found)]


def _ends(net: Net) -> list[int]:
    """The first and the last epoch; one if they are the same."""
    epochs = net.series(f"{DEPTH}/effective").index
    return sorted({int(epochs[0]), int(epochs[-1])})


def _depth_over_epochs(page: PageData) -> Figure:
    panels = [_share_panel(page, field) for field in DEPTH_CURVES]
    rows = [
        (net.label, field, *row)
        for field in DEPTH_CURVES
        for net in page.nets
        for row in _over_longest(net, field).itertuples()
    ]
    data = csv_text(("net", "depth", "epoch", "layers", "longest", "share"), rows)
    more = seeds_csv(page.spreads(f"{DEPTH}/{field}" for field in DEPTHS))
    return Figure("ensembles-depth", DEPTH_OVER_EPOCHS, panels, group_legend(page), data, more=more)


def _over_longest(net: Net, field: str) -> pd.DataFrame:
    """A depth in layers, p, and their quotient, by epoch."""
    columns = {"layers": net.series(f"{DEPTH}/{field}"), "longest": net.series(f"{DEPTH}/longest")}
    return pd.concat(columns, axis=1, join="inner").assign(share=lambda both: both["layers"] / both["longest"])


def _share_panel(page: PageData, field: str) -> Panel:
    def draw(axes: Axes) -> None:
        axes.axhline(0.5, color=INK, linewidth=0.9)
        curves(axes, page.groups.values(), lambda net: net.series(f"{DEPTH}/{field}") / net.series("depth/longest"))
        with_zero(axes)

    title = f"{DEPTHS[field]} / p"
    return panel(f"ensembles-depth-{field}", title, draw, x="epoch", y="share of the longest path", whole_x=True)


def _by_length(page: PageData) -> Figure | None:
    """Outputs above, gradients below; None if no arrays were saved."""
    views = {
        (what, when): {net: line for net in page.nets if (line := _distribution(net, what, when)) is not None}
        for what in LENGTHS
        for when in WHEN
    }
    views = {key: by_net for key, by_net in views.items() if by_net}
    if not views:
        return None
    panels = [_length_panel(page, what, when, by_net) for (what, when), by_net in views.items()]
    rows = [
        (net.label, what, _epoch(net, when), length, value, share)
        for (what, when), by_net in views.items()
        for net, line in by_net.items()
        for length, value, share in zip(line.index, line, _as_shares(line), strict=True)
    ]
    data = csv_text(("net", "quantity", "epoch", "length", "value", "share"), rows)
    most = max(sum(this == what for this, _ in views) for what in LENGTHS)
    return Figure("ensembles-lengths", BY_LENGTH, panels, group_legend(page), data, columns=most)


def _epoch(net: Net, when: float) -> int | None:
    """Which epoch of those with arrays is the first, middle or last; None if it is another already."""
    return stages(net.run.array_epochs(DEPTH), [*WHEN]).get(when)


def _distribution(net: Net, what: str, when: float) -> pd.Series | None:
    epoch = _epoch(net, when)
    arrays = {} if epoch is None else net.arrays(DEPTH, epoch)
    values, lengths = (arrays.get(f"{DEPTH}/{name}") for name in (what, "lengths"))
    return None if values is None or lengths is None else pd.Series(values, lengths)


def _as_shares(line: pd.Series) -> pd.Series:
    return line / line.sum()


def _length_panel(page: PageData, what: str, when: float, by_net: dict[Net, pd.Series]) -> Panel:
    def draw(axes: Axes) -> None:
        curves(axes, page.groups.values(), lambda net: _as_shares(by_net.get(net, pd.Series(dtype=float))), every=True)
        from_zero(axes)

    epochs = " and ".join(map(str, sorted({epoch for net in by_net if (epoch := _epoch(net, when)) is not None})))
    key = f"ensembles-lengths-{what}-{WHEN[when]}"
    return panel(key, f"{LENGTHS[what]}, epoch {epochs}", draw, x="length r", y="share of the sum", whole_x=True)


# -- scales: lambda of normalisation layers, and norms of weights with these absorbed and without -----------------------


def _scales(page: PageData) -> list[Figure]:
    """None of them if neither was measured."""
    lambdas = _lambdas(page.having(f"{LAMBDA}/layers"))
    weights = (_weights(page.having(f"{prefix}/total"), prefix) for prefix in NORMS)
    return [*lambdas, *(figure for figures in weights for figure in figures)]


def _lambdas(page: PageData) -> list[Figure]:
    key = "ensembles-lambda"
    over_epochs = _scales_over_epochs(page, LAMBDA, LAMBDAS, key, LAMBDAS_OVER_EPOCHS)
    quantities = {(LAMBDA, field): LAMBDAS[field] for field in ("mean_abs", "l2")}
    by_layer = profiles(page, f"{key}-layers", LAMBDAS_BY_LAYER + _line_words(page), quantities)
    return [figure for figure in (over_epochs, by_layer) if figure]


def _weights(page: PageData, prefix: str) -> list[Figure]:
    key = f"ensembles-{prefix.replace('_', '-')}"
    over_epochs = _scales_over_epochs(page, prefix, WEIGHTS, key, WEIGHTS_OVER_EPOCHS.format(norm=NORMS[prefix]))
    quantities = {(prefix, field): (WEIGHTS[field][0], "norm") for field in ("own", "absorbed")}
    caption = WEIGHTS_BY_LAYER.format(norm=NORMS[prefix]) + _line_words(page)
    by_layer = profiles(page, f"{key}-layers", caption, quantities)
    return [figure for figure in (over_epochs, by_layer) if figure]


def _line_words(page: PageData) -> str:
    return LINES + SEVERAL_SEEDS * any(len(nets) > 1 for nets in page.groups.values())


def _scales_over_epochs(
    page: PageData, prefix: str, titles: Mapping[str, tuple[str, str]], key: str, caption: str
) -> Figure | None:
    """Curves of what was measured of these; None if nothing was."""
    measured = {field: name for field in titles if page.having(name := f"{prefix}/{field}").nets}
    shown = [
        Curve(f"{key}-{number}", name, *titles[field], adjust=from_zero if field in COUNTS else None)
        for number, (field, name) in enumerate(measured.items())
    ]
    return figure_of_curves(page, key, caption, shown) if shown else None


# -- forces on the scales, predicted and observed: how often their signs agree (Theorems 3 and 4) -----------------------


def _forces(page: PageData) -> list[Table | Figure]:
    """None of them without forces."""
    measured = page.having(f"{DRIVE}/{SCALE}/size")
    on_lambda = measured.having(*(f"{DRIVE}/{share}" for share in SHARES))
    return [
        *([_forces_table(measured)] if measured.nets else []),
        *([_forces_over_epochs(on_lambda)] if on_lambda.nets else []),
    ]


def _forces_table(page: PageData) -> Table:
    head = [f"{scale}: {what}" for scale in ("λ", "C") for what in (*SIGNS.values(), *AGREEMENTS.values())]
    rows = [row for group, nets in page.groups.items() for row in _forces_rows(group, nets)]
    return Table(FORCES_TABLE, ["", *head], rows, title="Driving force")


def _forces_rows(group: str, nets: Sequence[Net]) -> list[list[Cell]]:
    """Of each net, and of several seeds the mean."""
    counted = [_counted(net) for net in nets]
    rows = [[Cell(net.label), *map(_share_cell, each)] for net, each in zip(nets, counted, strict=True)]
    if len(nets) > 1:
        means = (mean_cell([_share(each) for each in column]) for column in zip(*counted, strict=True))
        rows.append([Cell(f"{group}: mean ± sd of {len(nets)}"), *means])
    return rows


def _counted(net: Net) -> list[np.ndarray]:
    """For lambda, then for C: ones and zeros of each column."""
    layers = [layer for layer in layers_with(net, DRIVE, "size") if layer != SCALE]
    return [part for names in (layers, [SCALE]) for part in _columns(net, names)]


def _columns(net: Net, names: Sequence[str]) -> list[np.ndarray]:
    signs = [(_values(net, names, field) > 0).astype(float) for field in SIGNS]
    return [*signs, *(_values(net, names, field) for field in AGREEMENTS)]


def _values(net: Net, names: Sequence[str], field: str) -> np.ndarray:
    """Of these layers at all epochs, without those that are NaN."""
    found = np.concatenate([[], *(net.series(f"{DRIVE}/{name}/{field}").to_numpy(float) for name in names)])
    return found[~np.isnan(found)]


def _share(values: np.ndarray) -> float | None:
    return float(values.mean()) if len(values) else None


def _share_cell(values: np.ndarray) -> Cell:
    return cell(_share(values), f"of {len(values)}" if len(values) else "")


def _forces_over_epochs(page: PageData) -> Figure:
    def adjust(axes: Axes) -> None:
        axes.axhline(0.5, color=INK, linewidth=0.9)
        axes.set_ylim(-0.03, 1.03)

    shown = [
        Curve(f"ensembles-forces-{share}", name, title, "share of layers", adjust=adjust)
        for share, title in SHARES.items()
        if page.having(name := f"{DRIVE}/{share}").nets
    ]
    return figure_of_curves(page, "ensembles-forces", FORCES_OVER_EPOCHS, shown, columns=2)
