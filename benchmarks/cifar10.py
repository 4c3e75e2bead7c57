"""Batches of CIFAR-10 for the benchmarks of measures."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lightning_app.common.errors import UserError

__all__ = ["DEVICE", "Batches", "load"]

Batches = list[tuple[Tensor, Tensor]]

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def load(root: Path, count: int, batch: int, device: str = DEVICE) -> Batches:
    """The first images, normalised by their own moments and channels_last, with their labels, in batches.

    Raises:
        UserError: where there are no arrays.
    """
    if not (file := root / "cifar10" / "train_images.npy").exists():
        raise UserError(
            f"expected CIFAR-10's arrays in {file.parent}, found none: --root names the folder that has cifar10."
        )
    images = torch.from_numpy(np.load(file, mmap_mode="r")[:count].copy())
    images = (images.permute(0, 3, 1, 2) if images.shape[-1] == 3 else images).to(device).float() / 255
    images = ((images - images.mean((0, 2, 3), keepdim=True)) / images.std((0, 2, 3), keepdim=True)).contiguous(
        memory_format=torch.channels_last
    )
    labels = torch.from_numpy(np.load(root / "cifar10" / "train_labels.npy")[:count]).long().to(device)
    return list(zip(images.split(batch), labels.split(batch)))
