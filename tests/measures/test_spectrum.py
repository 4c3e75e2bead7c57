"""Spectra from products against all eigenvalues, where these are known: ends, density, trace, index, condition."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lightning_app.common.errors import UserError
from lightning_app.measures import exact_spectrum, spectrum
from lightning_app.measures.curvature.lanczos import Rule, lanczos, mass_below, mass_within


class Matrix:
    """A symmetric matrix as a map that counts."""

    def __init__(self, matrix: Tensor) -> None:
        self.matrix, self.products = matrix, 0

    @property
    def size(self) -> int:
        return len(self.matrix)

    @property
    def like(self) -> Tensor:
        return self.matrix

    def __matmul__(self, vector: Tensor) -> Tensor:
        self.products += 1
        return self.matrix @ vector


def with_values(values: Tensor, seed: int = 0) -> Matrix:
    """These eigenvalues, with random eigenvectors."""
    random = torch.randn(len(values), len(values), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    vectors = torch.linalg.qr(random)[0]
    return Matrix(vectors * values.double() @ vectors.T)


def like_a_net(size: int = 400, seed: int = 0) -> Tensor:
    """A few outliers over a bulk around zero, as trained classifiers have it."""
    bulk = 0.3 * torch.randn(size - 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.cat([torch.tensor([160.9, 86.8, 49.0, 30.0, 22.0, -4.0], dtype=torch.float64), bulk]).sort().values


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_top_five_from_forty_products_and_no_ghosts():
    values = like_a_net()
    operator = with_values(values)
    found, _ = spectrum(operator, k=5, steps=40)
    assert operator.products == found.products <= 60  # up to half as many look for further copies
    torch.testing.assert_close(found.top, values[-5:].flip(0), rtol=1e-9, atol=0)
    ritz = lanczos(operator, 40, generator()).eigen()[0]
    assert (np.abs(ritz - 160.9) < 1).sum() == 1 and (np.abs(ritz - 86.8) < 1).sum() == 1


@settings(max_examples=25)
@given(seed=st.integers(0, 10**6), steps=st.integers(1, 30))
def test_an_eigenvalue_lies_within_each_residual(seed, steps):
    values = like_a_net(60, seed)
    run = lanczos(with_values(values, seed), steps, generator(seed))
    ritz, residuals = run.eigen()[0], run.residuals()
    for value, residual in zip(ritz, residuals):
        assert np.abs(values.numpy() - value).min() <= residual + 1e-10


def test_each_end_has_the_residuals_of_its_own_eigenvalues():
    """The largest ones have converged after 12 products, in the bulk at the other end only one has."""
    values = like_a_net()
    found, _ = spectrum(with_values(values), k=3, steps=12)
    for end, residuals in ((found.top, found.top_residual), (found.bottom, found.bottom_residual)):
        for value, residual in zip(end, residuals):
            assert float((values - value).abs().min()) <= float(residual) + 1e-9
    assert found.top_residual.max() < 1e-6 < found.bottom_residual.min()


def test_the_condition_allows_for_a_largest_eigenvalue_that_has_not_converged():
    """300 copies of the percentile itself, and 200 values above of which three products know the largest to 3 %."""
    operator = with_values(torch.cat([torch.ones(300), torch.linspace(1, 1.001, 100), torch.linspace(5, 6, 200)]))
    for seed in range(3):
        found, _ = spectrum(operator, k=1, steps=3, seed=seed)
        assert found.condition10_low < float(found.top[0]) < 6 <= found.condition10_high


def test_more_starts_leave_less_open():
    """Half of the eigenvalues negative, all far from 0: the interval is that of chance, which falls with the root."""
    operator = with_values(torch.cat([torch.linspace(-2, -1, 200), torch.linspace(1, 2, 200)]))
    one, four = (spectrum(operator, k=1, steps=3, probes=probes)[0] for probes in (1, 4))
    assert one.unresolved < 1e-6 and four.unresolved < 1e-6
    assert (one.index_high - one.index_low) / (four.index_high - four.index_low) == pytest.approx(2, rel=0.05)


def test_unconverged_eigenvalues_say_so():
    operator = with_values(torch.linspace(-1, 1, 300))
    few, many = spectrum(operator, k=3, steps=8)[0], spectrum(operator, k=3, steps=200)[0]
    assert few.unconverged == 6 and many.unconverged == 0
    assert bool((few.top_residual > 1e-3 * few.top).all())
    assert bool(((many.top - torch.tensor([1, 1 - 2 / 299, 1 - 4 / 299])).abs() < 1e-6).all())


def test_multiple_eigenvalues_come_out_as_often_as_they_are():
    values = torch.tensor([3.0, 3, 3, -2, -2, 1, 1, 1, 1, 1])
    found, _ = spectrum(with_values(values), k=4, steps=10)
    torch.testing.assert_close(found.top, torch.tensor([3.0, 3, 3, 1]).double())
    torch.testing.assert_close(found.bottom, torch.tensor([-2.0, -2, 1, 1]).double())


def test_the_leading_vector_is_an_eigenvector():
    for values in (like_a_net(), -like_a_net()):
        operator = with_values(values)
        _, vector = spectrum(operator, steps=40)
        largest = values[values.abs().argmax()]
        assert float((operator.matrix @ vector - largest * vector).norm()) < 1e-6


@pytest.mark.parametrize("asked", [{"steps": 20}, {"steps": 24, "probes": 3, "probe_steps": 8}])
def test_density_integrates_to_one_and_has_the_trace_and_norm_as_moments(asked):
    values = like_a_net()
    found, _ = spectrum(with_values(values), **asked)
    assert abs(float(found.weights.sum()) - 1) < 1e-12
    assert abs(float(found.density.counts.sum()) + found.density.below + found.density.above - 400) < 1e-9
    n = found.dimension
    assert abs(float(found.weights @ found.nodes) - found.trace / n) < 1e-9 * abs(found.trace)
    assert abs(float(found.weights @ found.nodes**2) - found.frobenius**2 / n) < 1e-9 * found.frobenius**2
    assert abs(found.trace - float(values.sum())) < 4 * found.trace_error
    assert abs(found.frobenius - float(values.norm())) < 4 * found.frobenius_error


@pytest.mark.slow
@pytest.mark.parametrize("asked", [{"steps": 12}, {"steps": 12, "probes": 2, "probe_steps": 6}])
@pytest.mark.parametrize("values", [torch.linspace(-1, 2, 80), like_a_net(120)], ids=["bulk", "outliers"])
def test_standard_errors_are_what_they_say(values, asked):
    """Over 200 starts the trace deviates by more than two of its errors as often as a normal number does, 1 in 20."""
    operator, scores, norms = with_values(values), [], []
    for seed in range(200):
        found, _ = spectrum(operator, k=1, seed=seed, **asked)
        scores.append((found.trace - float(values.sum())) / found.trace_error)
        norms.append((found.frobenius - float(values.norm())) / found.frobenius_error)
    z = np.array(scores)
    assert (np.abs(z) > 2).mean() < 0.12 and np.abs(z).max() < 6
    assert abs(np.median(z)) < 0.3
    assert z.std() > 0.8 and np.std(norms) > 0.8  # nor are they too large


def test_a_start_with_little_of_an_outlier_does_not_understate_the_error_of_the_norm():
    """Sizes over many decades, where outliers are told apart long before they have converged."""
    draw = np.random.Generator(np.random.PCG64(4))
    bulk = 0.3 * np.exp(draw.normal(-6, 3, 117)).clip(max=10) * draw.choice([-1, 1], 117, p=[0.4, 0.6])
    values = torch.cat([torch.tensor([8.0, 3.0, 1.0], dtype=torch.float64), torch.from_numpy(bulk)])
    operator, scores = with_values(values), []
    for seed in range(100):
        found, _ = spectrum(operator, k=2, steps=12, seed=seed)
        scores.append((found.frobenius - float(values.norm())) / found.frobenius_error)
    z = np.array(scores)
    assert (np.abs(z) > 3).mean() <= 0.05 and np.sqrt((z**2).mean()) < 1.5


@pytest.mark.parametrize("asked", [{"steps": 30}, {"steps": 40, "probes": 3}])
@pytest.mark.parametrize("values", [torch.tensor([1.0, 2, 3]), torch.linspace(-1, 4, 20), torch.tensor([-5.0])])
def test_a_small_map_is_known_exactly(values, asked):
    found, truth = spectrum(with_values(values), **asked)[0], exact_spectrum(torch.diag(values.double()))[0]
    assert found.trace == pytest.approx(float(values.sum()), abs=1e-9) and found.trace_error == 0
    assert found.index_low == found.index_high == truth.index_low
    assert found.condition10_low == pytest.approx(truth.condition10_low)
    torch.testing.assert_close(found.top, truth.top)


@pytest.mark.parametrize("multiplicity", [4, 40, 160])
def test_a_multiple_eigenvalue_is_no_single_one(multiplicity):
    """Theorem 2's Hessian at zero: s(M) and -s(M), each many times; one start sees each value once."""
    singular = torch.linspace(0.8, 1.2, 5, dtype=torch.float64).repeat_interleave(multiplicity)
    values = torch.cat([singular, -singular])
    found, _ = spectrum(with_values(values), k=2, steps=20)
    assert float(found.top[0]) == pytest.approx(1.2, rel=1e-9)
    assert abs(found.trace) < 4 * found.trace_error
    assert abs(found.frobenius - float(values.norm())) < 4 * found.frobenius_error + 1e-9
    assert found.index_low <= 0.5 <= found.index_high


class SoftmaxAtZero(Matrix):
    """The Hessian of softmax regression at zero weights: (1/C - 1/C^2) kron E[h h^T], each eigenvalue C - 1 times."""

    def __init__(self, classes: int, seed: int, dtype: torch.dtype = torch.float32) -> None:
        h = torch.randn(60, 80, generator=generator(1000 + seed), dtype=torch.float64).relu()
        second, softmax = h.T @ h / 60, torch.eye(classes).double() / classes - 1 / classes**2
        super().__init__(torch.kron(softmax, second).to(dtype))
        self.trace, self.norm = float(self.matrix.double().trace()), float(self.matrix.double().norm())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("classes", [2, 3, 5, 10])
@pytest.mark.parametrize("steps", [12, 30])
def test_errors_are_honest_where_all_eigenvalues_are_multiple(classes, steps, dtype):
    scores = []
    for seed in range(6):
        operator = SoftmaxAtZero(classes, seed, dtype)
        found, _ = spectrum(operator, k=2, steps=steps, seed=seed)
        assert operator.products == found.products <= steps + steps // 2
        scores.append((found.trace - operator.trace) / found.trace_error)
        scores.append((found.frobenius - operator.norm) / found.frobenius_error)
        assert float(found.density.counts.sum()) == pytest.approx(found.dimension, rel=1e-9)
    assert np.abs(scores).max() < 4


def test_the_density_has_the_copies():
    """Nine eigenvalues in the bin of the largest, where one was counted; the mean over starts has them."""
    counts = []
    for seed in range(12):
        found, _ = spectrum(SoftmaxAtZero(10, 0, torch.float64), k=1, steps=12, seed=seed)
        largest = float(found.top[0])
        counts.append(float(found.weights[(found.nodes - largest).abs() < 1e-3 * largest].sum()) * found.dimension)
    assert np.mean(counts) == pytest.approx(9, abs=4 * 4 / math.sqrt(12))  # 1, and chi-square with 8 degrees of freedom


@pytest.mark.parametrize("seed", range(4))
def test_eigenvalues_without_a_copy_count_exactly(seed):
    """The error is that of the bulk alone, to which six outliers add nothing."""
    values = like_a_net(seed=seed)
    found, _ = spectrum(with_values(values), steps=30, seed=seed)
    bulk = float(values[(values > -1) & (values < 1)].norm())
    assert found.trace_error < 1.3 * math.sqrt(2) * bulk
    assert abs(found.frobenius - float(values.norm())) < 4 * found.frobenius_error < 1e-3 * float(values.norm())


@pytest.mark.parametrize("copy", [0.0, 1e-4])
def test_one_copy_of_one_eigenvalue_is_seen(copy):
    """The other eigenvalues are simple; a copy may differ by less than the tolerance."""
    values = like_a_net()
    values[values.argmax() - 1] = float(values.max()) * (1 - copy)
    scores = []
    # Second starts of seeds 0 and 9 have a 1e-4th of what they have of an eigenvector on average.
    for seed in range(10):
        found, _ = spectrum(with_values(values), steps=12, seed=seed)
        scores.append((found.frobenius - float(values.norm())) / found.frobenius_error)
    assert np.abs(scores).max() < 4


@settings(max_examples=25)
@given(seed=st.integers(0, 10**6), steps=st.integers(2, 25), z=st.floats(-3, 3))
def test_mass_below_a_point_is_bounded(seed, steps, z):
    """Chebyshev-Markov-Stieltjes, against the measure of the very start."""
    values = like_a_net(60, seed).numpy()
    operator = with_values(torch.from_numpy(values), seed)
    run = lanczos(operator, steps, generator(seed))
    vectors = torch.linalg.eigh(operator.matrix)[1]
    measure = ((run.basis[0] @ vectors) ** 2).numpy()
    bounds = mass_below(Rule.of(run), z)
    assert bounds.low <= measure[values < z].sum() + 1e-9 and measure[values <= z].sum() <= bounds.high + 1e-9
    bounds = mass_within(Rule.of(run), abs(z))
    assert bounds.low - 1e-9 <= measure[np.abs(values) <= abs(z)].sum() <= bounds.high + 1e-9


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("asked", [{"steps": 30}, {"steps": 20, "probes": 2, "probe_steps": 20}])
def test_index_and_condition_lie_in_their_intervals(seed, asked):
    values = like_a_net(500, seed)
    found, _ = spectrum(with_values(values, seed), seed=seed, **asked)
    truth, _ = exact_spectrum(with_values(values, seed).matrix)
    assert truth.index_low == truth.index_high
    assert found.index_low <= truth.index_low <= found.index_high
    assert found.condition10_low <= truth.condition10_low <= found.condition10_high
    assert found.index_high - found.index_low < 0.5


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([1, 0.5, 0.3, 0.2, 0.1, 0.05, -1e-6, -2e-6, -3e-6, -4e-6], torch.float32),
        ([1, 0.5, 0.2, 0.1, *[-2e-7] * 4, *[1e-7] * 2], torch.float32),
        ([1, 0.5, *[-3e-11] * 3, -2e-11, -4e-11, 3e-11, 1e-11, 5e-11], torch.float64),
    ],
)
def test_a_run_of_all_steps_leaves_open_what_its_rounding_does(values, dtype, seed):
    """Eigenvalues below the rounding of products, or of the couplings that a breakdown drops, may have any sign."""
    wide = with_values(torch.tensor(values), seed).matrix
    wide = (wide + wide.T) / 2
    found, _ = spectrum(Matrix(wide.to(dtype)), k=2, steps=len(values), seed=seed)
    truth = np.linalg.eigvalsh(wide.numpy())
    condition = np.abs(truth).max() / np.percentile(np.abs(truth), 10)
    assert found.index_low <= (truth < 0).mean() <= found.index_high
    assert found.condition10_low <= condition <= found.condition10_high
    ends = [*zip(found.top, found.top_residual), *zip(found.bottom, found.bottom_residual)]
    assert all(np.abs(truth - float(value)).min() <= float(residual) for value, residual in ends)


def test_a_bulk_at_zero_cannot_be_resolved():
    """Nine tenths of the eigenvalues within 1e-9 of zero, half of them negative: few products must not pretend."""
    bulk = 1e-9 * torch.linspace(-1, 1, 900).double()
    values = torch.cat([bulk, torch.linspace(-2, 5, 100).double()])
    found, _ = spectrum(with_values(values), steps=40)
    truth, _ = exact_spectrum(with_values(values).matrix)
    assert found.unresolved > 0.85
    assert found.index_low <= float((values < 0).double().mean()) <= found.index_high
    assert found.condition10_high == math.inf or found.condition10_high > truth.condition10_high
    assert found.condition10_low < 1e6


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("bulk", [0, 100])
def test_float32_does_not_know_the_sign_of_its_rounding(seed, bulk):
    """A kernel, as few samples leave it: in float32 its eigenvalues come out as +-1e-8 of the largest one."""
    positive = torch.cat([torch.tensor([50.0, 20, 9, 4, 2]), torch.linspace(0.3, 1.3, bulk)])
    operator = with_values(torch.cat([positive, torch.zeros(600)]))
    operator.matrix = operator.matrix.float()
    found, _ = spectrum(operator, steps=40, seed=seed)
    assert found.index_low == 0
    assert found.unresolved > 0.7
    assert found.condition10_high == math.inf
    largest = float(torch.linalg.eigvalsh(operator.matrix.double())[-1])
    assert abs(float(found.top[0]) - largest) <= float(found.top_residual[0])


def test_the_rounding_of_products_does_not_fall_where_found_eigenvectors_are_taken_out():
    """A positive bulk at 1e-8 of the largest eigenvalue, which float32 products see as +-1e-7: its signs are open."""
    operator = with_values(torch.cat([torch.tensor([1.0, 0.5]), torch.linspace(0.5e-8, 2e-8, 400)]))
    operator.matrix = operator.matrix.float()
    found, _ = spectrum(operator, k=2, steps=20, probes=4)
    assert found.index_low == 0
    assert found.unresolved > 0.9
    assert found.condition10_high == math.inf


def test_nothing_negative_found_is_not_nothing_negative_there():
    """Three of 400, which 30 products resolve: the interval holds the truth for 19 of 20 starts, not for 15."""
    values = torch.cat([torch.tensor([-3.0, -2.5, -2.0]), torch.linspace(1, 2, 397)]).double()
    operator, missed = with_values(values), 0
    for seed in range(60):
        found, _ = spectrum(operator, steps=12, seed=seed)
        missed += not found.index_low <= 3 / 400 <= found.index_high
    assert missed <= 8


def test_exact_spectrum_against_numpy():
    values = torch.cat([torch.zeros(5), torch.linspace(-1, 4, 45)]).double()
    found, _ = exact_spectrum(with_values(values).matrix, k=3)
    assert found.index_low == found.index_high == float((values < 0).double().mean())
    assert found.unresolved == 5 / 50
    assert found.condition10_low == found.condition10_high
    assert math.isclose(found.condition10_low, 4 / np.percentile(values.abs().numpy(), 10), rel_tol=1e-9)
    assert math.isclose(found.trace, float(values.sum()), rel_tol=1e-9) and found.trace_error == 0
    assert math.isclose(found.frobenius, float(values.norm()), rel_tol=1e-9)
    assert found.unconverged == 0


def test_singular_percentile_is_infinite():
    found, _ = exact_spectrum(torch.diag(torch.tensor([0.0, 0, 0, 1, 2])))
    assert found.condition10_low == found.condition10_high == math.inf


def test_zero_hessian():
    for found, _ in (exact_spectrum(torch.zeros(6, 6)), spectrum(Matrix(torch.zeros(6, 6).double()), steps=4)):
        assert found.trace == found.frobenius == 0
        assert found.unresolved == 1 and found.index_low == 0
        assert math.isnan(found.condition10_low)


@settings(max_examples=20)
@given(scale=st.floats(0.01, 100))
def test_scaling(scale):
    values = like_a_net(80)
    one, other = (spectrum(with_values(values * factor), steps=15)[0] for factor in (1.0, scale))
    torch.testing.assert_close(other.top, one.top * scale, rtol=1e-8, atol=1e-10)
    assert math.isclose(other.trace, one.trace * scale, rel_tol=1e-8)
    assert math.isclose(other.condition10_low, one.condition10_low, rel_tol=1e-2)
    assert math.isclose(other.index_low, one.index_low, abs_tol=1e-6)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"k": 0}, "k of a spectrum must be at least 1"),
        ({"steps": 2}, "^steps of a spectrum must be at least 3"),
        ({"probes": -1}, "probes of a spectrum must be at least 0"),
        ({"probe_steps": 2}, "probe_steps of a spectrum must be at least 3"),
        ({"tolerance": 0.0}, "between 0 and 1, got 0"),
    ],
)
def test_counts_that_make_no_spectrum(asked, said):
    with pytest.raises(UserError, match=said):
        spectrum(Matrix(torch.eye(3)), **asked)


def test_a_diverged_net_has_no_spectrum():
    for matrix in (torch.full((3, 3), torch.nan), torch.full((3, 3), torch.inf)):
        with pytest.raises(UserError, match="diverged"):
            spectrum(Matrix(matrix))
        with pytest.raises(UserError, match="diverged"):
            exact_spectrum(matrix)
