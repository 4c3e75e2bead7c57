"""Samples per second of our augmented CIFAR-10 batches and of what users run today, side by side.

    python -m benchmarks.data --root data

The peers read with a DataLoader: torchvision's CIFAR10 with RandomCrop(32, 4), RandomHorizontalFlip, ToTensor and Normalize
on PIL images, with 0, 1 and 2 workers that stay alive between epochs; the same transforms of torchvision's v2 on a tensor a
sample; and v2 that crops and flips a sample at a time and normalises whole batches. v2 on a whole batch would be faster
and is no peer: it draws one crop and one flip for all images of the batch.

Ours reads a whole epoch a round, so that the draws for the epoch are part of the time; a peer reads ``--images`` random
images, because an epoch takes it seconds. All read from all 50,000 images.
"""

import argparse
import itertools
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import PIL
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, RandomSampler, default_collate
from torchvision.transforms import v2

from benchmarks.harness import Comparison, Results, Row, interleave, options_of, run
from benchmarks.loops import BATCH, Pictures
from lightning_app.datamodules import CIFAR10
from lightning_app.datamodules.loaders import EpochLoader

PIL_PEERS = {f"torchvision, {workers} workers": workers for workers in (0, 1, 2)}
REFERENCE = "torchvision, 0 workers"
V2, V2_BATCHES = "torchvision v2 on tensors", "torchvision v2, normalised by batch"
SAMPLE_PEERS = (REFERENCE, V2, V2_BATCHES)
OURS = {
    "eager": {},
    "eager, channels_last": {"channels_last": True},
    "compiled": {"compile": True},
    "compiled, channels_last": {"compile": True, "channels_last": True},
}
GOALS = {"eager": 15, "eager, channels_last": 15, "compiled": 40, "compiled, channels_last": 40}  # x the best with PIL
BEST = "compiled, channels_last"
parser = partial(options_of, __doc__, images=6400, compile=True)


def measure(options: argparse.Namespace) -> Results:
    found = Results(f"CIFAR-10, batch {BATCH}; {options.images:,} images a round for peers, an epoch for us")
    found.more["pillow"] = PIL.__version__
    loaders = peers(cifar10(options.root), options.images)
    chosen = {name: switches for name, switches in OURS.items() if options.compile or "compile" not in switches}
    loaders |= {name: cifar10(options.root, **switches).train_dataloader() for name, switches in chosen.items()}
    contenders = {name: rate(loader) for name, loader in loaders.items()}
    speeds = found.add("batches", interleave(contenders, options.rounds, unit="images/s"), REFERENCE)
    found.rows += speed_rows(speeds)
    return found


def speed_rows(speeds: Comparison) -> list[Row]:
    """Each goal against the peer with PIL that is the fastest in its median."""
    best = max(PIL_PEERS, key=speeds.median)
    chosen = [name for name in OURS if name in speeds.values]
    against = [(name, best, GOALS[name]) for name in chosen]
    against += [(chosen[-1], peer, 75 if (chosen[-1], peer) == (BEST, REFERENCE) else None) for peer in SAMPLE_PEERS]
    return [Row(f"batches, {name}", peer, speeds.ratio(name, peer), goal, "more") for name, peer, goal in against]


class Tensors(Pictures):
    """As tensors (3, 32, 32) uint8, each through transforms of its own draw."""

    def __init__(self, data: CIFAR10, transform: Callable[[Tensor], Tensor]) -> None:
        super().__init__(data)
        self.images = data.splits.train_images.permute(0, 3, 1, 2).contiguous()
        self.transform = transform

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.transform(self.images[index]), self.targets[index]


def peers(data: CIFAR10, images: int) -> dict[str, Iterable]:
    augment = v2.Compose([v2.RandomCrop(32, padding=4), v2.RandomHorizontalFlip()])
    normalise = v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.Normalize(data.mean, data.std)])

    def collate(samples: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
        pictures, labels = default_collate(samples)
        return normalise(pictures), labels

    pictures = Pictures(data)
    return {name: reader(pictures, images, num_workers=workers) for name, workers in PIL_PEERS.items()} | {
        V2: reader(Tensors(data, v2.Compose([augment, normalise])), images),
        V2_BATCHES: reader(Tensors(data, augment), images, collate_fn=collate),
    }


def reader(dataset: Dataset, images: int, num_workers: int = 0, **options: Callable) -> DataLoader:
    sampler = RandomSampler(dataset, num_samples=images)
    options |= {"num_workers": num_workers, "persistent_workers": num_workers > 0}
    return DataLoader(dataset, BATCH, sampler=sampler, **options)


def cifar10(root: Path, **options: bool) -> CIFAR10:
    data = CIFAR10(root=str(root), batch_size=BATCH, **options)
    data.prepare_data()
    data.setup()
    return data


def rate(loader: Iterable) -> Callable[[], float]:
    """Reads the loader to its end, one epoch further each time, and returns images per second."""
    epochs = itertools.count(1)

    def read() -> float:
        if isinstance(loader, EpochLoader):
            loader.set_epoch(next(epochs))
        start = time.perf_counter()
        images = sum(len(labels) for _, labels in loader)
        return images / (time.perf_counter() - start)

    return read


if __name__ == "__main__":
    run(measure, parser())
