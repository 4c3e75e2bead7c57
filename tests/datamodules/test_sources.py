"""Every place where a data set may lie, and one message for everything that may be wrong there."""

import shutil
from pathlib import Path
from urllib.error import URLError

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image

from lightning_app.datamodules import CIFAR10, sources
from lightning_app.datamodules.torchvision_data import CIFAR10_CLASSES as CLASSES
from tests.datamodules import archives

TRAIN, TEST = 20, 10


def arrays(seed: int = 0) -> dict[str, np.ndarray]:
    """Sorted by label, as an image tree is."""
    made = archives.arrays(TRAIN, TEST, seed=seed)
    return made | {name: np.sort(labels) for name, labels in made.items() if name.endswith("labels")}


def save_arrays(root: Path, **changed) -> Path:
    folder = root / "cifar10"
    folder.mkdir()
    for name, array in (arrays() | changed).items():
        np.save(folder / f"{name}.npy", array)
    return folder


def save_tree(root: Path, suffix: str = ".png") -> Path:
    """An image tree whose listing order is that of `arrays`."""
    made = arrays()
    for split in ("train", "test"):
        for number, (image, label) in enumerate(zip(made[f"{split}_images"], made[f"{split}_labels"])):
            folder = root / "cifar10" / split / CLASSES[label]
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(folder / f"{number:04d}{suffix}")
    return root / "cifar10"


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


@pytest.fixture
def no_decoding(monkeypatch):
    """From now on nothing may be decoded: what comes, comes from the cache."""

    def forbid():
        def refuse(*_, **__):
            raise AssertionError("decoded again")

        monkeypatch.setattr(Image, "open", refuse)
        monkeypatch.setattr(torchvision.datasets.CIFAR10, "__init__", refuse)

    return forbid


def test_arrays(tmp_path, no_decoding):
    save_arrays(tmp_path)
    no_decoding()
    assert_same(read(tmp_path), arrays())
    assert not (tmp_path / "cifar10" / "cache").exists()


@pytest.mark.parametrize("suffix", [".png", ".PNG"])
def test_image_tree_and_its_cache(tmp_path, no_decoding, suffix):
    save_tree(tmp_path, suffix)
    assert_same(read(tmp_path), arrays())
    no_decoding()
    assert_same(read(tmp_path), arrays())


def test_what_is_cached_is_read_once_at_a_start(tmp_path, monkeypatch):
    """Not by `prepare_data` too: that asks only whether the cache is of these files."""
    save_tree(tmp_path)
    read(tmp_path)
    opened, real = [], sources.read_npy
    monkeypatch.setattr(sources, "read_npy", lambda file: opened.append(file.stem) or real(file))
    assert_same(read(tmp_path), arrays())
    assert sorted(opened) == sorted(sources.ARRAYS)


def test_jpeg_is_what_torchvision_s_image_folder_reads(tmp_path):
    folder = save_tree(tmp_path, ".jpg")
    peer = torchvision.datasets.ImageFolder(str(folder / "train"))
    splits = read(tmp_path)
    assert len(peer) == TRAIN
    for number, (image, label) in enumerate(peer):
        assert np.array_equal(splits.train_images[number].numpy(), np.asarray(image))
        assert splits.train_labels[number] == label


def test_a_changed_tree_is_decoded_again(tmp_path):
    folder = save_tree(tmp_path)
    read(tmp_path)
    (folder / "train" / "truck" / "0019.png").unlink()
    splits = read(tmp_path)
    assert len(splits.train_images) == TRAIN - 1
    Image.fromarray(np.zeros((32, 32, 3), np.uint8)).save(folder / "test" / "airplane" / "0000.png")
    assert read(tmp_path).test_images[0].max() == 0


def test_a_torn_cache_is_made_again(tmp_path):
    save_tree(tmp_path)
    read(tmp_path)
    cached = tmp_path / "cifar10" / "cache" / "train_images.npy"
    cached.write_bytes(cached.read_bytes()[:-100])
    assert_same(read(tmp_path), arrays())


def test_without_a_place_for_the_cache_it_still_reads(tmp_path):
    folder = save_tree(tmp_path)
    (folder / "cache").write_text("a file where the folder should be")
    with pytest.warns(UserWarning, match="cannot be kept"):
        assert_same(read(tmp_path), arrays())


def test_download_when_there_is_nothing(tmp_path, monkeypatch):
    def unpack(url, root, **_):
        save_official(Path(root), monkeypatch)

    monkeypatch.setattr(torchvision.datasets.cifar, "download_and_extract_archive", unpack)
    assert_same(read(tmp_path), arrays())


def test_order_of_places(tmp_path, monkeypatch):
    save_official(tmp_path, monkeypatch)
    folder = save_tree(tmp_path)
    (folder / "train" / "truck" / "0019.png").unlink()
    assert len(read(tmp_path).train_images) == TRAIN - 1  # the tree before the archive
    for name, array in arrays(seed=1).items():
        np.save(folder / f"{name}.npy", array)
    assert_same(read(tmp_path), arrays(seed=1))  # the arrays before the tree


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
    for way in ("no network", "train_images.npy", "train/<class>/*.png", "cifar-10-batches-py", "data.root"):
        assert way in message


def test_one_of_four_arrays_is_missing(tmp_path):
    (save_arrays(tmp_path) / "test_labels.npy").unlink()
    assert "test_labels.npy not there" in error_of(tmp_path)


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


def test_tree_with_other_classes(tmp_path):
    folder = save_tree(tmp_path)
    shutil.rmtree(folder / "train" / "truck")
    assert "the same 10 class folders" in error_of(tmp_path)
    shutil.rmtree(folder / "test")
    assert "got 9 and 0" in error_of(tmp_path)


def test_damaged_official_archive(tmp_path, monkeypatch):
    folder = save_official(tmp_path, monkeypatch)
    (folder / "data_batch_3").write_bytes(b"damaged")
    monkeypatch.setattr(torchvision.datasets.cifar, "download_and_extract_archive", offline)
    assert "the download failed" in error_of(tmp_path)
