"""The datamodule under all data sets here: splits, loaders, and what a checkpoint keeps of them.

A subclass says where the samples come from (`ResidentData.load`) and how a split lies on the device (`ResidentData.to_device`);
`images.ImageData` and `vectors.VectorData` are the two kinds.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pytorch_lightning as pl
import torch
from torch import Tensor
from typing_extensions import override

from lightning_app.common.batch_plan import BatchPlan
from lightning_app.common.errors import UserError, at_least
from lightning_app.common.files import with_home
from lightning_app.datamodules.loaders import EpochLoader, EvalLoader, Resident, Streams, UngatheredBatches
from lightning_app.datamodules.trained_on import check_same_data, digest

if TYPE_CHECKING:
    from lightning_app.datamodules.pictures import Pictures


@dataclass(frozen=True)
class Splits:
    """A data set as it comes from its source, on the CPU. Image files are decoded when their rows are taken."""

    train_images: "Tensor | Pictures"  # (N, H, W, C) uint8, or vectors (N, d)
    train_labels: Tensor  # (N,) int64 in [0, len(class_names))
    test_images: "Tensor | Pictures"  # (M, ...)
    test_labels: Tensor  # (M,) int64
    class_names: tuple[str, ...]

    def __post_init__(self) -> None:
        """Raises a `UserError` for labels or samples of another kind, and for labels that name no class."""
        for split in ("train", "test"):
            samples, labels = getattr(self, f"{split}_images"), getattr(self, f"{split}_labels")
            if not isinstance(labels, Tensor) or labels.dtype != torch.int64 or labels.ndim != 1:
                raise UserError(f"{split}_labels of a data set must be a tensor (n,) of int64, got {_kind(labels)}.")
            if isinstance(samples, np.ndarray) or tuple(getattr(samples, "shape", ()))[:1] != (len(labels),):
                raise UserError(
                    f"{split}_images of a data set must be a tensor of {len(labels)} samples, one for each label, got "
                    f"{_kind(samples)}."
                )
            classes = len(self.class_names)
            if ((labels < 0) | (labels >= classes)).any():  # on a GPU it would stop training with no word about labels
                raise UserError(
                    f"{split}_labels of a data set must be from 0 to {classes - 1}, as class_names has {classes} names, got "
                    f"labels from {int(labels.min())} to {int(labels.max())}."
                )
        train, test = (tuple(samples.shape[1:]) for samples in (self.train_images, self.test_images))
        if train != test:
            raise UserError(
                f"test_images of a data set must have samples of the shape of train_images, {train}, got {test}."
            )


def _kind(given: Any) -> str:
    """Type, dtype and shape, for an error message."""
    parts = (type(given).__name__, getattr(given, "dtype", None), getattr(given, "shape", None))
    return " ".join(str(tuple(part) if isinstance(part, torch.Size) else part) for part in parts if part is not None)


class ResidentData(pl.LightningDataModule, ABC):
    """Serves a small data set from device memory; order and augmentation are a pure function of (seed, epoch, step).

    Batches are ``(samples, labels)`` on the trainer's device (the CPU without a trainer), labels int64 (B,). If the
    LightningModule asks for seeds (`use_plan`), a training batch is ``{seed: (samples, labels)}``, and each seed has an
    order and an augmentation of its own; otherwise a training batch is that of seed 0.

    With a strategy that has an attribute ``shards_batches = False`` every rank gets whole batches; with any other one rank
    r of w gets the rows r, r + w, ... of each global batch. If w does not divide a batch, the ranks' shares differ by one
    sample.

    Args:
        root: folder of all datasets; not used by those that need no file.
        batch_size: samples in a global training batch, over all ranks.
        val_size: samples set aside from the training samples for validation, stratified by class.
        split_seed: seed of the choice of samples that are set aside, kept by `train_limit`, or in the probe.
        probe_size: number of training samples in the probe (at most all of them), stratified by class.
        train_limit: train on only this many samples, stratified by class.
        test_limit: evaluate on only this many test samples, stratified by class.
        evaluate_train: also evaluate on the training samples.

    Raises:
        UserError: for sizes below their minimum.
    """

    # Options of some subclasses only.
    drop_last = False  # leave out the last, smaller training batch of an epoch
    eval_batch_size: int | None = None  # None chooses by the device

    def __init__(
        self,
        root: str = "data",
        batch_size: int = 128,
        val_size: int = 0,
        split_seed: int = 0,
        probe_size: int = 1000,
        train_limit: int | None = None,
        test_limit: int | None = None,
        evaluate_train: bool = True,
    ) -> None:
        super().__init__()
        self.root = str(with_home(root))
        who = type(self).__name__
        self.batch_size = at_least(1, who, batch_size=batch_size)
        self.val_size = at_least(0, who, val_size=val_size)
        self.split_seed = at_least(0, who, split_seed=split_seed)
        self.probe_size = at_least(1, who, probe_size=probe_size)
        self.train_limit = None if train_limit is None else at_least(1, who, train_limit=train_limit)
        self.test_limit = None if test_limit is None else at_least(1, who, test_limit=test_limit)
        self.evaluate_train = evaluate_train
        self.plan = BatchPlan()
        self._resident: dict[str, Resident] = {}
        self._digests: dict[str, str] = {}  # of a split's samples, since they were put on the device

    @abstractmethod
    def load(self) -> Splits:
        """Read the data set from its source. Called once."""

    @abstractmethod
    def to_device(self, samples: Tensor, labels: Tensor, training: bool) -> Resident:
        """A split's samples, as the source gave them, on the trainer's device; augmented if they are for training."""

    @cached_property
    def splits(self) -> Splits:
        """The data set as its source gave it, read at the first use."""
        if not isinstance(found := self.load(), Splits):
            raise UserError(f"load() of {type(self).__name__} must return Splits, got a {type(found).__name__}.")
        return found

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes by label."""
        return self.splits.class_names

    # Some sets know these two before they are read, and set them.

    @cached_property
    def num_classes(self) -> int:
        """Number of classes, whether or not each has a sample."""
        return len(self.class_names)

    @cached_property
    def sample_shape(self) -> tuple[int, ...]:
        """Shape of one sample of a batch: (C, H, W) of images, (d,) of vectors."""
        return tuple(self.splits.train_images.shape[1:])

    @property
    def eval_splits(self) -> tuple[str, ...]:
        """Names of the loaders of `val_dataloader`, in their order."""
        return ("train",) * self.evaluate_train + ("val",) * (self.val_size > 0) + ("test",)

    def fingerprint(self) -> str:
        """16 hex digits of the SHA-256 of all samples and labels as the source gave them, with their shapes."""
        found = self.splits
        return digest(found.train_images[:], found.train_labels, found.test_images[:], found.test_labels)

    def of_split(self, split: str) -> tuple[Tensor, Tensor]:
        """Samples of "train", "val" or "test" as the source gave them, and labels (m,) int64."""
        found, test = self.splits, split == "test"  # validation samples are some of the training samples
        samples, labels = (found.test_images, found.test_labels) if test else (found.train_images, found.train_labels)
        rows = self._rows[split] if len(self._rows[split]) < len(labels) else slice(None)  # a slice copies nothing
        return samples[rows], labels[rows]

    def trained_on(self) -> dict[str, Any]:
        """A description, in plain values for the checkpoint, of the data on the device (see `trained_on`)."""
        return self._described(self._resident)

    def check_trained_on(self, saved: Mapping[str, Any]) -> None:
        """Refuse to resume on other data than those that ``saved``, which `trained_on` returned, describes.

        Raises:
            UserError: naming the difference.
        """
        check_same_data(saved, self._described)

    def _described(self, splits: Iterable[str]) -> dict[str, Any]:
        shape, own = tuple(self.splits.train_images.shape[1:]), {}
        for split in splits:
            if len(rows := self._rows[split]):
                self._on_device(split)
                labels = self.splits.test_labels if split == "test" else self.splits.train_labels
                digests = {"rows": digest(rows), "labels": digest(labels[rows]), "samples": self._digests[split]}
                own[split] = {"size": len(rows), "of": len(labels), **digests}
        return {"class_names": self.class_names, "shape": shape, **self._normalisation, "splits": own}

    @property
    def _normalisation(self) -> dict[str, tuple[float, ...]]:
        """Constants that the device subtracts and divides by."""
        return {"mean": (0.0,), "std": (1.0,)}

    @override
    def setup(self, stage: str | None = None) -> None:
        """Read the labels and decide the splits; samples go to the device when a loader needs them.

        Raises:
            UserError: if the source is missing or malformed, `val_size` leaves nothing to train on, there are no test samples,
                trainer.overfit_batches is set, or the number of processes does not divide batch_size.
        """
        self.plan = BatchPlan()  # the module, whose setup follows, may have another one
        if getattr(self.trainer, "overfit_batches", 0):
            raise UserError(
                "trainer.overfit_batches would use different batches in each epoch, as the order depends on the epoch: set "
                "data.train_limit instead, and data.augment false for images."
            )
        if not len(self._rows["test"]):
            raise UserError(
                f"{type(self).__name__} has no test samples: give it some, or set test_size where it has that option."
            )
        world = self._share[1]
        if stage in (None, "fit") and self.batch_size % world:
            raise UserError(
                f"data.batch_size: expected a multiple of {world}, as {world} processes share each batch, got "
                f"{self.batch_size}: set another one, or --trainer.strategy seeds, which distributes nets instead."
            )

    def use_plan(self, plan: BatchPlan) -> None:
        """Until the next `setup`, serve the data streams that a module needs, in its memory format."""
        self.plan = plan

    @override
    def train_dataloader(self) -> EpochLoader | Streams:
        """One stream of batches, or one for each of the plan's seeds, side by side."""
        rank, world = self._share

        def in_flight() -> int:
            """1 while a training step runs, else 0."""
            if self.trainer is None:
                return 0
            batches: Any = self.trainer.fit_loop.epoch_loop.batch_progress.current  # annotated without `processed`
            return batches.ready - batches.processed

        def loader(seed: int) -> EpochLoader:
            source, size = self._on_device("train"), self.batch_size
            return EpochLoader(source, size, seed, self.drop_last, rank=rank, world=world, in_flight=in_flight)

        seeds = self.plan.seeds
        return loader(0) if seeds is None else Streams({seed: loader(seed) for seed in seeds})

    @override
    def val_dataloader(self) -> list[EvalLoader]:
        """One loader for each of `eval_splits`."""
        return [self._eval_loader(split) for split in self.eval_splits]

    @override
    def test_dataloader(self) -> EvalLoader:
        """The test samples."""
        return self._eval_loader("test")

    @override
    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Batches are made on the device: here, or where a graph is going to gather them, as far as they are read."""
        if not isinstance(batch, UngatheredBatches):
            return batch
        assert self.trainer is not None  # it trains in a graph
        return batch.mapping(self.trainer.precision_plugin.convert_input)

    def probe_loader(self) -> EvalLoader:
        """The fixed, un-augmented training samples that measures use; the same batches on every rank."""
        train = self._on_device("train")
        rows = stratified_rows(train.labels.cpu(), min(self.probe_size, len(train)), self.split_seed, _PROBE)
        return EvalLoader(train, self.eval_batch_size or self._eval_batch(), rows)

    @cached_property
    def _rows(self) -> dict[str, Tensor]:
        """Which of the source's samples are trained on, and which are for validation and test; each ascending."""
        labels = self.splits.train_labels
        train, val = self.divided(labels)
        if not len(train):
            raise UserError(
                f"data.val_size must leave some of the {len(labels)} training samples to train on, got {self.val_size}: "
                "choose a smaller one."
            )
        if self.train_limit is not None and self.train_limit < len(train):
            train = train[stratified_rows(labels[train], self.train_limit, self.split_seed, _LIMIT)]
        test_labels = self.splits.test_labels
        size = len(test_labels) if self.test_limit is None else min(self.test_limit, len(test_labels))
        return {
            "train": train,
            "val": val,
            "test": stratified_rows(test_labels, size, self.split_seed, _TEST),
        }

    def divided(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Rows of the source's training samples (N,) to train on, and rows set aside for validation, each ascending."""
        val = stratified_mask(labels, self.val_size, self.split_seed, _VAL)
        return (~val).nonzero().flatten(), val.nonzero().flatten()

    @property
    def _device(self) -> torch.device:
        return self.trainer.strategy.root_device if self.trainer else torch.device("cpu")

    @property
    def _channels_last(self) -> bool:
        return bool(self.plan.channels_last)

    @property
    def _share(self) -> tuple[int, int]:
        """Our rank and the number of ranks that share each global batch."""
        if self.trainer is None or not getattr(self.trainer.strategy, "shards_batches", True):
            return 0, 1
        return self.trainer.global_rank, self.trainer.world_size

    def _on_device(self, split: str) -> Resident:
        """A split on the trainer's device, put there at the first use, and again for a plan of another memory format."""
        resident = self._resident.get(split)
        if resident is None or (resident.device, resident.channels_last) != (self._device, self._channels_last):
            samples, labels = self.of_split(split)
            self._digests[split] = digest(samples)
            resident = self._resident[split] = self.to_device(samples, labels, split == "train")
        return resident

    def _eval_loader(self, split: str) -> EvalLoader:
        rank, world = self._share
        size = self.eval_batch_size or self._eval_batch() * world
        return EvalLoader(self._on_device(split), size, rank=rank, world=world)

    def _eval_batch(self) -> int:
        """Samples of an evaluation batch on one rank, where nobody has set the size."""
        if self._device.type == "cpu":
            return 50  # a CPU's cache holds the activations of so many small images
        few_launches = 1000 * 3072 // math.prod(self.sample_shape) if self._device.type == "cuda" else 0
        return min(1000, max(125, few_launches))


_VAL, _LIMIT, _PROBE, _TEST, TEST_SPLIT = range(5)  # independent streams of split_seed


def stratified_rows(labels: Tensor, size: int, seed: int, stream: int = 0) -> Tensor:
    """`size` rows drawn at random, each class in proportion to its number of samples, ascending.

    Each class is shuffled, the k-th of its n samples gets the rank (k + 1/2) / n, and the `size` samples of lowest rank are
    drawn; between classes of equal size, whose ranks are equal, chance decides. So a smaller draw is part of a larger one, and
    the proportions are exact up to rounding.

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
    generator = torch.Generator().manual_seed(state)
    shuffled = torch.randperm(len(labels), generator=generator)
    by_class = shuffled[labels[shuffled].argsort(stable=True)]
    counts = labels.bincount()
    before = counts.cumsum(0) - counts  # samples in earlier classes
    of = labels[by_class]
    rank = (torch.arange(len(labels)) - before[of] + 0.5).double() / counts[of]
    turns = torch.randperm(len(counts), generator=generator)[of].argsort(stable=True)
    return by_class[turns[rank[turns].argsort(stable=True)[:size]]].sort().values


def stratified_mask(labels: Tensor, size: int, seed: int, stream: int = 0) -> Tensor:
    """(N,) bool: the rows that `stratified_rows` draws."""
    return torch.zeros(len(labels), dtype=torch.bool).index_fill_(0, stratified_rows(labels, size, seed, stream), True)
