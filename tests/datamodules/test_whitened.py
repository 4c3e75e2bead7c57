"""Whitened digits: the whitening against its definition, the datamodule against the loaders that it is made of."""

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor

from lightning_app.common.errors import UserError
from lightning_app.datamodules import Digits, WhitenedDigits, WhitenedMNIST, Whitening
from tests.datamodules import archives
from tests.helpers import trainer


def samples(m: int = 200, p: int = 7) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    mixing = torch.randn(p, p, generator=generator, dtype=torch.float64)
    return torch.randn(m, p, generator=generator, dtype=torch.float64) @ mixing + torch.arange(p)


def close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def test_mean_0_and_covariance_1():
    x = samples()
    z = Whitening.of(x, 4)(x)
    assert z.shape == (200, 4) and z.dtype == torch.float64
    close(z.mean(0), torch.zeros(4, dtype=torch.float64))
    close(z.T @ z / 200, torch.eye(4, dtype=torch.float64))


def test_components_are_the_leading_ones_in_descending_order():
    x = samples()
    u, s, _ = torch.linalg.svd(x - x.mean(0), full_matrices=False)  # an independent witness: no covariance
    z = Whitening.of(x, 3)(x)
    overlap = u[:, :3].T @ z / 200**0.5
    close(overlap.abs(), torch.eye(3, dtype=torch.float64))
    assert (s.diff() < 0).all()


def test_the_largest_loading_is_positive():
    for x in (samples(), -samples()):
        scale = Whitening.of(x, 7).scale
        assert (scale.gather(1, scale.abs().argmax(1, keepdim=True)) > 0).all()


def test_invariant_to_shift_and_scale_of_all_samples():
    x = samples()
    close(Whitening.of(3 * x - 5, 4)(3 * x - 5), Whitening.of(x, 4)(x))


def test_bytes_are_whitened_as_numbers():
    x = torch.randint(256, (5000, 5), dtype=torch.uint8)  # more than one piece
    close(Whitening.of(x, 5)(x), Whitening.of(x.double(), 5)(x.double()))


def test_what_cannot_be_whitened():
    x = samples()
    with pytest.raises(UserError, match=r"expected at most 3 components .* at most 3"):
        Whitening.of(x[:4], 4)  # centring takes one
    with pytest.raises(UserError, match="expected at most 7 components"):
        Whitening.of(torch.cat([x, x[:, :1] + x[:, 1:2]], 1), 8)
    with pytest.raises(UserError, match="expected at most 0 components"):
        Whitening.of(torch.ones(10, 3), 1)
    with pytest.raises(UserError, match=r"components of .* must be at least 1, got 0"):
        WhitenedDigits(components=0)


def test_full_batch_is_every_sample_once():
    data = WhitenedDigits()
    loader = data.train_dataloader()
    ((x, labels),) = loader
    assert (len(loader), data.batch_size, len(labels)) == (1, 1437, 1437)
    vectors, classes = data.vectors()
    order = x[:, 0].argsort()
    close(x[order].double(), vectors[vectors[:, 0].argsort()].float().double())
    assert torch.equal(labels.bincount(), classes.bincount())


def test_what_classifier_and_callbacks_ask():
    data = WhitenedDigits(components=6, probe_size=50, test_limit=40, val_size=30)
    data.setup()
    assert (data.num_classes, data.sample_shape, data.eval_splits) == (10, (6,), ("train", "val", "test"))
    assert [sum(len(labels) for _, labels in loader) for loader in data.val_dataloader()] == [1407, 30, 40]
    assert sum(len(labels) for _, labels in data.probe_loader()) == 50
    assert all(x.shape[1:] == (6,) and x.dtype == torch.float32 for x, _ in data.test_dataloader())
    small = WhitenedDigits(batch_size=100, train_limit=250)
    assert [len(labels) for _, labels in small.train_dataloader()] == [100, 100, 50] and small.batch_size == 100


def test_only_what_is_trained_on_is_white():
    data = WhitenedDigits(train_limit=500, val_size=100)
    vectors, _ = data.vectors()
    close(vectors.T @ vectors / 500, torch.eye(10, dtype=torch.float64))
    for split, size in (("val", 100), ("test", 360)):
        others, _ = data.vectors(split)
        covariance = others.T @ others / size
        assert others.shape == (size, 10) and 1e-3 < (covariance - torch.eye(10)).norm() < 3


def test_held_out_digits_go_through_the_training_digits_map():
    data = WhitenedDigits()
    pixels = data.splits.test_images.flatten(1)
    close(data.vectors("test")[0], (pixels.double() - data.whitening.mean) @ data.whitening.scale.T)


def test_digits_are_scikit_learns_with_the_split_of_digits():
    splits = WhitenedDigits().splits
    digits = load_digits()
    pixels = torch.cat([splits.train_images, splits.test_images]).flatten(1).long()
    assert sorted(pixels.tolist()) == sorted(digits.data.astype(int).tolist())
    assert torch.equal(splits.test_labels, Digits().splits.test_labels)


@pytest.mark.parametrize(("precision", "dtype"), [("64-true", torch.float64), ("32-true", torch.float32)])
def test_vectors_come_in_the_trainers_precision(precision, dtype):
    data = WhitenedDigits()
    for _ in range(2):  # the second trainer finds what the first one put there
        data.trainer = trainer(precision=precision)
        data.setup()
        assert {x.dtype for loader in (data.train_dataloader(), data.probe_loader()) for x, _ in loader} == {dtype}
        precision, dtype = "32-true", torch.float32


def test_mnist_is_read_as_its_authors_wrote_it(tmp_path):
    made = archives.arrays(train=90, test=20, size=28, channels=1)
    archives.idx(tmp_path / "MNIST" / "raw", made)
    data = WhitenedMNIST(str(tmp_path), components=4)
    data.prepare_data()  # downloads nothing: it is there
    data.setup()
    assert all(torch.equal(getattr(data.splits, name), torch.from_numpy(array)) for name, array in made.items())
    assert (data.num_classes, data.batch_size) == (10, 90)
    x, labels = data.vectors()
    close(x.T @ x / 90, torch.eye(4, dtype=torch.float64))
    assert labels.bincount().tolist() == [9] * 10


def test_missing_mnist_is_an_error_and_never_other_digits(tmp_path):
    with pytest.raises(UserError, match=r"expected MNIST in .*mnist, found none there .* MNIST/raw"):
        WhitenedMNIST(str(tmp_path)).vectors()


@pytest.mark.slow
def test_the_real_mnist(mnist_root):
    x, labels = WhitenedMNIST(str(mnist_root)).vectors()
    assert x.shape == (60_000, 10)
    close(x.T @ x / len(x), torch.eye(10, dtype=torch.float64))
    targets = torch.nn.functional.one_hot(labels).double()
    M = torch.eye(10, dtype=torch.float64) - targets.T @ x / len(x)
    singular = torch.linalg.svdvals(M)  # of 10,000 of these images: 1.186 to 0.796, condition number 1.489
    assert float(singular[0]) == pytest.approx(1.186, rel=0.05)
    assert float(singular[0] / singular[-1]) == pytest.approx(1.489, rel=0.05)
    assert torch.linalg.matrix_rank(targets.T @ x / len(x), rtol=1e-10) == 9  # rows of a one-hot sum to 1, x is centred
