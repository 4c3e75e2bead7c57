"""Lemmas 1 to 3 of Littwin & Wolf on small nets: paths against forward passes, bounds at both ends, and what breaks them."""

import itertools
import math

import pytest
import torch

from lightning_app.theory.littwin_wolf.unravelled import (
    by_input,
    evenly_shared,
    lemma_1,
    lemma_2,
    lemma_3,
    unevenly_shared,
)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=generator(seed), dtype=torch.float64)


NETS = {
    "even": evenly_shared(4, 4, 3, 2, generator()),
    "three weights": evenly_shared(3, 6, 4, 3, generator()),
    "Lambda = n": evenly_shared(3, 4, 3, 4, generator()),
    "by input": by_input(3, 4, 4, 2, generator()),
    "by input, Lambda = d": by_input(3, 4, 2, 2, generator()),
    "p = 2": evenly_shared(2, 2, 2, 2, generator()),
    "drawn": unevenly_shared(4, 4, 3, 2, generator()),
}
EVEN = [name for name in NETS if name != "drawn"]


def test_forward_is_equation_8():
    net, w, x = NETS["even"], normal(2), normal(5, 3, seed=1)
    N = torch.relu(x @ w[net.numbers[0]])
    for numbers in net.numbers[1:]:
        N = torch.relu(N @ w[numbers]) + N
    Y, gates = net.forward(w, x)
    torch.testing.assert_close(Y, N.sum(1))
    assert gates.shape == (5, 4, 4)


@pytest.mark.parametrize("name", NETS)
def test_paths_are_all_there_and_distinct(name):
    net = NETS[name]
    for r in range(1, net.p + 1):
        paths = net.paths(r)
        assert len(paths.inputs) == net.psi(r) == net.d * math.comb(net.p - 1, r - 1) * net.n**r
        rows = torch.cat([paths.inputs[:, None], paths.layers, paths.units], 1)
        assert len(rows.unique(dim=0)) == len(paths.inputs)
        assert bool((paths.layers[:, 0] == 0).all())  # the first layer is never skipped
        assert bool((paths.layers.diff(dim=1) > 0).all())
        before = torch.cat([paths.inputs[:, None], paths.units[:, :-1]], 1)
        for k, i in itertools.product(range(r), range(0, len(paths.inputs), 7)):
            number = net.numbers[paths.layers[i, k]][before[i, k], paths.units[i, k]]
            assert int(paths.configurations[i, k]) == int(number)


@pytest.mark.parametrize("name", NETS)
def test_lemma_1(name):
    net = NETS[name]
    for seed in range(5):
        found = lemma_1(net, normal(net.Lambda, seed=seed), normal(net.d, seed=seed + 100))
        assert max(found.paths, found.reindexed) < 1e-14
        assert (found.uneven == 0) == (name in EVEN)


@pytest.mark.parametrize("name", EVEN)
def test_lemma_2_in_its_bounds(name):
    net = NETS[name]
    found = lemma_2(net, 2000, generator(3))
    assert 1 / net.d - 1e-12 <= found.smallest <= found.largest <= 1 + 1e-12
    assert 0 < found.sampled < 5  # a mean over draws is not exact


def test_lemma_2_reaches_both_ends():
    even, whole = lemma_2(NETS["even"], 10, generator()), lemma_2(NETS["by input, Lambda = d"], 10, generator())
    assert even.smallest == even.largest == pytest.approx(1 / 3, rel=1e-14)
    assert whole.smallest == whole.largest == 1
    between = lemma_2(NETS["by input"], 10, generator())
    assert between.smallest == between.largest == pytest.approx(1 / 2)  # two of four inputs each


def test_lemma_2_without_its_assumptions():
    assert lemma_2(NETS["drawn"], 10, generator()).smallest < 1 / 3  # A3 on average only
    assert lemma_2(NETS["three weights"], 10, generator()).opposite == 0  # inputs that cancel


@pytest.mark.parametrize("name", NETS)
def test_lemma_3(name):
    net = NETS[name]
    for seed in range(5):
        found = lemma_3(net, normal(net.Lambda, seed=seed), normal(net.d, seed=seed + 50), 0.6, 1000, generator(seed))
        assert max(found.absolute, found.hinge, found.expectation) < 1e-13
        assert min(found.absolute_beyond, found.hinge_beyond) > 1e-3
        assert found.sampled < 5
