"""What drives the scales of a net up or down: Theorems 3 and 4 of Littwin & Wolf (2016), section 4.2.

Both theorems are about the push that gradient descent exerts on a scale: how does it change after a small step of the weights
alone, ``w - mu g``, with g the gradient of the loss L with respect to w? The statistics of normalisation are held fixed, lambda_l
are the factors of a normalisation layer, and ``C = ||w|| / sqrt(Lambda)`` for Lambda weights:

    the push of |lambda_l| is -sum_d sign(lambda_d) dL/dlambda_d; per mu it changes by 1/2 sum_d sign(lambda_d) d||g||^2/dlambda_d
    the push of C is -dL/dC = -g.w / C; per mu it changes by (g.Hw + ||g||^2) / C - (g.w)^2 / (C ||w||^2)

The paper assumes that the push is 0, so that its change decides the direction; away from stationary points the push itself
usually decides. Both are measured, for any loss that can be differentiated twice. In the paper's model (linear loss, frozen
gates, one skip, paths of lengths m and p) the changes are its right-hand sides: ``||g_m + g_p||^2 / |lambda_l|`` for a layer
that is not skipped, ``(||g_p||^2 + g_p.g_m) / |lambda_l|`` for a skipped one, and at ``g.w = 0`` ``(m ||g_m||^2 + p ||g_p||^2 +
(m + p) g_p.g_m) / C``.

Here w are the weights of the net's layers: neither lambda, nor biases, which the model does not have.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from lightning_app.common.errors import UserError
from lightning_app.common.isolation import trained_weights, unwrapped
from lightning_app.measures.core.losses import Batches, Loss, cross_entropy
from lightning_app.measures.curvature.hessian import MEMORY, Hessian
from lightning_app.measures.weights.normalisation import Normalisation
from lightning_app.networks.layers import Layer

SCALE = "scale"  # the name of C among the forces


@dataclass(frozen=True)
class Force:
    """A scale and the forces on it, per unit of learning rate; positive means upwards."""

    size: float  # sum_d |lambda_d|, or C
    first_order: float  # the push at these weights
    second_order: float  # its change after a small step of w, per unit of learning rate: the theorems' driving force


@dataclass(frozen=True)
class ScaleChange:
    """The change of a scale since the last measurement, and whether the forces measured then had its sign."""

    observed: float  # change of the scale
    agrees: float  # 1 if second_order had the sign of this change, 0 if not, NaN if either was 0
    agrees_first: float  # the same of first_order


def driving_force(
    net: nn.Module,
    batches: Batches,
    layers: Sequence[Layer],
    norms: Sequence[Normalisation] = (),
    loss: Loss = cross_entropy,
    double: bool = False,
    memory: int = MEMORY,
) -> dict[str, Force]:
    """The forces on every trained lambda, by the normalisation's name, and on C, under "scale".

    w are those weights of the net's layers that are trained parameters, not weights computed from others; L is the mean loss over
    all batches. Other arguments are those of a `Hessian`. Entries of lambda that are 0 are ignored, since |lambda| has no
    derivative there.

    Cost: one gradient with its graph and one Hessian product, about 4 gradients of the samples; one more gradient for samples
    whose graphs do not fit into ``memory``.

    Raises:
        UserError: if no layer has trained weights, and as `Hessian`.

    >>> net = nn.Linear(1, 1, bias=False)  # L = w x, C = |w|: dL/dC = x whatever w is
    >>> _ = net.weight.data.fill_(2.0)
    >>> x, y = torch.tensor([[3.0]]), torch.tensor([[0.0]])
    >>> from lightning_app.networks.layers import layers_of
    >>> driving_force(net, [(x, y)], layers_of(net), loss=lambda out, y: out.mean())
    {'scale': Force(size=2.0, first_order=-3.0, second_order=0.0)}
    """
    net = unwrapped(net)
    trained = trained_weights(net)
    names = [layer.weight_name.removeprefix(".") for layer in layers]  # a net that is a layer has no name of its own
    weights = [name for name in dict.fromkeys(names) if name in trained]  # layers may share one
    lambdas = {norm: f"{norm.path}.weight" for norm in norms if f"{norm.path}.weight" in trained}
    if not weights:
        raise UserError(f"a driving force needs layers with trained weights, but this {type(net).__name__} has none.")
    risk = Hessian(net, batches, loss, [*weights, *lambdas.values()], double, memory)
    pull = risk.gradient()  # of w, then of lambda
    count = sum(risk.parameters[name].numel() for name in weights)
    step = pull.where(torch.arange(risk.size, device=pull.device) < count, 0)  # g
    change = risk @ step  # H g: per mu, the gradient changes by its negative
    slices, vectors = risk.slices(), (risk.point(), pull, change)
    forces = {}
    for norm, parameter in lambdas.items():
        value, gradient, bend = (part[slices[parameter]].double() for part in vectors)
        value = value + norm.offset
        sign = value.sign()
        forces[norm.name] = Force(float(value.abs().sum()), -float(sign @ gradient), float(sign @ bend))
    w, g, bend = (part[:count].double() for part in vectors)
    size, along = w.norm() / len(w) ** 0.5, g @ w
    second = bend @ w + g @ g - (along / w.norm()) ** 2
    return forces | {SCALE: Force(float(size), -float(along / size), float(second / size))}


def scale_change(before: Force, now: Force) -> ScaleChange:
    """Whether the forces of an earlier measurement had the sign of the scale's change since then.

    >>> scale_change(Force(1.0, -0.5, 0.1), Force(1.5, 0.0, 0.0))
    ScaleChange(observed=0.5, agrees=1.0, agrees_first=0.0)
    """
    observed = now.size - before.size
    return ScaleChange(observed, _same_sign(before.second_order, observed), _same_sign(before.first_order, observed))


def _same_sign(predicted: float, observed: float) -> float:
    known = predicted and observed and not math.isnan(predicted + observed)
    return float((predicted > 0) == (observed > 0)) if known else math.nan
