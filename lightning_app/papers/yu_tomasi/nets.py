"""The nets of Yu & Tomasi: the runs that train them."""

import math

from lightning_app.papers.parts import Reduced, Run

KEY = "yu-tomasi"
PLAIN, RESIDUAL = ARMS = ("plain", "residual")
DEPTHS = (20, 32, 44)
RISK, ERROR = "train/risk", "test/error"
NUMBERS = {"L": RISK, "C": "train/cost_paper", "E": ERROR}

# At reduced scale the learning rate drops after the same fractions of the epochs: .6 and .8.
SHORT = Reduced(epochs=30, milestones=(18, 24), seeds=3)
SEED_RUNS = {name: Run(name, seeds=3, reduced=SHORT) for name in ("depth20", "depth32", "plain44", "residual44")}
EQUIVALENT = {depth: Run(f"equivalent{depth}") for depth in DEPTHS}
FIG_2 = Run("fig2", seeds=13, reduced=Reduced(epochs=40, milestones=(24, 32), seeds=13))
FULL = Run("full20", seeds=3)
FULL_EARLY = Run("full20early", seeds=3)  # the first 10 of its 164 epochs


def run_of(arm: str, depth: int) -> str:
    """The run of Table 1 that trains an arm at a depth; at 44 they need different learning rates."""
    return f"depth{depth}" if depth < 44 else f"{arm}44"


COST = (
    "L: mean cross-entropy over the un-augmented training images, in nats; C: L plus the penalty (λ/2)‖w‖² / 128, which "
    "is what the printed C − L imply; E: share of test images classified wrongly. Final epoch, whichever was best. "
)
TRAINING = (
    "SGD with momentum 0.9 (the paper does not say), crop and flip, all parameters decay with λ in the gradient (λ / 128 is "
    "possible), fan-in initialisation."
)
# What 200 epochs of decay with that momentum would leave of weights that have no other gradient.
UNDRIVEN = math.exp(-1e-4 * 391 * (120 * 0.01 + 40 * 0.001 + 40 * 0.0001) / (1 - 0.9))
