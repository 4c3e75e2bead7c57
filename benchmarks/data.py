"""Samples per second of our augmented CIFAR-10 batches and of what users run today, side by side.

    python -m benchmarks.data --root data

The peer is torchvision's CIFAR10 with RandomCrop(32, 4), RandomHorizontalFlip, ToTensor and Normalize on PIL images,
behind a DataLoader with 0, 1 and 2 workers that stay alive between epochs. Ours reads a whole epoch a round, so that
the draws for the epoch are part of the time; the peer reads ``--images`` random images, because an epoch takes it
seconds. Both read from all 50,000 images.
"""

import argparse
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import PIL
import torch
import torchvision
import torchvision.transforms as T
from PIL import Image
from torch.utils.data import DataLoader, Dataset, RandomSampler

from benchmarks.timing import Comparison, interleave, machine, save
from lightning_app.datamodules import CIFAR10
from lightning_app.datamodules.loaders import EpochLoader

BATCH = 128
PEERS = {f"torchvision, {workers} workers": workers for workers in (0, 1, 2)}
REFERENCE = "torchvision, 0 workers"
OURS = {
    "eager": {},
    "eager, channels_last": {"channels_last": True},
    "compiled": {"compile": True},
    "compiled, channels_last": {"compile": True, "channels_last": True},
}
GOALS = {"eager": 15, "eager, channels_last": 15, "compiled": 40, "compiled, channels_last": 40}


class Pictures(Dataset):
    """The arrays, served as `torchvision.datasets.CIFAR10.__getitem__` does."""

    def __init__(self, data: CIFAR10) -> None:
        self.data = data.splits.train_images.numpy()
        self.targets = data.splits.train_labels.tolist()
        augmentation = [T.RandomCrop(32, padding=4), T.RandomHorizontalFlip()]
        self.transform = T.Compose([*augmentation, T.ToTensor(), T.Normalize(data.mean, data.std)])

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int):
        img, target = self.data[index], self.targets[index]
        img = Image.fromarray(img)
        return self.transform(img), target


def main() -> None:
    arguments = parse()
    torch.set_num_threads(arguments.threads)
    contenders = {name: rate(loader) for name, loader in peers(arguments.root, arguments.images).items()}
    contenders |= {name: rate(loader) for name, loader in ours(arguments.root).items()}
    comparison = interleave(contenders, arguments.rounds, unit="images/s")
    print(comparison.table(REFERENCE))
    print(*goals(comparison), sep="\n")
    versions = {"torchvision": torchvision.__version__, "pillow": PIL.__version__}
    print(", ".join(f"{key} {value}" for key, value in (machine() | versions).items()))
    if arguments.json:
        save(arguments.json, comparison, REFERENCE, versions=versions, batch_size=BATCH, images=arguments.images)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default="data", help="folder with cifar10/train_images.npy or another source")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--images", type=int, default=6400, help="images the peers read in a round")
    parser.add_argument("--threads", type=int, default=1, help="of torch, in this process")
    parser.add_argument("--json", type=Path, help="write all values there")
    return parser.parse_args()


def peers(root: str, images: int) -> dict[str, DataLoader]:
    pictures = Pictures(cifar10(root))
    sampler = RandomSampler(pictures, num_samples=images)
    return {
        name: DataLoader(pictures, BATCH, sampler=sampler, num_workers=workers, persistent_workers=workers > 0)
        for name, workers in PEERS.items()
    }


def ours(root: str) -> dict[str, EpochLoader]:
    return {name: cifar10(root, **options).train_dataloader() for name, options in OURS.items()}


def cifar10(root: str, **options: bool) -> CIFAR10:
    data = CIFAR10(root=root, batch_size=BATCH, **options)
    data.prepare_data()
    data.setup()
    return data


def rate(loader: Iterable) -> Callable[[], float]:
    """Reads the loader to its end, one epoch further each time, and returns images per second."""
    epoch = 0

    def read() -> float:
        nonlocal epoch
        epoch += 1
        if isinstance(loader, EpochLoader):
            loader.set_epoch(epoch)
        start = time.perf_counter()
        images = sum(len(labels) for _, labels in loader)
        return images / (time.perf_counter() - start)

    return read


def goals(comparison: Comparison) -> list[str]:
    """Each goal against the peer that is the fastest in its median."""
    best = max(PEERS, key=comparison.median)
    lines = []
    for name, goal in GOALS.items():
        ratio = comparison.ratio(name, best).median
        lines.append(f"{name}: {ratio:.1f} x {best}, goal {goal}: {'met' if ratio >= goal else 'MISSED'}")
    return lines


if __name__ == "__main__":
    main()
