"""Effective depth of the golden net: the net as a polynomial in a factor of all weights."""

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.golden.by_hand import FrozenResnet10, Gates

pytestmark = pytest.mark.slow  # the run that all golden tests read takes a minute or two

LONGEST = 9  # the stem's convolution and two in each of four blocks


class AtT(FrozenResnet10):
    """All weights but the last layer's, and all shifts, times a complex t: sum_r t^r f_r."""

    def __init__(self, state, kept, t: complex, shifted: bool = True):
        super().__init__(state, kept)
        self._t, self._shifted = t, shifted

    def conv(self, x, name, stride=1):
        real, imaginary = (super(AtT, self).conv(part, name, stride) for part in (x.real, x.imag))
        return self._t * torch.complex(real, imaginary)

    def norm(self, x, name):
        scale, shift = self.affine(name)
        return scale * x + (self._t * shift if self._shifted else 0)

    def readout(self, x):
        return x.mean((2, 3)) @ self.w["fc.weight"].T.to(x.dtype)


ROOTS = np.exp(2j * np.pi * np.arange(LONGEST + 1) / (LONGEST + 1))
HALF = LONGEST // 2 + 2  # roots of which the others are conjugates


def by_length(real: Tensor, imaginary: Tensor) -> Tensor:
    """The real coefficients of t^0, ..., t^9, (10, ...), from values at the first roots of unity, (6, ...).

    ``f_r = mean over all roots of t^-r F(t)``; a root that is not real stands for its conjugate too.
    """
    powers = ROOTS[None, :HALF] ** -np.arange(LONGEST + 1)[:, None]  # (10, 6)
    powers[:, 1:-1] *= 2
    total = torch.tensordot(torch.from_numpy(powers.real), real, 1)
    return (total - torch.tensordot(torch.from_numpy(powers.imag), imaginary, 1)) / len(ROOTS)


@pytest.fixture(scope="module")
def kept(state, images):
    gates = Gates(state)
    gates(images)
    return gates.kept


def resolved(state, images, kept, shifted: bool) -> np.ndarray:
    """f_r centred over the classes, (10, m, C)."""
    start = torch.complex(images, torch.zeros_like(images))
    at_roots = torch.stack([AtT(state, kept, t, shifted)(start) for t in ROOTS[:HALF]])
    f = by_length(at_roots.real, at_roots.imag).numpy()
    return f - f.mean(-1, keepdims=True)


def mean_length(weights: np.ndarray) -> float:
    return (np.arange(LONGEST + 1) * weights).sum() / weights.sum()


def test_depth_of_outputs(measured, state, images, kept, hand):
    f, of_input = (resolved(state, images, kept, shifted) for shifted in (True, False))
    centred = (hand(images) - state["fc.bias"]).numpy()
    np.testing.assert_allclose(f.sum(0), centred - centred.mean(-1, keepdims=True), rtol=0, atol=1e-12)
    squares, of_input_squares = ((each**2).sum(-1).mean(1) for each in (f, of_input))
    coherence = (f * f.sum(0)).sum(-1).mean(1)
    assert measured["depth/longest"] == LONGEST
    assert measured["depth/effective"] == pytest.approx(mean_length(squares), rel=1e-10)
    assert measured["depth/relative"] == pytest.approx(mean_length(squares) / LONGEST, rel=1e-10)
    assert measured["depth/coherent"] == pytest.approx(mean_length(coherence), rel=1e-10)
    assert measured["depth/effective_input"] == pytest.approx(mean_length(of_input_squares), rel=1e-10)
    assert measured["depth/bias_share"] == pytest.approx(1 - of_input_squares.sum() / squares.sum(), rel=1e-10)
    lengths = measured["depth/lengths"]
    assert measured["depth/outputs"] == pytest.approx(squares[lengths], rel=1e-9, abs=1e-16)
    assert np.delete(squares, lengths) == pytest.approx(0, abs=1e-20)


def test_depth_of_gradients(measured, state, images, labels, kept, hand):
    """g_r = grad <dL/df, f_r>: the gradient at every root, real and imaginary part, and the transform of these."""
    logits = hand(images)
    delta = (logits.softmax(1) - torch.eye(10, dtype=torch.float64)[labels]) / len(labels)
    trained = [name for name in state if not name.rpartition(".")[2].startswith(("running", "num"))]
    weights = {name: state[name].clone().requires_grad_() for name in trained}
    start, parts = torch.complex(images, torch.zeros_like(images)), []
    for t in ROOTS[:HALF]:
        value = (AtT(state | weights, kept, t)(start) * delta).sum()
        parts.append((gradient(value.real, weights, True), gradient(value.imag, weights, False)))
    chunks = (torch.stack(part).split(2**18, dim=1) for part in zip(*parts))
    squares = sum(by_length(*chunk).square().sum(1) for chunk in zip(*chunks)).numpy()
    lengths = measured["depth/lengths"]
    assert measured["depth/gradients"] == pytest.approx(squares[lengths], rel=1e-8)
    assert measured["depth/gradient"] == pytest.approx(mean_length(squares), rel=1e-9)


def gradient(value: Tensor, weights: dict[str, Tensor], again: bool) -> Tensor:
    found = torch.autograd.grad(
        value, list(weights.values()), retain_graph=again, materialize_grads=True, allow_unused=True
    )
    return torch.cat([each.flatten() for each in found])
