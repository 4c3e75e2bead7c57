"""Signals of the golden net: every convolution's output and its gradient, from a net that writes them down."""

import pytest
import torch
import torch.nn.functional as F

from tests.golden.by_hand import BLOCKS, Resnet10
from tests.golden.subject import LAYERS

pytestmark = pytest.mark.slow  # the run that all golden tests read takes a minute or two


class Recorder(Resnet10):
    """Keeps what convolutions and ReLUs put out, and both summands of each block."""

    def __init__(self, state):
        super().__init__({name: value.clone().requires_grad_(name.endswith("weight")) for name, value in state.items()})
        self.out, self.gates, self.summands = {}, [], {}

    def conv(self, x, name, stride=1):
        self.out[name] = super().conv(x, name, stride)
        return self.out[name]

    def relu(self, x):
        self.gates.append(super().relu(x))
        return self.gates[-1]

    def before_relu(self, x, block):
        self.summands[block] = (self.branch(x, block), self.shortcut(x, block))
        return sum(self.summands[block])

    def __call__(self, x):
        x = self.stem(x)
        for block in BLOCKS:
            x = self.relu(self.before_relu(x, block))
        self.out["fc"] = self.readout(x)
        return self.out["fc"]


@pytest.fixture(scope="module")
def recorded(state, images, labels):
    net = Recorder(state)
    risk = F.cross_entropy(net(images), labels)
    weights = {path: net.w[f"{path}.weight"] for path in LAYERS.values()}
    wanted = [*(net.out[path] for path in LAYERS.values()), *weights.values()]
    found = torch.autograd.grad(risk, wanted)
    gradients = dict(zip(LAYERS.values(), found[: len(LAYERS)])), dict(zip(weights, found[len(LAYERS) :]))
    return net, weights, *gradients


def rms(x: torch.Tensor) -> float:
    return float(x.square().mean().sqrt())


@pytest.mark.parametrize("layer", LAYERS)
def test_each_layers_signals_and_weights(layer, recorded, measured, labels):
    net, weights, by_output, by_weight = recorded
    path = LAYERS[layer]
    ours = {
        "activation": rms(net.out[path]),
        "gradient": rms(by_output[path]) * len(labels),  # of each sample's loss, not of the mean
        "weight": rms(weights[path]),
        "weight_gradient": rms(by_weight[path]),
    }
    theirs = {key: measured[f"signal/{layer}/{key}"] for key in ours}
    assert theirs == pytest.approx(ours, rel=1e-9)


@pytest.mark.parametrize("block", BLOCKS)
def test_each_blocks_sum(block, recorded, measured):
    branch, stream = recorded[0].summands[block]
    layer = next(layer for layer, path in LAYERS.items() if path == f"{block}.conv2")
    assert measured[f"signal/{layer}/branch_ratio"] == pytest.approx(float(branch.norm() / stream.norm()), rel=1e-9)
    cosine = F.cosine_similarity(branch.flatten(), stream.flatten(), dim=0)
    assert measured[f"signal/{layer}/branch_cosine"] == pytest.approx(float(cosine), rel=1e-9)


def test_dead_units(recorded, measured):
    """The ReLUs in the net's order: the stem's, and behind both convolutions of each block."""
    paths = ["conv1", *(f"{block}.{conv}" for block in BLOCKS for conv in ("conv1", "conv2"))]
    layers = {path: layer for layer, path in LAYERS.items()}
    for path, out in zip(paths, recorded[0].gates, strict=True):
        dead = (out.amax((0, 2, 3)) == 0).double().mean()
        assert measured[f"signal/{layers[path]}/dead"] == pytest.approx(float(dead), abs=1e-12)
