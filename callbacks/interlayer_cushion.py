"""Noise stability, block by block: `lightning_app.measures.noise_stability.interlayer` on the probe samples after epochs."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytorch_lightning as pl
from torch import nn
from typing_extensions import override

from callbacks.context import MeasureContext
from callbacks.measure import Measure
from lightning_app.common.errors import at_least
from lightning_app.measures import interlayer_cushions
from lightning_app.measures.noise_stability.batch_of_one import BnMode, batch_norms
from lightning_app.measures.noise_stability.interlayer import check_interlayer
from lightning_app.networks import Span, blocks_of, span_of
from lightning_app.runs.members import members_of

PREFIXES = {"eval": "interlayer", "batch1": "interlayer_batch1"}
NO_BLOCKS = "it has no blocks in an nn.Sequential; name modules with `blocks`"
NO_BATCH_NORM = "bn_mode 'batch1' needs a block with BatchNorm, and it has none: use 'eval'"


class InterlayerCushion(Measure):
    """Logs the interlayer cushions of blocks: how much of its input a block passes on, compared with noise, sample by
    sample.

    Definition:
        ``μ(x) = √n ‖J x‖ / (‖J‖_F ‖x‖)``, with J the Jacobian of the block, or of several in a row, at its input x. n is C H W,
        so that the identity has 1; with ``_hw`` it is H W, as in Arora et al. for convolutions.

    Keys:
        | key | unit | meaning |
        |---|---|---|
        | ``interlayer/block05/<field>`` | 1 | fields of `InterlayerStatistics`, BatchNorm with running statistics |
        | ``interlayer_batch1/block05/<field>`` | 1 | the same `InterlayerStatistics`, BatchNorm on each sample alone |
        | ``cost/interlayer[_batch1]`` | s | what measuring all nets took; ``_batch1``: with that mode alone |

    Interpretation:
        Near √(n / numel), as for the identity, the block passes on its input no better than noise. The paper has 0.20 residual
        against 2.7e-7 plain. Measured on the full nets of depth 20, block 5 of 9, n = H W, after 300 steps, two seeds: on one
        sample 0.202 and 0.194 residual against 3.9e-7 and 4.0e-7 plain; in evaluation mode 0.253 and 0.251 against 0.278 and
        0.294. The gap is an identity of batch normalisation (see below), not a sensitivity to noise.

    Cost:
        A few percent of a training epoch for 1,000 images and 4 probes in all blocks at depth 20. Exact norms cost, for each
        block and sample, as much as training on 3 samples (10 with BatchNorm on one sample).

    Breaks:
        * BatchNorm of one sample (``batch1``) ignores the scale of its input, so J x of a plain block is 0 except for ε,
          whatever the weights: this mode reproduces the paper's number, but does not compare nets.
        * ``_hw`` and C H W differ by √C: never compare across them.
        * Probes estimate ‖J‖_F: ``relative_error`` is in ``std``, and a minimum over samples is biased down.
        * Inputs and Jacobians of 0 are left out of all statistics but ``frobenius``; ``dead`` and ``flat`` count them.
        * Nets without blocks have no keys and one warning, unless ``blocks`` names modules. A module that a forward pass does
          not call exactly once is refused.
        * Before training BatchNorm has mean 0 and variance 1 in "eval".

    Source:
        Yu & Tomasi (2019), section 5; Arora et al. (2018), section 4 (interlayer cushion: ``minimum``) and 5.

    When it measures: ``every_n_epochs`` (1; the last epoch always), ``at_start`` (True: before the first step) and
    ``every_n_steps`` (None; a number of steps, or "powers_of_2"), the arguments of `EpochCallback`.

    Args:
        blocks: names as in the keys, spans like "block03-block05", or names of modules; None for every block of each
            net, with "batch1" for those that have a BatchNorm.
        samples: the most probe samples to use.
        probes: random vectors per sample for ‖J‖_F: 4 for means over samples, 16 for their distribution. None: exact, feasible
            for a few hundred samples of nets whose blocks have ``block_parts``.
        bn_modes: "eval", "batch1", or a list of both.
        before_relu: leave out the ReLU at the end of a block.
        half: multiply the probes in bfloat16: twice as fast on processors that have it, slower on others.

    Raises:
        UserError: for an argument outside its range.
    """

    family = "interlayer"
    _is_second = False  # is there one in "eval" too, which says what nets have none of?

    def __init__(
        self,
        blocks: list[str] | None = None,
        samples: int = 1000,
        probes: int | None = 4,
        bn_modes: BnMode | list[BnMode] = "eval",
        before_relu: bool = False,
        half: bool = False,
        **clock: Any,
    ) -> None:
        super().__init__(**clock)
        self.blocks = blocks
        self.samples = at_least(1, "InterlayerCushion", samples=samples)
        self.probes = probes
        self.bn_modes = [bn_modes] if isinstance(bn_modes, str) else list(bn_modes)
        if self.bn_modes == ["batch1"]:
            self.family = PREFIXES["batch1"]  # beside another one in "eval" it has its own file
        self.before_relu = before_relu
        self.half = half

    @override
    def told_of(self, others: Sequence[Measure]) -> None:
        self._is_second = any(isinstance(one, InterlayerCushion) and "eval" in one.bn_modes for one in others)

    @override
    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Before anything is trained, but not in `setup`: a module may make its net in its own, which comes later."""
        if self.lenient:
            return
        nets = [member.net for member in members_of(pl_module)]
        for bn_mode in self.bn_modes:
            # Where a net has a block for this mode, the others may lack one; where none has, it was not meant.
            found = [self._spans(net, bn_mode) for net in nets]
            if not any(found):
                found = [self._spans(net, "eval") for net in nets]
            for net, spans in zip(nets, found):
                check_interlayer(net, spans, bn_mode, self.probes)

    @override
    def measure(self, context: MeasureContext) -> Mapping[str, Any]:
        net, images = context.net, [images for images, _ in context.samples(self.samples)]
        results: dict[str, Any] = {}
        for bn_mode in self.bn_modes:
            if spans := self._spans(net, bn_mode):
                found = interlayer_cushions(net, spans, images, bn_mode, self.probes, self.before_relu, self.half)
                results |= {f"{PREFIXES[bn_mode]}/{name}": one for name, one in found.items()}
            elif self._is_second:  # the other one says it
                continue
            elif self._spans(net, "eval"):
                self.warn_once(f"no interlayer cushions in 'batch1' of '{context.name}': {NO_BATCH_NORM}")
            else:
                self.warn_once(f"no interlayer cushions of '{context.name}': {NO_BLOCKS}")
        return results

    def _spans(self, net: nn.Module, bn_mode: BnMode) -> list[Span]:
        """The requested blocks; of all there are, "batch1" is about those with a BatchNorm."""
        if self.blocks is not None:
            return [span_of(net, name) for name in self.blocks]
        return [span for span in blocks_of(net) if bn_mode == "eval" or batch_norms(*span.modules)]
