"""The mixture of spherical spin glasses itself (Littwin & Wolf 2016, Eq. 28), sampled small, and all of its critical points.

    H(w) = sum_r eps_r Lambda^(-(r-1)/2) sum_{i_1..i_r} J_{i_1..i_r} w_{i_1} ... w_{i_r},   ||w||^2 = Lambda,  J ~ N(0, 1)

With ``w = sqrt(Lambda) x`` this is ``sqrt(Lambda) f(x)``, where ``f(x) = sum_r eps_r J^r[x, ..., x]`` on the unit sphere is a
Gaussian field with covariance ``nu(x . y)``, ``nu(t) = sum_r eps_r^2 t^r``. We work with f: it has the critical points of H and
their indices, and ``H / Lambda = f / sqrt(Lambda)``.

Section 5 of the paper is about Lambda -> inf (`spin_glass.theta`). At small Lambda all critical points can be found, and the
Kac-Rice formula gives their mean number. Derived here for a mixture: at a point of the sphere the radial derivative,
the gradient and the tangential Hessian are independent, with variances ``nu'(1) + nu''(1)``, ``nu'(1) I`` and ``nu''(1) GOE``,
so that

    E Crt_k = 2 sqrt(2 nu' / (nu' + nu'')) (nu'' / nu')^(Lambda/2) E exp(-(nu'' - nu') / (nu'' + nu') lambda_k^2 / 4)

with lambda_0 <= ... <= lambda_(Lambda-1) the eigenvalues of a GOE matrix of size Lambda, entries of variance 1 off and 2 on the
diagonal. Pure p gives the formula of Auffinger, Ben Arous & Cerny (2013). It depends on the mixture by ``nu'' / nu'`` alone.

The index of a critical point is the number of negative eigenvalues of the Riemannian Hessian ``P (D^2 f - (x . Df) I) P``, of
size Lambda - 1. By Morse theory ``sum (-1)^index = 1 + (-1)^(Lambda-1)``, the Euler characteristic of the sphere.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import permutations

import torch
from torch import Tensor
from torch.nn.functional import normalize


# -- the field
@dataclass(frozen=True, eq=False)
class SphericalMixture:
    """D samples of f. Points are unit vectors (D, S, Lambda), S for each sample."""

    couplings: tuple[Tensor, ...]  # one for each length r: (D, Lambda, ..., Lambda) with r axes of Lambda, symmetric
    eps: Tensor  # their weights, (m,)

    @property
    def parity(self) -> int:
        """1 if f(-x) = f(x), -1 if f(-x) = -f(x), 0 if neither: all lengths with weight are even, odd, or mixed."""
        signs = {1 - 2 * ((J.ndim - 1) % 2) for J, eps in zip(self.couplings, self.eps.tolist()) if eps}
        return signs.pop() if len(signs) == 1 else 0

    def weighted(self, eps: Tensor) -> "SphericalMixture":
        """The same couplings with other weights."""
        return replace(self, eps=eps.double())

    def part(self, samples: list[int]) -> "SphericalMixture":
        """The samples with these numbers."""
        return replace(self, couplings=tuple(J[samples] for J in self.couplings))

    def derivatives(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """f, its gradient and its Hessian on the sphere: (D, S), (D, S, Lambda) and (D, S, Lambda, Lambda).

        Gradient and Hessian are tangential: both are 0 along x.
        """
        value, Df, D2f = (x.new_zeros(x.shape[:2] + (x.shape[2],) * order) for order in (0, 1, 2))
        for eps, J in zip(self.eps, self.couplings):
            r = J.ndim - 1
            second = _contracted(J, x) if r > 1 else D2f.new_zeros(())
            first = (second @ x[..., None])[..., 0] if r > 1 else J[:, None]  # J^r[x, ..., x, .]
            value = value + eps * (first * x).sum(-1)
            Df, D2f = Df + eps * r * first, D2f + eps * r * (r - 1) * second
        radial = (Df * x).sum(-1)[..., None]
        tangent = torch.eye(x.shape[2], dtype=x.dtype) - x[..., :, None] * x[..., None, :]
        return value, Df - radial * x, tangent @ (D2f @ tangent) - radial[..., None] * tangent


def sampled(lengths: Sequence[int], Lambda: int, seeds: Sequence[int]) -> SphericalMixture:
    """One sample of the couplings for each seed, with weight 1 for all lengths: `SphericalMixture.weighted` sets others.

    Lengths are r >= 1, each once, and Lambda >= 2. A sample draws Lambda^r numbers, independently of other seeds.
    """
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    couplings = []
    for r in lengths:
        drawn = [torch.randn((Lambda,) * r, generator=each, dtype=torch.float64) for each in generators]
        J, orders = torch.stack(drawn), list(permutations(range(1, r + 1)))
        # The mean over all orders of the axes: the same form, and every axis alike.
        couplings.append(sum((J.permute(0, *order) for order in orders), start=torch.zeros_like(J)) / len(orders))
    return SphericalMixture(tuple(couplings), torch.ones(len(couplings), dtype=torch.float64))


def _contracted(J: Tensor, x: Tensor) -> Tensor:
    """J with x in all places but two, (D, S, Lambda, Lambda)."""
    samples, points, Lambda = x.shape
    if J.ndim == 3:
        return J[:, None].expand(-1, points, -1, -1)
    part = (J.reshape(samples, -1, Lambda) @ x.mT).mT  # (D, S, Lambda^(r-1)): one product for all points
    for _ in range(J.ndim - 4):
        part = (part.reshape(samples, points, -1, Lambda) @ x[..., None])[..., 0]
    return part.reshape(samples, points, Lambda, Lambda)


# -- its critical points
LONGEST_STEP = 0.5  # of Newton's method, as an angle: far from a zero its steps are long and wrong
STEPS = 20
AT_ZERO = 1e-10  # norm of the gradient of what counts as converged; it is of the order of 1 elsewhere
APART = 1e-5  # least distance of two critical points
LINEAR = 1e-9  # 1 + y below which a mixture is a linear function, up to rounding
ROUNDS = 30  # of starts, at most
SEEN = 5  # how often each must have been found for the search to end


@dataclass(frozen=True, eq=False)
class CriticalPoints:
    """All critical points found of one sample."""

    points: Tensor  # (c, Lambda), of length 1
    indices: Tensor  # 0..Lambda - 1, (c,)

    @property
    def complete(self) -> bool:
        """Are there points, whose ``sum (-1)^index`` is the Euler characteristic? One missing always shows, two may not."""
        total = int((1 - 2 * (self.indices % 2)).sum())
        return len(self.indices) > 0 and total == 1 + (-1) ** (self.points.shape[1] - 1)

    @property
    def counts(self) -> Tensor:
        """Number of critical points by index, (Lambda,)."""
        return self.indices.bincount(minlength=self.points.shape[1])


def critical_points(mixture: SphericalMixture, generator: torch.Generator, starts: int = 100) -> list[CriticalPoints]:
    """All critical points of every sample, by Newton's method from random points of the sphere.

    Rounds of starts continue until the alternating sum of indices is right and every point was found `SEEN` times, or for
    `ROUNDS`; `CriticalPoints.complete` tells whether the sum is right. If f(-x) = +-f(x), each point found gives its opposite,
    too. (With a strong linear term there are few critical points, with small basins for Newton's method: this takes many
    rounds.)

    Cost: ``starts * STEPS`` evaluations of gradient and Hessian for each sample and round.
    """
    samples, Lambda, *_ = mixture.couplings[0].shape
    points: list[Tensor] = [torch.empty(0, Lambda, dtype=torch.float64)] * samples
    seen: list[Tensor] = [torch.empty(0, dtype=torch.long)] * samples
    found: dict[int, CriticalPoints] = {}
    left = list(range(samples))
    for _ in range(ROUNDS):
        if not left:
            break
        begun = normalize(torch.randn(len(left), starts, Lambda, generator=generator, dtype=torch.float64), dim=-1)
        for sample, new in zip(left, _converged(mixture.part(left), begun)):
            opposite = [-new] if mixture.parity else []
            points[sample], seen[sample] = _merged(points[sample], seen[sample], torch.cat([new, *opposite]))
            found[sample] = _described(mixture.part([sample]), points[sample])
        left = [sample for sample in left if not (found[sample].complete and bool((seen[sample] >= SEEN).all()))]
    return [found[sample] for sample in range(samples)]


def _converged(mixture: SphericalMixture, x: Tensor) -> list[Tensor]:
    """Where Newton's method ends, for each sample those starts that led to a critical point, (s, Lambda)."""
    for _ in range(STEPS):
        _, gradient, hessian = mixture.derivatives(x)
        # In the tangent space: with x x^T added the Hessian is regular, and the solution orthogonal to x.
        step, _ = torch.linalg.solve_ex(hessian + x[..., :, None] * x[..., None, :], -gradient)
        x = normalize(x + step * (LONGEST_STEP / step.norm(dim=-1, keepdim=True)).clamp(max=1), dim=-1)
    _, gradient, _ = mixture.derivatives(x)
    return [each[size < AT_ZERO] for each, size in zip(x, gradient.norm(dim=-1))]


def _merged(points: Tensor, seen: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
    """Known points and the new ones among others, each once, with how often it was found."""
    if not len(new):
        return points, seen
    every = torch.cat([points, new])
    times = torch.cat([seen, torch.ones(len(new), dtype=torch.long)])
    close = every @ every.T > 1 - APART**2 / 2
    first = close.byte().numpy().argmax(axis=1)  # the earliest that is the same
    totals = torch.zeros(len(every), dtype=torch.long).index_add(0, torch.from_numpy(first), times)
    return every[totals > 0], totals[totals > 0]


def _described(mixture: SphericalMixture, points: Tensor) -> CriticalPoints:
    _, _, hessian = mixture.derivatives(points[None])
    # Along x a positive eigenvalue, instead of 0.
    beside = hessian + points[None, :, :, None] * points[None, :, None, :]
    return CriticalPoints(points, (torch.linalg.eigvalsh(beside)[0] < 0).sum(-1))


# -- how many to expect (Kac-Rice)


@dataclass(frozen=True, eq=False)
class ExpectedCounts:
    """Mean numbers of critical points by index."""

    mean: Tensor  # (Lambda,)
    error: Tensor  # its standard error, of the sampled spectra, (Lambda,)


def expected_counts(eps: Tensor, lengths: Tensor, spectra: Tensor) -> ExpectedCounts:
    """E Crt_k for k = 0, ..., Lambda - 1, at finite Lambda: the mean of the module's formula over sampled spectra.

    Weights (m,) may have any normalisation; length 1, which the paper's model leaves out, counts if it is given. With the same
    spectra (n, Lambda), from `goe_spectra`, for several mixtures, the sign of differences is exact.
    For large Lambda the mean is dominated by a few spectra, those whose eigenvalue is nearest to 0: of 20,000 at Lambda = 100 and
    y = 0.98, by about three at index 0. Then the mean is usually too small, and so is ``error``: with 2,000 spectra
    (1/Lambda) log mean was up to 0.015 below what a Markov chain gives.

    >>> expected_counts(torch.ones(1), torch.tensor([2]), goe_spectra(3, 10, torch.Generator())).mean  # the eigenvectors
    tensor([2., 2., 2.], dtype=torch.float64)

    Raises:
        ValueError: if length 1 outweighs the others so much (nu'' <= nu' / 3) that the samples have no finite variance.
    """
    factor, y = _factor(eps, lengths, spectra.shape[1])
    if y <= -0.5:
        raise ValueError(
            "spectra can be sampled only if nu'' > nu' / 3, that is (nu'' - nu') / (nu'' + nu') > -0.5, got "
            f"{float(y):.3g}: give length 1 less weight, or use expected_total."
        )
    terms = factor * (-y / 4 * spectra**2).exp()
    return ExpectedCounts(terms.mean(0), terms.std(0) / len(spectra) ** 0.5)


def expected_total(eps: Tensor, lengths: Tensor, Lambda: int) -> float:
    """``sum_k E Crt_k``, without sampling: the module's formula summed over k is an integral over the GOE's density.

    >>> round(expected_total(torch.ones(1), torch.tensor([2]), 4), 9)
    8.0

    Raises:
        ValueError: if only length 1 has weight (up to rounding): f is then linear, and the formula does not give its two critical
            points on the sphere.
    """
    factor, y = _factor(eps, lengths, Lambda)
    if 1 + y < LINEAR:
        raise ValueError("expected a length above 1 with a weight other than 0, got only length 1 (up to rounding).")
    # The integrand falls like exp(-(1 + min(y, 0)) u^2 / 4).
    reach = (13 + 2 * Lambda**0.5) / min(1.0, (1 + float(y)) ** 0.5)
    u = torch.linspace(-reach, reach, 20_001, dtype=torch.float64)
    return float(factor * torch.trapezoid(goe_density(Lambda, u, float(y)), u))


def _factor(eps: Tensor, lengths: Tensor, Lambda: int) -> tuple[Tensor, Tensor]:
    """What stands before the mean, and ``y = (nu'' - nu') / (nu'' + nu')``."""
    r, share = lengths.double(), eps.double() ** 2
    first, second = share @ r, share @ (r * (r - 1))
    factor = 2 * (2 * first / (first + second)) ** 0.5 * (second / first) ** (Lambda / 2)
    return factor, (second - first) / (second + first)


def goe_spectra(Lambda: int, count: int, generator: torch.Generator) -> Tensor:
    """Eigenvalues of ``count`` GOE matrices, ascending, (count, Lambda); entries of variance 1 off and 2 on the diagonal."""
    square = torch.randn(count, Lambda, Lambda, generator=generator, dtype=torch.float64)
    return torch.linalg.eigvalsh((square + square.mT) / 2**0.5)


def goe_density(Lambda: int, u: Tensor, tilt: float = 0.0) -> Tensor:
    """Density of the eigenvalues of such a matrix at u, of any shape; its integral over the line is Lambda.

    Mehta's closed form by Hermite functions (Random Matrices, chapter 7). ``tilt`` > -1 multiplies by ``exp(-tilt u^2 / 4)``,
    before anything underflows.
    """
    x = u / 2**0.5
    phi, below = _hermite_functions(Lambda, x)
    _, total = _hermite_functions(Lambda, x.new_tensor(math.inf))
    tilted, _ = _hermite_functions(Lambda, x, tilt)
    density = (phi[:Lambda] * tilted[:Lambda]).sum(0)
    density = density + (Lambda / 2) ** 0.5 * tilted[Lambda - 1] * (below[Lambda] - total[Lambda] / 2)
    if Lambda % 2:
        density = density + tilted[Lambda - 1] / total[Lambda - 1]
    return density / 2**0.5


def _hermite_functions(most: int, x: Tensor, tilt: float = 0.0) -> tuple[Tensor, Tensor]:
    """Orthonormal phi_0, ..., phi_most at x, times ``exp(-tilt x^2 / 2)``, and, for tilt 0, their integrals from -inf to x.

    By ``sqrt(n+1) phi_{n+1} = sqrt(2) x phi_n - sqrt(n) phi_{n-1} = sqrt(n) phi_{n-1} - sqrt(2) phi_n'``. Each is
    (most + 1, *x.shape), most >= 1.
    """
    first = math.pi**-0.25 * (-(1 + tilt) / 2 * x**2).exp()
    finite = x.nan_to_num(posinf=0.0)  # at infinity all of them are 0
    phi = [first, 2**0.5 * finite * first]
    below = [math.pi**0.25 * 2**-0.5 * (1 + torch.erf(x / 2**0.5)), -(2**0.5) * first]
    for n in range(1, most):
        phi.append((2**0.5 * finite * phi[n] - n**0.5 * phi[n - 1]) / (n + 1) ** 0.5)
        below.append((n**0.5 * below[n - 1] - 2**0.5 * phi[n]) / (n + 1) ** 0.5)
    return torch.stack(phi), torch.stack(below)
