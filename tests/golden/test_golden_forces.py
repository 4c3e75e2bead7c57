"""Driving forces of the golden net: finite differences in lambda and along the gradient."""

import math

import pytest
import torch

from tests.golden.by_hand import Resnet10, loss
from tests.golden.subject import LAYERS
from tests.golden.test_golden_weights import norm_behind

pytestmark = pytest.mark.slow  # the run that all golden tests read takes a minute or two

STEP = 1e-5
WEIGHTS = [f"{path}.weight" for path in LAYERS.values()]


def gradient(state, images, labels) -> dict[str, torch.Tensor]:
    """dL/dw of the layers' weights: neither biases nor lambda."""
    weights = {name: state[name].clone().requires_grad_() for name in WEIGHTS}
    found = torch.autograd.grad(loss(Resnet10(state | weights)(images), labels), list(weights.values()))
    return dict(zip(WEIGHTS, found))


def dot(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    return float(sum((one[name] * other[name]).sum() for name in WEIGHTS))


def slope(function, step: float = STEP) -> float:
    """At 0, by central differences."""
    return (function(step) - function(-step)) / (2 * step)


@pytest.mark.parametrize("layer", ["layer01", "layer05", "layer08", "layer12"])
def test_forces_on_lambda(measured, state, images, labels, layer):
    """-sum sign(lambda) dL/dlambda, and half the slope of |grad_w L|^2 as all |lambda| of a layer grow."""
    name = f"{norm_behind(layer)}.weight"
    values = state[name]
    assert float(values.min()) < 0 < float(values.max())

    def grown(h: float) -> dict[str, torch.Tensor]:
        return state | {name: values + h * values.sign()}

    def square(h: float) -> float:
        g = gradient(grown(h), images, labels)
        return dot(g, g)

    first = -slope(lambda h: float(loss(Resnet10(grown(h))(images), labels)))
    assert measured[f"drive/{layer}/size"] == pytest.approx(float(values.abs().sum()), rel=1e-12)
    assert measured[f"drive/{layer}/first_order"] == pytest.approx(first, rel=1e-6)
    assert measured[f"drive/{layer}/second_order"] == pytest.approx(slope(square) / 2, rel=1e-5)


def test_forces_on_scale(measured, state, images, labels):
    """-dL/dC as w grows along itself, and the slope of this as w goes down its gradient."""
    w = {name: state[name] for name in WEIGHTS}
    g = gradient(state, images, labels)

    def size(w) -> float:
        return math.sqrt(dot(w, w) / sum(each.numel() for each in w.values()))

    def longer(h: float) -> dict[str, torch.Tensor]:
        return state | {name: w[name] * (1 + h / size(w)) for name in WEIGHTS}

    def push(step: float) -> float:
        moved = {name: w[name] - step * g[name] for name in WEIGHTS}
        return -dot(gradient(state | moved, images, labels), moved) / size(moved)

    first = -slope(lambda h: float(loss(Resnet10(longer(h))(images), labels)), 1e-7 * size(w))
    assert measured["drive/scale/size"] == pytest.approx(size(w), rel=1e-12)
    assert measured["drive/scale/first_order"] == pytest.approx(first, rel=1e-5)
    assert measured["drive/scale/first_order"] == pytest.approx(push(0.0), rel=1e-10)
    small = 1e-8 * size(w) / size(g)  # a larger one switches ReLUs
    assert measured["drive/scale/second_order"] == pytest.approx(slope(push, small), rel=1e-5)
