"""Every place where a data set may lie, and one message for everything that may be wrong there."""

import shutil
from pathlib import Path
from urllib.error import URLError

import numpy as np
import pytest
import torch
import torchvision

from lightning_app.datamodules import CIFAR10
from lightning_app.datamodules.torchvision_data import CIFAR10_CLASSES as CLASSES
from tests.datamodules import archives

TRAIN, TEST = 20, 10


def arrays(seed: int = 0) -> dict[str, np.ndarray]:
    return archives.arrays(TRAIN, TEST, seed=seed)


def save_arrays(root: Path, **changed) -> Path:
    folder = root / "cifar10"
    folder.mkdir()
    for name, array in (arrays() | changed).items():
        np.save(folder / f"{name}.npy", array)
    return folder


def save_official(root: Path, monkeypatch) -> Path:
    archives.cifar10(root, arrays(), monkeypatch)
    return root / "cifar-10-batches-py"


def read(root: Path):
    data = CIFAR10(root=str(root))
    data.prepare_data()
    data.setup()
    return data.splits


def assert_same(splits, expected) -> None:
    for name, array in expected.items():
        assert torch.equal(getattr(splits, name), torch.from_numpy(array)), name
    assert splits.class_names == CLASSES


def test_arrays(tmp_path):
    save_arrays(tmp_path)
    assert_same(read(tmp_path), arrays())


def test_download_when_there_is_nothing(tmp_path, monkeypatch):
    def unpack(url, root, **_):
        save_official(Path(root), monkeypatch)

    monkeypatch.setattr(torchvision.datasets.cifar, "download_and_extract_archive", unpack)
    assert_same(read(tmp_path), arrays())


def test_what_is_there_is_not_downloaded(tmp_path, monkeypatch):
    save_official(tmp_path, monkeypatch)
    monkeypatch.setattr(torchvision.datasets.cifar, "download_and_extract_archive", offline)
    assert_same(read(tmp_path), arrays())
    save_arrays(tmp_path, **arrays(seed=1))
    assert_same(read(tmp_path), arrays(seed=1))  # the arrays before the archive


def error_of(root: Path) -> str:
    with pytest.raises(ValueError) as caught:
        read(root)
    message = str(caught.value)
    assert message.endswith(".") and "\n" not in message and ". " not in message, message
    return message


def offline(*_, **__):
    raise URLError("no network")


def test_no_data_and_no_network(tmp_path, monkeypatch):
    monkeypatch.setattr(torchvision.datasets.cifar, "download_and_extract_archive", offline)
    message = error_of(tmp_path)
    for way in ("no network", "train_images.npy", "cifar-10-batches-py", "data.root"):
        assert way in message


def test_one_of_four_arrays_is_missing(tmp_path):
    (save_arrays(tmp_path) / "test_labels.npy").unlink()
    assert "found no test_labels.npy" in error_of(tmp_path)


@pytest.mark.parametrize("damage", ["truncated", "empty", "text", "several", "pickled"])
def test_a_file_that_is_no_array(tmp_path, damage):
    file = save_arrays(tmp_path) / "test_images.npy"
    if damage == "several":
        np.savez(tmp_path / "several.npz", **arrays())
        shutil.move(tmp_path / "several.npz", file)
    elif damage == "pickled":
        np.save(file, np.array([object()] * TEST, dtype=object), allow_pickle=True)
    else:
        file.write_bytes({"truncated": file.read_bytes()[:-1], "empty": b"", "text": b"not an array"}[damage])
    assert f"{file} is not a whole, plain .npy array" in error_of(tmp_path)


IMAGES = np.zeros((TRAIN, 32, 32, 3), np.uint8)


@pytest.mark.parametrize(
    ("changed", "expected", "got"),
    [
        ({"train_images": IMAGES.astype(np.float32)}, "uint8 of shape (N, 32, 32, 3)", "float32"),
        ({"train_images": IMAGES.transpose(0, 3, 1, 2)}, "uint8 of shape (N, 32, 32, 3)", f"({TRAIN}, 3, 32, 32)"),
        ({"train_images": IMAGES[:, :28, :28]}, "uint8 of shape (N, 32, 32, 3)", f"({TRAIN}, 28, 28, 3)"),
        ({"train_images": IMAGES[0]}, "uint8 of shape (N, 32, 32, 3)", "(32, 32, 3)"),
        ({"train_labels": np.zeros(TRAIN, np.float64)}, f"int64 of shape ({TRAIN},)", "float64"),
        ({"train_labels": np.zeros(TRAIN - 1, np.int64)}, f"int64 of shape ({TRAIN},)", f"({TRAIN - 1},)"),
        ({"train_labels": np.zeros((TRAIN, 1), np.int64)}, f"int64 of shape ({TRAIN},)", f"({TRAIN}, 1)"),
        ({"test_labels": np.arange(1, 11)}, "0..9", "1..10"),
        ({"test_labels": np.arange(-1, 9)}, "0..9", "-1..8"),
        ({"test_images": IMAGES[:0], "test_labels": np.zeros(0, np.int64)}, "0..9", "no labels"),
    ],
)
def test_wrong_arrays(tmp_path, changed, expected, got):
    save_arrays(tmp_path, **changed)
    message = error_of(tmp_path)
    assert expected in message and got in message


def test_damaged_official_archive(tmp_path, monkeypatch):
    folder = save_official(tmp_path, monkeypatch)
    (folder / "data_batch_3").write_bytes(b"damaged")
    assert "cifar-10-batches-py cannot be read" in error_of(tmp_path)
