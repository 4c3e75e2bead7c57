"""Moments against sums written out, the floor they set, and the inputs they refuse."""

import pytest
import torch

from lightning_app.common.errors import UserError
from lightning_app.theory import Moments


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


@pytest.mark.parametrize(
    ("x", "y", "said"),
    [
        ((5, 3), (4, 3), r"same m >= 1 samples, got \(5, 3\) and \(4, 3\)"),
        ((5, 3), (5,), "class numbers are not"),
        ((0, 3), (0, 3), "m >= 1"),
    ],
)
def test_samples_that_do_not_fit(x, y, said):
    with pytest.raises(UserError, match=said):
        Moments.of(torch.ones(x), torch.ones(y))


EYE = torch.eye(2, dtype=torch.float64)


@pytest.mark.parametrize(
    ("xx", "yx", "yy", "said"),
    [
        (torch.ones(2, 3).double(), EYE, 2.0, r"E\[xx\^T\] \(d, d\) and E\[yx\^T\] \(c, d\), got \(2, 3\)"),
        (EYE, torch.ones(2, 3).double(), 2.0, r"got \(2, 2\) and \(2, 3\)"),
        (EYE.float(), EYE.float(), 2.0, "float64, got torch.float32"),
        (torch.tensor([[1.0, 0.5], [0.0, 1.0]]).double(), EYE, 2.0, "is symmetric"),
        (torch.diag(torch.tensor([1.0, -0.5])).double(), EYE, 2.0, "positive semi-definite, got the eigenvalue -0.5"),
        (EYE, EYE, 1.9, "no data has these moments"),
        (torch.diag(torch.tensor([1.0, 0.0])).double(), EYE, 9.0, "no data has these moments"),
        (EYE * float("nan"), EYE, 2.0, "finite"),
    ],
)
def test_moments_that_no_data_has(xx, yx, yy, said):
    with pytest.raises(UserError, match=said):
        Moments(xx, yx, yy)
