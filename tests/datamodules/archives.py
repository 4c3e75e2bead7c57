"""Small made archives in the formats of the official ones, as torchvision unpacks or downloads them."""

import hashlib
import pickle
import struct
from pathlib import Path

import numpy as np
import scipy.io
import torchvision

from lightning_app.datamodules.torchvision_data import CIFAR10_CLASSES, CIFAR100_CLASSES

Arrays = dict[str, np.ndarray]


def arrays(train: int, test: int, size: int = 32, channels: int = 3, classes: int = 10, seed: int = 0) -> Arrays:
    """Images (N, size, size, channels) uint8, and labels that count through the classes."""
    random = np.random.default_rng(seed)
    made = {}
    for split, count in (("train", train), ("test", test)):
        made[f"{split}_images"] = random.integers(256, size=(count, size, size, channels), dtype=np.uint8)
        made[f"{split}_labels"] = np.arange(count, dtype=np.int64) % classes
    return made


def _dump(file: Path, content: dict) -> list[str]:
    file.write_bytes(pickle.dumps(content))
    return [file.name, hashlib.md5(file.read_bytes()).hexdigest()]


def _flat(made: Arrays, split: str) -> np.ndarray:
    return made[f"{split}_images"].transpose(0, 3, 1, 2).reshape(-1, 3072)


def cifar10(root: Path, made: Arrays, monkeypatch) -> None:
    """Five training batches and a test batch of pickles, with checksums to match."""
    folder, official = root / "cifar-10-batches-py", torchvision.datasets.CIFAR10
    folder.mkdir()
    parts = np.array_split(np.arange(len(made["train_labels"])), 5)
    images, labels = _flat(made, "train"), made["train_labels"]
    batches = [{"data": images[rows], "labels": labels[rows].tolist()} for rows in parts]
    train = [_dump(folder / f"data_batch_{number}", batch) for number, batch in enumerate(batches, 1)]
    test = [_dump(folder / "test_batch", {"data": _flat(made, "test"), "labels": made["test_labels"].tolist()})]
    name, checksum = _dump(folder / "batches.meta", {"label_names": list(CIFAR10_CLASSES)})
    monkeypatch.setattr(official, "train_list", train)
    monkeypatch.setattr(official, "test_list", test)
    monkeypatch.setattr(official, "meta", {"filename": name, "key": "label_names", "md5": checksum})


def cifar100(root: Path, made: Arrays, monkeypatch) -> None:
    """A pickle for each split, with fine and coarse labels, and the names."""
    folder, official = root / "cifar-100-python", torchvision.datasets.CIFAR100
    folder.mkdir()
    for split in ("train", "test"):
        labels = {"fine_labels": made[f"{split}_labels"].tolist(), "coarse_labels": [0] * len(made[f"{split}_labels"])}
        monkeypatch.setattr(official, f"{split}_list", [_dump(folder / split, {"data": _flat(made, split)} | labels)])
    content = {"fine_label_names": CIFAR100_CLASSES.split(), "coarse_label_names": ["?"] * 20}
    name, checksum = _dump(folder / "meta", content)
    monkeypatch.setattr(official, "meta", {"filename": name, "key": "fine_label_names", "md5": checksum})


def idx(raw: Path, made: Arrays) -> None:
    """MNIST's format, which Fashion-MNIST shares: big-endian sizes, then bytes."""
    raw.mkdir(parents=True)
    for split, name in (("train", "train"), ("test", "t10k")):
        images, labels = made[f"{split}_images"], made[f"{split}_labels"].astype(np.uint8)
        sizes = struct.pack(">IIII", 2051, *images.shape[:3])
        (raw / f"{name}-images-idx3-ubyte").write_bytes(sizes + images.tobytes())
        (raw / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 2049, len(labels)) + labels.tobytes())


def svhn(root: Path, made: Arrays, monkeypatch) -> None:
    """MATLAB files with images (H, W, C, N) and labels 1 to 10, where 10 is the digit 0."""
    files = {}
    for split in ("train", "test"):
        labels = made[f"{split}_labels"]
        content = {"X": np.moveaxis(made[f"{split}_images"], 0, -1), "y": np.where(labels == 0, 10, labels)[:, None]}
        scipy.io.savemat(file := root / f"{split}_32x32.mat", content)
        files[split] = ["", file.name, hashlib.md5(file.read_bytes()).hexdigest()]
    monkeypatch.setattr(torchvision.datasets.SVHN, "split_list", files)
