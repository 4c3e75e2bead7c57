"""Shared fixtures. The real CIFAR-10 is used where its arrays lie (SKIPSCOPE_DATA, ./data or ../shared) and skipped elsewhere."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent


TOGETHER = ("golden", "deploy")  # folders whose files read the same long run


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """For `--dist loadgroup`: a file's tests, or a folder's, on one worker for their fixtures; slow ones first.

    Two workers that begin with what takes long end at the same time, and the fixtures of a file are made once.
    """
    groups = {item: _group(item) for item in items}
    slow = {groups[item] for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: groups[item] not in slow)
    for item in items:
        item.add_marker(pytest.mark.xdist_group(groups[item]))


def _group(item: pytest.Item) -> str:
    folder = item.path.parent.name
    return folder if folder in TOGETHER else item.path.relative_to(ROOT).with_suffix("").as_posix()


@pytest.fixture(autouse=True, scope="session")
def quiet_machine():
    """One thread: OpenMP barriers with a descheduled worker make two threads up to ten times slower on a busy machine."""
    os.environ["WANDB_MODE"] = "offline"
    os.environ["WANDB_SILENT"] = "true"
    torch.set_num_threads(1)


def real_data(name: str, sign: str, folder: Path) -> Path:
    """A data root with a real data set, unpacked from the folder beside the checkout when need be.

    Args:
        name: of the data set, as the unpacker knows it.
        sign: file or folder below the root that says it is there.
        folder: empty, to unpack into.
    """
    for root in filter(None, (os.environ.get("SKIPSCOPE_DATA"), ROOT / "data")):
        if (Path(root) / sign).exists():
            return Path(root)
    unpack = ROOT.parent / "shared" / "datasets" / "unpack.py"
    if not unpack.exists():
        pytest.skip(f"no {name} here: set SKIPSCOPE_DATA to a folder that has {sign}")
    subprocess.run([sys.executable, str(unpack), "--only", name, "--to", str(folder)], check=True)
    return folder


@pytest.fixture(scope="session")
def cifar10_root(tmp_path_factory) -> Path:
    return real_data("cifar10", "cifar10/train_images.npy", tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="session")
def mnist_root(tmp_path_factory) -> Path:
    return real_data("mnist", "MNIST/raw", tmp_path_factory.mktemp("data"))
