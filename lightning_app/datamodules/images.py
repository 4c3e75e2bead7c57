"""The datamodule under all image sets: a subclass says where the pixels come from, everything else is here."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, ClassVar, TypeVar

import numpy as np
import pytorch_lightning as pl
import torch
from torch import Tensor
from typing_extensions import override

from lightning_app.common.errors import UserError
from lightning_app.datamodules.loaders import EpochLoader, EvalLoader, Streams
from lightning_app.datamodules.resident import ResidentImages
from lightning_app.datamodules.trained_on import Share, TrainedOn, digest

__all__ = ["ImageData", "Splits", "stratified_rows"]

T = TypeVar("T")


@dataclass(frozen=True)
class Splits:
    """A dataset as it comes from its source, on the CPU.

    Images may be anything that has their `shape` and gives such a tensor for ``images[rows]`` and ``images[:]``: files, for
    example, of which only the rows that are asked for are decoded.
    """

    train_images: Tensor  # (N, H, W, C) uint8
    train_labels: Tensor  # (N,) int64 in [0, len(class_names))
    test_images: Tensor  # (M, H, W, C) uint8
    test_labels: Tensor  # (M,) int64
    class_names: tuple[str, ...]


class ImageData(pl.LightningDataModule, ABC):
    """Serves a small image set from device memory; order and augmentation are a pure function of (seed, epoch, step).

    A subclass implements `load`. Batches are ``(images, labels)``: float32 (B, C, H, W), normalised as
    ``(x / 255 - mean) / std``, and int64 (B,), both already on the trainer's device (the CPU without a trainer). If the
    LightningModule has an attribute ``data_seeds: tuple[int, ...]``, a training batch is ``{seed: (images, labels)}``
    with one independent order and augmentation stream for each seed; otherwise it is the one of seed 0.

    A strategy with an attribute ``shards_batches = False`` gives every rank the whole batches; any other one gives
    rank r of w the rows r, r + w, ... of each global batch. If w does not divide a batch, the ranks' shares differ by
    one sample.

    Args:
        root: folder of all datasets.
        batch_size: samples in a global training batch, over all ranks.
        eval_batch_size: the same for evaluation and for the probe. None takes 50 a rank on a CPU, which stays in its cache
            (1.5 times as fast an image as 125, measured on two shared cores), and 125 elsewhere.
        augment: flip and crop training images at random.
        padding: zero pixels on each side before a random crop back to the image size.
        flip: mirror with probability 1/2 when augmenting. None takes what suits the dataset.
        val_size: images set aside from the training images for validation, stratified by class.
        split_seed: decides which images are set aside, kept by `train_limit`, and in the probe.
        probe_size: number of training images in the probe (at most all of them), stratified by class.
        drop_last: leave out the last, smaller training batch of an epoch.
        train_limit: train on only so many images, stratified by class; for trying things out.
        test_limit: evaluate on only so many test images, stratified by class; for trying things out.
        evaluate_train: evaluate on the un-augmented training images too.
        mean: of each channel (or one for all), in units of [0, 1]. None takes the training images' own.
        std: likewise, over all their pixels.
        channels_last: batches in that memory format. None as the model has it.
        compile: gather and normalise in one kernel of torch.compile; the same numbers, faster after some seconds.
    """

    # Facts of a dataset are attributes of its class: as defaults of arguments, a configuration that names one dataset on
    # top of another would carry the first one's over.
    FLIP: ClassVar[bool] = True  # does a mirror image still show the same class?
    MEAN: ClassVar[tuple[float, ...]] = (0.0,)  # of each channel, or one for all, over the training images in [0, 1]
    STD: ClassVar[tuple[float, ...]] = (1.0,)

    def __init__(
        self,
        root: str = "data",
        batch_size: int = 128,
        eval_batch_size: int | None = None,
        augment: bool = True,
        padding: int = 4,
        flip: bool | None = None,
        val_size: int = 0,
        split_seed: int = 0,
        probe_size: int = 1000,
        drop_last: bool = False,
        train_limit: int | None = None,
        test_limit: int | None = None,
        evaluate_train: bool = True,
        mean: tuple[float, ...] | None = None,
        std: tuple[float, ...] | None = None,
        channels_last: bool | None = None,
        compile: bool = False,
    ) -> None:
        super().__init__()
        self.root = root
        self.batch_size = _at_least(1, batch_size=batch_size)
        self.eval_batch_size = None if eval_batch_size is None else _at_least(1, eval_batch_size=eval_batch_size)
        self.augment = augment
        self.padding = _at_least(0, padding=padding)
        self.flip = self.FLIP if flip is None else flip
        self.val_size = _at_least(0, val_size=val_size)
        self.split_seed = _at_least(0, split_seed=split_seed)
        self.probe_size = _at_least(1, probe_size=probe_size)
        self.drop_last = drop_last
        self.train_limit = None if train_limit is None else _at_least(1, train_limit=train_limit)
        self.test_limit = None if test_limit is None else _at_least(1, test_limit=test_limit)
        self.evaluate_train = evaluate_train
        self.mean, self.std = tuple(mean or self.MEAN), tuple(std or self.STD)
        self.channels_last = channels_last
        self.compile = compile
        self._resident: dict[str, ResidentImages] = {}
        self._digests: dict[str, str] = {}  # of a split's samples, since they were put on the device

    @abstractmethod
    def load(self) -> Splits:
        """Read the dataset from its source. Called once."""

    # -- what is in the data ------------------------------------------------------------------------------------------

    @cached_property
    def splits(self) -> Splits:
        """The dataset as its source gave it, read at the first use."""
        return self.load()

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.splits.class_names

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(C, H, W) of a batch's images."""
        height, width, channels = self.splits.train_images.shape[1:]
        return channels, height, width

    @property
    def eval_splits(self) -> tuple[str, ...]:
        """Names of the loaders of `val_dataloader`, in their order."""
        return ("train",) * self.evaluate_train + ("val",) * (self.val_size > 0) + ("test",)

    def fingerprint(self) -> str:
        """16 hex digits of the SHA-256 of all images and labels as the source gave them, with their shapes."""
        arrays = (getattr(self.splits, f"{split}_{kind}")[:] for split in ("train", "test") for kind in _KINDS)
        return digest(*arrays)

    def trained_on(self) -> dict[str, Any]:
        """What is on the device, as plain values: a `TrainedOn` for the checkpoint."""
        return asdict(self._trained_on(self._resident))

    def check_trained_on(self, saved: Mapping[str, Any]) -> None:
        """Refuse to go on with these data where `trained_on` said something else of those before.

        Raises:
            UserError: naming the difference.
        """
        before = TrainedOn.read(saved)
        before.check(self._trained_on(before.splits))

    def _trained_on(self, splits: Iterable[str]) -> TrainedOn:
        shape = tuple(self.splits.train_images.shape[1:])
        shares = {split: self._share_of(split) for split in splits if len(self._rows[split])}
        return TrainedOn(self.class_names, shape, self.mean, self.std, shares)

    def _share_of(self, split: str) -> Share:
        self._on_device(split)
        rows, labels = self._rows[split], getattr(self.splits, f"{_source(split)}_labels")
        own = labels[rows]
        counts = own.bincount(minlength=self.num_classes).tolist()
        return Share(len(rows), len(labels), tuple(counts), digest(rows), digest(own), self._digests[split])

    # -- Lightning's hooks --------------------------------------------------------------------------------------------

    @override
    def setup(self, stage: str | None = None) -> None:
        """Read the data and split it, once.

        Raises:
            ValueError: if the source is missing or malformed, or `val_size` leaves nothing to train on.
            UserError: if the ranks' shares of a batch would differ: their BatchNorms would see different numbers.
        """
        _ = self._rows
        world = self._share["world"]
        if stage in (None, "fit") and self.batch_size % world:
            raise UserError(
                f"data.batch_size {self.batch_size} is the batch of all processes together, and {world} cannot share it "
                f"equally: choose a multiple of {world}, or --trainer.strategy seeds, which shares out nets instead."
            )

    @override
    def train_dataloader(self) -> EpochLoader | Streams:
        """One stream of batches, or one for each of the LightningModule's ``data_seeds``, side by side."""
        seeds = getattr(self.trainer and self.trainer.lightning_module, "data_seeds", None)
        return self._epoch_loader(0) if seeds is None else Streams({seed: self._epoch_loader(seed) for seed in seeds})

    @override
    def val_dataloader(self) -> list[EvalLoader]:
        """One loader for each of `eval_splits`."""
        return [self._eval_loader(split) for split in self.eval_splits]

    @override
    def test_dataloader(self) -> EvalLoader:
        return self._eval_loader("test")

    @override
    def transfer_batch_to_device(self, batch: T, device: torch.device, dataloader_idx: int) -> T:
        """Batches are born on the device."""
        return batch

    def probe_loader(self) -> EvalLoader:
        """The fixed, un-augmented training images that measures use; the same batches on every rank."""
        train = self._on_device("train")
        rows = stratified_rows(train.labels.cpu(), min(self.probe_size, len(train)), self.split_seed, _PROBE)
        return EvalLoader(train, self.eval_batch_size or self._at_once, rows)

    # -- parts --------------------------------------------------------------------------------------------------------

    @cached_property
    def _rows(self) -> dict[str, Tensor]:
        """Which of the source's images are trained on, and which are for validation and test; each ascending."""
        labels = self.splits.train_labels
        if self.val_size >= len(labels):
            raise UserError(
                f"val_size must leave some of the {len(labels)} training images to train on, got {self.val_size}: "
                "choose a smaller one."
            )
        val = stratified_rows(labels, self.val_size, self.split_seed, _VAL)
        train = torch.ones(len(labels), dtype=torch.bool).index_fill_(0, val, False).nonzero().flatten()
        if self.train_limit is not None and self.train_limit < len(train):
            train = train[stratified_rows(labels[train], self.train_limit, self.split_seed, _LIMIT)]
        test_labels = self.splits.test_labels
        size = len(test_labels) if self.test_limit is None else min(self.test_limit, len(test_labels))
        return {"train": train, "val": val, "test": stratified_rows(test_labels, size, self.split_seed, _TEST)}

    @property
    def _device(self) -> torch.device:
        return self.trainer.strategy.root_device if self.trainer else torch.device("cpu")

    @property
    def _at_once(self) -> int:
        """So many samples, where nobody says how many."""
        return 50 if self._device.type == "cpu" else 125

    @property
    def _layout(self) -> bool:
        """channels_last? The model has decided in its `setup`, before the first image is put on the device."""
        if self.channels_last is not None:
            return self.channels_last
        return bool(getattr(self.trainer and self.trainer.lightning_module, "channels_last", False))

    @property
    def _share(self) -> dict[str, int]:
        """Our share of each global batch."""
        if self.trainer is None or not getattr(self.trainer.strategy, "shards_batches", True):
            return {"rank": 0, "world": 1}
        return {"rank": self.trainer.global_rank, "world": self.trainer.world_size}

    def _on_device(self, split: str) -> ResidentImages:
        """A split's images on the trainer's device, put there at the first use, and again for a model of another layout."""
        resident = self._resident.get(split)
        if resident is None or (resident.device, resident.channels_last) != (self._device, self._layout):
            resident = self._resident[split] = self._put_on_device(split)
        return resident

    def of_split(self, split: str) -> tuple[Tensor, Tensor]:
        """A split's samples as the source gave them, and labels (m,) int64."""
        samples, labels = (getattr(self.splits, f"{_source(split)}_{kind}") for kind in _KINDS)
        rows = self._rows[split] if len(self._rows[split]) < len(labels) else slice(None)  # a slice copies nothing
        return samples[rows], labels[rows]

    def _put_on_device(self, split: str) -> ResidentImages:
        images, labels = self.of_split(split)
        self._digests[split] = digest(images)
        augment = self.augment and split == "train"
        return ResidentImages(
            images,
            labels,
            _per_channel(self.image_shape[0], mean=self.mean),
            _per_channel(self.image_shape[0], std=self.std),
            padding=self.padding if augment else 0,
            flip=self.flip and augment,
            channels_last=self._layout,
            compile=self.compile,
            device=self._device,
        )

    def _epoch_loader(self, seed: int) -> EpochLoader:
        return EpochLoader(
            self._on_device("train"),
            self.batch_size,
            seed,
            augment=self.augment,
            drop_last=self.drop_last,
            in_flight=self._batches_in_flight,
            **self._share,
        )

    def _eval_loader(self, split: str) -> EvalLoader:
        size = self.eval_batch_size or self._at_once * self._share["world"]
        return EvalLoader(self._on_device(split), size, **self._share)

    def _batches_in_flight(self) -> int:
        """1 while a training step runs, else 0."""
        if self.trainer is None:
            return 0
        batches = self.trainer.fit_loop.epoch_loop.batch_progress.current
        return batches.ready - batches.processed


_KINDS = ("images", "labels")
_VAL, _LIMIT, _PROBE, _TEST, TEST_SPLIT = range(5)  # independent streams of split_seed


def stratified_rows(labels: Tensor, size: int, seed: int, stream: int = 0) -> Tensor:
    """`size` rows drawn at random with every class in proportion to its number, ascending.

    Each class is shuffled, its k-th of n samples gets the rank (k + 1/2) / n, and the `size` lowest ranks win. So a
    smaller draw is part of a larger one, and the proportion is exact up to rounding.

    Args:
        labels: (N,) int64, >= 0.
        size: 0..N.
        seed: non-negative.
        stream: non-negative; draws from different streams of one seed are independent.

    >>> labels = torch.tensor([0, 0, 0, 0, 1, 1])
    >>> labels[stratified_rows(labels, 3, seed=0)].tolist()
    [0, 0, 1]
    """
    (state,) = np.random.SeedSequence(seed, spawn_key=(stream,)).generate_state(1).tolist()
    shuffled = torch.randperm(len(labels), generator=torch.Generator().manual_seed(state))
    by_class = shuffled[labels[shuffled].argsort(stable=True)]
    counts = labels.bincount()
    before = counts.cumsum(0) - counts  # samples in earlier classes
    of = labels[by_class]
    rank = (torch.arange(len(labels)) - before[of] + 0.5).double() / counts[of]
    return by_class[rank.argsort(stable=True)[:size]].sort().values


def _source(split: str) -> str:
    """Validation images are some of the training images."""
    return "test" if split == "test" else "train"


def _at_least(minimum: int, **named: int) -> int:
    ((name, value),) = named.items()
    if value < minimum:
        raise UserError(f"{name} must be at least {minimum}, got {value}.")
    return value


def _per_channel(channels: int, **named: tuple[float, ...]) -> tuple[float, ...]:
    ((name, values),) = named.items()
    if len(values) not in (1, channels):
        raise UserError(
            f"{name} must have one value, or one for each of the {channels} channels of the images, got {len(values)}."
        )
    if name == "std" and min(values) <= 0:
        raise UserError(f"std must be positive, got {values}.")
    return values
