"""What the benchmarks of measures share: their options, one thread, and batches of CIFAR-10."""

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.timing import machine

__all__ = ["Batches", "begin", "load", "options_of"]

Batches = list[tuple[Tensor, Tensor]]


def options_of(what: str | None, rounds: int, images: int) -> argparse.ArgumentParser:
    """--root, --rounds, --images and --json.

    Args:
        what: is timed, for --help.
        rounds: by default.
        images: likewise.
    """
    parser = argparse.ArgumentParser(description=what, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path("data"), help="folder with cifar10/train_images.npy")
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--images", type=int, default=images)
    parser.add_argument("--json", type=Path, help="folder for the values, a file or two a net")
    return parser


def begin(parser: argparse.ArgumentParser) -> tuple[argparse.Namespace, str]:
    """The options, and the device to use. Says what machine this is."""
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(machine())
    return options, "cuda" if torch.cuda.is_available() else "cpu"


def load(root: Path, count: int, batch: int, device: str) -> Batches:
    images = torch.from_numpy(np.load(root / "cifar10" / "train_images.npy", mmap_mode="r")[:count].copy())
    images = (images.permute(0, 3, 1, 2) if images.shape[-1] == 3 else images).to(device).float() / 255
    images = ((images - images.mean((0, 2, 3), keepdim=True)) / images.std((0, 2, 3), keepdim=True)).contiguous(
        memory_format=torch.channels_last
    )
    labels = torch.from_numpy(np.load(root / "cifar10" / "train_labels.npy")[:count]).long().to(device)
    return list(zip(images.split(batch), labels.split(batch)))
