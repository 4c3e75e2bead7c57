"""Noise stability, layer by layer: `lightning_app.measures.noise_stability.cushions` on the probe samples after epochs."""

import math
from collections.abc import Mapping
from typing import Any

import pytorch_lightning as pl
from typing_extensions import override

from callbacks.context import MeasureContext
from callbacks.log import folders_of
from callbacks.measure import Measure
from lightning_app.measures import cushions, probe_forward
from lightning_app.networks import Surveyed, by_reason, measurable, survey
from lightning_app.runs import LayerRow


class LayerCushion(Measure):
    """Logs the per-sample cushions of all layers, in all readings, from one forward pass over the probe samples.

    Definition:
        ``μ(x) = ‖A x‖ / (‖A‖_F ‖x‖)`` of a layer A at its input x, without the bias. It compares how much of the signal x the
        layer passes on with how much of noise it passes on. A residual layer computes W x + S x, and A can be read in three
        ways:

        * the paper's, without suffix in the keys: identity in A x, not in the norm, ``‖W x + S x‖ / (‖W‖_F ‖x‖)``;
        * ``transferred``: identity in both, the cushion of the plain layer T(W);
        * ``branch``: identity in neither, ``‖W x‖ / (‖W‖_F ‖x‖)``.

        The norm is the Frobenius norm of the weights or, for ``operator``, of the matrix that maps x to A x, with zero padding;
        never the spectral norm.

    Keys:
        | key | unit | meaning |
        |---|---|---|
        | ``cushion/layer10/<field>`` | 1 | fields of `CushionStatistics` |
        | ``probe/risk`` | nats | mean loss of the probe samples, from the same forward pass; NaN of a loss that is no such mean |
        | ``probe/error`` | share | wrong among the probe samples; none where labels are no classes of the outputs |
        | ``cost/cushion`` | s | what measuring all nets took |

    Interpretation:
        The larger, the less noise in the weights changes the layer's output, compared with the signal. At initialisation a
        plain layer with C input channels has about 1/√C, whatever the scale of its weights (layer 10 of depth 20, C = 32:
        0.177). A residual layer has about 3 in the paper's reading, because its ‖W‖ is small. Layer 10 after 6 epochs of
        CIFAR-10, plain against residual: 0.221 and 0.739 in the paper's reading, 0.221 and 0.207 with the identity in both,
        0.221 and 0.449 with it in neither. So the order of the nets depends on the reading. ``operator`` cushions are about √(H
        W) smaller, and at most 1 with the identity in both or in neither; in the paper's reading those of a residual layer have
        no upper bound.

    Cost:
        One forward pass over the probe samples. Compiled it takes a tenth longer than an evaluation of the same images,
        otherwise about twice as long.

    Breaks:
        * The paper's reading has no upper bound: it is infinite at W = 0, and cannot compare nets whose ‖W‖ differ.
        * Samples spread less than seeds: error bars over samples are not error bars of a net.
        * Inputs of zero have no cushion; ``dead`` counts them.
        * Texts of different lengths have different operator norms: a layer's is then NaN, but its cushions are right.
        * BatchNorm is not part of A. It runs in evaluation mode, before training with mean 0 and variance 1.
        * Layers are convolutions in one to three dimensions, also transposed, linear maps, embeddings (x has a 1 at each
          token), and the maps of query, key, value and output of ``nn.MultiheadAttention``. Each call of a layer has a row,
          ``layer10_2`` for the second. Other kinds of layers have no cushion, nor do layers that the net never calls, or with
          another weight in place of their own (hypernetworks), or whose input rows are not samples (windows, or time first),
          and convolutions that pad with anything but zeros: `layers.csv` and a warning list them with the reason.
        * A layer that gets only some of the samples, such as an expert behind a gate, has NaN, or no cushion if the first
          sample is none of them.
        * Padding tokens count like others.

    Source:
        Yu & Tomasi (2019), section 5 and Fig. 3; Arora et al. (2018), section 4, where the layer cushion is
        ``minimum``.

    When it measures: ``every_n_epochs`` (1; the last epoch always), ``at_start`` (True: before the first step) and
    ``every_n_steps`` (None; a number of steps, or "powers_of_2"), the arguments of `EpochCallback`.

    Args:
        compile: compile the pass; worthwhile for a large probe or many epochs.
    """

    family = "cushion"

    def __init__(self, compile: bool = False, **clock: Any) -> None:
        super().__init__(**clock)
        self.compile = compile

    @override
    def forget_run(self) -> None:
        super().forget_run()
        self._surveyed: dict[str, tuple[Surveyed, ...]] = {}  # by net, until it is written down
        self._layers_written = False

    @override
    def observe(self, trainer: pl.Trainer, pl_module: pl.LightningModule, epoch: float) -> None:
        super().observe(trainer, pl_module, epoch)
        if self._surveyed and not self._layers_written:  # on rank zero, which measures
            self._describe(trainer)

    @override
    def measure(self, context: MeasureContext) -> Mapping[str, Any]:
        surveyed = self._surveyed[context.name] = survey(context.net, context.example())
        for reason, paths in by_reason(surveyed).items():
            self.warn_once(f"no cushion of {paths}: {reason}")
        layers = measurable(surveyed)
        probe = probe_forward(context.net, layers, context.batches(), self.compile, context.loss)
        by_layer = {f"cushion/{name}": cushion for name, cushion in cushions(layers, probe.layers).items()}
        # An error that is no number means that the net has failed, and not that the labels are no classes.
        error = {} if math.isnan(probe.error) and not math.isnan(probe.loss) else {"probe/error": probe.error}
        return {"probe/risk": probe.loss, **error, **by_layer}

    def _describe(self, trainer: pl.Trainer) -> None:
        """Once a run: which layers there are, and of those without cushions the reason."""
        rows = [
            LayerRow(member, one.layer.name if one.layer else "", one.path, one.kind, one.shape, one.reason)
            for member, found in self._surveyed.items()
            for one in found
        ]
        for folder in folders_of(trainer):
            folder.save_layers(rows)
        self._layers_written = True
