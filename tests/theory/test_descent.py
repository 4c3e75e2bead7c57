"""Batched gradient descent against a loop of one net, one step and autograd at a time."""

import pytest
import torch
from torch import Tensor

from lightning_app.theory.li_et_al import descent
from lightning_app.theory.li_et_al.descent import LinearProblem, Problem, SampleProblem, descend
from lightning_app.theory.li_et_al.linear import Moments

NETS = pytest.mark.parametrize("shortcut", [False, True], ids=["plain", "shortcut"])
SIZES = pytest.mark.parametrize(("units", "n"), [(1, 1), (3, 1), (4, 2), (1, 3), (2, 4)])
MIDS = pytest.mark.parametrize("mid", ["identity", "relu", "tanh"])
ACTIVATIONS = {"identity": lambda x: x, "relu": torch.relu, "tanh": torch.tanh}
D, STEPS = 4, 3
RATES = torch.tensor(
    [0.3, 0.01, 0.1, 0.0, 0.2, 0.05], dtype=torch.float64
)  # more than are passed over the data at once


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def data(m: int = 13) -> tuple[Tensor, Tensor]:
    """Neither centred nor whitened."""
    x = torch.randn(m, D, generator=generator(), dtype=torch.float64) + 0.3
    return x, torch.roll(x, 1, 1).tanh() + 0.1


def start(units: int, n: int, runs: int = 6) -> Tensor:
    return torch.randn(runs, units, n, D, D, generator=generator(), dtype=torch.float64) / (2 * D**0.5)


def autograd_descent(
    w: Tensor, rate: float, x: Tensor, y: Tensor, shortcut: bool, mid: str
) -> tuple[list, list, list, Tensor]:
    """Losses, norms of gradients and mean norms of matrices around each step, and the last weights, of one run."""
    losses, norms, sizes = [], [], []
    for step in range(STEPS + 1):
        w = w.detach().requires_grad_()
        loss = sum(sample_loss(w, *sample, shortcut, mid) for sample in zip(x, y)) / len(x)
        (gradient,) = torch.autograd.grad(loss, w)
        losses.append(float(loss.detach()))
        norms.append(float(gradient.norm()))
        sizes.append(sum(float(matrix.detach().norm()) for matrix in w.flatten(0, 1)) / len(w.flatten(0, 1)))
        w = w - rate * gradient if step < STEPS else w
    return losses, norms, sizes, w.detach()


def sample_loss(w: Tensor, x: Tensor, y: Tensor, shortcut: bool, mid: str) -> Tensor:
    for unit in w:
        hidden = unit[0] @ x
        for matrix in unit[1:]:
            hidden = matrix @ ACTIVATIONS[mid](hidden)
        x = x + hidden if shortcut else hidden
    return (x - y).square().sum() / 2


def close(ours, theirs) -> None:
    torch.testing.assert_close(ours, torch.as_tensor(theirs, dtype=torch.float64), rtol=1e-10, atol=1e-10)


def same_as_autograd(problem: Problem, w: Tensor, x: Tensor, y: Tensor, shortcut: bool, mid: str) -> None:
    found = descend(problem, w, RATES, STEPS)
    for run, rate in enumerate(RATES):
        losses, norms, sizes, last = autograd_descent(w[run], float(rate), x, y, shortcut, mid)
        close(found.losses[run], losses)
        close(found.gradient_norms[run], norms)
        close(found.norms[run], sizes)
        close(found.weights[run], last)


@NETS
@SIZES
@MIDS
def test_samples_one_step_at_a_time(units, n, shortcut, mid):
    x, y = data()
    same_as_autograd(SampleProblem(x, y, shortcut, mid), start(units, n), x, y, shortcut, mid)


@NETS
@SIZES
def test_moments_are_samples_without_activation(units, n, shortcut):
    x, y = data()
    ours = descend(LinearProblem(Moments.of(x, y), shortcut), start(units, n), RATES, STEPS, keep=True)
    theirs = descend(SampleProblem(x, y, shortcut, "identity"), start(units, n), RATES, STEPS, keep=True)
    for field in ("losses", "norms", "gradient_norms", "weights", "path"):
        close(getattr(ours, field), getattr(theirs, field))


@NETS
def test_pieces_of_the_data_add_up(shortcut, monkeypatch):
    problem, w = SampleProblem(*data(1000), shortcut), start(3, 2)
    loss, gradient = problem.loss_and_gradient(w)
    monkeypatch.setattr(descent, "CACHED", 1)  # pieces of LEAST_PIECE samples, the last one smaller
    for ours, whole in zip(problem.loss_and_gradient(w), (loss, gradient)):
        close(ours, whole)


def quadratic(target: float = 1.0) -> LinearProblem:
    """1/2 (w - target)^2 of one matrix (w): a step of rate a makes w - target 1 - a times as large."""
    return LinearProblem(Moments.of(torch.ones(1, 1), torch.full((1, 1), target)), shortcut=False)


def scalars(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64).view(-1, 1, 1, 1, 1)


def test_a_quadratic_by_hand():
    found = descend(quadratic(), scalars(3.0, 3.0), torch.tensor([0.5, 1.0]), 2, keep=True)
    close(found.losses, [[2, 0.5, 0.125], [2, 0, 0]])
    close(found.gradient_norms, [[2, 1, 0.5], [2, 0, 0]])
    close(found.norms, [[3, 2, 1.5], [3, 1, 1]])
    close(found.path.flatten(1), found.norms)
    close(found.weights.flatten(), [1.5, 1])


def test_a_diverging_run_disturbs_nobody_and_ends():
    steps = 2000  # 1e300 is far behind |1 - 9|^2000
    found = descend(quadratic(), scalars(3.0, 3.0, 3.0), torch.tensor([0.5, 9.0, 0.25]), steps, keep=True)
    apart = descend(quadratic(), scalars(3.0, 3.0), torch.tensor([0.5, 0.25]), steps, keep=True)
    for field in ("losses", "norms", "gradient_norms", "weights", "path"):
        assert torch.equal(getattr(found, field)[[0, 2]], getattr(apart, field)), field
    end = int(found.losses[1].isfinite().sum())
    assert 100 < end < 400  # 64^t reaches the largest double, 1.8e308, at t = 170
    for numbers in (found.losses, found.norms, found.gradient_norms):
        assert numbers[1, :end].isfinite().all() and (numbers[1, end:] == torch.inf).all()
    assert found.weights[1].isnan().all() and found.path[1, end:].isnan().all()


@NETS
def test_float32_samples_are_float64_ones_up_to_rounding(shortcut):
    x, y = data(500)
    single = descend(SampleProblem(x.float(), y, shortcut), start(4, 2), RATES, STEPS)
    double = descend(SampleProblem(x, y, shortcut), start(4, 2), RATES, STEPS)
    assert single.weights.dtype == torch.float32 and single.losses.dtype == torch.float64
    torch.testing.assert_close(single.losses, double.losses, rtol=1e-5, atol=0)
