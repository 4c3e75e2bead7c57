"""Effective depth of the golden net: every path walked by itself, and the net as a polynomial in a factor of all weights."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from lightning_app.measures import path_outputs
from tests.golden.by_hand import BLOCKS, FrozenResnet18, Gates

pytestmark = pytest.mark.slow  # the run that all golden tests read takes a minute or two

LONGEST = 17  # the stem's convolution and two in each of eight blocks


def gates_of(state, images: Tensor) -> list[Tensor]:
    gates = Gates(state)
    gates(images)
    return gates.kept


# Path by path


@dataclass
class Paths:
    """Signals along single paths, that add up to a net's."""

    ends: list[tuple[str, int, Tensor]]  # start, layers passed, signal

    def __add__(self, other: "Paths") -> "Paths":
        return Paths(self.ends + other.ends)

    def mean(self, over) -> "Paths":
        return Paths([(start, length, x.mean(over)) for start, length, x in self.ends])

    def __mul__(self, gate: Tensor) -> "Paths":
        return Paths([(start, length, gate * x) for start, length, x in self.ends])


class Walked(FrozenResnet18):
    """Works on `Paths`: a layer makes each longer by one, a normalisation's shift starts another one of length 1."""

    def conv(self, x, name, stride=1):
        return Paths(
            [(start, length + 1, super(Walked, self).conv(signal, name, stride)) for start, length, signal in x.ends]
        )

    def norm(self, x, name):
        scale, shift = self.affine(name)
        return x * scale + Paths([("constant", 1, shift.expand_as(x.ends[0][2]))])

    def pool(self, x):
        places = next(self._kept)
        return Paths([(start, length, _taken(signal, places)) for start, length, signal in x.ends])

    def readout(self, x):
        weight = self.w["fc.weight"]
        return Paths([(start, length, signal @ weight.T) for start, length, signal in x.mean((2, 3)).ends])


def _taken(x: Tensor, places: Tensor) -> Tensor:
    return x.flatten(2).gather(2, places.flatten(2)).view(places.shape)


def test_outputs_path_by_path(net, state, hand, images):
    """Of one picture: 256 paths from the input, and those from every shift of a normalisation."""
    image = images[:1]
    walked = Walked(state, gates_of(state, image))(Paths([("input", 0, image)])).ends
    assert sum(start == "input" for start, _, _ in walked) == 2 ** len(BLOCKS)
    by_length = {kind: torch.zeros(1, 10, dtype=torch.float64) for kind in {(start, n) for start, n, _ in walked}}
    for start, length, signal in walked:
        by_length[start, length] += signal
    found = path_outputs(net, image)
    assert found.lengths.tolist() == sorted({length for _, length in by_length})
    nothing = torch.zeros(1, 10, dtype=torch.float64)
    for place, length in enumerate(found.lengths.tolist()):
        of_input, of_constants = (by_length.get((start, length), nothing) for start in ("input", "constant"))
        torch.testing.assert_close(found.from_input[place], of_input, rtol=1e-11, atol=1e-13)
        torch.testing.assert_close(found.outputs[place], of_input + of_constants, rtol=1e-11, atol=1e-13)
    whole = sum(by_length.values()) + state["fc.bias"]
    torch.testing.assert_close(whole, hand(image), rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(found.constant, state["fc.bias"][None], rtol=0, atol=0)


# As a polynomial


class AtT(FrozenResnet18):
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
    """The real coefficients of t^0, ..., t^17, (18, ...), from values at the first roots of unity, (10, ...).

    ``f_r = mean over all roots of t^-r F(t)``; a root that is not real stands for its conjugate too.
    """
    powers = ROOTS[None, :HALF] ** -np.arange(LONGEST + 1)[:, None]  # (18, 10)
    powers[:, 1:-1] *= 2
    total = torch.tensordot(torch.from_numpy(powers.real), real, 1)
    return (total - torch.tensordot(torch.from_numpy(powers.imag), imaginary, 1)) / len(ROOTS)


@pytest.fixture(scope="module")
def kept(state, images):
    return gates_of(state, images)


def resolved(state, images, kept, shifted: bool) -> np.ndarray:
    """f_r centred over the classes, (18, m, C)."""
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
