"""The convention ledger's book: quantities that have several defensible readings, and under which keys each was logged.

A reading is one answer to a question that the papers leave open: which norm, whose BatchNorm statistics, with or without
the identity. A quantity is one entry here, and nothing else has to know of it.
"""

import math
import operator
import sys
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["QUANTITIES", "Quantity", "Reading"]


def _as_logged(value: float) -> float:
    return value


@dataclass(frozen=True)
class Reading:
    """One way to read a quantity off the log.

    The keys' values, of one epoch, are the arguments of ``of``. In a single key ``*`` stands for every layer, block or strength.
    """

    label: str
    keys: tuple[str, ...]
    says: str  # the convention, to stand behind the label and a colon
    of: Callable[..., float] = _as_logged


@dataclass(frozen=True)
class Quantity:
    """What several readings are readings of, with its unit where they share one."""

    title: str
    readings: tuple[Reading, ...]
    over: str = ""  # what ``*`` runs over


def _reading(label: str, key: str, says: str) -> Reading:
    return Reading(label, (key,), says)


def _difference(label: str, key: str, less: str, says: str) -> Reading:
    return Reading(label, (key, less), says, operator.sub)


def _power(value: float) -> float:
    """Infinite where no float holds it.

    >>> _power(2.0), _power(309.0)
    (100.0, inf)
    """
    return 10.0**value if value < sys.float_info.max_10_exp else math.inf


QUANTITIES = (
    Quantity(
        "Layer cushion: the identity and the norm",
        (
            _reading(
                "paper, kernel", "cushion/layer*/median", "identity in the numerator, not in the norm of the weights"
            ),
            _reading("paper, operator", "cushion/layer*/median_operator", "the same, norm of the layer as a matrix"),
            _reading(
                "transferred, kernel",
                "cushion/layer*/median_transferred",
                "identity in both, as in the plain layer T(r)",
            ),
            _reading(
                "transferred, operator", "cushion/layer*/median_transferred_operator", "the same, norm as a matrix"
            ),
            _reading("branch, kernel", "cushion/layer*/median_branch", "identity in neither"),
            _reading("branch, operator", "cushion/layer*/median_branch_operator", "the same, norm as a matrix"),
        ),
        "layers",
    ),
    Quantity(
        "Layer cushion: over samples (paper, kernel)",
        (
            _reading("median", "cushion/layer*/median", "the middle of the histogram"),
            _reading("mean", "cushion/layer*/mean", "which a few samples with small inputs can carry"),
            _reading("minimum", "cushion/layer*/minimum", "the layer cushion proper of Arora et al."),
        ),
        "layers",
    ),
    Quantity(
        "Interlayer cushion: BatchNorm and n",
        (
            _reading(
                "running, CHW", "interlayer/block*/median", "BatchNorm with running statistics, n all entries of x"
            ),
            _reading(
                "running, HW", "interlayer/block*/median_hw", "the same, n the places of a map, as in Arora et al."
            ),
            _reading(
                "batch of one, CHW", "interlayer_batch1/block*/median", "BatchNorm with the sample’s own statistics"
            ),
            _reading(
                "batch of one, HW",
                "interlayer_batch1/block*/median_hw",
                "the same, which gives the paper’s numbers",
            ),
        ),
        "blocks",
    ),
    Quantity(
        "Weight mass, all weights",
        (
            _reading("w", "weight_mass/all", "of the trained weights, in a residual net the branch’s"),
            _reading(
                "t = T(w)", "weight_mass_transferred/all", "of the plain net that computes the same, identity added"
            ),
        ),
    ),
    Quantity(
        "Weight mass, weights of at least 0.25",
        (
            _reading("w", "weight_mass/large", "of the trained weights"),
            _reading("t = T(w)", "weight_mass_transferred/large", "of those with the identity added"),
        ),
    ),
    Quantity(
        "Weight mass at the ID entries",
        (
            _reading("w", "weight_mass/id_entries", "of the trained weights there"),
            _reading("t = T(w)", "weight_mass_transferred/id_entries", "of those with the identity added"),
        ),
    ),
    Quantity(
        "Weights above 0.7",
        (
            _reading("|w|", "weight_mass/above_07", "by magnitude"),
            _reading("w", "weight_mass/above_07_signed", "positive ones only"),
            _reading("|t|", "weight_mass_transferred/above_07", "by magnitude, identity added"),
            _reading("t", "weight_mass_transferred/above_07_signed", "positive ones only, identity added"),
        ),
    ),
    Quantity(
        "Size of the weights",
        (
            _reading("‖w‖", "weight_mass/norm", "2-norm over all convolutions"),
            _reading("‖t‖", "weight_mass_transferred/norm", "the same with the identity added"),
            _reading("own", "weight_norm/own", "mean Frobenius norm of a convolution"),
            _reading("absorbed", "weight_norm/absorbed", "the same with the BatchNorm behind it absorbed"),
            _reading("own, rms", "weight_norm_rms/own", "mean over convolutions of the root mean square weight"),
            _reading("absorbed, rms", "weight_norm_rms/absorbed", "the same with BatchNorm absorbed"),
            _reading("own, filter", "weight_norm_filter/own", "mean norm of one output channel’s weights"),
            _reading("absorbed, filter", "weight_norm_filter/absorbed", "the same with BatchNorm absorbed"),
        ),
    ),
    Quantity(
        "Training cost (nats): what the penalty counts",
        (
            _reading("none", "train/risk", "the risk L alone"),
            _reading("as trained", "train/cost", "L + (λ/2)‖w‖²"),
            _reading("paper", "train/cost_paper", "L + (λ/2)‖w‖²/B with the batch size B"),
        ),
    ),
    Quantity(
        "Training risk (nats): when and on what",
        (
            _reading("final weights", "train/risk", "all samples, not augmented, at the epoch’s last weights"),
            _reading("running", "train/risk_running", "augmented batches, as they were trained on during the epoch"),
            _reading("probe", "probe/risk", "the fixed samples on which measures are taken"),
        ),
    ),
    Quantity(
        "Generalisation gap: of which loss",
        (
            _difference("error", "test/error", "train/error", "test less training error"),
            _difference("risk", "test/risk", "train/risk", "test less training risk, in nats"),
            _difference("error, running", "test/error", "train/error_running", "training error while it was trained"),
            _difference("risk, running", "test/risk", "train/risk_running", "training risk while it was trained"),
        ),
    ),
    Quantity(
        "Normalisation’s λ",
        (
            _reading("mean |λ|", "bn_lambda/mean_abs", "mean magnitude of an entry, mean over layers"),
            _reading("‖λ‖₂", "bn_lambda/l2", "2-norm of a layer’s λ, mean over layers"),
            _reading("effective scale", "bn_lambda/scale", "mean of |λ|/√(var + ε): what inputs are multiplied by"),
        ),
    ),
    Quantity(
        "Share of normalisations whose |λ| is driven up",
        (
            _reading("second order", "drive/positive", "Theorem 3 of Littwin & Wolf, which takes λ as stationary"),
            _reading("first order", "drive/positive_first", "the gradient itself"),
        ),
    ),
    Quantity(
        "Effective depth of the ensemble (layers)",
        (
            _reading("d_eff", "depth/effective", "mean length of a path, weighted by the square of its output"),
            _reading("d_eff from the input", "depth/effective_input", "without the paths that start at a bias"),
            _reading("d_coh", "depth/coherent", "weighted by what a path adds to the sum of all"),
            _reading("d_grad", "depth/gradient", "weighted by the square of its gradient"),
        ),
    ),
    Quantity(
        "Condition number of the Hessian",
        (
            _reading("at least", "hessian/condition10_low", "lower end of where it lies, for so few products"),
            _reading("at most", "hessian/condition10_high", "upper end; equal for exact spectra"),
        ),
    ),
    Quantity(
        "Index of the Hessian: share of negative eigenvalues",
        (
            _reading("at least", "hessian/index_low", "lower end: eigenvalues too close to 0 are counted as positive"),
            _reading("at most", "hessian/index_high", "upper end: they are counted as negative"),
        ),
    ),
    Quantity(
        "Response to noise in the weights: how large the noise is",
        (
            _reading("relative", "noise/response_*", "a share of the norm of the trained weights"),
            _reading("transferred", "noise_transferred/response_*", "a share of the norm of t, identity added"),
            _reading("absolute", "noise_absolute/response_*", "a share of a norm that does not depend on the weights"),
        ),
        "strengths",
    ),
    Quantity(
        "Change of the risk under noise in the weights",
        (
            _reading("relative", "noise/risk_*", "noise is a share of the norm of the trained weights"),
            _reading("transferred", "noise_transferred/risk_*", "a share of the norm of t, identity added"),
            _reading("absolute", "noise_absolute/risk_*", "a share of a norm that does not depend on the weights"),
        ),
        "strengths",
    ),
    Quantity(
        "Interlayer smoothness ρ",
        (
            _reading("definition", "noise/smoothness/rho", "what is not linear, biases held against the net"),
            _reading("linearisation", "noise/smoothness/rho_linearisation", "error of the linearisation alone"),
        ),
    ),
    Quantity(
        "Bound of Arora et al., under the root",
        (
            Reading("paper", ("noise/bound/log10",), "cushions with the identity in the numerator only", _power),
            Reading("transferred", ("noise/bound/log10_transferred",), "identity in both", _power),
            Reading("branch", ("noise/bound/log10_branch",), "identity in neither", _power),
        ),
    ),
)
