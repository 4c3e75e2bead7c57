"""The loss around a net's weights, in a plane of two random directions that fit the size of its filters.

Li, Xu, Taylor, Studer & Goldstein (2018), "Visualizing the Loss Landscape of Neural Nets", section 4. A random direction shows
nothing by itself: as ReLU nets compute the same with one layer scaled up and the next one down, the same step is large for one
net and small for the other. So each filter of the direction gets the norm of the net's own filter.

With a skip that norm is ambiguous: the identity is part of what the layer computes, but not of its weights. Both readings:

* written: the norm of the filter of W.
* transferred: the norm of the filter of T(W), the plain layer that computes the same. As T is a translation of the weights, this
  is the surface that the plain net T(r) has around its own weights: it tells what the identities do to the function.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn

from lightning_app.common.calls import call, outputs_of
from lightning_app.common.errors import UserError
from lightning_app.measures.core.hooks import (
    SAME_EACH_TIME,
    call_with,
    check_evaluating,
    is_random,
    with_plain_weights,
)
from lightning_app.measures.core.losses import (
    NO_MEAN,
    Batch,
    Batches,
    Loss,
    counted,
    cross_entropy,
    no_mean,
    scalar_loss,
)
from lightning_app.networks.layers import Layer, each_once, layers_of

ADVICE = "leave LossSurface out of trainer.callbacks (in Python: of `measures`)."
Size = Literal["written", "transferred"]
RADII = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1.0)


@dataclass(frozen=True, eq=False)
class Surface:
    """The mean loss on K rays from the weights, at R distances. A filter w has moved by about r ||w||, by exactly that on the
    two directions themselves.
    """

    radii: Tensor  # (R,) float64, r > 0, ascending
    centre: float  # the mean loss at the weights
    risk: Tensor  # (K, R) float64, the mean loss; ray k has the angle 2 pi k / K in the plane
    monotone: float  # share of rays on which it never falls on the way out, nor is NaN

    @property
    def rise(self) -> Tensor:
        """(R,) float64: the mean over rays, less that at the centre."""
        return self.risk.mean(0) - self.centre


@torch.no_grad()
def loss_surface(
    net: nn.Module,
    batches: Batches,
    loss: Loss = cross_entropy,
    radii: Sequence[float] = RADII,
    rays: int = 16,
    seed: int = 0,
) -> dict[Size, Surface]:
    """The mean loss at weights ``W + r (cos(a) D + sin(a) E)``, with Gaussian D and E whose filters have the norms of W's.

    All layers move at once; biases, normalisations and parameters outside of layers stay. A weight that is used several times
    moves once. The random numbers depend on the layer's place and shape alone: plain and residual nets get the same ones. Weights
    and buffers of the net are not changed.

    Args:
        net: inputs -> outputs, in evaluation mode.
        batches: (inputs, labels); they are kept.
        loss: (outputs, labels) -> mean over samples, or tokens whose label counts.
        radii: distances r > 0, in norms of a filter.
        rays: number K of angles, evenly spaced.
        seed: seed of the directions, combined with the layer's place among the net's layers.

    Raises:
        UserError: if there is no layer with weights or no label that counts, for a net that draws random numbers in evaluation
            mode, and for a layer whose skip cannot be written into its kernel (`Layer.identity`).

    >>> line = nn.Linear(1, 1, bias=False)  # its one filter has one weight: 2, or 2 + 2 r, or 2 - 2 r
    >>> _ = nn.init.constant_(line.weight, 2)
    >>> found = loss_surface(line, [(torch.ones(1, 1), torch.zeros(1, 1))], nn.MSELoss(), radii=[0.5], rays=2)["written"]
    >>> found.centre, sorted(found.risk.flatten().tolist())
    (4.0, [1.0, 9.0])
    """
    check_evaluating(net, "a loss surface")
    net, pieces = with_plain_weights(net), [*batches]
    layers = each_once(layers_of(net))
    if not layers or not any(counted(labels, loss) for _, labels in pieces):
        raise UserError(
            "a loss surface needs at least one layer with weights and one sample whose label counts; this "
            f"{type(net).__name__} got no such sample or has no such layer."
        )
    if is_random(net, pieces[0][0]):
        raise UserError(f"a loss surface needs {SAME_EACH_TIME} Otherwise {ADVICE}")
    if differing := no_mean(lambda inputs: outputs_of(call(net, inputs)), pieces, loss):
        raise UserError(NO_MEAN.format("a loss surface", *differing, ADVICE))
    centre = _risk(net, {}, pieces, loss)
    angles = [2 * math.pi * number / rays for number in range(rays)]
    found: dict[Size, Surface] = {}
    for size in get_args(Size):
        if size == "transferred" and not any(layer.skip for layer in layers):
            found[size] = found["written"]
            continue
        plane = [_directions(layers, size, (seed, which)) for which in (0, 1)]
        risks = [
            [_risk(net, _moved(layers, plane, (r * math.cos(a), r * math.sin(a))), pieces, loss) for r in radii]
            for a in angles
        ]
        risk = torch.tensor(risks, dtype=torch.float64)
        outwards = torch.cat([torch.full((rays, 1), centre, dtype=torch.float64), risk], 1)
        rises = (outwards[:, 1:] >= outwards[:, :-1]).all(1)
        found[size] = Surface(
            radii=torch.tensor(radii, dtype=torch.float64),
            centre=centre,
            risk=risk,
            monotone=float(rises.double().mean()),
        )
    return found


def _directions(layers: Sequence[Layer], size: Size, stream: tuple[int, int]) -> list[Tensor]:
    """Of each layer a Gaussian of its weight's shape, each filter as long as the layer's own."""
    found = []
    for number, layer in enumerate(layers):
        weight = layer.transferred() if size == "transferred" else layer.weight64()
        places = torch.arange(weight.numel(), device="cpu").view(weight.shape)
        filters = layer.outputs_first(places).flatten(1)  # (D, n): where the n weights of each are
        (state,) = np.random.SeedSequence((*stream, number)).generate_state(1).tolist()
        generator = torch.Generator().manual_seed(state)
        drawn = torch.randn(filters.shape, generator=generator, dtype=torch.float64, device="cpu")
        lengths = weight.flatten()[filters].norm(dim=1) / drawn.norm(dim=1)
        direction = weight.new_empty(weight.shape)  # in memory as its shape says, whatever the weight is
        direction.view(-1)[filters] = lengths[:, None] * drawn
        found.append(direction.to(layer.weight))
    return found


def _moved(layers: Sequence[Layer], plane: Sequence[Sequence[Tensor]], steps: Sequence[float]) -> dict[str, Tensor]:
    """The weights at this point of the plane, by state-dict name; several layers may be rows of one."""
    found: dict[str, Tensor] = {}
    for layer, *directions in zip(layers, *plane):
        whole = found.setdefault(layer.weight_name, layer.parameter.detach().clone())
        for step, direction in zip(steps, directions):
            whole[layer.rows] += step * direction
    return found


def _risk(net: nn.Module, weights: dict[str, Tensor], pieces: Sequence[Batch], loss: Loss) -> float:
    """The mean over all terms that count."""
    total, terms = 0.0, 0

    def moved(*placed: Any, **named: Any) -> Any:
        return call_with(net, weights, placed, named)

    for inputs, labels in pieces:
        if count := counted(labels, loss):
            total += count * float(scalar_loss(loss(outputs_of(call(moved, inputs)), labels)))
            terms += count
    return total / terms
