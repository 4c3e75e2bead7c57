"""Learning curves: risk and error against epochs, plain against residual (the paper's Fig. 2)."""

from matplotlib.axes import Axes

from lightning_app.plots.drawing import from_zero
from lightning_app.report.blocks import Figure, Panel, Section, csv_text, seeds_csv
from lightning_app.report.evidence import Evidence
from lightning_app.report.panels import curves, group_legend, panel

__all__ = ["section"]

TITLES = {
    "train/risk_running": "Training risk, during the epoch",
    "train/risk": "Training risk L",
    "train/error": "Training error",
    "test/risk": "Test risk",
    "test/error": "Test error E",
    "val/risk": "Validation risk",
    "val/error": "Validation error",
}
OPTIONAL = ("val/risk", "val/error")  # a split that most runs do not make: its absence is not worth a sentence
CAPTION = (
    "Risk: mean cross-entropy a sample in nats, on a logarithmic scale. Error: share of samples classified wrongly. Epoch 0 is "
    "before training, epoch k after k epochs. “During the epoch” is the mean over the batches of epoch k as they were "
    "trained on, with weights still moving and samples augmented if the run augments; the others are measured after the "
    "epoch, with fixed weights. A curve ends where its values stop being finite. Where not all "
    "seeds have a value, there is no mean but a thin line for each."
)


def section(evidence: Evidence) -> Section:
    measured = [name for name in TITLES if any(name in net.names for net in evidence.nets)]
    missing = [name for name in TITLES if name not in measured and name not in OPTIONAL]
    blocks = [_figure(evidence, measured)] if measured else []
    said = [f"Not measured here: {', '.join(missing)}."] if missing else []
    return Section("learning", "Learning curves", blocks=blocks, notices=said)


def _figure(evidence: Evidence, names: list[str]) -> Figure:
    data = csv_text(("net", "name", "epoch", "value"), evidence.rows(names))
    panels = [_panel(evidence, name) for name in names]
    more = seeds_csv(evidence.spreads(names))
    return Figure("learning-curves", CAPTION, panels, group_legend(evidence), data, more=more)


def _panel(evidence: Evidence, name: str) -> Panel:
    risk = name.split("/")[1].startswith("risk")

    def draw(axes: Axes) -> None:
        curves(axes, evidence.groups.values(), lambda net: net.series(name))
        if not risk:
            from_zero(axes)

    key = f"learning-{name.replace('/', '-')}"
    y = "risk (nats)" if risk else "error (share of samples)"
    return panel(key, TITLES[name], draw, x="epoch", y=y, log_y=risk, whole_x=True)
