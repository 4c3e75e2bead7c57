"""Shared fixtures. The real CIFAR-10 is used where its arrays lie (SKIPSCOPE_DATA, ./data or ../shared) and skipped elsewhere."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True, scope="session")
def quiet_machine():
    """One thread: OpenMP barriers with a descheduled worker make two threads up to ten times slower on a busy machine."""
    os.environ["WANDB_MODE"] = "offline"
    os.environ["WANDB_SILENT"] = "true"
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def cifar10_root(tmp_path_factory) -> Path:
    """A data root with the real CIFAR-10 arrays, unpacked from the folder beside the checkout when need be."""
    for root in filter(None, (os.environ.get("SKIPSCOPE_DATA"), ROOT / "data")):
        if (Path(root) / "cifar10" / "train_images.npy").exists():
            return Path(root)
    unpack = ROOT.parent / "shared" / "datasets" / "unpack.py"
    if not unpack.exists():
        pytest.skip("no CIFAR-10 arrays here: set SKIPSCOPE_DATA to a folder that has cifar10/train_images.npy")
    root = tmp_path_factory.mktemp("data")
    subprocess.run([sys.executable, str(unpack), "--only", "cifar10", "--to", str(root)], check=True)
    return root
