"""Jacobians against matrices written out, and the statistics of random probes."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.func import jacrev

from lightning_app.measures.noise_stability import jacobian
from lightning_app.measures.noise_stability.jacobian import (
    DifferentiatedJacobian,
    frobenius_by_probes,
    pull,
    push,
    signs,
)

SEEDS = 200


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def some_function(inputs: int = 6, outputs: int = 4) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(inputs, 8), nn.Tanh(), nn.Linear(8, outputs)).double()


def matrices(function: nn.Module, x: Tensor) -> Tensor:
    """(B, outputs, inputs)"""
    return torch.stack([jacrev(lambda one: function(one[None])[0])(one) for one in x]).detach()


def images(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=seeded(), dtype=torch.float64)


def test_push_and_pull_multiply_by_the_jacobian_of_every_sample():
    function, x = some_function(), images(3, 6)
    J, tangents, cotangents = matrices(function, x), images(5, 3, 6), images(2, 3, 4)
    value, pushed = push(function, x, tangents)
    torch.testing.assert_close(value, function(x))
    torch.testing.assert_close(pushed, torch.einsum("bij,kbj->kbi", J, tangents))
    value, pulled = pull(function, x, cotangents)
    torch.testing.assert_close(value, function(x))
    torch.testing.assert_close(pulled, torch.einsum("bij,kbi->kbj", J, cotangents))


def test_push_needs_no_gradients_and_stands_work_in_place():
    block = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(inplace=True)).double().eval()
    x, tangents = images(2, 2, 5, 5), images(3, 2, 2, 5, 5)
    with torch.no_grad():
        _, pushed = push(block, x, tangents)
    torch.testing.assert_close(pushed, push(lambda t: block[2](block[1](block[0](t)).clone()), x, tangents)[1])
    assert not pushed.requires_grad


@pytest.mark.parametrize("sizes", [(6, 4), (4, 6), (5, 5)])
@pytest.mark.parametrize("passes", [1, 7, 512])
def test_exact_norm_is_that_of_the_matrix_from_the_shorter_side_in_chunks_of_any_size(monkeypatch, sizes, passes):
    monkeypatch.setattr(jacobian, "PASSES", passes)
    function, x = some_function(*sizes), images(3, sizes[0])
    found = DifferentiatedJacobian(function, x, function(x)).frobenius()
    torch.testing.assert_close(found.norm, torch.linalg.matrix_norm(matrices(function, x)))
    assert not found.error.any()


def estimates(A: Tensor, probes: int) -> tuple[Tensor, Tensor]:
    """Norms of A and their stated errors, from SEEDS seeds."""
    like = torch.zeros(1, A.shape[1], dtype=A.dtype)
    found = [frobenius_by_probes(lambda v: v @ A.T, like, probes, seeded(seed)) for seed in range(SEEDS)]
    return torch.cat([one.norm for one in found]), torch.cat([one.error for one in found])


def test_the_mean_square_of_probes_is_unbiased_and_has_the_variance_of_the_formula():
    A, probes = images(9, 7), 4
    norms, _ = estimates(A, probes)
    squares, truth, K = norms.square(), A.square().sum(), A.T @ A
    variance = 2 * (K.square().sum() - K.diagonal().square().sum()) / probes
    assert abs(squares.mean() - truth) < 3 * (variance / SEEDS).sqrt()
    assert squares.var() == pytest.approx(float(variance), rel=0.35)  # 3 standard errors of a variance: 3 sqrt(2 / 199)


def test_norms_lie_within_three_of_their_own_standard_errors():
    A = images(40, 30)
    norms, errors = estimates(A, probes=16)
    within = ((norms - A.norm()).abs() < 3 * errors).double().mean()
    assert within > 0.97  # Student's t with 15 degrees of freedom: 0.991
    assert errors.square().mean().sqrt() == pytest.approx(float((norms - A.norm()).square().mean().sqrt()), rel=0.15)


def test_the_error_of_two_probes_is_half_of_what_they_differ_by():
    """Of q = (q1 + q2) / 2 that is |q1 - q2| / 2, from the unbiased deviation; of sqrt(q) that over 2 sqrt(q)."""
    A, like = images(5, 6), torch.zeros(1, 6, dtype=torch.float64)
    one, two = (signs(2, like, seeded()) @ A.T).square().sum((1, 2))
    found = frobenius_by_probes(lambda v: v @ A.T, like, 2, seeded())
    assert float(found.norm) == pytest.approx(float((one + two) / 2) ** 0.5)
    assert float(found.error) == pytest.approx(float((one - two).abs() / 2 / (2 * found.norm)))


def test_probes_of_a_diagonal_jacobian_are_exact_and_of_zero_too():
    like = torch.zeros(2, 3)
    exact = frobenius_by_probes(lambda v: v * torch.tensor([3.0, 0.0, 4.0]), like, 3, seeded())
    assert exact.norm.tolist() == pytest.approx([5.0, 5.0])
    assert exact.error.tolist() == pytest.approx([0.0, 0.0], abs=1e-6)
    zero = frobenius_by_probes(torch.zeros_like, like, 3, seeded())
    assert zero.norm.tolist() == zero.error.tolist() == [0.0, 0.0]


def test_a_single_probe_has_no_error_to_state():
    found = frobenius_by_probes(lambda v: 2 * v, torch.zeros(2, 9), 1, seeded())
    assert found.norm.tolist() == pytest.approx([6.0, 6.0])
    assert found.error.isnan().all()


@pytest.mark.parametrize("shape", [(3, 5), (2, 3, 7, 5), (1, 1)])
def test_signs_have_the_shape_and_are_plus_or_minus_one(shape):
    like = torch.zeros(shape, dtype=torch.float64)
    found = signs(3, like, seeded())
    assert found.shape == (3, *shape)
    assert found.dtype == like.dtype
    assert set(found.flatten().tolist()) <= {-1.0, 1.0}
    assert torch.equal(found, signs(3, like, seeded()))


def test_signs_are_balanced_and_independent_of_their_neighbours():
    flat = signs(1, torch.zeros(1, 80_000), seeded()).flatten()
    bound = 4 / math.sqrt(80_000)
    assert abs(flat.mean()) < bound
    for lag in (*range(1, 17), 64):
        assert abs((flat[lag:] * flat[:-lag]).mean()) < bound
    for place in range(8):  # of the eight signs of one word
        assert abs(flat[place::8].mean()) < 4 / math.sqrt(10_000)


def test_signs_of_images_lie_channels_last_and_leave_the_global_stream_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    found = signs(2, torch.zeros(3, 4, 5, 6), seeded())
    assert found.flatten(0, 1).is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(torch.rand(3), expected)
