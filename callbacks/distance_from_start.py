"""How far each net has come: `lightning_app.measures.weights.mass.distance` after epochs."""

from collections.abc import Mapping
from typing import Any

from typing_extensions import override

from callbacks.context import MeasureContext
from callbacks.measure import StatefulMeasure
from lightning_app.measures import conv_weights, distance
from lightning_app.networks import layers_of


class DistanceFromStart(StatefulMeasure):
    """Logs how far training has moved each net, and how far it is from the start of other arms.

    Definition:
        2-norms in the space of the plain net's convolution weights, t = T(w) for residual nets: ``‖t_e - t_0‖`` from
        the net's own start, and ``‖t_e - p_0‖`` from the start of another arm's net of the same seed.

    Keys:
        | key | unit | meaning |
        |---|---|---|
        | ``travel/distance`` | 1 | from the net's own start |
        | ``travel/from_start_of/<arm>`` | 1 | from the other arm's start, if it has as many weights |
        | ``cost/travel`` | s | what measuring all nets took |

    Interpretation:
        At epoch 0 ``travel/distance`` is 0 and ``travel/from_start_of/<arm>`` the distance between the two starts: 58 between
        plain and residual nets of depth 32, 45 at depth 20, with the papers' initialisations. A ``travel/distance`` far below
        that means that training stays near its start; the reproduction of Fig. 7 asks for less than half.

    Cost:
        One pass over the convolutions' weights, which is negligible, and one copy of them in memory and checkpoint.

    Breaks:
        * A change of scale counts as distance: with normalisation a net may move far and compute the same, and weight decay
          alone moves it.
        * Linear layers and biases are not counted (if fewer than half of the layers are convolutions, all layers are).
        * After a resume from a checkpoint without this callback the start is unknown, and nothing is logged.
        * There is no distance between arms with different numbers of weights.

    Source:
        Yu & Tomasi (2019), section 4.2 and SM C, Fig. 7.

    When it measures: ``every_n_epochs`` (1; the last epoch always), ``at_start`` (True: before the first step) and
    ``every_n_steps`` (None; a number of steps, or "powers_of_2"), the arguments of `EpochCallback`.
    """

    family = "travel"
    takes_samples = False

    @property
    @override
    def state_key(self) -> str:
        return "WeightTravel"  # the class's name when the first checkpoints were written

    @override
    def begin(self, context: MeasureContext) -> None:
        if layers := layers_of(context.net):
            context.keep("starts", conv_weights(layers))  # t_0 (n,) float64

    @override
    def measure(self, context: MeasureContext) -> Mapping[str, Any]:
        layers = layers_of(context.net)
        if not layers:
            return {}
        now = conv_weights(layers)
        starts = {"travel/distance": context.kept("starts")}
        starts |= {
            f"travel/from_start_of/{arm}": context.kept("starts", name=name) for arm, name in context.others.items()
        }
        return {
            key: distance(now, start) for key, start in starts.items() if start is not None and len(start) == len(now)
        }
