"""How far each net has come: `lightning_app.measures.weights.distance` after epochs."""

from collections.abc import Mapping
from typing import Any

import pytorch_lightning as pl
from torch import Tensor, nn
from typing_extensions import override

from callbacks.measure import Measure
from callbacks.protocol import members_of, name_of
from lightning_app.measures import conv_weights, distance
from lightning_app.networks import layers_of

__all__ = ["DistanceFromStart"]


class DistanceFromStart(Measure):
    """Logs how far training has moved each net, against how far apart the nets started.

    Definition:
        2-norms in the space of the plain net's convolution weights, t = T(w) for residual nets: ``‖t_e - t_0‖`` from
        the net's own start, and ``‖t_e - p_0‖`` from the start of another arm's net of the same seed.

    Keys:
        | key | unit | meaning |
        |---|---|---|
        | ``travel/distance`` | weights | from the net's own start |
        | ``travel/from_start_of/<arm>`` | weights | from the other arm's start, if it has as many weights |
        | ``cost/travel`` | s | what measuring all nets took |

    Reading:
        At epoch 0 ``travel/distance`` is 0 and ``travel/from_start_of/<arm>`` the distance between the two starts: 58
        between plain and residual nets of depth 32, 45 at depth 20, with the papers' initialisations. A
        ``travel/distance`` far below that says that training stays near where it began; the reproduction of Fig. 7 asks
        for less than half.

    Cost:
        One pass over the convolutions' weights, 0.001 % of a CIFAR-10 epoch, depth 20; one copy of them in memory and
        checkpoint.

    Breaks:
        * Scale is counted as distance: with normalisation a net may move far and compute the same, and weight decay
          alone moves it.
        * Linear layers and biases are not counted (all layers in a net without convolutions).
        * After a resume from a checkpoint without this callback the start is not known, and nothing is logged.
        * Arms with other numbers of weights have no distance.

    Source:
        Yu & Tomasi (2019), section 4.2 and SM C, Fig. 7.

    Args:
        every_n_epochs: after every so many epochs, and always after the final one.
        at_start: also before the first training step.
    """

    family = "travel"

    def __init__(self, every_n_epochs: int = 1, at_start: bool = True) -> None:
        super().__init__(every_n_epochs, at_start)
        self._starts: dict[str, Tensor] = {}  # member -> t_0 (n,) float64

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.global_step == 0 and trainer.current_epoch == 0:
            known = ((name, layers_of(net)) for name, net in members_of(pl_module))
            self._starts = {name: conv_weights(layers, True) for name, layers in known if layers}
        super().on_train_start(trainer, pl_module)

    @override
    def measure(self, trainer: pl.Trainer, net: nn.Module) -> Mapping[str, Any]:
        name, layers = name_of(trainer, net), layers_of(net)
        if not layers:
            return {}
        now = conv_weights(layers, True)
        own = {"travel/distance": distance(now, self._starts[name])} if name in self._starts else {}
        return own | {
            f"travel/from_start_of/{arm}": distance(now, self._starts[other])
            for arm, other in _rivals(trainer.lightning_module, name)
            if other in self._starts and len(self._starts[other]) == len(now)
        }

    @property
    @override
    def state_key(self) -> str:
        return "WeightTravel"  # the class's name when the first checkpoints were written

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"starts": self._starts}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._starts = state_dict["starts"]


def _rivals(pl_module: pl.LightningModule, name: str) -> list[tuple[str, str]]:
    """(arm, member's name) of the other arms' members of the same seed."""
    members = {member.name: member for member in getattr(pl_module, "members", [])}
    if name not in members:
        return []
    own = members[name]
    return [(m.arm, m.name) for m in members.values() if m.seed == own.seed and m.arm != own.arm]
