"""Training loops that benchmarks time: ours through Lightning, what a user would write, and what public repositories have."""

import argparse
import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytorch_lightning as pl
import torch
import torch.nn.functional as F
import torchvision.transforms as T
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from benchmarks.harness import DEVICE, Batches, processor_time, synchronize, ticks
from lightning_app.common.numbers import plural
from lightning_app.common.processes import keep_freed_memory
from lightning_app.datamodules import CIFAR10
from lightning_app.modules import Arm, ImageClassifier
from lightning_app.networks import CifarResNet, SimplifiedNet

Epoch = Callable[[], float]  # trains for one epoch and returns its seconds

KINDS: dict[str, type[nn.Module]] = {"simplified": SimplifiedNet, "full": CifarResNet}
ARMS = {"plain": False, "residual": True}
RATE, MOMENTUM, DECAY, BATCH = 0.01, 0.9, 1e-4, 128
EPOCH = 50_000  # images


def sgd(parameters: Any, decay: float = 0.0) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=RATE, momentum=MOMENTUM, weight_decay=decay)


def named(nets: int) -> str:
    return plural(nets, "net")


def bank(
    seeds: int | list[int] = 1, depth: int = 20, kind: str = "simplified", arms: bool = False, **options: Any
) -> ImageClassifier:
    """Residual nets, or with ``arms`` as many plain and as many residual ones, as `fit` builds them.

    Args:
        seeds: how many nets in each arm, or which.
        options: of `ImageClassifier`.
    """
    chosen = ARMS if arms else {"residual": True}
    made = {name: Arm(net=lambda own=own: KINDS[kind](depth, residual=own)) for name, own in chosen.items()}
    return ImageClassifier(sgd, arms=made, seeds=seeds, weight_decay=DECAY, **options)


def training_step(net: nn.Module, optimizer: torch.optim.Optimizer, images: Tensor, labels: Tensor) -> None:
    """As a user would write it."""
    optimizer.zero_grad()
    F.cross_entropy(net(images), labels).backward()
    optimizer.step()


def trainer(device: str = "cpu", **options: Any) -> pl.Trainer:
    """Lightning's, without anything that writes or prints."""
    off = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    quiet: dict[str, Any] = dict.fromkeys(off, False)
    return pl.Trainer(accelerator="gpu" if device == "cuda" else "cpu", devices=1, **quiet | options)


def curvlinops_of(net: nn.Module, batches: Batches) -> Any:
    """Its Hessian of the mean cross-entropy."""
    import curvlinops  # here: a machine that only trains has none

    loss, weights = nn.CrossEntropyLoss(), list(net.parameters())
    return curvlinops.HessianLinearOperator(net, loss, weights, batches, check_deterministic=False)


def images_of(options: argparse.Namespace) -> CIFAR10:
    """The first training images, as many as ``--images`` says."""
    return CIFAR10(root=str(options.root), train_limit=options.images, batch_size=BATCH)


def load_cifar10(root: Path, count: int, batch: int, device: str = DEVICE) -> Batches:
    """The first images, normalised by their own moments and channels_last, with their labels, in batches.

    Raises:
        UserError: where there are no arrays.
    """
    (data := CIFAR10(root=str(root))).setup()
    images = data.splits.train_images[:count].permute(0, 3, 1, 2).to(device).float() / 255
    images = (images - images.mean((0, 2, 3), keepdim=True)) / images.std((0, 2, 3), keepdim=True)
    images = images.contiguous(memory_format=torch.channels_last)
    return list(zip(images.split(batch), data.splits.train_labels[:count].long().to(device).split(batch)))


class Resident(CIFAR10):
    """The data module without a trainer, which would tell it on which device the images are."""

    device = torch.device("cpu")

    @property
    def _device(self) -> torch.device:
        return torch.empty(0, device=self.device).device  # with its number, as the images have it


def epochs_of(data: CIFAR10) -> Iterator[Iterator[tuple[Tensor, Tensor]]]:
    """Epochs of augmented batches on the data's device."""
    data.setup()
    loader = data.train_dataloader()
    for epoch in itertools.count():
        loader.set_epoch(epoch)
        yield iter(loader)


class EpochClock(pl.Callback):
    """Seconds by that clock from the start of the last epoch's first hook to the end of its last batch."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.started = self.clock()

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        synchronize()
        self.seconds = self.clock() - self.started


def through_lightning(
    module: ImageClassifier,
    data: CIFAR10,
    precision: Any = "32-true",
    device: str = "cpu",
    evaluate: bool = False,
    clock: Callable[[], float] = ticks,
) -> Epoch:
    """An epoch as `fit` runs it, without measures and, unless ``evaluate``, without evaluation.

    As there, memory that is freed stays in the process, from now on. On a GPU it is the second epoch of a fit: in the first
    a graph is captured.
    """
    keep_freed_memory()

    def epoch() -> float:
        timer = EpochClock(clock)
        epochs, evaluated = 2 if device == "cuda" else 1, 1.0 if evaluate else 0
        options = {"max_epochs": epochs, "limit_val_batches": evaluated, "precision": precision, "callbacks": [timer]}
        trainer(device, **options).fit(module, datamodule=data)
        return timer.seconds

    return epoch


def by_hand(depth: int, data: CIFAR10, device: str = "cpu", bf16: bool = False) -> Epoch:
    """One net in the loop that a user would write: batch, risk, gradient, penalty, step, running sums."""
    net = SimplifiedNet(depth, residual=True).to(device)
    optimizer = sgd(net.parameters())
    epochs = epochs_of(data)

    def epoch() -> None:
        risk_sum, wrong = torch.zeros((), device=device, dtype=torch.float64), torch.zeros((), device=device)
        for images, labels in next(epochs):
            optimizer.zero_grad()
            with torch.autocast(device, torch.bfloat16, enabled=bf16):
                logits = net(images)
                risk = F.cross_entropy(logits, labels)
            risk.backward()
            with torch.no_grad():
                for w in net.parameters():
                    w.grad.add_(w, alpha=DECAY)
                risk_sum += risk.double() * len(labels)
                wrong += (logits.argmax(1) != labels).sum()
            optimizer.step()
        assert risk_sum.isfinite()

    return processor_time(epoch)


class Pictures(Dataset):
    """The arrays, served as `torchvision.datasets.CIFAR10.__getitem__` does."""

    def __init__(self, data: CIFAR10, split: Literal["train", "test"] = "train") -> None:
        limit = data.train_limit if split == "train" else data.test_limit
        self.data = getattr(data.splits, f"{split}_images")[:limit].numpy()  # (N, 32, 32, 3) uint8
        self.targets = getattr(data.splits, f"{split}_labels")[:limit].tolist()
        augmentation = [T.RandomCrop(32, padding=4), T.RandomHorizontalFlip()] if split == "train" else []
        self.transform = T.Compose([*augmentation, T.ToTensor(), T.Normalize(data.mean, data.std)])

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.transform(Image.fromarray(self.data[index])), self.targets[index]


def public_script(
    depth: int, data: CIFAR10, device: str, bf16: bool = False, workers: int = 4, evaluate: bool = False
) -> Epoch:
    """One net as most public scripts train it: PIL images, a DataLoader, eager float32, two ``.item()`` a step."""
    options = {"num_workers": workers, "pin_memory": device == "cuda", "persistent_workers": workers > 0}
    loader = DataLoader(Pictures(data), BATCH, shuffle=True, **options)
    tests = DataLoader(Pictures(data, "test"), BATCH, **options) if evaluate else []
    net = SimplifiedNet(depth, residual=True).to(device)
    optimizer = sgd(net.parameters(), DECAY)

    def epoch() -> float:
        started, seen, right = time.perf_counter(), 0.0, 0
        net.train()
        for images, labels in loader:
            images, labels = images.to(device), labels.to(device)
            with torch.autocast(device, torch.bfloat16, enabled=bf16):
                logits = net(images)
                risk = F.cross_entropy(logits, labels)
            optimizer.zero_grad()
            risk.backward()
            optimizer.step()
            seen += risk.item() + (logits.argmax(1) == labels).float().mean().item()
        net.eval()
        with torch.no_grad():
            for images, labels in tests:
                right += (net(images.to(device)).argmax(1) == labels.to(device)).sum().item()
        synchronize()
        return time.perf_counter() - started

    return epoch
