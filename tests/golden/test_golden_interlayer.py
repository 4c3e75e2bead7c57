"""Interlayer cushions of the golden net against Jacobians built as matrices, and products with them by forward mode."""

import math

import numpy as np
import pytest
import torch
from torch.func import jvp

from lightning_app.measures import interlayer_cushions
from lightning_app.networks import span_of
from tests.golden.by_hand import BLOCKS, AloneResnet10, Resnet10, lengths
from tests.golden.matrices import conv_matrix

pytestmark = pytest.mark.slow  # the run that all golden tests read takes a minute or two

MODES = {"eval": Resnet10, "batch1": AloneResnet10}
PREFIXES = {"eval": "interlayer", "batch1": "interlayer_batch1"}
KEYS = ("probes", "relative_error", "norms", "samples", "median", "mean_hw")
SURE = 5  # standard errors


def block_inputs(net: Resnet10, images: torch.Tensor) -> dict[str, torch.Tensor]:
    x, found = net.stem(images), {}
    for block in BLOCKS:
        found[block] = x
        x = net.relu(net.before_relu(x, block))
    return found


def image(net: Resnet10, block: str, x: torch.Tensor) -> torch.Tensor:
    """J x."""
    return jvp(lambda x: net.relu(net.before_relu(x, block)), (x,), (x,))[1]


def block_matrix(net: Resnet10, block: str, x: torch.Tensor) -> np.ndarray:
    """J of a block at one input (1, C, H, W), from the matrices of its parts."""
    stride = 2 if f"{block}.downsample.0.weight" in net.w else 1
    inner = net.norm(net.conv(x, f"{block}.conv1", stride), f"{block}.bn1")
    first = layer_matrix(net, f"{block}.conv1", f"{block}.bn1", x, stride)
    second = layer_matrix(net, f"{block}.conv2", f"{block}.bn2", net.relu(inner), 1)
    around = np.eye(x.numel())
    if stride == 2:
        around = layer_matrix(net, f"{block}.downsample.0", f"{block}.downsample.1", x, 2)
    gate, last_gate = ((y > 0).double().flatten()[:, None].numpy() for y in (inner, net.before_relu(x, block)))
    return last_gate * (second @ (gate * first) + around)


def layer_matrix(net: Resnet10, conv: str, norm: str, x: torch.Tensor, stride: int) -> np.ndarray:
    """J of a convolution and the normalisation behind it."""
    out = net.conv(x, conv, stride)
    linear = conv_matrix(net.w[f"{conv}.weight"].numpy(), x.shape[-1], stride)
    by_channel = linear.reshape(out.shape[1], -1, linear.shape[1])
    return np.einsum("cij,cjk->cik", norm_matrices(net, norm, out), by_channel).reshape(linear.shape)


def norm_matrices(net: Resnet10, name: str, x: torch.Tensor) -> np.ndarray:
    """(C, n, n): J of each channel's normalisation, a column a time."""
    columns = []
    for place in range(x[0, 0].numel()):
        basis = torch.zeros_like(x).flatten(2)
        basis[:, :, place] = 1
        columns.append(jvp(lambda x: net.norm(x, name), (x,), (basis.view_as(x),))[1].flatten(2)[0])
    return torch.stack(columns, -1).numpy()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("block", BLOCKS)
def test_gain_of_every_block(measured, state, images, mode, block):
    """||J x|| / ||x||. Behind a projection BatchNorm of one sample leaves of J x only what its eps does."""
    hand = MODES[mode](state)
    x = block_inputs(hand, images)[block]
    gain = lengths(image(hand, block, x)) / lengths(x)
    tiny = mode == "batch1" and f"{block}.downsample.0.weight" in state
    assert (float(gain.max()) < 1e-3) == tiny
    assert measured[f"{PREFIXES[mode]}/{block}/gain"] == pytest.approx(float(gain.mean()), rel=1e-8 if tiny else 1e-11)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("block", BLOCKS[-2:])
def test_cushion_of_two_blocks(measured, net, state, images, mode, block):
    """sqrt(n) ||J x|| / (||J||_F ||x||) of the first sample, against what is estimated from few and from many probes."""
    hand, few = MODES[mode](state), {key: measured[f"{PREFIXES[mode]}/{block}/{key}"] for key in KEYS}
    x = block_inputs(hand, images)[block][:1]
    matrix, product = block_matrix(hand, block, x), image(hand, block, x)
    np.testing.assert_allclose(matrix @ x.flatten().numpy(), product.flatten().numpy(), rtol=0, atol=1e-10)
    norm = np.linalg.norm(matrix)
    mu = math.sqrt(x.numel()) * float(product.norm() / x.norm()) / norm
    many = measure(net, block, images[:1], mode, 64)
    assert few["probes"] == 4
    assert 0 < many.relative_error < few["relative_error"] < 0.05
    assert few["norms"][0] == pytest.approx(norm, rel=SURE * few["relative_error"])
    assert few["samples"][0] == pytest.approx(mu, rel=SURE * few["relative_error"])
    assert few["median"] == pytest.approx(np.median(few["samples"]), rel=1e-6)  # samples are kept in float32
    assert few["mean_hw"] == pytest.approx(few["samples"].mean() / math.sqrt(x.shape[1]), rel=1e-6)
    assert many.frobenius == pytest.approx(norm, rel=SURE * many.relative_error)
    assert many.median == pytest.approx(mu, rel=SURE * many.relative_error)
    assert many.median_hw == pytest.approx(many.median / math.sqrt(x.shape[1]), rel=1e-12)


def measure(net, block: str, images: torch.Tensor, mode: str, probes: int | None):
    (found,) = interlayer_cushions(net, [span_of(net, block)], [images], mode, probes).values()
    return found
