"""Weights of path lengths, their concentration and theta: laws, exact rational witnesses, and p up to 1e5."""

import math
from collections.abc import Callable
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import eval_legendre
from torch import Tensor

from lightning_app.theory.littwin_wolf import spin_glass


def for_all(*strategies: st.SearchStrategy) -> Callable:
    """`given` without a deadline: the first call of torch is slow."""
    return lambda test: settings(deadline=None)(given(*strategies)(test))


betas = st.floats(1e-3, 1e3)
depths = st.integers(2, 400)


def exactly(p: int, beta: Fraction) -> list[Fraction]:
    """binom(p-1, r-1)^2 beta^(2r) / Z^2 for r = 1..p: the squares of eps."""
    terms = [math.comb(p - 1, r - 1) ** 2 * beta ** (2 * r) for r in range(1, p + 1)]
    return [term / sum(terms) for term in terms]


@for_all(depths, betas)
def test_weights_mirror(p, beta):
    mirrored = spin_glass.weights(p, 1 / Fraction(beta)).flip(0)
    torch.testing.assert_close(spin_glass.weights(p, beta), mirrored, rtol=1e-11, atol=1e-300)


@for_all(st.integers(2, 60), st.fractions(Fraction(1, 50), 50, max_denominator=50))
def test_weights_are_the_exact_ones(p, beta):
    expected = torch.tensor([float(square) for square in exactly(p, beta)], dtype=torch.float64).sqrt()
    torch.testing.assert_close(spin_glass.weights(p, beta), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("beta", [Fraction(1, 10), Fraction(1, 2), Fraction(2)])
def test_weights_of_a_deep_net_against_integers(beta):
    """Ratios to the largest one at p = 1e5, from binomials with tens of thousands of digits."""
    p = 100_000
    found, top = spin_glass.weights(p, beta), spin_glass.argmax(p, beta)
    for away in (1, 50, 300):
        ratio = Fraction(math.comb(p - 1, top + away - 1), math.comb(p - 1, top - 1)) * beta**away
        assert float(found[top + away - 1] / found[top - 1]) == pytest.approx(float(ratio), rel=1e-13)


@pytest.mark.parametrize("beta", [1e-300, 1e-8, 1e8, 1e300])
def test_weights_of_an_extreme_beta_are_those_of_one_length(beta):
    found = spin_glass.weights(1000, beta)
    assert bool(found.isfinite().all())
    assert float(found[0 if beta < 1 else -1]) == pytest.approx(1)


@pytest.mark.parametrize(
    ("p", "beta"),
    [(0, 0.5), (-3, 0.5), (10, 0.0), (10, -0.5), (10, -1.0), (10, math.nan), (10, math.inf), (10, Fraction(-1))],
)
@pytest.mark.parametrize("of", [spin_glass.weights, spin_glass.log_weights, spin_glass.argmax, spin_glass.lengths])
def test_a_net_without_layers_or_open_paths_has_no_weights(of, p, beta):
    with pytest.raises(ValueError, match=f"p of at least 1 and a finite beta above 0, got p = {p} and beta = {beta}"):
        of(p, beta)


def test_a_net_of_one_layer_has_one_path():
    assert spin_glass.weights(1, 0.5).tolist() == [1.0]


def test_log_weights_where_weights_underflow():
    p, beta = 2000, 0.5
    found = spin_glass.log_weights(p, beta)
    assert float(spin_glass.weights(p, beta)[-1]) == 0
    total = sum(math.comb(p - 1, r - 1) ** 2 * 4 ** (p - r) for r in range(1, p + 1))  # Z^2 4^p
    assert float(found[-1]) == pytest.approx(-math.log(total) / 2, rel=1e-13)


@for_all(st.integers(2, 200), st.floats(0.05, 0.9))
def test_the_normalisation_is_a_legendre_polynomial(p, beta):
    """Z^2 = beta^2 (1 - beta^2)^(p-1) P_{p-1}((1 + beta^2) / (1 - beta^2)), and eps_1 = beta / Z."""
    square = (1 - beta**2) ** (p - 1) * eval_legendre(p - 1, (1 + beta**2) / (1 - beta**2))
    assert 1 / square == pytest.approx(float(spin_glass.weights(p, beta)[0]) ** 2, rel=1e-10, abs=0)


@for_all(st.integers(2, 80), st.fractions(Fraction(1, 100), 100, max_denominator=100))
def test_argmax_is_that_of_all(p, beta):
    terms = [math.comb(p - 1, r - 1) * beta**r for r in range(1, p + 1)]
    brute = tuple(r for r, term in enumerate(terms, 1) if term == max(terms))
    assert spin_glass.maximisers(p, beta) == brute
    assert spin_glass.argmax(p, beta) == brute[-1]


@for_all(st.integers(2, 10**6), betas)
def test_argmax_is_theorem_1_s_to_within_one(p, beta):
    assert -1e-9 <= spin_glass.argmax(p, beta) - spin_glass.limiting_share(beta) * p <= 1 + 1e-9


@for_all(st.integers(2, 500), st.data())
def test_lemma_4_every_length_is_reached(p, data):
    k = data.draw(st.integers(1, p))
    low, high = spin_glass.interval(p, k)
    assert spin_glass.argmax(p, spin_glass.reaching(p, k)) == k
    assert low < spin_glass.reaching(p, k) < high
    if k > 1:
        assert low == spin_glass.interval(p, k - 1)[1]  # they touch
        assert spin_glass.maximisers(p, Fraction(k - 1, p - k + 1)) == (k - 1, k)  # and tie there
        assert spin_glass.argmax(p, Fraction(k - 1, p - k + 1) - Fraction(1, 10**30)) == k - 1


@for_all(st.floats(0.01, 1), st.integers(1, 1000), st.integers(1, 10**6), betas)
def test_scale_and_beta_are_inverse(rho, n, Lambda, beta):
    C = spin_glass.scale_of(beta, rho, n, Lambda)
    assert spin_glass.beta_of(rho, n, C, Lambda) == pytest.approx(beta, rel=1e-12)
    assert spin_glass.beta_of(rho, n, 2 * C, Lambda) == pytest.approx(2 * beta, rel=1e-12)


@for_all(st.integers(2, 40), st.fractions(Fraction(1, 20), 20, max_denominator=20), st.data())
def test_mass_of_a_band(p, beta, data):
    first = data.draw(st.integers(-2, p))
    last = data.draw(st.integers(first, p))
    inside = sum(exactly(p, beta)[max(first, 1) - 1 : max(last, 0)])
    assert spin_glass.mass(p, beta, first, last) == pytest.approx(float(inside), abs=1e-13)
    outside = 1 - inside
    logs = math.log(outside.numerator) - math.log(outside.denominator) if outside else -math.inf
    assert spin_glass.log_mass_outside(p, beta, first, last) == pytest.approx(logs, rel=1e-9, abs=1e-13)


@pytest.mark.parametrize("beta", [0.1, 0.5, 1.0, 2.0, 10.0])
def test_theorem_2(beta):
    """The mass outside of any band around q falls exponentially, at the rate of its nearer edge."""
    q = spin_glass.limiting_share(beta)
    low, high = q - 0.05, q + 0.03
    rates = []
    for p in (1000, 10_000, 100_000):
        first, last = round(low * p), round(high * p)
        rates.append(-spin_glass.log_mass_outside(p, beta, first, last) / p)
        expected = min(spin_glass.rate(beta, first / p), spin_glass.rate(beta, last / p))
        assert rates[-1] == pytest.approx(expected, abs=3 * math.log(p) / p)
    assert spin_glass.mass(100_000, beta, first, last) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("beta", [3.0, 1e5, 1e20])
def test_the_rate_has_the_mirror_of_the_weights(beta):
    """eps_r(beta) = eps_{p+1-r}(1 / beta), also where 1 - q is lost beside 1."""
    for alpha in (0.0, 0.25, 1.0):
        assert spin_glass.rate(beta, alpha) == pytest.approx(spin_glass.rate(1 / beta, 1 - alpha), rel=1e-12)


@pytest.mark.parametrize("beta", [0.1, 0.5, 1.0, 2.0])
def test_lengths_of_a_deep_net(beta):
    found, limit = spin_glass.lengths(100_000, beta), spin_glass.limiting_lengths(100_000, beta)
    assert found.mean == pytest.approx(limit.mean, rel=1e-4)
    assert found.variance == pytest.approx(limit.variance, rel=1e-4)


@for_all(betas, st.floats(0, 1))
def test_rate_is_zero_at_the_limit_alone(beta, alpha):
    q = spin_glass.limiting_share(beta)
    assert spin_glass.rate(beta, q) == pytest.approx(0, abs=1e-12)
    assert spin_glass.rate(beta, alpha) >= 4 * (alpha - q) ** 2 - 1e-12  # Pinsker


def paper_s_theta(eps: Tensor, r: Tensor) -> Tensor:
    """Eqs. 31 and 33 as printed."""
    first, second = (eps**2 * r).sum(-1), (eps**2 * r * (r - 1)).sum(-1)
    return 0.5 * (second / first).log() - (second - first) / (second + first)


def mixtures(count: int, p: int, seed: int) -> Tensor:
    """Random weights of lengths 2..p: dense, sparse and steep ones, (count, p - 1)."""
    generator = torch.Generator().manual_seed(seed)
    normal = torch.randn(count, p - 1, generator=generator, dtype=torch.float64)
    steepness = torch.randint(1, 8, (count, 1), generator=generator)
    return normal.abs() ** steepness


@for_all(st.integers(2, 60), st.integers(0, 1000))
def test_theta_is_the_paper_s(p, seed):
    eps, r = mixtures(20, p, seed), torch.arange(2, p + 1)
    torch.testing.assert_close(spin_glass.theta(eps, r), paper_s_theta(eps, r), rtol=0, atol=3e-15)


@for_all(st.floats(-8, 0))
def test_theta_near_pure_2_against_its_series(exponent):
    """eps^2 = (1 - s, s) on lengths 2 and 3: y = 3 s / (4 + 5 s), where the paper's form cancels altogether."""
    s = Fraction(10.0**exponent)
    y = 3 * s / (4 + 5 * s)
    expected = float(sum(y ** (2 * k + 1) / (2 * k + 1) for k in range(1, 12)))
    eps = torch.tensor([float(1 - s), float(s)], dtype=torch.float64).sqrt()
    assert float(spin_glass.theta(eps, torch.tensor([2, 3]))) == pytest.approx(expected, rel=1e-9, abs=0)


@for_all(st.integers(3, 60), st.integers(0, 1000))
def test_theorem_5_no_mixture_has_more_than_the_pure_model(p, seed):
    found = spin_glass.theta(mixtures(100, p, seed), torch.arange(2, p + 1))
    assert bool((found >= 0).all())
    assert bool((found <= spin_glass.theta_pure(p) * (1 + 1e-12)).all())


def test_theta_leaves_out_length_1():
    eps, r = torch.tensor([5.0, 1.0, 2.0]), torch.arange(1, 4)
    assert torch.equal(spin_glass.theta(eps, r), spin_glass.theta(eps[1:], r[1:]))


@for_all(st.integers(3, 300), st.floats(-4, 4), st.floats(0.01, 2))
def test_theta_rises_with_beta(p, exponent, more):
    lower, higher = (spin_glass.theta_of_beta(p, 10.0**e) for e in (exponent, exponent + more))
    assert 0 < lower < higher < spin_glass.theta_pure(p)


@pytest.mark.parametrize("p", [3, 100, 100_000])
def test_theta_s_ends(p):
    assert spin_glass.theta_of_beta(p, 1e-150) == pytest.approx(0, abs=1e-100)
    assert spin_glass.theta_of_beta(p, 1e12) == pytest.approx(spin_glass.theta_pure(p), rel=1e-6)
    assert spin_glass.theta_pure(p) == pytest.approx(0.5 * math.log(p - 1) - (p - 2) / p, rel=1e-10)
