"""CIFAR-100 on a small archive made in the official format."""

import hashlib
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision

from lightning_app.common.errors import UserError
from lightning_app.datamodules import CIFAR100
from lightning_app.datamodules.cifar100 import CLASSES

SIZES = {"train": 200, "test": 100}


def arrays() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    made = {}
    for split, count in SIZES.items():
        made[f"{split}_images"] = random.integers(256, size=(count, 32, 32, 3), dtype=np.uint8)
        made[f"{split}_labels"] = random.permutation(np.arange(count, dtype=np.int64) % 100)
    return made


@pytest.fixture
def official(tmp_path, monkeypatch) -> Path:
    """The folder that torchvision unpacks: two splits of one pickle each, with fine and coarse labels, and the names."""
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()

    def dump(name: str, content: dict) -> list[str]:
        (folder / name).write_bytes(pickle.dumps(content))
        return [name, hashlib.md5((folder / name).read_bytes()).hexdigest()]

    def split(name: str) -> list[list[str]]:
        images, labels = (arrays()[f"{name}_{kind}"] for kind in ("images", "labels"))
        content = {"data": images.transpose(0, 3, 1, 2).reshape(-1, 3072), "fine_labels": labels.tolist()}
        return [dump(name, content | {"coarse_labels": (labels // 5).tolist()})]

    name, checksum = dump("meta", {"fine_label_names": list(CLASSES), "coarse_label_names": ["?"] * 20})
    dataset = torchvision.datasets.CIFAR100
    monkeypatch.setattr(dataset, "train_list", split("train"))
    monkeypatch.setattr(dataset, "test_list", split("test"))
    monkeypatch.setattr(dataset, "meta", {"filename": name, "key": "fine_label_names", "md5": checksum})
    return tmp_path


def test_a_hundred_classes_in_the_order_of_their_names():
    assert len(CLASSES) == len(set(CLASSES)) == 100
    assert list(CLASSES) == sorted(CLASSES)
    assert (CLASSES[0], CLASSES[19], CLASSES[99]) == ("apple", "cattle", "worm")


def test_known_without_data():
    data = CIFAR100(root="nowhere")
    assert (data.num_classes, data.image_shape, data.flip) == (100, (3, 32, 32), True)
    assert (data.mean, data.std) == ((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761))


def test_the_official_archive(official):
    data = CIFAR100(root=str(official), batch_size=50, probe_size=100)
    data.prepare_data()
    data.setup()
    for name, expected in arrays().items():
        assert torch.equal(getattr(data.splits, name), torch.from_numpy(expected))
    assert data.splits.class_names == CLASSES
    assert (official / "cifar100" / "cache" / "train_images.npy").exists()
    images, labels = next(iter(data.train_dataloader()))
    assert images.shape == (50, 3, 32, 32) and labels.max() > 9
    labels = torch.cat([labels for _, labels in data.probe_loader()])
    assert labels.bincount(minlength=100).tolist() == [1] * 100


def test_a_user_s_own_arrays(tmp_path):
    (tmp_path / "cifar100").mkdir()
    for name, array in arrays().items():
        np.save(tmp_path / "cifar100" / f"{name}.npy", array)
    data = CIFAR100(root=str(tmp_path))
    data.setup()
    assert torch.equal(data.splits.train_labels, torch.from_numpy(arrays()["train_labels"]))


def test_none_is_a_sentence_and_cifar_10_is_none(official, tmp_path):
    (official / "cifar-100-python").rename(official / "cifar-10-batches-py")
    with pytest.raises(UserError, match=r"expected CIFAR-100 in .*cifar100, found none there .* cifar-100-python"):
        CIFAR100(root=str(tmp_path)).setup()
