"""Signals on their way through the layers, forwards and backwards: profiles over the depth as training goes on."""

from dataclasses import replace

from lightning_app.report.blocks import Section
from lightning_app.report.page_data import PageData, loss_of
from lightning_app.report.profiles import profiles, several_seeds

FAMILY = "signal"
TITLE = "Signals by layer"
WHAT = (
    "How strong signals are in each layer, from the training steps themselves (Glorot & Bengio, 2010). A straight line on a "
    "logarithmic axis is growth or decay exponential in the depth; flat is what initialisations aim at."
)
CAPTION = (
    "Root mean squares over samples, units and positions: what a layer puts out, and the gradient of each sample’s own "
    "loss with respect to it; the cosine of these gradients in samples that are neighbours in the batch; how far a step "
    "moved the weights, relative to their norm; the share of units that are 0 for every sample; at an addition the norm "
    "of the branch over that of the stream, and their cosine, at the "
    "branch’s last layer. One line an epoch, later ones darker; epoch 0 is of the first step. Dashed: closed form at "
    "initialisation, of nets of one convolution a block without normalisation, in expectation over the draw of the "
    "weights."
)
QUANTITIES = {
    "activation": ("Forwards", "RMS of the output"),
    "gradient": ("Backwards", "RMS of the gradient"),
    "gradient_correlation": ("Gradients of neighbouring samples", "RMS cosine"),
    "weight_gradient": ("Gradient of weights", "RMS"),
    "update": ("Update over weight", "‖Δw‖ / ‖w‖"),
    "branch_ratio": ("Branch over stream", "‖branch‖ / ‖stream‖"),
    "branch_cosine": ("Branch and stream", "cosine"),
    "dead": ("Dead units", "share of units"),
}
GRADIENTS = {"gradient", "weight_gradient"}  # of the loss, in its unit
LINEAR = {"branch_cosine", "dead"}


def section(page: PageData) -> Section | None:
    """A profile for each quantity and group; None where no signals were measured."""
    loss = loss_of(page.nets)
    quantities = {
        (FAMILY, field): (title, loss.measured(y) if field in GRADIENTS else y)
        for field, (title, y) in QUANTITIES.items()
    }
    found = profiles(page, "signals", CAPTION + several_seeds(page), quantities, QUANTITIES.keys() - LINEAR)
    figures = [replace(figure, key="signals-figure") for figure in found]  # the section has the other key
    return Section("signals", TITLE, WHAT, [*figures], [], (FAMILY,), "Signals") if figures else None
