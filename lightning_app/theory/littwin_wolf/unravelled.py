"""A small residual net as the list of its paths: Lemmas 1 to 3 of Littwin & Wolf (2016), checked by computing them.

The net of Eq. 8: ``N_1 = R(W_1^T x)`` and ``N_l = R(W_l^T N_{l-1}) + N_{l-1}`` for l = 2, ..., p, with the output
``Y = sum_j N_p^j``, n units a layer and d inputs. A path of length r starts at an input and takes the weights of r layers, the
first one among them, and the skip connections of the others: ``psi_r = d binom(p-1, r-1) n^r`` of them.

Assumption A2: there are only Lambda different weights. A3: they are spread evenly. The lemmas use A3 only in this form, which is
checked here: each of the Lambda^r configurations of weights belongs to the same number of paths, psi_r / Lambda^r.
"""

import math
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Paths:
    """All paths of one length r."""

    inputs: Tensor  # 0..d-1, (psi_r,)
    layers: Tensor  # whose weights are taken, 0..p-1 ascending, (psi_r, r)
    units: Tensor  # that they lead to, 0..n-1, (psi_r, r)
    configurations: Tensor  # numbers of these weights, 0..Lambda-1, (psi_r, r)


@dataclass(frozen=True, eq=False)
class SharedWeights:
    """Which of the Lambda weights each connection of the net has."""

    numbers: tuple[Tensor, ...]  # 0..Lambda-1: (d, n), then p - 1 times (n, n)
    Lambda: int

    @property
    def p(self) -> int:
        return len(self.numbers)

    @property
    def d(self) -> int:
        return self.numbers[0].shape[0]

    @property
    def n(self) -> int:
        return self.numbers[0].shape[1]

    def psi(self, r: int) -> int:
        """Number of paths of length r (Definition 2)."""
        return self.d * math.comb(self.p - 1, r - 1) * self.n**r

    def paths(self, r: int) -> Paths:
        """Every path of length r, 1..p. Memory: r psi_r numbers."""
        steps = torch.cartesian_prod(torch.arange(self.d), *[torch.arange(self.n)] * r).view(-1, r + 1)
        through = [torch.tensor((0, *rest)) for rest in combinations(range(1, self.p), r - 1)]
        taken = [  # weights that lead from each place to the next
            [self.numbers[layer][steps[:, k], steps[:, k + 1]] for k, layer in enumerate(layers.tolist())]
            for layers in through
        ]
        return Paths(
            inputs=steps[:, 0].repeat(len(through)),
            layers=torch.stack(through).repeat_interleave(len(steps), 0),
            units=steps[:, 1:].repeat(len(through), 1),
            configurations=torch.cat([torch.stack(of_layers, 1) for of_layers in taken]),
        )

    def configuration(self, paths: Paths) -> Tensor:
        """Which of the Lambda^r configurations each path has, 0..Lambda^r - 1, (psi_r,)."""
        return paths.configurations @ self.Lambda ** torch.arange(paths.configurations.shape[1])

    def forward(self, w: Tensor, x: Tensor, gates: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Y, (B,), and which units are open, (B, p, n), for weights w, (Lambda,), and inputs (B, d) or (d,).

        ``gates``, (B, p, n) in 0..1, replace those of the ReLUs.
        """
        hidden, skipped, opened = x, x.new_zeros(()), []
        for layer, numbers in enumerate(self.numbers):
            before = hidden @ w[numbers]
            opened.append((before > 0).to(w.dtype) if gates is None else gates[..., layer, :])
            hidden = skipped = opened[-1] * before + skipped
        return hidden.sum(-1), torch.stack(opened, -2)


def evenly_shared(p: int, n: int, d: int, Lambda: int, generator: torch.Generator) -> SharedWeights:
    """Assumption A3 without remainder: each weight has n / Lambda of the n connections that leave a unit or an input."""
    assert n % Lambda == 0, "Lambda must divide n, so that every unit has each of the Lambda weights equally often"
    balanced = torch.arange(n) % Lambda

    def rows(count: int) -> Tensor:
        return torch.stack([balanced[torch.randperm(n, generator=generator)] for _ in range(count)])

    return SharedWeights((rows(d), *(rows(n) for _ in range(p - 1))), Lambda)


def by_input(p: int, n: int, d: int, Lambda: int, generator: torch.Generator) -> SharedWeights:
    """Each input has the same weight on all its connections, each weight has d / Lambda inputs; later layers are evenly shared.

    All configurations still have the same number of paths, but the paths of one start at only d / Lambda inputs. Lambda divides n
    and d.
    """
    assert d % Lambda == 0, "Lambda must divide d, so that each of the Lambda weights has the same number of inputs"
    rest = evenly_shared(p, n, d, Lambda, generator).numbers[1:]
    return SharedWeights(((torch.arange(d) % Lambda)[:, None].expand(-1, n), *rest), Lambda)


def unevenly_shared(p: int, n: int, d: int, Lambda: int, generator: torch.Generator) -> SharedWeights:
    """Each connection draws its weight at random, so A3 holds only on average."""
    shapes = [(d, n), *[(n, n)] * (p - 1)]
    return SharedWeights(tuple(torch.randint(Lambda, shape, generator=generator) for shape in shapes), Lambda)


@dataclass(frozen=True)
class Lemma1:
    """All are 0 up to rounding, ``uneven`` only if A3 holds without remainder."""

    paths: float  # |sum over all paths - Y| / S (Eq. 9), S the same sum of absolute values
    reindexed: float  # |sum over r and configurations - Y| / S (Eq. 10)
    uneven: float  # largest relative difference of a configuration's number of paths from psi_r / Lambda^r


def lemma_1(net: SharedWeights, w: Tensor, x: Tensor) -> Lemma1:
    """Check the output for one input x, (d,), as a sum over configurations of the weights w, (Lambda,), with the ReLUs' gates."""
    Y, gates = net.forward(w, x[None])
    by_path, by_configuration, size, uneven, products = 0.0, 0.0, 0.0, 0.0, w.new_ones(1)
    for r in range(1, net.p + 1):
        paths = net.paths(r)
        active = gates[0, paths.layers, paths.units].prod(1)  # A
        product = w[paths.configurations].prod(1)
        by_path += float((x[paths.inputs] * active * product).sum())
        size += float((x[paths.inputs] * product).abs().sum())
        which, count = net.configuration(paths), net.Lambda**r
        inner = x.new_zeros(count).index_add(0, which, x[paths.inputs] * active)  # sum over j of x A
        products = (w[:, None] * products).flatten()  # of every configuration: a later layer's number counts for more
        by_configuration += float(inner @ products)
        times = which.bincount(minlength=count) * (count / net.psi(r))
        uneven = max(uneven, float((times - 1).abs().max()))
    return Lemma1(abs(by_path - float(Y)) / size, abs(by_configuration - float(Y)) / size, uneven)


@dataclass(frozen=True)
class Lemma2:
    """``E[xi^2] / (psi_r / Lambda^r)^2`` over all lengths and configurations. Eq. 13 has it in [1/d, 1]."""

    smallest: float
    largest: float
    sampled: float  # largest difference, in standard errors, of a Monte Carlo mean from the exact one
    opposite: float  # the smallest one if all inputs are one variable, every second one with the other sign


def lemma_2(net: SharedWeights, draws: int, generator: torch.Generator) -> Lemma2:
    """The second moment of ``xi = sum over a configuration's paths of their input``, inputs N(0, 1).

    With alpha_i paths from input i, ``E[xi^2] = ||alpha||^2``, exactly, **if the inputs are uncorrelated**; and ``sum alpha =
    psi_r / Lambda^r`` if A3 holds. Dependent inputs, which the text allows, can leave the bounds: ``opposite``.
    """
    x = torch.randn(draws, net.d, generator=generator, dtype=torch.float64)
    signs = 1 - 2 * (torch.arange(net.d, dtype=torch.float64) % 2)
    found = []
    for r in range(1, net.p + 1):
        paths = net.paths(r)
        cell = net.configuration(paths) * net.d + paths.inputs
        starts = cell.bincount(minlength=net.Lambda**r * net.d).view(-1, net.d).double()  # paths of each configuration
        alpha = starts * (net.Lambda**r / net.psi(r))  # (Lambda^r, d), rows of sum 1 under A3
        exact, squares = alpha.square().sum(1), (x @ alpha.mT).square()
        errors = squares.std(0) / draws**0.5
        off = ((squares.mean(0) - exact) / errors).abs()
        found.append((exact.min(), exact.max(), off.max(), (alpha @ signs).square().min()))
    smallest, largest, sampled, opposite = map(torch.stack, zip(*found))
    return Lemma2(float(smallest.min()), float(largest.max()), float(sampled.max()), float(opposite.min()))


@dataclass(frozen=True)
class Lemma3:
    """Deviations from ``C1 + C2 E_A[Y]``, relative to the losses, and of what E_A[Y] is."""

    absolute: float  # of E_A |Y_x - Y|, where no |Y| exceeds |Y_x|: C1 = |Y_x|, C2 = -sign(Y_x)
    hinge: float  # of E_A max(0, 1 - Y_x Y), where no Y_x Y exceeds 1: C1 = 1, C2 = -Y_x
    absolute_beyond: float  # the same two where half of the |Y| do: not 0
    hinge_beyond: float
    expectation: float  # |sum over paths of x rho^r w...w (Eq. 11) - net with every gate rho| / S
    sampled: float  # |mean of Y over the sampled gates - that| in standard errors


def lemma_3(net: SharedWeights, w: Tensor, x: Tensor, rho: float, draws: int, generator: torch.Generator) -> Lemma3:
    """Check the absolute and the hinge loss, averaged over gates that are open independently with probability rho.

    With s = sign(Y_x), ``|Y_x - Y| = |Y_x| - s Y + 2 max(0, s Y - |Y_x|)`` and
    ``max(0, 1 - Y_x Y) = 1 - Y_x Y + max(0, Y_x Y - 1)``.
    Both are affine in Y **if and only if no output exceeds the label** (the hinge never closes). C2 is negative for a positive
    label; since the distribution of Y over the inputs is symmetric, its sign does not matter. Arguments as in `lemma_1`.
    """
    gates = (torch.rand(draws, net.p, net.n, generator=generator) < rho).double()
    Y, _ = net.forward(w, x.expand(draws, -1), gates)
    mean, _ = net.forward(w, x, torch.full((net.p, net.n), rho, dtype=torch.float64))
    size, _ = net.forward(w.abs(), x.abs(), torch.ones(net.p, net.n, dtype=torch.float64))  # S: no |Y| is larger
    by_path = 0.0
    for r in range(1, net.p + 1):
        paths = net.paths(r)
        by_path += rho**r * float((x[paths.inputs] * w[paths.configurations].prod(1)).sum())
    beyond = Y.abs().median()
    return Lemma3(
        absolute=max(_absolute(Y, label) for label in (size, -size)),
        hinge=max(_hinge(Y, label) for label in (1 / size, -1 / size)),
        absolute_beyond=max(_absolute(Y, label) for label in (beyond, -beyond)),
        hinge_beyond=max(_hinge(Y, label) for label in (1 / beyond, -1 / beyond)),
        expectation=abs(by_path - float(mean)) / float(size),
        sampled=abs(float((Y.mean() - mean) / (Y.std() / draws**0.5))),
    )


def _absolute(Y: Tensor, label: Tensor) -> float:
    affine = label.abs() - label.sign() * Y.mean()
    return float(((label - Y).abs().mean() - affine).abs() / label.abs())


def _hinge(Y: Tensor, label: Tensor) -> float:
    return float(((1 - label * Y).clamp(min=0).mean() - (1 - label * Y.mean())).abs())
