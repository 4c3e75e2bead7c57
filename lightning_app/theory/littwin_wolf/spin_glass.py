"""A residual net as a mixture of spherical spin glasses (Littwin & Wolf 2016, sections 3 and 5), in closed form.

A net of p layers with a skip connection around all but the first has ``binom(p-1, r-1) n^r`` paths of length r from an input.
Under the paper's assumptions its loss is the Hamiltonian ``H = sum_r eps_r H_r`` of spherical r-spin models, where

    eps_r = binom(p-1, r-1) beta^r / Z,   sum_r eps_r^2 = 1,   beta = rho n C / sqrt(Lambda)      (Eqs. 15, 17),

rho is the probability of an open gate, n the width, Lambda the number of unique weights and ``||w|| = sqrt(Lambda) C``. The
single number beta determines how deep the ensemble is (Theorems 1 and 2, Lemma 4) and how many critical points of finite index
the surface has (Eq. 33, Theorem 5).

The proofs write binom(p, r) for binom(p-1, r-1), "ignoring constants"; here nothing is ignored. All in float64.
"""

import math
from dataclasses import dataclass
from fractions import Fraction

import torch
from scipy.special import rel_entr
from torch import Tensor

Beta = float | Fraction


# -- beta
def beta_of(rho: float, n: int, C: float, Lambda: int) -> float:
    """``beta = rho n C / sqrt(Lambda)`` (Eq. 17), > 0; rho in (0, 1], C = ``||w||_2 / sqrt(Lambda)``.

    >>> beta_of(rho=0.5, n=100, C=0.1, Lambda=100)  # C = 1/sqrt(n) and Lambda = n: beta = rho
    0.5
    """
    return rho * n / math.sqrt(Lambda) * C


def scale_of(beta: float, rho: float, n: int, Lambda: int) -> float:
    """The scale C of the weights that has this beta: the inverse of `beta_of`."""
    return beta / beta_of(rho, n, 1.0, Lambda)


# -- the weights of path lengths
def weights(p: int, beta: Beta) -> Tensor:
    """eps_1, ..., eps_p (Eq. 15), (p,), with 2-norm 1: the weight of the paths of length r in the loss.

    ``eps_r(beta) = eps_{p+1-r}(1/beta)``: mirrored by beta -> 1/beta. Stable for any depth p: weights that underflow are 0. With
    beta = 0 no path is open and Eq. 15 is 0 / 0.

    >>> weights(3, 0.5) * 1.5**0.5  # (0.5, 2 * 0.25, 0.125) / Z
    tensor([0.8528, 0.8528, 0.2132], dtype=torch.float64)

    Raises:
        ValueError: for p below 1, and for a beta that is not above 0 and finite.
    """
    return log_weights(p, beta).exp()


def log_weights(p: int, beta: Beta) -> Tensor:
    """log eps_1, ..., log eps_p, (p,), also for `weights` that are too small for a float.

    They are computed from the largest one outwards by sums of ``log(eps_{r+1} / eps_r) = log(beta (p-r) / r)``, so that nothing
    cancels.
    """
    top = argmax(p, beta)
    r = torch.arange(1, p, dtype=torch.float64)
    steps = (float(beta) * ((p - r) / r)).log()  # from r to r + 1
    above, below = steps[top - 1 :].cumsum(0), -steps[: top - 1].flip(0).cumsum(0).flip(0)
    logs = torch.cat([below, torch.zeros(1, dtype=torch.float64), above])
    return logs - 0.5 * (2 * logs).logsumexp(0)


def argmax(p: int, beta: Beta) -> int:
    """The r where eps_r is largest, 1..p, ``floor(beta p / (1 + beta)) + 1`` exactly; in a tie the larger of the two.

    >>> argmax(100, 0.1), argmax(100, 0.5), argmax(100, 2)
    (10, 34, 67)
    """
    return maximisers(p, beta)[-1]


def maximisers(p: int, beta: Beta) -> tuple[int, ...]:
    """Every r where eps_r is largest, one or two, in rational arithmetic.

    ``eps_{r+1} >= eps_r`` as long as ``r <= t = beta p / (1 + beta)``, with equality for r = t: in the case of Theorem 1, where
    t is an integer, two lengths tie.

    >>> maximisers(100, Fraction(1, 3)), maximisers(100, 1 / 3)  # the float is not quite a third
    ((25, 26), (25,))
    """
    if not (p >= 1 and 0 < beta < math.inf):
        raise ValueError(f"expected a depth p of at least 1 and a finite beta above 0, got p = {p} and beta = {beta}.")
    beta = Fraction(beta)
    t = beta * p / (1 + beta)
    below = math.floor(t)
    return (below, below + 1) if t == below else (below + 1,)


def interval(p: int, k: int) -> tuple[float, float]:
    """The beta for which k = argmax_r eps_r (Lemma 4): from ``(k-1) / (p-k+1)``, inclusive, to ``k / (p-k)``, exclusive.

    For k = 1, ..., p these intervals cover (0, inf) without overlap. In terms of `limiting_share` they are ``[(k-1)/p, k/p)``.

    >>> interval(4, 1), interval(4, 2), interval(4, 4)
    ((0.0, 0.3333333333333333), (0.3333333333333333, 1.0), (3.0, inf))
    """
    return (k - 1) / (p - k + 1), k / (p - k) if k < p else math.inf


def reaching(p: int, k: int) -> float:
    """A beta whose ensemble is deepest at k: the one in the middle of Lemma 4's `interval`, on the scale of `limiting_share`.

    >>> reaching(4, 2), argmax(4, reaching(4, 2))
    (0.6, 2)
    """
    return (k - 0.5) / (p - k + 0.5)


# -- concentration (Theorems 1 and 2)
@dataclass(frozen=True)
class Lengths:
    """Statistics of the path length r, which has probability eps_r^2."""

    mean: float  # 1..p
    variance: float


def limiting_share(beta: Beta) -> float:
    """``q = beta / (1 + beta)``, in (0, 1): the limit of argmax / p (Theorem 1)."""
    return float(beta) / (1 + float(beta))


def lengths(p: int, beta: Beta) -> Lengths:
    """Mean and variance of the path length under eps_r^2."""
    share, r = weights(p, beta) ** 2, torch.arange(1, p + 1, dtype=torch.float64)
    mean = float(share @ r)
    return Lengths(mean, float(share @ (r - mean) ** 2))


def limiting_lengths(p: int, beta: Beta) -> Lengths:
    """The limit of `lengths` as p grows: mean ``1 + (p-1) q``, variance ``(p-1) q (1-q) / 2``.

    The variance is half that of a binomial distribution proportional to eps_r, since the squares eps_r^2 are the probabilities.
    The band of Theorem 2 is O(sqrt(p)) wide.
    """
    steps, q = p - 1, limiting_share(beta)
    return Lengths(1 + steps * q, steps * q * (1 - q) / 2)


def mass(p: int, beta: Beta, first: int, last: int) -> float:
    """``sum of eps_r^2 over first <= r <= last``, in 0..1 (Theorem 2, with first = alpha_1 p and last = alpha_2 p)."""
    return -math.expm1(log_mass_outside(p, beta, first, last))


def log_mass_outside(p: int, beta: Beta, first: int, last: int) -> float:
    """log of the sum of eps_r^2 over r < first and r > last, <= 0; -inf if nothing is outside. first <= last <= p.

    Divided by p it tends to ``-min(rate(beta, first / p), rate(beta, last / p))``, however small it is.
    """
    logs = 2 * log_weights(p, beta)
    outside = torch.cat([logs[: max(first, 1) - 1], logs[max(last, 0) :]])
    return min(float(outside.logsumexp(0)), 0.0) if len(outside) else -math.inf


def rate(beta: Beta, alpha: float) -> float:
    """``-lim (1/p) log eps_{alpha p}^2 = 2 KL(alpha || q)``, >= 0, with the divergence of two Bernoulli variables in nats.

    Theorem 2 is based on this: by Stirling's formula ``(1/p) log(binom(p, alpha p) beta^(alpha p)) -> H(alpha) + alpha log beta``
    (Eq. 37), which is ``log(1 + beta)`` at alpha = q and less everywhere else.

    >>> rate(1.0, 0.5), rate(1.0, 1.0) / math.log(4)  # eps_p = 1 / 2^(p-1), but for the normalisation
    (0.0, 1.0)
    """
    q, rest = limiting_share(beta), limiting_share(1 / beta)  # 1 - q, which is not lost near q = 1
    return 2 * float(rel_entr(alpha, q) + rel_entr(1 - alpha, rest))


# -- critical points of finite index (Eq. 33, Theorem 5)
SERIES_TO, TERMS = 0.3, 16  # below it atanh(y) - y cancels; 0.3^(2 * 16) is 2e-17


def theta(eps: Tensor, lengths: Tensor) -> Tensor:
    """``lim 1/Lambda log E Crt_k(R, eps)``, the exponential rate of the number of critical points of index k, for any k (Eq. 33).

        theta = 1/2 log(v''/v') - (v'' - v') / (v'' + v'),   v' = sum eps_r^2 r,  v'' = sum eps_r^2 r (r-1)    (Eq. 31)

    The model starts at r = 2 (Eq. 28): length 1 is left out. With ``y = (v'' - v') / (v'' + v')`` it is ``atanh(y) - y``, which
    grows with y in [0, 1): 0 for pure r = 2, largest for the pure model of the greatest length (Theorem 5). The factor
    by which eps, (..., m), is normalised does not matter; lengths, (m,), are integers >= 1, and theta, (...),
    is >= 0, and NaN if only length 1 has weight.

    >>> theta(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([2, 3]))  # log(2)/2 - 1/3
    tensor([0.0000, 0.0132], dtype=torch.float64)
    """
    r = lengths.double()
    share = torch.where(r > 1, eps.double() ** 2 * r, 0.0)
    first, total = share.sum(-1), (share * r).sum(-1)  # v' and v' + v''
    y, ratio = (share * (r - 2)).sum(-1) / total, (share * (r - 1)).sum(-1) / first
    odd = 2 * torch.arange(1, TERMS + 1, dtype=y.dtype) + 1
    series = (y[..., None] ** odd / odd).sum(-1)  # y^3/3 + y^5/5 + ...
    return torch.where(y < SERIES_TO, series, 0.5 * ratio.log() - y)  # ratio = (1 + y) / (1 - y): y near 1 has lost it


def theta_of_beta(p: int, beta: Beta) -> float:
    """theta of the weights eps_2(beta), ..., eps_p(beta): from 0 (beta -> 0) to `theta_pure` (beta -> inf), strictly rising.

    This holds because eps(beta) has a monotone likelihood ratio in beta, and v''/v' is the mean of r - 1 under weights eps_r^2 r.
    """
    logs = log_weights(p, beta)[1:]
    return float(theta((logs - logs.max()).exp(), torch.arange(2, p + 1)))


def theta_pure(p: int) -> float:
    """theta of the pure p-spin model, ``1/2 log(p-1) - (p-2)/p``: the largest of all mixtures up to p (Theorem 5).

    >>> theta_pure(2), round(theta_pure(100), 9)
    (0.0, 1.317559925)
    """
    return float(theta(torch.ones(1), torch.tensor([p])))
