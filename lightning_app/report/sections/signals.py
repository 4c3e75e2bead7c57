"""Signals on their way through the layers, forwards and backwards: profiles over the depth as training goes on."""

from dataclasses import replace

from lightning_app.report.blocks import Section
from lightning_app.report.page_data import PageData, loss_of
from lightning_app.report.profiles import profiles, several_seeds

FAMILY = "signal"
TITLE = "Signals by layer"
WHAT = (
    "How strong the signals in each layer are, measured in training steps (Glorot & Bengio, 2010). On a logarithmic "
    "axis, a straight line is exponential growth or decay with depth; initialisations aim at a flat one."
)
CAPTION = (
    "Sizes are root mean squares (RMS) over samples, units and positions. Forwards: of a layer’s output. Backwards: of "
    "the gradient of each sample’s own loss with respect to that output; gradients of neighbouring samples: cosine of "
    "these gradients for neighbours in the batch. Gradient of weights: as the optimizer gets it. Update over weight: how "
    "far a step moves the weights, relative to their norm. Branch over stream, branch and stream: the norm of a branch "
    "over that of the stream to which it is added, and their cosine, shown at the branch’s last layer. Dead units: share "
    "of units that are 0 for every sample. One line per epoch, later ones darker; epoch 0 is the first step. Dashed: "
    "closed form at initialisation, expected over random weights, for nets with one convolution per block and no "
    "normalisation."
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
