"""Curvature of the golden net: scipy's eigenvalues of our own H v, and a closed form of a block of it."""

import numpy as np
import pytest
import torch
from scipy.sparse.linalg import LinearOperator, eigsh

from lightning_app.measures import Hessian, spectrum
from tests.golden.by_hand import BLOCKS, EPS, Resnet10, loss
from tests.golden.matrices import conv_matrix

pytestmark = pytest.mark.slow  # the run that all golden tests read takes a minute or two

BLOCK = BLOCKS[-1]
STEPS = 60  # of a Lanczos run that finds both ends of the block
SURE = 4  # standard errors


class Curvature:
    """H v by differentiating <grad L, v>, in all trained parameters in their order."""

    def __init__(self, state, images, labels):
        names = [name for name in state if not name.rpartition(".")[2].startswith(("running", "num"))]
        self._weights = {name: state[name].clone().requires_grad_() for name in names}
        value = loss(Resnet10(state | self._weights)(images), labels)
        parts = torch.autograd.grad(value, list(self._weights.values()), create_graph=True)
        self._gradient = torch.cat([part.flatten() for part in parts])
        self.size = len(self._gradient)
        self.gradient = self._gradient.detach().numpy()

    def __call__(self, vector: np.ndarray) -> np.ndarray:
        along = self._gradient @ torch.from_numpy(np.ascontiguousarray(vector).ravel())
        parts = torch.autograd.grad(along, list(self._weights.values()), retain_graph=True)
        return torch.cat([part.flatten() for part in parts]).numpy()


@pytest.fixture(scope="module")
def curvature(state, images, labels) -> Curvature:
    return Curvature(state, images, labels)


@pytest.fixture(scope="module")
def largest(curvature) -> tuple[np.ndarray, np.ndarray]:
    """The two largest eigenvalues, decreasing, and their eigenvectors (2, n)."""
    n = curvature.size
    operator = LinearOperator((n, n), matvec=curvature, dtype=np.float64)
    values, vectors = eigsh(operator, k=2, which="LA", ncv=7, tol=1e-7, v0=curvature.gradient)
    return values[::-1], vectors.T[::-1]


def test_ends(measured, curvature, largest):
    """The largest eigenvalues, as near as their residuals say; a smallest one from so few products is not called converged."""
    values, _ = largest
    assert measured["hessian/dimension"] == curvature.size
    for place, value in enumerate(values, start=1):
        residual = measured[f"hessian/top{place}_residual"]
        off = residual if residual > 1e-3 * value else 0  # converged or not
        assert measured[f"hessian/top{place}"] == pytest.approx(value, rel=1e-9, abs=off), place
    assert measured["hessian/top1_residual"] < 1e-5 * values.max()
    assert measured["hessian/bottom1_residual"] > 1
    assert measured["hessian/unconverged"] >= 2


def test_trace_and_norm(measured, curvature, largest):
    """n v^T H v and n ||H v||^2 with the random start v, but for the one eigenvector that was found, which counts exactly."""
    (value, _), (vector, _) = largest
    start = torch.randn(curvature.size, generator=torch.Generator().manual_seed(0), dtype=torch.float64).numpy()
    start /= np.linalg.norm(start)
    product, share = curvature(start), (vector @ start) ** 2
    trace, square = (
        found + (curvature.size - 1) * (mean - share * found) / (1 - share)
        for found, mean in ((value, start @ product), (value**2, product @ product))
    )
    assert measured["hessian/trace"] == pytest.approx(trace, rel=1e-9)
    assert measured["hessian/frobenius"] == pytest.approx(np.sqrt(square), rel=1e-9)


def block_by_hand(hand, images, labels) -> torch.Tensor:
    """(1024, 1024): the Hessian in the lambdas of the last block's two normalisations, gamma and gamma'.

    The logits are bilinear in the two, so that their second derivative is in the mixed block alone:
    ``mean over samples of J^T (diag p - p p^T) J + (p - onehot) . d2 f``.
    """
    matrix = torch.from_numpy(conv_matrix(hand.w[f"{BLOCK}.conv2.weight"].numpy(), 2, 1)).view(512, 4, 512, 4)
    readout, outer = hand.w["fc.weight"], hand.w[f"{BLOCK}.bn2.weight"]
    total = torch.zeros(1024, 1024, dtype=torch.float64)
    for image, label in zip(images.split(1), labels):
        x = hand.relu(hand.cuts(0, hand.stem(image))[-3])
        first, inner = whitened(hand, x, "1", stride=2)
        second, last = whitened(hand, hand.relu(inner), "2", stride=1)
        gate, last_gate = inner > 0, last + hand.shortcut(x, BLOCK) > 0
        gate, last_gate = gate.double().view(512, 4), last_gate.double().view(512, 4)
        deviation = (hand.w[f"{BLOCK}.bn2.running_var"] + EPS).sqrt()[:, None]
        mixed = torch.einsum("dp,dpcq,cq->dc", last_gate / deviation / 4, matrix, gate * first)
        slopes = torch.cat([readout * outer @ mixed, readout * (last_gate * second).mean(1)], 1)  # (10, 1024)
        p = hand(image).softmax(1)[0]
        total += slopes.T @ (torch.diag(p) - torch.outer(p, p)) @ slopes
        p[label] -= 1
        total[512:, :512] += (p @ readout)[:, None] * mixed
        total[:512, 512:] += ((p @ readout)[:, None] * mixed).T
    return total / len(labels)


def whitened(hand, x, place: str, stride: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What a normalisation multiplies by its lambda, (512, 4), and what comes out."""
    out = hand.norm(hand.conv(x, f"{BLOCK}.conv{place}", stride), f"{BLOCK}.bn{place}")
    gamma, beta = (hand.w[f"{BLOCK}.bn{place}.{part}"][:, None, None] for part in ("weight", "bias"))
    return ((out - beta) / gamma).view(512, 4), out


def test_block_in_closed_form(net, hand, images, labels):
    expected = block_by_hand(hand, images, labels)
    values = torch.linalg.eigvalsh(expected)
    assert values[1] < -0.01 * values[-1]
    block = Hessian(net, [(images, labels)], names=[f"{BLOCK}.bn1.weight", f"{BLOCK}.bn2.weight"])
    vector = torch.from_numpy(np.random.Generator(np.random.PCG64(4)).normal(size=block.size))
    torch.testing.assert_close(block @ vector, expected @ vector, rtol=0, atol=1e-12 * float(values[-1]))
    found, _ = spectrum(block, k=2, steps=STEPS)
    assert found.unconverged == 0
    assert found.top == pytest.approx(values.flip(0)[:2].numpy(), rel=1e-9)
    assert found.bottom == pytest.approx(values[:2].numpy(), rel=1e-9)
    assert found.trace == pytest.approx(float(expected.trace()), abs=SURE * found.trace_error)
    assert found.frobenius == pytest.approx(float(expected.norm()), abs=SURE * found.frobenius_error)
    assert found.index_low <= float((values < 0).double().mean()) <= found.index_high
