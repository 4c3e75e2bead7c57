"""Moments against sums written out, and the floor they set."""

import pytest
import torch

from lightning_app.theory.li_et_al.linear import Moments


def samples(m: int = 40, d: int = 3, c: int = 3, dtype: torch.dtype = torch.float64):
    generator = torch.Generator().manual_seed(3)
    x = (
        torch.randn(m, d, generator=generator, dtype=torch.float64) @ torch.randn(d, d, generator=generator).double()
        + 1
    )
    return x.to(dtype), torch.randn(m, c, generator=generator, dtype=torch.float64).to(dtype)


def test_moments_are_means_of_outer_products():
    x, y = samples(c=2)
    moments = Moments.of(x, y)
    torch.testing.assert_close(moments.xx, sum(torch.outer(a, a) for a in x) / 40, rtol=0, atol=1e-14)
    torch.testing.assert_close(moments.yx, sum(torch.outer(b, a) for a, b in zip(x, y)) / 40, rtol=0, atol=1e-14)
    assert moments.yy == pytest.approx(sum(float(b @ b) for b in y) / 40, rel=1e-14)


def test_the_optimum_is_that_of_least_squares():
    x, y = samples(c=2)
    fit = torch.linalg.lstsq(x, y).solution
    assert Moments.of(x, y).optimum() == pytest.approx(float((x @ fit - y).square().sum()) / 80, rel=1e-12)


def test_the_optimum_of_degenerate_inputs():
    """A dimension that never varies from zero explains nothing and harms nothing."""
    x, y = samples()
    flat = torch.cat([x, torch.zeros(len(x), 1)], 1)
    assert Moments.of(flat, y).optimum() == pytest.approx(Moments.of(x, y).optimum(), rel=1e-12)
    assert Moments.of(x, 2 * x).optimum() == pytest.approx(0, abs=1e-12)
