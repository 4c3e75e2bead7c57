"""Effective depth of the ensemble that a residual net is, on probe samples after epochs."""

from collections.abc import Mapping
from typing import Any

from typing_extensions import override

from callbacks.context import MeasureContext
from callbacks.measure import Measure
from lightning_app.common.errors import at_least
from lightning_app.measures import NoBranches, NoPaths, effective_depth


class EffectiveDepth(Measure):
    """Logs the mean length of the paths that contribute to a residual net's outputs and gradient.

    Definition:
        A residual net is the sum over its paths, one for each choice of branch or identity. f_r is what its paths of length r
        contribute to the outputs, g_r to the gradient, with exact sums f = Σ f_r and g = Σ g_r + g_gates:
        ``d_eff = Σ r E‖f_r‖² / Σ E‖f_r‖²``, ``d_coh = Σ r E⟨f_r, f⟩ / E‖f‖²``, ``d_grad = Σ r ‖g_r‖² / Σ ‖g_r‖²``. The length
        of a path is the number of weight layers that it passes, without the readout; outputs are centred over the classes. E is
        the mean over samples (for tokens: over those whose label counts). g_gates is the gradient through what is held fixed:
        activations, the variances of LayerNorm and similar norms, attention's patterns, squeeze-and-excitation. In nets of ReLU
        and BatchNorm it is 0.

    Keys:
        | key | unit | meaning |
        |---|---|---|
        | ``depth/effective`` | layers | d_eff |
        | ``depth/effective_input`` | layers | d_eff of the paths that start at the input, not at a bias or shift |
        | ``depth/coherent`` | layers | d_coh, which may leave the range of lengths: parts that cancel count negative |
        | ``depth/gradient`` | layers | d_grad |
        | ``depth/gate_share`` | share | of ‖g_gates‖² in ‖g_gates‖² + ‖g - g_gates‖², of which d_grad says nothing |
        | ``depth/longest`` | layers | p, the most layers of a path |
        | ``depth/relative`` | 1 | d_eff / p |
        | ``depth/bias_share`` | share | of Σ E‖f_r‖² that is lost without the paths that start at a constant |
        | ``depth/distribution`` | 1e-6 | E‖f_r‖² over r: histogram, in millionths of the sum |
        | ``depth/lengths`` | layers | r: array |
        | ``depth/outputs``, ``depth/gradients`` | 1 | E‖f_r‖², ‖g_r‖²: arrays |
        | ``cost/depth`` | s | what measuring all nets took |

    Interpretation:
        d_eff is between the shortest and the longest path. ``effective_input`` is more reliable than ``effective``: with
        BatchNorm up to three quarters of Σ E‖f_r‖² come from constants that cancel. The simplified ResNet of depth 20 (p = 19)
        has d_eff 1.1 at initialisation and 3.8 after 10 epochs of CIFAR-10 (from the input 5.3, d_coh 2.8, d_grad 5.2; three
        seeds). On Gaussian mixtures the mean path length starts below half of the depth, as Littwin & Wolf say (above it
        without normalisation from weights of gain √2), but with normalisation it becomes smaller in training, not larger.

    Cost:
        A few percent of an epoch of CIFAR-10 with the defaults at depth 20. Splitting outputs by length costs 10 gradients of
        the same images, splitting gradients 55; both grow with the square of the depth. ``gate_share`` costs one gradient, and
        none if no gate changes nearby.

    Breaks:
        * Every operation that a signal passes needs a rule: linear maps, embeddings, activations, normalisations, attention,
          pooling, sums, products with a gate. For other nets nothing is logged, and a warning names the operation.
        * In a product of two signals the one that passed the later kind of function is the gate: linear, activation,
          softmax or sigmoid. Queries and keys make gates, so a path through attention is two layers longer.
        * If a net takes several tensors, paths start at the first and at others with real numbers; segments, positions and
          arguments of ``forward`` with ``mask`` in their names are constants.
        * Nets without branches have one length, their depth, and no keys.
        * d_grad is that of the first ``gradient_samples``. Where the probe is sorted by class, as that of an `ImageFolder`, these
          are of the first classes only: set ``gradient_samples`` to ``samples``.
        * If ``gate_share`` is large, d_grad describes only a small part of the gradient.
        * Gates and statistics are those of each sample. Before training, when running statistics have seen no data, those of
          probe samples are used.
        * Lengths count weight layers: a block of two convolutions makes paths two longer, projections on shortcuts
          count.

    Source:
        Littwin & Wolf (2016), section 3, whose weights ε_r are a model of this; Veit et al. (2016) for the ensemble
        view. The exact resolution by length is ours.

    When it measures: ``every_n_epochs`` (1; the last epoch always), ``at_start`` (True: before the first step) and
    ``every_n_steps`` (None; a number of steps, or "powers_of_2"), the arguments of `EpochCallback`.

    Args:
        samples: number of probe samples, evenly spread over the probe; all if it has fewer.
        gradient_samples: number of these used for d_grad, the first ones, for which a sample costs as much as five for d_eff.
    """

    family = "depth"

    def __init__(self, samples: int = 64, gradient_samples: int = 16, **clock: Any) -> None:
        super().__init__(**clock)
        self.samples = at_least(1, "EffectiveDepth", samples=samples)
        self.gradient_samples = min(samples, at_least(1, "EffectiveDepth", gradient_samples=gradient_samples))

    @override
    def measure(self, context: MeasureContext) -> Mapping[str, Any]:
        net, samples = context.recalibrated(), context.samples(self.samples)
        try:
            return {"depth": effective_depth(net, samples, context.loss, self.gradient_samples, context.max_batch)}
        except (NoBranches, NoPaths) as error:
            if isinstance(error, NoPaths) or not context.others:  # beside a residual net, a plain one is no surprise
                self.warn_once(f"EffectiveDepth logs nothing: {error}")
            return {}
