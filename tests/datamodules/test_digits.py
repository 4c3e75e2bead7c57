"""Scikit-learn's digits as a small stand-in for CIFAR-10."""

import pytest
import torch
from sklearn.datasets import load_digits

from lightning_app.datamodules import Digits


def test_split_is_fixed_disjoint_and_stratified():
    splits = Digits().splits
    assert splits.train_images.shape == (1437, 32, 32, 3)
    assert splits.test_images.shape == (360, 32, 32, 3)
    digits = torch.from_numpy(load_digits().target)
    assert torch.equal(splits.train_labels.bincount() + splits.test_labels.bincount(), digits.bincount())
    assert (splits.test_labels.bincount() - digits.bincount() * 360 / 1797).abs().max() <= 1
    assert Digits().fingerprint() == "0d11ce7581e30c88"


def test_enlarging_keeps_the_grey_levels():
    splits = Digits().splits
    assert splits.train_images.min() == 0 and splits.train_images.max() > 240
    assert torch.equal(splits.train_images[..., 0], splits.train_images[..., 2])
    mean = torch.cat([splits.train_images, splits.test_images]).double().mean() / 255
    assert abs(mean - load_digits().images.mean() / 16) < 0.002


@pytest.mark.parametrize("size", [8, 16, 32])
def test_mean_and_std_are_the_default_ones(size):
    data = Digits(image_size=size)
    pixels = data.splits.train_images.double() / 255
    assert data.sample_shape == (3, size, size)
    assert abs(pixels.mean() - data.mean[0]) < 1e-4
    assert abs(pixels.std(correction=0) - data.std[0]) < 5e-5


def test_unenlarged_digits_are_the_originals():
    images = Digits(image_size=8).splits.test_images[..., 0] * (16 / 255)
    digits = torch.from_numpy(load_digits().images)
    assert all((digits - image).abs().amax((1, 2)).min() < 0.04 for image in images)


def test_digits_are_cropped_and_not_mirrored():
    train = Digits()._on_device("train")
    assert (train.padding, train.flip) == (4, False)
    assert Digits(flip=True)._on_device("train").flip
