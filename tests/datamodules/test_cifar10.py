"""The real CIFAR-10."""

import pytest
import torch

from lightning_app.datamodules import CIFAR10

pytestmark = pytest.mark.cifar10


@pytest.fixture(scope="module")
def data(cifar10_root) -> CIFAR10:
    data = CIFAR10(root=str(cifar10_root), train_limit=2000)
    data.prepare_data()
    data.setup()
    return data


def test_sizes_and_classes(data):
    splits = data.splits
    assert (len(splits.train_images), len(splits.test_images)) == (50_000, 10_000)
    assert splits.train_labels.bincount().tolist() == [5000] * 10
    assert splits.test_labels.bincount().tolist() == [1000] * 10
    assert (data.num_classes, data.sample_shape) == (10, (3, 32, 32))


def test_mean_and_std_are_the_default_ones(data):
    pixels = data.splits.train_images.flatten(0, 2)
    mean, std = torch.zeros(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    for channel in range(3):
        values = pixels[:, channel].double() / 255
        mean[channel], std[channel] = values.mean(), values.std(correction=0)
    assert mean.tolist() == pytest.approx(data.mean, abs=5e-5)
    assert std.tolist() == pytest.approx(data.std, abs=5e-5)


def test_batches(data):
    images, labels = next(iter(data.train_dataloader()))
    assert images.shape == (128, 3, 32, 32) and labels.shape == (128,)
    assert images.min() > -2.5 and images.max() < 2.8
    assert sum(len(labels) for _, labels in data.test_dataloader()) == 10_000
    labels = torch.cat([labels for _, labels in data.probe_loader()])
    assert labels.bincount().tolist() == [100] * 10


def test_fingerprint(data):
    assert data.fingerprint() == "109241bc7d4cf339"
