"""Loaders over resident samples whose every batch is a pure function of (seed, epoch, step).

Nothing random has to be saved: a run that stopped in the middle of an epoch continues with the very batch that was
next, on any number of ranks and any device. Ranks share the *global* batch; rank r of w takes its rows r, r + w, ...
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightning_app.common.errors import UserError

Batch = tuple[Tensor, Tensor]  # images (B, C, H, W) or vectors (B, d), and labels (B,) int64


@dataclass(frozen=True)
class Draws:
    """What chance decided for each of N images."""

    flip: Tensor  # (N,) int64: 1 mirrors left and right
    top: Tensor  # (N,) int64 in [0, 2 padding]: first row of the crop of the padded, already flipped image
    left: Tensor  # (N,) int64 in [0, 2 padding]: its first column


class Resident:
    """One split on one device, as the loaders read it: a batch is what lies at some of its starts. Here a row is a sample."""

    channels_last: bool = False

    def __init__(self, samples: Tensor, labels: Tensor) -> None:
        self.samples = samples  # (N, ...)
        self.labels = labels  # (N,) int64

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def device(self) -> torch.device:
        """Where samples and labels are."""
        return self.labels.device

    def draw(self, count: int, generator: torch.Generator) -> Draws | None:
        """Random choices for `count` samples; None where nothing is augmented."""
        return None

    def starts(self, rows: Tensor, draws: Draws | None = None) -> Tensor:
        """Where to read samples `rows`, (B,) int64, augmented by `draws` or, by default, as they are."""
        return rows

    def batch(self, starts: Tensor) -> Tensor:
        """The samples (B, ...) at `starts`, (B,) int64 on the device."""
        return self.samples.index_select(0, starts)


class EpochLoader:
    """Shuffled, augmented training batches, with each sample once per epoch.

    Lightning calls ``loader.sampler.set_epoch(epoch)`` before each epoch and saves and restores `state_dict` with a
    checkpoint, also in the middle of an epoch.

    Args:
        source: the training samples, augmented as far as it can.
        batch_size: samples of the global batch, over all ranks.
        seed: of order and augmentation, >= 0.
        drop_last: leave out the last, smaller batch.
        rank: which share of each global batch is ours.
        world: number of shares.
        in_flight: returns how many batches were handed out and not trained on when a checkpoint is saved (such as that of a
            step that an exception ended): they come again after a resume.
    """

    batch_sampler = None  # Lightning asks for it wherever there is a `sampler`

    def __init__(
        self,
        source: Resident,
        batch_size: int,
        seed: int = 0,
        drop_last: bool = False,
        *,
        rank: int = 0,
        world: int = 1,
        in_flight: Callable[[], int] = lambda: 0,
    ) -> None:
        self.source = source
        self.batch_size = batch_size
        self.seed = seed
        self.drop_last = drop_last
        self.rank, self.world = rank, world
        self.sampler = self
        self.epoch = 0
        self._in_flight = in_flight
        self._first = 0  # batch the next iteration starts with: not 0 only after a resume
        self._served = 0  # batches handed out in this epoch
        if len(self) == 0:
            raise UserError(
                f"drop_last leaves no batch: {len(source)} training samples do not fill one of {batch_size}. Use a "
                "smaller batch_size, or set drop_last to false."
            )
        smallest = batch_size if drop_last else len(source) % batch_size or batch_size
        if smallest < world:
            raise UserError(
                f"a batch of {smallest} samples leaves some of the {world} processes without any, and a mean over nothing is not "
                "a number: use fewer devices, another batch_size or, if the data have that option, drop_last."
            )

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration. Another epoch than a restored one starts at its first batch."""
        if epoch != self.epoch:
            self.epoch, self._first, self._served = epoch, 0, 0

    def __len__(self) -> int:
        return _batches(len(self.source), self.batch_size, self.drop_last)

    def __iter__(self) -> Iterator[Batch]:
        for position in self.positions():
            yield position.gather()

    def positions(self) -> Iterator["BatchPosition"]:
        """Where the epoch's batches are, from the first after a resume; nothing is read."""
        # A generator, because Lightning makes the iterator before it sets the epoch and may make one for nothing.
        starts, labels = self.plan(self.epoch)
        first, self._first = self._first, 0
        for index in range(first, len(self)):
            self._served = index + 1
            yield BatchPosition(
                self.source, starts, labels, _share(index, self.batch_size, len(labels), self.rank, self.world)
            )

    def plan(self, epoch: int) -> Batch:
        """The whole epoch in its order, on the device: where to read each image, (N,) int64, and its label, (N,)."""
        states = np.random.SeedSequence((self.seed, epoch)).generate_state(2).tolist()
        for_order, for_draws = (torch.Generator().manual_seed(state) for state in states)
        order = torch.randperm(len(self.source), generator=for_order)
        starts = self.source.starts(order, self.source.draw(len(order), for_draws)).to(self.source.device)
        return starts, self.source.labels[order.to(self.source.device)]

    def state_dict(self) -> dict[str, int]:
        """Epoch, number of its batches that are done, and the batch size this number refers to."""
        done = max(0, self._served - self._in_flight())
        return {"epoch": self.epoch, "position": done, "batch_size": self.batch_size}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue after the saved position.

        Raises:
            UserError: if the position is in the middle of an epoch and the batch size has changed.
        """
        size = state["batch_size"]
        if size != self.batch_size and 0 < state["position"] < _batches(len(self.source), size, self.drop_last):
            raise UserError(
                f"the checkpoint stopped after {state['position']} batches of {size}, got batch_size="
                f"{self.batch_size}: resume with batch_size={size} or from a checkpoint at the end of an epoch."
            )
        self.epoch = state["epoch"]
        self._first = self._served = state["position"]


@dataclass(frozen=True)
class BatchPosition:
    """Where a batch is in its epoch."""

    source: Resident
    starts: Tensor  # (N,) int64, on the device: of the whole epoch, in its order
    labels: Tensor  # (N,)
    rows: slice  # of this batch

    def gather(self) -> Batch:
        """The batch itself."""
        return self.source.batch(self.starts[self.rows]), self.labels[self.rows]


class UngatheredBatches:
    """A step's batches before anybody has gathered them: {seed: position}. Lightning would go through a mapping, and gather."""

    def __init__(self, positions: Mapping[int, BatchPosition]) -> None:
        self.positions = dict(positions)

    def mapping(self, convert: Callable[[Tensor], Tensor] = lambda samples: samples) -> "Batches":
        """The batches, each gathered when it is read, its samples as Lightning's precision converts them."""
        return Batches(self.positions, convert)


class Batches(Mapping[int, Batch]):
    """A step's batches {seed: batch}: see `UngatheredBatches.mapping`."""

    def __init__(self, positions: Mapping[int, BatchPosition], convert: Callable[[Tensor], Tensor]) -> None:
        self.positions, self._convert = positions, convert

    def __getitem__(self, seed: int) -> Batch:
        images, labels = self.positions[seed].gather()
        return self._convert(images), labels

    def __iter__(self) -> Iterator[int]:
        return iter(self.positions)

    def __len__(self) -> int:
        return len(self.positions)


class Streams:
    """The training batches of several data streams side by side: {seed: batch}.

    One loader, however many streams: Lightning reduces over all ranks for each loader in turn, and waits for ever where
    they have different numbers of loaders, as ranks that share out nets do.

    Args:
        loaders: seed -> its stream; all of one length.
    """

    batch_sampler = None
    gathers = True  # else each step's `UngatheredBatches` is handed out, for who reads the samples on the device

    def __init__(self, loaders: Mapping[int, EpochLoader]) -> None:
        self.loaders = dict(loaders)
        self.sampler = self

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of all streams' next iteration."""
        for loader in self.loaders.values():
            loader.set_epoch(epoch)

    def __len__(self) -> int:
        return len(self._any)

    def __iter__(self) -> Iterator[dict[int, Batch] | UngatheredBatches]:
        for positions in zip(*(loader.positions() for loader in self.loaders.values()), strict=True):
            upcoming = UngatheredBatches(dict(zip(self.loaders, positions)))
            yield dict(upcoming.mapping()) if self.gathers else upcoming

    def state_dict(self) -> dict[str, int]:
        """The position of all streams, which is one; it fits any number of them."""
        return self._any.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue all streams after the saved position; raises as `EpochLoader.load_state_dict` does."""
        for loader in self.loaders.values():
            loader.load_state_dict(state)

    @property
    def _any(self) -> EpochLoader:
        return next(iter(self.loaders.values()))


class EvalLoader:
    """Un-augmented batches in a fixed order; every sample once, over all ranks together.

    Every rank makes the same number of batches, so a rank's share of the last one may be empty, (0, ...).

    Args:
        source: the samples.
        batch_size: samples of the global batch, over all ranks.
        rows: which samples, (M,) int64; all by default.
        rank: which share of each global batch is ours.
        world: number of shares.
    """

    def __init__(
        self, source: Resident, batch_size: int, rows: Tensor | None = None, *, rank: int = 0, world: int = 1
    ) -> None:
        self.source = source
        self.batch_size = batch_size
        self.rows = (torch.arange(len(source)) if rows is None else rows).to(source.device)
        self.rank, self.world = rank, world

    def __len__(self) -> int:
        return _batches(len(self.rows), self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        for index in range(len(self)):
            rows = self.rows[_share(index, self.batch_size, len(self.rows), self.rank, self.world)]
            yield self.source.batch(self.source.starts(rows)), self.source.labels[rows]


def _batches(samples: int, batch_size: int, drop_last: bool = False) -> int:
    return samples // batch_size if drop_last else -(-samples // batch_size)


def _share(index: int, batch_size: int, samples: int, rank: int, world: int) -> slice:
    """Positions of one rank's rows of global batch `index`."""
    start = index * batch_size
    return slice(start + rank, min(start + batch_size, samples), world)
