"""The loss around the weights: rays in a random plane, as in the pictures of Li et al. (2018)."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from typing_extensions import override

from callbacks.context import MeasureContext
from callbacks.measure import Measure
from lightning_app.common.errors import UserError, at_least
from lightning_app.measures import RADII, loss_surface
from lightning_app.measures.core.hooks import in_float32
from lightning_app.networks import layers_of


class LossSurface(Measure):
    """Logs how the loss rises around the weights, in a random plane with directions as large as the net's filters.

    Definition:
        L(W + r (cos a D + sin a E)) on ``rays`` angles a and some distances r, with Gaussian D and E, each of whose filters has
        the norm of the net's filter ("filter normalisation"). All convolutions, linear maps and embeddings move at once; biases,
        normalisations and other parameters stay. Where a layer has a skip, the norm is that of the filter of W (``surface``), as
        in the pictures of Li et al., or that of T(W), with the identity (``surface_transferred``).

    Keys:
        | key | unit | meaning |
        |---|---|---|
        | ``surface[_transferred]/centre`` | loss | mean loss at the weights |
        | ``surface[_transferred]/rise_<r>`` | loss | mean over rays at distance r, less that at the centre |
        | ``surface[_transferred]/monotone`` | share | of the rays, those on which the loss never falls on the way out |
        | ``surface[_transferred]/risk`` | loss | array (rays, distances); ray k has the angle 2 π k / rays |
        | ``surface[_transferred]/radii`` | 1 | array (distances,): r |
        | ``cost/surface`` | s | what measuring all nets took |

    Interpretation:
        A small rise is a flat surface. Between a plain and a residual net it depends on the reading: T(r), the plain net that
        computes the same as a residual net r, has the surface ``surface_transferred`` of r, not its ``surface``, because
        identities make its filters longer. Compare a plain net's ``surface`` with both.

    Cost:
        One forward pass of the samples for each ray and distance, twice as many for nets with skips: with the defaults
        41,000 or 82,000 images, about as much as evaluating an epoch of CIFAR-10.

    Breaks:
        * A plane has two of millions of directions: another ``seed`` gives another picture.
        * BatchNorm uses the running statistics, which fit the weights at the centre only; before training these are 0 and 1.
        * At r = 1 the noise is as large as the weights: the loss there is that of a broken net.
        * The rise is in units of the loss: a net with larger outputs has a larger one, and a net at chance, whose outputs hardly
          depend on its inputs, has the flattest surface of all. Compare nets that have trained.
        * A net that draws random numbers in evaluation mode is refused, and so is a loss that is not a mean over samples.

    Source:
        Li, Xu, Taylor, Studer and Goldstein (2018), "Visualizing the Loss Landscape of Neural Nets", section 4. The second
        reading is ours.

    When it measures: ``every_n_epochs`` (10; the last epoch always), ``at_start`` (True: before the first step) and
    ``every_n_steps`` (None; a number of steps, or "powers_of_2"), the arguments of `EpochCallback`.

    Args:
        every_n_epochs: number of epochs between measurements (the final one is always measured); 10, since this measure is
            expensive.
        samples: number of probe samples, evenly spread over the probe; all if it has fewer.
        radii: distances r, each above 0, ascending.
        rays: number of angles, at least 1.
        seed: seed of the plane.

    Raises:
        UserError: for an argument outside its range.
    """

    family = "surface"

    def __init__(
        self,
        every_n_epochs: int = 10,
        samples: int = 256,
        radii: Sequence[float] = RADII,
        rays: int = 16,
        seed: int = 0,
        **clock: Any,
    ) -> None:
        super().__init__(every_n_epochs, **clock)
        if not radii or [*radii] != sorted({*radii}) or not all(0 < r < math.inf for r in radii):
            raise UserError(f"radii of LossSurface must be one or more ascending numbers above 0, got {list(radii)}.")
        self.samples = at_least(1, "LossSurface", samples=samples)
        self.radii = tuple(radii)
        self.rays = at_least(1, "LossSurface", rays=rays)
        self.seed = seed

    @override
    def measure(self, context: MeasureContext) -> Mapping[str, Any]:
        net, samples = context.net, context.samples(self.samples)
        if not layers_of(net):
            self.warn_once(f"LossSurface logs nothing for '{context.name}', which has no layers with weights.")
            return {}
        wide, inputs = in_float32(net, [images for images, _ in samples])
        batches = [(images, labels) for images, (_, labels) in zip(inputs, samples)]
        found = loss_surface(wide, batches, context.loss, self.radii, self.rays, self.seed)
        results: dict[str, Any] = {}
        for size, surface in found.items():
            prefix = "surface" if size == "written" else f"surface_{size}"
            rises = {f"{prefix}/rise_{r:g}": float(rise) for r, rise in zip(self.radii, surface.rise)}
            results |= {prefix: surface, **rises}
        return results
