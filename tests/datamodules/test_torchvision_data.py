"""Every set that torchvision downloads, from a made archive in its format, without the network."""

import gzip
import hashlib

import numpy as np
import pytest
import torch
import torchvision

from lightning_app.common.errors import UserError
from lightning_app.datamodules import CIFAR10, CIFAR100, SVHN, FashionMNIST
from lightning_app.modules import Arm
from lightning_app.networks import CifarResNet, SimplifiedNet
from tests.datamodules import archives
from tests.helpers import classifier, fit

GREY = {"size": 28, "channels": 1}
SETS = [  # class, shape and number of classes, writer of its archive, folder of the user's arrays
    (CIFAR10, {}, archives.cifar10, "cifar10"),
    (CIFAR100, {"classes": 100}, archives.cifar100, "cifar100"),
    (FashionMNIST, GREY, lambda root, made, _: archives.idx(root / "FashionMNIST" / "raw", made), "fashion_mnist"),
    (SVHN, {}, archives.svhn, "svhn"),
]
EVERY = pytest.mark.parametrize(("kind", "shape", "write", "folder"), SETS, ids=[kind.__name__ for kind, *_ in SETS])


def test_a_home_folder_that_the_shell_left_as_it_is(monkeypatch):
    monkeypatch.setenv("HOME", "/home/someone")
    assert CIFAR10(root="~/data").root == "/home/someone/data"  # from a YAML file, or of --data.root=~/data


@EVERY
def test_the_official_archive(kind, shape, write, folder, tmp_path, monkeypatch):
    made = archives.arrays(train=200, test=100, **shape)
    write(tmp_path, made, monkeypatch)
    data = kind(root=str(tmp_path), batch_size=50, probe_size=100)
    data.prepare_data()  # downloads nothing: it is there
    data.setup()
    for name, expected in made.items():
        assert torch.equal(getattr(data.splits, name), torch.from_numpy(expected)), name
    size, channels = shape.get("size", 32), shape.get("channels", 3)
    images, _ = next(iter(data.train_dataloader()))
    assert images.shape == (50, channels, size, size) == (50, *data.sample_shape)
    classes = shape.get("classes", 10)
    assert (data.num_classes, len(set(data.class_names))) == (classes, classes)
    probe = torch.cat([labels for _, labels in data.probe_loader()])
    assert probe.bincount(minlength=classes).tolist() == [100 // classes] * classes


@EVERY
def test_known_before_anything_is_downloaded(kind, shape, write, folder):
    data = kind(root="nowhere")
    channels, size = shape.get("channels", 3), shape.get("size", 32)
    assert (data.num_classes, data.sample_shape) == (shape.get("classes", 10), (channels, size, size))
    assert len(data.mean) == len(data.std) == channels and all(0 < value < 1 for value in (*data.mean, *data.std))
    assert data.flip is (kind is not SVHN)  # digits are not mirrored


@EVERY
def test_a_user_s_own_arrays(kind, shape, write, folder, tmp_path):
    made = archives.arrays(train=10, test=5, **shape)
    (tmp_path / folder).mkdir()
    for name, array in made.items():
        np.save(tmp_path / folder / f"{name}.npy", array)
    data = kind(root=str(tmp_path))
    data.setup()
    assert torch.equal(data.splits.train_images, torch.from_numpy(made["train_images"]))


@pytest.mark.parametrize("packed", [1, 4])
def test_what_is_packed_is_unpacked(packed, tmp_path, monkeypatch):
    """After a download that was interrupted, or by hand on a machine without network."""
    made, raw = archives.arrays(train=20, test=10, **GREY), tmp_path / "FashionMNIST" / "raw"
    archives.idx(raw, made)
    resources = []
    for file in sorted(raw.iterdir()):
        (archive := raw / f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
        resources.append((archive.name, hashlib.md5(archive.read_bytes()).hexdigest()))
    for name, _ in resources[:packed]:
        (raw / name).with_suffix("").unlink()
    monkeypatch.setattr(torchvision.datasets.FashionMNIST, "resources", resources)
    data = FashionMNIST(root=str(tmp_path))
    data.prepare_data()
    assert torch.equal(data.splits.train_images, torch.from_numpy(made["train_images"]))


def test_a_hundred_classes_in_the_order_of_their_names():
    names = CIFAR100.SOURCE.class_names
    assert len(names) == len(set(names)) == 100 and list(names) == sorted(names)
    assert (names[0], names[19], names[99]) == ("apple", "cattle", "worm")


def test_another_set_s_files_are_not_taken_for_its_own(tmp_path, monkeypatch):
    archives.cifar10(tmp_path, archives.arrays(train=20, test=10), monkeypatch)
    with pytest.raises(UserError, match=r"expected CIFAR-100 in .*cifar100, found none there .* cifar-100-python"):
        CIFAR100(root=str(tmp_path)).setup()


@pytest.mark.parametrize("net", [SimplifiedNet, CifarResNet])
def test_grey_images_need_a_net_of_one_channel(net, tmp_path):
    archives.idx(tmp_path / "FashionMNIST" / "raw", archives.arrays(train=40, test=10, **GREY))
    with pytest.raises(
        UserError, match=r"shape \(1, 28, 28\) .* \(set the net's in_channels, here 3, to 1, as the images"
    ):
        fit(classifier({"net": Arm(net=lambda: net(8, width=4))}), epochs=1, data=FashionMNIST(root=str(tmp_path)))
    grey = classifier({"net": Arm(net=lambda: net(8, width=4, in_channels=1))})
    fit(grey, epochs=1, data=FashionMNIST(root=str(tmp_path), batch_size=20))
    assert grey.metrics()["net"]["test/risk"] > 0
