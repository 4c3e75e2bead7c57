"""Where the weights are: `lightning_app.measures.weights.mass` after epochs."""

from collections.abc import Mapping
from typing import Any

from typing_extensions import override

from callbacks.context import MeasureContext
from callbacks.measure import Measure
from lightning_app.measures import weight_mass
from lightning_app.networks import layers_of


class WeightMass(Measure):
    """Logs where the weights are: mean, spread and L1 mass of w, and of its transferred twin t = T(w).

    Definition:
        The mass of a set of weights is their L1 norm, Σ |w|: of all weights, of those with |w| ≥ 0.25, of the ID
        entries, to which T adds 1. A plain net is its own twin.

    Keys:
        | key | unit | meaning |
        |---|---|---|
        | ``weight_mass/[layer10/]<field>`` | 1 | fields of `WeightStatistics`, in total or of one layer |
        | ``weight_mass_transferred/[layer10/]<field>`` | 1 | the same `WeightStatistics` of t, layers that T changes |
        | ``cost/weight_mass`` | s | what measuring all nets took |

    Interpretation:
        If ``id_over_large`` is near 1, the large weights are the identities. Before training, expected at depth 32: plain 0.07
        in std, mass 25,033, of which 412 large and 65 at ID entries; t of a residual net 0.048, 1,976, and 1,072 both large and
        at ID entries. After 200 epochs the paper has 76 % for t and 10.29 % for a plain net: each stays in the region where it
        started.

    Cost:
        A copy of the weights to the CPU and a few passes over it: negligible.

    Breaks:
        * The total includes weights of all convolutions, but no biases and no linear layer: no other choice fits Table 3. If
          fewer than half of the layers are convolutions, as in a ViT, all count, a shared weight once.
        * T exists only for layers with a skip: a net that does not describe its skips counts as plain.
        * "Above 0.7" is counted with and without sign, since the paper does not say; the mass 1900 that it prints for t
          at epoch 0 is expected with fan-out initialisation (1,927) and not with the fan-in that it writes (1,976).

    Source:
        Yu & Tomasi (2019), SM C, Table 3 and Fig. 7.

    When it measures: ``every_n_epochs`` (1; the last epoch always), ``at_start`` (True: before the first step) and
    ``every_n_steps`` (None; a number of steps, or "powers_of_2"), the arguments of `EpochCallback`.
    """

    family = "weight_mass"
    takes_samples = False

    @override
    def measure(self, context: MeasureContext) -> Mapping[str, Any]:
        layers = layers_of(context.net)
        changed = {"", *(layer.name for layer in layers if layer.skip)}  # T is the identity on the other layers
        return {
            f"{prefix}/{layer}".rstrip("/"): found  # "" is the whole net
            for prefix, transferred in (("weight_mass", False), ("weight_mass_transferred", True))
            for layer, found in weight_mass(layers, transferred=transferred).items()
            if layer in changed or not transferred
        }
