"""What drives the scales of a residual net up: Theorems 3 and 4 of Littwin & Wolf (2016) as identities of a small model.

The model of section 4.2: p layers ``N_l = lambda_l / sigma_l R(W_l^T N_{l-1})`` (Eq. 22 without its additive terms), of which a
block of p - m layers is skipped by one identity connection. The gates of the ReLUs and the normalisers sigma are constants, the
loss is linear in the output Y (Lemma 3). So it is the sum of one part for the paths of length m, around the block, and one for
those of length p,

    L = L_m + L_p   (Eqs. 23, 26),    with gradients g = g_m + g_p by the weights w,

and is multilinear in W_1, ..., W_p and in lambda_1, ..., lambda_p: every derivative with respect to one of them is a difference,
and along a line in w the loss is a polynomial of degree p. So finite differences are exact here, for any step.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.func import grad, vmap


@dataclass(frozen=True, eq=False)
class SkipNet:
    """One net and its data, with frozen gates."""

    matrices: tuple[Tensor, ...]  # W_1, ..., W_p: (d, n), then (n, n)
    lambdas: Tensor  # (p,)
    sigmas: Tensor  # (p,)
    gates: tuple[Tensor, ...]  # 0 or 1, p times (B, n)
    x: Tensor  # (B, d)
    labels: Tensor  # (B,)
    block: range  # of the layers 0..p-1, those that the identity connection skips

    @property
    def p(self) -> int:
        return len(self.matrices)

    @property
    def m(self) -> int:
        """Length of the paths around the block."""
        return self.p - len(self.block)

    @property
    def w(self) -> Tensor:
        """All weights, flattened."""
        return torch.cat([W.flatten() for W in self.matrices])

    def with_weights(self, w: Tensor) -> "SkipNet":
        parts = w.split([W.numel() for W in self.matrices])
        return replace(self, matrices=tuple(part.view_as(W) for part, W in zip(parts, self.matrices)))

    def with_lambda(self, layer: int, value: Tensor) -> "SkipNet":
        here = torch.arange(self.p) == layer
        return replace(self, lambdas=torch.where(here, value, self.lambdas))

    def around(self) -> Tensor:
        """L_m, a scalar."""
        return self._loss([layer for layer in range(self.p) if layer not in self.block])

    def through(self) -> Tensor:
        """L_p, a scalar."""
        return self._loss(range(self.p))

    def loss(self) -> Tensor:
        return self.around() + self.through()

    def _loss(self, layers: Iterable[int]) -> Tensor:
        """``-mean(label Y)`` of the paths that take the weights of these layers: C1 + C2 Y of Lemma 3 without its constant."""
        hidden = self.x
        for layer in layers:
            scale = self.lambdas[layer] / self.sigmas[layer]
            hidden = scale * self.gates[layer] * (hidden @ self.matrices[layer])
        return -(self.labels * hidden.sum(1)).mean()


def skip_net(
    p: int,
    block: range,
    n: int,
    d: int,
    samples: int,
    generator: torch.Generator,
    normalised: bool = True,
    strength: float = 1.0,
) -> SkipNet:
    """A random net of p layers on random data, its gates and normalisers those of a forward pass.

    Args:
        block: the layers, of 0..p-1, that the identity connection skips: at least one, and not the first.
        normalised: each layer's output is divided by sigma, the mean over units of its standard deviation, and multiplied by
            a random lambda of either sign (Eq. 22); else both are 1 (Eq. 26).
        strength: factor of the block's output.
    """

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    matrices = tuple(normal(before, n) / before**0.5 for before in (d, *[n] * (p - 1)))
    lambdas = normal(p).sign() * (0.5 + normal(p).abs()) if normalised else torch.ones(p, dtype=torch.float64)
    lambdas[block.stop - 1] *= strength  # of its last layer: a later one of the block would normalise it away
    x, labels = normal(samples, d), normal(samples).sign()
    gates, sigmas, hidden, skipped = [], [], x, x
    for layer, W in enumerate(matrices):
        skipped = hidden if layer == block.start else skipped
        before = hidden @ W
        gates.append((before > 0).double())
        sigmas.append(before.relu().std(0, correction=0).mean() if normalised else torch.ones((), dtype=torch.float64))
        hidden = lambdas[layer] / sigmas[layer] * before.relu() + (skipped if layer == block.stop - 1 else 0.0)
    return SkipNet(matrices, lambdas, torch.stack(sigmas), tuple(gates), x, labels, block)


@dataclass(frozen=True)
class Theorem3:
    """Results for one layer l. The first two are 0 up to rounding."""

    identity: float  # d/dmu dL/dlambda_l(w - mu g) at mu = 0, by differences, from its closed form; relative
    energy: float  # -1/2 d||g||^2 / dlambda_l, by autograd, from the same; relative
    skipped: bool  # is l in the block?
    norms: float  # ||g_p|| / ||g_m||, where dL/dlambda_l = 0, as are the next two
    drive: float  # ||g_m + g_p||^2, or of a skipped layer ||g_p||^2 + g_p . g_m, over ||g||^2: > 0 pushes |lambda_l| up
    growth: float  # of |lambda_l| by its step after that of w, relative; > 0 is Eq. 24 or 25
    predicted: float  # the same from the drive, (mu/lambda_l)^2 times it, but for O(mu^3)


def theorem_3(net: SkipNet, layer: int) -> Theorem3:
    """The second-order drive of lambda_l: how its gradient changes after a step ``w - mu g`` of the weights.

        d/dmu dL/dlambda_l(w - mu g) = -(1/lambda_l) ||g_m + g_p||^2           if no connection skips l,
                                     = -(1/lambda_l) (||g_p||^2 + g_p . g_m)   if one does      (Eqs. 41, 43, 44).

    Both are exact, at any w, for ``grad_w dL/dlambda_l`` is ``(g_m + g_p) / lambda_l`` or ``g_p / lambda_l``; and both are
    ``-1/2 d||g||^2/dlambda_l``, which is defined for any loss. The theorem's assumption ``dL/dlambda_l = 0`` matters only for the
    sign of the step: the last four fields are computed where it holds, at the nearest point in one matrix. Elsewhere the drive is
    O(mu^2), and the ordinary step O(mu).

    The length of the step is `STEP_OF_W` ||w||; the layer is one of 0..p-1.
    """
    value = net.lambdas[layer]
    observed, closed = _along_the_gradient(net, lambda here: _by_lambda(here, layer)), -_drive(net, layer) / value
    size = _gradient(net, SkipNet.loss).square().sum() / value.abs()
    energy = grad(lambda at: _gradient(net.with_lambda(layer, at), SkipNet.loss).square().sum())(value)
    identity, energy = (observed - closed).abs() / size, (-energy / 2 - closed).abs() / size
    # The nearest net, in one matrix, with dL/dlambda_l = 0: L_p = 0 for a skipped layer, else L = 0; linear in that matrix.
    part, which = (SkipNet.through, net.block.start) if layer in net.block else (SkipNet.loss, 0)
    rest = _at_rest(_without(net, part, which), layer)
    return Theorem3(float(identity), float(energy), layer in net.block, **rest)


def _at_rest(net: SkipNet, layer: int) -> dict[str, float]:
    """One step of the weights and then one of lambda_l, by the gradient there (Eqs. 24, 25)."""
    g, value, drive = _gradient(net, SkipNet.loss), net.lambdas[layer], _drive(net, layer)
    mu = STEP_OF_W * float(net.w.norm() / g.norm())
    stepped = value - mu * _by_lambda(net.with_weights(net.w - mu * g), layer)
    norms = _gradient(net, SkipNet.through).norm() / _gradient(net, SkipNet.around).norm()
    found = {
        "norms": norms,
        "drive": drive / (g @ g),
        "growth": (stepped.abs() - value.abs()) / value.abs(),
        "predicted": mu**2 * drive / value**2,
    }
    return {key: float(number) for key, number in found.items()}


def _by_lambda(net: SkipNet, layer: int) -> Tensor:
    """dL/dlambda_l, as a difference: the loss is affine in it."""
    return net.with_lambda(layer, net.lambdas[layer] + 1).loss() - net.loss()


def _drive(net: SkipNet, layer: int) -> Tensor:
    g_m, g_p = _gradient(net, SkipNet.around), _gradient(net, SkipNet.through)
    return g_p @ (g_m + g_p) if layer in net.block else (g_m + g_p) @ (g_m + g_p)


def _without(net: SkipNet, part: Callable[[SkipNet], Tensor], which: int) -> SkipNet:
    """One matrix moved to where a part of the loss that is linear in it is 0."""

    def with_matrix(W: Tensor) -> SkipNet:
        return replace(net, matrices=(*net.matrices[:which], W, *net.matrices[which + 1 :]))

    matrix = net.matrices[which]
    slope = grad(lambda W: part(with_matrix(W)))(matrix)
    return with_matrix(matrix - part(net) / slope.square().sum() * slope)


@dataclass(frozen=True)
class Theorem4:
    """Results for a net without normalisation. The first two are 0 up to rounding."""

    euler: float  # C dL/dC, by differences, from m L_m + p L_p; relative
    identity: float  # d/dmu dL/dC(w - mu g) at mu = 0, by differences, from Eq. 27; relative
    printed: float  # the same from the line before in the text's proof (Eq. 47), which has m ||g_p||^2 for m ||g_m||^2
    drive: float  # m ||g_m||^2 + p ||g_p||^2 + (m + p) g_p . g_m, over ||g||^2: > 0 pushes C up
    cosine: float  # of g_m and g_p
    bound: float  # -2 sqrt(m p) / (m + p): above it the drive is positive, whatever the norms


def theorem_4(net: SkipNet) -> Theorem4:
    """The second-order drive of the scale ``C = ||w|| / sqrt(Lambda)`` of all weights, where ``dL/dC = 0``.

        dL/dC = (m L_m + p L_p) / C = g . w / C,
        d/dmu dL/dC(w - mu g) = -(1/C) (m ||g_m||^2 + p ||g_p||^2 + (m + p) g_p . g_m)      (Eq. 27)

    It is computed at the nearest net with ``g . w = 0``, changing only the first matrix: there C does not change to first order.
    """
    euler = _slope(lambda t: net.with_weights((1 + t) * net.w).loss(), STEP) - _scaled(net)
    euler_size = net.m * net.around().abs() + net.p * net.through().abs()
    net = _without(net, _scaled, 0)
    C, g_m, g_p = _scale(net), _gradient(net, SkipNet.around), _gradient(net, SkipNet.through)
    m, p, a, b, product = net.m, net.p, g_m @ g_m, g_p @ g_p, g_m @ g_p
    observed, size = _along_the_gradient(net, lambda here: _scaled(here) / _scale(here)), (m * a + p * b) / C
    drive = m * a + p * b + (m + p) * product
    printed = m * b + p * b + (m + p) * product
    return Theorem4(
        euler=float(euler.abs() / euler_size),
        identity=float((observed + drive / C).abs() / size),
        printed=float((observed + printed / C).abs() / size),
        drive=float(drive / (g_m + g_p).square().sum()),
        cosine=float(product / (a * b).sqrt()),
        bound=-2 * math.sqrt(m * p) / (m + p),
    )


def _scaled(net: SkipNet) -> Tensor:
    """C dL/dC."""
    return net.m * net.around() + net.p * net.through()


def _scale(net: SkipNet) -> Tensor:
    """C."""
    return net.w.norm() / net.w.numel() ** 0.5


POINTS = 6  # on either side: exact for polynomials of degree 12, and so for nets of 12 layers
STEP_OF_W = 1e-4  # relative, of theorem 3's step of gradient descent
STEP = 0.02  # relative: what is no polynomial, 1 / C, is one to 1e-16 so near


def _gradient(net: SkipNet, part: Callable[[SkipNet], Tensor]) -> Tensor:
    """Of a part of the loss by all weights, flattened."""
    return grad(lambda w: part(net.with_weights(w)))(net.w)


def _along_the_gradient(net: SkipNet, value: Callable[[SkipNet], Tensor]) -> Tensor:
    """``d/dmu value(w - mu g)`` at mu = 0, by differences."""
    g = _gradient(net, SkipNet.loss)
    return _slope(lambda mu: value(net.with_weights(net.w - mu * g)), STEP * float(net.w.norm() / g.norm()))


def _slope(function: Callable[[Tensor], Tensor], step: float) -> Tensor:
    """f'(0) from f at +-1, ..., +-K steps: ``sum_k c_k (f(k h) - f(-k h)) / h, c_k = -(-1)^k K!^2 / (k (K-k)! (K+k)!)``."""
    K, k = POINTS, range(1, POINTS + 1)
    c = torch.tensor([-((-1) ** i) * math.comb(2 * K, K + i) / math.comb(2 * K, K) / i for i in k], dtype=torch.float64)
    t = step * torch.tensor([*k, *(-i for i in k)], dtype=torch.float64)
    return torch.cat([c, -c]) @ vmap(function)(t) / step
