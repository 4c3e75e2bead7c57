"""Networks as pure ``nn.Module``s, and how they describe themselves. No Lightning, no W&B.

A net is any ``nn.Module`` that maps samples (B, ...) to logits (B, classes). Measures find its convolutions and linear layers,
and the blocks in its Sequentials, by themselves. A net can tell more by attributes and methods, which are all
optional:

| on the net | meaning | used by |
|---|---|---|
| ``residual: bool`` | whether it has identity connections | run folder, colours, the direction of T |
| ``depth: int`` | how many layers it has, in its own counting | run folder, pairs and sentences of the report |
| ``layers() -> tuple[Layer, ...]`` | its layers in forward order, with ID entries and skips | `layers_of` |
| ``block_list() -> list[nn.Module]`` | its blocks in forward order, from which spans are made | `blocks_of`, `span_of` |
| ``id_weights() -> list[str]`` | state-dict names of the weights that have ID entries | T, penalties around the identity |
| ``counterpart() -> nn.Module`` | a copy with ``residual`` flipped and the same weights | T, twins |

| on a block | meaning | used by |
|---|---|---|
| ``before_relu(x) -> Tensor`` | its output before the last ReLU | `Span`, interlayer cushions |
| ``block_parts() -> BlockParts`` | its convolutions, BatchNorms and skip, for a Jacobian by hand | `Span.parts` |
"""

from typing import TYPE_CHECKING

from lightning_app.common.lazy import lazy

if TYPE_CHECKING:
    from lightning_app.networks.blocks import Span, blocks_of, span_of
    from lightning_app.networks.cifar_resnet import CifarResNet
    from lightning_app.networks.layers import Layer, layers_of
    from lightning_app.networks.preact import PreactResNet
    from lightning_app.networks.residual_mlp import ResidualMLP
    from lightning_app.networks.shortcut import ShortcutNet, draw
    from lightning_app.networks.simplified import SimplifiedNet
    from lightning_app.networks.tracing import NEVER_CALLED, Surveyed, by_reason, measurable, survey
    from lightning_app.networks.transformers import GPT, ViT

__getattr__ = lazy(__name__)
