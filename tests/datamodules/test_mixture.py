"""The mixture of Gaussians against its definition, and the datamodule against what a trainer asks of it."""

import math

import pytest
import torch
from torch import Tensor

from lightning_app.common.errors import UserError
from lightning_app.datamodules import GaussianMixture
from lightning_app.datamodules.base import Splits
from lightning_app.datamodules.vectors import VectorData
from lightning_app.modules.members import Arm
from tests.banks import classifier, fit


def drawn(**arguments) -> tuple[GaussianMixture, Tensor, Tensor]:
    data = GaussianMixture(**arguments)
    return data, data.splits.train_images, data.splits.train_labels


def test_sizes_of_the_paper():
    data, vectors, labels = drawn()
    assert vectors.shape == (10_000, 50) and vectors.dtype == torch.float64
    assert labels.bincount().tolist() == [1000] * 10 and data.splits.test_labels.bincount().tolist() == [200] * 10
    assert (data.num_classes, data.sample_shape, data.batch_size, data.class_names[-1]) == (10, (50,), 50, "9")
    assert data.means.shape == (10, 50)


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_features_as_another_net_left_them(kind):
    """In its precision, with its graph, and a row for each of several tokens or times."""

    class Features(VectorData):
        def load(self) -> Splits:
            samples, labels = torch.randn(40, 6, 2, dtype=kind, requires_grad=True), torch.arange(40) % 2
            return Splits(samples, labels, samples[:10], labels[:10], ("a", "b"))

    class Net(torch.nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).mean(1)

    data = Features(batch_size=20)
    trained = fit(classifier({"net": Arm(lambda: Net(2, 2))}), data=data)
    assert data.sample_shape == (6, 2) and not next(iter(data.probe_loader()))[0].requires_grad
    assert 0 < trained.metrics()["net"]["test/risk"] < 2 and data.fingerprint()


def test_classes_that_do_not_divide_the_samples_differ_by_one():
    _, _, labels = drawn(classes=3, samples=100, test_samples=3)
    assert sorted(labels.bincount().tolist()) == [33, 33, 34]


def test_around_its_mean_a_class_is_white():
    data, vectors, labels = drawn(dimensions=6, separation=3.0, samples=30_000)
    noise = vectors - data.means[labels]
    for rows in (noise, *(noise[labels == label] for label in range(3))):
        spread = 5 / len(rows) ** 0.5
        torch.testing.assert_close(rows.mean(0), torch.zeros(6).double(), rtol=0, atol=spread)
        torch.testing.assert_close(rows.T @ rows / len(rows), torch.eye(6).double(), rtol=0, atol=2 * spread)


def test_means_are_normal_with_the_separation_as_deviation():
    means = GaussianMixture(classes=100, dimensions=200, separation=0.7).means
    assert float(means.mean()) == pytest.approx(0, abs=5 * 0.7 / means.numel() ** 0.5)
    assert float(means.std()) == pytest.approx(0.7, rel=5 / (2 * means.numel()) ** 0.5)
    apart = torch.pdist(means).square().mean().sqrt()
    assert float(apart) == pytest.approx(0.7 * (2 * 200) ** 0.5, rel=0.02)


def test_separation_moves_the_means_and_nothing_else():
    one, near, _ = drawn(separation=0.35)
    other, far, labels = drawn(separation=1.4)
    torch.testing.assert_close(other.means, 4 * one.means, rtol=1e-15, atol=0)
    torch.testing.assert_close(far - other.means[labels], near - one.means[labels], rtol=0, atol=1e-13)


def test_two_classes_have_the_error_that_theory_gives():
    """The best classifier of two Gaussians errs with probability Phi(-distance / 2)."""
    data, vectors, labels = drawn(classes=2, dimensions=3, separation=0.5, samples=40_000)
    nearest = torch.cdist(vectors, data.means).argmin(1)
    best = 0.5 * math.erfc(float((data.means[0] - data.means[1]).norm()) / 2 / 2**0.5)
    assert 0.05 < best < 0.45
    assert float((nearest != labels).double().mean()) == pytest.approx(best, abs=4 * (best / 40_000) ** 0.5)


def test_fewer_samples_are_the_first_of_more():
    _, few, labels = drawn(samples=137)
    _, many, others = drawn(samples=1000)
    assert torch.equal(many[:137], few) and torch.equal(others[:137], labels)


def test_everything_is_a_function_of_the_seed():
    torch.manual_seed(0)
    one = GaussianMixture(seed=3).fingerprint()
    torch.manual_seed(1)
    before = torch.get_rng_state()
    assert GaussianMixture(seed=3).fingerprint() == one != GaussianMixture(seed=4).fingerprint()
    assert torch.equal(torch.get_rng_state(), before)


def test_means_training_and_test_samples_are_independent():
    data = GaussianMixture(classes=50, dimensions=40, separation=0.0, samples=50, test_samples=50)
    rows = [data.splits.train_images, data.splits.test_images, GaussianMixture(classes=50, dimensions=40).means]
    for one, other in ((0, 1), (0, 2), (1, 2)):
        overlap = float((rows[one] * rows[other]).mean())
        assert abs(overlap) < 5 / rows[0].numel() ** 0.5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"classes": 1}, "classes of GaussianMixture must be at least 2, got 1"),
        ({"dimensions": 0}, "dimensions of GaussianMixture must be at least 1, got 0"),
        ({"separation": -0.1}, "finite and not negative, got -0.1"),
        ({"separation": float("inf")}, "finite and not negative, got inf"),
        ({"separation": float("nan")}, "finite and not negative, got nan"),
        ({"samples": 9}, "^samples of GaussianMixture must be at least 10, got 9"),
        ({"test_samples": 0}, "test_samples of GaussianMixture must be at least 10, got 0"),
        ({"seed": -1}, "seed of GaussianMixture must be at least 0, got -1"),
    ],
)
def test_what_makes_no_mixture(arguments, message):
    with pytest.raises(UserError, match=message):
        GaussianMixture(**arguments).setup()


@pytest.mark.parametrize(("precision", "dtype"), [("64-true", torch.float64), ("32-true", torch.float32)])
def test_vectors_of_integers_are_served_in_the_trainers_precision(precision, dtype):
    class Bits(VectorData):
        def load(self) -> Splits:
            bits, labels = torch.randint(2, (8, 5)), torch.arange(8) % 3
            return Splits(bits, labels, bits, labels, ("a", "b", "c"))

    data = Bits(batch_size=4)
    module = fit(classifier(net=lambda: torch.nn.Linear(5, 3)), 1, data, precision=precision)
    ((vectors, _),) = data.probe_loader()
    assert vectors.dtype == dtype and math.isfinite(module.metrics()["net"]["test/risk"])
