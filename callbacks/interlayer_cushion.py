"""Noise stability, block by block: `lightning_app.measures.interlayer` on the probe samples after epochs."""

from collections.abc import Mapping
from typing import Any

import pytorch_lightning as pl
from torch import nn
from typing_extensions import override

from callbacks.base import Measure
from callbacks.protocol import few_samples, members_of
from lightning_app.errors import UserError
from lightning_app.measures import interlayer_cushions
from lightning_app.measures.batch_of_one import BnMode
from lightning_app.measures.interlayer import check_interlayer
from lightning_app.networks import Span, blocks_of, span_of

__all__ = ["InterlayerCushion"]

PREFIXES = {"eval": "interlayer", "batch1": "interlayer_batch1"}


class InterlayerCushion(Measure):
    """Logs the interlayer cushions ``sqrt(n) ||J x|| / (||J||_F ||x||)`` of blocks, J the block's Jacobian at its input x.

    | key | BatchNorm uses |
    |---|---|
    | ``interlayer/block05/<field>`` | running statistics |
    | ``interlayer_batch1/block05/<field>`` | each sample's own, with which the paper's numbers come out |

    The fields are those of `lightning_app.measures.InterlayerStatistics`: ``median``, ``mean``, ``std``, ``minimum`` with
    n = C H W, ``median_hw`` and so on with n = H W, ``relative_error``, ...; dimensionless.

    Args:
        every_n_epochs: after every so many epochs, and always after the final one.
        at_start: also before the first training step.
        blocks: names as in the keys, spans like "block03-block05", or names of modules; None for every block of each net,
            none where it has no blocks.
        samples: at most so many probe samples.
        probes: random vectors a sample for ||J||_F: 4 for means over samples, 16 for their distribution. None: exact,
            feasible for some hundred samples of nets whose blocks describe themselves.
        bn_modes: "eval", "batch1", or a list of both.
        before_relu: leave out the ReLU at a block's end.
        half: multiply the probes in bfloat16: twice as fast on processors that have it, slower on others.
    """

    family = "interlayer"

    def __init__(
        self,
        every_n_epochs: int = 1,
        at_start: bool = True,
        blocks: list[str] | None = None,
        samples: int = 1000,
        probes: int | None = 4,
        bn_modes: BnMode | list[BnMode] = "eval",
        before_relu: bool = False,
        half: bool = False,
    ) -> None:
        super().__init__(every_n_epochs, at_start)
        if samples < 1:
            raise UserError(f"samples of InterlayerCushion must be at least 1, got {samples}.")
        self.blocks = blocks
        self.samples = samples
        self.probes = probes
        self.bn_modes = [bn_modes] if isinstance(bn_modes, str) else list(bn_modes)
        self.before_relu = before_relu
        self.half = half

    @override
    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        for _, net in members_of(pl_module):
            for bn_mode in self.bn_modes:
                check_interlayer(net, self._spans(net), bn_mode, self.probes)

    @override
    def measure(self, trainer: pl.Trainer, net: nn.Module) -> Mapping[str, Any]:
        spans = self._spans(net)
        if not spans:
            return {}
        images = [images for images, _ in few_samples(trainer, net, self.samples)]
        return {
            f"{PREFIXES[bn_mode]}/{name}": found
            for bn_mode in self.bn_modes
            for name, found in interlayer_cushions(
                net, spans, images, bn_mode, self.probes, self.before_relu, self.half
            ).items()
        }

    def _spans(self, net: nn.Module) -> list[Span]:
        return list(blocks_of(net)) if self.blocks is None else [span_of(net, name) for name in self.blocks]
