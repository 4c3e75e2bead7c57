"""The sampled spherical mixture: derivatives by autograd, all critical points by Morse, eigenvectors and Kac-Rice."""

from contextlib import nullcontext
from functools import cache
from itertools import product

import pytest
import torch
from torch import Tensor

from lightning_app.theory.littwin_wolf.hamiltonian import (
    CriticalPoints,
    SphericalMixture,
    critical_points,
    expected_counts,
    expected_total,
    goe_density,
    goe_spectra,
    sampled,
)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def on_sphere(samples: int, points: int, Lambda: int) -> Tensor:
    x = torch.randn(samples, points, Lambda, generator=generator(7), dtype=torch.float64)
    return x / x.norm(dim=-1, keepdim=True)


def mixture(lengths, Lambda, samples=3, eps=None) -> SphericalMixture:
    found = sampled(lengths, Lambda, range(samples))
    return found if eps is None else found.weighted(torch.tensor(eps, dtype=torch.float64))


@cache
def spectra(Lambda: int, count: int = 20_000) -> Tensor:
    return goe_spectra(Lambda, count, generator())


def plainly(mixture: SphericalMixture, sample: int, x: Tensor) -> Tensor:
    """f(x) term by term, and on the whole of space: homogeneous parts."""
    total = x.new_zeros(())
    for eps, J in zip(mixture.eps, mixture.couplings):
        for places in product(range(len(x)), repeat=J.ndim - 1):
            total = total + eps * J[(sample, *places)] * x[list(places)].prod()
    return total


@pytest.mark.parametrize("lengths", [(1,), (2,), (3,), (4,), (1, 2, 3, 4), (2, 5)])
def test_derivatives_are_autograd_s_along_the_sphere(lengths):
    """Along great circles x cos t + v sin t: first and second derivatives in t at 0 are v . grad and v . Hess v."""
    field = mixture(lengths, 3, 2, [0.3 + 0.2 * i for i in range(len(lengths))])
    x = on_sphere(2, 2, 3)
    value, gradient, hessian = field.derivatives(x)
    for sample, point in product(range(2), range(2)):
        here = x[sample, point]
        v = torch.linalg.cross(here, torch.tensor([0.3, -0.5, 0.8], dtype=torch.float64))

        def along(t: Tensor, here=here, v=v, sample=sample) -> Tensor:
            v = v / v.norm()
            return plainly(field, sample, here * t.cos() + v * t.sin())

        zero, v = torch.zeros((), dtype=torch.float64), v / v.norm()
        first, second = torch.func.grad(along), torch.func.grad(torch.func.grad(along))
        assert float(value[sample, point]) == pytest.approx(float(along(zero)), abs=1e-12)
        assert float(gradient[sample, point] @ v) == pytest.approx(float(first(zero)), abs=1e-12)
        assert float(v @ hessian[sample, point] @ v) == pytest.approx(float(second(zero)), abs=1e-12)
    assert float((gradient * x).sum(-1).abs().max()) < 1e-13
    assert float((hessian @ x[..., None]).abs().max()) < 1e-13


def test_the_field_is_the_paper_s_hamiltonian():
    """Eq. 28 at w = sqrt(Lambda) x, from unsymmetrised couplings drawn alike, is sqrt(Lambda) f."""
    Lambda, eps = 3, (0.6, 0.8)
    field = mixture((2, 3), Lambda, 1, eps)
    draw = generator(0)  # of seed 0
    J = [torch.randn((Lambda,) * r, generator=draw, dtype=torch.float64) for r in (2, 3)]
    x = on_sphere(1, 1, Lambda)
    w = Lambda**0.5 * x[0, 0]
    H = eps[0] * Lambda**-0.5 * torch.einsum("ij,i,j", J[0], w, w)
    H = H + eps[1] * Lambda**-1.0 * torch.einsum("ijk,i,j,k", J[1], w, w, w)
    value, _, _ = field.derivatives(x)
    assert Lambda**0.5 * float(value) == pytest.approx(float(H), rel=1e-12)


def test_couplings_of_a_seed_are_its_own():
    both, one = sampled((2, 3), 3, [4, 5]), sampled((2, 3), 3, [5])
    assert all(torch.equal(J[1:], K) for J, K in zip(both.couplings, one.couplings))


@pytest.mark.parametrize(("eps", "parity"), [([1, 0, 1], 1), ([0, 1, 0], -1), ([1, 1, 0], 0), ([0, 0, 1], 1)])
def test_parity(eps, parity):
    field = mixture((2, 3, 4), 3, 2, [float(e) for e in eps])
    assert field.parity == parity
    x = on_sphere(2, 4, 3)
    (here, _, _), (there, _, _) = field.derivatives(x), field.derivatives(-x)
    assert bool(torch.isclose(there, parity * here, rtol=1e-10, atol=1e-12).all()) == bool(parity)


@pytest.mark.parametrize("Lambda", [2, 3, 4, 6])
def test_pure_2_has_the_eigenvectors(Lambda):
    field = mixture((2,), Lambda, 4)
    for sample, (J, found) in enumerate(zip(field.couplings[0], critical_points(field, generator()))):
        eigenvalues, eigenvectors = torch.linalg.eigh(J)
        assert found.complete and len(found.points) == 2 * Lambda
        assert found.counts.tolist() == [2] * Lambda
        order = found.indices.argsort(stable=True)
        (values,), _, _ = field.part([sample]).derivatives(found.points[None, order])
        torch.testing.assert_close(values, eigenvalues.repeat_interleave(2), rtol=1e-10, atol=1e-12)
        overlap = (found.points[order] @ eigenvectors).abs()
        torch.testing.assert_close(overlap, torch.eye(Lambda).repeat_interleave(2, 0).double(), rtol=0, atol=1e-8)


def test_a_search_that_has_found_nothing_goes_on():
    """On a sphere of odd dimension none has the right alternating sum, 0; but each function has a minimum."""
    found = critical_points(mixture((1, 2, 3), 4, 10, (0.3, 0.5, 1.0)), generator(), starts=1)
    assert all(len(each.points) for each in found)


@cache
def counted(lengths: tuple[int, ...], Lambda: int, samples: int = 150) -> list[CriticalPoints]:
    return critical_points(mixture(lengths, Lambda, samples), generator())


CASES = [((3,), 3), ((4,), 3), ((2, 3), 3), ((2, 4), 3), ((1, 3), 3), ((2, 3), 4)]


@pytest.mark.parametrize(("lengths", "Lambda"), CASES)
def test_they_are_critical_distinct_and_complete(lengths, Lambda):
    field, found = mixture(lengths, Lambda, 150), counted(lengths, Lambda)
    for sample, each in enumerate(found):
        _, gradient, _ = field.part([sample]).derivatives(each.points[None])
        assert float(gradient.abs().max()) < 1e-9
        assert float(torch.pdist(each.points).min()) > 1e-5
    assert sum(each.complete for each in found) == len(found)


@pytest.mark.parametrize(("lengths", "Lambda"), CASES)
def test_kac_rice_is_the_mean_number_by_index(lengths, Lambda):
    counts = torch.stack([each.counts for each in counted(lengths, Lambda)]).double()
    r = torch.tensor(lengths)
    error = counts.std(0) / len(counts) ** 0.5
    expected = expected_counts(torch.ones(len(r)), r, spectra(Lambda))
    assert bool(((counts.mean(0) - expected.mean).abs() < 4 * (error**2 + expected.error**2).sqrt()).all())
    total = counts.sum(1)
    off = float(total.mean()) - expected_total(torch.ones(len(r)), r, Lambda)
    assert abs(off) < 4 * float(total.std()) / len(total) ** 0.5


def test_pure_p_is_auffinger_ben_arous_cerny():
    """E Crt_k = 2 sqrt(2/p) (p-1)^(Lambda/2) E exp(-Lambda (p-2)/(2p) mu_k^2), their GOE having variance 1/(2 Lambda)."""
    Lambda, p = 4, 3
    mu = spectra(Lambda, 1000) / (2 * Lambda) ** 0.5
    theirs = 2 * (2 / p) ** 0.5 * (p - 1) ** (Lambda / 2) * (-Lambda * (p - 2) / (2 * p) * mu**2).exp().mean(0)
    torch.testing.assert_close(expected_counts(torch.ones(1), torch.tensor([p]), spectra(Lambda, 1000)).mean, theirs)


def test_the_error_of_expected_counts_is_by_how_much_they_scatter():
    r, some = torch.tensor([2, 3, 4]), spectra(4, 40 * 250)
    whole = expected_counts(torch.ones(3), r, some)
    parts = torch.stack([expected_counts(torch.ones(3), r, part).mean for part in some.split(250)])
    torch.testing.assert_close(whole.error, parts.std(0) / 40**0.5, rtol=0.4, atol=0)  # known to 1 / sqrt(80)


@pytest.mark.parametrize("Lambda", [2, 3, 4, 5, 8])
@pytest.mark.parametrize("lengths", [(2,), (3,), (2, 3, 4), (1, 2), (1, 3), (10,)])
def test_totals_by_the_density_and_by_sampled_spectra(lengths, Lambda):
    r = torch.tensor(lengths)
    sampled_mean = expected_counts(torch.ones(len(r)), r, spectra(Lambda))
    exact = expected_total(torch.ones(len(r)), r, Lambda)
    assert float(sampled_mean.mean.sum()) == pytest.approx(exact, abs=4 * float(sampled_mean.error.sum()) + 1e-9)


@pytest.mark.parametrize("Lambda", [1, 2, 3, 4, 9, 40])
def test_density_integrates_to_the_size_and_has_its_second_moment(Lambda):
    """tr M^2 has mean Lambda (Lambda + 1): Lambda diagonal entries of variance 2, Lambda (Lambda - 1) others of variance 1."""
    u = torch.linspace(-50, 50, 5001, dtype=torch.float64)
    density = goe_density(Lambda, u)
    assert float(torch.trapezoid(density, u)) == pytest.approx(Lambda, rel=1e-12)
    assert float(torch.trapezoid(density * u**2, u)) == pytest.approx(Lambda * (Lambda + 1), rel=1e-12)


@pytest.mark.parametrize("Lambda", [3, 5, 8])
def test_theorem_5_at_finite_size(Lambda):
    """Of all indices, and of the total: the pure model has most, and more of nu''/nu' is more."""
    some, r = spectra(Lambda, 5000), torch.arange(2, 6)
    pure = expected_counts(torch.eye(4)[-1], r, some).mean
    for seed in range(20):
        eps = torch.rand(4, generator=generator(seed))
        assert bool((expected_counts(eps, r, some).mean < pure).all())


def test_a_strong_linear_term_leaves_two():
    """It makes the surface of a mixture trivial, and the paper's model has none."""
    assert expected_total(torch.tensor([1000.0, 1.0]), torch.tensor([1, 3]), 4) == pytest.approx(2, abs=1e-8)


def test_too_much_of_length_1_is_refused():
    r = torch.tensor([1, 2])
    with pytest.raises(ValueError, match="can be sampled only if"):
        expected_counts(torch.tensor([1.0, 0.05]), r, goe_spectra(4, 10, torch.Generator()))
    with pytest.raises(ValueError, match="got only length 1"):
        expected_total(torch.tensor([1.0, 0.0]), r, 4)
    with pytest.raises(ValueError, match="got only length 1"):
        expected_total(torch.tensor([1e8, 1.0]), r, 4)
    assert expected_total(torch.tensor([1e4, 1.0]), torch.tensor([1, 3]), 4) == pytest.approx(2, abs=1e-6)
    for square, taken in ((0.24, False), (0.26, True)):  # nu'' = 2 s, nu' = 1 + 2 s: the border is s = 1/4
        with nullcontext() if taken else pytest.raises(ValueError, match="can be sampled only if"):
            expected_counts(torch.tensor([1.0, square**0.5]), r, goe_spectra(4, 10, torch.Generator()))
