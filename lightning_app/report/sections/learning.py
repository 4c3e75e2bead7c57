"""Learning curves: risk and error against epochs, plain against residual (the paper's Fig. 2)."""

from lightning_app.plots.drawing import from_zero
from lightning_app.report.blocks import Section
from lightning_app.report.figures import Curve, figure_of_curves, joined
from lightning_app.report.page_data import Loss, PageData, loss_of

TITLES = {
    "train/risk_running": "Training risk, during the epoch",
    "train/risk": "Training risk L",
    "train/error": "Training error",
    "train/risk_ema": "Training risk, averaged weights",
    "train/error_ema": "Training error, averaged weights",
    "test/risk": "Test risk",
    "test/error": "Test error E",
    "test/risk_ema": "Test risk, averaged weights",
    "test/error_ema": "Test error, averaged weights",
    "val/risk": "Validation risk",
    "val/error": "Validation error",
    "val/risk_ema": "Validation risk, averaged weights",
    "val/error_ema": "Validation error, averaged weights",
}
# In tables, or running numbers of what has a panel. All others, such as "test/top5" of one's own, are further measures.
UNDRAWN = ("train/error_running", "train/penalty", "train/cost", "train/cost_paper", "probe/risk", "probe/error")
EXPECTED = ("train/risk_running", "train/risk", "train/error")  # and one set of held-out data: most runs lack the rest
CAPTION = (
    "Risk: mean {loss} per sample, on a logarithmic scale. Error: share of samples classified wrongly. Epoch 0 is before "
    "training, epoch k after k epochs. “During the epoch” is the mean over the batches of epoch k, taken while the "
    "weights change, on augmented samples if the run augments; all others are measured after the epoch, with fixed "
    "weights. A curve ends where its values stop being finite. Once a seed has no value, there is no mean: each seed is "
    "a thin line."
)

OTHER_LOSSES = "The losses of these runs differ ({}): their risks have no common unit, so do not compare them."


def section(page: PageData) -> Section:
    """The section, with a panel for each of these numbers that was measured."""
    expected = *EXPECTED, page.held_out.risk, page.held_out.error
    missing = [name for name in expected if not page.having(name).nets]
    notices = [f"Not measured here: {', '.join(missing)}."] if missing else []
    losses = {str(loss) for run in page.runs if (loss := run.options.get("model.loss")) is not None}
    notices += [OTHER_LOSSES.format(joined(losses))] * (len(losses) > 1)
    loss = loss_of(page.nets)
    caption = CAPTION.format(loss=loss.measured(loss.name))
    blocks = figure_of_curves(page, "learning-curves", caption, [_curve(name, loss) for name in TITLES])
    return Section("learning", "Learning curves", blocks=blocks, notices=notices, families=(*TITLES, *UNDRAWN))


def _curve(name: str, loss: Loss) -> Curve:
    risk = name.split("/")[1].startswith("risk")
    y = loss.measured("risk") if risk else "error (share of samples)"
    return Curve(f"learning-{name.replace('/', '-')}", name, TITLES[name], y, risk, None if risk else from_zero)
