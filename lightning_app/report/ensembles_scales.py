"""The scales of a net: lambda of its normalisation layers, and the norms of its weights with these absorbed and without."""

from collections.abc import Mapping

from matplotlib.axes import Axes

from lightning_app.plots.drawing import from_zero
from lightning_app.report.blocks import Figure, Panel, csv_text, seeds_csv
from lightning_app.report.ensembles_layers import profiles
from lightning_app.report.evidence import Evidence
from lightning_app.report.panels import curves, group_legend, panel

__all__ = ["blocks"]

LAMBDA = "bn_lambda"
LAMBDAS = {  # title, y axis
    "mean_abs": ("Mean |λ|", "mean |λ|"),
    "l2": ("‖λ‖", "‖λ‖"),
    "scale": ("Effective scale", "mean |λ| / √(var + ε)"),
    "negative": ("Negative entries", "entries λ < 0"),
    "sign_changes": ("Sign changes", "entries"),
}
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
SEVERAL = " Of several seeds the mean is shown."


def blocks(evidence: Evidence) -> list[Figure]:
    """None of them if neither was measured."""
    lambdas = _lambdas(evidence.having(f"{LAMBDA}/layers"))
    weights = (_weights(evidence.having(f"{prefix}/total"), prefix) for prefix in NORMS)
    return [*lambdas, *(figure for figures in weights for figure in figures)]


def _lambdas(evidence: Evidence) -> list[Figure]:
    key = "ensembles-lambda"
    over_epochs = _over_epochs(evidence, LAMBDA, LAMBDAS, key, LAMBDAS_OVER_EPOCHS)
    quantities = {(LAMBDA, field): LAMBDAS[field] for field in ("mean_abs", "l2")}
    by_layer = profiles(evidence, f"{key}-layers", LAMBDAS_BY_LAYER + _lines(evidence), quantities)
    return [figure for figure in (over_epochs, by_layer) if figure]


def _weights(evidence: Evidence, prefix: str) -> list[Figure]:
    key = f"ensembles-{prefix.replace('_', '-')}"
    over_epochs = _over_epochs(evidence, prefix, WEIGHTS, key, WEIGHTS_OVER_EPOCHS.format(norm=NORMS[prefix]))
    quantities = {(prefix, field): (WEIGHTS[field][0], "norm") for field in ("own", "absorbed")}
    caption = WEIGHTS_BY_LAYER.format(norm=NORMS[prefix]) + _lines(evidence)
    by_layer = profiles(evidence, f"{key}-layers", caption, quantities)
    return [figure for figure in (over_epochs, by_layer) if figure]


def _lines(evidence: Evidence) -> str:
    return LINES + SEVERAL * any(len(nets) > 1 for nets in evidence.groups.values())


def _over_epochs(
    evidence: Evidence, prefix: str, titles: Mapping[str, tuple[str, str]], key: str, caption: str
) -> Figure | None:
    """Curves of what was measured of these; None if nothing was."""
    names = [name for field in titles if evidence.having(name := f"{prefix}/{field}").nets]
    if not names:
        return None
    panels = [_panel(evidence, name, f"{key}-{number}", titles) for number, name in enumerate(names)]
    data = csv_text(("net", "name", "epoch", "value"), evidence.rows(names))
    return Figure(key, caption, panels, group_legend(evidence), data, more=seeds_csv(evidence.spreads(names)))


def _panel(evidence: Evidence, name: str, key: str, titles: Mapping[str, tuple[str, str]]) -> Panel:
    field = name.rsplit("/")[-1]
    title, y = titles[field]

    def draw(axes: Axes) -> None:
        curves(axes, evidence.groups.values(), lambda net: net.series(name))
        if field in ("negative", "sign_changes"):
            from_zero(axes)

    return panel(key, title, draw, x="epoch", y=y, whole_x=True)
